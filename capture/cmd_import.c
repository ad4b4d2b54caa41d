#include <string.h>

#include "base/utf8.h"
#include "capture/commands.h"
#include "capture/import.h"

typedef struct import_words { const char *out, *map, *identity_from; } import_words;

static const cli_option OPTIONS[] = {
    { "-o", "T.tape", "the tape to write", CLI_NEW, offsetof(import_words, out) },
    { "--map", "FILE", "JSON object: {\"their.name\": \"round.0.s0.attn_out\", ...}", CLI_IN,
      offsetof(import_words, map) },
    { "--identity-from", "T.tape", "take identity, config and level from this tape (default: unknown)", CLI_IN,
      offsetof(import_words, identity_from) },
};

enum { MAP_BYTES_MAX = 64 << 20 };

/* Nothing of these is wrong, and most of them are slips: a name misspelt in the map, or one of another version. */
static void print_names(const cap_import_names *names, const char *one, const char *many)
{
    char list[CAP_IMPORT_LIST];
    if (names->n == 0) return;
    cap_import_list(names, list);
    utf8_defuse(list, strlen(list), "");
    printf("%llu %s: %s\n", (unsigned long long)names->n, names->n == 1 ? one : many, list);
}

static err_code report(const cli_common *common, const char *in, const char *out, const cap_import_result *r, err *e)
{
    if (!common->json) {
        printf("%s: %llu values in %llu rounds, %.1f MB\n", out, (unsigned long long)r->n_values,
               (unsigned long long)r->n_rounds, (double)r->bytes / 1e6);
        if (r->n_narrowed)
            printf("%llu of them were in a wider dtype and are stored in their own, no value changed\n",
                   (unsigned long long)r->n_narrowed);
        if (r->n_other_dtype)
            printf("%llu of them keep another dtype than their name has: its own cannot hold their values\n",
                   (unsigned long long)r->n_other_dtype);
        print_names(&r->unmapped, "tensor is not in the map and keeps its name",
                    "tensors are not in the map and keep their names");
        print_names(&r->unused, "entry of the map is no tensor's", "entries of the map are no tensor's");
        print_names(&r->unknown, "value has a name that nothing here computes or judges",
                    "values have names that nothing here computes or judges");
        return ERR_OK;
    }
    json_t *line = json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "schema", 1, "from", in, "path",
                             out, "values", (json_int_t)r->n_values, "rounds", (json_int_t)r->n_rounds, "bytes",
                             (json_int_t)r->bytes, "narrowed", (json_int_t)r->n_narrowed, "other_dtype",
                             (json_int_t)r->n_other_dtype, "unmapped", (json_int_t)r->unmapped.n, "map_unused",
                             (json_int_t)r->unused.n, "unknown", (json_int_t)r->unknown.n);
    if (!line) return err_set(e, ERR_NOMEM, "no memory for the report");
    err_code rc = fmt_json_print(stdout, line, e);
    json_decref(line);
    return rc;
}

static err_code import_file(const char *in, const import_words *words, const cli_common *common, err *e)
{
    fmt_safetensors *f = NULL;
    fmt_tape *origin = NULL;
    json_t *map = NULL;
    cap_import_result result;
    err_code rc = fmt_safetensors_open(in, &f, e);
    if (rc == ERR_OK && words->map) rc = fmt_json_read(words->map, MAP_BYTES_MAX, &map, e);
    if (rc == ERR_OK && map && !json_is_object(map))
        rc = err_set(e, ERR_INPUT, "%s: found no object, wanted {\"their.name\": \"round.0.s0.attn_out\"}", words->map);
    if (rc == ERR_OK && words->identity_from) rc = fmt_tape_open(words->identity_from, &origin, e);
    if (rc == ERR_OK) {
        const cap_import_options o = { map, origin, common->quiet };
        rc = cap_import(f, words->out, &o, &result, e);
    }
    if (rc == ERR_OK) rc = report(common, in, words->out, &result, e);
    fmt_tape_close(origin);
    json_decref(map);
    fmt_safetensors_close(f);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    import_words words = { 0 };
    cli_common common;
    cli_args args;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    if (!words.out || !words.out[0]) return err_set(e, ERR_ARG, "-o: found nothing, wanted T.tape");
    return import_file(args.item[0], &words, &common, e);
}

const cli_command CMD_IMPORT = {
    "import", "IN.safetensors", "values of a safetensors file (an export, another engine's dump) as a tape", OPTIONS,
    sizeof OPTIONS / sizeof OPTIONS[0], run,
};
