/* Results in memory of the library's. */

struct owned {
  resat_results results;
  resat_array *arrays;
};

static void release(resat_results *results) {
  struct owned *o = (struct owned *)results;
  if (o == NULL) return;
  for (uint32_t i = 0; i < o->results.count; i++) {
    free((void *)(uintptr_t)o->arrays[i].data);
    free((void *)(uintptr_t)o->arrays[i].shape);
  }
  free(o->arrays);
  free(o);
}

/* So many arrays, of which nothing is known yet. */
static struct owned *results_of(uint32_t count) {
  struct owned *o = calloc(1, sizeof *o);
  if (o == NULL) return NULL;
  o->arrays = calloc(count > 0 ? count : 1, sizeof *o->arrays);
  if (o->arrays == NULL) {
    free(o);
    return NULL;
  }
  o->results.count = count;
  o->results.arrays = o->arrays;
  return o;
}

/* Memory for an array of that type and these extents. */
static int array_of(resat_array *a, const resat_tensor *type, const int64_t *shape, uint64_t bytes) {
  int64_t *own = malloc((type->rank > 0 ? type->rank : 1) * sizeof *own);
  void *data = memory_of(round_up(bytes));
  if (own == NULL || data == NULL) {
    free(own);
    free(data);
    return 0;
  }
  if (type->rank > 0) memcpy(own, shape, type->rank * sizeof *own);
  a->dtype = type->dtype;
  a->rank = type->rank;
  a->shape = own;
  a->bytes = bytes;
  a->data = data;
  return 1;
}
