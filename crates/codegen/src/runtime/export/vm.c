/* The machine of an exported program with control flow, functions as values, data types or references: C99. It runs the words of the
 * program's functions, which call kernels, on a stack of its own; nothing recurses natively but over tuples, whose depth types bound. */

enum kind { TENSOR, TUPLE, ADT, CLOSURE, CELL };
/* What a cell holds: a value that may be written, a function that is still to be called, or what it gave. */
enum { PLAIN, DELAYED, DONE };

struct object {
  struct object **link, *next; /* what points at it, and the next, of those of the run; `next` also of those that are about to go */
  uint64_t refs;
  uint32_t kind, tag, count; /* constructor, function or state of a cell */
  int borrowed;              /* whether the elements are somebody else's */
  resat_array array;
  struct object *fields[];
};

struct frame {
  uint32_t function, at, dst;
  size_t base;
  struct object *self; /* the closure that runs, if one does */
  struct object *cell; /* where the result goes, too, if it was delayed */
};

struct machine {
  struct object *all; /* a list of what lives */
  struct object **registers;
  size_t used, room;
  struct frame now, *waiting;
  size_t depth, frames;
  struct object *constants[CONSTANTS];
  const struct ResatCtx *ctx;
  void *arena;
  uint64_t arena_bytes;
  int code;
};

static void keep(struct object *o) { o->refs++; }

/* Lets a value go, and what nothing else holds of what it is made of. */
static void let_go(struct object *o) {
  struct object *graves = NULL;
  for (;;) {
    if (o != NULL && --o->refs == 0) {
      *o->link = o->next;
      if (o->next != NULL) o->next->link = o->link;
      o->next = graves;
      graves = o;
      /* `refs` counts the fields that have been let go. */
    }
    for (o = NULL; graves != NULL && o == NULL;) {
      struct object *g = graves;
      if (g->refs < g->count) {
        o = g->fields[g->refs++];
      } else {
        graves = g->next;
        if (g->kind == TENSOR && !g->borrowed) {
          free((void *)(uintptr_t)g->array.data);
          free((void *)(uintptr_t)g->array.shape);
        }
        free(g);
      }
    }
    if (o == NULL) return;
  }
}

static struct object *make(struct machine *m, uint32_t kind, uint32_t tag, uint32_t count) {
  struct object *o = calloc(1, sizeof *o + count * sizeof *o->fields);
  if (o == NULL) {
    m->code = fail(RESAT_NO_MEMORY, "%s: no memory", MODEL_NAME);
    return NULL;
  }
  o->refs = 1;
  o->kind = kind;
  o->tag = tag;
  o->count = count;
  o->link = &m->all;
  o->next = m->all;
  if (o->next != NULL) o->next->link = &o->next;
  m->all = o;
  return o;
}

static struct object *mismatch(struct machine *m, const char *wanted) {
  m->code = fail(RESAT_FAILED, "%s: %s was expected, but found something else", MODEL_NAME, wanted);
  return NULL;
}

/* The value of an operand, kept for who asks. */
static struct object *value(struct machine *m, int32_t operand) {
  uint32_t index = (uint32_t)operand >> 3;
  struct object *o = NULL, **r;
  switch (operand & 7) {
    case 0: o = m->registers[m->now.base + index]; break;
    case 1:
      r = &m->registers[m->now.base + index];
      o = *r;
      *r = NULL;
      return o;
    case 2: o = m->constants[index]; break;
    case 3: o = m->now.self->fields[index]; break;
    case 4:
      if (m->now.self == NULL) return make(m, CLOSURE, m->now.function, 0);
      o = m->now.self;
      break;
  }
  if (o != NULL) keep(o);
  return o;
}

static void set(struct machine *m, uint32_t dst, struct object *o) {
  struct object **r = &m->registers[m->now.base + dst];
  struct object *old = *r;
  *r = o;
  if (old != NULL) let_go(old);
}

/* An object of fields that are operands. */
static struct object *of_operands(struct machine *m, uint32_t kind, uint32_t tag, const int32_t *operands, int32_t count) {
  struct object *o = make(m, kind, tag, (uint32_t)count);
  if (o == NULL) return NULL;
  for (int32_t i = 0; i < count; i++) o->fields[i] = value(m, operands[i]);
  return o;
}

/* Room for registers. */
static int reach(struct machine *m, size_t registers) {
  if (registers > m->room) {
    size_t room = registers > 2 * m->room ? registers : 2 * m->room;
    struct object **all = realloc(m->registers, room * sizeof *all);
    if (all == NULL) {
      m->code = fail(RESAT_NO_MEMORY, "%s: no memory for %llu registers", MODEL_NAME, (unsigned long long)room);
      return 0;
    }
    m->registers = all;
    m->room = room;
  }
  while (m->used < registers) m->registers[m->used++] = NULL;
  return 1;
}

static void shrink(struct machine *m, size_t registers) {
  while (m->used > registers)
    if (m->registers[--m->used] != NULL) let_go(m->registers[m->used]);
}

/* Puts arguments after all registers. */
static int push(struct machine *m, const int32_t *operands, int32_t count) {
  size_t first = m->used;
  if (!reach(m, first + (size_t)count)) return 0;
  for (int32_t i = 0; i < count; i++) m->registers[first + (size_t)i] = value(m, operands[i]);
  return m->code == RESAT_OK;
}

/* Starts a function whose arguments lie in the registers from `base` on. */
static int enter(struct machine *m, uint32_t function, size_t base, struct object *self, uint32_t dst, struct object *cell) {
  if (m->depth == m->frames) {
    size_t frames = m->frames > 0 ? 2 * m->frames : 64;
    struct frame *all = realloc(m->waiting, frames * sizeof *all);
    if (all == NULL) {
      m->code = fail(RESAT_NO_MEMORY, "%s: no memory for %llu calls within calls", MODEL_NAME, (unsigned long long)frames);
      return 0;
    }
    m->waiting = all;
    m->frames = frames;
  }
  m->waiting[m->depth++] = m->now;
  m->now.function = function;
  m->now.at = routines[function].start;
  m->now.base = base;
  m->now.self = self;
  m->now.dst = dst;
  m->now.cell = cell;
  return reach(m, base + routines[function].registers);
}

/* Starts a function in the place of the running one; its arguments lie in the registers from `args` on. */
static int reenter(struct machine *m, uint32_t function, size_t args, struct object *self) {
  size_t count = m->used - args, base = m->now.base;
  for (size_t r = base; r < args; r++) {
    if (m->registers[r] != NULL) let_go(m->registers[r]);
    m->registers[r] = NULL;
  }
  memmove(&m->registers[base], &m->registers[args], count * sizeof *m->registers);
  m->used = base + count;
  if (m->now.self != NULL) let_go(m->now.self);
  m->now.self = self;
  m->now.function = function;
  m->now.at = routines[function].start;
  return reach(m, base + routines[function].registers);
}

static struct object *closure_of(struct machine *m, int32_t callee, int32_t args) {
  struct object *c = value(m, callee);
  if (c == NULL || c->kind != CLOSURE || routines[c->tag].params != (uint32_t)args) return mismatch(m, "a function of so many arguments");
  return c;
}

struct arguments {
  uint32_t count;
  uint64_t bytes[MAX_INPUTS];
  const void *data[MAX_INPUTS];
  const int64_t *shapes[MAX_INPUTS];
};

static int spread(struct machine *m, const struct object *o, struct arguments *args) {
  if (o->kind == TUPLE) {
    for (uint32_t i = 0; i < o->count; i++)
      if (!spread(m, o->fields[i], args)) return 0;
    return 1;
  }
  if (o->kind != TENSOR || args->count == MAX_INPUTS) {
    mismatch(m, "a tensor");
    return 0;
  }
  args->bytes[args->count] = o->array.bytes;
  args->data[args->count] = o->array.data;
  args->shapes[args->count++] = o->array.shape;
  return 1;
}

/* Puts results together as the layout says. */
static struct object *assemble(struct machine *m, const int32_t **layout, resat_array **next) {
  int32_t count = *(*layout)++;
  struct object *o = make(m, count < 0 ? TENSOR : TUPLE, 0, count < 0 ? 0 : (uint32_t)count);
  if (o == NULL) return NULL;
  if (count < 0) {
    o->array = **next;
    memset((*next)++, 0, sizeof **next);
  }
  for (int32_t i = 0; i < count; i++) {
    o->fields[i] = assemble(m, layout, next);
    if (o->fields[i] == NULL) {
      o->count = (uint32_t)i;
      let_go(o);
      return NULL;
    }
  }
  return o;
}

/* The elements of one argument under the extents that another one holds, where 0 is the extent that stood there (unless zeros are meant), -1 what
 * is left, and -3 the product of two extents. */
static int reshape(const struct function *f, const struct arguments *args, int zeros, resat_array *result) {
  const int64_t *from = args->shapes[0];
  const uint32_t from_rank = f->input[0].rank, rank = f->input[1].rank == 0 ? 1 : (uint32_t)args->shapes[1][0];
  const resat_tensor type = {NULL, f->input[0].dtype, rank, NULL, 0};
  int64_t shape[MAX_RESHAPED], elements = 1, all = 1, left = 1, taken = 1;
  uint32_t at = 0, inferred = rank;
  int bad = rank > MAX_RESHAPED;
  for (uint32_t i = 0; i < rank && !bad; i++) {
    const int wide = args->bytes[1] == rank * sizeof(int64_t);
    const int64_t n = wide ? ((const int64_t *)args->data[1])[i] : ((const int32_t *)args->data[1])[i];
    if (n > 0 || n == -1 || (n == 0 && zeros)) {
      bad = n == -1 && inferred < rank;
      if (n == -1) inferred = i;
      shape[i] = n == -1 ? 1 : n;
      taken = product(taken, shape[i], &bad);
      if (at < from_rank) left = product(left, from[at], &bad);
      at++;
    } else if (n == 0 && at < from_rank) {
      shape[i] = from[at++];
    } else if (n == -3 && at + 1 < from_rank) {
      shape[i] = product(from[at], from[at + 1], &bad);
      at += 2;
    } else {
      bad = 1;
    }
  }
  for (uint32_t axis = 0; axis < from_rank; axis++) elements = product(elements, from[axis], &bad);
  for (; at < from_rank; at++) left = product(left, from[at], &bad);
  if (!bad && inferred < rank) {
    bad = taken == 0;
    if (!bad) shape[inferred] = left / taken;
  }
  for (uint32_t i = 0; i < rank && !bad; i++) all = product(all, shape[i], &bad);
  if (bad || all != elements)
    return fail(RESAT_BAD_SHAPE, "%s: %lld elements do not take the extents that are asked for", f->name, (long long)elements);
  if (!array_of(result, &type, shape, args->bytes[0])) return fail(RESAT_NO_MEMORY, "%s: no memory for its results", f->name);
  memcpy((void *)(uintptr_t)result->data, args->data[0], (size_t)args->bytes[0]);
  return RESAT_OK;
}

static void invoke(struct machine *m, uint32_t dst, uint32_t kernel, const int32_t *operands, int32_t count) {
  const struct function *f = &functions[kernel];
  resat_array arrays[MAX_OUTPUTS], *next = arrays;
  struct arguments args;
  const int32_t *layout = layouts + layout_of[kernel];
  size_t first = m->used;
  struct object *o = NULL;
  memset(arrays, 0, sizeof arrays);
  args.count = 0;
  if (!push(m, operands, count)) return;
  for (int32_t i = 0; i < count; i++)
    if (!spread(m, m->registers[first + (size_t)i], &args)) return;
  if (args.count != f->inputs) {
    mismatch(m, "another number of tensors");
    return;
  }
  if (reshapes[kernel] != 0)
    m->code = reshape(f, &args, reshapes[kernel] == 2, arrays);
  else
    m->code = call_function(f, m->ctx, args.data, args.shapes, arrays, &m->arena, &m->arena_bytes);
  shrink(m, first);
  if (m->code == RESAT_OK) o = assemble(m, &layout, &next);
  if (o != NULL) set(m, dst, o);
  for (uint32_t i = 0; i < MAX_OUTPUTS; i++) {
    free((void *)(uintptr_t)arrays[i].data);
    free((void *)(uintptr_t)arrays[i].shape);
  }
}

/* Runs until the function that runs at first returns: what it gives, or nothing where `code` says why. */
static struct object *steps(struct machine *m) {
  while (m->code == RESAT_OK) {
    const int32_t *w = words + m->now.at;
    struct object *o, *p;
    size_t first = m->used;
    switch (w[0]) {
      case 0: /* move */
        set(m, (uint32_t)w[1], value(m, w[2]));
        m->now.at += 3;
        break;
      case 1: /* invoke */
        m->now.at += 4 + (uint32_t)w[3];
        invoke(m, (uint32_t)w[1], (uint32_t)w[2], w + 4, w[3]);
        break;
      case 2: /* tuple */
        m->now.at += 3 + (uint32_t)w[2];
        set(m, (uint32_t)w[1], of_operands(m, TUPLE, 0, w + 3, w[2]));
        break;
      case 3: /* field */
        m->now.at += 4;
        o = value(m, w[2]);
        if (o == NULL || (o->kind != TUPLE && o->kind != ADT) || (uint32_t)w[3] >= o->count) {
          mismatch(m, "a value with such a field");
          break;
        }
        p = o->fields[w[3]];
        keep(p);
        let_go(o);
        set(m, (uint32_t)w[1], p);
        break;
      case 4: /* adt */
        m->now.at += 4 + (uint32_t)w[3];
        set(m, (uint32_t)w[1], of_operands(m, ADT, (uint32_t)w[2], w + 4, w[3]));
        break;
      case 5: /* closure */
        m->now.at += 4 + (uint32_t)w[3];
        set(m, (uint32_t)w[1], of_operands(m, CLOSURE, (uint32_t)w[2], w + 4, w[3]));
        break;
      case 6: /* call */
        m->now.at += 4 + (uint32_t)w[3];
        if (push(m, w + 4, w[3])) enter(m, (uint32_t)w[2], first, NULL, (uint32_t)w[1], NULL);
        break;
      case 7: /* call a closure */
        m->now.at += 4 + (uint32_t)w[3];
        if (!push(m, w + 4, w[3])) break;
        o = closure_of(m, w[2], w[3]);
        if (o != NULL) enter(m, o->tag, first, o, (uint32_t)w[1], NULL);
        break;
      case 8: /* tail call */
        if (push(m, w + 3, w[2])) reenter(m, (uint32_t)w[1], first, NULL);
        break;
      case 9: /* tail call of a closure */
        if (!push(m, w + 3, w[2])) break;
        o = closure_of(m, w[1], w[2]);
        if (o != NULL) reenter(m, o->tag, first, o);
        break;
      case 10: /* return */
        o = value(m, w[1]);
        shrink(m, m->now.base);
        if (m->now.self != NULL) let_go(m->now.self);
        if (m->now.cell != NULL) {
          p = m->now.cell->fields[0];
          keep(o);
          m->now.cell->fields[0] = o;
          m->now.cell->tag = DONE;
          let_go(p);
          let_go(m->now.cell);
        }
        if (m->depth == 0) return o;
        {
          uint32_t dst = m->now.dst;
          m->now = m->waiting[--m->depth];
          set(m, dst, o);
        }
        break;
      case 11: /* if */
        o = value(m, w[1]);
        if (o == NULL || o->kind != TENSOR || o->array.bytes == 0) {
          mismatch(m, "a scalar");
          break;
        }
        m->now.at = *(const unsigned char *)o->array.data ? m->now.at + 3 : (uint32_t)w[2];
        let_go(o);
        break;
      case 12: /* switch */
      case 13: /* if the constructor is */
        o = value(m, w[1]);
        if (o == NULL || o->kind != ADT) {
          mismatch(m, "a value of a data type");
          break;
        }
        if (w[0] == 12)
          m->now.at = (uint32_t)w[2 + o->tag];
        else
          m->now.at = o->tag == (uint32_t)w[2] ? m->now.at + 4 : (uint32_t)w[3];
        let_go(o);
        break;
      case 14: /* go to */
        m->now.at = (uint32_t)w[1];
        break;
      case 15: /* a cell */
        m->now.at += 3;
        set(m, (uint32_t)w[1], of_operands(m, CELL, PLAIN, w + 2, 1));
        break;
      case 16: /* read a cell */
      case 19: /* force what was delayed */
        m->now.at += 3;
        o = value(m, w[2]);
        if (o == NULL || o->kind != CELL) {
          mismatch(m, "a reference");
          break;
        }
        p = o->fields[0];
        keep(p);
        if (w[0] == 19 && o->tag == DELAYED) {
          enter(m, p->tag, first, p, (uint32_t)w[1], o);
        } else {
          let_go(o);
          set(m, (uint32_t)w[1], p);
        }
        break;
      case 17: /* write a cell */
        m->now.at += 3;
        o = value(m, w[1]);
        if (o == NULL || o->kind != CELL) {
          mismatch(m, "a reference");
          break;
        }
        p = o->fields[0];
        o->fields[0] = value(m, w[2]);
        let_go(p);
        let_go(o);
        break;
      case 18: /* delay */
        m->now.at += 4 + (uint32_t)w[3];
        p = of_operands(m, CLOSURE, (uint32_t)w[2], w + 4, w[3]);
        o = p != NULL ? make(m, CELL, DELAYED, 1) : NULL;
        if (o == NULL) break;
        o->fields[0] = p;
        set(m, (uint32_t)w[1], o);
        break;
      case 20: /* empty registers */
        m->now.at += 2 + (uint32_t)w[1];
        for (int32_t i = 0; i < w[1]; i++) set(m, (uint32_t)w[2 + i], NULL);
        break;
      case 21: /* fatal */
        m->code = fail(RESAT_FAILED, "%s: in `%s`, no clause of `match` meets a value", MODEL_NAME, routines[m->now.function].name);
        break;
      default: m->code = fail(RESAT_FAILED, "%s: not an instruction", MODEL_NAME);
    }
  }
  return NULL;
}

/* Somebody else's elements as a value. */
static struct object *borrowed(struct machine *m, const resat_tensor *type, uint64_t element_bytes, const int64_t *shape,
                               const void *data) {
  struct object *o = make(m, TENSOR, 0, 0);
  if (o == NULL) return NULL;
  o->borrowed = 1;
  o->array.dtype = type->dtype;
  o->array.rank = type->rank;
  o->array.shape = shape;
  o->array.bytes = element_bytes;
  for (uint32_t axis = 0; axis < type->rank; axis++) o->array.bytes *= (uint64_t)shape[axis];
  o->array.data = data;
  return o;
}

/* A parameter of the program, of the inputs that make it up. */
static struct object *parameter(struct machine *m, const int32_t **layout, uint32_t *next, const void *const *inputs,
                                const int64_t *const *shapes) {
  int32_t count = *(*layout)++;
  struct object *o;
  if (count < 0) {
    o = borrowed(m, &inputs_of_model[*next], input_elements[*next], shapes[*next], inputs[*next]);
    ++*next;
    return o;
  }
  o = make(m, TUPLE, 0, (uint32_t)count);
  for (int32_t i = 0; i < count && o != NULL; i++) {
    o->fields[i] = parameter(m, layout, next, inputs, shapes);
    if (o->fields[i] == NULL) {
      o->count = (uint32_t)i;
      return NULL;
    }
  }
  return o;
}

/* The tensors of a value, depth first, copied. */
static struct owned *flattened(struct machine *m, struct object *o) {
  size_t depth = 1, room = 64, count = 0, tensors = 16;
  struct object **todo = malloc(room * sizeof *todo), **found = malloc(tensors * sizeof *found);
  struct owned *results = NULL;
  int good = todo != NULL && found != NULL;
  if (good) todo[0] = o;
  while (good && depth > 0) {
    struct object *v = todo[--depth];
    if (v->kind == CLOSURE) {
      m->code = fail(RESAT_FAILED, "%s: the result of the program holds a function", MODEL_NAME);
      break;
    }
    if (v->kind == TENSOR) {
      if (count == tensors) {
        struct object **more = realloc(found, 2 * tensors * sizeof *found);
        good = more != NULL;
        if (!good) break;
        found = more;
        tensors *= 2;
      }
      found[count++] = v;
    }
    if (depth + v->count > room) {
      size_t wanted = 2 * (depth + v->count);
      struct object **more = realloc(todo, wanted * sizeof *todo);
      good = more != NULL;
      if (!good) break;
      todo = more;
      room = wanted;
    }
    for (uint32_t i = v->count; i > 0; i--) todo[depth++] = v->fields[i - 1];
  }
  if (good && m->code == RESAT_OK) {
    results = results_of((uint32_t)count);
    good = results != NULL;
    for (size_t i = 0; i < count && good; i++) {
      const resat_array *a = &found[i]->array;
      resat_tensor type = {NULL, a->dtype, a->rank, NULL, 0};
      good = array_of(&results->arrays[i], &type, a->shape, a->bytes);
      if (good) memcpy((void *)(uintptr_t)results->arrays[i].data, a->data, (size_t)a->bytes);
    }
  }
  if (!good) {
    m->code = fail(RESAT_NO_MEMORY, "%s: no memory for the results", MODEL_NAME);
    release((resat_results *)results);
    results = NULL;
  }
  free(todo);
  free(found);
  return results;
}

static struct object *constant_of(struct machine *m, uint32_t n) {
  switch (constants[n].kind) {
    case TENSOR: return borrowed(m, &constant_ports[n], constants[n].element_bytes, constant_ports[n].shape, WEIGHTS + constants[n].at);
    case TUPLE: return make(m, TUPLE, 0, 0);
    default: return make(m, constants[n].kind, (uint32_t)constants[n].at, 0);
  }
}

static int run_program(const struct ResatCtx *ctx, const void *const *inputs, const int64_t *const *shapes, struct owned **results) {
  struct machine *m = calloc(1, sizeof *m);
  const int32_t *layout = parameter_layouts;
  struct object *result = NULL;
  uint32_t next = 0;
  int code;
  if (m == NULL) return fail(RESAT_NO_MEMORY, "%s: no memory", MODEL_NAME);
  m->ctx = ctx;
  m->now.function = ENTRY;
  m->now.at = routines[ENTRY].start;
  for (uint32_t n = 0; n < CONSTANT_COUNT && m->code == RESAT_OK; n++) m->constants[n] = constant_of(m, n);
  if (m->code == RESAT_OK && reach(m, routines[ENTRY].registers))
    for (uint32_t p = 0; p < routines[ENTRY].params && m->code == RESAT_OK; p++)
      m->registers[p] = parameter(m, &layout, &next, inputs, shapes);
  if (m->code == RESAT_OK) result = steps(m);
  if (result != NULL) *results = flattened(m, result);
  code = m->code;
  /* Whatever is left goes, circles by way of cells included. */
  while (m->all != NULL) {
    struct object *o = m->all;
    m->all = o->next;
    if (o->kind == TENSOR && !o->borrowed) {
      free((void *)(uintptr_t)o->array.data);
      free((void *)(uintptr_t)o->array.shape);
    }
    free(o);
  }
  free(m->registers);
  free(m->waiting);
  free(m->arena);
  free(m);
  return code;
}

static int call(const void *const *inputs, const int64_t *const *input_shapes, resat_results **results) {
  const struct span *span = input_spans;
  struct owned *o = NULL;
  const char *why;
  int code;
  if (refused) return fail(RESAT_REFUSED, "%s: the system refuses matrix registers", MODEL_NAME);
  if (results == NULL || (INPUT_COUNT > 0 && (inputs == NULL || input_shapes == NULL)))
    return fail(RESAT_BAD_ARGUMENT, "%s: a list of pointers is null", MODEL_NAME);
  for (uint32_t i = 0; i < INPUT_COUNT; i++)
    if (!aligned(inputs[i])) return fail(RESAT_BAD_ARGUMENT, "%s: input %u is null or not aligned", MODEL_NAME, (unsigned)i);
  code = fit(MODEL_NAME, inputs_of_model, INPUT_COUNT, input_shapes);
  if (code != RESAT_OK) return code;
  failed = 0;
  for (uint32_t i = 0; i < INPUT_COUNT; i++)
    for (uint32_t axis = 0; axis < inputs_of_model[i].rank; axis++)
      if (!served(MODEL_NAME, &inputs_of_model[i], axis, input_shapes[i][axis], span++)) return RESAT_BAD_SHAPE;
  {
    const struct ResatCtx ctx = begin_run();
    why = trouble(&ctx);
    code = why != NULL ? fail(RESAT_FAILED, "%s", why) : run_program(&ctx, inputs, input_shapes, &o);
    end_run();
  }
  if (code == RESAT_OK) *results = &o->results;
  return code;
}
