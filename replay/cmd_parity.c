#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "capture/round_list.h"
#include "engine/device.h"
#include "engine/identity.h"
#include "replay/commands.h"
#include "replay/coverage.h"
#include "replay/first.h"
#include "replay/parity.h"
#include "replay/replay.h"
#include "replay/source.h"

typedef struct words {
    const char *arms, *modes, *tps, *backends, *rounds, *shard, *bound;
    int64_t repeat;
    bool poison, first, all;
} words;

static const cli_option OPTIONS[] = {
    { "--arms", "LIST", "arms, commas between (default: the recorded one, then all that run here)", CLI_STR,
      offsetof(words, arms) },
    { "--modes", "LIST", "of eager and graph (default: both)", CLI_STR, offsetof(words, modes) },
    { "--tps", "LIST", "rank counts (default: 1,2). The first arm runs in every mode on every rank count, the others in "
      "the first mode on the first one", CLI_STR, offsetof(words, tps) },
    { "--backend", "LIST", "of cpu and cuda, all ranks on one card (default: cpu, and cuda when it was recorded)", CLI_STR,
      offsetof(words, backends) },
    { "--repeat", "N", "runs of each column, to be the same (default: 2)", CLI_COUNT, offsetof(words, repeat) },
    { "--poison", NULL, "also run with poison in all memory that nothing has written, twice, and name what then changes "
      "(CPU)", CLI_FLAG, offsetof(words, poison) },
    { "--rounds", "LIST", "only these rounds: 7,100-120,every:50", CLI_STR, offsetof(words, rounds) },
    { "--shard", "I/N", "the I-th of N parts of the rounds", CLI_STR, offsetof(words, shard) },
    { "--bound", "BOUND", RPL_BOUND_HELP, CLI_STR, offsetof(words, bound) },
    { "--first-divergence", NULL, "only find the first round in which a column differs from the tape, or from the first "
      "column, by a number for each round; then run that round in full", CLI_FLAG, offsetof(words, first) },
    { "--all", NULL, "every line, not the first ones of each kind", CLI_FLAG, offsetof(words, all) },
};

enum { WORDS_MAX = 16, WORD_BYTES = 48 };
typedef struct word_list { int32_t n; char word[WORDS_MAX][WORD_BYTES]; } word_list;

static err_code split(const char *text, const char *what, word_list *out, err *e)
{
    *out = (word_list){ 0 };
    while (*text) {
        size_t n = strcspn(text, ",");
        if (n == 0 || n >= WORD_BYTES || out->n == WORDS_MAX)
            return err_set(e, ERR_ARG, "%s: found '%.60s', wanted at most %d words with commas", what, text,
                           (int)WORDS_MAX);
        memcpy(out->word[out->n], text, n);
        out->word[out->n++][n] = 0;
        text += n;
        if (*text == ',') text++;
    }
    return out->n ? ERR_OK : err_set(e, ERR_ARG, "%s: found nothing", what);
}

/* ---- columns ---- */

typedef struct session {
    fmt_tape *tape;
    eng_weights *weights;
    rpl_column column[RPL_COLUMNS_MAX];
    int32_t n_columns;
    bool *only;
    int32_t shard, n_shards;
    bool damaged;
    rpl_parity parity;
} session;

static err_code add_column(session *s, const char *arm, const char *backend, const char *mode, const char *tp,
                           const eng_option_words *recorded, int64_t threads, err *e)
{
    rpl_column c = { 0 };
    bool same_arm = recorded->arm && strcmp(arm, recorded->arm) == 0;
    eng_option_words run = { .arm = arm, .backend = backend, .mode = mode, .combine = recorded->combine,
                             .head = same_arm ? recorded->head : NULL };
    TRY(cli_int(tp, "--tps", 1, ENG_RANKS_MAX, &run.tp, e));
    if (strcmp(backend, "cuda") == 0) run.comm = eng_comm_name(ENG_COMM_EMULATED);
    const eng_arm *known = eng_arm_find(arm);
    if (known && known->unsharded && (run.tp > 1 || strcmp(backend, "cpu") != 0)) return ERR_OK; /* only one way to run */
    err_code rc = eng_options_parse(&run, threads, &c.o, e);
    if (rc != ERR_OK) {
        cli_say_as(e, "--arm", "--arms");
        cli_say_as(e, "--mode", "--modes");
        cli_say_as(e, "--tp", "--tps");
        return rc;
    }
    rpl_column_name(&c.o, c.name);
    for (int32_t k = 0; k < s->n_columns; k++)
        if (!s->column[k].tape && strcmp(s->column[k].name, c.name) == 0) return ERR_OK;
    if (s->n_columns == RPL_COLUMNS_MAX) return err_set(e, ERR_ARG, "found more than %d columns", (int)RPL_COLUMNS_MAX);
    s->column[s->n_columns++] = c;
    return ERR_OK;
}

/* The recorded arm, then every other one. */
static void default_arms(const char *recorded, bool all, word_list *out)
{
    *out = (word_list){ 0 };
    const eng_arm *first = eng_arm_find(recorded);
    if (first) snprintf(out->word[out->n++], WORD_BYTES, "%s", first->name);
    for (size_t i = 0; i < eng_arm_count() && out->n < WORDS_MAX && (all || out->n == 0); i++)
        if (eng_arm_at(i) != first) snprintf(out->word[out->n++], WORD_BYTES, "%s", eng_arm_at(i)->name);
}

static err_code make_columns(session *s, const words *w, int64_t threads, err *e)
{
    word_list arms, modes, tps, backends;
    eng_option_words recorded = { 0 };
    rpl_replay_words(s->tape, &recorded);
    rpl_column *tape = &s->column[s->n_columns++];
    snprintf(tape->name, sizeof tape->name, "tape");
    tape->tape = true;
    tape->known = rpl_parity_recorded(s->tape, threads, &tape->o);
    bool cuda = recorded.backend && strcmp(recorded.backend, "cuda") == 0;
    if (w->arms) TRY(split(w->arms, "--arms", &arms, e));
    else default_arms(recorded.arm ? recorded.arm : "", !w->first, &arms);
    TRY(split(w->modes ? w->modes : "eager,graph", "--modes", &modes, e));
    TRY(split(w->tps ? w->tps : "1,2", "--tps", &tps, e));
    TRY(split(w->backends ? w->backends : cuda ? "cpu,cuda" : "cpu", "--backend", &backends, e));
    for (int32_t b = 0; b < backends.n; b++)
        for (int32_t a = 0; a < arms.n; a++)
            for (int32_t t = 0; t < (a ? 1 : tps.n); t++)
                for (int32_t m = 0; m < (a ? 1 : modes.n); m++)
                    TRY(add_column(s, arms.word[a], backends.word[b], modes.word[m], tps.word[t], &recorded, threads, e));
    return ERR_OK;
}

/* Leaves out the arms that nobody asked for and that need a form of the weights which the checkpoint lacks. */
static void drop_columns(session *s)
{
    int32_t n = 0;
    for (int32_t k = 0; k < s->n_columns; k++)
        if (s->column[k].tape || eng_weights_need(s->weights, &s->column[k].o.reps, NULL) == ERR_OK)
            s->column[n++] = s->column[k];
    s->n_columns = n;
}

/* ---- rounds ---- */

/* Flags by the place of a round on the tape; one without inputs cannot be run, and is left out of every part. */
static err_code choose_rounds(session *s, const words *w, err *e)
{
    cap_round_list list;
    int32_t n_listed = 0;
    const int32_t *number;
    size_t n = fmt_tape_rounds(s->tape, &number);
    TRY(rpl_shard_parse(w->shard, &s->shard, &s->n_shards, e));
    if (w->rounds) TRY(cap_round_list_parse(w->rounds, "--rounds", &list, e));
    if (!w->rounds && s->n_shards == 1) return ERR_OK;
    s->only = mem_alloc(n + 1, sizeof *s->only);
    if (!s->only) return err_set(e, ERR_NOMEM, "parity: no memory for %zu rounds", n);
    for (size_t i = 0; i < n; i++)
        if (!w->rounds || cap_round_list_has(&list, number[i])) s->only[i] = n_listed++ % s->n_shards == s->shard - 1;
    if (w->rounds && n_listed == 0)
        return err_set(e, ERR_ARG, "--rounds %s: %s has no such round", w->rounds, fmt_tape_path(s->tape));
    return ERR_OK;
}

/* ---- the first divergence ---- */

static const char *const RULINGS[RPL_RULINGS] = {
    [RPL_RULING_NONE] = "not judged", [RPL_RULING_NOISE] = "order noise: either is legal",
    [RPL_RULING_A_ILLEGAL] = "illegal in ", [RPL_RULING_B_ILLEGAL] = "illegal in ",
};

static const char *first_verdict(const session *s, const rpl_divergence *d)
{
    return d->round >= 0 ? "FAIL" : d->lacking >= 0 ? "INCOMPLETE" : s->damaged ? "PARTIAL" : "PASS";
}

static err_code report_first(const session *s, const rpl_column *a, const rpl_column *b, const rpl_divergence *d, bool json,
                             err *e)
{
    if (json) {
        json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:b, s:b, s:b, s:b}", "schema", 1, "type",
                              "first divergence", "verdict", first_verdict(s, d), "tape", fmt_tape_path(s->tape), "a",
                              a->name, "b", b->name, "rounds", (int)d->n_rounds, "round", (int)d->round, "checks",
                              (int)d->found.checks, "state", d->found.state, "alone", d->alone, "shown", d->shown,
                              "damaged", s->damaged, "partial", s->damaged);
        if (j && d->shown)
            json_object_update_new(j, json_pack("{s:s, s:s, s:i, s:s, s:i, s:i}", "value", d->value, "op", d->op, "slot",
                                                (int)d->slot, "class", rpl_class_text(d->cls), "values_differ",
                                                (int)d->n_differ, "values", (int)d->n_values));
        j = rpl_source_json(j, s->tape);
        err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "parity: no memory for the report");
        json_decref(j);
        return rc;
    }
    printf("%s against %s: ", b->name, a->name);
    if (d->lacking >= 0) {
        printf("INCOMPLETE: round %d drafted, and its drafts are not on the tape\n", d->lacking);
        return ERR_OK;
    }
    if (d->round < 0) {
        if (s->damaged) printf("PARTIAL: the tape has lost values; ");
        printf("%s agree in %d rounds (%d checks); values were not compared\n", a->tape ? "drafts" : "windows and drafts",
               d->n_rounds, d->found.checks);
        return ERR_OK;
    }
    printf("round %d is the first of %d that differs, %s (%d checks)\n", d->round, d->n_rounds,
           d->found.state ? "in its windows" : "in its drafts", d->found.checks);
    bool illegal = d->ruling >= RPL_RULING_A_ILLEGAL;
    if (!d->shown) printf("  run once more, no value of the round differs: it does not happen every time\n");
    else
        printf("  %s %s%s%s%s%s: %d of %d values differ; %lld of its %lld elements, max abs %.3g%s; %s%s\n",
               illegal ? "origin" : rpl_class_text(d->cls), d->value, d->op[0] ? ", op " : "", d->op,
               d->ops[0] ? " of " : "", d->ops, d->n_differ, d->n_values, (long long)(d->m.n - d->m.n_equal),
               (long long)d->m.n, d->m.max_abs, d->alone ? "" : " (only after the rounds before it)", RULINGS[d->ruling],
               !illegal ? "" : d->ruling == RPL_RULING_A_ILLEGAL ? a->name : b->name);
    return ERR_OK;
}

/* Drafts alone are compared, by their hashes: what else has been lost, only a full read of the tape tells. */
static err_code look_for_losses(session *s, err *e)
{
    fmt_tape_report sound;
    if (s->damaged) return ERR_OK;
    TRY(fmt_tape_examine(fmt_tape_path(s->tape), &sound, e));
    if (sound.n_lost_records)
        fprintf(stderr, "%s has lost %llu values; sparktape doctor says more\n", fmt_tape_path(s->tape),
                (unsigned long long)sound.n_lost_records);
    s->damaged = sound.n_lost_records > 0;
    fmt_tape_report_fini(&sound);
    return ERR_OK;
}

static err_code find_first(session *s, const cli_common *common, int *exit_status, err *e)
{
    TRY(look_for_losses(s, e));
    for (int32_t a = 0; a < 2 && a < s->n_columns; a++) /* the tape, and the first column, whose windows are known */
        for (int32_t b = a + 1; b < s->n_columns; b++) {
            rpl_divergence d;
            const rpl_column *x = &s->column[a], *y = &s->column[b];
            TRY(rpl_first_divergence(s->tape, s->weights, x->tape ? NULL : &x->o, &y->o, common->quiet, &d, e));
            TRY(report_first(s, x, y, &d, common->json, e));
            *exit_status |= rpl_coverage_exit(first_verdict(s, &d));
        }
    return ERR_OK;
}

/* ---- run ---- */

static err_code parity(session *s, const cli_args *args, const words *w, const cli_common *common, int *exit_status, err *e)
{
    rpl_parity_options o = { .repeat = w->repeat ? (int32_t)w->repeat : 2, .poison = w->poison,
                             .threads = (int32_t)common->threads, .quiet = common->quiet };
    if (w->repeat > 1000) return err_set(e, ERR_ARG, "--repeat: found %lld, wanted 1 to 1000", (long long)w->repeat);
    if (w->first && (w->rounds || w->shard))
        return err_set(e, ERR_ARG, "--first-divergence: found %s, wanted none: it needs every round",
                       w->rounds ? "--rounds" : "--shard");
    TRY(rpl_bound_parse(w->bound, &o.bound, e));
    TRY(fmt_tape_open(args->item[0], &s->tape, e));
    TRY(make_columns(s, w, common->threads, e));
    TRY(choose_rounds(s, w, e));
    TRY(eng_weights_open(args->item[1], common->quiet, &s->weights, e));
    TRY(eng_identity_check(json_object_get(fmt_tape_head(s->tape), "identity"), s->weights, e));
    if (!w->arms) drop_columns(s);
    s->damaged = rpl_warn_of_damage(s->tape);
    if (w->first) return find_first(s, common, exit_status, e);
    o.column = s->column;
    o.n_columns = s->n_columns;
    o.only = s->only;
    uint64_t start = clock_ns();
    interrupt_catch();
    TRY(rpl_parity_run(s->tape, s->weights, &o, &s->parity, e));
    double seconds = (double)(clock_ns() - start) * 1e-9;
    const rpl_parity *p = &s->parity;
    const rpl_parity_report r = {
        p, s->tape,
        { s->shard, s->n_shards, p->n_rounds, p->n_rounds_wanted, p->n_rounds_all, p->interrupted,
          s->damaged || p->damaged },
        o.repeat, seconds, w->all,
    };
    *exit_status = rpl_coverage_exit(rpl_coverage_verdict(&r.coverage, rpl_parity_verdict(p)));
    if (!common->json) return rpl_parity_print(&r, e);
    json_t *j = rpl_options_json(rpl_parity_json(&r), w->rounds, NULL);
    if (!j) return err_set(e, ERR_NOMEM, "parity: no memory for the report");
    err_code rc = fmt_json_print(stdout, j, e);
    json_decref(j);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { 0 };
    cli_common common;
    cli_args args;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    session *s = mem_alloc(1, sizeof *s);
    if (!s) return err_set(e, ERR_NOMEM, "parity: no memory");
    err_code rc = parity(s, &args, &w, &common, exit_status, e);
    if (s->tape) rc = rpl_say_recover(s->tape, rc, e);
    rpl_parity_fini(&s->parity);
    free(s->only);
    eng_weights_close(s->weights);
    fmt_tape_close(s->tape);
    free(s);
    return rc;
}

const cli_command CMD_PARITY = { "parity", "T MODEL", "runs a tape's rounds in every way and compares them value by value",
                                 OPTIONS, (int)COUNT_OF(OPTIONS), run };
