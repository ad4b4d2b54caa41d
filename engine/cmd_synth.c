#include "engine/cmd_common.h"
#include "engine/cmd_quantize.h"
#include "engine/commands.h"
#include "engine/synth.h"

#include <unistd.h>

typedef struct synth_options {
    const char *config;
    int64_t seed;
    bool exl3;
} synth_options;

static const cli_option OPTIONS[] = {
    { "--config", "NAME", "tiny, mid, official or a config.json (default: tiny)", CLI_STR,
      offsetof(synth_options, config) },
    { "--seed", "N", "the same seed gives the same bytes (default: 1)", CLI_INT, offsetof(synth_options, seed) },
    { "--exl3", NULL, "and its EXL3 delivery: sparktape quantize MODEL MODEL", CLI_FLAG, offsetof(synth_options, exl3) },
};

static err_code config_find(const char *name, eng_config *out, err *e)
{
    if (eng_config_preset(name, out)) return ERR_OK;
    if (access(name, R_OK) != 0)
        return err_set(e, ERR_ARG, "--config: found '%s', wanted tiny, mid, official or a readable file", name);
    json_t *object = NULL;
    TRY(fmt_json_read(name, (size_t)1 << 20, &object, e));
    err_code rc = eng_config_parse(object, name, out, e);
    json_decref(object);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    (void)exit_status;
    synth_options o = { .config = "tiny", .seed = 1 };
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    cmd_use_threads(&common);
    eng_config config;
    TRY(config_find(o.config, &config, e));
    eng_synth_report r;
    TRY(eng_synth_checkpoint(args.item[0], &config, (uint64_t)o.seed, common.quiet, &r, e));
    eng_quantize_options exl3 = cmd_quantize_defaults();
    eng_quantize_report q;
    exl3.quiet = common.quiet;
    if (o.exl3) TRY(eng_quantize(args.item[0], args.item[0], &exl3, &q, e));
    if (!common.json) {
        printf("%s: %lld tensors, %.1f MiB, %d shards, config %s, seed %lld\n", args.item[0], (long long)r.tensors,
               (double)r.bytes / 0x1p20, r.shards, o.config, (long long)o.seed);
        if (o.exl3) cmd_quantize_print(args.item[0], &exl3, &q);
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i,s:s,s:I,s:I,s:i,s:s,s:I}", "schema", CMD_SCHEMA, "model", args.item[0], "tensors",
                          (json_int_t)r.tensors, "bytes", (json_int_t)r.bytes, "shards", r.shards, "config", o.config,
                          "seed", (json_int_t)o.seed);
    if (o.exl3) fmt_json_put(&j, "exl3", cmd_quantize_json(args.item[0], &exl3, &q));
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

const cli_command CMD_SYNTH = { "synth", "MODEL", "writes a synthetic checkpoint in the official names and formats",
                                OPTIONS, sizeof OPTIONS / sizeof *OPTIONS, run };
