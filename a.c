#include "a.h"
#include <stdlib.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef void (*resat_body)(void *env, int64_t begin, int64_t end);
typedef struct ResatCtx {
  void (*parallel_for)(const struct ResatCtx *, resat_body, void *env, int64_t n);
  const void *pool;
  int64_t threads;
} ResatCtx;

/* Runs the iterations 0 to n: by the caller's threads where it has some, else by OpenMP's where that is on. */
static inline void resat_for(const ResatCtx *ctx, resat_body body, void *env, int64_t n) {
  if (ctx && ctx->threads > 1) {
    ctx->parallel_for(ctx, body, env, n);
    return;
  }
#ifdef _OPENMP
  if (!ctx) {
    int64_t i;
#pragma omp parallel for
    for (i = 0; i < n; i++) body(env, i, i + 1);
    return;
  }
#endif
  body(env, 0, n);
}

/* Integers wrap around; a division by 0 gives 0. */
#define RESAT_SIGNED(N, T, U, LEAST)                                                                              \
  static inline T div_##N(T a, T b) { return b == 0 ? 0 : b == -1 ? (T)((U)0 - (U)a) : (T)(a / b); }              \
  static inline T rem_##N(T a, T b) { return b == 0 || b == -1 ? 0 : (T)(a % b); }                                \
  static inline T floordiv_##N(T a, T b) {                                                                        \
    T q = div_##N(a, b), r = rem_##N(a, b);                                                                       \
    return (T)(q - (r != 0 && (r < 0) != (b < 0)));                                                               \
  }                                                                                                               \
  static inline T floormod_##N(T a, T b) {                                                                        \
    T r = rem_##N(a, b);                                                                                          \
    return (T)(r != 0 && (r < 0) != (b < 0) ? r + b : r);                                                         \
  }                                                                                                               \
  static inline T shr_##N(T a, T b) {                                                                             \
    int n = (uint64_t)b < 8 * sizeof(T) ? (int)b : (int)(8 * sizeof(T) - 1);                                      \
    return (T)(a < 0 ? ~(~a >> n) : a >> n);                                                                      \
  }                                                                                                               \
  static inline T shl_##N(T a, T b) { return (T)((uint64_t)b < 8 * sizeof(T) ? (U)a << b : 0); }                  \
  static inline T abs_##N(T a) { return (T)(a < 0 ? (U)0 - (U)a : (U)a); }                                        \
  static inline T least_##N(T a, T b) { return a < b ? a : b; }                                                   \
  static inline T most_##N(T a, T b) { return a > b ? a : b; }                                                    \
  /* What does not fit, and NaN, becomes the least number. */                                                     \
  static inline T float_##N(float x) { return x >= (float)LEAST && x < -(float)LEAST ? (T)x : LEAST; }            \
  static inline T double_##N(double x) { return x >= (double)LEAST && x < -(double)LEAST ? (T)x : LEAST; }
RESAT_SIGNED(i8, int8_t, uint32_t, INT8_MIN)
RESAT_SIGNED(i16, int16_t, uint32_t, INT16_MIN)
RESAT_SIGNED(i32, int32_t, uint32_t, INT32_MIN)
RESAT_SIGNED(i64, int64_t, uint64_t, INT64_MIN)

#define RESAT_UNSIGNED(N, T, U)                                                                                   \
  static inline T div_##N(T a, T b) { return (T)(b == 0 ? 0 : a / b); }                                           \
  static inline T rem_##N(T a, T b) { return (T)(b == 0 ? 0 : a % b); }                                           \
  static inline T floordiv_##N(T a, T b) { return div_##N(a, b); }                                                \
  static inline T floormod_##N(T a, T b) { return rem_##N(a, b); }                                                \
  static inline T shr_##N(T a, T b) { return (T)((uint64_t)b < 8 * sizeof(T) ? a >> b : 0); }                     \
  static inline T shl_##N(T a, T b) { return (T)((uint64_t)b < 8 * sizeof(T) ? (U)a << b : 0); }                  \
  static inline T abs_##N(T a) { return a; }                                                                      \
  static inline T least_##N(T a, T b) { return a < b ? a : b; }                                                   \
  static inline T most_##N(T a, T b) { return a > b ? a : b; }
RESAT_UNSIGNED(u8, uint8_t, uint32_t)
RESAT_UNSIGNED(u16, uint16_t, uint32_t)
RESAT_UNSIGNED(u32, uint32_t, uint32_t)
RESAT_UNSIGNED(u64, uint64_t, uint64_t)

static inline uint64_t float_u64(float x) {
  return x >= 9223372036854775808.0f ? (uint64_t)float_i64(x - 9223372036854775808.0f) ^ (uint64_t)1 << 63
                                     : (uint64_t)float_i64(x);
}
static inline uint64_t double_u64(double x) {
  return x >= 9223372036854775808.0 ? (uint64_t)double_i64(x - 9223372036854775808.0) ^ (uint64_t)1 << 63
                                    : (uint64_t)double_i64(x);
}

/* The second where either is NaN. */
static inline float least_float(float a, float b) { return a < b ? a : b; }
static inline float most_float(float a, float b) { return a > b ? a : b; }
static inline double least_double(double a, double b) { return a < b ? a : b; }
static inline double most_double(double a, double b) { return a > b ? a : b; }
static inline float square_float(float a) { return a * a; }
static inline double square_double(double a) { return a * a; }

static inline int popcount_u64(uint64_t x) {
  x -= x >> 1 & UINT64_C(0x5555555555555555);
  x = (x & UINT64_C(0x3333333333333333)) + (x >> 2 & UINT64_C(0x3333333333333333));
  x = (x + (x >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
  return (int)(x * UINT64_C(0x0101010101010101) >> 56);
}

static inline uint32_t bits_of_float(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float float_of_bits(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline uint64_t bits_of_double(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double double_of_bits(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

/* Short floats are in memory as their bits, and computed with as floats. */
static inline float from_bf16(uint16_t h) { return float_of_bits((uint32_t)h << 16); }
static inline uint16_t to_bf16(float x) {
  uint32_t u = bits_of_float(x);
  return (uint16_t)(x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline float from_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
  /* The exponent moves by a product with 2 to the power of 112, which also normalizes. */
  uint32_t u = bits_of_float(float_of_bits(rest) * 5192296858534827628530496329220096.0f);
  return float_of_bits((rest >= (uint32_t)0x7c00 << 13 ? u | 0x7f800000 : u) | sign);
}
static inline uint16_t to_f16(float x) {
  uint32_t u = bits_of_float(x), m = u & 0x7fffffff, h;
  if (m >= (uint32_t)143 << 23) h = m > 0x7f800000 ? 0x7e00 : 0x7c00;
  else if (m < (uint32_t)113 << 23) h = bits_of_float(float_of_bits(m) + 0.5f) - ((uint32_t)126 << 23);
  else h = (m - ((uint32_t)112 << 23) + 0xfff + (m >> 13 & 1)) >> 13;
  return (uint16_t)(h | (u ^ m) >> 16);
}
static inline float round_bf16(float x) { return from_bf16(to_bf16(x)); }
static inline float round_f16(float x) { return from_f16(to_f16(x)); }
struct nn_batch_matmul_12c90e1f88287fac_env0 { void *const *args; unsigned char *workspace; };
static void nn_batch_matmul_12c90e1f88287fac_body0(void *env_, int64_t begin_, int64_t end_) {
  const struct nn_batch_matmul_12c90e1f88287fac_env0 *env = (const struct nn_batch_matmul_12c90e1f88287fac_env0 *)env_;
  void *const *args = env->args;
  unsigned char *workspace = env->workspace;
  const float *restrict b0 = (const float *)args[0];
  (void)b0;
  const float *restrict b1 = (const float *)args[1];
  (void)b1;
  float *restrict b2 = (float *)args[2];
  (void)b2;
  (void)args, (void)workspace;
  for (int64_t i15 = begin_; i15 < end_; i15++) {
  float b3[12] = {0};
  (void)b3;
     {
      const int64_t i16 = floordiv_i64(i15, INT64_C(256));
      (void)i16;
       {
        const int64_t i17 = INT64_C(0);
        (void)i17;
         {
          const int64_t i18 = floormod_i64(i15, INT64_C(256));
          (void)i18;
           {
            const int64_t i19 = least_i64(most_i64(i16, INT64_C(0)), INT64_C(3));
            (void)i19;
             {
              const int64_t i20 = least_i64(most_i64(i17, INT64_C(0)), INT64_C(0));
              (void)i20;
               {
                const int64_t i21 = least_i64(most_i64(i18, INT64_C(0)), INT64_C(255));
                (void)i21;
                 {
                  for (int64_t i22 = 0; i22 < 4; i22++) {
                     {
                      for (int64_t i23 = 0; i23 < 3; i23++) {
                         {
                          const int64_t i24 = INT64_C(0);
                          (void)i24;
                           {
                            const int64_t t1 = (((i22 * 3) + i23) + i24);
                            b3[t1] = (float)(0e0f);
                          }
                        }
                      }
                    }
                  }
                }
                 {
                  for (int64_t i26 = 0; i26 < 8; i26++) {
                     {
                      for (int64_t i27 = 0; i27 < 8; i27++) {
                         {
                          for (int64_t i22 = 0; i22 < 4; i22++) {
                             {
                              for (int64_t i23 = 0; i23 < 3; i23++) {
                                 {
                                  const int64_t i24 = INT64_C(0);
                                  (void)i24;
                                   {
                                    const int64_t t2 = (((i22 * 3) + i23) + i24);
                                    const int64_t t3 = ((i26 * 8) + i27);
                                    b3[t2] = (float)(b3[t2] + (b0[(((i19 * 192) + (i23 * 64)) + t3)] * b1[((((i19 * 65536) + (i21 * 256)) + (i22 * 64)) + t3)]));
                                  }
                                }
                              }
                            }
                          }
                        }
                      }
                    }
                  }
                }
                 {
                  for (int64_t i22 = 0; i22 < 4; i22++) {
                     {
                      for (int64_t i23 = 0; i23 < 3; i23++) {
                         {
                          const int64_t i24 = INT64_C(0);
                          (void)i24;
                           {
                            const int64_t t4 = (((i22 * 3) + i23) + i24);
                            b2[(((i19 * 3072) + (i23 * 1024)) + ((i21 * 4) + i22))] = (float)b3[t4];
                          }
                        }
                      }
                    }
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

static void nn_batch_matmul_12c90e1f88287fac(const ResatCtx *ctx, void *const *args, unsigned char *workspace) {
  const float *restrict b0 = (const float *)args[0];
  (void)b0;
  const float *restrict b1 = (const float *)args[1];
  (void)b1;
  float *restrict b2 = (float *)args[2];
  (void)b2;
  float b3[12] = {0};
  (void)b3;
  (void)ctx, (void)workspace;
   {
    struct nn_batch_matmul_12c90e1f88287fac_env0 env = {args, workspace};
    resat_for(ctx, nn_batch_matmul_12c90e1f88287fac_body0, &env, 1024);
  }
}

static void resat_model(const ResatCtx *ctx, void *const *args, unsigned char *workspace) {
  (void)ctx, (void)args, (void)workspace;
  {
    void *const given[] = {args[0], args[1], args[2]};
    nn_batch_matmul_12c90e1f88287fac(ctx, given, workspace + 0);
  }
}

int a_run(const void *const *inputs, void *const *outputs, void *workspace) {
  void *args[3] = {0};
  unsigned char *own = NULL;
  for (int i = 0; i < 2; i++) args[i] = (void *)inputs[i];
  for (int i = 0; i < 1; i++) args[2 + i] = outputs[i];
  if (!workspace && A_WORKSPACE_BYTES > 0) {
    workspace = own = (unsigned char *)malloc(A_WORKSPACE_BYTES);
    if (!own) return RESAT_NO_MEMORY;
  }
  resat_model(NULL, args, (unsigned char *)workspace);
  free(own);
  return RESAT_OK;
}
