/* A program that is a sequence of calls is called as one function, into memory of the caller's. */

static int sizes(const int64_t *const *input_shapes, int64_t *const *output_shapes, uint64_t *workspace_bytes) {
  const struct function *f = &functions[0];
  const struct form *m = NULL;
  int64_t n[MAX_CLASSES], *t = NULL;
  uint32_t e = 0;
  int code;
  if (f->inputs > 0 && input_shapes == NULL) return fail(RESAT_BAD_ARGUMENT, "%s: no shapes are given", f->name);
  code = choose(f, input_shapes, &m, n);
  if (code == RESAT_OK) code = numbers_of(f, m, n, &t);
  if (code != RESAT_OK) return code;
  for (uint32_t o = 0; o < f->outputs; o++)
    for (uint32_t axis = 0; axis < f->output[o].rank; axis++, e++)
      if (output_shapes != NULL) output_shapes[o][axis] = t[m->output_extents[e]];
  if (workspace_bytes != NULL) *workspace_bytes = (uint64_t)t[m->numbers + m->slots];
  free(t);
  return RESAT_OK;
}

static int run(const void *const *inputs, const int64_t *const *input_shapes, void *const *outputs, void *workspace,
               uint64_t workspace_bytes) {
  const struct function *f = &functions[0];
  const struct form *m = NULL;
  int64_t n[MAX_CLASSES], *t = NULL;
  int code;
  if (refused) return fail(RESAT_REFUSED, "%s: the system refuses matrix registers", f->name);
  if (f->inputs > 0 && input_shapes == NULL) return fail(RESAT_BAD_ARGUMENT, "%s: no shapes are given", f->name);
  code = check_arrays("input", inputs, f->inputs);
  if (code == RESAT_OK) code = check_arrays("output", (const void *const *)outputs, f->outputs);
  if (code == RESAT_OK) code = choose(f, input_shapes, &m, n);
  if (code == RESAT_OK) code = numbers_of(f, m, n, &t);
  if (code == RESAT_OK) code = run_form(f, m, t, inputs, outputs, workspace, workspace_bytes);
  free(t);
  return code;
}
