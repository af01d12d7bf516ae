/* --- A plan as a whole --- */

/* Offsets of the buffers: the largest first, each as low as it fits beside those that are in use at the same time. */
static void place_buffers(struct plan *p) {
  int n = p->buffer_count, *order = block(p, sizeof *order * (size_t)(n > 0 ? n : 1));
  for (int k = 0; k < p->action_count; k++) {
    const struct action *a = &p->actions[k];
    for (int i = 0; i < a->arg_count; i++) p->memories[a->memories[i]].used = 1;
    for (int i = 0; i <= a->arg_count; i++) {
      int b = i == a->arg_count ? a->scratch : p->memories[a->memories[i]].where == ARENA ? p->memories[a->memories[i]].at : -1;
      if (b < 0) continue;
      if (p->buffers[b].first < 0) p->buffers[b].first = k;
      p->buffers[b].last = k;
    }
  }
  for (int i = 0; i < n; i++) {
    int at = i;
    for (; at > 0 && p->buffers[order[at - 1]].bytes < p->buffers[i].bytes; at--) order[at] = order[at - 1];
    order[at] = i;
  }
  for (int i = 0; i < n; i++) {
    struct buffer *b = &p->buffers[order[i]];
    if (b->first < 0) continue;
    for (int again = 1; again;) {
      again = 0;
      for (int k = 0; k < i; k++) {
        const struct buffer *o = &p->buffers[order[k]];
        if (o->first < 0 || o->first > b->last || b->first > o->last) continue;
        if (b->offset < o->offset + o->bytes && o->offset < b->offset + b->bytes) {
          b->offset = (o->offset + o->bytes + ALIGN - 1) / ALIGN * ALIGN;
          again = 1;
        }
      }
    }
    if (b->offset + b->bytes > p->arena) p->arena = b->offset + b->bytes;
  }
}

static void play(struct plan *p, const struct resat_onednn *region) {
  static const int args[] = {ARG_SRC, ARG_DST};
  int64_t step, needs = next(p);
  if ((lib.c.get_effective_cpu_isa() & needs) != needs)
    FAIL(p, needs == ISA_AVX512_VNNI ? "oneDNN's products of bytes are exact with AVX-512 VNNI only, which this processor has not"
                                     : "oneDNN computes in bfloat16 with AVX-512 only, which this processor has not");
  p->value_count = (int)next(p);
  p->values = block(p, sizeof *p->values * (size_t)(p->value_count > 0 ? p->value_count : 1));
  for (int i = 0; i < p->value_count; i++) {
    struct value *v = &p->values[i];
    int64_t at;
    v->dtype = (int)next(p);
    v->rank = (int)next(p);
    numbers(p, v->rank, v->dims);
    at = next(p);
    if (at >= 0) v->data = region->constants + at;
  }
  p->input_count = (int)next(p);
  p->inputs = list(p, p->input_count);
  p->output_count = (int)next(p);
  p->outputs = list(p, p->output_count);
  for (int i = 0; i < p->input_count; i++) {
    struct value *v = &p->values[p->inputs[i]];
    hold(p, v, new_memory(p, plain(p, v), INPUT, i, NULL));
  }
  while ((step = next(p)) != 0) switch (step) {
      case 1: run_step(p); break;
      case 2: exact_step(p); break;
      case 3: integer_step(p); break;
      case 4: permute_step(p); break;
      default: reshape_step(p);
    }
  for (int i = 0; i < p->output_count; i++) {
    struct value *v = &p->values[p->outputs[i]];
    int first = primary(p, v), given = 0;
    for (int k = 0; k < v->held_count; k++) {
      const struct memory *m = &p->memories[v->held[k]];
      given |= m->where == OUTPUT && m->at == i;
    }
    if (!given) {
      int out = new_memory(p, plain(p, v), OUTPUT, i, NULL);
      struct primitive *copy = reorder(p, p->memories[first].md, p->memories[out].md);
      struct action *a = run_later(p, copy);
      argument(p, a, args[0], first);
      argument(p, a, args[1], out);
    }
  }
  place_buffers(p);
}

static void limit_threads(int threads, int *before) {
  *before = 0;
  if (lib.set_threads == NULL || lib.get_threads == NULL) return;
  *before = lib.get_threads();
  lib.set_threads(threads);
}

static void unlimit_threads(int before) {
  if (before > 0) lib.set_threads(before);
}

static void free_instances(struct plan *p) {
  while (p->idle != NULL) {
    struct instance *i = p->idle;
    p->idle = i->next;
    for (int m = 0; i->objects != NULL && m < p->memory_count; m++)
      if (i->objects[m] != NULL) lib.c.memory_destroy(i->objects[m]);
    for (int a = 0; a < p->action_count; a++) {
      if (i->scratch != NULL && i->scratch[a] != NULL) lib.c.memory_destroy(i->scratch[a]);
      if (i->args != NULL) free(i->args[a]);
    }
    if (i->stream != NULL) lib.c.stream_destroy(i->stream);
    free(i->objects);
    free(i->scratch);
    free(i->at);
    free(i->args);
    free(i->own);
    free(i);
  }
}

/* Frees a plan whose calls have ended. */
static void free_plan(struct plan *p) {
  if (p == NULL) return;
  free_instances(p);
  for (struct primitive *made = p->primitives; made != NULL; made = made->next) {
    if (made->handle != NULL) lib.c.primitive_destroy(made->handle);
    if (made->description != NULL) lib.c.primitive_desc_destroy(made->description);
  }
  for (struct md *md = p->mds; md != NULL; md = md->next)
    if (md->handle != NULL) lib.v3.memory_desc_destroy(md->handle);
  for (int i = 0; i < p->block_count; i++) free(p->blocks[i]);
  free(p->blocks);
  free(p);
}

static void try_to_play(struct plan *p, const struct resat_onednn *region) {
  char why[sizeof p->error - 64];
  if (setjmp(p->failed) == 0) {
    play(p, region);
    return;
  }
  memcpy(why, p->error, sizeof why);
  why[sizeof why - 1] = 0;
  snprintf(p->error, sizeof p->error, "region `%.50s`: %s", region->name, why);
}

static struct plan *new_plan(const struct resat_onednn *region, int threads) {
  struct plan *p = calloc(1, sizeof *p);
  int before;
  if (p == NULL) return NULL;
  p->threads = threads;
  p->tape = region->tape;
  limit_threads(threads, &before);
  try_to_play(p, region);
  unlimit_threads(before);
  return p;
}
