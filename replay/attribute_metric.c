#include "replay/attribute_metric.h"

#include <math.h>

#include "base/mem.h"
#include "capture/joined.h"
#include "replay/gates.h"
#include "replay/metrics.h"

/* A value of one step, kept. */
typedef struct kept { void *data; uint64_t bytes; } kept;

/* One round's part of the figures. */
typedef struct part { double sum, noise, floor; int64_t n; } part;

/* What a run is for. */
typedef enum aim { AIM_REFERENCE, AIM_EXACT, AIM_NOISE, AIM_MEASURE } aim;

struct rpl_meter {
    rpl_mix *m;
    rpl_metric metric;
    int32_t n_rounds;
    int32_t **tape_tokens, **tokens, **now; /* [rounds] each [batch, n_out]: of the tape (entries may be NULL), the
                                             * reference, the last run */
    int32_t *n_tokens;                      /* [rounds] */
    const int32_t **forced;                 /* [rounds] of kl; else NULL */
    part *part;                             /* [rounds] */
    kept *exact;                            /* mirror64's, in the order of the steps */
    size_t n_exact, exact_capacity;
    size_t *first_exact;                    /* [rounds] */
    aim aim;
    int32_t index;                          /* the round under way, -1: none yet */
    size_t call;                            /* which of exact comes next */
};

/* ---- names ---- */

err_code rpl_metric_parse(const char *text, rpl_metric *out, err *e)
{
    rpl_gates gates;
    rpl_gates_default(&gates);
    *out = (rpl_metric){ .kind = RPL_METRIC_DRAFTS };
    if (strcmp(text, "drafts") == 0) return ERR_OK;
    if (strcmp(text, "kl") == 0) {
        *out = (rpl_metric){ .kind = RPL_METRIC_KL, .limit = gates.limit[RPL_GATE_KL] };
        return ERR_OK;
    }
    size_t n = strlen(text);
    if (strncmp(text, "excess:", 7) != 0 || n < 8 || n - 7 >= sizeof out->value)
        return err_set(e, ERR_ARG, "--metric: found '%.64s', wanted drafts, kl or excess:VALUE", text);
    *out = (rpl_metric){ .kind = RPL_METRIC_EXCESS, .limit = gates.limit[RPL_GATE_ATTENTION] };
    memcpy(out->value, text + 7, n - 6);
    return ERR_OK;
}

const char *rpl_metric_text(const rpl_metric *m, char buf[64])
{
    static const char *const NAMES[] = { "drafts", "kl", "excess:" };
    snprintf(buf, 64, "%s%s", NAMES[m->kind], m->value);
    return buf;
}

/* ---- one step ---- */

static const char *name_of(const rpl_meter *k) { return k->metric.kind == RPL_METRIC_KL ? "head.biased" : k->metric.value; }

/* The next value of mirror64's run, kept, and found again by the others in the same order. */
static err_code keep_exact(rpl_meter *k, const fmt_tensor *t, err *e)
{
    void *array = k->exact;
    if (!mem_grow(&array, &k->exact_capacity, k->n_exact + 1, sizeof *k->exact))
        return err_set(e, ERR_NOMEM, "attribute: no memory");
    k->exact = array;
    kept *to = &k->exact[k->n_exact];
    *to = (kept){ mem_alloc((size_t)fmt_tensor_bytes(t) + 1, 1), fmt_tensor_bytes(t) };
    if (!to->data) return err_set(e, ERR_NOMEM, "attribute: no memory for %s", name_of(k));
    memcpy(to->data, t->data, (size_t)to->bytes);
    k->n_exact++;
    return ERR_OK;
}

/* Half a bf16 ulp in one element of head.norm moves a row of logits so far (replay/classify.h). */
static double kl_floor(const float *row, int64_t n, int32_t dim)
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)row[i] / (double)n;
    for (int64_t i = 0; i < n; i++) square += ((double)row[i] - mean) * ((double)row[i] - mean) / (double)n;
    return 0.5 * square * 0x1p-18 / (double)dim;
}

static void measure_kl(rpl_meter *k, const rpl_mix_step *s, const fmt_tensor *t, const float *exact)
{
    const int64_t n = t->shape[2], rows = (int64_t)s->batch * s->n_out;
    const float *got = t->data;
    part *to = &k->part[s->index];
    for (int64_t r = 0; r < rows; r++) {
        rpl_logits_row row;
        rpl_logits_row_of(got + r * n, exact + r * n, n, &row);
        double kl = isnan(row.kl) ? (double)INFINITY : row.kl;
        if (k->aim == AIM_NOISE) to->noise += kl;
        else to->sum += kl;
        if (k->aim == AIM_NOISE) to->floor += kl_floor(exact + r * n, n, rpl_mix_program(k->m, s->step)->config.dim);
    }
}

static void measure_excess(rpl_meter *k, const rpl_mix_step *s, const fmt_tensor *t, const void *exact)
{
    rpl_metrics m;
    const int64_t n = fmt_tensor_elems(t);
    part *to = &k->part[s->index];
    const double floor = (t->dtype == FMT_DTYPE_BF16 ? 0x1p-9 : 0x1p-25) / sqrt((double)n);
    rpl_metrics_of(t->dtype, t->data, exact, n, &m);
    double error = m.n_nan_a + m.n_inf_a == 0 ? m.rel_l2 : (double)INFINITY;
    if (k->aim == AIM_NOISE) to->noise += error * error;
    else to->sum += error * error;
    if (k->aim == AIM_NOISE) to->floor += floor * floor;
}

static void keep_tokens(const rpl_meter *k, const rpl_mix_step *s, int32_t **to)
{
    fmt_tensor t = rpl_mix_value(k->m, s, "drafts");
    k->n_tokens[s->index] = s->batch * s->n_out;
    memcpy(to[s->index], t.data, (size_t)k->n_tokens[s->index] * sizeof **to);
}

static err_code look(void *ctx, const rpl_mix_step *s, err *e)
{
    rpl_meter *k = ctx;
    if (s->step == ENG_STEP_DRAFT && k->aim == AIM_REFERENCE) keep_tokens(k, s, k->tokens);
    if (s->step == ENG_STEP_DRAFT && k->aim == AIM_MEASURE) keep_tokens(k, s, k->now);
    if (k->metric.kind == RPL_METRIC_DRAFTS || k->aim == AIM_REFERENCE) return ERR_OK;
    fmt_tensor t = rpl_mix_value(k->m, s, name_of(k));
    if (!t.data) return ERR_OK; /* a value of the other step */
    if (k->index != s->index && k->aim == AIM_EXACT) k->first_exact[s->index] = k->n_exact;
    if (k->index != s->index) k->call = k->first_exact[s->index];
    k->index = s->index;
    if (k->aim == AIM_EXACT) return keep_exact(k, &t, e);
    CHECK(k->call < k->n_exact && k->exact[k->call].bytes == fmt_tensor_bytes(&t)); /* the same rounds */
    const void *exact = k->exact[k->call++].data;
    if (k->metric.kind == RPL_METRIC_KL) measure_kl(k, s, &t, exact);
    else measure_excess(k, s, &t, exact);
    return ERR_OK;
}

/* ---- runs ---- */

static err_code run(rpl_meter *k, aim a, const int8_t *maker, const bool *wanted, bool *stopped, err *e)
{
    const rpl_mix_job job = { .maker = maker, .wanted = wanted, .fn = look, .ctx = k,
                              .tokens = a == AIM_REFERENCE ? NULL : k->forced };
    k->aim = a;
    k->index = -1;
    return rpl_mix_run(k->m, &job, stopped, e);
}

static err_code run_alone(rpl_meter *k, aim a, int8_t side, const bool *wanted, bool *stopped, err *e)
{
    int8_t *maker = mem_alloc((size_t)rpl_mix_units(k->m), sizeof *maker);
    if (!maker) return err_set(e, ERR_NOMEM, "attribute: no memory");
    memset(maker, side, (size_t)rpl_mix_units(k->m));
    err_code rc = run(k, a, maker, wanted, stopped, e);
    free(maker);
    return rc;
}

err_code rpl_meter_run(rpl_meter *k, const int8_t *maker, const bool *wanted, bool *stopped, err *e)
{
    for (int32_t i = 0; i < k->n_rounds; i++) k->part[i].sum = 0;
    return run(k, AIM_MEASURE, maker, wanted, stopped, e);
}

/* ---- figures ---- */

static int64_t differing(const int32_t *a, const int32_t *b, int32_t n)
{
    int64_t count = 0;
    for (int32_t i = 0; i < n; i++) count += a[i] != b[i];
    return count;
}

double rpl_meter_figure(const rpl_meter *k, const bool *wanted)
{
    part all = { 0 };
    int64_t tokens = 0;
    for (int32_t i = 0; i < k->n_rounds; i++) {
        if (!wanted[i]) continue;
        if (k->metric.kind == RPL_METRIC_DRAFTS) tokens += differing(k->now[i], k->tokens[i], k->n_tokens[i]);
        all.sum += k->part[i].sum;
        all.noise += k->part[i].noise;
        all.floor += k->part[i].floor;
    }
    if (k->metric.kind == RPL_METRIC_DRAFTS) return (double)tokens;
    double unit = all.noise > all.floor ? all.noise : all.floor;
    if (all.sum == 0) return 0; /* also where nothing was measured */
    return k->metric.kind == RPL_METRIC_KL ? all.sum / unit : sqrt(all.sum / unit);
}

bool rpl_meter_differs(const rpl_meter *k, double figure) { return !(figure <= k->metric.limit); }

int64_t rpl_meter_tape_tokens(const rpl_meter *k, const bool *wanted, bool reference, int64_t *n_compared)
{
    int64_t n = 0;
    *n_compared = 0;
    for (int32_t i = 0; i < k->n_rounds; i++) {
        if (!wanted[i] || !k->tape_tokens[i]) continue;
        *n_compared += k->n_tokens[i];
        n += differing(k->tape_tokens[i], reference ? k->tokens[i] : k->now[i], k->n_tokens[i]);
    }
    return n;
}

/* ---- open ---- */

/* The recorded drafts of a round, if they are what the round would draft. */
static err_code read_tokens(rpl_meter *k, const fmt_tape *t, int32_t i, cap_value *v, err *e)
{
    const eng_config *c = &rpl_mix_program(k->m, ENG_STEP_DRAFT)->config;
    const fmt_tape_key key = { rpl_mix_round_number(k->m, i), FMT_TAPE_NO_SLOT, 0, "drafts" };
    err why = { 0 };
    err_code rc = cap_joined_get(t, &key, v, &why);
    if (rc != ERR_OK && rc != ERR_INPUT) return e ? (*e = why, rc) : rc;
    if (rc != ERR_OK || v->tensor.dtype != FMT_DTYPE_I32 || fmt_tensor_elems(&v->tensor) != k->n_tokens[i]) return ERR_OK;
    const int32_t *token = v->tensor.data;
    for (int32_t n = 0; n < k->n_tokens[i]; n++)
        if (token[n] < 0 || token[n] >= c->vocab) return ERR_OK;
    k->tape_tokens[i] = mem_alloc((size_t)k->n_tokens[i] + 1, sizeof *token);
    if (!k->tape_tokens[i]) return err_set(e, ERR_NOMEM, "attribute: no memory");
    memcpy(k->tape_tokens[i], token, (size_t)k->n_tokens[i] * sizeof *token);
    return ERR_OK;
}

static err_code read_tape(rpl_meter *k, const fmt_tape *t, const bool *wanted, err *e)
{
    cap_value v = { 0 };
    err_code rc = ERR_OK;
    for (int32_t i = 0; i < k->n_rounds && rc == ERR_OK; i++)
        if (wanted[i] && k->n_tokens[i]) rc = read_tokens(k, t, i, &v, e);
    cap_value_fini(&v);
    if (k->metric.kind != RPL_METRIC_KL || rc != ERR_OK) return rc;
    k->forced = mem_alloc((size_t)k->n_rounds + 1, sizeof *k->forced);
    if (!k->forced) return err_set(e, ERR_NOMEM, "attribute: no memory");
    for (int32_t i = 0; i < k->n_rounds; i++) k->forced[i] = k->tape_tokens[i] ? k->tape_tokens[i] : k->tokens[i];
    return ERR_OK;
}

/* A value that a hidden op of that name shows in; NULL: there is no such op. */
static const char *value_after(const rpl_meter *k, const char *op)
{
    for (int32_t i = 0; i < rpl_mix_units(k->m); i++) {
        const rpl_unit *u = rpl_mix_unit(k->m, i);
        const eng_program *p = rpl_mix_program(k->m, u->step);
        for (int32_t n = 0; n < u->group->n_ops; n++)
            if (strcmp(p->op[u->group->op[n]].name, op) == 0) return p->value[u->group->out[0]].name;
    }
    return NULL;
}

static err_code check_value(const rpl_meter *k, err *e)
{
    for (int step = 0; step < 2 && k->metric.kind == RPL_METRIC_EXCESS; step++) {
        const eng_program *p = rpl_mix_program(k->m, (eng_step_kind)step);
        int32_t v = eng_program_find_value(p, k->metric.value);
        if (v < 0 || p->value[v].level > ENG_LEVEL_DEEP || p->value[v].state || p->value[v].producer < 0) continue;
        if (p->value[v].dtype == FMT_DTYPE_BF16 || p->value[v].dtype == FMT_DTYPE_F32) return ERR_OK;
    }
    if (k->metric.kind != RPL_METRIC_EXCESS) return ERR_OK;
    const char *after = value_after(k, k->metric.value);
    if (after && strcmp(after, k->metric.value) != 0)
        return err_set(e, ERR_ARG, "--metric excess:%s: found an op, wanted a value: it shows in %s", k->metric.value,
                       after);
    return err_set(e, ERR_ARG, "--metric excess:%s: found no such floating-point value, wanted one of sparktape plan, as "
                   "in excess:s0.attn_out", k->metric.value);
}

static err_code take_memory(rpl_meter *k, err *e)
{
    size_t n = (size_t)k->n_rounds + 1;
    int32_t ***const arrays[] = { &k->tape_tokens, &k->tokens, &k->now };
    bool fine = (k->n_tokens = mem_alloc(n, sizeof *k->n_tokens)) && (k->part = mem_alloc(n, sizeof *k->part)) &&
                (k->first_exact = mem_alloc(n, sizeof *k->first_exact));
    for (size_t a = 0; a < COUNT_OF(arrays) && fine; a++) {
        fine = (*arrays[a] = mem_alloc(n, sizeof **arrays[a])) != NULL;
        for (int32_t i = 0; i < k->n_rounds && fine && a > 0; i++)
            fine = ((*arrays[a])[i] = mem_alloc(ENG_BATCH_MAX * ENG_BLOCK_MAX, sizeof(int32_t))) != NULL;
    }
    return fine ? ERR_OK : err_set(e, ERR_NOMEM, "attribute: no memory for %d rounds", k->n_rounds);
}

static err_code open_all(rpl_meter *k, const fmt_tape *t, const bool *wanted, int8_t mirror, int8_t mirror64, bool *stopped,
                         err *e)
{
    TRY(check_value(k, e));
    TRY(take_memory(k, e));
    TRY(run_alone(k, AIM_REFERENCE, 0, wanted, stopped, e));
    if (!*stopped) TRY(read_tape(k, t, wanted, e));
    if (k->metric.kind == RPL_METRIC_DRAFTS || *stopped) return ERR_OK;
    TRY(run_alone(k, AIM_EXACT, mirror64, wanted, stopped, e));
    return *stopped ? ERR_OK : run_alone(k, AIM_NOISE, mirror, wanted, stopped, e);
}

err_code rpl_meter_open(const fmt_tape *t, rpl_mix *m, const rpl_metric *metric, const bool *wanted, int8_t mirror,
                        int8_t mirror64, rpl_meter **out, bool *stopped, err *e)
{
    *out = NULL;
    *stopped = false;
    rpl_meter *k = mem_alloc(1, sizeof *k);
    if (!k) return err_set(e, ERR_NOMEM, "attribute: no memory");
    *k = (rpl_meter){ .m = m, .metric = *metric, .n_rounds = rpl_mix_rounds(m) };
    err_code rc = open_all(k, t, wanted, mirror, mirror64, stopped, e);
    if (rc == ERR_OK && !*stopped) *out = k;
    else rpl_meter_close(k);
    return rc;
}

static void free_each(int32_t **tokens, int32_t n)
{
    for (int32_t i = 0; tokens && i < n; i++) free(tokens[i]);
    free(tokens);
}

void rpl_meter_close(rpl_meter *k)
{
    if (!k) return;
    free_each(k->tape_tokens, k->n_rounds);
    free_each(k->tokens, k->n_rounds);
    free_each(k->now, k->n_rounds);
    for (size_t i = 0; i < k->n_exact; i++) free(k->exact[i].data);
    free(k->exact);
    free(k->first_exact);
    free(k->n_tokens);
    free(k->forced);
    free(k->part);
    free(k);
}
