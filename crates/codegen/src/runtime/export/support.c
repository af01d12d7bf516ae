/* Runs an exported model whose extents are known: C99. */

/* Why the calling thread's last run failed. */
static PER_THREAD const char *error;

static int run(const void *const *inputs, void *const *outputs, void *workspace) {
  const char *why;
  void *own = NULL;
  void *args[MAX_ARGS];
  unsigned char *arena;
  if (refused) return RESAT_REFUSED;
  if ((INPUTS > 0 && inputs == NULL) || (OUTPUTS > 0 && outputs == NULL)) return RESAT_BAD_ARGUMENT;
  for (size_t i = 0; i < INPUTS; i++)
    if (!aligned(inputs[i])) return RESAT_BAD_ARGUMENT;
  for (size_t i = 0; i < OUTPUTS; i++)
    if (!aligned(outputs[i])) return RESAT_BAD_ARGUMENT;
  if (workspace == NULL) {
    own = memory_of(WORKSPACE_BYTES);
    if (own == NULL) return RESAT_NO_MEMORY;
    workspace = own;
  } else if (!aligned(workspace)) {
    return RESAT_BAD_ARGUMENT;
  }
  arena = workspace;
  {
    const struct ResatCtx ctx = begin_run();
    const struct place *place = places;
    why = trouble(&ctx);
    for (size_t s = 0; s < STEPS && why == NULL; s++) {
      for (uint32_t a = 0; a < steps[s].args; a++) args[a] = locate(place++, inputs, outputs, arena);
      steps[s].function(&ctx, args, arena + steps[s].workspace);
    }
    if (why == NULL) why = trouble(&ctx);
  }
  end_run();
  for (size_t i = 0; i < OUTPUTS && why == NULL; i++) {
    const void *from = locate(&results[i], inputs, outputs, arena);
    if (from != outputs[i]) memmove(outputs[i], from, output_tensors[i].bytes);
  }
  free(own);
  if (why == NULL) return RESAT_OK;
  error = why;
  return RESAT_FAILED;
}
