static int call(const void *const *inputs, const int64_t *const *input_shapes, resat_results **results) {
  const struct function *f = &functions[0];
  void *arena = NULL;
  uint64_t arena_bytes = 0;
  struct owned *o;
  const char *why;
  int code;
  if (refused) return fail(RESAT_REFUSED, "%s: the system refuses matrix registers", f->name);
  if (results == NULL || (f->inputs > 0 && (inputs == NULL || input_shapes == NULL)))
    return fail(RESAT_BAD_ARGUMENT, "%s: a list of pointers is null", f->name);
  for (uint32_t i = 0; i < f->inputs; i++)
    if (!aligned(inputs[i])) return fail(RESAT_BAD_ARGUMENT, "%s: input %u is null or not aligned", f->name, (unsigned)i);
  o = results_of(f->outputs);
  if (o == NULL) return fail(RESAT_NO_MEMORY, "%s: no memory", f->name);
  {
    const struct ResatCtx ctx = begin_run();
    why = trouble(&ctx);
    code = why != NULL ? fail(RESAT_FAILED, "%s", why)
                       : call_function(f, &ctx, inputs, input_shapes, o->arrays, &arena, &arena_bytes);
    end_run();
  }
  free(arena);
  if (code != RESAT_OK) {
    release(&o->results);
    return code;
  }
  *results = &o->results;
  return RESAT_OK;
}
