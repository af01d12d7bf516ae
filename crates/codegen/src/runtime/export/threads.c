/* Threads of an exported model: C99, POSIX threads, and the atomic built-ins of GCC and Clang.
 *
 * One loop at a time is shared out in chunks. Where cores share no cache, a line that another core has written takes long to come: so the caller
 * writes one line, `current`, from which all workers learn of a loop; each thread claims the chunks of its own share in a line that nobody
 * else looks at before having finished a share, and says in another one, once, how many it ran. Then it takes from the others' shares, from
 * their ends. Its own share is the same part of every loop, so that it finds in its cache what it wrote in the loop before. The loop's fields
 * change only while no chunk is unclaimed or unfinished, so a thread that reads its name, then the fields, and then claims a chunk of that
 * same loop has read the fields of that loop. A loop that comes while another is being shared out runs in its own caller. */

enum { SPINS_BEFORE_SLEEP = 20000, SPINS_BETWEEN_YIELDS = 512, CHUNKS_PER_THREAD = 4, MAX_THREADS = 256 };

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
  /* The loop: `name` is its number, from 1, in the upper half, and how many chunks it has. */
  struct { APART uint64_t name; parallel_body body; void *env; int64_t n; } current;
  /* The caller's first. One whose number is not the loop's is from an earlier loop: nothing of this one was claimed yet. */
  struct { APART uint64_t word; } shares[MAX_THREADS];
  /* The number of the loop and how many of its chunks the thread has run. */
  struct { APART uint64_t word; } finished[MAX_THREADS];
  APART int taken;
  APART int stop;
  int active, sleeping; /* runs, during which workers stay awake */
  int threads; /* the caller counted; as it is while there are workers */
  pthread_t workers[MAX_THREADS];
  pthread_mutex_t lock;
  pthread_cond_t news;
  pthread_rwlock_t configuration; /* read by runs, written by changes of the number of threads */
} pool = {.threads = 1,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .news = PTHREAD_COND_INITIALIZER,
          .configuration = PTHREAD_RWLOCK_INITIALIZER};

#define LOW UINT64_C(0xffffffff)

/* A share: the loop's number, its first unclaimed chunk, and the one behind its last. */
static uint64_t share_of(uint64_t name, uint64_t begin, uint64_t end) { return (name & ~LOW) | begin << 16 | end; }

/* Claims and runs a chunk of a share, from its beginning or its end; 0 where none is left. */
static int claim(int share, uint64_t name, int first) {
  uint64_t threads = (uint64_t)pool.threads, chunks = name & LOW;
  uint64_t word = __atomic_load_n(&pool.shares[share].word, __ATOMIC_ACQUIRE);
  for (;;) {
    uint64_t from = word >> 16 & 0xffff, to = word & 0xffff;
    parallel_body body = __atomic_load_n(&pool.current.body, __ATOMIC_RELAXED);
    void *env = __atomic_load_n(&pool.current.env, __ATOMIC_RELAXED);
    int64_t n = __atomic_load_n(&pool.current.n, __ATOMIC_RELAXED);
    if (word >> 32 != name >> 32) {
      /* Of an earlier loop, or of a later one. */
      if (__atomic_load_n(&pool.current.name, __ATOMIC_ACQUIRE) != name) return 0;
      from = chunks * (uint64_t)share / threads;
      to = chunks * (uint64_t)(share + 1) / threads;
    }
    if (from == to) return 0;
    if (__atomic_compare_exchange_n(&pool.shares[share].word, &word, share_of(name, from + (uint64_t)first, to - (uint64_t)!first), 0,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      int64_t chunk = (int64_t)(first ? from : to - 1), size = n / (int64_t)chunks, rest = n % (int64_t)chunks;
      int64_t begin = chunk * size + (chunk < rest ? chunk : rest);
      body(env, begin, begin + size + (chunk < rest));
      return 1;
    }
  }
}

/* Claims and runs the chunks of one's own share; says how many. */
static uint64_t run_own(uint64_t name, int me) {
  uint64_t done = 0;
  while (claim(me, name, 1)) done++;
  return done;
}

static void tell(uint64_t name, int me, uint64_t done) {
  __atomic_store_n(&pool.finished[me].word, (name & ~LOW) | done, __ATOMIC_RELEASE);
}

/* Claims and runs chunks of the others' shares until none is left, and tells each time how many that makes, with those before. */
static void steal(uint64_t name, int me, uint64_t done) {
  for (int i = 1; i < pool.threads; i++)
    while (claim((me + i) % pool.threads, name, 0)) tell(name, me, ++done);
}

/* Whether all chunks of a loop are finished. */
static int is_finished(uint64_t name) {
  uint64_t done = 0;
  for (int i = 0; i < pool.threads; i++) {
    uint64_t word = __atomic_load_n(&pool.finished[i].word, __ATOMIC_ACQUIRE);
    if (word >> 32 == name >> 32) done += word & LOW;
  }
  return done == (name & LOW);
}

/* What was left by a loop that had the same number before, or by other threads, can't be told from what belongs to the next loop. */
static void forget(void) {
  for (int i = 0; i < MAX_THREADS; i++) {
    __atomic_store_n(&pool.shares[i].word, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pool.finished[i].word, 0, __ATOMIC_RELAXED);
  }
}

static void *work(void *share) {
  uint64_t last = 0;
  int spins = 0, me = (int)(intptr_t)share;
  while (!__atomic_load_n(&pool.stop, __ATOMIC_ACQUIRE)) {
    uint64_t name = __atomic_load_n(&pool.current.name, __ATOMIC_ACQUIRE);
    if (name != last) {
      uint64_t own = run_own(name, me);
      if (own > 0) tell(name, me, own);
      steal(name, me, own);
      last = name;
      spins = 0;
    } else if (spins < SPINS_BEFORE_SLEEP) {
      spins++;
      PAUSE();
    } else if (__atomic_load_n(&pool.active, __ATOMIC_RELAXED) != 0) {
      spins -= SPINS_BETWEEN_YIELDS;
      sched_yield();
    } else {
      pthread_mutex_lock(&pool.lock);
      __atomic_fetch_add(&pool.sleeping, 1, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(&pool.active, __ATOMIC_SEQ_CST) == 0 && !pool.stop)
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
  uint64_t name, own, chunks;
  if (n <= 0) return;
  if (n == 1 || ctx->threads == 1 ||
      !__atomic_compare_exchange_n(&pool.taken, &idle, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    body(env, 0, n);
    return;
  }
  chunks = (uint64_t)(ctx->threads * CHUNKS_PER_THREAD < n ? ctx->threads * CHUNKS_PER_THREAD : n);
  name = (__atomic_load_n(&pool.current.name, __ATOMIC_RELAXED) & ~LOW) + LOW + 1;
  if (name == 0) {
    forget();
    name = LOW + 1;
  }
  name |= chunks;
  __atomic_store_n(&pool.current.body, body, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.current.env, env, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.current.n, n, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.current.name, name, __ATOMIC_RELEASE);
  own = run_own(name, 0);
  tell(name, 0, own);
  if (!is_finished(name)) steal(name, 0, own);
  for (int spins = 0; !is_finished(name);) {
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
  forget();
  __atomic_store_n(&pool.current.name, 0, __ATOMIC_RELAXED);
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

/* Between these, the number of threads stays as it is, and workers stay awake. */
static struct ResatCtx begin_run(void) {
  struct ResatCtx ctx = {parallel_for, NULL, 1};
  pthread_rwlock_rdlock(&pool.configuration);
  ctx.threads = pool.threads;
  __atomic_fetch_add(&pool.active, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool.sleeping, __ATOMIC_SEQ_CST) != 0) {
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.news);
    pthread_mutex_unlock(&pool.lock);
  }
  return ctx;
}

static void end_run(void) {
  __atomic_fetch_sub(&pool.active, 1, __ATOMIC_SEQ_CST);
  pthread_rwlock_unlock(&pool.configuration);
}
