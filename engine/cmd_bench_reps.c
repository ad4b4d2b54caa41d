#include <string.h>

#include "engine/cmd_bench.h"
#include "engine/cmd_common.h"

bench_spread bench_spread_of(const double *p50, int32_t n)
{
    double sorted[BENCH_REPS_MAX];
    CHECK(n >= 1 && n <= BENCH_REPS_MAX);
    memcpy(sorted, p50, (size_t)n * sizeof *p50);
    bench_sort(sorted, n);
    return (bench_spread){ bench_quantile(sorted, n, 0.5), sorted[0], sorted[n - 1] };
}

const char *bench_spread_word(const bench_spread *a, const bench_spread *control)
{
    return a->max < control->min ? "faster" : a->min > control->max ? "slower" : "overlap";
}

static err_code print_json(json_t *j, err *e)
{
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

/* One arm at one shape. us: [reps] */
static err_code print_row(const bench_plan *p, const char *arm, int32_t batch, int32_t n_out, const double *us, err *e)
{
    const bench_spread s = bench_spread_of(us, p->reps);
    if (p->json) {
        json_t *all = json_array();
        for (int32_t i = 0; i < p->reps; i++) fmt_json_add(&all, json_real(us[i]));
        return print_json(json_pack("{s:i, s:s, s:i, s:i, s:i, s:o, s:f, s:f, s:f}", "schema", CMD_SCHEMA, "arm", arm, "b",
                                    (int)batch, "n_out", (int)n_out, "reps", (int)p->reps, "rep_p50_us", all, "median_us",
                                    s.median, "min_us", s.min, "max_us", s.max),
                          e);
    }
    printf("%-20s %d %5d %9.1f %9.1f %9.1f  ", arm, batch, n_out, s.median, s.min, s.max);
    for (int32_t i = 0; i < p->reps; i++) printf(" %.1f", us[i]);
    printf("\n");
    return ERR_OK;
}

static err_code print_against(const bench_plan *p, const char *const arm[2], int32_t batch, int32_t n_out,
                              const double *control_us, const double *us, err *e)
{
    const bench_spread c = bench_spread_of(control_us, p->reps), s = bench_spread_of(us, p->reps);
    const char *word = bench_spread_word(&s, &c);
    if (p->json)
        return print_json(json_pack("{s:i, s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:s}", "schema", CMD_SCHEMA, "arm", arm[1],
                                    "control", arm[0], "b", (int)batch, "n_out", (int)n_out, "ratio", s.median / c.median,
                                    "slowest_us", s.max, "control_fastest_us", c.min, "verdict", word),
                          e);
    printf("%-20s %d %5d %7.3f %9.1f %9.1f  %s\n", arm[1], batch, n_out, s.median / c.median, s.max, c.min, word);
    return ERR_OK;
}

err_code bench_report(const bench_plan *p, const char *const *arm, int32_t n_arms, const double *p50, err *e)
{
    const int32_t n_shapes = p->batches.n * p->n_outs.n;
    if (!p->json)
        printf("p50 of each of %d repetitions, in us\n%-20s b n_out %9s %9s %9s   each\n", p->reps, "arm", "median", "min",
               "max");
    for (int32_t a = 0; a < n_arms; a++)
        for (int32_t i = 0; i < n_shapes; i++)
            TRY(print_row(p, arm[a], p->batches.item[i / p->n_outs.n], p->n_outs.item[i % p->n_outs.n],
                          p50 + ((int64_t)a * n_shapes + i) * p->reps, e));
    if (n_arms < 2) return ERR_OK;
    if (!p->json)
        printf("against %s: the ratio of medians; faster: the slowest repetition lies below the control's fastest\n"
               "%-20s b n_out %7s %9s %9s\n", arm[0], "arm", "ratio", "slowest", "control");
    for (int32_t a = 1; a < n_arms; a++)
        for (int32_t i = 0; i < n_shapes; i++)
            TRY(print_against(p, (const char *const[]){ arm[0], arm[a] }, p->batches.item[i / p->n_outs.n],
                              p->n_outs.item[i % p->n_outs.n], p50 + (int64_t)i * p->reps,
                              p50 + ((int64_t)a * n_shapes + i) * p->reps, e));
    return ERR_OK;
}
