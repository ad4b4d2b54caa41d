#include "engine/arm.h"
#include "engine/cmd_common.h"
#include "engine/commands.h"
#include "formats/json.h"

static err_code print_json(const eng_arm *a, err *e)
{
    json_t *j = json_pack("{s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:b,s:s}", "schema", CMD_SCHEMA, "name", a->name,
                          "experts", eng_rep_name(a->experts), "dense", eng_rep_name(a->dense), "head",
                          eng_rep_name(a->head), "markov", eng_markov_name(a->markov), "kernels", a->kernels, "acc",
                          eng_acc_name(a->acc), "unsharded", a->unsharded, "summary", a->summary);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for an arm");
    json_decref(j);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    (void)exit_status;
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, NULL, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    if (!common.json)
        printf("%-24s %-8s %-8s %-8s %-12s %s\n", "arm", "experts", "dense", "head", "markov", "kernels");
    for (size_t i = 0; i < eng_arm_count(); i++) {
        const eng_arm *a = eng_arm_at(i);
        if (common.json) { TRY(print_json(a, e)); continue; }
        printf("%-24s %-8s %-8s %-8s %-12s %s\n", a->name, eng_rep_name(a->experts), eng_rep_name(a->dense),
               eng_rep_name(a->head), eng_markov_name(a->markov), a->kernels);
    }
    return ERR_OK;
}

const cli_command CMD_ARMS = { "arms", "", "the arms: what each is made of", NULL, 0, run };
