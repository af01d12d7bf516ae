/* A program that is a sequence of calls runs as one function. */

/* Whether pointers to arrays are such. */
static int check_arrays(const char *what, const void *const *arrays, uint32_t count) {
  if (count > 0 && arrays == NULL) return fail(RESAT_BAD_ARGUMENT, "%s: a list of pointers is null", functions[0].name);
  for (uint32_t i = 0; i < count; i++)
    if (!aligned(arrays[i]))
      return fail(RESAT_BAD_ARGUMENT, "%s: %s %u is null or not aligned", functions[0].name, what, (unsigned)i);
  return RESAT_OK;
}

/* Runs a form of the function, whose numbers these are. */
static int run_form(const struct function *f, const struct form *m, const int64_t *t, const void *const *inputs, void *const *outputs,
                    void *workspace, uint64_t workspace_bytes) {
  const uint64_t bytes = (uint64_t)t[m->numbers + m->slots];
  void *own = NULL;
  int code = RESAT_OK;
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
    if (why == NULL) {
      execute(f, m, t, &ctx, inputs, outputs, workspace);
      why = trouble(&ctx);
    }
    end_run();
    if (why != NULL) code = fail(RESAT_FAILED, "%s", why);
  }
  free(own);
  return code;
}
