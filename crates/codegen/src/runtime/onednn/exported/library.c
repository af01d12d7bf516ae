/* Regions of oneDNN in exported models: C99, POSIX threads and dlopen, the same for every model.
 *
 * A region comes as a tape of numbers: its tensors, then its steps, with what was decided about them when the model was built
 * (which layouts a primitive is offered, what is computed along with it). Layouts themselves, memory and scratchpads are what the
 * library says on the machine where the model runs: the tape is played once for a number of threads, at the first run, which
 * makes the primitives and brings the constants into their layouts; where a tensor then lies in another way than a primitive
 * wants, a copy is made. A call only runs primitives. */

enum { MAX_RANK = 12, MD_WORDS = 87, OPERATION_WORDS = 1024, INFERENCE = 96 };
enum { ARG_SRC = 1, ARG_SRC_1 = 2, ARG_DST = 17, ARG_WEIGHTS = 33, ARG_SCRATCHPAD = 80 };
enum { QUERY_SRC = 129, QUERY_WEIGHTS = 131, QUERY_DST = 133, QUERY_SCRATCHPAD = 136 };
enum { BF16 = 2, F32 = 3, I32 = 4, I8 = 5, U8 = 6 };
enum { ISA_AVX512_CORE = 0x27, ISA_AVX512_VNNI = 0x67 };
enum { SEQUENTIAL = 1, OPEN_MP = 2, ALIGN = 64 };

typedef int64_t dims_t[MAX_RANK];
typedef struct { int arg; void *memory; } exec_arg;
typedef struct { int major, minor, patch; const char *hash; uint32_t runtime; } version_t;

/* Functions by name: what both versions have, then what version 2 and what version 3 have in forms of their own. */
#define COMMON(X) \
  X(int, get_effective_cpu_isa, (void)) \
  X(int, engine_create, (void **, int, size_t)) \
  X(int, stream_create, (void **, void *, unsigned)) \
  X(int, stream_wait, (void *)) \
  X(int, stream_destroy, (void *)) \
  X(int, memory_create, (void **, const void *, void *, void *)) \
  X(int, memory_set_data_handle, (void *, void *)) \
  X(int, memory_destroy, (void *)) \
  X(size_t, memory_desc_get_size, (const void *)) \
  X(int, memory_desc_equal, (const void *, const void *)) \
  X(int, memory_desc_permute_axes, (void *, const void *, const int *)) \
  X(int, memory_desc_reshape, (void *, const void *, int, const int64_t *)) \
  X(const void *, primitive_desc_query_md, (void *, int, int)) \
  X(int, primitive_desc_destroy, (void *)) \
  X(int, primitive_create, (void **, void *)) \
  X(int, primitive_execute, (void *, void *, int, const exec_arg *)) \
  X(int, primitive_destroy, (void *)) \
  X(int, primitive_attr_create, (void **)) \
  X(int, primitive_attr_destroy, (void *)) \
  X(int, primitive_attr_set_scratchpad_mode, (void *, int)) \
  X(int, primitive_attr_set_post_ops, (void *, void *)) \
  X(int, post_ops_create, (void **)) \
  X(int, post_ops_destroy, (void *)) \
  X(int, post_ops_append_binary, (void *, int, const void *)) \
  X(int, reorder_primitive_desc_create, (void **, const void *, void *, const void *, void *, void *))
#define VERSION_2(X) \
  X(int, memory_desc_init_by_strides, (void *, int, const int64_t *, int, const int64_t *)) \
  X(int, memory_desc_init_by_tag, (void *, int, const int64_t *, int, int)) \
  X(int, primitive_desc_create, (void **, const void *, void *, void *, void *)) \
  X(int, dilated_convolution_forward_desc_init, (void *, int, int, const void *, const void *, const void *, const void *, \
      const int64_t *, const int64_t *, const int64_t *, const int64_t *)) \
  X(int, dilated_deconvolution_forward_desc_init, (void *, int, int, const void *, const void *, const void *, const void *, \
      const int64_t *, const int64_t *, const int64_t *, const int64_t *)) \
  X(int, inner_product_forward_desc_init, (void *, int, const void *, const void *, const void *, const void *)) \
  X(int, matmul_desc_init, (void *, const void *, const void *, const void *, const void *)) \
  X(int, pooling_v2_forward_desc_init, (void *, int, int, const void *, const void *, const int64_t *, const int64_t *, \
      const int64_t *, const int64_t *, const int64_t *)) \
  X(int, eltwise_forward_desc_init, (void *, int, int, const void *, float, float)) \
  X(int, binary_desc_init, (void *, int, const void *, const void *, const void *)) \
  X(int, softmax_v2_forward_desc_init, (void *, int, int, const void *, const void *, int)) \
  X(int, concat_primitive_desc_create, (void **, const void *, int, int, const void *, void *, void *)) \
  X(int, post_ops_append_sum, (void *, float)) \
  X(int, post_ops_append_eltwise, (void *, float, int, float, float))
#define VERSION_3(X) \
  X(int, memory_desc_create_with_strides, (void **, int, const int64_t *, int, const int64_t *)) \
  X(int, memory_desc_create_with_tag, (void **, int, const int64_t *, int, int)) \
  X(int, memory_desc_clone, (void **, const void *)) \
  X(int, memory_desc_destroy, (void *)) \
  X(int, convolution_forward_primitive_desc_create, (void **, void *, int, int, const void *, const void *, const void *, \
      const void *, const int64_t *, const int64_t *, const int64_t *, const int64_t *, void *)) \
  X(int, deconvolution_forward_primitive_desc_create, (void **, void *, int, int, const void *, const void *, const void *, \
      const void *, const int64_t *, const int64_t *, const int64_t *, const int64_t *, void *)) \
  X(int, inner_product_forward_primitive_desc_create, (void **, void *, int, const void *, const void *, const void *, \
      const void *, void *)) \
  X(int, matmul_primitive_desc_create, (void **, void *, const void *, const void *, const void *, const void *, void *)) \
  X(int, pooling_forward_primitive_desc_create, (void **, void *, int, int, const void *, const void *, const int64_t *, \
      const int64_t *, const int64_t *, const int64_t *, const int64_t *, void *)) \
  X(int, eltwise_forward_primitive_desc_create, (void **, void *, int, int, const void *, const void *, float, float, void *)) \
  X(int, binary_primitive_desc_create, (void **, void *, int, const void *, const void *, const void *, void *)) \
  X(int, softmax_forward_primitive_desc_create, (void **, void *, int, int, const void *, const void *, int, void *)) \
  X(int, concat_primitive_desc_create, (void **, void *, const void *, int, int, const void *const *, void *)) \
  X(int, post_ops_append_sum, (void *, float, int32_t, int)) \
  X(int, post_ops_append_eltwise, (void *, int, float, float))

#define FIELD(ret, name, args) ret(*name) args;
static struct {
  struct { COMMON(FIELD) } c;
  struct { VERSION_2(FIELD) } v2;
  struct { VERSION_3(FIELD) } v3;
  version_t version;
  int is_3;
  void *engine;
  void (*set_threads)(int);
  int (*get_threads)(void);
} lib;

/* --- The library --- */

static pthread_mutex_t building = PTHREAD_MUTEX_INITIALIZER; /* the library and plans are made by one thread at a time */
static pthread_mutex_t resting = PTHREAD_MUTEX_INITIALIZER;  /* lists of idle instances */
static int looked_for, found;
static char absent[512];

static const char *meaning(int status) {
  static const char *const words[] = {"success", "out of memory", "invalid arguments", "not implemented",
                                      "no further implementation", "runtime error", "not required"};
  return status >= 0 && status < 7 ? words[status] : "an unknown status";
}

static int missing(void *handle, const char *name, void *to) {
  void *symbol = dlsym(handle, name);
  if (symbol == NULL) snprintf(absent, sizeof absent, "oneDNN can't be used: it has no function `%s`", name);
  memcpy(to, &symbol, sizeof symbol);
  return symbol == NULL;
}

static int link_library(void *handle) {
  const version_t *(*get)(void);
  int status;
  if (missing(handle, "dnnl_version", &get)) return 0;
  lib.version = *get();
  lib.is_3 = lib.version.major == 3;
  if (!lib.is_3 && !(lib.version.major == 2 && lib.version.minor >= 6)) {
    snprintf(absent, sizeof absent, "oneDNN can't be used: it is version %d.%d.%d; 2.6 and later of 2, and 3, are known",
             lib.version.major, lib.version.minor, lib.version.patch);
    return 0;
  }
#define FIND_COMMON(ret, name, args) if (missing(handle, "dnnl_" #name, &lib.c.name)) return 0;
#define FIND_2(ret, name, args) if (missing(handle, "dnnl_" #name, &lib.v2.name)) return 0;
#define FIND_3(ret, name, args) if (missing(handle, "dnnl_" #name, &lib.v3.name)) return 0;
  COMMON(FIND_COMMON)
  if (lib.is_3) {
    VERSION_3(FIND_3)
  } else {
    VERSION_2(FIND_2)
  }
  if (lib.version.runtime == OPEN_MP) {
    void *set = dlsym(handle, "omp_set_num_threads"), *get_most = dlsym(handle, "omp_get_max_threads");
    memcpy(&lib.set_threads, &set, sizeof set);
    memcpy(&lib.get_threads, &get_most, sizeof get_most);
  }
  status = lib.c.engine_create(&lib.engine, 1, 0);
  if (status != 0) {
    snprintf(absent, sizeof absent, "oneDNN can't be used: it has no engine for this processor (%s)", meaning(status));
    return 0;
  }
  return 1;
}

/* Loads the library, once; under the lock. */
static const char *load_library(void) {
  static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};
  const char *own = getenv("RESAT_ONEDNN");
  void *handle = NULL;
  if (!looked_for) {
    looked_for = 1;
    if (own != NULL && *own != 0) {
      handle = dlopen(own, RTLD_NOW | RTLD_LOCAL);
    } else {
      own = NULL;
      for (int i = 0; i < 3 && handle == NULL; i++) handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (handle == NULL)
      snprintf(absent, sizeof absent,
               "oneDNN is not installed (%s can't be loaded): install Debian's package libdnnl2 (libdnnl3 where there is version 3), "
               "or name the library in RESAT_ONEDNN",
               own != NULL ? own : "libdnnl.so.3, libdnnl.so.2, libdnnl.so");
    else
      found = link_library(handle);
  }
  return found ? NULL : absent;
}
