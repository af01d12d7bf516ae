/* --- Memory --- */

static int new_memory(struct plan *p, struct md *md, enum where where, int at, const void *kept) {
  struct memory *m;
  p->memories = more(p, p->memories, p->memory_count, sizeof *p->memories);
  m = &p->memories[p->memory_count];
  m->md = md;
  m->where = where;
  m->at = at;
  m->kept = kept;
  m->used = 0;
  return p->memory_count++;
}

static int new_buffer(struct plan *p, size_t bytes) {
  p->buffers = more(p, p->buffers, p->buffer_count, sizeof *p->buffers);
  p->buffers[p->buffer_count].bytes = bytes;
  p->buffers[p->buffer_count].first = -1;
  return p->buffer_count++;
}

static int in_arena(struct plan *p, struct md *md) { return new_memory(p, md, ARENA, new_buffer(p, bytes_of(md)), NULL); }

static int kept(struct plan *p, struct md *md) { return new_memory(p, md, KEPT, 0, block(p, bytes_of(md))); }

static void hold(struct plan *p, struct value *v, int memory) {
  v->held = more(p, v->held, v->held_count, sizeof *v->held);
  v->held[v->held_count++] = memory;
}

static int primary(struct plan *p, struct value *v) {
  if (v->held_count == 0) {
    if (v->data == NULL) FAIL(p, "a tensor that nothing makes");
    hold(p, v, new_memory(p, plain(p, v), KEPT, 0, v->data));
  }
  return v->held[0];
}

static struct action *new_action(struct plan *p) {
  struct action *a;
  p->actions = more(p, p->actions, p->action_count, sizeof *p->actions);
  a = &p->actions[p->action_count++];
  memset(a, 0, sizeof *a);
  a->scratch = -1;
  return a;
}

static void argument(struct plan *p, struct action *a, int arg, int memory) {
  a->args = more(p, a->args, a->arg_count, sizeof *a->args);
  a->memories = more(p, a->memories, a->arg_count, sizeof *a->memories);
  a->args[a->arg_count] = arg;
  a->memories[a->arg_count++] = memory;
}

static struct action *run_later(struct plan *p, struct primitive *made) {
  struct action *a = new_action(p);
  a->primitive = made;
  if (made->scratch_bytes > 0) a->scratch = new_buffer(p, made->scratch_bytes);
  return a;
}

/* Runs a primitive on memory that the plan keeps. */
static void run_now(struct plan *p, struct primitive *made, int n, const int *args, const int *memories) {
  exec_arg given[4];
  void *stream = NULL, *scratch = NULL;
  int count = 0, status = lib.c.stream_create(&stream, lib.engine, 1);
  for (int i = 0; i < n && status == 0; i++, count++) {
    const struct memory *m = &p->memories[memories[i]];
    given[i].arg = args[i];
    status = lib.c.memory_create(&given[i].memory, pointer(m->md), lib.engine, (void *)(uintptr_t)m->kept);
  }
  if (status == 0 && made->scratch_bytes > 0) {
    if (posix_memalign(&scratch, ALIGN, made->scratch_bytes) != 0) {
      status = 1;
    } else {
      given[count].arg = ARG_SCRATCHPAD;
      status = lib.c.memory_create(&given[count].memory, pointer(made->scratch), lib.engine, scratch);
      count++;
    }
  }
  if (status == 0) status = lib.c.primitive_execute(made->handle, stream, count, given);
  if (status == 0) status = lib.c.stream_wait(stream);
  for (int i = 0; i < count; i++) lib.c.memory_destroy(given[i].memory);
  if (stream != NULL) lib.c.stream_destroy(stream);
  free(scratch);
  CHECK(p, "bringing constants into layouts", status);
}

/* A tensor in this layout: as it is there already, or brought into it, constants now, others at each call. */
static int ensure(struct plan *p, struct value *v, struct md *md) {
  static const int args[] = {ARG_SRC, ARG_DST};
  int first = primary(p, v), memories[2];
  struct primitive *copy;
  struct action *a;
  for (int i = 0; i < v->held_count; i++)
    if (same(p->memories[v->held[i]].md, md)) return v->held[i];
  copy = reorder(p, p->memories[first].md, md);
  memories[0] = first;
  if (p->memories[first].where == KEPT) {
    memories[1] = kept(p, md);
    run_now(p, copy, 2, args, memories);
  } else {
    memories[1] = in_arena(p, md);
    a = run_later(p, copy);
    for (int i = 0; i < 2; i++) argument(p, a, args[i], memories[i]);
  }
  hold(p, v, memories[1]);
  return memories[1];
}

/* Memory for what a step makes: the caller's, where that is where it goes as it is. */
static int made_in(struct plan *p, struct value *v, struct md *md) {
  int memory = -1;
  for (int i = 0; i < p->output_count && memory < 0; i++)
    if (&p->values[p->outputs[i]] == v) {
      if (same(md, plain(p, v))) memory = new_memory(p, md, OUTPUT, i, NULL);
      break;
    }
  if (memory < 0) memory = in_arena(p, md);
  hold(p, v, memory);
  return memory;
}

/* --- Steps --- */

static struct md *layout(struct plan *p, struct value *v) {
  int memory;
  switch (next(p)) {
    case 0: return plain(p, v);
    case 1: return any(p, v);
    case 2: memory = primary(p, &p->values[next(p)]); return p->memories[memory].md;
    default: return channels_last(p, v, (int)next(p));
  }
}

static void numbers(struct plan *p, int64_t count, int64_t *to) {
  memset(to, 0, sizeof(dims_t));
  for (int64_t i = 0; i < count; i++) to[i] = next(p);
}

static struct operation operation(struct plan *p) {
  struct operation o = {0};
  int64_t n;
  o.kind = next(p);
  switch (o.kind) {
    case CONVOLUTION:
    case DECONVOLUTION:
    case POOL:
      if (o.kind == POOL) o.code = next(p);
      n = next(p);
      if (o.kind == POOL) numbers(p, n, o.kernel);
      numbers(p, n, o.strides);
      numbers(p, n, o.dilation);
      numbers(p, n, o.before);
      numbers(p, n, o.after);
      break;
    case ELTWISE:
      o.code = next(p);
      o.code_3 = next(p);
      o.alpha = real(p);
      o.beta = real(p);
      break;
    case SOFTMAX: o.log = next(p); /* and the axis */
    /* fall through */
    case BINARY:
    case CONCAT: o.code = next(p); break;
    default: break;
  }
  return o;
}

/* A place in the arena where a tensor lies in this layout, and which may be written over. */
static int to_write_over(struct plan *p, struct value *v, struct md *md) {
  static const int args[] = {ARG_SRC, ARG_DST};
  int first = primary(p, v), memory;
  struct primitive *copy;
  struct action *a;
  for (int i = 0; i < v->held_count; i++) {
    const struct memory *m = &p->memories[v->held[i]];
    if (m->where == ARENA && same(m->md, md)) return v->held[i];
  }
  memory = in_arena(p, md);
  copy = reorder(p, p->memories[first].md, md);
  a = run_later(p, copy);
  argument(p, a, args[0], first);
  argument(p, a, args[1], memory);
  return memory;
}

static void run_step(struct plan *p) {
  struct operation o = operation(p);
  int n = (int)next(p), post_count, in_place, keep_layout, target_memory = -1, *memories, *post_memories;
  struct value **values = block(p, sizeof *values * (size_t)n), *makes;
  struct md **offer = block(p, sizeof *offer * (size_t)n), *dst;
  int *args = block(p, sizeof *args * (size_t)n);
  struct post *posts;
  struct primitive *made;
  struct action *a;
  for (int i = 0; i < n; i++) {
    values[i] = &p->values[next(p)];
    args[i] = (int)next(p);
    offer[i] = layout(p, values[i]);
  }
  makes = &p->values[next(p)];
  dst = layout(p, makes);
  keep_layout = (int)next(p);
  post_count = (int)next(p);
  in_place = (int)next(p);
  posts = block(p, sizeof *posts * (size_t)(post_count > 0 ? post_count : 1));
  for (int i = 0; i < post_count; i++) {
    struct post *q = &posts[i];
    q->binary = next(p);
    q->code = next(p);
    if (q->binary) {
      q->value = next(p);
      q->full = next(p);
    } else {
      q->code_3 = next(p);
      q->alpha = real(p);
      q->beta = real(p);
    }
  }
  if (keep_layout) dst = primitive(p, &o, n, offer, dst, NULL, 0)->makes;
  for (int i = 0; i < post_count; i++)
    if (posts[i].binary && i != in_place) posts[i].md = posts[i].full ? dst : plain(p, &p->values[posts[i].value]);
  made = primitive(p, &o, n, offer, dst, posts, post_count);
  memories = block(p, sizeof *memories * (size_t)n);
  post_memories = block(p, sizeof *post_memories * (size_t)(post_count > 0 ? post_count : 1));
  for (int i = 0; i < n; i++) memories[i] = ensure(p, values[i], made->reads[i]);
  for (int i = 0; i < post_count; i++)
    if (posts[i].binary && i != in_place)
      post_memories[i] = ensure(p, &p->values[posts[i].value], posts[i].full ? made->makes : posts[i].md);
  if (in_place >= 0) {
    int over = to_write_over(p, &p->values[posts[in_place].value], made->makes);
    target_memory = new_memory(p, made->makes, ARENA, p->memories[over].at, NULL);
    hold(p, makes, target_memory);
  } else {
    target_memory = made_in(p, makes, made->makes);
  }
  a = run_later(p, made);
  for (int i = 0; i < n; i++) argument(p, a, args[i], memories[i]);
  for (int i = 0; i < post_count; i++)
    if (posts[i].binary && i != in_place) argument(p, a, ((lib.is_3 ? 32768 : 16384) * (i + 1)) | ARG_SRC_1, post_memories[i]);
  argument(p, a, ARG_DST, target_memory);
}

static void permute_step(struct plan *p) {
  struct value *from = &p->values[next(p)], *makes = &p->values[next(p)];
  int first = primary(p, from), places[MAX_RANK] = {0};
  struct md *md = new_md(p, makes->rank, makes->dims, makes->dtype);
  for (int k = 0; k < makes->rank; k++) places[next(p)] = k;
  CHECK(p, "other orders of axes", lib.c.memory_desc_permute_axes(target(md), pointer(p->memories[first].md), places));
  hold(p, makes, new_memory(p, md, p->memories[first].where, p->memories[first].at, p->memories[first].kept));
}

static void reshape_step(struct plan *p) {
  struct value *from = &p->values[next(p)], *makes = &p->values[next(p)];
  int first = primary(p, from);
  struct md *md = new_md(p, makes->rank, makes->dims, makes->dtype);
  if (lib.c.memory_desc_reshape(target(md), pointer(p->memories[first].md), makes->rank, makes->dims) != 0) {
    md->handle = NULL;
    first = ensure(p, from, plain(p, from));
    md = plain(p, makes);
  }
  hold(p, makes, new_memory(p, md, p->memories[first].where, p->memories[first].at, p->memories[first].kept));
}
