#include "capture/commands.h"
#include "capture/export.h"

#include <string.h>

typedef struct export_words {
    const char *out;
    bool per_rank;
} export_words;

static const cli_option OPTIONS[] = {
    { "-o", "OUT", "*.safetensors, *.npz, else a folder of .npy files (bf16 and 8-bit floats as their bits)", CLI_NEW,
      offsetof(export_words, out) },
    { "--per-rank", NULL, "each rank's part under its own name, not the joined value", CLI_FLAG,
      offsetof(export_words, per_rank) },
};

static err_code report(const cli_common *common, const char *tape, const char *out, const cap_export_result *r, err *e)
{
    if (r->damage[0] && !common->quiet)
        fprintf(stderr, "sparktape export: %s is damaged (%s): only sound values are exported, %llu known ones are "
                "missing; see sparktape doctor %s\n", tape, r->damage, (unsigned long long)r->n_damaged, tape);
    if (r->n_no_payload && !common->quiet)
        fprintf(stderr, "sparktape export: %llu values were kept as statistics or hashes and are not in %s\n",
                (unsigned long long)r->n_no_payload, out);
    if (!common->json) {
        printf("%s: %llu values, %.1f MB\n", out, (unsigned long long)r->n_values, (double)r->bytes / 1e6);
        return ERR_OK;
    }
    json_t *line = json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:o}", "schema", 1, "tape", tape, "path", out, "values",
                             (json_int_t)r->n_values, "bytes", (json_int_t)r->bytes, "damaged", (json_int_t)r->n_damaged,
                             "no_payload", (json_int_t)r->n_no_payload, "damage",
                             r->damage[0] ? json_string(r->damage) : json_null());
    if (!line) return err_set(e, ERR_NOMEM, "no memory for the report");
    err_code rc = fmt_json_print(stdout, line, e);
    json_decref(line);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    export_words words = { 0 };
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    if (!words.out || !words.out[0])
        return err_set(e, ERR_ARG, "-o: found nothing, wanted OUT.safetensors, OUT.npz or a folder");
    char out[4096];
    size_t n = strlen(words.out);
    while (n > 1 && words.out[n - 1] == '/') n--; /* "folder/" */
    if (n >= sizeof out) return err_set(e, ERR_ARG, "-o: the name has %zu bytes, wanted at most %zu", n, sizeof out - 1);
    memcpy(out, words.out, n);
    out[n] = 0;

    const cap_export_options o = { args.count > 1 ? args.item[1] : NULL, words.per_rank, common.quiet };
    cap_export_result result;
    fmt_tape *t;
    TRY(fmt_tape_open(args.item[0], &t, e));
    err_code rc = cap_export(t, out, &o, &result, e);
    fmt_tape_close(t);
    TRY(rc);
    TRY(report(&common, args.item[0], out, &result, e));
    *exit_status = result.damage[0] ? 1 : 0;
    return ERR_OK;
}

const cli_command CMD_EXPORT = {
    "export", "T [PATTERN]", "values of a tape as safetensors, .npz or .npy files", OPTIONS,
    sizeof OPTIONS / sizeof OPTIONS[0], run,
};
