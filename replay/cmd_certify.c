#include "base/clock.h"
#include "base/mem.h"
#include "capture/round_list.h"
#include "engine/identity.h"
#include "replay/cause.h"
#include "replay/certify.h"
#include "replay/commands.h"
#include "replay/shard.h"

#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct words {
    const char *rounds, *tap, *bound, *shard;
    bool sharpness, all;
} words;

static const cli_option OPTIONS[] = {
    { "--rounds", "LIST", "only these rounds: 7,100-120,every:50", CLI_STR, offsetof(words, rounds) },
    { "--tap", "PATTERN", "only values whose name matches (* and ?, commas between patterns)", CLI_STR,
      offsetof(words, tap) },
    { "--bound", "BOUND", "default: 6 u sqrt(n) A of a sum; worst: n u A", CLI_STR, offsetof(words, bound) },
    { "--sharpness", NULL, "also count wrong neighbours, 1 and 2 ulps away, that would pass (slow)", CLI_FLAG,
      offsetof(words, sharpness) },
    { "--shard", "I/N", "the I-th of N parts of the rounds (1/N .. N/N); the JSON of all parts adds up", CLI_STR,
      offsetof(words, shard) },
    { "--all", NULL, "every line, not the first ones of each kind", CLI_FLAG, offsetof(words, all) },
};

/* ---- Ctrl-C ---- */

static volatile sig_atomic_t stop;

/* Once: a second one ends the process as usual. */
static void on_interrupt(int number)
{
    (void)number;
    stop = 1;
}

static void catch_interrupt(struct sigaction *before)
{
    struct sigaction a = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };
    stop = 0;
    sigaction(SIGINT, &a, before);
}

/* ---- what to judge ---- */

typedef struct session {
    fmt_tape *tape;
    eng_weights *weights;
    int32_t *rounds, n_rounds;
    rpl_certificate certificate;
    rpl_causes causes;
} session;

/* Indices of the wanted rounds; the parts of --shard take turns, so that they are of one size. */
static err_code choose_rounds(session *s, const words *w, int32_t shard, int32_t n_shards, err *e)
{
    cap_round_list list;
    const int32_t *number;
    size_t n = fmt_tape_rounds(s->tape, &number);
    int32_t n_listed = 0;
    if (w->rounds) TRY(cap_round_list_parse(w->rounds, "--rounds", &list, e));
    s->rounds = mem_alloc(n + 1, sizeof *s->rounds);
    if (!s->rounds) return err_set(e, ERR_NOMEM, "certify: no memory for %zu rounds", n);
    for (size_t i = 0; i < n; i++) {
        if (w->rounds && !cap_round_list_has(&list, number[i])) continue;
        if (n_listed++ % n_shards == shard - 1) s->rounds[s->n_rounds++] = (int32_t)i;
    }
    if (w->rounds && n_listed == 0)
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
    if (!w->bound || strcmp(w->bound, "default") == 0) return ERR_OK;
    if (strcmp(w->bound, "worst") != 0)
        return err_set(e, ERR_ARG, "--bound: found '%s', wanted default or worst", w->bound);
    o->bound = RPL_BOUND_WORST;
    return ERR_OK;
}

static void one_done(void *ctx) { progress_add(ctx, 1); }

static err_code judge(session *s, const rpl_certify_options *o, bool quiet, double *seconds, err *e)
{
    progress p;
    struct sigaction before;
    const rpl_certify_job job = { s->rounds, s->n_rounds, &stop, one_done, &p };
    uint64_t start = clock_ns();
    catch_interrupt(&before);
    progress_begin(&p, "judging", (uint64_t)s->n_rounds, quiet);
    err_code rc = rpl_certify_tape(s->tape, s->weights, o, &job, &s->certificate, e);
    progress_end(&p);
    sigaction(SIGINT, &before, NULL);
    *seconds = (double)(clock_ns() - start) * 1e-9;
    return rc;
}

/* A tape that lost something may have lost what is illegal. */
static bool warn_of_damage(const fmt_tape *t)
{
    const fmt_tape_fault *faults;
    size_t n = fmt_tape_damage(t, &faults);
    if (n > 0)
        fprintf(stderr, "%s is damaged (%s): what is left is judged; sparktape doctor says more\n", fmt_tape_path(t),
                faults[0].what);
    else if (!fmt_tape_finished(t)) fprintf(stderr, "%s is unfinished: what is there is judged\n", fmt_tape_path(t));
    return n > 0 || !fmt_tape_finished(t);
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
    TRY(fmt_tape_open(args->item[0], &s->tape, e));
    TRY(make_options(s, w, common, &o, e));
    TRY(choose_rounds(s, w, shard, n_shards, e));
    TRY(eng_weights_open(args->item[1], common->quiet, &s->weights, e));
    TRY(eng_identity_check(json_object_get(fmt_tape_head(s->tape), "identity"), s->weights, e));
    bool damaged = warn_of_damage(s->tape);
    TRY(judge(s, &o, common->quiet, &seconds, e));
    const rpl_certificate *c = &s->certificate;
    s->certificate.damaged = damaged;
    if (w->tap && c->n_values == 0 && c->n_not_judged == 0 && !c->interrupted && s->n_rounds)
        return err_set(e, ERR_ARG, "--tap %s: %s has no such value", w->tap, fmt_tape_path(s->tape));
    const rpl_certify_report r = { c, s->tape, s->weights, o.bound, shard, n_shards, seconds, w->sharpness, w->all };
    *exit_status = strcmp(rpl_certificate_verdict(c), "PASS") == 0 ? 0 : 1;
    if (!common->json) return rpl_certify_print(&r, e);
    json_t *j = rpl_certify_json(&r);
    if (!j) return err_set(e, ERR_NOMEM, "certify: no memory for the report");
    err_code rc = fmt_json_print(stdout, j, e);
    json_decref(j);
    return rc;
}

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
        return ERR_OK;
    }
    err_code rc = certify(&s, &args, &w, &common, exit_status, e);
    rpl_certificate_fini(&s.certificate);
    free(s.rounds);
    eng_weights_close(s.weights);
    fmt_tape_close(s.tape);
    return rc;
}

const cli_command CMD_CERTIFY = { "certify", "TAPE MODEL", "is every recorded value one that some order of sums gives?",
                                  OPTIONS, (int)COUNT_OF(OPTIONS), run };
