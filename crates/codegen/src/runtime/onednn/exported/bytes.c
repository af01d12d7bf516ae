/* --- Exact products of bytes --- */

/* The elements of a weight that belong to `part` of `parts` of each sum's products. Where `data` is NULL, they are of one whose
   sums are great and have low bits of all kinds. */
static void take_part(int8_t *to, size_t n, const int8_t *data, int64_t part, int64_t parts, int64_t products) {
  int64_t begin = part * products / parts, end = (part + 1) * products / parts;
  for (size_t i = 0; i < n; i++) {
    int64_t at = (int64_t)(i % (size_t)products);
    to[i] = at < begin || at >= end ? 0 : data != NULL ? data[i] : (int8_t)(127 - (int)(i % 3));
  }
}

static void *address(struct plan *p, int memory) { return (void *)(uintptr_t)p->memories[memory].kept; }

/* A weight's part in the primitive's layout. */
static int packed_part(struct plan *p, struct primitive *made, struct value *weight, int64_t part, int64_t parts, int64_t products) {
  static const int args[] = {ARG_SRC, ARG_DST};
  const void *from = weight->data;
  void *own = NULL;
  int memories[2];
  if (parts > 1) {
    from = own = block(p, elements(weight));
    take_part(own, elements(weight), (const int8_t *)weight->data, part, parts, products);
  }
  memories[0] = new_memory(p, plain(p, weight), KEPT, 0, from);
  memories[1] = kept(p, made->reads[1]);
  run_now(p, reorder(p, p->memories[memories[0]].md, made->reads[1]), 2, args, memories);
  if (own != NULL) release(p, own);
  return memories[1];
}

/* Runs a primitive and adds what it makes, as it lies. */
static void add_product(struct plan *p, struct primitive *made, int data, int weight, int out, uint32_t *to) {
  static const int args[] = {ARG_SRC, ARG_WEIGHTS, ARG_DST};
  int memories[3];
  size_t words = bytes_of(made->makes) / 4;
  const uint32_t *from = address(p, out);
  memories[0] = data;
  memories[1] = weight;
  memories[2] = out;
  run_now(p, made, 3, args, memories);
  for (size_t k = 0; k < words; k++) to[k] += from[k];
}

/* Whether sums of more than 24 bits come out to the last bit: the same sum, in parts that are exact, is compared. */
static int keeps_low_bits(struct plan *p, struct primitive *made, struct value *weight, int64_t products) {
  static const int args[] = {ARG_SRC, ARG_DST};
  size_t bytes = bytes_of(made->reads[0]), result = bytes_of(made->makes), n = elements(weight);
  int64_t top = made->reads[0]->dtype == U8 ? 255 : 127, count = products * 127 * top / (1 << 23) + 1;
  int data = kept(p, made->reads[0]), out = kept(p, made->makes), memories[2], equal;
  uint32_t *whole = block(p, result), *pieces = block(p, result);
  uint8_t *fill = address(p, data);
  int8_t *own = block(p, n);
  struct primitive *pack;
  for (size_t i = 0; i < bytes; i++) fill[i] = (uint8_t)(top - (int64_t)(i % 5));
  if (count > products) count = products;
  memories[0] = new_memory(p, plain(p, weight), KEPT, 0, own);
  memories[1] = kept(p, made->reads[1]);
  pack = reorder(p, p->memories[memories[0]].md, made->reads[1]);
  for (int64_t i = -1; i < count; i++) {
    take_part(own, n, NULL, i < 0 ? 0 : i, i < 0 ? 1 : count, products);
    run_now(p, pack, 2, args, memories);
    add_product(p, made, data, memories[1], out, i < 0 ? whole : pieces);
  }
  equal = memcmp(whole, pieces, result) == 0;
  release(p, whole);
  release(p, pieces);
  release(p, own);
  release(p, address(p, data));
  release(p, address(p, out));
  release(p, address(p, memories[1]));
  return equal;
}

static void exact_step(struct plan *p) {
  static const int args[] = {ARG_SRC, ARG_WEIGHTS, ARG_DST};
  struct operation o = operation(p);
  struct value *data = &p->values[next(p)], *weight = &p->values[next(p)], *makes = &p->values[next(p)];
  int64_t products = next(p), great = next(p), parts = next(p), windows_reach_out = next(p), zero = next(p), count = next(p);
  const int64_t *per_channel = list(p, count);
  struct md *reads[2], *dst;
  struct primitive *made;
  int source, n = 1;
  reads[0] = channels_last(p, data, 1);
  reads[1] = any(p, weight);
  dst = channels_last(p, makes, 1);
  made = primitive(p, &o, 2, reads, dst, NULL, 0);
  if (great && !keeps_low_bits(p, made, weight, products)) {
    if (weight->data == NULL) FAIL(p, "oneDNN rounds sums of more than 24 bits here, and the weight is no constant");
    n = (int)parts;
  }
  source = ensure(p, data, made->reads[0]);
  makes->parts = block(p, sizeof *makes->parts * (size_t)n);
  makes->part_count = n;
  makes->excess = -1;
  makes->per_channel = count > 0 ? per_channel : NULL;
  for (int i = 0; i < n; i++)
    makes->parts[i] = weight->data != NULL ? packed_part(p, made, weight, i, n, products)
                                           : ensure(p, weight, made->reads[1]);
  if (windows_reach_out) {
    int constant = kept(p, made->reads[0]), out = kept(p, made->makes);
    memset(address(p, constant), (int)(uint8_t)zero, bytes_of(made->reads[0]));
    makes->excess = kept(p, made->makes);
    for (int i = 0; i < n; i++) add_product(p, made, constant, makes->parts[i], out, address(p, makes->excess));
    release(p, address(p, constant));
    release(p, address(p, out));
  }
  for (int i = 0; i < n; i++) {
    int out = in_arena(p, made->makes);
    struct action *a = run_later(p, made);
    argument(p, a, args[0], source);
    argument(p, a, args[1], makes->parts[i]);
    argument(p, a, args[2], out);
    makes->parts[i] = out;
  }
}

/* --- Integers --- */

static struct channels scale(struct plan *p, int64_t channels) {
  struct channels c;
  c.multiplies = (int)next(p);
  c.away = (int)next(p);
  c.to_zero = (int32_t)next(p);
  c.zero = list(p, channels);
  c.significand = list(p, channels);
  c.left = list(p, channels);
  c.right = list(p, channels);
  return c;
}

static void add_term(struct plan *p, struct integers *g, int memory, int negative) {
  g->terms = more(p, g->terms, g->term_count, sizeof *g->terms);
  g->terms[g->term_count].memory = memory;
  g->terms[g->term_count++].negative = negative;
}

static void integer_step(struct plan *p) {
  struct integers *g = block(p, sizeof *g);
  struct value *makes = &p->values[next(p)];
  int axis = (int)next(p);
  int64_t n = makes->dims[axis], count;
  const int64_t *base;
  struct action *a;
  g->channels = n;
  g->rows = n > 0 ? (int64_t)elements(makes) / n : 0;
  g->base = block(p, sizeof *g->base * (size_t)n);
  base = list(p, n);
  for (int64_t c = 0; c < n; c++) g->base[c] = (int32_t)base[c];
  for (count = next(p); count > 0; count--) {
    struct value *v = &p->values[next(p)];
    int negative = (int)next(p);
    if (v->part_count == 0) {
      add_term(p, g, ensure(p, v, channels_last(p, v, axis)), negative);
      continue;
    }
    for (int i = 0; i < v->part_count; i++) add_term(p, g, v->parts[i], negative);
    if (v->excess >= 0) add_term(p, g, v->excess, !negative);
    for (int64_t c = 0; v->per_channel != NULL && c < n; c++) {
      uint32_t change = (uint32_t)v->per_channel[c];
      g->base[c] = (int32_t)((uint32_t)g->base[c] + (negative ? 0u - change : change));
    }
  }
  for (count = next(p); count > 0; count--) {
    struct value *v = &p->values[next(p)];
    int memory = ensure(p, v, plain(p, v));
    g->more = more(p, g->more, g->more_count, sizeof *g->more);
    g->more[g->more_count++] = memory;
  }
  g->has_scale = (int)next(p);
  if (g->has_scale) g->scale = scale(p, n);
  for (count = next(p); count > 0; count--) {
    struct value *v = &p->values[next(p)];
    int memory = ensure(p, v, channels_last(p, v, axis));
    g->scaled = more(p, g->scaled, g->scaled_count, sizeof *g->scaled);
    g->scaled[g->scaled_count].memory = memory;
    g->scaled[g->scaled_count++].scale = scale(p, n);
  }
  g->offset = (int32_t)next(p);
  g->low = (int32_t)next(p);
  g->high = (int32_t)next(p);
  g->out = made_in(p, makes, channels_last(p, makes, axis));
  a = new_action(p);
  a->integers = g;
  for (int i = 0; i < g->term_count; i++) argument(p, a, 0, g->terms[i].memory);
  for (int i = 0; i < g->scaled_count; i++) argument(p, a, 0, g->scaled[i].memory);
  for (int i = 0; i < g->more_count; i++) argument(p, a, 0, g->more[i]);
  argument(p, a, 0, g->out);
}

struct job {
  const struct integers *g;
  unsigned char *const *at;
  const struct memory *memories;
  int64_t rows_per_part;
};

static void add_row(const struct job *j, int memory, int64_t first, int64_t n, int32_t *restrict sum, int negative) {
  const unsigned char *at = j->at[memory];
#define ADD(type) \
  do { \
    const type *restrict x = (const type *)at + first; \
    if (negative) \
      for (int64_t c = 0; c < n; c++) sum[c] = (int32_t)((uint32_t)sum[c] - (uint32_t)x[c]); \
    else \
      for (int64_t c = 0; c < n; c++) sum[c] = (int32_t)((uint32_t)sum[c] + (uint32_t)x[c]); \
  } while (0)
  switch (j->memories[memory].md->dtype) {
    case U8: ADD(uint8_t); break;
    case I8: ADD(int8_t); break;
    default: ADD(int32_t);
  }
}

static void requantize(const struct channels *s, int64_t n, int32_t *restrict x) {
  const int64_t *restrict zero = s->zero, *restrict significand = s->significand, *restrict left = s->left,
                          *restrict right = s->right;
  int64_t away = s->away;
  if (!s->multiplies) {
    for (int64_t c = 0; c < n; c++) x[c] = (int32_t)((uint32_t)x[c] - (uint32_t)zero[c] + (uint32_t)s->to_zero);
    return;
  }
  for (int64_t c = 0; c < n; c++) {
    int64_t from = (int32_t)((uint32_t)x[c] - (uint32_t)zero[c]);
    int64_t product = (int64_t)(((uint64_t)from << left[c]) * (uint64_t)significand[c]);
    int64_t half = (int64_t)1 << (right[c] - 1);
    int64_t rounded = (int64_t)((uint64_t)product + (uint64_t)(half - (away & (product < 0))));
    x[c] = (int32_t)((uint32_t)(int32_t)(rounded >> right[c]) + (uint32_t)s->to_zero);
  }
}

static void write_row(const struct job *j, int64_t first, int64_t n, const int32_t *restrict sum) {
  const struct integers *g = j->g;
  unsigned char *at = j->at[g->out];
  int32_t low = g->low, high = g->high;
#define PUT(type) \
  do { \
    type *restrict to = (type *)at + first; \
    for (int64_t c = 0; c < n; c++) to[c] = (type)(sum[c] < low ? low : sum[c] > high ? high : sum[c]); \
  } while (0)
  switch (j->memories[g->out].md->dtype) {
    case U8: PUT(uint8_t); break;
    case I8: PUT(int8_t); break;
    default: PUT(int32_t);
  }
}

enum { STRIP = 1024 };

/* Rows, a strip of channels at a time. */
static void integer_rows(void *env, int64_t begin, int64_t end) {
  const struct job *j = env;
  const struct integers *g = j->g;
  int32_t base[STRIP], sum[STRIP], one[STRIP];
  end = end * j->rows_per_part < g->rows ? end * j->rows_per_part : g->rows;
  begin *= j->rows_per_part;
  for (int64_t strip = 0; strip < g->channels; strip += STRIP) {
    int64_t n = g->channels - strip < STRIP ? g->channels - strip : STRIP;
#define FROM(s) \
  { (s).multiplies, (s).away, (s).to_zero, (s).zero + strip, (s).significand + strip, (s).left + strip, (s).right + strip }
    memcpy(base, g->base + strip, sizeof *base * (size_t)n);
    for (int i = 0; i < g->more_count; i++) add_row(j, g->more[i], strip, n, base, 0);
    for (int64_t row = begin; row < end; row++) {
      int64_t first = row * g->channels + strip;
      memcpy(sum, base, sizeof *sum * (size_t)n);
      for (int i = 0; i < g->term_count; i++) add_row(j, g->terms[i].memory, first, n, sum, g->terms[i].negative);
      if (g->has_scale) {
        struct channels s = FROM(g->scale);
        requantize(&s, n, sum);
      }
      for (int i = 0; i < g->scaled_count; i++) {
        struct channels s = FROM(g->scaled[i].scale);
        memset(one, 0, sizeof *one * (size_t)n);
        add_row(j, g->scaled[i].memory, first, n, one, 0);
        requantize(&s, n, one);
        for (int64_t c = 0; c < n; c++) sum[c] = (int32_t)((uint32_t)sum[c] + (uint32_t)one[c]);
      }
      if (g->offset != 0)
        for (int64_t c = 0; c < n; c++) sum[c] = (int32_t)((uint32_t)sum[c] + (uint32_t)g->offset);
      write_row(j, first, n, sum);
    }
  }
}
