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
  RESAT_FAILED = 4,       /* a function can't be called, or failed: the function whose name ends in `_error` says why */
  RESAT_BAD_SHAPE = 5,    /* extents of inputs that do not fit the model, or each other */
  RESAT_TOO_SMALL = 6     /* a workspace, or memory for state, has fewer bytes than are needed */
};

/* An input or output: a dense row-major array. */
typedef struct {
  const char *name;
  const char *dtype; /* as "float32", "int8", "bool" (one byte each, 0 or 1) */
  uint32_t rank;
  const int64_t *shape; /* `rank` extents, outermost first; -1 where one is found out when the model runs */
  uint64_t bytes;       /* 0 where an extent is */
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

/* An array that a model gives. */
typedef struct {
  const char *dtype;
  uint32_t rank;
  const int64_t *shape;
  uint64_t bytes;
  const void *data;
} resat_array;

/* What a model gives, in memory of the library's. */
typedef struct {
  uint32_t count;
  const resat_array *arrays;
} resat_results;

/* The same of models whose extents, or whose results, are found out when they run: every library of such a model has the function
   `const resat_sized_model *resat_sized_model_v1(void)`. */
typedef struct {
  const char *name;
  uint32_t input_count;
  uint32_t output_count; /* 0 where how many there are is found out, too */
  const resat_tensor *inputs;
  const resat_tensor *outputs;
  int (*call)(const void *const *inputs, const int64_t *const *input_shapes, resat_results **results);
  void (*release)(resat_results *results);
  int (*set_threads)(int threads);
  const char *(*error)(void);
} resat_sized_model;

/* State: what a model keeps from one run to the next, an array in memory of the caller's. It begins with the elements and extents that the
   caller gives it, as none along the axis that grows; other extents that are 0 then are those of inputs that have to be equal. A run takes it
   as an input, puts the new one in its place and sets `shape`; where the new one has more extents than there is room for, the run is refused
   with RESAT_TOO_SMALL, and nothing is written. */
typedef struct {
  void *data;              /* the array, dense and row-major, on a boundary of RESAT_ALIGN */
  void *spare;             /* as much memory again, where the model says that it needs it: runs then exchange both; else NULL */
  const int64_t *capacity; /* extents that there is room for, outermost first; may be NULL where all are known */
  int64_t *shape;          /* extents that it has; likewise */
} resat_state;

/* What there is to know of a state. */
typedef struct {
  resat_tensor tensor; /* its name as an input, type and extents */
  const char *output;  /* its name as an output */
  const int64_t *most; /* extents that are room enough, whatever the sizes of inputs */
  int spare;           /* whether it needs spare memory, at some sizes at least; else it is updated where it lies */
} resat_state_type;

/* The same of models that keep state, all of which `states` points at; `inputs` and `outputs` are the others. Every library of such a model
   has the function `const resat_stateful_model *resat_stateful_model_v1(void)`. */
typedef struct {
  const char *name;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t state_count;
  const resat_tensor *inputs;
  const resat_tensor *outputs;
  const resat_state_type *states;
  int (*call)(const void *const *inputs, const int64_t *const *input_shapes, resat_state *states, resat_results **results);
  void (*release)(resat_results *results);
  int (*set_threads)(int threads);
  const char *(*error)(void);
} resat_stateful_model;
#endif
