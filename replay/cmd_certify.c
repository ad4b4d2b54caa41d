#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "capture/round_list.h"
#include "engine/identity.h"
#include "replay/cause.h"
#include "replay/certify.h"
#include "replay/commands.h"
#include "replay/coverage.h"
#include "replay/source.h"
#include "replay/waiver.h"

#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct words {
    const char *rounds, *tap, *bound, *shard, *waivers;
    bool sharpness, rerun, all;
} words;

static const cli_option OPTIONS[] = {
    { "--rounds", "LIST", "only these rounds: 7,100-120,every:50", CLI_STR, offsetof(words, rounds) },
    { "--tap", "PATTERN", "only values whose name matches (* and ?, commas between patterns)", CLI_STR,
      offsetof(words, tap) },
    { "--bound", "BOUND", RPL_BOUND_HELP, CLI_STR, offsetof(words, bound) },
    { "--sharpness", NULL, "also count wrong neighbours, 1 and 2 ulps away, that would pass (slow)", CLI_FLAG,
      offsetof(words, sharpness) },
    { "--rerun", NULL, "first make the recorded run again, twice and with each poison: tells causes that one tape cannot "
      "tell (unstable, unwritten)", CLI_FLAG, offsetof(words, rerun) },
    { "--shard", "I/N", "the I-th of N parts of the rounds (1/N .. N/N); the JSON of all parts adds up", CLI_STR,
      offsetof(words, shard) },
    { "--waivers", "F", "known gaps (sparktape report --help): exit 0 where they cover every issue", CLI_IN,
      offsetof(words, waivers) },
    { "--all", NULL, "every line, not the first ones of each kind", CLI_FLAG, offsetof(words, all) },
};

/* ---- what to judge ---- */

typedef struct session {
    fmt_tape *tape;
    eng_weights *weights;
    int32_t *rounds, n_rounds, n_rounds_all; /* all: of every part */
    rpl_certificate certificate;
    rpl_waivers waivers;
    rpl_causes causes;
    rpl_controls controls;
} session;

/* Indices of the wanted rounds; the parts of --shard take turns, so that they are of one size. */
static err_code choose_rounds(session *s, const words *w, int32_t shard, int32_t n_shards, err *e)
{
    cap_round_list list;
    const int32_t *number;
    size_t n = fmt_tape_rounds(s->tape, &number);
    if (w->rounds) TRY(cap_round_list_parse(w->rounds, "--rounds", &list, e));
    s->rounds = mem_alloc(n + 1, sizeof *s->rounds);
    if (!s->rounds) return err_set(e, ERR_NOMEM, "certify: no memory for %zu rounds", n);
    for (size_t i = 0; i < n; i++) {
        if (w->rounds && !cap_round_list_has(&list, number[i])) continue;
        if (s->n_rounds_all++ % n_shards == shard - 1) s->rounds[s->n_rounds++] = (int32_t)i;
    }
    if (w->rounds && s->n_rounds_all == 0)
        return err_set(e, ERR_ARG, "--rounds %s: %s has no such round", w->rounds, fmt_tape_path(s->tape));
    return ERR_OK;
}

static err_code make_options(session *s, const words *w, const cli_common *common, rpl_certify_options *o, err *e)
{
    *o = rpl_certify_options_of(s->tape);
    o->taps = w->tap;
    o->sharpness = w->sharpness;
    o->threads = (int32_t)common->threads;
    s->causes = (rpl_causes){ .tape = s->tape, .n_ranks = o->n_ranks };
    o->explain = rpl_cause_explain;
    o->explain_ctx = &s->causes;
    return rpl_bound_parse(w->bound, &o->bound, e);
}

/* Of the rounds that are judged. */
static err_code make_controls(session *s, const cli_common *common, err *e)
{
    const int32_t *number;
    size_t n = fmt_tape_rounds(s->tape, &number);
    eng_options run;
    eng_fault fault;
    TRY(rpl_controls_options(s->tape, common->threads, &run, &fault, e));
    bool *only = mem_alloc(n + 1, sizeof *only);
    if (!only) return err_set(e, ERR_NOMEM, "certify: no memory for %zu rounds", n);
    for (int32_t i = 0; i < s->n_rounds; i++) only[s->rounds[i]] = true;
    err_code rc = rpl_controls_make(s->tape, s->weights, &run, (size_t)s->n_rounds < n ? only : NULL, RPL_CONTROL_RUNS,
                                    common->quiet, &s->controls, e);
    free(only);
    s->causes.controls = &s->controls;
    return rc;
}

static void one_done(void *ctx) { progress_add(ctx, 1); }

static err_code judge(session *s, const rpl_certify_options *o, bool quiet, double *seconds, err *e)
{
    progress p;
    const rpl_certify_job job = { s->rounds, s->n_rounds, one_done, &p };
    uint64_t start = clock_ns();
    progress_begin(&p, "judging", (uint64_t)s->n_rounds, quiet);
    err_code rc = rpl_certify_tape(s->tape, s->weights, o, &job, &s->certificate, e);
    progress_end(&p);
    *seconds = (double)(clock_ns() - start) * 1e-9;
    return rc;
}

static err_code certify(session *s, const cli_args *args, const words *w, const cli_common *common, int *exit_status,
                        err *e)
{
    rpl_certify_options o;
    int32_t shard, n_shards;
    double seconds;
#ifdef _OPENMP
    if (common->threads > 0) omp_set_num_threads((int)common->threads);
#endif
    TRY(rpl_shard_parse(w->shard, &shard, &n_shards, e));
    if (w->waivers) {
        TRY(cli_utf8(args->item[0], "as waivers speak about results in JSON", e));
        TRY(rpl_waivers_read(w->waivers, &s->waivers, e));
    }
    TRY(fmt_tape_open(args->item[0], &s->tape, e));
    TRY(make_options(s, w, common, &o, e));
    TRY(choose_rounds(s, w, shard, n_shards, e));
    TRY(eng_weights_open(args->item[1], common->quiet, &s->weights, e));
    TRY(eng_identity_check(json_object_get(fmt_tape_head(s->tape), "identity"), s->weights, e));
    bool damaged = rpl_warn_of_damage(s->tape);
    interrupt_catch();
    if (w->rerun) TRY(make_controls(s, common, e));
    TRY(judge(s, &o, common->quiet, &seconds, e));
    const rpl_certificate *c = &s->certificate;
    s->certificate.damaged = damaged || c->damaged;
    if (w->tap && c->n_values == 0 && c->n_not_judged == 0 && !c->interrupted && s->n_rounds)
        return err_set(e, ERR_ARG, "--tap %s: %s has no such value", w->tap, fmt_tape_path(s->tape));
    const rpl_coverage coverage = { shard, n_shards, c->n_rounds, c->n_rounds_wanted, s->n_rounds_all, c->interrupted,
                                    c->damaged };
    rpl_certify_report r = { c, s->tape, s->weights, o.bound, coverage, seconds, w->sharpness, w->all, false };
    *exit_status = rpl_coverage_exit(rpl_certify_verdict(&r));
    const bool waive = w->waivers && *exit_status;
    if (!common->json && !waive) return rpl_certify_print(&r, e);
    json_t *j = rpl_options_json(rpl_certify_json(&r), w->rounds, w->tap);
    if (!j) return err_set(e, ERR_NOMEM, "certify: no memory for the report");
    err_code rc = waive ? rpl_report_waive(j, &s->waivers, NULL, exit_status, e) : ERR_OK;
    r.waived = waive && *exit_status == 0;
    if (rc == ERR_OK && !common->json) rc = rpl_certify_print(&r, e);
    if (rc == ERR_OK && !common->json && waive) rc = rpl_report_waive(j, &s->waivers, stdout, exit_status, e);
    if (rc == ERR_OK && waive && json_object_set_new(j, "waived", json_boolean(r.waived)) != 0)
        rc = err_set(e, ERR_NOMEM, "certify: no memory for the report");
    if (rc == ERR_OK && common->json) rc = fmt_json_print(stdout, j, e);
    json_decref(j);
    return rc;
}

static const char HELP[] =
    "\nColumns: equal, bits of the mirror; flip, another value that some order of sums gives; illegal, none gives it;\n"
    "distance, of the flip that needed most, in parts of its bound (1: all of it); events, groups of 32 that moved\n"
    "together with their QDQ scale, whose elements are among the flips. Exit: 0 PASS or WAIVED, 1 anything else.\n"
    "\nBounds of an f32 sum S of n products p, A = sum |p|, u = 2^-24: default has room for any usual order; worst for\n"
    "any order at all; sharp for orders that were chosen without a look at the products, where partial sums are a share\n"
    "of S and a random walk. In wide rows sharp is tens of times narrower and catches what the default must let pass, but\n"
    "what FAILs by sharp alone is a hint, no proof: products that rise, fall or change their sign along the index may be\n"
    "outside though they were summed well. Then the default decides.\n";

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { 0 };
    cli_common common;
    cli_args args;
    session s = { 0 };
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        fputs(HELP, stdout);
        return ERR_OK;
    }
    err_code rc = certify(&s, &args, &w, &common, exit_status, e);
    if (s.tape) rc = rpl_say_recover(s.tape, rc, e);
    rpl_certificate_fini(&s.certificate);
    rpl_waivers_fini(&s.waivers);
    rpl_controls_fini(&s.controls);
    free(s.rounds);
    eng_weights_close(s.weights);
    fmt_tape_close(s.tape);
    return rc;
}

const cli_command CMD_CERTIFY = { "certify", "TAPE MODEL", "is every recorded value one that some order of sums gives?",
                                  OPTIONS, (int)COUNT_OF(OPTIONS), run };
