#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/ab_report.h"
#include "engine/cmd_bench.h"
#include "engine/cmd_common.h"
#include "engine/noise.h"

static uint64_t taps_key(uint64_t seed) { return eng_noise_key(1, "bench taps") + seed; }

void bench_taps(const bench *b, uint64_t seed, int32_t rows, bf16 *taps)
{
    const eng_config *c = eng_config_of(b->engine);
    const float *normals = eng_noise_normals();
    uint64_t key = taps_key(seed);
    int64_t n = (int64_t)rows * c->n_taps * c->dim;
    for (int64_t i = 0; i < n; i++)
        taps[i] = bf16_from_f32(30.0f * eng_noise_normal(normals, eng_noise_bits(key, (uint64_t)i)));
}

/* Full windows in every slot, each ending at another place of the ring. */
static err_code fill_slots(bench *b, err *e)
{
    const eng_config *c = eng_config_of(b->engine);
    int64_t width = (int64_t)c->n_taps * c->dim;
    int32_t rows_max = c->window + 8 * BENCH_SLOTS;
    bf16 *taps = mem_alloc((size_t)(rows_max * width), sizeof *taps);
    int32_t *pos = mem_alloc((size_t)rows_max, sizeof *pos);
    err_code rc = taps && pos ? ERR_OK : err_set(e, ERR_NOMEM, "bench: no memory for %d rows", rows_max);
    for (int32_t s = 0; s < BENCH_SLOTS && rc == ERR_OK; s++) {
        int32_t rows = c->window + 7 * s + 3;
        bench_taps(b, (uint64_t)s, rows, taps);
        for (int32_t r = 0; r < rows; r++) pos[r] = r;
        rc = eng_insert(b->engine, s, taps, pos, rows, NULL, e);
        b->slots[s] = s;
        b->pos[s] = rows - 1;
        b->anchors[s] = (int32_t)(eng_noise_bits(taps_key((uint64_t)s), 1u << 20) % (uint64_t)c->vocab);
    }
    free(taps);
    free(pos);
    return rc;
}

err_code bench_open(bench *b, err *e)
{
    const eng_config *c = eng_weights_config(b->weights);
    const size_t samples = (size_t)b->plan->samples;
    uint64_t start = clock_ns();
    TRY(eng_open(b->weights, &b->options, BENCH_SLOTS, ENG_LEVEL_V1, b->plan->quiet, &b->engine, e));
    b->load_s = (double)(clock_ns() - start) * 1e-9;
    b->device = eng_device_of(b->engine, 0);
    b->drafts = mem_alloc((size_t)BENCH_SLOTS * (size_t)c->block, sizeof *b->drafts);
    b->confidence = mem_alloc((size_t)BENCH_SLOTS * (size_t)c->block, sizeof *b->confidence);
    b->us = mem_alloc(samples, sizeof *b->us);
    b->wall_us = mem_alloc(samples, sizeof *b->wall_us);
    if (!b->drafts || !b->confidence || !b->us || !b->wall_us) return err_set(e, ERR_NOMEM, "bench: no memory");
    if (b->device) TRY(eng_device_memory_used(b->device, &b->opened_bytes, e));
    TRY(fill_slots(b, e));
    return b->device ? eng_device_copy_speed(b->device, &b->copy_bytes_per_s, e) : ERR_OK;
}

void bench_close(bench *b)
{
    eng_close(b->engine);
    free(b->drafts);
    free(b->confidence);
    free(b->us);
    free(b->wall_us);
    free(b->op_us);
}

/* ---- which experts a step reads ---- */

/* Every rank routes alike: one that is in this process is counted. */
typedef struct used { int32_t rank, *stages; } used;

static void count_experts(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    used *u = ctx;
    const eng_op *op = &site->program->op[site->program->value[site->value].producer];
    if (op->kind != ENG_OP_TOPK || site->value != op->out[0] || site->rank != u->rank) return;
    const int32_t *ids = t->data;
    int64_t n = t->shape[0] * t->shape[1];
    u->stages[op->stage] = 0;
    for (int64_t i = 0; i < n; i++) {
        bool first = true;
        for (int64_t j = 0; j < i; j++) first = first && ids[j] != ids[i];
        u->stages[op->stage] += first;
    }
}

/* ---- samples ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void bench_sort(double *samples, int32_t n) { qsort(samples, (size_t)n, sizeof *samples, ascending); }

double bench_quantile(const double *sorted, int32_t n, double q)
{
    return sorted[(int32_t)ceil(q * n) > 0 ? (int32_t)ceil(q * n) - 1 : 0];
}

err_code bench_draft(bench *b, int32_t batch, int32_t n_out, const eng_tap *tap, err *e)
{
    return eng_draft(b->engine, batch, b->slots, b->anchors, b->pos, n_out, b->drafts, b->confidence, tap, e);
}

err_code bench_warm(bench *b, int32_t batch, int32_t n_out, err *e)
{
    used u = { b->options.bootstrap ? b->options.rank : 0, b->experts };
    eng_tap tap = { count_experts, &u };
    return bench_draft(b, batch, n_out, &tap, e);
}

/* Ranks in processes of their own must run equally many steps, so theirs are counted, not timed. */
static err_code settle(bench *b, int32_t batch, int32_t n_out, err *e)
{
    uint64_t until = clock_ns() + (uint64_t)(b->plan->settle_s * 1e9);
    for (int32_t i = 0; b->options.bootstrap ? i < b->plan->samples : clock_ns() < until; i++)
        TRY(bench_draft(b, batch, n_out, NULL, e));
    return ERR_OK;
}

err_code bench_sample(bench *b, int32_t batch, int32_t n_out, err *e)
{
    const int32_t n = b->plan->samples;
    TRY(settle(b, batch, n_out, e));
    for (int32_t i = 0; i < n; i++) {
        uint64_t start = clock_ns();
        TRY(bench_draft(b, batch, n_out, NULL, e));
        b->wall_us[i] = (double)(clock_ns() - start) * 1e-3;
        b->us[i] = b->device ? eng_device_step_us(b->device) : b->wall_us[i];
    }
    bench_sort(b->us, n);
    bench_sort(b->wall_us, n);
    return ERR_OK;
}

/* ---- shapes ---- */

static const char *comm_name(const bench *b)
{
    return b->device && b->options.n_ranks > 1 ? eng_comm_name(b->options.comm) : "none";
}

static void print_head(const bench *b)
{
    const bool meet = b->device && b->options.n_ranks > 1;
    if (b->plan->reps > 1) printf("repetition %d of %d: ", b->rep + 1, b->plan->reps);
    printf("%s, tp %d%s%s, %s, combine %s, %d samples; opened in %.1f s; copy %.0f GB/s; times in us\n",
           b->options.arm->name, b->options.n_ranks, meet ? ", " : "", meet ? eng_comm_name(b->options.comm) : "",
           eng_mode_name(b->options.mode), eng_combine_name(b->options.combine), b->plan->samples, b->load_s,
           b->copy_bytes_per_s * 1e-9);
    printf("%-20s %s %5s %7s %9s %9s %9s %9s%s\n", "arm", "b", "n_out", "experts", "p10", "p50", "p90", "wall p50",
           b->device ? "  floor MB floor us  ratio" : "");
}

static err_code run_shape(bench *b, int32_t batch, int32_t n_out, double *p50, err *e)
{
    const eng_config *c = eng_config_of(b->engine);
    const int32_t n = b->plan->samples;
    int32_t total = 0;
    TRY(bench_warm(b, batch, n_out, e));
    TRY(bench_sample(b, batch, n_out, e));
    for (int32_t k = 0; k < c->n_stages; k++) total += b->experts[k];
    double bytes = b->device ? (double)eng_device_draft_bytes(b->device, n_out, b->experts) : 0;
    double floor_us = b->device ? bytes / b->copy_bytes_per_s * 1e6 : 0;
    double p10 = bench_quantile(b->us, n, 0.1), p90 = bench_quantile(b->us, n, 0.9);
    double wall = bench_quantile(b->wall_us, n, 0.5);
    *p50 = bench_quantile(b->us, n, 0.5);
    if (!b->plan->json) {
        printf("%-20s %d %5d %7d %9.1f %9.1f %9.1f %9.1f", b->options.arm->name, batch, n_out, total, p10, *p50, p90, wall);
        if (b->device) printf(" %9.1f %8.1f %6.2f", bytes / 1e6, floor_us, *p50 / floor_us);
        printf("\n");
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                          "schema", CMD_SCHEMA, "arm", b->options.arm->name,
                          "backend", eng_backend_name(b->options.backend),
                          "mode", eng_mode_name(b->options.mode), "combine", eng_combine_name(b->options.combine),
                          "comm", comm_name(b), "tp", (int)b->options.n_ranks, "b", (int)batch, "n_out", (int)n_out,
                          "experts", (int)total, "samples", (int)n, "p10_us", p10, "p50_us", *p50, "p90_us", p90,
                          "wall_p50_us", wall, "floor_bytes", bytes, "floor_us", floor_us, "copy_bytes_per_s",
                          b->copy_bytes_per_s);
    if (b->plan->reps > 1) fmt_json_put(&j, "rep", json_integer(b->rep + 1));
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

err_code bench_shapes(bench *b, double *p50, int32_t stride, err *e)
{
    const bench_list *batches = &b->plan->batches, *n_outs = &b->plan->n_outs;
    int32_t at = 0;
    if (!b->plan->json) print_head(b);
    for (int32_t i = 0; i < batches->n; i++)
        for (int32_t k = 0; k < n_outs->n; k++, at += stride)
            TRY(run_shape(b, batches->item[i], n_outs->item[k], p50 + at, e));
    /* A long run shows what it has. */
    return fflush(stdout) == 0 ? ERR_OK : err_set(e, ERR_IO, "output: write failed: %s", strerror(errno));
}

err_code bench_state(const bench *b, const char *when, err *e)
{
    ab_state state;
    if (!b->device) return ERR_OK;
    ab_state_read(&state);
    if (!b->plan->json) {
        ab_print_state(when, &state);
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i, s:s, s:i, s:s, s:o}", "schema", CMD_SCHEMA, "arm", b->options.arm->name, "rep",
                          (int)b->rep + 1, "when", when, "state", ab_state_json(&state));
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}
