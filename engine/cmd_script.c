#include "engine/cmd_common.h"
#include "engine/commands.h"
#include "engine/traffic.h"

typedef struct script_options {
    const char *model;
    int64_t rounds, slots, seed;
    bool force; /* OUT is an argument: cli_parse has no --force for it */
} script_options;

static const cli_option OPTIONS[] = {
    { "--model", "MODEL", "checkpoint folder; only its config.json is read", CLI_IN, offsetof(script_options, model) },
    { "--rounds", "N", "rounds (default: 6)", CLI_INT, offsetof(script_options, rounds) },
    { "--slots", "S", "requests; up to four are drafted a round (default: 4)", CLI_INT, offsetof(script_options, slots) },
    { "--seed", "N", "the same seed gives the same bytes (default: 1)", CLI_INT, offsetof(script_options, seed) },
    { "--force", NULL, "replace a file that has the output's name", CLI_FLAG, offsetof(script_options, force) },
};

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    (void)exit_status;
    script_options o = { .rounds = 6, .slots = 4, .seed = 1 };
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    if (!o.model) return err_set(e, ERR_ARG, "--model: found nothing, wanted a checkpoint folder");
    TRY(cli_keep_off("OUT", args.item[0], o.model, e));
    common.force = o.force;
    TRY(cli_keep_file("OUT", args.item[0], &common, e));
    cmd_use_threads(&common);
    eng_config config;
    TRY(eng_config_read(o.model, &config, e));
    eng_traffic_report r;
    TRY(eng_traffic_write(args.item[0], &config, o.rounds, o.slots, (uint64_t)o.seed, common.quiet, &r, e));
    if (!common.json) {
        printf("%s: %lld rounds, %lld slots, %lld inserts of %lld rows, %lld drafts, seed %lld\n", args.item[0],
               (long long)o.rounds, (long long)o.slots, (long long)r.inserts, (long long)r.rows, (long long)r.drafts,
               (long long)o.seed);
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "schema", CMD_SCHEMA, "script", args.item[0], "rounds",
                          (json_int_t)o.rounds, "slots", (json_int_t)o.slots, "inserts", (json_int_t)r.inserts, "rows",
                          (json_int_t)r.rows, "drafts", (json_int_t)r.drafts, "seed", (json_int_t)o.seed);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

const cli_command CMD_SCRIPT = { "script", "OUT", "writes synthetic traffic for a checkpoint", OPTIONS,
                                 sizeof OPTIONS / sizeof *OPTIONS, run };
