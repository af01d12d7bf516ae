/* --- Plans --- */

/* A layout: extents and type, and how the library calls it. */
struct md {
  struct md *next; /* of the plan */
  int rank, dtype;
  dims_t dims;
  uint64_t words[MD_WORDS]; /* version 2 */
  void *handle;             /* version 3 */
};

enum where { INPUT, OUTPUT, ARENA, KEPT };

/* A tensor in a layout in memory. */
struct memory {
  struct md *md;
  enum where where;
  int at; /* the number of the input, output or buffer */
  int used; /* by a call */
  const unsigned char *kept;
};

struct value {
  int rank, dtype, held_count;
  dims_t dims;
  const unsigned char *data; /* of a constant */
  int *held;                 /* memories, the first being that in which it was made */
  /* Of an exact product: */
  int part_count, excess;
  int *parts;
  const int64_t *per_channel;
};

struct operation {
  int64_t kind;
  int64_t code, code_3; /* of an algorithm, or an axis */
  float alpha, beta;
  int64_t log;
  dims_t kernel, strides, dilation, before, after;
};

struct post {
  int64_t binary, code, code_3, value, full;
  float alpha, beta;
  struct md *md; /* of a binary one; NULL: added in place */
};

struct primitive {
  struct primitive *next; /* of the plan */
  void *description, *handle;
  int read_count;
  struct md **reads, *makes, *scratch;
  size_t scratch_bytes;
};

/* A requantization: a number for each channel. */
struct channels {
  int multiplies, away;
  int32_t to_zero;
  const int64_t *zero, *significand, *left, *right;
};

struct term {
  int memory, negative;
  struct channels scale;
};

/* Integer arithmetic that the library would not do exactly. */
struct integers {
  struct term *terms, *scaled;
  int term_count, scaled_count, more_count, has_scale, out;
  int *more;
  int32_t *base;
  struct channels scale;
  int32_t offset, low, high;
  int64_t rows, channels;
};

struct action {
  struct primitive *primitive;
  int arg_count;
  int *args, *memories;
  int scratch; /* a buffer, or -1 */
  struct integers *integers;
};

struct buffer {
  size_t bytes, offset;
  int first, last;
};

struct instance {
  struct instance *next;
  void *stream;
  void **objects, **scratch;
  unsigned char **at;
  exec_arg **args;
  unsigned char *own;
};

struct plan {
  int threads, value_count, memory_count, buffer_count, action_count, output_count, input_count;
  struct value *values;
  struct memory *memories;
  struct buffer *buffers;
  struct action *actions;
  struct md *mds;
  struct primitive *primitives;
  const int64_t *inputs, *outputs, *tape;
  size_t arena;
  struct instance *idle;
  void **blocks; /* all memory of the plan */
  int block_count;
  char error[512];
  jmp_buf failed;
};

#define FAIL(p, ...) (snprintf((p)->error, sizeof(p)->error, __VA_ARGS__), longjmp((p)->failed, 1))
#define CHECK(p, what, status) \
  do { \
    int is_ = (status); \
    if (is_ != 0) FAIL(p, "oneDNN %d.%d.%d fails at %s: %s", lib.version.major, lib.version.minor, lib.version.patch, what, meaning(is_)); \
  } while (0)

/* Memory that lives as long as the plan, filled with zeros. */
static void *block(struct plan *p, size_t bytes) {
  void *made = NULL, **all;
  if (posix_memalign(&made, ALIGN, bytes > 0 ? bytes : 1) != 0) FAIL(p, "no memory for %zu bytes", bytes);
  memset(made, 0, bytes);
  if ((p->block_count & (p->block_count - 1)) == 0) {
    all = realloc(p->blocks, sizeof *all * (p->block_count > 0 ? 2 * (size_t)p->block_count : 1));
    if (all == NULL) {
      free(made);
      FAIL(p, "no memory");
    }
    p->blocks = all;
  }
  p->blocks[p->block_count++] = made;
  return made;
}

/* Frees the latest memory of a plan but for what came after it. */
static void release(struct plan *p, void *made) {
  int i = p->block_count - 1;
  while (p->blocks[i] != made) i--;
  free(made);
  p->blocks[i] = NULL;
}

/* Room for one more in an array of `count`. */
static void *more(struct plan *p, void *array, int count, size_t each) {
  void *grown;
  if ((count & (count - 1)) != 0) return array;
  grown = block(p, each * (count > 0 ? 2 * (size_t)count : 1));
  if (count > 0) memcpy(grown, array, each * (size_t)count);
  return grown;
}

static int64_t next(struct plan *p) { return *p->tape++; }

static float real(struct plan *p) {
  uint32_t bits = (uint32_t)next(p);
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static const int64_t *list(struct plan *p, int64_t count) {
  const int64_t *at = p->tape;
  p->tape += count;
  return at;
}

static size_t elements(const struct value *v) {
  size_t n = 1;
  for (int k = 0; k < v->rank; k++) n *= (size_t)v->dims[k];
  return n;
}

/* --- Layouts --- */

static const void *pointer(const struct md *md) {
  if (md == NULL) return NULL;
  return lib.is_3 ? md->handle : (const void *)md->words;
}

static size_t bytes_of(const struct md *md) { return lib.c.memory_desc_get_size(pointer(md)); }

static int same(const struct md *a, const struct md *b) { return lib.c.memory_desc_equal(pointer(a), pointer(b)); }

static struct md *new_md(struct plan *p, int rank, const int64_t *dims, int dtype) {
  struct md *md = block(p, sizeof *md);
  md->next = p->mds;
  p->mds = md;
  md->rank = rank;
  md->dtype = dtype;
  if (rank > 0) memcpy(md->dims, dims, sizeof *dims * (size_t)rank);
  return md;
}

/* Where the library writes a layout. */
static void *target(struct md *md) { return lib.is_3 ? (void *)&md->handle : (void *)md->words; }

static struct md *strided(struct plan *p, const struct value *v, const int *order) {
  struct md *md = new_md(p, v->rank, v->dims, v->dtype);
  dims_t strides = {0};
  int64_t step = 1;
  for (int k = v->rank - 1; k >= 0; k--) {
    strides[order[k]] = step;
    step *= v->dims[order[k]];
  }
  CHECK(p, "a layout",
        lib.is_3 ? lib.v3.memory_desc_create_with_strides(&md->handle, v->rank, v->dims, v->dtype, strides)
                 : lib.v2.memory_desc_init_by_strides(md->words, v->rank, v->dims, v->dtype, strides));
  return md;
}

static struct md *plain(struct plan *p, const struct value *v) {
  int order[MAX_RANK];
  for (int k = 0; k < MAX_RANK; k++) order[k] = k;
  return strided(p, v, order);
}

/* With the elements along `axis` next to each other. */
static struct md *channels_last(struct plan *p, const struct value *v, int axis) {
  int order[MAX_RANK], n = 0;
  for (int k = 0; k < v->rank; k++)
    if (k != axis) order[n++] = k;
  order[n] = axis;
  return strided(p, v, order);
}

/* Whatever a primitive likes best. */
static struct md *any(struct plan *p, const struct value *v) {
  struct md *md = new_md(p, v->rank, v->dims, v->dtype);
  CHECK(p, "a layout",
        lib.is_3 ? lib.v3.memory_desc_create_with_tag(&md->handle, v->rank, v->dims, v->dtype, 1)
                 : lib.v2.memory_desc_init_by_tag(md->words, v->rank, v->dims, v->dtype, 1));
  return md;
}

static struct md *queried(struct plan *p, void *description, int what, int index, const struct md *like) {
  const void *found_md = lib.c.primitive_desc_query_md(description, what, index);
  struct md *md;
  if (found_md == NULL) return NULL;
  md = like != NULL ? new_md(p, like->rank, like->dims, like->dtype) : new_md(p, 0, NULL, U8);
  if (lib.is_3)
    CHECK(p, "a layout", lib.v3.memory_desc_clone(&md->handle, found_md));
  else
    memcpy(md->words, found_md, sizeof md->words);
  return md;
}

/* --- Primitives --- */

enum { CONVOLUTION, DECONVOLUTION, INNER_PRODUCT, MATMUL, POOL, ELTWISE, BINARY, SOFTMAX, CONCAT, CONVERT };
static const char *const kind_names[] = {"a convolution", "a transposed convolution", "an inner product", "a product of matrices",
                                         "a pool", "an elementwise function", "a binary function", "a softmax",
                                         "a concatenation", "a copy between layouts"};

static int describe(void **pd, const struct operation *o, int n, struct md **reads, const struct md *makes, void *attr) {
  const void *a = pointer(reads[0]), *b = n > 1 ? pointer(reads[1]) : NULL, *c = n > 2 ? pointer(reads[2]) : NULL;
  const void *dst = pointer(makes);
  void *e = lib.engine;
  uint64_t op[OPERATION_WORDS] = {0};
  int status;
  if (o->kind == CONVERT) return lib.c.reorder_primitive_desc_create(pd, a, e, dst, e, attr);
  if (o->kind == CONCAT) {
    if (lib.is_3) {
      const void **all = malloc(sizeof *all * (size_t)n);
      if (all == NULL) return 1;
      for (int i = 0; i < n; i++) all[i] = pointer(reads[i]);
      status = lib.v3.concat_primitive_desc_create(pd, e, dst, n, (int)o->code, all, attr);
      free(all);
    } else {
      uint64_t(*all)[MD_WORDS] = malloc(sizeof *all * (size_t)n);
      if (all == NULL) return 1;
      for (int i = 0; i < n; i++) memcpy(all[i], reads[i]->words, sizeof *all);
      status = lib.v2.concat_primitive_desc_create(pd, dst, n, (int)o->code, all, attr, e);
      free(all);
    }
    return status;
  }
  if (lib.is_3) switch (o->kind) {
      case CONVOLUTION:
        return lib.v3.convolution_forward_primitive_desc_create(pd, e, INFERENCE, 1, a, b, c, dst, o->strides, o->dilation,
                                                                o->before, o->after, attr);
      case DECONVOLUTION:
        return lib.v3.deconvolution_forward_primitive_desc_create(pd, e, INFERENCE, 10, a, b, c, dst, o->strides, o->dilation,
                                                                  o->before, o->after, attr);
      case INNER_PRODUCT: return lib.v3.inner_product_forward_primitive_desc_create(pd, e, INFERENCE, a, b, c, dst, attr);
      case MATMUL: return lib.v3.matmul_primitive_desc_create(pd, e, a, b, c, dst, attr);
      case POOL:
        return lib.v3.pooling_forward_primitive_desc_create(pd, e, INFERENCE, (int)o->code, a, dst, o->strides, o->kernel,
                                                            o->dilation, o->before, o->after, attr);
      case ELTWISE:
        return lib.v3.eltwise_forward_primitive_desc_create(pd, e, INFERENCE, (int)o->code_3, a, dst, o->alpha, o->beta, attr);
      case BINARY: return lib.v3.binary_primitive_desc_create(pd, e, (int)o->code, a, b, dst, attr);
      default: return lib.v3.softmax_forward_primitive_desc_create(pd, e, INFERENCE, (int)o->log, a, dst, (int)o->code, attr);
    }
  switch (o->kind) {
    case CONVOLUTION:
      status = lib.v2.dilated_convolution_forward_desc_init(op, INFERENCE, 1, a, b, c, dst, o->strides, o->dilation, o->before,
                                                            o->after);
      break;
    case DECONVOLUTION:
      status = lib.v2.dilated_deconvolution_forward_desc_init(op, INFERENCE, 10, a, b, c, dst, o->strides, o->dilation,
                                                              o->before, o->after);
      break;
    case INNER_PRODUCT: status = lib.v2.inner_product_forward_desc_init(op, INFERENCE, a, b, c, dst); break;
    case MATMUL: status = lib.v2.matmul_desc_init(op, a, b, c, dst); break;
    case POOL:
      status = lib.v2.pooling_v2_forward_desc_init(op, INFERENCE, (int)o->code, a, dst, o->strides, o->kernel, o->dilation,
                                                   o->before, o->after);
      break;
    case ELTWISE: status = lib.v2.eltwise_forward_desc_init(op, INFERENCE, (int)o->code, a, o->alpha, o->beta); break;
    case BINARY: status = lib.v2.binary_desc_init(op, (int)o->code, a, b, dst); break;
    default: status = lib.v2.softmax_v2_forward_desc_init(op, INFERENCE, (int)o->log, a, dst, (int)o->code);
  }
  return status != 0 ? status : lib.v2.primitive_desc_create(pd, op, attr, e, NULL);
}

/* Attributes: scratchpads are the caller's; what follows the primitive. */
static int attributes(void **attr, const struct post *posts, int n) {
  void *all;
  int status = lib.c.primitive_attr_create(attr);
  if (status == 0) status = lib.c.primitive_attr_set_scratchpad_mode(*attr, 1);
  if (status != 0 || n == 0) return status;
  status = lib.c.post_ops_create(&all);
  for (int i = 0; i < n && status == 0; i++) {
    const struct post *q = &posts[i];
    if (!q->binary)
      status = lib.is_3 ? lib.v3.post_ops_append_eltwise(all, (int)q->code_3, q->alpha, q->beta)
                        : lib.v2.post_ops_append_eltwise(all, 1, (int)q->code, q->alpha, q->beta);
    else if (q->md == NULL)
      status = lib.is_3 ? lib.v3.post_ops_append_sum(all, 1, 0, 0) : lib.v2.post_ops_append_sum(all, 1);
    else
      status = lib.c.post_ops_append_binary(all, (int)q->code, pointer(q->md));
  }
  if (status == 0) status = lib.c.primitive_attr_set_post_ops(*attr, all);
  lib.c.post_ops_destroy(all);
  return status;
}

static struct primitive *primitive(struct plan *p, const struct operation *o, int n, struct md **reads, const struct md *makes,
                                   const struct post *posts, int post_count) {
  struct primitive *made = block(p, sizeof *made);
  void *attr = NULL;
  int status = attributes(&attr, posts, post_count);
  made->next = p->primitives;
  p->primitives = made;
  if (status == 0) status = describe(&made->description, o, n, reads, makes, attr);
  if (attr != NULL) lib.c.primitive_attr_destroy(attr);
  CHECK(p, kind_names[o->kind], status);
  made->read_count = n;
  made->reads = block(p, sizeof *made->reads * (size_t)n);
  for (int i = 0; i < n; i++) {
    int weight = o->kind <= MATMUL && i > 0;
    made->reads[i] = queried(p, made->description, weight ? QUERY_WEIGHTS : QUERY_SRC, weight ? i - 1 : i, reads[i]);
    if (made->reads[i] == NULL) made->reads[i] = reads[i];
  }
  made->makes = queried(p, made->description, QUERY_DST, 0, makes);
  if (made->makes == NULL) {
    made->makes = new_md(p, makes->rank, makes->dims, makes->dtype);
    memcpy(made->makes->words, makes->words, sizeof makes->words);
    if (lib.is_3) CHECK(p, "a layout", lib.v3.memory_desc_clone(&made->makes->handle, makes->handle));
  }
  made->scratch = queried(p, made->description, QUERY_SCRATCHPAD, 0, NULL);
  made->scratch_bytes = made->scratch != NULL ? bytes_of(made->scratch) : 0;
  CHECK(p, kind_names[o->kind], lib.c.primitive_create(&made->handle, made->description));
  return made;
}

static struct primitive *reorder(struct plan *p, struct md *from, struct md *to) {
  struct operation o = {0};
  o.kind = CONVERT;
  return primitive(p, &o, 1, &from, to, NULL, 0);
}
