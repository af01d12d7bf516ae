/* Reads handwritten digits with an exported network, from several threads at once.
 *
 *     resat build models/digits/model.relay --params models/digits/model.params -o libdigits.so
 *     cc -std=c11 -I. examples/c/digits.c -o digits -L. -Wl,-rpath,. -ldigits -lpthread
 *     ./digits images.f32
 *
 * `images.f32` holds as many images as the network takes at a time: raw 32-bit floats, row by row. Printed is the digit that each
 * image shows, and then how many threads of the program agreed. */
#include "libdigits.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLERS = 4, RUNS = 10, CLASSES = 10 };

static float *images;

/* Memory as the model wants it: aligned, and a whole number of RESAT_ALIGN bytes. */
static void *memory(size_t bytes) {
  void *p = aligned_alloc(RESAT_ALIGN, (bytes / RESAT_ALIGN + 1) * RESAT_ALIGN);
  if (p == NULL) exit(1);
  return p;
}

/* Any number of threads may call the model at once, each with outputs and a workspace of its own. Inputs and weights are only read,
 * and may be shared. */
static void *caller(void *unused) {
  const resat_model *model = libdigits_model();
  float *scores = memory(model->outputs[0].bytes);
  void *workspace = memory(LIBDIGITS_WORKSPACE_BYTES);
  const void *inputs[LIBDIGITS_INPUTS] = {images};
  void *outputs[LIBDIGITS_OUTPUTS] = {scores};
  (void)unused;
  for (int run = 0; run < RUNS; run++)
    if (libdigits_run(inputs, outputs, workspace) != RESAT_OK) exit(2);
  free(workspace);
  return scores;
}

int main(int argc, char **argv) {
  const resat_model *model = libdigits_model();
  size_t bytes = model->inputs[0].bytes, count = (size_t)model->inputs[0].shape[0];
  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  pthread_t threads[CALLERS];
  float *scores[CALLERS];
  int agreed = 0;
  if (file == NULL) {
    fprintf(stderr, "usage: %s images.f32\n", argv[0]);
    return 1;
  }
  images = memory(bytes);
  if (fread(images, 1, bytes, file) != bytes) return 1;
  fclose(file);
  /* Two threads of the library share the work of each run. */
  if (libdigits_set_threads(2) != RESAT_OK) return 3;
  for (int t = 0; t < CALLERS; t++)
    if (pthread_create(&threads[t], NULL, caller, NULL) != 0) return 4;
  for (int t = 0; t < CALLERS; t++) pthread_join(threads[t], (void **)&scores[t]);
  for (size_t i = 0; i < count; i++) {
    const float *s = scores[0] + i * CLASSES;
    int best = 0;
    for (int c = 1; c < CLASSES; c++)
      if (s[c] > s[best]) best = c;
    printf("%d\n", best);
  }
  for (int t = 0; t < CALLERS; t++) agreed += memcmp(scores[t], scores[0], model->outputs[0].bytes) == 0;
  printf("%d threads agree\n", agreed);
  for (int t = 0; t < CALLERS; t++) free(scores[t]);
  free(images);
  return 0;
}
