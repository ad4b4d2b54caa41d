#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/cmd_bench.h"
#include "engine/cmd_common.h"

enum { WAYS_MAX = 1 + ENG_STAGES_MAX }; /* tables that are measured in turn */

static eng_variant other(eng_variant v) { return v == ENG_VARIANT_FUSED ? ENG_VARIANT_SEPARATE : ENG_VARIANT_FUSED; }

/* Every way in every repetition, A B C A B C: spread of way w, batch i to out[w][i]. */
static err_code measure(const bench_tuning *t, const eng_dispatch *way, int32_t n_ways,
                        bench_spread (*out)[BENCH_LIST_MAX], err *e)
{
    double us[BENCH_LIST_MAX];
    double *all = mem_alloc((size_t)(n_ways * t->batches.n * t->reps), sizeof *all); /* [way][batch][rep] */
    err_code rc = all ? ERR_OK : err_set(e, ERR_NOMEM, "bench: no memory");
    for (int32_t rep = 0; rep < t->reps && rc == ERR_OK; rep++)
        for (int32_t w = 0; w < n_ways && rc == ERR_OK; w++) {
            rc = t->measure(t->ctx, &way[w], us, e);
            for (int32_t i = 0; i < t->batches.n && rc == ERR_OK; i++) all[(w * t->batches.n + i) * t->reps + rep] = us[i];
        }
    for (int32_t w = 0; w < n_ways && rc == ERR_OK; w++)
        for (int32_t i = 0; i < t->batches.n; i++)
            out[w][i] = bench_spread_of(all + (w * t->batches.n + i) * t->reps, t->reps);
    free(all);
    return rc;
}

static int32_t rows_of(const bench_tuning *t, int32_t batch) { return t->batches.item[batch] * t->block; }

static void choose_base(const bench_tuning *t, const bench_spread (*all)[BENCH_LIST_MAX], bench_tuned *out)
{
    const eng_variant plain = (eng_variant)ENG_VARIANT_DEFAULT, rival = other(plain);
    for (int32_t i = 0; i < t->batches.n; i++) {
        out->all[i][plain] = all[0][i];
        out->all[i][rival] = all[1][i];
        out->base[i] = strcmp(bench_spread_word(&all[1][i], &all[0][i]), "faster") == 0 ? rival : plain;
    }
}

static void choose_stages(const bench_tuning *t, const bench_spread (*found)[BENCH_LIST_MAX], bench_tuned *out)
{
    for (int32_t s = 0; s < t->n_stages; s++)
        for (int32_t i = 0; i < t->batches.n; i++) {
            const eng_variant base = out->base[i], rival = other(base);
            out->stage[s][i][base] = found[0][i];
            out->stage[s][i][rival] = found[1 + s][i];
            out->chosen[s][i] = strcmp(bench_spread_word(&found[1 + s][i], &found[0][i]), "faster") == 0 ? rival : base;
        }
}

err_code bench_tune(const bench_tuning *t, bench_tuned *out, err *e)
{
    const eng_variant plain = (eng_variant)ENG_VARIANT_DEFAULT;
    bench_spread found[WAYS_MAX][BENCH_LIST_MAX];
    eng_dispatch way[WAYS_MAX] = { eng_dispatch_all(plain), eng_dispatch_all(other(plain)) };
    *out = (bench_tuned){ 0 };
    TRY(measure(t, way, 2, found, e));
    choose_base(t, found, out);
    for (int32_t w = 0; w <= t->n_stages; w++) {
        way[w] = eng_dispatch_default();
        for (int32_t s = 0; s < t->n_stages; s++)
            for (int32_t i = 0; i < t->batches.n; i++)
                eng_dispatch_set(&way[w], s, rows_of(t, i), s == w - 1 ? other(out->base[i]) : out->base[i]);
    }
    TRY(measure(t, way, 1 + t->n_stages, found, e));
    choose_stages(t, found, out);
    return ERR_OK;
}

/* ---- with engines ---- */

typedef struct subject {
    const eng_weights *weights;
    const eng_options *options;
    const bench_plan *plan;
    progress bar;
} subject;

static err_code sample_all(bench *b, double *us, err *e)
{
    const int32_t n_out = b->plan->n_outs.item[0];
    for (int32_t i = 0; i < b->plan->batches.n; i++) {
        const int32_t batch = b->plan->batches.item[i];
        TRY(bench_warm(b, batch, n_out, e));
        TRY(bench_sample(b, batch, n_out, e));
        us[i] = bench_quantile(b->us, b->plan->samples, 0.5);
    }
    return ERR_OK;
}

/* What it needs is captured by bench_warm; graphs of other shapes would only take time. */
static err_code measure_engine(void *ctx, const eng_dispatch *d, double *us, err *e)
{
    subject *s = ctx;
    bench_plan plan = *s->plan;
    plan.quiet = true; /* the bar has the line */
    bench b = { .weights = s->weights, .plan = &plan, .options = *s->options };
    b.options.dispatch = d;
    b.options.lazy = true;
    err_code rc = bench_open(&b, e);
    if (rc == ERR_OK) rc = sample_all(&b, us, e);
    bench_close(&b);
    progress_add(&s->bar, 1);
    return rc;
}

/* stage -1: all. chosen: what it is from here on. */
static err_code print_row(const subject *s, int32_t stage, int32_t rows, const bench_spread us[ENG_VARIANTS],
                          eng_variant chosen, err *e)
{
    const bench_spread *a = &us[ENG_VARIANT_SEPARATE], *b = &us[ENG_VARIANT_FUSED];
    if (!s->plan->json) {
        char name[12] = "all";
        if (stage >= 0) snprintf(name, sizeof name, "%d", stage);
        printf("%5s %5d %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f  %s\n", name, rows, a->median, a->min, a->max, b->median,
               b->min, b->max, eng_variant_name(chosen));
        return ERR_OK;
    }
    json_t *spread[ENG_VARIANTS];
    for (int v = 0; v < ENG_VARIANTS; v++)
        spread[v] = json_pack("{s:f, s:f, s:f}", "median_us", us[v].median, "min_us", us[v].min, "max_us", us[v].max);
    json_t *j = json_pack("{s:i, s:s, s:o, s:i, s:s, s:o, s:o}", "schema", CMD_SCHEMA, "arm", s->options->arm->name,
                          "stage", stage < 0 ? json_null() : json_integer(stage), "rows", (int)rows, "variant",
                          eng_variant_name(chosen), "separate", spread[ENG_VARIANT_SEPARATE], "fused",
                          spread[ENG_VARIANT_FUSED]);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

static err_code print_table(const subject *s, const bench_tuning *t, const bench_tuned *f, err *e)
{
    if (!s->plan->json)
        printf("%s, tp %d, %d repetitions of %d samples: a whole step in us, experts as separate launches or fused\n"
               "%5s %5s %9s %9s %9s %9s %9s %9s  chosen\n", s->options->arm->name, s->options->n_ranks, t->reps,
               s->plan->samples, "stage", "rows", "separate", "min", "max", "fused", "min", "max");
    for (int32_t i = 0; i < t->batches.n; i++) TRY(print_row(s, -1, rows_of(t, i), f->all[i], f->base[i], e));
    for (int32_t k = 0; k < t->n_stages; k++)
        for (int32_t i = 0; i < t->batches.n; i++)
            TRY(print_row(s, k, rows_of(t, i), f->stage[k][i], f->chosen[k][i], e));
    return ERR_OK;
}

static err_code write_table(const subject *s, const bench_tuning *t, const bench_tuned *f, const char *path, err *e)
{
    eng_dispatch_entry entry[ENG_STAGES_MAX * BENCH_LIST_MAX];
    int32_t n = 0;
    for (int32_t k = 0; k < t->n_stages; k++)
        for (int32_t i = 0; i < t->batches.n; i++) {
            eng_dispatch_entry *x = &entry[n++];
            *x = (eng_dispatch_entry){ k, rows_of(t, i), f->chosen[k][i], { 0 } };
            for (int v = 0; v < ENG_VARIANTS; v++) x->us[v] = f->stage[k][i][v].median;
        }
    TRY(eng_dispatch_write(path, eng_device_name(), s->options->arm->name, s->options->n_ranks, entry, n, e));
    if (!s->plan->json) {
        printf("%s: %d entries\n", path, n);
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i, s:s, s:i}", "schema", CMD_SCHEMA, "path", path, "entries", (int)n);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

err_code bench_tune_arm(const eng_weights *w, const eng_options *o, const bench_plan *p, const char *path, err *e)
{
    const eng_config *c = eng_weights_config(w);
    subject s = { .weights = w, .options = o, .plan = p };
    const bench_tuning t = { c->n_stages, c->block, p->reps, p->batches, measure_engine, &s };
    bench_tuned f;
    progress_begin(&s.bar, "tuning", (uint64_t)(p->reps * (ENG_VARIANTS + 1 + c->n_stages)), p->quiet);
    err_code rc = bench_tune(&t, &f, e);
    progress_end(&s.bar);
    if (rc != ERR_OK) return rc;
    TRY(print_table(&s, &t, &f, e));
    return write_table(&s, &t, &f, path, e);
}
