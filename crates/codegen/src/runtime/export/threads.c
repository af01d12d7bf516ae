/* Threads of an exported model: C99, POSIX threads, and the atomic built-ins of GCC and Clang.
 *
 * One loop at a time is shared out in chunks. `number` is that of the loop; a share holds it in its upper half, and in its lower half the
 * range of its unclaimed chunks. The loop's fields change only while no chunk is unclaimed or unfinished, so a thread that reads them and
 * then claims a chunk of that same loop has read the fields of that loop. A thread begins with its own share, the same part of every loop, so
 * that it finds in its cache what it wrote in the loop before; then it takes from the others' shares, from their ends. A loop that comes while
 * another is being shared out runs in its own caller. */

enum { SPINS_BEFORE_SLEEP = 20000, CHUNKS_PER_THREAD = 4, MAX_THREADS = 256 };

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ __volatile__("yield")
#else
#define PAUSE() ((void)0)
#endif

/* What threads write all the time lies apart from what others look at meanwhile: processors fetch cache lines in pairs. */
#define APART __attribute__((aligned(128)))

static struct {
  APART uint64_t number;
  struct { APART uint64_t word; } shares[MAX_THREADS]; /* the caller's first */
  APART int64_t finished;
  APART parallel_body body;
  void *env;
  int64_t n, chunks;
  int taken, stop, sleeping;
  int threads; /* the caller counted */
  int sharing; /* threads that have shares of the loop */
  pthread_t workers[MAX_THREADS];
  pthread_mutex_t lock;
  pthread_cond_t news;
  pthread_rwlock_t configuration; /* read by runs, written by changes of the number of threads */
} pool = {.threads = 1,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .news = PTHREAD_COND_INITIALIZER,
          .configuration = PTHREAD_RWLOCK_INITIALIZER};

/* A share: the loop's number, its first unclaimed chunk, and the one behind its last. */
static uint64_t share_of(uint64_t number, uint64_t begin, uint64_t end) { return number << 32 | begin << 16 | end; }

/* Claims and runs a chunk of a share, from its beginning or its end; 0 where none is left. */
static int claim(uint64_t *share, uint64_t number, int first) {
  uint64_t word = __atomic_load_n(share, __ATOMIC_ACQUIRE);
  for (;;) {
    uint64_t from = word >> 16 & 0xffff, to = word & 0xffff;
    parallel_body body = __atomic_load_n(&pool.body, __ATOMIC_RELAXED);
    void *env = __atomic_load_n(&pool.env, __ATOMIC_RELAXED);
    int64_t n = __atomic_load_n(&pool.n, __ATOMIC_RELAXED);
    int64_t chunks = __atomic_load_n(&pool.chunks, __ATOMIC_RELAXED);
    if (word >> 32 != number || from == to) return 0;
    if (__atomic_compare_exchange_n(share, &word, share_of(number, from + (uint64_t)first, to - (uint64_t)!first), 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
      int64_t chunk = (int64_t)(first ? from : to - 1), size = n / chunks, rest = n % chunks;
      int64_t begin = chunk * size + (chunk < rest ? chunk : rest);
      body(env, begin, begin + size + (chunk < rest));
      __atomic_fetch_add(&pool.finished, 1, __ATOMIC_RELEASE);
      return 1;
    }
  }
}

/* Claims and runs chunks of the loop of that number until none is left: those of one's own share, then the others'. */
static void help(uint64_t number, int me, int threads) {
  for (int i = 0; i < threads; i++)
    while (claim(&pool.shares[(me + i) % threads].word, number, i == 0)) {
    }
}

static void *work(void *share) {
  uint64_t last = 0;
  int spins = 0, me = (int)(intptr_t)share;
  while (!__atomic_load_n(&pool.stop, __ATOMIC_ACQUIRE)) {
    uint64_t number = __atomic_load_n(&pool.number, __ATOMIC_ACQUIRE);
    if (number != last) {
      help(number, me, __atomic_load_n(&pool.sharing, __ATOMIC_RELAXED));
      last = number;
      spins = 0;
    } else if (spins < SPINS_BEFORE_SLEEP) {
      spins++;
      PAUSE();
    } else {
      pthread_mutex_lock(&pool.lock);
      __atomic_fetch_add(&pool.sleeping, 1, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(&pool.number, __ATOMIC_SEQ_CST) == last && !pool.stop)
        pthread_cond_wait(&pool.news, &pool.lock);
      __atomic_fetch_sub(&pool.sleeping, 1, __ATOMIC_SEQ_CST);
      pthread_mutex_unlock(&pool.lock);
      spins = 0;
    }
  }
  return NULL;
}

static void parallel_for(const struct ResatCtx *ctx, parallel_body body, void *env, int64_t n) {
  int idle = 0;
  int64_t chunks;
  uint64_t number;
  if (n <= 0) return;
  if (n == 1 || ctx->threads == 1 ||
      !__atomic_compare_exchange_n(&pool.taken, &idle, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    body(env, 0, n);
    return;
  }
  chunks = ctx->threads * CHUNKS_PER_THREAD < n ? ctx->threads * CHUNKS_PER_THREAD : n;
  __atomic_store_n(&pool.body, body, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.env, env, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.n, n, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.chunks, chunks, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.finished, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.sharing, (int)ctx->threads, __ATOMIC_RELAXED);
  number = (uint32_t)(__atomic_load_n(&pool.number, __ATOMIC_RELAXED) + 1);
  for (int64_t i = 0; i < ctx->threads; i++)
    __atomic_store_n(&pool.shares[i].word, share_of(number, (uint64_t)(chunks * i / ctx->threads), (uint64_t)(chunks * (i + 1) / ctx->threads)),
                     __ATOMIC_RELEASE);
  __atomic_store_n(&pool.number, number, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool.sleeping, __ATOMIC_SEQ_CST) != 0) {
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.news);
    pthread_mutex_unlock(&pool.lock);
  }
  help(number, 0, (int)ctx->threads);
  for (int spins = 0; __atomic_load_n(&pool.finished, __ATOMIC_ACQUIRE) < chunks;) {
    if (spins < SPINS_BEFORE_SLEEP) {
      spins++;
      PAUSE();
    } else {
      sched_yield();
    }
  }
  __atomic_store_n(&pool.taken, 0, __ATOMIC_RELEASE);
}

static void stop_workers(void) {
  pthread_mutex_lock(&pool.lock);
  __atomic_store_n(&pool.stop, 1, __ATOMIC_SEQ_CST);
  pthread_cond_broadcast(&pool.news);
  pthread_mutex_unlock(&pool.lock);
  for (int i = 0; i < pool.threads - 1; i++) pthread_join(pool.workers[i], NULL);
  pool.threads = 1;
  __atomic_store_n(&pool.stop, 0, __ATOMIC_SEQ_CST);
}

static int set_threads(int threads) {
  if (threads < 1 || threads > MAX_THREADS) return RESAT_BAD_ARGUMENT;
  pthread_rwlock_wrlock(&pool.configuration);
  stop_workers();
  while (pool.threads < threads && pthread_create(&pool.workers[pool.threads - 1], NULL, work, (void *)(intptr_t)pool.threads) == 0)
    pool.threads++;
  threads -= pool.threads;
  pthread_rwlock_unlock(&pool.configuration);
  return threads == 0 ? RESAT_OK : RESAT_NO_MEMORY;
}

/* When the library is unloaded, its code must not be running. */
__attribute__((destructor)) static void unload(void) { stop_workers(); }

#if defined(__x86_64__) && defined(__linux__)
/* Kernels that use matrix registers (AMX) bring this along. Linux has to be asked for them, once by a process. */
extern const unsigned char resat_uses_tiles[] __attribute__((weak, visibility("hidden")));
long syscall(long number, ...);
static int refused;
__attribute__((constructor)) static void ask_for_tiles(void) {
  enum { ARCH_PRCTL = 158, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  if (resat_uses_tiles) refused = syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) != 0;
}
#else
enum { refused = 0 };
#endif

static const char *trouble(const struct ResatCtx *ctx) {
  const char *why = NULL;
  for (size_t i = 0; ready[i] != NULL && why == NULL; i++) why = ready[i](ctx);
  return why;
}

/* What the machine lacks is reported when the library is loaded; each run fails then. */
__attribute__((constructor)) static void load(void) {
  const char *why = trouble(NULL);
  if (why != NULL) fprintf(stderr, "%s: %s\n", MODEL_NAME, why);
}

#define PER_THREAD __thread
typedef void kernel_workspace;
#define CONTEXT_OF(ctx) (ctx)

/* Memory on a boundary of RESAT_ALIGN, to be freed; none where there is none. */
static void *memory_of(uint64_t bytes) {
  void *p = NULL;
  return posix_memalign(&p, RESAT_ALIGN, bytes > 0 ? bytes : RESAT_ALIGN) == 0 ? p : NULL;
}

static int aligned(const void *p) { return p != NULL && (uintptr_t)p % RESAT_ALIGN == 0; }

/* Between these, the number of threads stays as it is. */
static struct ResatCtx begin_run(void) {
  struct ResatCtx ctx = {parallel_for, NULL, 1};
  pthread_rwlock_rdlock(&pool.configuration);
  ctx.threads = pool.threads;
  return ctx;
}

static void end_run(void) { pthread_rwlock_unlock(&pool.configuration); }
