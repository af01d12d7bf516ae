/* A compiler for parts of Relay programs, as a shared library.

   `resat build model.relay --compiler ./mine.so` (in Rust, `resat::partition::load`) asks the library which operators it takes,
   cuts regions of them out of the program, has the library compile each, and calls what it made like any kernel.

   A library exports the functions below. Those that are marked optional may be missing. They are called by one thread at a
   time, in a process of their own: a library that crashes, exits or hangs ends that process, not resat. Strings are UTF-8 and
   end with a NUL. What a library is given lives until the function returns; what it gives, until the next call. Of
   `resat_compiler_compile`, both live until `resat_compiler_free` has returned. */
#ifndef RESAT_COMPILER_H
#define RESAT_COMPILER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What `resat_compiler_abi` returns: the version of this header. */
#define RESAT_COMPILER_ABI 1

/* The type of a tensor. */
typedef struct resat_type {
  const char *dtype;    /* "float32", "bfloat16", "int8", "bool" (a byte each, 0 or 1), ... */
  uint32_t rank;
  const int64_t *shape; /* `rank` extents, outermost first; -1 is one that is not known yet. Tensors are dense, row-major. */
} resat_type;

/* The call of an operator. */
typedef struct resat_call {
  const char *op;    /* Relay's name, "nn.dense" */
  const char *attrs; /* all its attributes, as a JSON object */
  uint32_t arg_count;
  const resat_type *args; /* tuples flattened depth first */
  uint32_t result_count;
  const resat_type *results; /* likewise */
} resat_call;

/* A tensor within a region. */
typedef struct resat_value {
  resat_type type;
  const void *data; /* the elements of a constant, else NULL */
} resat_value;

/* One step of a region. Values are named by their numbers. */
typedef struct resat_node {
  const char *op;
  const char *attrs;     /* as in `resat_call` */
  const char *composite; /* the name of the pattern that met this call among others, else NULL */
  uint32_t group;        /* calls that one match of a pattern met have the same number; 0 without a pattern */
  uint32_t arg_count;
  const uint32_t *args;
  uint32_t result_count;
  const uint32_t *results;
} resat_node;

/* What is to be compiled: a function of tensors. */
typedef struct resat_region {
  const char *symbol; /* what the compiled function is to be called */
  const char *relay;  /* the region as Relay text, whose `@main` it is */
  const char *triple; /* the machine, by LLVM's names */
  const char *cpu;
  const char *features; /* as "+avx2,+fma" */
  uint32_t value_count;
  const resat_value *values;
  uint32_t input_count; /* the inputs are the values 0 to `input_count` - 1 */
  uint32_t node_count;
  const resat_node *nodes; /* in an order in which they can be computed */
  uint32_t output_count;
  const uint32_t *outputs; /* numbers of values; inputs and constants may be among them, and values twice */
} resat_region;

/* What compiled code is given to run loops with; only what it points at is const. */
typedef struct resat_context {
  /* Runs body(env, begin, end) on ranges that make up 0..n, on any threads, and returns when all are done. Not from a body. */
  void (*parallel_for)(const struct resat_context *, void (*body)(void *env, int64_t begin, int64_t end), void *env, int64_t n);
  const void *pool;
  int64_t threads; /* how many may work at once */
} resat_context;

/* A compiled function. `args` are pointers to the inputs in order, then to the outputs; `workspace` is as large as was asked
   for. All are aligned to 64 bytes and do not overlap. Outputs and workspace hold anything before. Several threads may call it
   at once. */
typedef void (*resat_function)(const resat_context *context, void *const *args, void *workspace);

enum {
  RESAT_CODE_OBJECT = 1,  /* `code` is an object file of the target with a `resat_function` named by the symbol */
  RESAT_CODE_SOURCE = 2,  /* `code` is C99 that defines the same, for the target's C compiler */
  RESAT_CODE_FUNCTION = 3 /* `function` is one, within this library or made by it. It can't be exported. The region is compiled
                             once more in the process that runs the program, to have the function there. */
};

/* What became of a region. It is zeroed before the library fills it. */
typedef struct resat_compiled {
  uint32_t kind;
  const void *code;
  uint64_t code_bytes; /* of C, without a NUL */
  resat_function function;
  uint64_t workspace_bytes;
  /* The tensors that the code gives, in order: a region that gives others is refused. */
  uint32_t output_count;
  const resat_type *outputs;
  const char *libraries; /* shared libraries that the code calls, as "m dnnl", or NULL */
  const char *error;     /* where the region could not be compiled: why */
} resat_compiled;

/* A pattern of calls that are taken together. */
typedef struct resat_composite {
  const char *name;    /* by convention the compiler's name, a dot, and a word */
  const char *pattern; /* a left side in resat's language of rules: "(nn.relu (nn.dense ?x ?w))" */
} resat_composite;

/* RESAT_COMPILER_ABI. */
uint32_t resat_compiler_abi(void);

/* The name: letters, digits and `_`. */
const char *resat_compiler_name(void);

/* Whether it takes such a call by itself: 1, else 0. */
int resat_compiler_supports(const resat_call *call);

/* Compiles a region. Returns 0, or anything else where it can't, with `out->error`. */
int resat_compiler_compile(const resat_region *region, resat_compiled *out);

/* Frees what `resat_compiler_compile` put into `out`. */
void resat_compiler_free(resat_compiled *out);

/* Optional: what it takes together, preferred ones first. Returns how many `*out` points at. */
uint32_t resat_compiler_patterns(const resat_composite **out);

/* Optional: a ruleset in resat's language, which runs where regions for this compiler are chosen; NULL for none. */
const char *resat_compiler_rules(void);

/* Optional: the seconds that a region takes; negative where that is not known. */
double resat_compiler_cost(const resat_region *region);

/* Optional: whether regions shall hold the constants that they use (1), which are inputs of every call otherwise. */
int resat_compiler_keeps_constants(void);

#ifdef __cplusplus
}
#endif
#endif
