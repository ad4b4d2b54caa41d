#include "base/interrupt.h"
#include "base/mem.h"
#include "engine/identity.h"
#include "replay/accept.h"
#include "replay/commands.h"
#include "replay/coverage.h"
#include "replay/replay.h"
#include "replay/source.h"

enum { ARMS_MAX = 16, LIST_BYTES = 512 };

typedef struct words {
    const char *arms, *control, *shard;
    eng_option_words run;
} words;

static const cli_option OPTIONS[] = {
    { "--arms", "LIST", "arms to draft with, by commas (default: the recorded one, and mirror)", CLI_STR,
      offsetof(words, arms) },
    { "--control", "ARM", "one of them, which the others are compared with, block by block (default: the first)", CLI_STR,
      offsetof(words, control) },
    { "--backend", "NAME", "cpu or cuda, of arms that a card runs (default: cpu)", CLI_STR, offsetof(words, run.backend) },
    { "--comm", "KIND", "cuda: nccl (a card a rank, default) or emulated (all on one)", CLI_STR,
      offsetof(words, run.comm) },
    { "--tp", "N", "ranks, of arms that can be cut (default: 1)", CLI_COUNT, offsetof(words, run.tp) },
    { "--mode", "MODE", "eager or graph (default: eager)", CLI_STR, offsetof(words, run.mode) },
    { "--combine", "MODE", "exact or fused (default: exact)", CLI_STR, offsetof(words, run.combine) },
    { "--shard", "I/N", "the I-th of N parts of the rounds (1/N .. N/N): only their drafts are made", CLI_STR,
      offsetof(words, shard) },
};

typedef struct session {
    fmt_tape *tape;
    eng_weights *weights;
    rpl_acceptance acceptance;
    eng_options arm[ARMS_MAX];
    char list[LIST_BYTES];
} session;

/* The options of one arm: what a reference cannot do is left out for it. */
static err_code parse_arm(const session *s, const words *w, const char *name, int64_t threads, eng_options *out, err *e)
{
    eng_option_words run = w->run, recorded = { 0 };
    const eng_arm *arm = eng_arm_find(name);
    run.arm = name;
    rpl_replay_words(s->tape, &recorded);
    if (recorded.arm && strcmp(name, recorded.arm) == 0) run.head = recorded.head;
    if (arm && arm->unsharded) {
        run.tp = 0;
        run.backend = run.comm = NULL;
    }
    err_code rc = eng_options_parse(&run, threads, out, e);
    if (rc != ERR_OK) cli_say_as(e, "--arm", "--arms");
    return rc;
}

/* The recorded arm if it is one of this build, else none; and the reference. */
static void default_list(const fmt_tape *t, char list[LIST_BYTES])
{
    eng_option_words recorded = { 0 };
    rpl_replay_words(t, &recorded);
    const eng_arm *arm = recorded.arm ? eng_arm_find(recorded.arm) : NULL;
    bool runs = arm && strcmp(arm->name, "mirror") != 0;
    snprintf(list, LIST_BYTES, "%s%smirror", runs ? arm->name : "", runs ? "," : "");
}

static err_code parse_arms(session *s, const words *w, int64_t threads, rpl_accept_options *o, err *e)
{
    if (w->arms && strlen(w->arms) >= LIST_BYTES)
        return err_set(e, ERR_ARG, "--arms: longer than %d bytes", LIST_BYTES - 1);
    if (w->arms) snprintf(s->list, LIST_BYTES, "%s", w->arms);
    else default_list(s->tape, s->list);
    bool found = !w->control;
    char *rest = s->list;
    for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) {
        if (o->n_arms == ARMS_MAX) return err_set(e, ERR_ARG, "--arms: wanted at most %d", ARMS_MAX);
        TRY(parse_arm(s, w, name, threads, &s->arm[o->n_arms], e));
        if (w->control && strcmp(name, w->control) == 0) {
            o->control = o->n_arms;
            found = true;
        }
        o->n_arms++;
    }
    o->arm = s->arm;
    return found ? ERR_OK : err_set(e, ERR_ARG, "--control %.64s: wanted one of --arms", w->control);
}

static err_code accept(session *s, const cli_args *args, const cli_common *common, const words *w, int *exit_status, err *e)
{
    rpl_accept_options o = { .quiet = common->quiet };
    TRY(rpl_shard_parse(w->shard, &o.shard, &o.n_shards, e));
    TRY(fmt_tape_open(args->item[0], &s->tape, e));
    TRY(parse_arms(s, w, common->threads, &o, e));
    TRY(eng_weights_open(args->item[1], common->quiet, &s->weights, e));
    TRY(eng_identity_check(json_object_get(fmt_tape_head(s->tape), "identity"), s->weights, e));
    bool damaged = rpl_warn_of_damage(s->tape);
    interrupt_catch();
    TRY(rpl_accept_tape(s->tape, s->weights, &o, &s->acceptance, e));
    const rpl_acceptance *a = &s->acceptance;
    const rpl_accept_report r = {
        a, args->item[0], args->item[1],
        { o.shard, o.n_shards, a->n_rounds, a->n_rounds_wanted, a->n_rounds_all, a->interrupted, damaged },
    };
    *exit_status = rpl_coverage_exit(rpl_accept_verdict(&r));
    if (!common->json) {
        rpl_accept_print(&r);
        return ERR_OK;
    }
    json_t *j = rpl_source_json(rpl_accept_json(&r), s->tape);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "accept: no memory for the report");
    json_decref(j);
    return rc;
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
    err_code rc = accept(&s, &args, &common, &w, exit_status, e);
    if (s.tape) rc = rpl_say_recover(s.tape, rc, e);
    rpl_acceptance_fini(&s.acceptance);
    fmt_tape_close(s.tape);
    eng_weights_close(s.weights);
    return rc;
}

const cli_command CMD_ACCEPT = { "accept", "TAPE MODEL", "acceptance and fidelity of arms on a tape's rounds", OPTIONS,
                                 (int)COUNT_OF(OPTIONS), run };
