#include "base/mem.h"
#include "engine/cmd_bench.h"
#include "engine/cmd_common.h"
#include "engine/footprint.h"

/* ---- ops ---- */

/* Floor: what a copy of as many bytes as the weights would take. */
static void print_op(const bench *b, const char *key, int32_t value, const eng_op *op, double us, double bytes)
{
    const double floor_us = bytes / b->copy_bytes_per_s * 1e6;
    if (!b->plan->json) {
        printf("  %-28s %-16s %8.1f us", op ? op->name : "all ops, one after another",
               op ? eng_kind_name(op->kind) : "", us);
        if (bytes > 0) printf(" %9.1f MB %8.1f us floor %5.1f %%", bytes / 1e6, floor_us, 100 * floor_us / us);
        printf("\n");
        return;
    }
    if (!op) return;
    printf("{\"schema\": %d, \"arm\": \"%s\", \"%s\": %d, \"op\": \"%s\", \"kind\": \"%s\", \"p50_us\": %.2f", CMD_SCHEMA,
           b->options.arm->name, key, value, op->name, eng_kind_name(op->kind), us);
    if (bytes > 0)
        printf(", \"floor_bytes\": %.0f, \"floor_us\": %.2f, \"floor_share\": %.4f", bytes, floor_us, floor_us / us);
    printf("}\n");
}

err_code bench_ops(bench *b, eng_step_kind step, const char *key, int32_t value, int32_t n_out, bench_profile_fn profile,
                   err *e)
{
    enum { OP_SAMPLES = BENCH_OP_SAMPLES };
    const eng_program *p = eng_program_of(b->engine, step);
    double all[OP_SAMPLES], sum = 0, sum_bytes = 0;
    b->op_us = mem_alloc((size_t)p->n_ops * OP_SAMPLES, sizeof *b->op_us);
    if (!b->op_us) return err_set(e, ERR_NOMEM, "bench: no memory for %d ops", p->n_ops);
    for (int s = 0; s < OP_SAMPLES; s++) TRY(profile(b, value, n_out, b->op_us + (int64_t)s * p->n_ops, e));
    for (int32_t i = 0; i < p->n_ops; i++) {
        for (int s = 0; s < OP_SAMPLES; s++) all[s] = b->op_us[(int64_t)s * p->n_ops + i];
        bench_sort(all, OP_SAMPLES);
        const double us = bench_quantile(all, OP_SAMPLES, 0.5);
        const double bytes = (double)eng_device_op_bytes(b->device, step, i, n_out, b->experts);
        sum += us;
        sum_bytes += bytes;
        print_op(b, key, value, &p->op[i], us, bytes);
    }
    print_op(b, key, value, NULL, sum, sum_bytes);
    free(b->op_us);
    b->op_us = NULL;
    return ERR_OK;
}

static err_code profile_draft(bench *b, int32_t batch, int32_t n_out, double *us, err *e)
{
    eng_device_draft in = { batch, n_out, b->slots, b->anchors, b->pos };
    return eng_device_profile(b->device, &in, us, e);
}

err_code bench_draft_ops(bench *b, err *e)
{
    const int32_t n_out = b->plan->n_outs.item[0];
    for (int32_t i = 0; i < b->plan->batches.n; i++) {
        const int32_t batch = b->plan->batches.item[i];
        TRY(bench_warm(b, batch, n_out, e)); /* which experts this batch reads */
        TRY(bench_ops(b, ENG_STEP_DRAFT, "b", batch, n_out, profile_draft, e));
    }
    return ERR_OK;
}

/* ---- memory ---- */

/* The engine's own and all that is in use on the card, by anybody, which holds code, graphs and the driver's share too. */
static err_code print_card(const bench *b, double planned, err *e)
{
    uint64_t used;
    const double own = (double)eng_owned_bytes(b->engine), opened = (double)b->opened_bytes;
    TRY(eng_device_memory_used(b->device, &used, e));
    if (!b->plan->json)
        printf("  memory %-10s %41.1f MiB\n"
               "  memory of plan %.1f MiB before activations; in use on the card %.1f MiB when opened, "
               "%.1f after samples\n", "all", own / 0x1p20, planned / 0x1p20, opened / 0x1p20, (double)used / 0x1p20);
    else printf("{\"schema\": %d, \"arm\": \"%s\", \"memory\": \"all\", \"measured_bytes\": %.0f, \"planned_bytes\": %.0f, "
                "\"card_opened_bytes\": %.0f, \"card_sampled_bytes\": %.0f}\n",
                CMD_SCHEMA, b->options.arm->name, own, planned, opened, (double)used);
    return ERR_OK;
}

err_code bench_memory(const bench *b, err *e)
{
    static const struct { eng_part part; eng_foot foot[2]; const char *name; } ROWS[] = {
        { ENG_PART_EXPERTS, { ENG_FOOT_EXPERTS, ENG_FOOT_EXPERTS }, "experts" },
        { ENG_PART_DENSE, { ENG_FOOT_DENSE, ENG_FOOT_DENSE }, "dense" },
        { ENG_PART_HEAD, { ENG_FOOT_HEAD, ENG_FOOT_HEAD }, "head" },
        { ENG_PART_EMBED, { ENG_FOOT_EMBED, ENG_FOOT_EMBED }, "embedding" },
        { ENG_PART_MARKOV, { ENG_FOOT_MARKOV_EMBED, ENG_FOOT_MARKOV_HEAD }, "markov" },
    };
    eng_footprint plan;
    eng_footprint_for f = { .n_ranks = b->options.n_ranks, .positions = 327680, .slots = BENCH_SLOTS,
                            .head_exl3 = b->options.reps.head == ENG_REP_EXL3 };
    TRY(eng_footprint_of(eng_config_of(b->engine), b->options.arm, &f, 0, &plan, e));
    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        double planned = (double)plan.bytes[ROWS[i].foot[0]];
        if (ROWS[i].foot[0] != ROWS[i].foot[1]) planned += (double)plan.bytes[ROWS[i].foot[1]];
        double measured = (double)eng_device_part_bytes(b->device, ROWS[i].part);
        if (!b->plan->json)
            printf("  memory %-10s planned %9.1f MiB, on the card %9.1f MiB\n", ROWS[i].name, planned / 0x1p20,
                   measured / 0x1p20);
        else printf("{\"schema\": %d, \"arm\": \"%s\", \"memory\": \"%s\", \"planned_bytes\": %.0f, "
                    "\"measured_bytes\": %.0f}\n",
                    CMD_SCHEMA, b->options.arm->name, ROWS[i].name, planned, measured);
    }
    return print_card(b, (double)plan.total_bytes, e);
}
