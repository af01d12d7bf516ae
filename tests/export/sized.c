/* Calls a model of unknown extents, y = softmax(relu(x w)) for x of any number of rows, at several sizes, and sizes that it refuses. Prints the
 * number of rows, and of each run the sum of the outputs. */
#include "net.h"

#include <stdio.h>
#include <stdlib.h>

static void *memory(uint64_t bytes) {
  void *p = aligned_alloc(RESAT_ALIGN, (bytes / RESAT_ALIGN + 1) * RESAT_ALIGN);
  if (p == NULL) exit(9);
  return p;
}

static double sum(const float *y, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i++) total += y[i];
  return total;
}

static int at(int64_t rows) {
  int64_t x_shape[2] = {rows, 7}, y_shape[2] = {0, 0};
  const int64_t *input_shapes[NET_INPUTS] = {x_shape};
  int64_t *output_shapes[NET_OUTPUTS] = {y_shape};
  uint64_t bytes = 0;
  int code = net_sizes(input_shapes, output_shapes, &bytes);
  if (code != RESAT_OK) return code;
  float *x = memory((uint64_t)rows * 7 * 4), *y = memory((uint64_t)(y_shape[0] * y_shape[1]) * 4);
  void *workspace = memory(bytes);
  const void *inputs[NET_INPUTS] = {x};
  void *outputs[NET_OUTPUTS] = {y};
  resat_results *results = NULL;
  for (int64_t i = 0; i < rows * 7; i++) x[i] = (float)(i % 5) - 2.0f;
  printf("%lld x %lld:", (long long)y_shape[0], (long long)y_shape[1]);
  code = net_run(inputs, input_shapes, outputs, workspace, bytes);
  if (code != RESAT_OK) return code;
  printf(" %.3f", sum(y, y_shape[0] * y_shape[1]));
  code = net_run(inputs, input_shapes, outputs, NULL, 0);
  if (code != RESAT_OK) return code;
  printf(" %.3f", sum(y, y_shape[0] * y_shape[1]));
  if (bytes > 0 && net_run(inputs, input_shapes, outputs, workspace, bytes - 1) != RESAT_TOO_SMALL) return 7;
  code = net_call(inputs, input_shapes, &results);
  if (code != RESAT_OK) return code;
  if (results->count != 1 || results->arrays[0].rank != 2 || results->arrays[0].shape[0] != rows) return 8;
  printf(" %.3f\n", sum(results->arrays[0].data, y_shape[0] * y_shape[1]));
  net_free(results);
  free(x), free(y), free(workspace);
  return RESAT_OK;
}

int main(void) {
  int64_t wrong[2] = {3, 8};
  const int64_t *shapes[NET_INPUTS] = {wrong};
  if (at(1) != RESAT_OK || at(3) != RESAT_OK || at(64) != RESAT_OK || at(131) != RESAT_OK) {
    fprintf(stderr, "%s\n", net_error());
    return 1;
  }
  if (net_set_threads(3) != RESAT_OK || at(1000) != RESAT_OK) return 2;
  if (net_sizes(shapes, NULL, NULL) != RESAT_BAD_SHAPE) return 3;
  printf("%s\n", net_error());
  wrong[0] = -1;
  wrong[1] = 7;
  if (net_sizes(shapes, NULL, NULL) != RESAT_BAD_SHAPE) return 4;
  wrong[0] = INT64_MAX / 8;
  if (net_sizes(shapes, NULL, NULL) != RESAT_BAD_SHAPE) return 5;
  printf("%s\n", net_error());
  return 0;
}
