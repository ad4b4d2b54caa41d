#include "base/mem.h"
#include "engine/identity.h"
#include "replay/commands.h"
#include "replay/compare.h"
#include "replay/replay.h"

#include <unistd.h>

typedef struct words {
    const char *out, *level, *windows, *allow;
    int64_t repeat;
    bool poison;
    eng_option_words run;
} words;

static const cli_option OPTIONS[] = {
    { "-o", "OUT.tape", "the tape to write", CLI_OUT, offsetof(words, out) },
    { "--arm", "ARM", "see sparktape arms (default: the recorded one)", CLI_STR, offsetof(words, run.arm) },
    { "--backend", "NAME", "cpu or cuda (default: as recorded)", CLI_STR, offsetof(words, run.backend) },
    { "--comm", "KIND", "cuda: nccl (a card a rank, default) or emulated (all on one)", CLI_STR,
      offsetof(words, run.comm) },
    { "--tp", "N", "ranks (default: as recorded)", CLI_COUNT, offsetof(words, run.tp) },
    { "--mode", "MODE", "eager or graph (default: as recorded)", CLI_STR, offsetof(words, run.mode) },
    { "--acc", "ACC", "blocked or f64 (default: as recorded)", CLI_STR, offsetof(words, run.acc) },
    { "--combine", "MODE", "exact or fused (default: as recorded)", CLI_STR, offsetof(words, run.combine) },
    { "--head", "HEAD", "official or k6 (default: official)", CLI_STR, offsetof(words, run.head) },
    { "--level", "LEVEL", "io, v1 or deep (default: as recorded)", CLI_STR, offsetof(words, level) },
    { "--windows", "A|B", "A: captured main_x into the rings; B: from the taps (default: B where there are taps)", CLI_STR,
      offsetof(words, windows) },
    { "--repeat", "N", "run N times and demand the same bits of every recorded value", CLI_INT, offsetof(words, repeat) },
    { "--allow-mismatch", "WHAT", "run although WHAT (checkpoint) differs; the new tape says so", CLI_STR,
      offsetof(words, allow) },
    { "--poison", NULL, "not on this build: needs the parity engine", CLI_FLAG, offsetof(words, poison) },
};

static err_code check_words(const words *w, rpl_replay_options *o, err *e)
{
    if (w->poison) return err_set(e, ERR_ARG, "--poison: needs the parity engine, which this build does not have");
    if (!w->out) return err_set(e, ERR_ARG, "-o: found nothing, wanted the tape to write");
    if (w->repeat < 0 || w->repeat > 1000)
        return err_set(e, ERR_ARG, "--repeat: found %lld, wanted 1 to 1000", (long long)w->repeat);
    if (w->allow && strcmp(w->allow, "checkpoint") != 0)
        return err_set(e, ERR_ARG, "--allow-mismatch: found '%s', wanted checkpoint", w->allow);
    if (w->windows && strcmp(w->windows, "A") != 0 && strcmp(w->windows, "B") != 0)
        return err_set(e, ERR_ARG, "--windows: found '%s', wanted A or B", w->windows);
    if (w->windows) o->windows = w->windows[0] == 'A' ? RPL_WINDOWS_A : RPL_WINDOWS_B;
    if (w->level && (!eng_level_parse(w->level, &o->level) || o->level == ENG_LEVEL_OFF))
        return err_set(e, ERR_ARG, "--level: found '%s', wanted io, v1 or deep", w->level);
    return ERR_OK;
}

/* Everything a replay holds open. */
typedef struct session {
    fmt_tape *tape, *first;
    eng_weights *weights;
    json_t *identity;
    char *repeat_path;
    bool mismatch; /* the checkpoint differs, and that was allowed */
} session;

static err_code check_identity(session *s, const words *w, err *e)
{
    const json_t *recorded = json_object_get(fmt_tape_head(s->tape), "identity");
    err_code rc = eng_identity_check(recorded, s->weights, e);
    if (rc == ERR_IDENTITY && w->allow) {
        s->mismatch = true;
        return ERR_OK;
    }
    if (rc == ERR_IDENTITY) {
        size_t n = strlen(e->msg);
        snprintf(e->msg + n, sizeof e->msg - n, "; --allow-mismatch checkpoint runs it all the same");
    }
    return rc;
}

/* The new tape's identity: what runs, that it is a replay, and what it was told to overlook. */
static err_code make_identity(session *s, const rpl_replay_options *o, err *e)
{
    static const char *const WINDOWS[] = { "auto", "A", "B" };
    const json_t *recorded = json_object_get(json_object_get(fmt_tape_head(s->tape), "identity"), "checkpoint");
    s->identity = eng_identity(s->weights, &o->run);
    json_t *replay = json_pack("{s:s}", "windows", WINDOWS[o->windows]);
    bool fine = s->identity && replay;
    if (fine && s->mismatch)
        fine = json_object_set_new(replay, "allowed_mismatch", json_pack("{s:O}", "checkpoint", recorded)) == 0;
    if (s->identity && replay) fine = json_object_set_new(s->identity, "replay", replay) == 0 && fine;
    else json_decref(replay);
    return fine ? ERR_OK : err_set(e, ERR_NOMEM, "replay: no memory for the identity");
}

/* Runs 2 .. n, each against the first. *stable false: what names the first difference. */
static err_code repeat_runs(session *s, const rpl_replay_options *o, const words *w, bool *stable, char what[192], err *e)
{
    *stable = true;
    if (w->repeat > 1 && asprintf(&s->repeat_path, "%s.repeat", w->out) < 0) {
        s->repeat_path = NULL;
        return err_set(e, ERR_NOMEM, "replay: no memory");
    }
    for (int64_t i = 1; *stable && i < w->repeat; i++) {
        fmt_tape *again = NULL;
        TRY(rpl_replay_run(s->tape, s->weights, o, s->identity, s->repeat_path, e));
        err_code rc = fmt_tape_open(s->repeat_path, &again, e);
        if (rc == ERR_OK) *stable = rpl_replay_same(s->first, again, what);
        fmt_tape_close(again);
        unlink(s->repeat_path);
        TRY(rc);
    }
    return ERR_OK;
}

/* Source against replay, over the values that both hold. */
typedef struct outcome { int64_t values, values_equal, blocks, blocks_exact; } outcome;

static err_code compare(const session *s, outcome *out, err *e)
{
    rpl_compare *c;
    *out = (outcome){ 0 };
    TRY(rpl_compare_open(s->tape, s->first, eng_weights_config(s->weights), NULL, &c, e));
    err_code rc = ERR_OK;
    for (int32_t i = 0; rc == ERR_OK && i < rpl_compare_rounds(c); i++) {
        const rpl_round *r;
        rc = rpl_compare_round(c, i, &r, e);
        for (int32_t k = 0; rc == ERR_OK && k < r->n_values; k++) {
            const rpl_value *v = &r->value[k];
            if (v->state == RPL_STATE_ONLY_A || v->state == RPL_STATE_ONLY_B || v->state == RPL_STATE_UNKNOWN) continue;
            out->values++;
            out->values_equal += v->cls == RPL_CLASS_EQUAL;
        }
        for (int32_t k = 0; rc == ERR_OK && k < r->n_drafts; k++) {
            out->blocks++;
            out->blocks_exact += r->draft[k].exact;
        }
    }
    rpl_compare_close(c);
    return rc;
}

static err_code report(const session *s, const words *w, const outcome *o, bool stable, const char *what, bool json, err *e)
{
    bool same = o->values > 0 && o->values == o->values_equal && o->blocks == o->blocks_exact;
    if (json) {
        json_t *j =
            json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:b, s:I, s:b, s:s?}", "schema", 1, "verdict",
                      !stable ? "UNSTABLE"
                      : same  ? "SAME"
                              : "DIFFERENT",
                      "source", fmt_tape_path(s->tape), "tape", w->out, "drafts", (json_int_t)o->blocks, "drafts_equal",
                      (json_int_t)o->blocks_exact, "values", (json_int_t)o->values, "values_equal",
                      (json_int_t)o->values_equal, "stable", stable, "repeat", (json_int_t)(w->repeat ? w->repeat : 1),
                      "allowed_mismatch", s->mismatch, "unstable_value", stable ? NULL : what);
        if (!j) return err_set(e, ERR_NOMEM, "replay: no memory for the report");
        err_code rc = fmt_json_print(stdout, j, e);
        json_decref(j);
        return rc;
    }
    if (s->mismatch) printf("the checkpoint is not the recorded one (allowed)\n");
    if (!stable) printf("unstable: %s differs between two runs of the same rounds\n", what);
    else if (w->repeat > 1) printf("stable: %lld runs, the same bits in every recorded value\n", (long long)w->repeat);
    printf("%s: %s  drafts equal %lld/%lld, values equal %lld/%lld\n", w->out, same ? "SAME" : "DIFFERENT",
           (long long)o->blocks_exact, (long long)o->blocks, (long long)o->values_equal, (long long)o->values);
    if (o->values == 0) printf("nothing compared: the two tapes share no value\n");
    else if (!same) printf("look closer: sparktape diff %s %s\n", fmt_tape_path(s->tape), w->out);
    return ERR_OK;
}

static err_code replay(session *s, const cli_args *args, const cli_common *common, words *w, int *exit_status, err *e)
{
    rpl_replay_options o = { .quiet = common->quiet };
    bool stable;
    char what[192] = "";
    outcome result;
    TRY(check_words(w, &o, e));
    TRY(fmt_tape_open(args->item[0], &s->tape, e));
    rpl_replay_words(s->tape, &w->run);
    if (!w->level) o.level = rpl_replay_level(s->tape);
    TRY(eng_options_parse(&w->run, common->threads, &o.run, e));
    TRY(eng_weights_open(args->item[1], common->quiet, &s->weights, e));
    TRY(check_identity(s, w, e));
    TRY(make_identity(s, &o, e));
    TRY(rpl_replay_run(s->tape, s->weights, &o, s->identity, w->out, e));
    TRY(fmt_tape_open(w->out, &s->first, e));
    TRY(repeat_runs(s, &o, w, &stable, what, e));
    TRY(compare(s, &result, e));
    TRY(report(s, w, &result, stable, what, common->json, e));
    bool same = result.values > 0 && result.values == result.values_equal && result.blocks == result.blocks_exact;
    *exit_status = same && stable ? 0 : 1;
    return ERR_OK;
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
    err_code rc = replay(&s, &args, &common, &w, exit_status, e);
    json_decref(s.identity);
    fmt_tape_close(s.first);
    fmt_tape_close(s.tape);
    eng_weights_close(s.weights);
    free(s.repeat_path);
    return rc;
}

const cli_command CMD_REPLAY = { "replay", "T MODEL", "re-executes a tape and records it anew", OPTIONS,
                                 (int)COUNT_OF(OPTIONS), run };
