/* --- Calls --- */

static __thread char failure[256], told[256];

static struct instance *new_instance(struct plan *p) {
  struct instance *i = calloc(1, sizeof *i);
  size_t memories = (size_t)p->memory_count + 1, actions = (size_t)p->action_count + 1;
  int status = 0;
  if (i == NULL) return NULL;
  i->objects = calloc(memories, sizeof *i->objects);
  i->at = calloc(memories, sizeof *i->at);
  i->scratch = calloc(actions, sizeof *i->scratch);
  i->args = calloc(actions, sizeof *i->args);
  if (i->objects == NULL || i->at == NULL || i->scratch == NULL || i->args == NULL) status = 1;
  for (int m = 0; m < p->memory_count && status == 0; m++) {
    if (!p->memories[m].used) continue;
    i->at[m] = p->memories[m].where == KEPT ? (unsigned char *)(uintptr_t)p->memories[m].kept : NULL;
    status = lib.c.memory_create(&i->objects[m], pointer(p->memories[m].md), lib.engine, i->at[m]);
  }
  for (int a = 0; a < p->action_count && status == 0; a++) {
    const struct action *action = &p->actions[a];
    if (action->primitive == NULL) continue;
    i->args[a] = malloc(sizeof **i->args * (size_t)(action->arg_count + 1));
    if (i->args[a] == NULL) {
      status = 1;
      break;
    }
    for (int k = 0; k < action->arg_count; k++) {
      i->args[a][k].arg = action->args[k];
      i->args[a][k].memory = i->objects[action->memories[k]];
    }
    if (action->scratch >= 0) {
      status = lib.c.memory_create(&i->scratch[a], pointer(action->primitive->scratch), lib.engine, NULL);
      i->args[a][action->arg_count].arg = ARG_SCRATCHPAD;
      i->args[a][action->arg_count].memory = i->scratch[a];
    }
  }
  if (status == 0) status = lib.c.stream_create(&i->stream, lib.engine, 1);
  if (status != 0) {
    struct instance *rest;
    snprintf(failure, sizeof failure, "oneDNN: no instance of a region: %s", meaning(status));
    pthread_mutex_lock(&resting);
    rest = p->idle;
    p->idle = i;
    i->next = NULL;
    free_instances(p);
    p->idle = rest;
    pthread_mutex_unlock(&resting);
    return NULL;
  }
  return i;
}

static int run_instance(struct plan *p, struct instance *i, const struct ResatCtx *ctx, void *const *args, unsigned char *arena) {
  int status = 0;
  for (int m = 0; m < p->memory_count && status == 0; m++) {
    const struct memory *memory = &p->memories[m];
    unsigned char *at = i->at[m];
    if (!memory->used) continue;
    switch (memory->where) {
      case INPUT: at = args[memory->at]; break;
      case OUTPUT: at = args[p->input_count + memory->at]; break;
      case ARENA: at = arena + p->buffers[memory->at].offset; break;
      case KEPT: break;
    }
    if (at == i->at[m]) continue;
    i->at[m] = at;
    status = lib.c.memory_set_data_handle(i->objects[m], at);
  }
  for (int a = 0; a < p->action_count && status == 0; a++)
    if (i->scratch[a] != NULL)
      status = lib.c.memory_set_data_handle(i->scratch[a], arena + p->buffers[p->actions[a].scratch].offset);
  for (int a = 0; a < p->action_count && status == 0; a++) {
    const struct action *action = &p->actions[a];
    if (action->integers == NULL) {
      status = lib.c.primitive_execute(action->primitive->handle, i->stream, action->arg_count + (i->scratch[a] != NULL),
                                       i->args[a]);
    } else {
      struct job job = {action->integers, i->at, p->memories, 1};
      int64_t n = action->integers->channels, parts;
      status = lib.c.stream_wait(i->stream);
      if (status != 0) break;
      if (n > 0 && n < 8192) job.rows_per_part = 8192 / n;
      parts = (action->integers->rows + job.rows_per_part - 1) / job.rows_per_part;
      if (ctx->threads > 1 && parts > 1)
        ctx->parallel_for(ctx, integer_rows, &job, parts);
      else if (parts > 0)
        integer_rows(&job, 0, parts);
    }
  }
  return status != 0 ? status : lib.c.stream_wait(i->stream);
}

const char *resat_onednn_ready(struct resat_onednn *region, const struct ResatCtx *ctx) {
  const char *why;
  struct plan *p = __atomic_load_n(&region->plan, __ATOMIC_ACQUIRE);
  int threads;
  if (failure[0] != 0) {
    memcpy(told, failure, sizeof told);
    failure[0] = 0;
    return told;
  }
  if (ctx == NULL || p == NULL) {
    pthread_mutex_lock(&building);
    why = load_library();
    pthread_mutex_unlock(&building);
    if (why != NULL || ctx == NULL) return why;
  }
  threads = lib.version.runtime == SEQUENTIAL || ctx->threads < 1 ? 1 : (int)ctx->threads;
  if (p == NULL || p->threads != threads) {
    pthread_mutex_lock(&building);
    p = region->plan;
    if (p == NULL || p->threads != threads) {
      /* No call is under way: the number of threads changes between runs only. */
      free_plan(p);
      p = new_plan(region, threads);
      __atomic_store_n(&region->plan, p, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&building);
    if (p == NULL) return "no memory";
  }
  return p->error[0] != 0 ? p->error : NULL;
}

void resat_onednn_call(struct resat_onednn *region, const struct ResatCtx *ctx, void *const *args, unsigned char *workspace) {
  struct plan *p = __atomic_load_n(&region->plan, __ATOMIC_ACQUIRE);
  struct instance *i;
  unsigned char *arena = workspace;
  void *own;
  int status = 1, before;
  if (failure[0] != 0) return;
  pthread_mutex_lock(&resting);
  i = p->idle;
  if (i != NULL) p->idle = i->next;
  pthread_mutex_unlock(&resting);
  if (i == NULL) i = new_instance(p);
  if (i == NULL) return;
  if (p->arena > region->workspace) {
    if (i->own == NULL && posix_memalign(&own, ALIGN, p->arena) == 0) i->own = own;
    arena = i->own;
  }
  limit_threads(p->threads, &before);
  if (arena != NULL || p->arena == 0) status = run_instance(p, i, ctx, args, arena);
  unlimit_threads(before);
  if (status != 0) snprintf(failure, sizeof failure, "oneDNN fails in region `%s`: %s", region->name, meaning(status));
  pthread_mutex_lock(&resting);
  i->next = p->idle;
  p->idle = i;
  pthread_mutex_unlock(&resting);
}
