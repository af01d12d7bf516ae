/* Calls a decoder that keeps keys and values: a prompt, token after token until the memory is full, then what is refused. Prints what each run
 * gives. */
#include "net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 8, ROOM = 12, GUARD = 0xab };

static const int64_t capacity[2] = {ROOM, WIDTH};
static int64_t lengths[NET_STATES][2] = {{0, WIDTH}, {0, WIDTH}};
static resat_state states[NET_STATES];
static float token[ROOM * WIDTH], output[ROOM * WIDTH];

static void *memory(uint64_t bytes) {
  void *p = aligned_alloc(RESAT_ALIGN, (bytes / RESAT_ALIGN + 1) * RESAT_ALIGN);
  if (p == NULL) exit(9);
  memset(p, GUARD, (bytes / RESAT_ALIGN + 1) * RESAT_ALIGN);
  return p;
}

static int run(int64_t tokens, int64_t past, float *x, float *y) {
  int64_t x_shape[2] = {tokens, WIDTH}, y_shape[2] = {0, 0};
  const int64_t *input_shapes[NET_INPUTS] = {x_shape};
  int64_t *output_shapes[NET_OUTPUTS] = {y_shape};
  const void *inputs[NET_INPUTS] = {x};
  void *outputs[NET_OUTPUTS] = {y}, *workspace;
  uint64_t bytes = 0;
  int code = net_sizes(input_shapes, states, output_shapes, &bytes);
  if (code != RESAT_OK) return code;
  if (y_shape[0] != tokens || y_shape[1] != WIDTH) return 10;
  for (int64_t i = 0; i < tokens * WIDTH; i++) x[i] = (float)((7 * past + i) % 11) / 11.0f - 0.5f;
  workspace = memory(bytes);
  code = net_run(inputs, input_shapes, states, outputs, workspace, bytes);
  free(workspace);
  return code;
}

/* All bytes of the states and their lengths. */
static void copy_states(unsigned char *to) {
  for (int k = 0; k < NET_STATES; k++) {
    memcpy(to, states[k].data, sizeof token), to += sizeof token;
    memcpy(to, lengths[k], sizeof lengths[k]), to += sizeof lengths[k];
  }
}

static int refused(int64_t tokens, int wanted, float *x, float *y) {
  static unsigned char before[NET_STATES * (sizeof token + sizeof lengths[0])], after[sizeof before];
  copy_states(before);
  const int code = run(tokens, 1, x, y);
  copy_states(after);
  printf("%d: %s\n", code, net_error());
  return code == wanted && memcmp(before, after, sizeof before) == 0;
}

int main(void) {
  float *x = memory(sizeof token), *y = memory(sizeof output);
  void *data[NET_STATES];
  for (int k = 0; k < NET_STATES; k++) {
    data[k] = memory(sizeof token);
    states[k] = (resat_state){.data = data[k], .capacity = capacity, .shape = lengths[k]};
  }
  for (int64_t past = 0; past < 10;) {
    const int64_t tokens = past == 0 ? 3 : 1;
    unsigned char before[sizeof token];
    memcpy(before, states[0].data, sizeof before);
    const int code = run(tokens, past, x, y);
    if (code != RESAT_OK) {
      fprintf(stderr, "%d: %s\n", code, net_error());
      return 1;
    }
    for (int64_t i = 0; i < tokens * WIDTH; i++) printf("%.6f ", (double)y[i]);
    printf("\n");
    past += tokens;
    for (int k = 0; k < NET_STATES; k++) {
      /* It lies where it lay, as it was, with what is new behind it, and nothing behind that. */
      const unsigned char *bytes = states[k].data, *end = bytes + sizeof token;
      if (states[k].data != data[k] || lengths[k][0] != past || lengths[k][1] != WIDTH) return 2;
      if (k == 0 && memcmp(bytes, before, (size_t)(past - tokens) * WIDTH * 4) != 0) return 3;
      for (const unsigned char *b = bytes + past * WIDTH * 4; b < end; b++)
        if (*b != GUARD) return 4;
    }
  }
  /* Ten of twelve places are taken. */
  if (!refused(3, RESAT_TOO_SMALL, x, y)) return 5;
  lengths[0][0] = lengths[1][0] = ROOM + 1;
  if (!refused(1, RESAT_TOO_SMALL, x, y)) return 5;
  lengths[0][0] = -1, lengths[1][0] = 10;
  if (!refused(1, RESAT_BAD_SHAPE, x, y)) return 5;
  lengths[0][0] = 9;
  if (!refused(1, RESAT_BAD_SHAPE, x, y)) return 5;
  lengths[0][0] = 10;
  if (net_call(NULL, NULL, states, NULL) != RESAT_BAD_ARGUMENT) return 6;
  if (run(2, 10, x, y) != RESAT_OK || lengths[1][0] != ROOM) return 7;
  if (!refused(1, RESAT_TOO_SMALL, x, y)) return 5;
  states[1].data = NULL;
  if (run(1, 1, x, y) != RESAT_BAD_ARGUMENT) return 8;
  printf("%s\n", net_error());
  return 0;
}
