#include "base/mem.h"
#include "formats/tape.h"
#include "replay/commands.h"
#include "replay/inject.h"

typedef struct words {
    const char *script, *out, *fault, *level;
    bool list, keep;
    eng_option_words run;
} words;

static const cli_option OPTIONS[] = {
    { "--list", NULL, "print the kinds of fault; with MODEL and --fault KIND the ops of that arm it can be planted in",
      CLI_FLAG, offsetof(words, list) },
    { "--fault", "FAULT", "KIND@OP (an op of sparktape plan, or a value it writes), and after a colon where: round=, "
      "slot=, rank=, row=, index=, step=insert or step=draft, with commas (default: everywhere, and an element chosen by "
      "the op's name)", CLI_STR,
      offsetof(words, fault) },
    { "--script", "S", "the rounds to run (a script, or an export)", CLI_IN, offsetof(words, script) },
    { "-o", "T.tape", "the tape to write; its identity says what was planted", CLI_NEW, offsetof(words, out) },
    { "--keep", NULL, "write the tape also when the fault changed nothing", CLI_FLAG, offsetof(words, keep) },
    { "--level", "LEVEL", "io, v1 or deep (default)", CLI_STR, offsetof(words, level) },
    { "--arm", "ARM", "see sparktape arms (default: native-packed)", CLI_STR, offsetof(words, run.arm) },
    { "--tp", "N", "ranks (default: 1)", CLI_COUNT, offsetof(words, run.tp) },
    { "--mode", "MODE", "eager (default) or graph", CLI_STR, offsetof(words, run.mode) },
    { "--acc", "ACC", "blocked or f64 (default: the arm's)", CLI_STR, offsetof(words, run.acc) },
    { "--combine", "MODE", "exact (default) or fused", CLI_STR, offsetof(words, run.combine) },
    { "--head", "HEAD", "official (default) or k6", CLI_STR, offsetof(words, run.head) },
};

static void print_ops(uint64_t ops)
{
    const char *between = "";
    for (int k = 0; k < ENG_KIND_COUNT; k++) {
        if (!(ops >> k & 1)) continue;
        printf("%s%s", between, eng_kind_name((eng_kind)k));
        between = " ";
    }
}

static err_code print_kind_json(const eng_fault_kind *k, err *e)
{
    json_t *ops = json_array(), *line = NULL;
    for (int i = 0; ops && i < ENG_KIND_COUNT; i++)
        if (k->ops >> i & 1 && json_array_append_new(ops, json_string(eng_kind_name((eng_kind)i))) != 0) goto out;
    line = json_pack("{s:i, s:s, s:s, s:s, s:b, s:O}", "schema", 1, "kind", k->name, "summary", k->summary, "cause",
                     eng_cause_name(k->cause), "must", k->must, "ops", ops);
out:
    json_decref(ops);
    err_code rc = line ? fmt_json_print(stdout, line, e) : err_set(e, ERR_NOMEM, "no memory for the list");
    json_decref(line);
    return rc;
}

static err_code list_kinds(bool json, err *e)
{
    for (size_t i = 0; i < eng_fault_count(); i++) {
        const eng_fault_kind *k = eng_fault_at(i);
        if (json) {
            TRY(print_kind_json(k, e));
            continue;
        }
        printf("%-20s %s%s\n%20s cause: %s; ops: ", k->name, k->summary, k->must ? "" : " (may be admissible)", "",
               eng_cause_name(k->cause));
        print_ops(k->ops);
        printf("\n");
    }
    return ERR_OK;
}

/* Counts the ops that a kind can be planted in, and prints each, as --fault takes it, if that is asked for. */
static err_code walk_ops(const eng_config *c, const eng_fault_kind *k, const eng_options *o, bool print, bool json, int *n,
                         err *e)
{
    static const char *const STEPS[] = { "insert", "draft" };
    *n = 0;
    for (int step = 0; step < 2; step++) {
        eng_program *p;
        TRY(eng_program_make(c, (eng_step_kind)step, o->n_ranks, o->combine, &o->reps, &p, e));
        for (int32_t i = 0; i < p->n_ops; i++) {
            if (!eng_fault_applies(k, p, i, o)) continue;
            ++*n;
            if (!print) continue;
            printf(json ? "{\"schema\": 1, \"fault\": \"%s@%s:step=%s\"}\n" : "%s@%s:step=%s\n", k->name,
                   p->op[i].name, STEPS[step]);
        }
        eng_program_free(p);
    }
    return ERR_OK;
}

/* The ops of the arm that a kind can be planted in, as --fault takes them; where there is none, why. */
static err_code list_ops(const char *model, const words *w, const eng_options *o, const cli_common *common, err *e)
{
    const eng_fault_kind *k = eng_fault_find(w->fault);
    eng_options two = *o;
    eng_config c;
    int n, n_two = 0;
    if (!k) return err_set(e, ERR_ARG, "--fault: found kind '%s', wanted one that --list prints", w->fault);
    TRY(eng_config_read(model, &c, e));
    TRY(walk_ops(&c, k, o, true, common->json, &n, e));
    if (n > 0) return ERR_OK;
    two.n_ranks = 2;
    if (o->n_ranks < 2) TRY(walk_ops(&c, k, &two, false, false, &n_two, e));
    if (n_two) fprintf(stderr, "%s: no op on one rank; --tp 2 has %d\n", k->name, n_two);
    else fprintf(stderr, "%s: no op of this model fits it with arm %s on %d rank%s; --list says which kinds it needs\n",
                 k->name, o->arm->name, o->n_ranks, o->n_ranks == 1 ? "" : "s");
    return ERR_OK;
}

static err_code report(const eng_fault *f, const char *path, bool json, err *e)
{
    if (!json) {
        const char *hidden = f->hidden ? ", of a value that no tape holds: fewer, or none, may show" : "";
        printf("%s: INJECTED %s at %s: %lld elements changed%s (cause: %s%s)\n", path, f->kind->name, f->op,
               (long long)eng_fault_changed(f), hidden, eng_cause_name(f->kind->cause),
               f->kind->must ? "" : "; may be admissible");
        return ERR_OK;
    }
    json_t *line = json_pack("{s:i, s:s, s:s, s:o, s:I, s:b, s:b}", "schema", 1, "type", "injection", "path", path,
                             "injected", eng_fault_json(f), "changed", (json_int_t)eng_fault_changed(f), "hidden",
                             f->hidden, "must", f->kind->must);
    err_code rc = line ? fmt_json_print(stdout, line, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(line);
    return rc;
}

static err_code inject(const char *model, const words *w, eng_options *o, const cli_common *common, err *e)
{
    eng_fault fault;
    eng_level level;
    eng_weights *weights = NULL;
    eng_script *script = NULL;
    if (!w->fault || !w->script || !w->out)
        return err_set(e, ERR_ARG, "%s: found nothing, see --help", !w->fault ? "--fault" : !w->script ? "--script" : "-o");
    if (!eng_level_parse(w->level, &level) || level == ENG_LEVEL_OFF)
        return err_set(e, ERR_ARG, "--level: found '%s', wanted io, v1 or deep", w->level);
    TRY(eng_fault_parse(w->fault, &fault, e));
    o->fault = &fault;
    err_code rc = eng_weights_open(model, common->quiet, &weights, e);
    if (rc == ERR_OK) rc = eng_script_open(w->script, eng_weights_config(weights), &script, e);
    if (rc == ERR_OK) rc = rpl_inject(weights, script, o, level, !w->keep, w->out, common->quiet, e);
    if (rc == ERR_OK) rc = report(&fault, w->out, common->json, e);
    eng_script_close(script);
    eng_weights_close(weights);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { .level = "deep" };
    cli_common common;
    cli_args args;
    eng_options o;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    TRY(eng_options_parse(&w.run, common.threads, &o, e));
    if (w.list && args.count == 0) return list_kinds(common.json, e);
    if (args.count == 0) return err_set(e, ERR_ARG, "found no MODEL, wanted one (or --list)");
    if (!w.list) return inject(args.item[0], &w, &o, &common, e);
    if (!w.fault) return err_set(e, ERR_ARG, "--fault: found nothing, wanted the kind whose ops are listed");
    return list_ops(args.item[0], &w, &o, &common, e);
}

const cli_command CMD_INJECT = {
    "inject", "[MODEL]", "records a script with a fault planted in one op, to see what a check makes of it", OPTIONS,
    sizeof OPTIONS / sizeof OPTIONS[0], run,
};
