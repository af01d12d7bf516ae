/* Calls of functions, whose results are arrays of the library's. */

/* An array's rows become fewer. */
static void keep_rows(resat_array *a, int64_t rows) {
  int64_t *shape = (int64_t *)(uintptr_t)a->shape;
  if (shape[0] > 0) a->bytes = a->bytes / (uint64_t)shape[0] * (uint64_t)rows;
  shape[0] = rows;
}

/* Calls a function on arguments of these extents; the arena is one that grows. */
static int call_function(const struct function *f, const struct ResatCtx *ctx, const void *const *inputs,
                         const int64_t *const *shapes, resat_array *arrays, void **arena, uint64_t *arena_bytes) {
  const struct form *m = NULL;
  int64_t n[MAX_CLASSES], *t = NULL;
  void *outputs[MAX_OUTPUTS];
  enum { APART_BY = RESAT_ALIGN / sizeof(int64_t) };
  int64_t room[(MAX_OUTPUTS + 1) * APART_BY], *counts = room;
  uint32_t e = 0;
  uint64_t bytes;
  int code = choose(f, shapes, &m, n);
  if (code == RESAT_OK) code = numbers_of(f, m, n, &t);
  if (code != RESAT_OK) return code;
  bytes = (uint64_t)t[m->numbers + m->slots];
  if (bytes > *arena_bytes || *arena == NULL) {
    free(*arena);
    *arena = memory_of(bytes);
    *arena_bytes = *arena != NULL ? bytes : 0;
    if (*arena == NULL) code = fail(RESAT_NO_MEMORY, "%s: no memory for %llu bytes", f->name, (unsigned long long)bytes);
  }
  for (uint32_t o = 0; o < f->outputs && code == RESAT_OK; o++) {
    int64_t shape[MAX_RANK];
    for (uint32_t axis = 0; axis < f->output[o].rank; axis++) shape[axis] = t[m->output_extents[e++]];
    if (!array_of(&arrays[o], &f->output[o], shape, (uint64_t)t[m->result_bytes[o]])) {
      code = fail(RESAT_NO_MEMORY, "%s: no memory for its results", f->name);
    } else {
      outputs[o] = (void *)(uintptr_t)arrays[o].data;
    }
  }
  if (code == RESAT_OK) {
    while ((uintptr_t)counts % RESAT_ALIGN != 0) counts++;
    for (uint32_t h = 0; h < f->hidden; h++) outputs[f->outputs + h] = counts + h * APART_BY;
    execute(f, m, t, ctx, inputs, outputs, *arena);
    for (uint32_t h = 0; h < f->hidden; h++) keep_rows(&arrays[f->counted[h][0]], counts[(f->counted[h][1] - f->outputs) * APART_BY]);
  }
  free(t);
  return code;
}
