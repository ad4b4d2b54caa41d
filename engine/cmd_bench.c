#include <string.h>

#include "base/mem.h"
#include "base/outfile.h"
#include "engine/cmd_bench.h"
#include "engine/cmd_common.h"
#include "engine/commands.h"

enum { SAMPLES_MAX = 100000, ARMS_MAX = 16 };

static const char DEFAULT_ARM[] = "native-packed", TUNED_ARM[] = "native-hybrid-kx2";

typedef struct bench_words {
    eng_option_words run;
    const char *b, *n_out, *rows, *settle, *tune_out;
    int64_t samples, reps;
    bool solo, ops, tune;
} bench_words;

static const cli_option OPTIONS[] = {
    { "--arm", "LIST", "arms, separated by commas (default: native-packed; with --tune: native-hybrid-kx2)", CLI_STR,
      offsetof(bench_words, run.arm) },
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
    { "--reps", "N", "all of it N times, arms in turn, compared (default: 1; --tune: 3)",
      CLI_COUNT, offsetof(bench_words, reps) },
    { "--tune", NULL, "cuda: which launches run the experts faster, by stage and rows: writes MODEL/dispatch.json",
      CLI_FLAG, offsetof(bench_words, tune) },
    { "--tune-out", "FILE", "write it here instead", CLI_NEW, offsetof(bench_words, tune_out) },
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

/* ---- the words ---- */

/* Options that would be of no effect on the CPU, or against each other. */
static err_code check_words(const bench_words *words, err *e)
{
    bool cuda = words->run.backend && strcmp(words->run.backend, eng_backend_name(ENG_BACKEND_CUDA)) == 0;
    if ((words->solo || words->ops || words->rows || words->tune) && !cuda)
        return err_set(e, ERR_ARG, "%s: only for --backend cuda",
                       words->solo ? "--solo" : words->ops ? "--ops" : words->rows ? "--rows" : "--tune");
    if (words->solo && (words->run.comm || words->run.bootstrap))
        return err_set(e, ERR_ARG, "--solo: ranks do not meet, wanted no %s", words->run.comm ? "--comm" : "--bootstrap");
    if (words->tune_out && !words->tune) return err_set(e, ERR_ARG, "--tune-out: wanted --tune with it");
    if (!words->tune) return ERR_OK;
    const char *beside = words->ops ? "--ops" : words->rows ? "--rows" : words->run.bootstrap ? "--bootstrap" : NULL;
    if (beside) return err_set(e, ERR_ARG, "--tune: found %s too, wanted drafts alone, of one process", beside);
    if (strcmp(words->run.mode, eng_mode_name(ENG_MODE_GRAPH)) != 0)
        return err_set(e, ERR_ARG, "--tune: found --mode %.64s, wanted graph: only graphs have fused launches",
                       words->run.mode);
    return ERR_OK;
}

/* All but --n-out, which needs the checkpoint. */
static err_code parse_plan(const bench_words *words, const cli_common *common, bench_plan *p, err *e)
{
    char *end;
    *p = (bench_plan){ .settle_s = strtod(words->settle, &end), .samples = (int32_t)words->samples, .ops = words->ops,
                       .json = common->json, .quiet = common->quiet };
    if (*end || end == words->settle || !(p->settle_s >= 0 && p->settle_s <= 60))
        return err_set(e, ERR_ARG, "--settle: found '%.32s', wanted 0 to 60 seconds", words->settle);
    if (words->samples > SAMPLES_MAX)
        return err_set(e, ERR_ARG, "--samples: found %lld, wanted at most %d", (long long)words->samples, SAMPLES_MAX);
    if (words->reps > BENCH_REPS_MAX)
        return err_set(e, ERR_ARG, "--reps: found %lld, wanted at most %d", (long long)words->reps, BENCH_REPS_MAX);
    p->reps = words->reps ? (int32_t)words->reps : words->tune ? 3 : 1;
    TRY(parse_list("--b", words->b, 1, ENG_BATCH_MAX, &p->batches, e));
    TRY(parse_list("--rows", words->rows ? words->rows : "8,16,32,64,128", 1, ENG_INSERT_ROWS_MAX, &p->rows, e));
    for (int32_t i = 0; words->tune && i < p->batches.n; i++)
        for (int32_t k = 0; k < i; k++)
            if (p->batches.item[k] == p->batches.item[i])
                return err_set(e, ERR_ARG, "--b: found %d twice, --tune wants each once", p->batches.item[i]);
    return ERR_OK;
}

typedef struct arm_list {
    eng_options options[ARMS_MAX];
    int32_t n;
} arm_list;

/* Every arm of --arm, before the first one is measured. */
static err_code parse_arms(bench_words *words, const cli_common *common, arm_list *out, err *e)
{
    char arms[256];
    const char *list = words->run.arm ? words->run.arm : words->tune ? TUNED_ARM : DEFAULT_ARM;
    out->n = 0;
    if (strlen(list) >= sizeof arms)
        return err_set(e, ERR_ARG, "--arm: found %zu characters, wanted a short list", strlen(list));
    memcpy(arms, list, strlen(list) + 1);
    if (words->solo) words->run.comm = eng_comm_name(ENG_COMM_EMULATED); /* checked as one card, then run as one rank */
    for (char *save = NULL, *arm = strtok_r(arms, ",", &save); arm; arm = strtok_r(NULL, ",", &save)) {
        if (out->n == ARMS_MAX) return err_set(e, ERR_ARG, "--arm: more than %d arms", ARMS_MAX);
        const eng_arm *known = eng_arm_find(arm);
        if (words->tune && known && !known->kx2)
            return err_set(e, ERR_ARG, "--tune: found --arm %s, wanted one whose experts may run as one launch: %s",
                           arm, TUNED_ARM);
        if (words->tune && out->n) return err_set(e, ERR_ARG, "--tune: found --arm %.64s, wanted one arm", list);
        words->run.arm = arm;
        TRY(eng_options_parse(&words->run, common->threads, &out->options[out->n], e));
        if (words->solo) out->options[out->n].comm = ENG_COMM_SOLO;
        out->n++;
    }
    return out->n ? ERR_OK : err_set(e, ERR_ARG, "--arm: found no arm");
}

/* ---- the work ---- */

/* p50: of the first shape; the next ones follow reps apart. What is not compared is measured in the last repetition. */
static err_code run_arm(const eng_weights *w, const eng_options *o, const bench_plan *p, int32_t rep, double *p50, err *e)
{
    bench b = { .weights = w, .plan = p, .options = *o, .rep = rep };
    err_code rc = bench_open(&b, e);
    if (rc == ERR_OK) rc = bench_state(&b, "before", e);
    if (rc == ERR_OK) rc = bench_shapes(&b, p50, p->reps, e);
    if (rc == ERR_OK) rc = bench_state(&b, "after", e);
    if (b.device && rep == p->reps - 1) {
        if (rc == ERR_OK && p->ops) rc = bench_draft_ops(&b, e);
        if (rc == ERR_OK) rc = bench_inserts(&b, e);
        if (rc == ERR_OK) rc = bench_memory(&b, e);
    }
    bench_close(&b);
    return rc;
}

/* Arms in turn, A B C A B C, each opened anew: two need not fit on a card, and what drifts meets them all. */
static err_code run_arms(const eng_weights *w, const arm_list *arms, const bench_plan *p, err *e)
{
    const int32_t n_shapes = p->batches.n * p->n_outs.n;
    const char *names[ARMS_MAX];
    double *p50 = mem_alloc((size_t)(arms->n * n_shapes * p->reps), sizeof *p50); /* [arm][shape][rep] */
    err_code rc = p50 ? ERR_OK : err_set(e, ERR_NOMEM, "bench: no memory");
    for (int32_t rep = 0; rep < p->reps; rep++)
        for (int32_t a = 0; a < arms->n && rc == ERR_OK; a++)
            rc = run_arm(w, &arms->options[a], p, rep, p50 + (int64_t)a * n_shapes * p->reps + rep, e);
    for (int32_t a = 0; a < arms->n; a++) names[a] = arms->options[a].arm->name;
    if (rc == ERR_OK && p->reps > 1) rc = bench_report(p, names, arms->n, p50, e);
    free(p50);
    return rc;
}

static err_code run_tune(const eng_weights *w, const bench_words *words, const arm_list *arms, const bench_plan *p,
                         const cli_common *common, err *e)
{
    char path[4096];
    if (p->n_outs.n > 1) return err_set(e, ERR_ARG, "--n-out: found %d, --tune wants one", p->n_outs.n);
    if (!words->tune_out) {
        TRY(eng_dispatch_path(eng_weights_folder(w), path, sizeof path, e));
        TRY(cli_keep_file("--tune", path, common, e));
    }
    const char *out = words->tune_out ? words->tune_out : path;
    outfile *place;
    TRY(outfile_open(out, &place, e)); /* before minutes of measuring */
    outfile_abandon(place);
    return bench_tune_arm(w, &arms->options[0], p, out, e);
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    bench_words words = { .run = { .mode = "graph" }, .b = "1,2,3,4", .settle = "0.5", .samples = 200 };
    cli_common common;
    cli_args args;
    bench_plan plan;
    arm_list arms;
    (void)exit_status;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    TRY(check_words(&words, e));
    TRY(parse_plan(&words, &common, &plan, e));
    TRY(parse_arms(&words, &common, &arms, e));
    eng_weights *w;
    TRY(eng_weights_open(args.item[0], common.quiet, &w, e));
    char block[12];
    snprintf(block, sizeof block, "%d", eng_weights_config(w)->block);
    const char *n_out = words.n_out ? words.n_out : block;
    err_code rc = parse_list("--n-out", n_out, 1, eng_weights_config(w)->block, &plan.n_outs, e);
    if (rc == ERR_OK) rc = words.tune ? run_tune(w, &words, &arms, &plan, &common, e) : run_arms(w, &arms, &plan, e);
    eng_weights_close(w);
    return rc;
}

const cli_command CMD_BENCH = { "bench", "MODEL", "times draft steps of arms beside the bytes they must read", OPTIONS,
                                sizeof OPTIONS / sizeof *OPTIONS, run };
