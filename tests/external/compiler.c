/* A compiler for resat: it writes C for chains of elementwise operators on float32, and misbehaves where it is told to by
   the environment variable EXT_FAULT, of which tests make use. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "resat_compiler.h"

static int fault(const char *name) {
  const char *wanted = getenv("EXT_FAULT");
  return wanted && strcmp(wanted, name) == 0;
}

uint32_t resat_compiler_abi(void) { return fault("abi") ? 99 : RESAT_COMPILER_ABI; }
const char *resat_compiler_name(void) { return fault("name") ? NULL : fault("utf8") ? "\xff" : "vendor"; }

/* How an operator is written; %s are its arguments. */
static const struct { const char *op, *text; } OPS[] = {
    {"add", "%s + %s"}, {"multiply", "%s * %s"}, {"nn.relu", "(%s > 0 ? %s : 0)"}, {"negative", "-%s"},
};

static const char *text_of(const char *op) {
  for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++)
    if (strcmp(OPS[i].op, op) == 0) return OPS[i].text;
  return NULL;
}

static int64_t elements(const resat_type *t) {
  int64_t n = 1;
  for (uint32_t i = 0; i < t->rank; i++) n *= t->shape[i];
  return n;
}

static int same(const resat_type *a, const resat_type *b) {
  return strcmp(a->dtype, b->dtype) == 0 && a->rank == b->rank && memcmp(a->shape, b->shape, 8 * a->rank) == 0;
}

/* Calls of the operators above on arrays of one type: nothing is broadcast. */
int resat_compiler_supports(const resat_call *call) {
  if (fault("supports")) raise(SIGSEGV);
  if (!text_of(call->op) || call->result_count != 1 || strcmp(call->results[0].dtype, "float32") != 0) return 0;
  for (uint32_t i = 0; i < call->arg_count; i++)
    if (!same(&call->args[i], &call->results[0])) return 0;
  return elements(&call->results[0]) >= 0;
}

uint32_t resat_compiler_patterns(const resat_composite **out) {
  static const resat_composite ALL[] = {{"vendor.add_relu", "(nn.relu (add ?x ?y))"}};
  *out = ALL;
  return 1;
}

double resat_compiler_cost(const resat_region *region) {
  double seconds = 0;
  for (uint32_t i = 0; i < region->output_count; i++)
    seconds += 1e-9 * (double)elements(&region->values[region->outputs[i]].type);
  return seconds;
}

/* A function of the library itself: the first input, doubled. */
static void twice(const resat_context *context, void *const *args, void *workspace) {
  (void)context, (void)workspace;
  const float *x = args[0];
  float *y = args[1];
  for (int i = 0; i < 12; i++) y[i] = x[i] + x[i];
}

struct buffer { char *text; size_t size; };

int resat_compiler_compile(const resat_region *r, resat_compiled *out) {
  if (fault("crash")) raise(SIGSEGV);
  if (fault("abort")) abort();
  if (fault("exit")) exit(3);
  if (fault("hang")) for (;;) sleep(1);
  if (fault("refuse")) return out->error = "not today", 1;
  printf("compiling %s\n", r->symbol);
  if (fault("null")) return out->kind = RESAT_CODE_SOURCE, 0;
  if (fault("kind")) return out->kind = 77, 0;
  resat_type *outputs = calloc(r->output_count + 1, sizeof *outputs);
  for (uint32_t i = 0; i < r->output_count; i++) outputs[i] = r->values[r->outputs[i]].type;
  out->outputs = outputs;
  out->output_count = r->output_count;
  static const int64_t OTHER[] = {7};
  if (fault("shape")) outputs[0].rank = 1, outputs[0].shape = OTHER;
  if (fault("dtype")) outputs[0].dtype = "int32";
  if (fault("few")) out->output_count--;
  if (fault("garbage")) {
    out->kind = RESAT_CODE_OBJECT;
    out->code = strdup("no object at all");
    out->code_bytes = 16;
    return 0;
  }
  if (getenv("EXT_FUNCTION")) {
    out->kind = RESAT_CODE_FUNCTION;
    out->function = twice;
    return 0;
  }
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  if (!f) return out->error = "no memory", 1;
  const char *symbol = fault("symbol") ? "other" : r->symbol;
  fprintf(f, "#include <stddef.h>\n%svoid %s(const void *ctx, void *const *args, void *workspace) {\n",
          fault("undefined") ? "void nowhere_to_be_found(void);\n" : "", symbol);
  if (fault("undefined")) fprintf(f, "  nowhere_to_be_found();\n");
  if (fault("code")) fprintf(f, "  *(volatile int *)0 = 0;\n");
  for (uint32_t i = 0; i < r->input_count; i++) fprintf(f, "  const float *v%u = args[%u];\n", i, i);
  for (uint32_t i = 0; i < r->output_count; i++)
    fprintf(f, "  float *o%u = args[%u];\n", i, r->input_count + i);
  /* All values have as many elements as the first output. */
  int64_t n = elements(&r->values[r->outputs[0]].type);
  if (fault("beyond")) n++;
  fprintf(f, "  for (long i = 0; i < %ld; i++) {\n", (long)n);
  for (uint32_t i = 0; i < r->input_count; i++) fprintf(f, "    float e%u = v%u[i];\n", i, i);
  for (uint32_t i = 0; i < r->node_count; i++) {
    const resat_node *node = &r->nodes[i];
    char a[16] = "", b[16] = "";
    if (node->arg_count > 0) snprintf(a, sizeof a, "e%u", node->args[0]);
    snprintf(b, sizeof b, "e%u", node->args[node->arg_count > 1 ? 1 : 0]);
    fprintf(f, "    float e%u = ", node->results[0]);
    fprintf(f, text_of(node->op), a, b);
    fprintf(f, ";\n");
  }
  for (uint32_t i = 0; i < r->output_count; i++)
    fprintf(f, "    o%u[i] = e%u%s;\n", i, r->outputs[i], fault("wrong") ? " + 1" : "");
  fprintf(f, "  }\n}\n");
  fclose(f);
  out->kind = RESAT_CODE_SOURCE;
  out->code = text;
  out->code_bytes = size;
  return 0;
}

void resat_compiler_free(resat_compiled *out) {
  free((void *)out->code);
  free((void *)out->outputs);
}
