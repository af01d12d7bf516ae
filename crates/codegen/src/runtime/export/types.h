#ifndef RESAT_MODEL_TYPES
#define RESAT_MODEL_TYPES
#include <stddef.h>
#include <stdint.h>

/* Alignment of every pointer that a model takes, in bytes. */
#define RESAT_ALIGN 64

/* What functions return. */
enum {
  RESAT_OK = 0,
  RESAT_BAD_ARGUMENT = 1, /* a pointer is null or not aligned, or a number is out of range */
  RESAT_NO_MEMORY = 2,    /* no memory, or no threads */
  RESAT_REFUSED = 3,      /* the system does not let the process use the processor's matrix registers, which the model wants */
  RESAT_FAILED = 4        /* a function can't be called, or failed: the function whose name ends in `_error` says why */
};

/* An input or output: a dense row-major array. */
typedef struct {
  const char *name;
  const char *dtype; /* as "float32", "int8", "bool" (one byte each, 0 or 1) */
  uint32_t rank;
  const int64_t *shape; /* `rank` extents, outermost first */
  uint64_t bytes;
} resat_tensor;

/* All there is to know of a model, for programs that load models at run time: every exported library has the function
   `const resat_model *resat_model_v1(void)`. */
typedef struct {
  const char *name;
  uint32_t input_count;
  uint32_t output_count;
  const resat_tensor *inputs;
  const resat_tensor *outputs;
  uint64_t workspace_bytes;
  int (*run)(const void *const *inputs, void *const *outputs, void *workspace);
  int (*set_threads)(int threads);
} resat_model;
#endif
