/* Functions of an exported model at sizes that are known when it runs: C99. Numbers (extents, bytes, parameters of kernels) follow from the
 * extents of arguments by formulas, which `compute` works out; what buffers take of memory follows from these. */

enum place_kind { INPUT, OUTPUT, CONSTANT, SLOT, PARAMETERS, PART };

/* Where a kernel's argument is: input, output, constant at a byte, slot, parameters from an element on; of an output from the byte on that
 * the number `from` says. */
struct place {
  uint32_t kind, from;
  uint64_t at;
};

struct step {
  void (*function)(const struct ResatCtx *, void *const *, kernel_workspace *);
  uint32_t args, workspace;
};

/* Which extents of a class a form may be for: from the least on, so far apart. */
struct span {
  int64_t least, most, step;
};

/* What a function does at the sizes of one form. */
struct form {
  uint32_t classes, numbers;
  const int32_t *extents; /* by unknown extent: its class, or -1 - n where it must be n */
  const struct span *span; /* by class */
  const unsigned char *serves; /* a bit for each size between these, the first class's extents fastest; NULL where all are served */
  int (*compute)(const int64_t *n, int64_t *t);
  uint32_t slots, parameters, steps, appended;
  const uint32_t *slot_ends, *slot_bytes; /* each slot has as many bytes as the greatest of its numbers */
  const uint32_t *parameter_numbers;
  const struct place *places;
  const struct step *step;
  const struct place *results;
  const uint32_t *result_bytes;   /* by output: a number */
  const uint32_t *output_extents; /* by output and axis: a number */
  const uint32_t (*append)[3];    /* output, input that it begins with, number of that one's bytes */
};

/* A function: a kernel of the program, or all of it. Its hidden outputs, after the others, say how many rows of outputs are meant. */
struct function {
  const char *name;
  uint32_t inputs, outputs, hidden, unknown, forms;
  const resat_tensor *input, *output;
  const uint32_t (*unknown_at)[2]; /* input and axis */
  const uint32_t (*counted)[2];    /* output and the hidden one that counts its rows */
  const struct form *form;
};

/* Why the calling thread's last call failed. */
static PER_THREAD char message[512];
static PER_THREAD int failed;

static int fail(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  failed = 1;
  return code;
}

static inline int64_t sum(int64_t a, int64_t b, int *bad) {
  if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) {
    *bad = 1;
    return 0;
  }
  return a + b;
}

static inline int64_t product(int64_t a, int64_t b, int *bad) {
  const int64_t most = b == 0 ? INT64_MAX : INT64_MAX / (b < 0 ? -(b + 1) + (int64_t)1 : b);
  if (b == INT64_MIN || a > most || a < -most) {
    *bad = 1;
    return 0;
  }
  return a * b;
}

/* Rounds down; `d` is positive. */
static inline int64_t quotient(int64_t a, int64_t d) { return a / d - (a % d < 0); }
static inline int64_t remainder_of(int64_t a, int64_t d) { return a % d + (a % d < 0 ? d : 0); }
static inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greatest_of(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t bits(double f) {
  int64_t r;
  memcpy(&r, &f, sizeof r);
  return r;
}

static uint64_t round_up(uint64_t bytes) { return (bytes + RESAT_ALIGN - 1) / RESAT_ALIGN * RESAT_ALIGN; }

/* Whether arguments have the extents that are known of them. */
static int fit(const char *name, const resat_tensor *types, uint32_t count, const int64_t *const *shapes) {
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t axis = 0; axis < types[i].rank; axis++) {
      int64_t want = types[i].shape[axis];
      if (shapes[i][axis] < 0)
        return fail(RESAT_BAD_SHAPE, "%s: axis %u of input `%s` has %lld elements", name, (unsigned)axis, types[i].name,
                    (long long)shapes[i][axis]);
      if (want >= 0 && shapes[i][axis] != want)
        return fail(RESAT_BAD_SHAPE, "%s: axis %u of input `%s` should have %lld elements, but has %lld", name, (unsigned)axis,
                    types[i].name, (long long)want, (long long)shapes[i][axis]);
    }
  return RESAT_OK;
}

/* Whether an extent is one that is served; why not is said unless something was. */
static int served(const char *name, const resat_tensor *input, uint32_t axis, int64_t extent, const struct span *s) {
  if (extent < s->least || extent > s->most) {
    const int less = extent < s->least;
    if (!failed)
      fail(0, "%s: axis %u of input `%s` has %lld elements; the library serves %lld and %s", name, (unsigned)axis, input->name,
           (long long)extent, (long long)(less ? s->least : s->most), less ? "more" : "fewer");
    return 0;
  }
  if ((extent - s->least) % s->step != 0) {
    if (!failed)
      fail(0, "%s: axis %u of input `%s` has %lld elements; the library serves multiples of %lld from %lld to %lld", name,
           (unsigned)axis, input->name, (long long)extent, (long long)s->step, (long long)s->least, (long long)s->most);
    return 0;
  }
  return 1;
}

/* The form of these arguments, and by class the extents that they have. */
static int choose(const struct function *f, const int64_t *const *shapes, const struct form **form, int64_t *n) {
  int code = fit(f->name, f->input, f->inputs, shapes);
  if (code != RESAT_OK) return code;
  failed = 0;
  for (uint32_t k = 0; k < f->forms; k++) {
    const struct form *m = &f->form[k];
    int good = 1;
    for (uint32_t c = 0; c < m->classes; c++) n[c] = -1;
    for (uint32_t u = 0; u < f->unknown && good; u++) {
      uint32_t input = f->unknown_at[u][0], axis = f->unknown_at[u][1];
      int64_t extent = shapes[input][axis];
      int32_t c = m->extents[u];
      if (c < 0) {
        good = extent == -1 - (int64_t)c;
      } else if (n[c] >= 0 && n[c] != extent) {
        good = 0;
        if (!failed)
          fail(0, "%s: axis %u of input `%s` has %lld elements, but others that should be equal have %lld", f->name, (unsigned)axis,
               f->input[input].name, (long long)extent, (long long)n[c]);
      } else if (!served(f->name, &f->input[input], axis, extent, &m->span[c])) {
        good = 0;
      } else {
        n[c] = extent;
      }
    }
    if (good && m->serves != NULL) {
      int64_t at = 0, step = 1;
      for (uint32_t c = 0; c < m->classes; c++) {
        at += (n[c] - m->span[c].least) / m->span[c].step * step;
        step *= (m->span[c].most - m->span[c].least) / m->span[c].step + 1;
      }
      good = m->serves[at / 8] >> at % 8 & 1;
      if (!good && !failed) fail(0, "%s: the library does not serve inputs of these extents", f->name);
    }
    if (good) {
      *form = m;
      failed = 0;
      return RESAT_OK;
    }
  }
  return RESAT_BAD_SHAPE;
}

/* All numbers of a form, then where its slots begin, then bytes of memory in all. To be freed. */
static int numbers_of(const struct function *f, const struct form *m, const int64_t *n, int64_t **numbers) {
  uint32_t first = 0;
  int bad = 0;
  int64_t at, *t = malloc((m->numbers + m->slots + 1) * sizeof *t);
  if (t == NULL) return fail(RESAT_NO_MEMORY, "%s: no memory", f->name);
  bad = m->compute(n, t);
  at = (int64_t)round_up(m->parameters * sizeof *t);
  for (uint32_t s = 0; s < m->slots && !bad; s++) {
    int64_t most = 0;
    for (; first < m->slot_ends[s]; first++) most = greatest_of(most, t[m->slot_bytes[first]]);
    t[m->numbers + s] = at;
    at = sum(at, sum(most, RESAT_ALIGN - 1, &bad) / RESAT_ALIGN * RESAT_ALIGN, &bad);
  }
  t[m->numbers + m->slots] = at;
  if (bad) {
    free(t);
    return fail(RESAT_BAD_SHAPE, "%s: its arguments are too large", f->name);
  }
  *numbers = t;
  return RESAT_OK;
}

static void *locate(const struct form *m, const int64_t *t, const struct place *p, const void *const *inputs, void *const *outputs,
                    unsigned char *arena) {
  switch (p->kind) {
    case INPUT: return (void *)(uintptr_t)inputs[p->at];
    case OUTPUT: return outputs[p->at];
    case CONSTANT: return (void *)(uintptr_t)(WEIGHTS + p->at);
    case SLOT: return arena + t[m->numbers + p->at];
    case PARAMETERS: return arena + p->at * sizeof *t;
    case PART: return (unsigned char *)outputs[p->at] + t[p->from];
  }
  return NULL;
}

/* Calls the kernels of a function. `arena` has as many bytes as the last of the numbers says. */
static void execute(const struct function *f, const struct form *m, const int64_t *t, const struct ResatCtx *ctx,
                    const void *const *inputs, void *const *outputs, unsigned char *arena) {
  void *args[MAX_ARGS];
  const struct place *place = m->places;
  int64_t *parameters = (int64_t *)arena;
  for (uint32_t i = 0; i < m->parameters; i++) parameters[i] = t[m->parameter_numbers[i]];
  for (uint32_t i = 0; i < m->appended; i++)
    if (outputs[m->append[i][0]] != inputs[m->append[i][1]])
      memcpy(outputs[m->append[i][0]], inputs[m->append[i][1]], (size_t)t[m->append[i][2]]);
  for (uint32_t s = 0; s < m->steps; s++) {
    for (uint32_t a = 0; a < m->step[s].args; a++) args[a] = locate(m, t, place++, inputs, outputs, arena);
    m->step[s].function(CONTEXT_OF(ctx), args, arena + t[m->numbers + m->step[s].workspace]);
  }
  for (uint32_t i = 0; i < f->outputs + f->hidden; i++) {
    const void *from = locate(m, t, &m->results[i], inputs, outputs, arena);
    if (from != outputs[i]) memmove(outputs[i], from, (size_t)t[m->result_bytes[i]]);
  }
}
