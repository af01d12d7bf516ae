/* Calls an exported model: y = relu(x w), and x itself. Prints the sum of y for one thread and for three. */
#include "net.h"

#include <stdio.h>
#include <string.h>

static _Alignas(RESAT_ALIGN) float x[64 * 32], y[64 * 48], same[64 * 32];
static _Alignas(RESAT_ALIGN) unsigned char workspace[NET_WORKSPACE_BYTES];

static int sum(void *scratch) {
  const void *inputs[NET_INPUTS] = {x};
  void *outputs[NET_OUTPUTS] = {y, same};
  double total = 0;
  int code = net_run(inputs, outputs, scratch);
  if (code != RESAT_OK) return code;
  for (size_t i = 0; i < sizeof y / sizeof *y; i++) total += y[i];
  printf("%.3f %d\n", total, memcmp(x, same, sizeof x));
  return RESAT_OK;
}

int main(void) {
  const resat_model *model = net_model();
  const void *crooked[NET_INPUTS] = {(char *)x + 4};
  void *outputs[NET_OUTPUTS] = {y, same};
  for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)((int)(i % 7) - 3);
  printf("%s %s %s %u\n", model->name, model->inputs[0].name, model->inputs[0].dtype, (unsigned)model->inputs[0].rank);
  if (sum(workspace) != RESAT_OK || sum(NULL) != RESAT_OK) return 1;
  if (net_set_threads(3) != RESAT_OK || sum(workspace) != RESAT_OK) return 2;
  if (net_set_threads(1) != RESAT_OK || sum(workspace) != RESAT_OK) return 3;
  if (net_run(crooked, outputs, NULL) != RESAT_BAD_ARGUMENT || net_set_threads(0) != RESAT_BAD_ARGUMENT) return 4;
  return 0;
}
