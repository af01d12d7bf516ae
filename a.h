/* A model in C99. Compile the source beside this header and link with libm; with OpenMP (-fopenmp), loops run on several
   threads.

   Arrays are dense and row-major, aligned to their elements:
     inputs[0]: "q", float32 of shape [4, 3, 64], 3072 bytes
     inputs[1]: "k", float32 of shape [4, 1024, 64], 1048576 bytes
     outputs[0]: "0", float32 of shape [4, 3, 1024], 49152 bytes
   Functions may be called from several threads at once. */
#ifndef A_H
#define A_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define A_INPUTS 2
#define A_OUTPUTS 1

/* Bytes that `workspace` must have. */
#define A_WORKSPACE_BYTES 0

#if !defined(RESAT_MODEL_TYPES) && !defined(RESAT_MODEL_CODES)
#define RESAT_MODEL_CODES
enum {
  RESAT_OK = 0,
  RESAT_BAD_ARGUMENT = 1,
  RESAT_NO_MEMORY = 2
};
#endif

/* Runs the model once. Inputs are only read. Outputs must not overlap each other, inputs or the workspace. `workspace` is
   scratch memory of A_WORKSPACE_BYTES, aligned to 8 bytes, for the time of this call; where it is NULL, the call takes and
   frees its own. Returns RESAT_OK or what was wrong. */
int a_run(const void *const *inputs, void *const *outputs, void *workspace);

#ifdef __cplusplus
}
#endif
#endif
