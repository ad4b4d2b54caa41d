#include "base/clock.h"
#include "base/mem.h"
#include "capture/commands.h"
#include "capture/recorder.h"
#include "engine/identity.h"

typedef struct record_words {
    const char *script, *out, *level;
    cli_list taps;
    eng_option_words run;
} record_words;

static const cli_option OPTIONS[] = {
    { "--script", "S", "the rounds to run (a script, or an export)", CLI_IN, offsetof(record_words, script) },
    { "-o", "T.tape", "the tape to write (default: the script's name with .tape, here)", CLI_OUT,
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
    int32_t *slots;      /* engine slots of the round that runs */
    size_t slots_capacity;
} job;

static err_code run_rounds(job *j, cap_recorder *r, bool quiet, err *e)
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
        rc = cap_recorder_round(r, round, j->slots, of_draft, NULL, e);
        progress_add(&p, 1);
    }
    progress_end(&p);
    return rc;
}

/* Everything that can refuse comes before the tape's .part exists. */
static err_code record(job *j, const char *model, const record_words *words, const eng_options *run, const cap_options *o,
                       const char *out, const cli_common *common, err *e)
{
    TRY(eng_weights_open(model, common->quiet, &j->weights, e));
    TRY(eng_script_open(words->script, eng_weights_config(j->weights), &j->script, e));
    TRY(eng_open(j->weights, run, eng_script_slots(j->script), cap_retain_level(o), common->quiet, &j->engine, e));
    j->identity = eng_identity(j->weights, run);
    if (!j->identity) return err_set(e, ERR_NOMEM, "no memory for the identity");
    cap_recorder *r;
    TRY(cap_recorder_open(j->engine, out, j->identity, o, &r, e));
    err_code rc = run_rounds(j, r, common->quiet, e);
    if (rc != ERR_OK) {
        cap_recorder_discard(r);
        return rc;
    }
    return cap_recorder_finish(r, e);
}

static void job_fini(job *j)
{
    json_decref(j->identity);
    eng_close(j->engine);
    eng_script_close(j->script);
    eng_weights_close(j->weights);
    free(j->slots);
}

static json_int_t count(const json_t *object, const char *key) { return json_integer_value(json_object_get(object, key)); }

/* Reads the finished tape back: what is printed is what is on it. */
static err_code report(const char *path, const cli_common *common, err *e)
{
    fmt_tape *t;
    TRY(fmt_tape_open(path, &t, e));
    const json_t *s = fmt_tape_summary(t), *taps = json_object_get(s, "taps"), *never = json_object_get(taps, "never");
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
        size_t n_never = json_array_size(never);
        if (n_never)
            printf("%zu of %lld taps never fired: %s%s\n", n_never, (long long)count(taps, "armed"),
                   json_string_value(json_array_get(never, 0)), n_never > 1 ? ", ..." : "");
        printf("%s: %lld rounds, %lld values, %.1f MB (%.2f of raw %.1f MB)\n", path, (long long)count(s, "rounds"),
               (long long)count(s, "values"), bytes / 1e6, ratio > 0 ? 1 / ratio : 0, (double)count(s, "raw_bytes") / 1e6);
    }
    fmt_tape_close(t);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    record_words words = { .level = "v1" };
    cli_common common;
    cli_args args;
    eng_options options;
    cap_options o = { .taps = &words.taps };
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    if (!words.script) return err_set(e, ERR_ARG, "--script: found nothing, wanted a script, see sparktape script --help");
    if (!eng_level_parse(words.level, &o.level) || o.level == ENG_LEVEL_OFF)
        return err_set(e, ERR_ARG, "--level: found '%s', wanted io, v1 or deep", words.level);
    TRY(eng_options_parse(&words.run, common.threads, &options, e));
    TRY(cap_taps_check(&words.taps, e));
    char *out = words.out ? mem_strdup(words.out) : default_output(words.script);
    if (!out) return err_set(e, ERR_NOMEM, "no memory for the tape's name");
    job j = { 0 };
    err_code rc = record(&j, args.item[0], &words, &options, &o, out, &common, e);
    job_fini(&j);
    if (rc == ERR_OK) rc = report(out, &common, e);
    free(out);
    return rc;
}

const cli_command CMD_RECORD = {
    "record", "MODEL", "runs a script under capture and writes a tape", OPTIONS, sizeof OPTIONS / sizeof OPTIONS[0], run,
};
