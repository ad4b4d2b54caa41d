#include "base/interrupt.h"
#include "base/mem.h"
#include "engine/cmd_common.h"
#include "engine/identity.h"
#include "replay/classify.h"
#include "replay/commands.h"
#include "replay/certify.h"
#include "replay/coverage.h"
#include "replay/source.h"

typedef struct words {
    const char *gates, *control, *shard;
    cli_list only;
    eng_option_words run; /* of the control's arms */
    bool own, all;
} words;

static const cli_option OPTIONS[] = {
    { "--gates", "FILE", "limits instead of the strict ones: an object of keys as in gates.json", CLI_IN,
      offsetof(words, gates) },
    { "--control", "ARM", "classify this arm too, on the same inputs, and print its figures beside", CLI_STR,
      offsetof(words, control) },
    { "--only", "SET=ARM", "control: the mirror, with the ops of SET made by ARM (s0.attn.o=native-expanded); repeatable",
      CLI_MULTI, offsetof(words, only) },
    { "--tp", "N", "ranks that cut the sums of the control's arms (default: 1)", CLI_COUNT, offsetof(words, run.tp) },
    { "--combine", "MODE", "exact or fused, of the control's arms (default: exact)", CLI_STR,
      offsetof(words, run.combine) },
    { "--own", NULL, "by mirrors of the weights that the tapes were recorded with, not of the official ones", CLI_FLAG,
      offsetof(words, own) },
    { "--shard", "I/N", "the I-th of N parts of the rounds (1/N .. N/N)", CLI_STR, offsetof(words, shard) },
    { "--all", NULL, "print every flag and every token, not the first ones", CLI_FLAG, offsetof(words, all) },
};

/* Everything that is held open. */
typedef struct session {
    eng_weights *weights;
    rpl_classify *classify;
    fmt_tape *tape;
    json_t *source; /* of the tapes so far, for --json */
    eng_options control, own;
    char own_arm[64], exl3_arm[64]; /* exl3: of a tape that was made with such weights; "" none was */
    rpl_substitute substitute[RPL_SUBSTITUTES_MAX];
    char set[RPL_SUBSTITUTES_MAX][RPL_SET_BYTES];
    char control_text[512];
    bool damaged, json; /* one of the tapes is */
} session;

/* Adds to what the control is, in words; what does not fit is left out. */
static void add_text(session *s, const char *before, const char *text)
{
    size_t n = strlen(s->control_text);
    snprintf(s->control_text + n, sizeof s->control_text - n, "%s%s", before, text);
}

static err_code parse_control(session *s, const words *w, int64_t threads, rpl_classify_options *o, err *e)
{
    eng_option_words run = w->run;
    bool any = w->control || w->only.count;
    if (w->control && w->only.count)
        return err_set(e, ERR_ARG, "--control %s: found --only too, wanted one of the two", w->control);
    if ((run.combine || run.tp) && !any)
        return err_set(e, ERR_ARG, "--tp and --combine: wanted --control or --only, whose arms they are about");
    if (w->only.count > RPL_SUBSTITUTES_MAX)
        return err_set(e, ERR_ARG, "--only: found %d sets, wanted at most %d", w->only.count, RPL_SUBSTITUTES_MAX);
    if (w->control) {
        run.arm = w->control;
        err_code rc = eng_options_parse(&run, threads, &s->control, e);
        if (rc != ERR_OK) {
            cli_say_as(e, "--arm", "--control");
            return rc;
        }
        o->control = &s->control;
        add_text(s, "", w->control);
    }
    for (int i = 0; i < w->only.count; i++) {
        TRY(rpl_substitute_parse(w->only.item[i], &run, threads, s->set[i], &s->substitute[i], e));
        add_text(s, i ? " " : "the mirror with ", w->only.item[i]);
    }
    char ranks[24];
    snprintf(ranks, sizeof ranks, "%d", (int)run.tp);
    if (run.tp) add_text(s, ", tp ", ranks);
    if (run.combine) add_text(s, ", combine ", run.combine);
    o->substitute = s->substitute;
    o->n_substitutes = w->only.count;
    return ERR_OK;
}

/* The weights of the first tape's run, which the others must have too. */
static err_code take_own(session *s, const cli_args *args, int64_t threads, err *e)
{
    for (int i = 0; i < args->count - 1; i++) {
        eng_options o;
        TRY(fmt_tape_open(args->item[i], &s->tape, e));
        const json_t *identity = json_object_get(fmt_tape_head(s->tape), "identity");
        const char *arm = json_string_value(json_object_get(json_object_get(identity, "arm"), "name"));
        TRY(rpl_forced_mirror64(s->tape, rpl_certify_options_of(s->tape).n_ranks, (int32_t)threads, &o, e));
        if (!arm)
            return err_set(e, ERR_INPUT, "%s: --own: found no arm, wanted a tape that names one (import --identity-from)",
                           args->item[i]);
        if (i == 0) {
            s->own = o;
            snprintf(s->own_arm, sizeof s->own_arm, "%s", arm);
        } else if (memcmp(&o.reps, &s->own.reps, sizeof o.reps) != 0 || o.n_ranks != s->own.n_ranks ||
                   o.exl3_acc != s->own.exl3_acc)
            return err_set(e, ERR_ARG, "%s: --own: found the weights of %s, tp %d, acc %s, wanted those of %s before, %s, "
                           "tp %d, acc %s", args->item[i], arm, o.n_ranks, eng_acc_name(o.exl3_acc), args->item[0],
                           s->own_arm, s->own.n_ranks, eng_acc_name(s->own.exl3_acc));
        fmt_tape_close(s->tape);
        s->tape = NULL;
    }
    return ERR_OK;
}

static err_code add_tape(session *s, const char *path, err *e)
{
    TRY(fmt_tape_open(path, &s->tape, e));
    const json_t *identity = json_object_get(fmt_tape_head(s->tape), "identity");
    TRY(eng_identity_check(identity, s->weights, e));
    if (rpl_warn_of_damage(s->tape)) s->damaged = true;
    const eng_reps reps = eng_identity_reps(identity);
    if (reps.experts == ENG_REP_EXL3 || reps.dense == ENG_REP_EXL3 || reps.head == ENG_REP_EXL3)
        snprintf(s->exl3_arm, sizeof s->exl3_arm, "%s", fmt_json_text(json_object_get(identity, "arm"), "name"));
    TRY(rpl_classify_tape(s->classify, s->tape, e));
    if (s->json) {
        s->source = rpl_source_json(s->source ? s->source : json_object(), s->tape);
        if (!s->source) return err_set(e, ERR_NOMEM, "classify: no memory for %s", path);
    }
    fmt_tape_close(s->tape);
    s->tape = NULL;
    return ERR_OK;
}

static err_code classify(session *s, const cli_args *args, const cli_common *common, const words *w, int *exit_status,
                         err *e)
{
    rpl_classify_options o = { .quiet = common->quiet, .threads = (int32_t)common->threads };
    const char *model = args->item[args->count - 1];
    const rpl_classification *c;
    s->json = common->json;
    cmd_use_threads(common);
    rpl_gates_default(&o.gates);
    TRY(rpl_shard_parse(w->shard, &o.shard, &o.n_shards, e));
    TRY(parse_control(s, w, common->threads, &o, e));
    if (w->gates) TRY(rpl_gates_read(w->gates, &o.gates, e));
    if (w->own) {
        TRY(take_own(s, args, common->threads, e));
        o.own = &s->own;
    }
    TRY(eng_weights_open(model, common->quiet, &s->weights, e));
    TRY(rpl_classify_open(s->weights, &o, &s->classify, e));
    interrupt_catch();
    for (int i = 0; i < args->count - 1; i++) TRY(add_tape(s, args->item[i], e));
    TRY(rpl_classify_result(s->classify, &c, e));
    const rpl_classify_report r = {
        c, &o.gates, args->item, model, c->has_control ? s->control_text : NULL, w->own ? s->own_arm : NULL,
        s->exl3_arm[0] ? s->exl3_arm : NULL,
        { o.shard, o.n_shards, c->n_rounds, c->n_rounds_wanted, c->n_rounds_all, c->interrupted, s->damaged }, w->all,
    };
    *exit_status = rpl_coverage_exit(rpl_classify_verdict(&r));
    if (!common->json) {
        rpl_classify_print(&r);
        return ERR_OK;
    }
    json_t *j = rpl_classify_json(&r);
    if (j && json_object_update(j, s->source) != 0) {
        json_decref(j);
        j = NULL;
    }
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "classify: no memory for the report");
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
    err_code rc = classify(&s, &args, &common, &w, exit_status, e);
    if (s.tape) rc = rpl_say_recover(s.tape, rc, e); /* the one that was being read */
    rpl_classify_close(s.classify);
    json_decref(s.source);
    fmt_tape_close(s.tape);
    eng_weights_close(s.weights);
    return rc;
}

const cli_command CMD_CLASSIFY = { "classify", "TAPE.. MODEL", "judges a worker's V1 dumps by the reference", OPTIONS,
                                   (int)COUNT_OF(OPTIONS), run };
