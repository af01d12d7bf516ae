#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*parallel_body)(void *env, int64_t begin, int64_t end);
struct ResatCtx {
  void (*parallel_for)(const struct ResatCtx *, parallel_body, void *env, int64_t n);
  const void *pool;
  int64_t threads;
};

struct plan;

/* A region of oneDNN. */
struct resat_onednn {
  const char *name;
  const int64_t *tape;
  const unsigned char *constants;
  uint64_t workspace; /* bytes that calls are given */
  struct plan *plan;
};

/* Why a region can't be called, or what went wrong in the last call by this thread; NULL where nothing did. Without a context only the
   library is looked for. */
const char *resat_onednn_ready(struct resat_onednn *region, const struct ResatCtx *ctx);

/* Calls a region that is ready. */
void resat_onednn_call(struct resat_onednn *region, const struct ResatCtx *ctx, void *const *args, unsigned char *workspace);
