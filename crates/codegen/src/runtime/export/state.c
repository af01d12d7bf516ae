/* A program that is a sequence of calls and keeps state from one run to the next: inputs that are outputs, too, in memory of the caller's. */

/* All arguments of the function, state among them. */
struct arguments {
  const void *inputs[MAX_INPUTS];
  const int64_t *shapes[MAX_INPUTS];
  void *outputs[MAX_OUTPUTS];
  int64_t begun[STATES][MAX_RANK];
};

/* What is said of a state that is not given: it is known. */
static const int64_t *extents_or(const int64_t *given, const resat_tensor *type) { return given != NULL ? given : type->shape; }

/* The arguments in order. Of outputs those that are state are left out. */
static int put_together(const void *const *inputs, const int64_t *const *input_shapes, const resat_state *states,
                        void *const *outputs, struct arguments *all) {
  const struct function *f = &functions[0];
  uint32_t given = 0;
  if (states == NULL) return fail(RESAT_BAD_ARGUMENT, "%s: no state is given", f->name);
  memset(all, 0, sizeof *all);
  for (uint32_t i = 0; i < f->inputs; i++) {
    const int k = state_of_input[i];
    all->inputs[i] = k >= 0 ? states[k].data : inputs != NULL ? inputs[given] : NULL;
    all->shapes[i] = extents_or(k >= 0 ? states[k].shape : input_shapes != NULL ? input_shapes[given] : NULL, &f->input[i]);
    given += k < 0;
  }
  given = 0;
  for (uint32_t o = 0; o < f->outputs && outputs != NULL; o++)
    if (state_of_output[o] < 0) all->outputs[o] = outputs[given++];
  return RESAT_OK;
}

/* Where the extents of the function's outputs stand among a form's numbers. */
static const uint32_t *extents_of(const struct form *m, uint32_t output) {
  const uint32_t *at = m->output_extents;
  for (uint32_t o = 0; o < output; o++) at += functions[0].output[o].rank;
  return at;
}

/* Whether a form takes a state that has nothing along some axis. */
static int begins(const struct form *m, uint32_t input) {
  const struct function *f = &functions[0];
  for (uint32_t u = 0; u < f->unknown; u++)
    if (f->unknown_at[u][0] == input && m->extents[u] == -1) return 1;
  return 0;
}

/* Gives state that begins, where its extents are said to be 0, those of inputs that have to be equal in a form. */
static void begin(struct arguments *all, const struct form *m) {
  const struct function *f = &functions[0];
  for (uint32_t u = 0; u < f->unknown; u++) {
    const uint32_t input = f->unknown_at[u][0], axis = f->unknown_at[u][1];
    const int k = state_of_input[input];
    if (k < 0 || m->extents[u] < 0 || all->shapes[input][axis] != 0 || !begins(m, input)) continue;
    for (uint32_t v = 0; v < f->unknown; v++) {
      const uint32_t other = f->unknown_at[v][0];
      if (state_of_input[other] >= 0 || m->extents[v] != m->extents[u]) continue;
      memmove(all->begun[k], all->shapes[input], f->input[input].rank * sizeof *all->begun[k]);
      all->begun[k][axis] = all->shapes[other][f->unknown_at[v][1]];
      all->shapes[input] = all->begun[k];
    }
  }
}

/* The numbers for arguments of these extents. */
static int measure(struct arguments *all, const struct form **m, int64_t **t) {
  const struct function *f = &functions[0];
  const struct arguments said = *all;
  int64_t n[MAX_CLASSES];
  int code = choose(f, all->shapes, m, n);
  for (uint32_t k = 0; k < f->forms && code == RESAT_BAD_SHAPE; k++) {
    memcpy(all->shapes, said.shapes, sizeof all->shapes);
    begin(all, &f->form[k]);
    code = choose(f, all->shapes, m, n);
  }
  return code == RESAT_OK ? numbers_of(f, *m, n, t) : code;
}

static int sizes(const int64_t *const *input_shapes, const resat_state *states, int64_t *const *output_shapes,
                 uint64_t *workspace_bytes) {
  const struct function *f = &functions[0];
  const struct form *m = NULL;
  struct arguments all;
  int64_t *t = NULL;
  uint32_t given = 0;
  int code = put_together(NULL, input_shapes, states, NULL, &all);
  if (code == RESAT_OK) code = measure(&all, &m, &t);
  if (code != RESAT_OK) return code;
  for (uint32_t o = 0; o < f->outputs; o++) {
    if (state_of_output[o] >= 0) continue;
    for (uint32_t axis = 0; axis < f->output[o].rank && output_shapes != NULL; axis++)
      output_shapes[given][axis] = t[extents_of(m, o)[axis]];
    given++;
  }
  if (workspace_bytes != NULL) *workspace_bytes = (uint64_t)t[m->numbers + m->slots];
  free(t);
  return RESAT_OK;
}

/* Whether extents are no more than there is room for. */
static int has_room(const resat_state *s, uint32_t k, uint32_t axis, int64_t extent, const char *when) {
  const resat_tensor *type = &states_of_model[k].tensor;
  const int64_t room = extents_or(s->capacity, type)[axis];
  if (extent <= room) return RESAT_OK;
  return fail(RESAT_TOO_SMALL, "%s: state `%s` has room for %lld elements along axis %u, but %s %lld", functions[0].name, type->name,
              (long long)room, (unsigned)axis, when, (long long)extent);
}

static int run(const void *const *inputs, const int64_t *const *input_shapes, resat_state *states, void *const *outputs,
               void *workspace, uint64_t workspace_bytes) {
  const struct function *f = &functions[0];
  const struct form *m = NULL;
  struct arguments all;
  int64_t *t = NULL;
  const unsigned char *in_place;
  int code;
  if (refused) return fail(RESAT_REFUSED, "%s: the system refuses matrix registers", f->name);
  code = check_arrays("input", inputs, f->inputs - STATES);
  if (code == RESAT_OK) code = check_arrays("output", (const void *const *)outputs, f->outputs - STATES);
  if (code == RESAT_OK) code = put_together(inputs, input_shapes, states, outputs, &all);
  for (uint32_t k = 0; k < STATES && code == RESAT_OK; k++) {
    const resat_tensor *type = &states_of_model[k].tensor;
    if (!aligned(states[k].data))
      code = fail(RESAT_BAD_ARGUMENT, "%s: the data of state `%s` is null or not aligned", f->name, type->name);
    for (uint32_t axis = 0; axis < type->rank && code == RESAT_OK; axis++)
      code = has_room(&states[k], k, axis, extents_or(states[k].shape, type)[axis], "is said to have");
  }
  if (code == RESAT_OK) code = measure(&all, &m, &t);
  if (code != RESAT_OK) return code;
  in_place = in_place_by_form[m - f->form];
  for (uint32_t k = 0; k < STATES && code == RESAT_OK; k++) {
    const resat_tensor *type = &states_of_model[k].tensor;
    const uint32_t *extents = extents_of(m, state_outputs[k]);
    for (uint32_t axis = 0; axis < type->rank && code == RESAT_OK; axis++)
      code = has_room(&states[k], k, axis, t[extents[axis]], "needs");
    all.outputs[state_outputs[k]] = in_place[k] ? states[k].data : states[k].spare;
    if (code == RESAT_OK && !in_place[k] && (!aligned(states[k].spare) || states[k].spare == states[k].data))
      code = fail(RESAT_BAD_ARGUMENT, "%s: the spare memory of state `%s`, which is needed, is null, not aligned or the state itself",
                  f->name, type->name);
  }
  if (code == RESAT_OK) code = run_form(f, m, t, all.inputs, all.outputs, workspace, workspace_bytes);
  for (uint32_t k = 0; k < STATES && code == RESAT_OK; k++) {
    const uint32_t *extents = extents_of(m, state_outputs[k]);
    for (uint32_t axis = 0; axis < states_of_model[k].tensor.rank && states[k].shape != NULL; axis++)
      states[k].shape[axis] = t[extents[axis]];
    if (!in_place[k]) {
      states[k].spare = states[k].data;
      states[k].data = all.outputs[state_outputs[k]];
    }
  }
  free(t);
  return code;
}

static int call(const void *const *inputs, const int64_t *const *input_shapes, resat_state *states, resat_results **results) {
  const struct function *f = &functions[0];
  const struct form *m = NULL;
  struct arguments all;
  struct owned *own;
  void *outputs[MAX_OUTPUTS] = {0};
  int64_t *t = NULL;
  uint32_t given = 0;
  int code;
  if (results == NULL) return fail(RESAT_BAD_ARGUMENT, "%s: there is no place for results", f->name);
  code = put_together(NULL, input_shapes, states, NULL, &all);
  if (code == RESAT_OK) code = measure(&all, &m, &t);
  if (code != RESAT_OK) return code;
  own = results_of(f->outputs - STATES);
  if (own == NULL) code = fail(RESAT_NO_MEMORY, "%s: no memory", f->name);
  for (uint32_t o = 0; o < f->outputs && code == RESAT_OK; o++) {
    int64_t shape[MAX_RANK];
    if (state_of_output[o] >= 0) continue;
    for (uint32_t axis = 0; axis < f->output[o].rank; axis++) shape[axis] = t[extents_of(m, o)[axis]];
    if (array_of(&own->arrays[given], &f->output[o], shape, (uint64_t)t[m->result_bytes[o]])) {
      outputs[given] = (void *)(uintptr_t)own->arrays[given].data;
      given++;
    } else {
      code = fail(RESAT_NO_MEMORY, "%s: no memory for its results", f->name);
    }
  }
  if (code == RESAT_OK) code = run(inputs, input_shapes, states, outputs, NULL, 0);
  free(t);
  if (code != RESAT_OK)
    release(own != NULL ? &own->results : NULL);
  else
    *results = &own->results;
  return code;
}
