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
  void *own = NULL;
  uint64_t bytes;
  int code;
  if (refused) return fail(RESAT_REFUSED, "%s: the system refuses matrix registers", f->name);
  if ((f->inputs > 0 && (inputs == NULL || input_shapes == NULL)) || (f->outputs > 0 && outputs == NULL))
    return fail(RESAT_BAD_ARGUMENT, "%s: a list of pointers is null", f->name);
  for (uint32_t i = 0; i < f->inputs; i++)
    if (!aligned(inputs[i])) return fail(RESAT_BAD_ARGUMENT, "%s: input %u is null or not aligned", f->name, (unsigned)i);
  for (uint32_t i = 0; i < f->outputs; i++)
    if (!aligned(outputs[i])) return fail(RESAT_BAD_ARGUMENT, "%s: output %u is null or not aligned", f->name, (unsigned)i);
  code = choose(f, input_shapes, &m, n);
  if (code == RESAT_OK) code = numbers_of(f, m, n, &t);
  if (code != RESAT_OK) return code;
  bytes = (uint64_t)t[m->numbers + m->slots];
  if (workspace == NULL) {
    own = memory_of(bytes);
    if (own == NULL)
      code = fail(RESAT_NO_MEMORY, "%s: no memory for %llu bytes", f->name, (unsigned long long)bytes);
    workspace = own;
  } else if (!aligned(workspace)) {
    code = fail(RESAT_BAD_ARGUMENT, "%s: the workspace is not aligned", f->name);
  } else if (workspace_bytes < bytes) {
    code = fail(RESAT_TOO_SMALL, "%s: the workspace has %llu bytes, but %llu are needed", f->name,
                (unsigned long long)workspace_bytes, (unsigned long long)bytes);
  }
  if (code == RESAT_OK) {
    const struct ResatCtx ctx = begin_run();
    const char *why = trouble(&ctx);
    if (why != NULL)
      code = fail(RESAT_FAILED, "%s", why);
    else
      execute(f, m, t, &ctx, inputs, outputs, workspace);
    end_run();
  }
  free(own);
  free(t);
  return code;
}
