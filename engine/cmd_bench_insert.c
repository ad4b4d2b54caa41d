#include "base/clock.h"
#include "base/mem.h"
#include "engine/cmd_bench.h"
#include "engine/cmd_common.h"

enum { WARM = 20, SLOT = 0 };

/* The rows of one length, and where each insert goes: positions never end, as in a long request. */
typedef struct rows_of {
    int32_t n;
    const bf16 *taps; /* [n, n_taps * dim] */
    int32_t *pos;     /* [n] */
} rows_of;

static err_code insert_next(bench *b, const rows_of *r, err *e)
{
    int32_t first = eng_slot_last(b->engine, SLOT) + 1;
    for (int32_t i = 0; i < r->n; i++) r->pos[i] = first + i;
    TRY(eng_insert(b->engine, SLOT, r->taps, r->pos, r->n, NULL, e));
    b->pos[SLOT] = eng_slot_last(b->engine, SLOT);
    return ERR_OK;
}

/* Device times to b->us, times of the call to b->wall_us. */
static err_code sample(bench *b, const rows_of *r, err *e)
{
    for (int32_t i = -WARM; i < b->plan->samples; i++) {
        uint64_t start = clock_ns();
        TRY(insert_next(b, r, e));
        double call_us = (double)(clock_ns() - start) * 1e-3, us = eng_device_step_us(b->device);
        if (i < 0) continue;
        b->wall_us[i] = call_us;
        b->us[i] = us;
    }
    bench_sort(b->us, b->plan->samples);
    bench_sort(b->wall_us, b->plan->samples);
    return ERR_OK;
}

/* What a round costs a caller, without sockets. */
static err_code median_round(bench *b, const rows_of *r, int32_t n_out, double *us, err *e)
{
    for (int32_t i = -WARM; i < b->plan->samples; i++) {
        uint64_t start = clock_ns();
        TRY(insert_next(b, r, e));
        TRY(bench_draft(b, 1, n_out, NULL, e));
        if (i >= 0) b->wall_us[i] = (double)(clock_ns() - start) * 1e-3;
    }
    bench_sort(b->wall_us, b->plan->samples);
    *us = bench_quantile(b->wall_us, b->plan->samples, 0.5);
    return ERR_OK;
}

static err_code print_rows(const bench *b, int32_t rows, double call_us, double round_us, err *e)
{
    double bytes = (double)eng_device_insert_bytes(b->device), floor_us = bytes / b->copy_bytes_per_s * 1e6;
    double p10 = bench_quantile(b->us, b->plan->samples, 0.1), p50 = bench_quantile(b->us, b->plan->samples, 0.5);
    double p90 = bench_quantile(b->us, b->plan->samples, 0.9);
    if (!b->plan->json) {
        printf("%-20s %6d %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %8.1f %6.2f\n", b->options.arm->name, rows, p10, p50, p90,
               call_us, round_us, bytes / 1e6, floor_us, p50 / floor_us);
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "schema", CMD_SCHEMA,
                          "arm", b->options.arm->name, "backend", eng_backend_name(b->options.backend), "mode",
                          eng_mode_name(b->options.mode), "tp", (int)b->options.n_ranks, "insert_rows", (int)rows,
                          "samples", (int)b->plan->samples, "p10_us", p10, "p50_us", p50, "p90_us", p90, "call_p50_us",
                          call_us, "round_p50_us", round_us, "floor_bytes", bytes, "floor_us", floor_us);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

static err_code profile(bench *b, int32_t rows, int32_t n_out, double *us, err *e)
{
    (void)n_out;
    return eng_device_profile_insert(b->device, rows, us, e);
}

static err_code run_rows(bench *b, const rows_of *r, err *e)
{
    const int32_t n_out = b->plan->n_outs.item[0];
    double call_us, round_us;
    TRY(median_round(b, r, n_out, &round_us, e));
    TRY(sample(b, r, e));
    call_us = bench_quantile(b->wall_us, b->plan->samples, 0.5);
    TRY(print_rows(b, r->n, call_us, round_us, e));
    return b->plan->ops ? bench_ops(b, ENG_STEP_INSERT, "insert_rows", r->n, n_out, profile, e) : ERR_OK;
}

err_code bench_inserts(bench *b, err *e)
{
    const eng_config *c = eng_config_of(b->engine);
    const bench_list *rows = &b->plan->rows;
    int32_t pos[ENG_INSERT_ROWS_MAX];
    bf16 *taps = mem_alloc((size_t)ENG_INSERT_ROWS_MAX * (size_t)c->n_taps * (size_t)c->dim, sizeof *taps);
    if (!taps) return err_set(e, ERR_NOMEM, "bench: no memory for %d rows", ENG_INSERT_ROWS_MAX);
    bench_taps(b, BENCH_SLOTS, ENG_INSERT_ROWS_MAX, taps);
    if (!b->plan->json)
        printf("%-20s %6s %9s %9s %9s %9s %9s  floor MB floor us  ratio\n", "inserts", "rows", "p10", "p50", "p90",
               "call p50", "round p50");
    err_code rc = ERR_OK;
    for (int32_t i = 0; i < rows->n && rc == ERR_OK; i++)
        rc = run_rows(b, &(rows_of){ rows->item[i], taps, pos }, e);
    free(taps);
    return rc;
}
