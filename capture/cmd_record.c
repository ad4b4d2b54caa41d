#include <signal.h>

#include "base/clock.h"
#include "base/mem.h"
#include "capture/commands.h"
#include "capture/prove.h"
#include "capture/recorder.h"
#include "capture/redact.h"
#include "capture/round_list.h"
#include "engine/identity.h"

typedef struct record_words {
    const char *script, *out, *level, *rounds, *on_full, *base, *redact;
    bool prove;
    int64_t memory_mib, depth, flight;
    cli_list taps, when;
    eng_option_words run;
} record_words;

static const cli_option OPTIONS[] = {
    { "--script", "S", "the rounds to run (a script, or an export)", CLI_IN, offsetof(record_words, script) },
    { "-o", "T.tape", "the tape to write (default: the script's name with .tape, here)", CLI_NEW,
      offsetof(record_words, out) },
    { "--arm", "ARM", "see sparktape arms (default: native-packed)", CLI_STR, offsetof(record_words, run.arm) },
    { "--backend", "NAME", "cpu (default) or cuda", CLI_STR, offsetof(record_words, run.backend) },
    { "--comm", "KIND", "cuda: nccl (a card a rank, default) or emulated (all on one)", CLI_STR,
      offsetof(record_words, run.comm) },
    { "--bootstrap", "HOST:PORT", "cuda: this process is one rank; rank 0 listens there for the others", CLI_STR,
      offsetof(record_words, run.bootstrap) },
    { "--rank", "R", "which rank this process is, with --bootstrap (default: 0)", CLI_INT,
      offsetof(record_words, run.rank) },
    { "--tp", "N", "ranks (default: 1)", CLI_COUNT, offsetof(record_words, run.tp) },
    { "--mode", "MODE", "eager (default) or graph", CLI_STR, offsetof(record_words, run.mode) },
    { "--acc", "ACC", "blocked or f64 (default: the arm's)", CLI_STR, offsetof(record_words, run.acc) },
    { "--combine", "MODE", "exact (default) or fused", CLI_STR, offsetof(record_words, run.combine) },
    { "--head", "HEAD", "official (default) or k6", CLI_STR, offsetof(record_words, run.head) },
    { "--level", "LEVEL", "io, v1 (default) or deep", CLI_STR, offsetof(record_words, level) },
    { "--tap", "PATTERN=TIER", "keep matching values as tensor, stats, hash or off; may be repeated, later ones win",
      CLI_MULTI, offsetof(record_words, taps) },
    { "--rounds", "LIST", "rounds to keep: N, A-B, A-, every:N, p:P@SEED, with commas (default: all of them)",
      CLI_STR, offsetof(record_words, rounds) },
    { "--when", "CONDITION", "keep rounds on which it holds: nan, range:LO..HI (a value outside), differs:TAPE (each of "
      "all values, or with @PATTERN of some) or acceptance:X (below X); may be repeated", CLI_MULTI,
      offsetof(record_words, when) },
    { "--flight", "N", "and the N rounds before, from memory; SIGUSR1 asks for them too", CLI_COUNT,
      offsetof(record_words, flight) },
    { "--on-full", "WHAT", "when the writer cannot keep up: block (default) or drop the round, counted", CLI_STR,
      offsetof(record_words, on_full) },
    { "--depth", "N", "steps that may wait for the writer (default: 8); with drop a round needs one for each of its steps",
      CLI_COUNT, offsetof(record_words, depth) },
    { "--memory", "MIB", "of values that wait for the writer (default: 1024)", CLI_COUNT,
      offsetof(record_words, memory_mib) },
    { "--base", "T.tape", "store values as their difference from that tape, which must stay where it is",
      CLI_IN, offsetof(record_words, base) },
    { "--redact", "KEYFILE", "replace token ids by a permutation that only this key tells; made where there is none",
      CLI_IN, offsetof(record_words, redact) },
    { "--prove", NULL, "no tape: run the rounds untapped, tapped and half-tapped, compare bits and time", CLI_FLAG,
      offsetof(record_words, prove) },
};

/* "dir/name.safetensors" gives "name.tape". The caller frees; NULL: no memory. */
static char *default_output(const char *script)
{
    const char *slash = strrchr(script, '/'), *base = slash ? slash + 1 : script, *dot = strrchr(base, '.');
    size_t n = dot && dot != base ? (size_t)(dot - base) : strlen(base);
    char *out = malloc(n + sizeof ".tape");
    if (!out) return NULL;
    memcpy(out, base, n);
    memcpy(out + n, ".tape", sizeof ".tape");
    return out;
}

typedef struct job {
    eng_weights *weights;
    eng_script *script;
    eng_engine *engine;
    json_t *identity;
    fmt_tape *base;
    cap_redact *redact;
    int32_t *slots;      /* engine slots of the round that runs */
    size_t slots_capacity;
} job;

static volatile sig_atomic_t asked; /* by SIGUSR1 */

static void on_usr1(int signal)
{
    (void)signal;
    asked = 1;
}

static err_code watch_usr1(err *e)
{
    struct sigaction action = { .sa_handler = on_usr1, .sa_flags = SA_RESTART };
    if (sigaction(SIGUSR1, &action, NULL) == 0) return ERR_OK;
    return err_set(e, ERR_SYSTEM, "--flight: cannot wait for SIGUSR1");
}

/* wanted NULL: every round. */
static err_code run_rounds(job *j, cap_recorder *r, const cap_round_list *wanted, bool quiet, err *e)
{
    progress p;
    err_code rc = ERR_OK;
    progress_begin(&p, "recording", (uint64_t)eng_script_rounds(j->script), quiet);
    for (int32_t i = 0; i < eng_script_rounds(j->script) && rc == ERR_OK; i++) {
        const eng_round *round = eng_script_at(j->script, i);
        void *array = j->slots;
        if (!mem_grow(&array, &j->slots_capacity, (size_t)round->n_inserts + (size_t)round->batch + 1, sizeof *j->slots)) {
            rc = err_set(e, ERR_NOMEM, "round %d: no memory", round->round);
            break;
        }
        j->slots = array;
        int32_t *of_draft = j->slots + round->n_inserts;
        for (int32_t k = 0; k < round->n_inserts; k++) j->slots[k] = eng_script_dense(j->script, round->inserts[k].slot);
        for (int32_t k = 0; k < round->batch; k++) of_draft[k] = eng_script_dense(j->script, round->slots[k]);
        bool keep = !wanted || cap_round_list_has(wanted, round->round);
        rc = keep ? cap_recorder_round(r, round, j->slots, of_draft, NULL, e)
                  : cap_recorder_skip_round(r, round, j->slots, of_draft, NULL, e);
        if (asked) {
            asked = 0;
            cap_recorder_trigger(r, "SIGUSR1");
        }
        progress_add(&p, 1);
    }
    progress_end(&p);
    return rc;
}

/* Room for whole rounds: to make more of it later would cost those in memory. */
static void fit_script(const eng_script *s, cap_options *o)
{
    o->round_steps = o->insert_rows = 1;
    for (int32_t i = 0; i < eng_script_rounds(s); i++) {
        const eng_round *round = eng_script_at(s, i);
        int32_t steps = round->n_inserts + (round->batch > 0);
        if (steps > o->round_steps) o->round_steps = steps;
        for (int32_t k = 0; k < round->n_inserts; k++)
            if (round->inserts[k].rows > o->insert_rows) o->insert_rows = round->inserts[k].rows;
    }
}

/* Everything that can refuse comes before the tape's .part exists. */
static err_code open_run(job *j, const char *model, const record_words *words, const eng_options *run,
                         const cap_options *o, bool quiet, err *e)
{
    TRY(eng_weights_open(model, quiet, &j->weights, e));
    TRY(eng_script_open(words->script, eng_weights_config(j->weights), &j->script, e));
    return eng_open(j->weights, run, eng_script_slots(j->script), cap_retain_level(o), quiet, &j->engine, e);
}

static err_code open_base(const char *path, fmt_tape **out, err *e)
{
    char what[300];
    snprintf(what, sizeof what, "--base %s", path);
    TRY(fmt_tape_open(path, out, e));
    return cap_check_whole(what, *out, e);
}

static bool writer_failed(cap_recorder *r)
{
    cap_counts c;
    cap_recorder_counts(r, &c);
    return c.failed[0] != 0;
}

static err_code record(job *j, const eng_options *run, const cap_options *o, const cap_round_list *wanted, const char *out,
                       const cli_common *common, err *e)
{
    j->identity = eng_identity(j->weights, run);
    if (!j->identity) return err_set(e, ERR_NOMEM, "no memory for the identity");
    cap_recorder *r;
    TRY(cap_recorder_open(j->engine, out, j->identity, o, &r, e));
    err_code rc = run_rounds(j, r, wanted, common->quiet, e);
    if (rc == ERR_OK) rc = cap_recorder_finish(r, e);
    else if (writer_failed(r)) (void)!cap_recorder_finish(r, NULL);
    else {
        cap_recorder_discard(r); /* refused: nothing is left of it */
        return rc;
    }
    return rc == ERR_OK ? rc : cap_say_what_is_left(out, e);
}

static err_code prove(job *j, const cap_options *o, const cli_common *common, int *exit_status, err *e)
{
    cap_proof proof;
    TRY(cap_prove(j->engine, j->script, o, common->quiet, &proof, e));
    *exit_status = proof.same ? 0 : 1;
    return cap_proof_print(&proof, common->json, e);
}

static void job_fini(job *j)
{
    json_decref(j->identity);
    eng_close(j->engine);
    fmt_tape_close(j->base);
    cap_redact_close(j->redact);
    eng_script_close(j->script);
    eng_weights_close(j->weights);
    free(j->slots);
}

static json_int_t count(const json_t *object, const char *key) { return json_integer_value(json_object_get(object, key)); }

/* Conditions that never held: the first one, and whether there was anything to judge. Returns how many there are. */
static size_t conditions_never(const json_t *conditions, const json_t **first)
{
    size_t i, n = 0;
    const json_t *c;
    json_array_foreach(conditions, i, c) if (count(c, "fired") == 0 && n++ == 0) *first = c;
    return n;
}

/* What is not as it was asked for comes first, in one line. */
static void print_losses(const json_t *s)
{
    const json_t *taps = json_object_get(s, "taps"), *never = json_object_get(taps, "never"), *quiet = NULL;
    const json_t *when = json_object_get(s, "when"), *conditions = json_object_get(when, "conditions");
    long long rounds = count(s, "rounds"), dropped = count(s, "dropped"), lost = count(s, "events_lost");
    long long all = when ? count(when, "judged") : rounds;
    size_t n_never = rounds || !when ? json_array_size(never) : 0, n_quiet = conditions_never(conditions, &quiet);
    const char *between = "";
    if (n_quiet) {
        printf("%zu of %zu conditions never held: %s%s%s", n_quiet, json_array_size(conditions),
               json_string_value(json_object_get(quiet, "when")), count(quiet, "looked") ? "" : " (nothing to judge)",
               n_quiet > 1 ? ", ..." : "");
        between = "; ";
    }
    if (!when && !rounds && !dropped) {
        printf("nothing recorded: of %lld rounds none was wanted", (long long)count(s, "rounds_seen"));
        n_never = 0; /* nothing else could be */
        between = "; ";
    }
    if (when && !rounds) {
        printf("%snothing triggered in %lld rounds", between, all);
        between = "; ";
    }
    if (dropped) {
        printf("%s%lld of %lld rounds dropped", between, dropped, dropped + all);
        between = "; ";
    }
    if (lost) {
        printf("%s%lld events lost", between, lost);
        between = "; ";
    }
    if (n_never) {
        printf("%s%zu of %lld taps never fired: %s%s", between, n_never, (long long)count(taps, "armed"),
               json_string_value(json_array_get(never, 0)), n_never > 1 ? ", ..." : "");
        between = "; ";
    }
    if (*between) printf("\n");
}

static void print_triggers(const json_t *when)
{
    size_t i;
    const json_t *c;
    if (!when) return;
    json_array_foreach(json_object_get(when, "conditions"), i, c) {
        if (count(c, "passed_over"))
            printf("%s passed over %lld values that other ranks cut otherwise, or that cannot be read\n",
                   json_string_value(json_object_get(c, "when")), count(c, "passed_over"));
        if (count(c, "fired"))
            printf("%s held in %lld of %lld rounds, the first is %lld\n", json_string_value(json_object_get(c, "when")),
                   (long long)count(c, "fired"), (long long)count(when, "judged"), (long long)count(c, "first"));
    }
    if (count(when, "asked")) printf("%lld times rounds were asked for\n", (long long)count(when, "asked"));
}

/* Reads the finished tape back: what is printed is what is on it. */
static err_code report(const char *path, const cli_common *common, err *e)
{
    fmt_tape *t;
    TRY(fmt_tape_open(path, &t, e));
    const json_t *s = fmt_tape_summary(t);
    double bytes = (double)fmt_tape_file_bytes(t), ratio = bytes > 0 ? (double)count(s, "raw_bytes") / bytes : 0;
    err_code rc = ERR_OK;
    if (common->json) {
        json_t *line = json_pack("{s:i, s:s, s:I, s:f}", "schema", 1, "path", path, "bytes",
                                 (json_int_t)fmt_tape_file_bytes(t), "ratio", ratio);
        if (!line || json_object_update_missing(line, (json_t *)(uintptr_t)s) != 0)
            rc = err_set(e, ERR_NOMEM, "no memory for the report");
        else rc = fmt_json_print(stdout, line, e);
        json_decref(line);
    } else {
        print_losses(s);
        printf("%s: %lld rounds, %lld values, %.1f MB (%.2f of raw %.1f MB)\n", path, (long long)count(s, "rounds"),
               (long long)count(s, "values"), bytes / 1e6, ratio > 0 ? 1 / ratio : 0, (double)count(s, "raw_bytes") / 1e6);
        print_triggers(json_object_get(s, "when"));
    }
    fmt_tape_close(t);
    return rc;
}

/* What is of a tape is of no use to a proof, which writes none and runs every round. */
static err_code check_prove(const record_words *w, err *e)
{
    const struct { const char *name; bool given; } unused[] = {
        { "-o", w->out }, { "--rounds", w->rounds }, { "--base", w->base }, { "--redact", w->redact },
        { "--when", w->when.count > 0 }, { "--flight", w->flight > 0 }, { "--depth", w->depth > 0 },
        { "--memory", w->memory_mib > 0 }, { "--on-full", w->on_full },
    };
    for (size_t i = 0; i < COUNT_OF(unused); i++)
        if (unused[i].given)
            return err_set(e, ERR_ARG, "%s: found it with --prove, wanted one of them: a proof runs every round and "
                           "writes no tape", unused[i].name);
    return ERR_OK;
}

/* What is kept, and how. */
static err_code parse_capture(const record_words *words, cap_options *o, cap_round_list *wanted, err *e)
{
    enum { DEPTH_MAX = 4096, FLIGHT_MAX = 65536, MEMORY_MIB_MAX = 1 << 24 };
    if (!eng_level_parse(words->level, &o->level) || o->level == ENG_LEVEL_OFF)
        return err_set(e, ERR_ARG, "--level: found '%s', wanted io, v1 or deep", words->level);
    TRY(cap_taps_check(&words->taps, e));
    o->taps = &words->taps;
    if (words->rounds) TRY(cap_round_list_parse(words->rounds, "--rounds", wanted, e));
    o->rounds = words->rounds;
    const char *on_full = words->on_full ? words->on_full : "block";
    if (strcmp(on_full, "drop") == 0) o->on_full = CAP_DROP;
    else if (strcmp(on_full, "block") != 0)
        return err_set(e, ERR_ARG, "--on-full: found '%s', wanted block or drop", on_full);
    if (words->prove) TRY(check_prove(words, e));
    if (words->flight > FLIGHT_MAX)
        return err_set(e, ERR_ARG, "--flight: found %lld, wanted at most %d", (long long)words->flight, FLIGHT_MAX);
    o->when = &words->when;
    o->flight = (int32_t)words->flight;
    if (words->depth > DEPTH_MAX)
        return err_set(e, ERR_ARG, "--depth: found %lld, wanted at most %d", (long long)words->depth, DEPTH_MAX);
    if (words->memory_mib > MEMORY_MIB_MAX)
        return err_set(e, ERR_ARG, "--memory: found %lld, wanted at most %d", (long long)words->memory_mib, MEMORY_MIB_MAX);
    o->depth = (int32_t)words->depth;
    o->memory_bytes = (uint64_t)words->memory_mib << 20;
    return ERR_OK;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    record_words words = { .level = "v1" };
    cli_common common;
    cli_args args;
    eng_options options;
    cap_options o = { .level = ENG_LEVEL_V1 };
    cap_round_list wanted;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    if (!words.script) return err_set(e, ERR_ARG, "--script: found nothing, wanted a script, see sparktape script --help");
    TRY(parse_capture(&words, &o, &wanted, e));
    TRY(eng_options_parse(&words.run, common.threads, &options, e));
    char *out = words.out ? mem_strdup(words.out) : default_output(words.script);
    if (!out) return err_set(e, ERR_NOMEM, "no memory for the tape's name");
    job j = { 0 };
    err_code rc = words.prove ? ERR_OK : cli_keep_file("-o", out, &common, e);
    if (rc == ERR_OK) rc = cap_when_check(&words.when, out, e);
    if (rc == ERR_OK && words.redact && strcmp(words.redact, out) == 0) /* a key that is yet to be made, too */
        rc = err_set(e, ERR_ARG, "--redact: %s is the output of this command", out);
    if (rc == ERR_OK) rc = open_run(&j, args.item[0], &words, &options, &o, common.quiet, e);
    if (rc == ERR_OK && words.base) rc = open_base(words.base, &j.base, e);
    if (rc == ERR_OK && words.redact)
        rc = cap_redact_open(words.redact, true, eng_weights_config(j.weights)->vocab, &j.redact, e);
    o.base = j.base;
    o.synthetic = rc == ERR_OK && eng_script_synthetic(j.script);
    if (rc == ERR_OK && (o.flight || o.when->count)) fit_script(j.script, &o);
    if (rc == ERR_OK && o.flight) rc = watch_usr1(e);
    o.redact = j.redact;
    if (rc == ERR_OK && words.prove) rc = prove(&j, &o, &common, exit_status, e);
    else if (rc == ERR_OK) rc = record(&j, &options, &o, words.rounds ? &wanted : NULL, out, &common, e);
    job_fini(&j);
    if (rc == ERR_OK && !words.prove) rc = report(out, &common, e);
    free(out);
    return rc;
}

const cli_command CMD_RECORD = {
    "record", "MODEL", "runs a script under capture and writes a tape", OPTIONS, sizeof OPTIONS / sizeof OPTIONS[0], run,
};
