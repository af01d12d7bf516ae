/* What runs of a model in C need of the system: the C library. Kernels run on the calling thread, or on those of OpenMP where that is on. */

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L && !defined(__STDC_NO_THREADS__)
#define PER_THREAD _Thread_local
#elif defined(__GNUC__)
#define PER_THREAD __thread
#else
#define PER_THREAD
#endif

typedef unsigned char kernel_workspace;
#define CONTEXT_OF(ctx) ((void)(ctx), (const struct ResatCtx *)NULL)
enum { refused = 0 };

static const char *trouble(const struct ResatCtx *ctx) {
  (void)ctx;
  return WEIGHTS_MISSING ? "the model was not given its weights" : NULL;
}

static void *memory_of(uint64_t bytes) { return malloc(bytes > 0 ? (size_t)bytes : 1); }

static int aligned(const void *p) { return p != NULL; }

static struct ResatCtx begin_run(void) {
  struct ResatCtx ctx = {NULL, NULL, 1};
  return ctx;
}

static void end_run(void) {}

static int set_threads(int threads) { return threads == 1 ? RESAT_OK : RESAT_BAD_ARGUMENT; }
