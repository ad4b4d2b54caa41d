#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/cmd_bench.h"
#include "engine/cmd_common.h"
#include "engine/commands.h"
#include "engine/footprint.h"
#include "engine/noise.h"

enum { SAMPLES_MAX = 100000 };

typedef struct bench_words {
    eng_option_words run;
    const char *b, *n_out, *rows, *settle;
    int64_t samples;
    bool solo, ops;
} bench_words;

static const cli_option OPTIONS[] = {
    { "--arm", "LIST", "arms, separated by commas (default: native-packed)", CLI_STR, offsetof(bench_words, run.arm) },
    { "--backend", "NAME", "cpu (default) or cuda", CLI_STR, offsetof(bench_words, run.backend) },
    { "--tp", "N", "ranks (default: 1)", CLI_COUNT, offsetof(bench_words, run.tp) },
    { "--comm", "KIND", "cuda: nccl (default) or emulated", CLI_STR, offsetof(bench_words, run.comm) },
    { "--bootstrap", "HOST:PORT", "cuda: this process is one rank; rank 0 listens there for the others", CLI_STR,
      offsetof(bench_words, run.bootstrap) },
    { "--rank", "R", "which rank this process is, with --bootstrap (default: 0)", CLI_INT,
      offsetof(bench_words, run.rank) },
    { "--solo", NULL, "cuda: one rank of --tp alone, collectives replaced by copies: a time, not a result", CLI_FLAG,
      offsetof(bench_words, solo) },
    { "--mode", "MODE", "graph (default) or eager", CLI_STR, offsetof(bench_words, run.mode) },
    { "--combine", "MODE", "exact (default) or fused", CLI_STR, offsetof(bench_words, run.combine) },
    { "--b", "LIST", "slots drafted together (default: 1,2,3,4)", CLI_STR, offsetof(bench_words, b) },
    { "--n-out", "LIST", "drafted positions (default: the block)", CLI_STR, offsetof(bench_words, n_out) },
    { "--rows", "LIST", "cuda: rows of inserts, timed too (default: 8,16,32,64,128)", CLI_STR,
      offsetof(bench_words, rows) },
    { "--samples", "N", "timed steps of each shape (default: 200)", CLI_COUNT, offsetof(bench_words, samples) },
    { "--settle", "SECONDS", "steps before the first sample, for clocks to settle (default: 0.5; --bootstrap: N steps)",
      CLI_STR, offsetof(bench_words, settle) },
    { "--ops", NULL, "cuda: also the median time of every op, each alone on the stream", CLI_FLAG,
      offsetof(bench_words, ops) },
};

static err_code parse_list(const char *option, const char *text, int64_t lo, int64_t hi, bench_list *out, err *e)
{
    char copy[128];
    *out = (bench_list){ 0 };
    if (strlen(text) >= sizeof copy)
        return err_set(e, ERR_ARG, "%s: found %zu characters, wanted a short list", option, strlen(text));
    memcpy(copy, text, strlen(text) + 1);
    for (char *save = NULL, *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        int64_t v;
        TRY(cli_int(word, option, lo, hi, &v, e));
        if (out->n == BENCH_LIST_MAX) return err_set(e, ERR_ARG, "%s: more than %d numbers", option, BENCH_LIST_MAX);
        out->item[out->n++] = (int32_t)v;
    }
    return out->n ? ERR_OK : err_set(e, ERR_ARG, "%s: found no number", option);
}

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

/* ---- which experts a step reads ---- */

/* Every rank routes alike: one that is in this process is counted. */
typedef struct used { int32_t rank, stages[ENG_STAGES_MAX]; } used;

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

/* Ranks in processes of their own must run equally many steps, so theirs are counted, not timed. */
static err_code settle(bench *b, int32_t batch, int32_t n_out, err *e)
{
    uint64_t until = clock_ns() + (uint64_t)(b->settle_s * 1e9);
    for (int32_t i = 0; b->options.bootstrap ? i < b->samples : clock_ns() < until; i++)
        TRY(bench_draft(b, batch, n_out, NULL, e));
    return ERR_OK;
}

static err_code sample(bench *b, int32_t batch, int32_t n_out, err *e)
{
    TRY(settle(b, batch, n_out, e));
    for (int32_t i = 0; i < b->samples; i++) {
        uint64_t start = clock_ns();
        TRY(bench_draft(b, batch, n_out, NULL, e));
        b->wall_us[i] = (double)(clock_ns() - start) * 1e-3;
        b->us[i] = b->device ? eng_device_step_us(b->device) : b->wall_us[i];
    }
    bench_sort(b->us, b->samples);
    bench_sort(b->wall_us, b->samples);
    return ERR_OK;
}

static err_code run_shape(bench *b, int32_t batch, int32_t n_out, err *e)
{
    const eng_config *c = eng_config_of(b->engine);
    used u = { .rank = b->options.bootstrap ? b->options.rank : 0 };
    eng_tap tap = { count_experts, &u };
    int32_t total = 0;
    TRY(bench_draft(b, batch, n_out, &tap, e));
    TRY(sample(b, batch, n_out, e));
    for (int32_t k = 0; k < c->n_stages; k++) total += u.stages[k];
    double bytes = b->device ? (double)eng_device_draft_bytes(b->device, n_out, u.stages) : 0;
    double floor_us = b->device ? bytes / b->copy_bytes_per_s * 1e6 : 0, p50 = bench_quantile(b->us, b->samples, 0.5);
    double p10 = bench_quantile(b->us, b->samples, 0.1), p90 = bench_quantile(b->us, b->samples, 0.9);
    double wall = bench_quantile(b->wall_us, b->samples, 0.5);
    if (!b->json) {
        printf("%-20s %d %5d %7d %9.1f %9.1f %9.1f %9.1f", b->options.arm->name, batch, n_out, total, p10, p50, p90, wall);
        if (b->device) printf(" %9.1f %8.1f %6.2f", bytes / 1e6, floor_us, p50 / floor_us);
        printf("\n");
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                          "schema", CMD_SCHEMA, "arm", b->options.arm->name,
                          "backend", eng_backend_name(b->options.backend),
                          "mode", eng_mode_name(b->options.mode), "combine", eng_combine_name(b->options.combine),
                          "comm", b->device && b->options.n_ranks > 1 ? eng_comm_name(b->options.comm) : "none",
                          "tp", (int)b->options.n_ranks, "b", (int)batch, "n_out", (int)n_out,
                          "experts", (int)total, "samples", (int)b->samples, "p10_us", p10, "p50_us", p50, "p90_us", p90,
                          "wall_p50_us", wall, "floor_bytes", bytes, "floor_us", floor_us, "copy_bytes_per_s",
                          b->copy_bytes_per_s);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

/* ---- ops ---- */

err_code bench_ops(bench *b, eng_step_kind step, const char *key, int32_t value, int32_t n_out, bench_profile_fn profile,
                   err *e)
{
    enum { OP_SAMPLES = BENCH_OP_SAMPLES };
    const eng_program *p = eng_program_of(b->engine, step);
    double all[OP_SAMPLES], sum = 0;
    b->op_us = mem_alloc((size_t)p->n_ops * OP_SAMPLES, sizeof *b->op_us);
    if (!b->op_us) return err_set(e, ERR_NOMEM, "bench: no memory for %d ops", p->n_ops);
    for (int s = 0; s < OP_SAMPLES; s++) TRY(profile(b, value, n_out, b->op_us + (int64_t)s * p->n_ops, e));
    for (int32_t i = 0; i < p->n_ops; i++) {
        for (int s = 0; s < OP_SAMPLES; s++) all[s] = b->op_us[(int64_t)s * p->n_ops + i];
        bench_sort(all, OP_SAMPLES);
        double us = bench_quantile(all, OP_SAMPLES, 0.5);
        sum += us;
        if (!b->json) printf("  %-28s %-16s %8.1f us\n", p->op[i].name, eng_kind_name(p->op[i].kind), us);
        else printf("{\"schema\": %d, \"arm\": \"%s\", \"%s\": %d, \"op\": \"%s\", \"kind\": \"%s\", \"p50_us\": %.2f}\n",
                    CMD_SCHEMA, b->options.arm->name, key, value, p->op[i].name, eng_kind_name(p->op[i].kind), us);
    }
    if (!b->json) printf("  %-28s %-16s %8.1f us\n", "all ops, one after another", "", sum);
    free(b->op_us);
    b->op_us = NULL;
    return ERR_OK;
}

static err_code profile_draft(bench *b, int32_t batch, int32_t n_out, double *us, err *e)
{
    eng_device_draft in = { batch, n_out, b->slots, b->anchors, b->pos };
    return eng_device_profile(b->device, &in, us, e);
}

/* ---- memory ---- */

static err_code report_memory(const bench *b, err *e)
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
        if (!b->json)
            printf("  memory %-10s planned %9.1f MiB, on the card %9.1f MiB\n", ROWS[i].name, planned / 0x1p20,
                   measured / 0x1p20);
        else printf("{\"schema\": %d, \"arm\": \"%s\", \"memory\": \"%s\", \"planned_bytes\": %.0f, "
                    "\"measured_bytes\": %.0f}\n",
                    CMD_SCHEMA, b->options.arm->name, ROWS[i].name, planned, measured);
    }
    double all = (double)eng_owned_bytes(b->engine);
    if (!b->json) printf("  memory %-10s %41.1f MiB\n", "all", all / 0x1p20);
    else printf("{\"schema\": %d, \"arm\": \"%s\", \"memory\": \"all\", \"measured_bytes\": %.0f}\n", CMD_SCHEMA,
                b->options.arm->name, all);
    return ERR_OK;
}

static err_code run_arm(bench *b, const bench_list *batches, const bench_list *n_outs, const bench_list *rows, bool ops,
                        bool quiet, err *e)
{
    const eng_config *c = eng_weights_config(b->weights);
    uint64_t start = clock_ns();
    TRY(eng_open(b->weights, &b->options, BENCH_SLOTS, ENG_LEVEL_V1, quiet, &b->engine, e));
    double load_s = (double)(clock_ns() - start) * 1e-9;
    b->device = eng_device_of(b->engine, 0);
    b->drafts = mem_alloc((size_t)BENCH_SLOTS * (size_t)c->block, sizeof *b->drafts);
    b->confidence = mem_alloc((size_t)BENCH_SLOTS * (size_t)c->block, sizeof *b->confidence);
    b->us = mem_alloc((size_t)b->samples, sizeof *b->us);
    b->wall_us = mem_alloc((size_t)b->samples, sizeof *b->wall_us);
    if (!b->drafts || !b->confidence || !b->us || !b->wall_us) return err_set(e, ERR_NOMEM, "bench: no memory");
    TRY(fill_slots(b, e));
    if (b->device) TRY(eng_device_copy_speed(b->device, &b->copy_bytes_per_s, e));
    if (!b->json) {
        printf("%s, tp %d%s%s, %s, combine %s, %d samples; opened in %.1f s; copy %.0f GB/s; times in us\n",
               b->options.arm->name, b->options.n_ranks, b->device && b->options.n_ranks > 1 ? ", " : "",
               b->device && b->options.n_ranks > 1 ? eng_comm_name(b->options.comm) : "", eng_mode_name(b->options.mode),
               eng_combine_name(b->options.combine), b->samples, load_s, b->copy_bytes_per_s * 1e-9);
        printf("%-20s %s %5s %7s %9s %9s %9s %9s%s\n", "arm", "b", "n_out", "experts", "p10", "p50", "p90", "wall p50",
               b->device ? "  floor MB floor us  ratio" : "");
    }
    for (int32_t i = 0; i < batches->n; i++)
        for (int32_t k = 0; k < n_outs->n; k++) TRY(run_shape(b, batches->item[i], n_outs->item[k], e));
    if (!b->device) return ERR_OK;
    for (int32_t i = 0; i < batches->n && ops; i++)
        TRY(bench_ops(b, ENG_STEP_DRAFT, "b", batches->item[i], n_outs->item[0], profile_draft, e));
    TRY(bench_inserts(b, rows, n_outs->item[0], ops, e));
    return report_memory(b, e);
}

static void bench_fini(bench *b)
{
    eng_close(b->engine);
    free(b->drafts);
    free(b->confidence);
    free(b->us);
    free(b->wall_us);
    free(b->op_us);
}

/* Options that would be of no effect on the CPU, or against each other. */
static err_code check_words(const bench_words *words, err *e)
{
    bool cuda = words->run.backend && strcmp(words->run.backend, eng_backend_name(ENG_BACKEND_CUDA)) == 0;
    if ((words->solo || words->ops || words->rows) && !cuda)
        return err_set(e, ERR_ARG, "%s: only for --backend cuda", words->solo ? "--solo" : words->ops ? "--ops" : "--rows");
    if (words->solo && (words->run.comm || words->run.bootstrap))
        return err_set(e, ERR_ARG, "--solo: ranks do not meet, wanted no %s", words->run.comm ? "--comm" : "--bootstrap");
    return ERR_OK;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    bench_words words = { .run = { .mode = "graph" }, .b = "1,2,3,4", .settle = "0.5", .samples = 200 };
    cli_common common;
    cli_args args;
    bench_list batches, n_outs, rows;
    (void)exit_status;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    TRY(check_words(&words, e));
    char *end;
    double settle_s = strtod(words.settle, &end);
    if (*end || end == words.settle || !(settle_s >= 0 && settle_s <= 60))
        return err_set(e, ERR_ARG, "--settle: found '%.32s', wanted 0 to 60 seconds", words.settle);
    if (words.samples > SAMPLES_MAX)
        return err_set(e, ERR_ARG, "--samples: found %lld, wanted at most %d", (long long)words.samples, SAMPLES_MAX);
    TRY(parse_list("--b", words.b, 1, ENG_BATCH_MAX, &batches, e));
    TRY(parse_list("--rows", words.rows ? words.rows : "8,16,32,64,128", 1, ENG_INSERT_ROWS_MAX, &rows, e));
    char arms[256];
    const char *list = words.run.arm ? words.run.arm : "native-packed";
    if (strlen(list) >= sizeof arms)
        return err_set(e, ERR_ARG, "--arm: found %zu characters, wanted a short list", strlen(list));
    memcpy(arms, list, strlen(list) + 1);

    eng_weights *w;
    TRY(eng_weights_open(args.item[0], common.quiet, &w, e));
    char block[12];
    snprintf(block, sizeof block, "%d", eng_weights_config(w)->block);
    err_code rc = parse_list("--n-out", words.n_out ? words.n_out : block, 1, eng_weights_config(w)->block, &n_outs, e);
    char *save = NULL;
    for (char *arm = strtok_r(arms, ",", &save); arm && rc == ERR_OK; arm = strtok_r(NULL, ",", &save)) {
        bench b = { .weights = w, .settle_s = settle_s, .samples = (int32_t)words.samples, .json = common.json };
        words.run.arm = arm;
        if (words.solo) words.run.comm = eng_comm_name(ENG_COMM_EMULATED); /* checked as one card, then run as one rank */
        rc = eng_options_parse(&words.run, common.threads, &b.options, e);
        if (words.solo) b.options.comm = ENG_COMM_SOLO;
        if (rc == ERR_OK) rc = run_arm(&b, &batches, &n_outs, &rows, words.ops, common.quiet, e);
        bench_fini(&b);
    }
    eng_weights_close(w);
    return rc;
}

const cli_command CMD_BENCH = { "bench", "MODEL", "times draft steps of arms beside the bytes they must read", OPTIONS,
                                sizeof OPTIONS / sizeof *OPTIONS, run };
