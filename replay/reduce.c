#include "replay/reduce.h"

#include <inttypes.h>

#include "base/mem.h"
#include "capture/redact.h"
#include "engine/identity.h"
#include "replay/inject.h"
#include "replay/judge_chain.h"

/* A reduction under way. */
typedef struct job {
    const rpl_reduce_options *o;
    const fmt_tape *tape;
    const eng_weights *weights;
    rpl_judge *judge;
    rpl_chain *chain;
    rpl_bundle b;
    rpl_reduced *out;
    bool found, wrong_slot;
    int32_t *ids;      /* the op's first value as recorded, where it is integers: its weights are judged by it */
    char *calls;       /* the body of main, as far as it is */
    size_t calls_bytes;
    char first[400];   /* the worst illegal element, in words */
} job;

/* ---- the rows taken ---- */

static bool is_entrywise(const rpl_bundle *b)
{
    for (int32_t k = 0; k < b->group->n_ops; k++) {
        eng_kind kind = b->program->op[b->group->op[k]].kind;
        if (kind == ENG_OP_BLOCK_IDS || kind == ENG_OP_ATTENTION || kind == ENG_OP_MARKOV || kind == ENG_OP_CONFIDENCE)
            return true;
    }
    return false;
}

static err_code choose_rows(job *j, err *e)
{
    rpl_bundle *b = &j->b;
    const rpl_reduce_options *o = j->o;
    b->x = *eng_bench_extents(b->bench);
    const int32_t total = (int32_t)b->x.n[ENG_DIM_ROWS], block = b->config->block;
    int32_t first = o->last < 0 ? 0 : o->first, last = o->last < 0 ? total - 1 : o->last;
    if (last >= total || first > last)
        return err_set(e, ERR_ARG, "--rows %d-%d: the step has rows 0 to %d", first, last, total - 1);
    if (is_entrywise(b)) { /* whole blocks */
        b->entry = first / block;
        first = b->entry * block;
        last = last / block * block + block - 1;
        b->x.n[ENG_DIM_B] = (last + 1 - first) / block;
    }
    b->row = first;
    b->x.n[ENG_DIM_ROWS] = j->out->rows = last + 1 - first;
    j->out->rows_total = total;
    return ERR_OK;
}

/* Rows of the whole value that lie before those taken. */
static int64_t rows_before(const rpl_bundle *b, int32_t v)
{
    eng_dim dim = b->program->value[v].dim[0];
    return dim == ENG_DIM_ROWS ? b->row : dim == ENG_DIM_B ? b->entry : 0;
}

fmt_tensor rpl_bundle_slice(const rpl_bundle *b, int32_t v, const void *data)
{
    const eng_value *value = &b->program->value[v];
    int64_t shape[FMT_DIMS_MAX];
    eng_value_shape(b->program, v, &b->x, 0, 1, shape);
    int64_t row = shape[1] * shape[2] * (int64_t)fmt_dtype_bytes(value->dtype) * rows_before(b, v);
    return fmt_tensor_make(value->dtype, data ? (const uint8_t *)data + row : NULL, value->ndim, shape);
}

void rpl_bundle_name(const rpl_bundle *b, int32_t v, char c_name[48])
{
    snprintf(c_name, 48, "%s", b->program->value[v].name);
    for (char *p = c_name; *p; p++)
        if (*p == '.' || *p == '~') *p = '_';
}

/* ---- a value of the op ---- */

static const char *const RULES[] = { [RPL_SIGHT_KNOWN] = "BUNDLE_BITS", [RPL_SIGHT_SPAN] = "BUNDLE_SPAN",
                                     [RPL_SIGHT_CODES] = "BUNDLE_CODES", [RPL_SIGHT_NONE] = "BUNDLE_UNJUDGED" };

static err_code write_part(rpl_bundle *b, const char *name, const char *what, const fmt_tensor *t, err *e)
{
    char file[80];
    snprintf(file, sizeof file, "%s.%s", name, what);
    return rpl_bundle_array(b, file, t, e);
}

/* Where the elements may lie, [n] of the rows taken. */
static err_code write_spans(job *j, const rpl_forced_value *v, const fmt_tensor *like, int64_t first, err *e)
{
    const int64_t n = fmt_tensor_elems(&v->recorded), taken = fmt_tensor_elems(like);
    const krn_span *span;
    uint8_t *need = mem_alloc((size_t)n, 1);
    double *bound = mem_alloc((size_t)taken, 2 * sizeof *bound);
    err_code rc = need && bound ? ERR_OK : err_set(e, ERR_NOMEM, "reduce: no memory for the bounds of %s", v->name);
    if (rc == ERR_OK) memset(need, 1, (size_t)n);
    if (rc == ERR_OK) rc = rpl_chain_spans(j->chain, need, j->ids, &span, e);
    for (int64_t i = 0; i < taken && rc == ERR_OK; i++) {
        bound[i] = span[first + i].lo;
        bound[taken + i] = span[first + i].hi;
    }
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F64, bound, like->ndim, like->shape);
    if (rc == ERR_OK) rc = write_part(&j->b, v->name, "low", &t, e);
    t.data = bound + taken;
    if (rc == ERR_OK) rc = write_part(&j->b, v->name, "high", &t, e);
    free(need);
    free(bound);
    return rc;
}

/* Of integers: the other one that may stand where the judge has found a near-tie. */
static err_code write_allowed(job *j, const rpl_forced_value *v, const fmt_tensor *like, int64_t first,
                              const uint8_t *classes, err *e)
{
    const int64_t taken = fmt_tensor_elems(like);
    int32_t *allowed = mem_alloc((size_t)taken + 1, sizeof *allowed);
    if (!allowed) return err_set(e, ERR_NOMEM, "reduce: no memory");
    for (int64_t i = 0; i < taken; i++)
        allowed[i] = ((const int32_t *)(classes[first + i] == RPL_FLIP ? v->recorded.data : v->computed.data))[first + i];
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_I32, allowed, like->ndim, like->shape);
    err_code rc = write_part(&j->b, v->name, "allowed", &t, e);
    free(allowed);
    return rc;
}

static void count_classes(job *j, const rpl_verdict *verdict, const uint8_t *classes, const rpl_forced_value *v,
                          int64_t first, int64_t n)
{
    rpl_reduced *out = j->out;
    out->n += n;
    for (int64_t i = first; i < first + n; i++) {
        out->n_equal += classes[i] == RPL_EQUAL;
        out->n_flip += classes[i] == RPL_FLIP;
        out->n_illegal += classes[i] == RPL_ILLEGAL;
        out->n_unjudged += classes[i] == RPL_UNJUDGED;
    }
    if (verdict->worst < first || verdict->worst >= first + n || j->first[0]) return;
    snprintf(j->first, sizeof j->first, "Worst: %s, index %" PRId64 ": recorded %.9g, exact %.9g, may be %.3g off.\n",
             v->name, verdict->worst, verdict->got, verdict->exact, verdict->bound);
}

/* Data of one output, and the line that compares it. */
static err_code put_value(job *j, const rpl_forced_value *v, const uint8_t *classes, err *e)
{
    rpl_bundle *b = &j->b;
    rpl_sight sight;
    char c_name[48];
    fmt_tensor recorded = rpl_bundle_slice(b, v->value, v->recorded.data);
    fmt_tensor computed = rpl_bundle_slice(b, v->value, v->computed.data);
    const fmt_dtype dtype = recorded.dtype;
    const int64_t n = fmt_tensor_elems(&recorded), rows = recorded.shape[0];
    const int64_t first = rows ? rows_before(b, v->value) * (n / rows) : 0;
    const char *rule = "BUNDLE_ALLOWED";
    TRY(write_part(b, v->name, "expected", &recorded, e));
    TRY(write_part(b, v->name, "reference", &computed, e));
    if (dtype == FMT_DTYPE_I32) TRY(write_allowed(j, v, &recorded, first, classes, e));
    else {
        TRY(rpl_chain_start(j->chain, v, &sight, e));
        rule = RULES[sight];
        if (sight == RPL_SIGHT_SPAN || sight == RPL_SIGHT_CODES) TRY(write_spans(j, v, &recorded, first, e));
    }
    rpl_bundle_name(b, v->value, c_name);
    fprintf(b->test, "%s    differs |= bundle_compare(&(bundle_value){ \"%s\", BUNDLE_%s, %s, ",
            j->out->n_values ? "" : "\n", v->name,
            dtype == FMT_DTYPE_BF16 ? "BF16" : dtype == FMT_DTYPE_F32 ? "F32" : "I32", rule);
    fprintf(b->test, "%" PRId64 ", %" PRId64 ", %d, ", n, first, recorded.ndim);
    fprintf(b->test, "{ %" PRId64 ", %" PRId64 ", %" PRId64 " } }, %s);\n", v->recorded.shape[0], v->recorded.shape[1],
            v->recorded.shape[2], c_name);
    j->out->n_values++;
    return ERR_OK;
}

static err_code begin(job *j, const rpl_forced_value *v, err *e)
{
    rpl_bundle *b = &j->b;
    b->v = v;
    b->bench = v->bench;
    b->program = v->program;
    b->group = v->group;
    snprintf(j->out->op, sizeof j->out->op, "%s", v->op);
    rpl_group_text(v->program, v->group, j->out->ops);
    j->out->slot = v->slot;
    j->found = true;
    TRY(choose_rows(j, e));
    return rpl_bundle_calls(b, e);
}

/* Whether v is of the op that is wanted, by its name, by that of a value it writes, or by that of a hidden op before it. */
static bool is_wanted(const job *j, const rpl_forced_value *v)
{
    if (strcmp(v->op, j->o->op) == 0 || strcmp(v->name, j->o->op) == 0) return true;
    for (int32_t k = 0; v->group && k < v->group->n_out; k++)
        if (strcmp(v->program->value[v->group->out[k]].name, j->o->op) == 0) return true;
    for (int32_t k = 0; v->group && k < v->group->n_ops; k++)
        if (strcmp(v->program->op[v->group->op[k]].name, j->o->op) == 0) return true;
    return false;
}

/* Two places have the op: several slots, or two values that a hidden op is before. */
static err_code found_twice(const job *j, const rpl_forced_value *v, err *e)
{
    if (strcmp(v->op, j->out->op) == 0)
        return err_set(e, ERR_ARG, "%s: several slots have it in round %d, wanted --slot", v->op, v->round);
    return err_set(e, ERR_ARG, "%s: %s and %s both read it, wanted one of these", j->o->op, j->out->op, v->op);
}

/* rpl_forced_fn: looks for the op. */
static err_code look(void *ctx, const rpl_forced_value *v, err *e)
{
    job *j = ctx;
    rpl_verdict verdict;
    if (!is_wanted(j, v)) return ERR_OK;
    if (!v->group)
        return err_set(e, ERR_INPUT, "%s is copied rows alone: there is nothing to compute. sparktape show has it", v->op);
    if (j->o->slot != FMT_TAPE_NO_SLOT && v->slot != j->o->slot) {
        j->wrong_slot = true;
        return ERR_OK;
    }
    if (j->found && (v->slot != j->out->slot || v->group != j->b.group)) return found_twice(j, v, e);
    if (!j->found) TRY(begin(j, v, e));
    const int64_t n = fmt_tensor_elems(&v->recorded);
    uint8_t *classes = mem_alloc((size_t)n + 1, 1);
    if (!classes) return err_set(e, ERR_NOMEM, "reduce: no memory for %s", v->name);
    err_code rc = rpl_judge_value(j->judge, v, &verdict, classes, e);
    if (rc == ERR_OK) rc = put_value(j, v, classes, e);
    fmt_tensor taken = rpl_bundle_slice(&j->b, v->value, NULL);
    int64_t count = fmt_tensor_elems(&taken), rows = taken.shape[0];
    if (rc == ERR_OK)
        count_classes(j, &verdict, classes, v, rows ? rows_before(&j->b, v->value) * (count / rows) : 0, count);
    if (rc == ERR_OK && v->recorded.dtype == FMT_DTYPE_I32 && !j->ids) {
        j->ids = mem_alloc((size_t)n + 1, sizeof *j->ids);
        if (j->ids) memcpy(j->ids, v->recorded.data, (size_t)n * sizeof *j->ids);
        else rc = err_set(e, ERR_NOMEM, "reduce: no memory");
    }
    free(classes);
    return rc;
}

/* ---- the other files ---- */

static const char MAKEFILE[] = "# The bits must be those of the reference: no fused multiply-adds, no reordering.\n"
                               "CC = cc\n"
                               "CFLAGS = -std=c11 -O1 -ffp-contract=off -I.\n\n"
                               "check: test\n\t./test\n\n"
                               "test: test.c bundle.h kernels/*.c kernels/*.h formats/*.c replay/*.c data\n"
                               "\t$(CC) $(CFLAGS) -o $@ test.c kernels/*.c formats/*.c replay/*.c -lm\n";

static err_code write_test(job *j, err *e)
{
    rpl_bundle *b = &j->b;
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return err_set(e, ERR_NOMEM, "reduce: no memory");
    fprintf(f, "/* %s of round %d: %s, on the inputs that were recorded. See README.md. */\n#include \"bundle.h\"\n\n"
            "int main(void)\n{\n    int differs = 0;\n%s    return differs;\n}\n", j->out->op, j->o->round, j->out->ops,
            j->calls);
    if (fclose(f) != 0 || !text) {
        free(text);
        return err_set(e, ERR_NOMEM, "reduce: no memory");
    }
    err_code rc = rpl_bundle_text(b, "test.c", text, e);
    free(text);
    return rc;
}

static const char *word_of(const json_t *identity, const char *key)
{
    const json_t *v = json_object_get(identity, key);
    if (json_is_object(v)) v = json_object_get(v, "name");
    return json_is_string(v) ? json_string_value(v) : "unknown";
}

static err_code write_readme(job *j, err *e)
{
    const json_t *identity = json_object_get(fmt_tape_head(j->tape), "identity");
    const rpl_reduced *r = j->out;
    char *text = NULL, slot[32] = "", planted[RPL_INJECTED_TEXT];
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return err_set(e, ERR_NOMEM, "reduce: no memory");
    const char *injected = rpl_injected(identity, planted);
    if (r->slot != FMT_TAPE_NO_SLOT) snprintf(slot, sizeof slot, " slot %d", r->slot);
    fprintf(f, "# %s, round %d%s\n\n", r->op, j->o->round, slot);
    fprintf(f, "One op of a recorded run of the DSpark draft engine, with all that it read: `%s`.\n\n", r->ops);
    fprintf(f, "    make            # or: cc -std=c11 -O1 -ffp-contract=off -I. -o test test.c kernels/*.c formats/*.c "
            "replay/*.c -lm && ./test\n\n");
    fputs("The test makes the op's values again, in exact products and float64 sums (with EXL3 weights: f32 sums over the\n"
          "fp16 rows of kernels/exl3.h), and compares them with the recorded ones. It says for each value whether they\n"
          "are the same, the same but for the order of f32 sums, or differ, and at which index. Exit: 0 or 1. To try\n"
          "another implementation, put its result (same shape and type) in the place of data/NAME.expected.npy.\n\n", f);
    fprintf(f, "When this was made: %" PRId64 " elements; %" PRId64 " equal, %" PRId64 " within their bounds, %" PRId64
            " illegal, %" PRId64 " not judged.\n%s\n", r->n, r->n_equal, r->n_flip, r->n_illegal, r->n_unjudged, j->first);
    fprintf(f, "Rows %d to %d of %d of the step. Recorded by arm %s on %s, acc %s, combine %s; checkpoint %s.\n", j->b.row,
            j->b.row + r->rows - 1, r->rows_total, word_of(identity, "arm"), word_of(identity, "backend"),
            word_of(identity, "acc"), word_of(identity, "combine"), word_of(identity, "checkpoint"));
    if (injected) fprintf(f, "The run had a planted fault: %s.\n", injected);
    fprintf(f, "\n| file | |\n|---|---|\n| test.c | the calls |\n| bundle.h | loading and comparing |\n"
            "| kernels, formats, base, replay | the reference of each kernel with its contract, the judge of bounds |\n"
            "| data/*.npy | inputs, weights (codes and scales, or EXL3's tiles, suh and svh), and of each value expected, "
            "reference, low and high. bf16 as its bits |\n\nMade by sparktape %s.\n", eng_build());
    if (fclose(f) != 0 || !text) {
        free(text);
        return err_set(e, ERR_NOMEM, "reduce: no memory");
    }
    err_code rc = rpl_bundle_text(&j->b, "README.md", text, e);
    free(text);
    return rc;
}

/* ---- all of it ---- */

static err_code not_found(const job *j, int32_t n_skipped, err *e)
{
    const rpl_reduce_options *o = j->o;
    if (j->wrong_slot)
        return err_set(e, ERR_INPUT, "%s: round %d has no %s of slot %d", fmt_tape_path(j->tape), o->round, o->op, o->slot);
    return err_set(e, ERR_INPUT, "%s: round %d: found no op %s whose inputs are recorded, wanted a value that sparktape "
                   "ls lists, or an op of sparktape plan%s", fmt_tape_path(j->tape), o->round, o->op,
                   n_skipped ? " (some values there lack their inputs)" : "");
}

static err_code run_round(job *j, err *e)
{
    rpl_forced *f;
    eng_options mirror64;
    int32_t i = 0, n_skipped = 0;
    const json_t *identity = json_object_get(fmt_tape_head(j->tape), "identity");
    const json_int_t tp = json_integer_value(json_object_get(identity, "tp"));
    TRY(rpl_forced_mirror64(j->tape, tp > 1 && tp <= ENG_RANKS_MAX ? (int32_t)tp : 1, 0, &mirror64, e));
    const char *combine = json_string_value(json_object_get(identity, "combine"));
    if (combine && strcmp(combine, "fused") == 0) mirror64.combine = ENG_COMBINE_FUSED;
    j->b.exl3_acc = mirror64.exl3_acc;
    TRY(rpl_forced_open(j->tape, j->weights, &mirror64, &f, e));
    while (i < rpl_forced_rounds(f) && rpl_forced_round_number(f, i) != j->o->round) i++;
    err_code rc = ERR_OK;
    if (i == rpl_forced_rounds(f))
        rc = err_set(e, ERR_INPUT, "%s: round %d is not on the tape", fmt_tape_path(j->tape), j->o->round);
    if (rc == ERR_OK) rc = rpl_forced_round(f, i, look, j, &n_skipped, e);
    if (rc == ERR_OK && !j->found) rc = not_found(j, n_skipped, e);
    rpl_forced_close(f);
    return rc;
}

static err_code write_all(job *j, err *e)
{
    rpl_bundle *b = &j->b;
    TRY(run_round(j, e));
    if (fclose(b->test) != 0 || !j->calls) {
        b->test = NULL;
        return err_set(e, ERR_NOMEM, "reduce: no memory");
    }
    b->test = NULL;
    TRY(write_test(j, e));
    TRY(rpl_bundle_text(b, "Makefile", MAKEFILE, e));
    TRY(write_readme(j, e));
    TRY(rpl_bundle_sources(b, e));
    j->out->bytes = b->bytes;
    return rpl_bundle_commit(b, j->o->folder, e);
}

err_code rpl_reduce(const fmt_tape *t, const eng_weights *w, const rpl_reduce_options *o, rpl_reduced *out, err *e)
{
    job j = { .o = o, .tape = t, .weights = w, .out = out, .b = { .config = eng_weights_config(w) } };
    *out = (rpl_reduced){ 0 };
    if (cap_redact_key_of(t))
        return err_set(e, ERR_INPUT, "%s: is redacted, wanted a tape whose tokens can be run", fmt_tape_path(t));
    TRY(rpl_bundle_open(&j.b, o->folder, e));
    err_code rc = rpl_judge_open(w, RPL_BOUND_DEFAULT, &j.judge, e);
    if (rc == ERR_OK) rc = rpl_chain_open(w, KRN_RULE_PARITY, &j.chain, e);
    j.b.test = open_memstream(&j.calls, &j.calls_bytes);
    if (rc == ERR_OK && !j.b.test) rc = err_set(e, ERR_NOMEM, "reduce: no memory");
    if (rc == ERR_OK) rc = write_all(&j, e);
    if (rc != ERR_OK) rpl_bundle_remove(&j.b);
    if (j.b.test) fclose(j.b.test);
    rpl_chain_close(j.chain);
    rpl_judge_close(j.judge);
    rpl_bundle_fini(&j.b);
    free(j.calls);
    free(j.ids);
    return rc;
}
