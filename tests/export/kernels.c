/* Two kernels in the calling convention of resat's runtime, as its code generator would make them. */
#include <stdint.h>

typedef struct ResatCtx {
  void (*parallel_for)(const struct ResatCtx *, void (*body)(void *, int64_t, int64_t), void *env, int64_t n);
  const void *pool;
  int64_t threads;
} ResatCtx;

enum { ROWS = 64, DEPTH = 32, COLUMNS = 48 };

static void rows(void *env, int64_t begin, int64_t end) {
  float *const *args = env;
  for (int64_t i = begin; i < end; i++)
    for (int64_t j = 0; j < COLUMNS; j++) {
      float sum = 0;
      for (int64_t k = 0; k < DEPTH; k++) sum += args[0][i * DEPTH + k] * args[1][k * COLUMNS + j];
      args[2][i * COLUMNS + j] = sum;
    }
}

/* args[2] = args[0] x args[1] */
void matmul(const ResatCtx *ctx, void *const *args, void *workspace) {
  (void)workspace;
  ctx->parallel_for(ctx, rows, (void *)args, ROWS);
}

/* args[1] = relu(args[0]), by way of the workspace */
void relu(const ResatCtx *ctx, void *const *args, void *workspace) {
  const float *x = args[0];
  float *y = args[1], *w = workspace;
  (void)ctx;
  for (int64_t i = 0; i < ROWS * COLUMNS; i++) w[i] = x[i] > 0 ? x[i] : 0;
  for (int64_t i = 0; i < ROWS * COLUMNS; i++) y[i] = w[i];
}
