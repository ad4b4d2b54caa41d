#include "base/mem.h"
#include "engine/identity.h"
#include "replay/commands.h"
#include "replay/compare.h"
#include "replay/coverage.h"
#include "replay/inject.h"
#include "replay/replay.h"
#include "replay/trace.h"

#include <unistd.h>

typedef struct words {
    const char *out, *level, *windows, *allow, *redact;
    int64_t repeat;
    bool poison;
    eng_option_words run;
} words;

static const cli_option OPTIONS[] = {
    { "-o", "OUT.tape", "the tape to write", CLI_NEW, offsetof(words, out) },
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
    { "--redact", "KEYFILE", "the key of a redacted tape: all of it is checked, the new tape has the same key", CLI_IN,
      offsetof(words, redact) },
    { "--poison", NULL, "also run with poison in all memory that nothing has written, twice, and name what then changes "
      "(CPU)", CLI_FLAG, offsetof(words, poison) },
};

static err_code check_words(const words *w, rpl_replay_options *o, err *e)
{
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
    cap_redact *redact;
    rpl_replay_report report; /* of the first run */
    char *repeat_path;
    bool mismatch; /* the checkpoint differs, and that was allowed */
    int64_t poisoned;   /* values that change when unwritten memory holds poison */
    char poisoned_at[200]; /* the first of them */
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

/* A redacted tape is replayed with its key, or without what reads the embedding. */
static err_code open_redact(session *s, const words *w, err *e)
{
    const char *key = cap_redact_key_of(s->tape);
    if (!key && w->redact)
        return err_set(e, ERR_ARG, "--redact: %s is not redacted, wanted a tape that is", fmt_tape_path(s->tape));
    if (!key) return ERR_OK;
    if (!w->redact) return cap_redact_inherit(s->tape, &s->redact, e);
    TRY(cap_redact_open(w->redact, false, eng_weights_config(s->weights)->vocab, &s->redact, e));
    if (strcmp(cap_redact_key(s->redact), key) == 0) return ERR_OK;
    return err_set(e, ERR_INPUT, "--redact %s: found key %s, wanted %s, the one of %s", w->redact,
                   cap_redact_key(s->redact), key, fmt_tape_path(s->tape));
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
    rpl_replay_options once_more = *o;
    once_more.report = NULL;
    for (int64_t i = 1; *stable && i < w->repeat; i++) {
        fmt_tape *again = NULL;
        TRY(rpl_replay_run(s->tape, s->weights, &once_more, s->identity, s->repeat_path, e));
        err_code rc = fmt_tape_open(s->repeat_path, &again, e);
        if (rc == ERR_OK) *stable = rpl_replay_same(s->first, again, what);
        fmt_tape_close(again);
        unlink(s->repeat_path);
        TRY(rc);
    }
    return ERR_OK;
}

/* Runs without a tape: once as it is, then with each poison. */
static err_code run_poisoned(session *s, const rpl_replay_options *o, err *e)
{
    rpl_layout *l;
    rpl_runner *r = NULL;
    rpl_trace clean = { 0 };
    rpl_poisoned found = { .first = -1 };
    if (cap_redact_key_of(s->tape))
        return err_set(e, ERR_INPUT, "--poison: %s is redacted, wanted a tape whose tokens can be run",
                       fmt_tape_path(s->tape));
    TRY(rpl_layout_make(s->tape, eng_weights_config(s->weights), NULL, &l, e));
    err_code rc = rpl_trace_init(&clean, l, e);
    if (rc == ERR_OK) rc = rpl_runner_open(s->tape, s->weights, l, &o->run, true, o->quiet, &r, e);
    if (rc == ERR_OK) rc = rpl_runner_run(r, &clean, NULL, e);
    rpl_runner_close(r);
    if (rc == ERR_OK)
        rc = rpl_trace_poisoned(s->tape, s->weights, l, &o->run, &clean, NULL, o->quiet, &found, e);
    s->poisoned = found.n;
    if (found.first >= 0) rpl_row_text(rpl_layout_at(l, found.first), s->poisoned_at, sizeof s->poisoned_at);
    rpl_trace_fini(&clean);
    rpl_layout_free(l);
    return rc;
}

/* Source against replay, over the values that both hold. */
typedef struct outcome {
    int64_t values, values_equal, blocks, blocks_exact;
    int64_t hidden; /* values that could not be checked without the key */
    char repeat[192]; /* what a diff of the two tapes does not show of what differs; "" nothing */
} outcome;

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
            if (v->state == RPL_STATE_REDACTED) {
                out->hidden++;
                continue;
            }
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
    rpl_repeats repeats;
    rpl_replay_repeats(s->tape, s->first, &repeats);
    out->values += repeats.n;
    out->values_equal += repeats.n_equal;
    memcpy(out->repeat, repeats.first, sizeof out->repeat);
    return rc;
}

static bool is_same(const outcome *o)
{
    return o->values > 0 && o->values == o->values_equal && o->blocks == o->blocks_exact;
}

static const char *verdict_of(const session *s, const outcome *o, bool stable)
{
    if (!stable) return "UNSTABLE";
    if (s->poisoned) return "POISONED";
    if (!is_same(o) || s->report.n_contradictions) return "DIFFERENT";
    return s->report.n_left_out || o->hidden ? "INCOMPLETE" : rpl_tape_damaged(s->tape) ? "PARTIAL" : "SAME";
}

/* Adds what a tape of chosen rounds brings up. */
static err_code add_chosen(const rpl_replay_report *r, json_t *j, err *e)
{
    json_t *left_out = json_array(), *contradictions = json_array();
    for (size_t i = 0; i < r->n_left_out; i++) {
        const rpl_left_out *l = &r->left_out[i];
        fmt_json_add(&left_out, json_pack("{s:i, s:i, s:i, s:i, s:s}", "round", (int)l->round, "slot", (int)l->slot,
                                          "from", (int)l->from, "to", (int)l->to, "wanted", l->wanted));
    }
    for (size_t i = 0; i < r->n_contradictions; i++) {
        const rpl_contradiction *c = &r->contradiction[i];
        fmt_json_add(&contradictions,
                     json_pack("{s:i, s:i, s:i, s:s, s:i, s:i, s:i, s:i}", "round", (int)c->round, "before",
                               (int)c->before, "slot", (int)c->slot, "window", c->window, "position",
                               (int)c->position, "row", (int)c->row, "rows", (int)c->n_rows, "of",
                               (int)c->n_shared));
    }
    int rc = json_object_set_new(j, "rounds", json_integer(r->rounds));
    rc |= json_object_set_new(j, "windows_restored", json_integer((json_int_t)r->windows_restored));
    rc |= json_object_set_new(j, "not_replayed", left_out);
    rc |= json_object_set_new(j, "contradictions", contradictions);
    return rc == 0 ? ERR_OK : err_set(e, ERR_NOMEM, "replay: no memory for the report");
}

/* The first lines of each kind; the JSON has all of them. */
static void print_chosen(const rpl_replay_report *r)
{
    enum { LINES = 20 };
    char text[256];
    for (size_t i = 0; i < r->n_left_out && i < LINES; i++)
        printf("%s\n", rpl_left_out_text(&r->left_out[i], text, sizeof text));
    if (r->n_left_out > LINES) printf("... and %zu more\n", r->n_left_out - LINES);
    for (size_t i = 0; i < r->n_contradictions && i < LINES; i++)
        printf("%s\n", rpl_contradiction_text(&r->contradiction[i], text, sizeof text));
    if (r->n_contradictions > LINES) printf("... and %zu more\n", r->n_contradictions - LINES);
    if (r->windows_restored)
        printf("chosen rounds: %lld windows taken from the tape before a round\n", (long long)r->windows_restored);
    if (r->rounds_left_out) printf("not replayed: the drafts of %d of %d rounds\n", r->rounds_left_out, r->rounds);
}

static err_code report(const session *s, const words *w, const outcome *o, bool stable, const char *what, bool json, err *e)
{
    const char *verdict = verdict_of(s, o, stable);
    if (json) {
        json_t *j =
            json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:b, s:I, s:b, s:s?, s:I, s:b}", "schema", 1, "verdict",
                      verdict, "source", fmt_tape_path(s->tape), "tape", w->out, "drafts", (json_int_t)o->blocks,
                      "drafts_equal", (json_int_t)o->blocks_exact, "values", (json_int_t)o->values, "values_equal",
                      (json_int_t)o->values_equal, "stable", stable, "repeat", (json_int_t)(w->repeat ? w->repeat : 1),
                      "allowed_mismatch", s->mismatch, "unstable_value", stable ? NULL : what, "redacted",
                      (json_int_t)o->hidden, "damaged", rpl_tape_damaged(s->tape));
        if (!j) return err_set(e, ERR_NOMEM, "replay: no memory for the report");
        err_code rc = add_chosen(&s->report, j, e);
        if (rc == ERR_OK && w->poison &&
            (json_object_set_new(j, "poisoned", json_integer((json_int_t)s->poisoned)) != 0 ||
             json_object_set_new(j, "poisoned_value", s->poisoned ? json_string(s->poisoned_at) : json_null()) != 0))
            rc = err_set(e, ERR_NOMEM, "replay: no memory for the report");
        if (rc == ERR_OK) rc = fmt_json_print(stdout, j, e);
        json_decref(j);
        return rc;
    }
    print_chosen(&s->report);
    char planted[RPL_INJECTED_TEXT];
    const char *injected = rpl_injected(json_object_get(fmt_tape_head(s->tape), "identity"), planted);
    if (injected) printf("injected: %s\n", injected);
    if (s->mismatch) printf("the checkpoint is not the recorded one (allowed)\n");
    if (s->poisoned)
        printf("poison: %lld values change when unwritten memory holds it, first %s\n", (long long)s->poisoned,
               s->poisoned_at);
    else if (w->poison) printf("poison: no value changes, whatever unwritten memory holds\n");
    if (!stable) printf("unstable: %s differs between two runs of the same rounds\n", what);
    else if (w->repeat > 1) printf("stable: %lld runs, the same bits in every recorded value\n", (long long)w->repeat);
    printf("%s: %s  drafts equal %lld/%lld, values equal %lld/%lld\n", w->out, verdict,
           (long long)o->blocks_exact, (long long)o->blocks, (long long)o->values_equal, (long long)o->values);
    if (o->hidden)
        printf("redacted (key %s): %lld values that depend on token ids were not checked; --redact KEYFILE checks them\n",
               cap_redact_key_of(s->tape), (long long)o->hidden);
    if (rpl_tape_damaged(s->tape))
        printf("%s is damaged or unfinished: what is left of it was replayed\n", fmt_tape_path(s->tape));
    if (o->repeat[0]) printf("%s differs\n", o->repeat);
    if (o->values == 0) printf("nothing compared: the two tapes share no value\n");
    else if (!is_same(o))
        printf("look closer: sparktape diff %s %s\n"
               "is it legal? sparktape certify %s %s\n", fmt_tape_path(s->tape), w->out, fmt_tape_path(s->tape),
               eng_weights_folder(s->weights));
    return ERR_OK;
}

static err_code replay(session *s, const cli_args *args, const cli_common *common, words *w, int *exit_status, err *e)
{
    rpl_replay_options o = { .quiet = common->quiet, .report = &s->report };
    bool stable;
    char what[192] = "";
    outcome result;
    TRY(check_words(w, &o, e));
    TRY(fmt_tape_open(args->item[0], &s->tape, e));
    rpl_replay_words(s->tape, &w->run);
    if (!w->level) o.level = rpl_replay_level(s->tape);
    TRY(eng_options_parse(&w->run, common->threads, &o.run, e));
    if (w->poison && o.run.backend == ENG_BACKEND_CUDA)
        return err_set(e, ERR_ARG, "--poison: found --backend cuda, wanted cpu");
    TRY(eng_weights_open(args->item[1], common->quiet, &s->weights, e));
    TRY(check_identity(s, w, e));
    TRY(open_redact(s, w, e));
    o.redact = s->redact;
    TRY(make_identity(s, &o, e));
    TRY(rpl_replay_run(s->tape, s->weights, &o, s->identity, w->out, e));
    TRY(fmt_tape_open(w->out, &s->first, e));
    TRY(repeat_runs(s, &o, w, &stable, what, e));
    if (w->poison) TRY(run_poisoned(s, &o, e));
    TRY(compare(s, &result, e));
    TRY(report(s, w, &result, stable, what, common->json, e));
    *exit_status = strcmp(verdict_of(s, &result, stable), "SAME") == 0 ? 0 : 1;
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
    cap_redact_close(s.redact);
    free(s.repeat_path);
    rpl_replay_report_fini(&s.report);
    return rc;
}

const cli_command CMD_REPLAY = { "replay", "T MODEL", "re-executes a tape and records it anew", OPTIONS,
                                 (int)COUNT_OF(OPTIONS), run };
