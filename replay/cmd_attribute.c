#include "base/interrupt.h"
#include "base/mem.h"
#include "capture/round_list.h"
#include "engine/cmd_common.h"
#include "engine/identity.h"
#include "replay/attribute.h"
#include "replay/commands.h"
#include "replay/coverage.h"
#include "replay/replay.h"

#include <errno.h>
#include <unistd.h>

typedef struct words {
    const char *metric, *against, *rounds;
    cli_list only;
    int64_t tries;
    eng_option_words run;
} words;

static const cli_option OPTIONS[] = {
    { "--metric", "METRIC", "drafts (default): tokens that differ; kl: of the biased logits from mirror64, in multiples of "
      "the mirror's; excess:VALUE: of a value's distance from mirror64's, likewise (excess:s0.attn_out)", CLI_STR,
      offsetof(words, metric) },
    { "--arm", "ARM", "the arm to run against the reference (default: the tape's own values stand for the arm)", CLI_STR,
      offsetof(words, run.arm) },
    { "--tp", "N", "ranks that cut the arm's sums (default: 1)", CLI_COUNT, offsetof(words, run.tp) },
    { "--combine", "MODE", "exact or fused, of the arm, or without --arm of the reference (default: exact)", CLI_STR,
      offsetof(words, run.combine) },
    { "--acc", "ACC", "blocked or f64 (default: the arm's)", CLI_STR, offsetof(words, run.acc) },
    { "--backend", "NAME", "cpu (default) or cuda, of the arm: it is run on the device once, and its values stand for it",
      CLI_STR, offsetof(words, run.backend) },
    { "--against", "ARM", "the reference (default: mirror)", CLI_STR, offsetof(words, against) },
    { "--only", "SET=IMPL", "one control: the reference with the ops of SET made by IMPL, an arm, tape or cuda "
      "(s0.attn=native-expanded); repeatable", CLI_MULTI, offsetof(words, only) },
    { "--rounds", "LIST", "only these rounds: 7,100-120,every:50", CLI_STR, offsetof(words, rounds) },
    { "--tries", "N", "runs at most, 3 or more (default: 500)", CLI_COUNT, offsetof(words, tries) },
};

typedef struct session {
    fmt_tape *tape, *device; /* device: the arm's run on the GPU, with every value */
    eng_weights *weights;
    bool *rounds;
    eng_options arm;
    rpl_only only[RPL_SUBSTITUTES_MAX];
    char set[RPL_SUBSTITUTES_MAX][RPL_SET_BYTES], tape_text[RPL_SIDE_TEXT];
    rpl_attribution result;
    bool json;
} session;

/* ---- the device as a side ---- */

/* Runs the tape's rounds on the device with every value recorded; that tape then stands for the device. The file is gone
 * once it is open. */
static err_code record_on_device(session *s, const eng_option_words *of_arm, const cli_common *common,
                                 err *e)
{
    const char *base = getenv("TMPDIR");
    char folder[200], path[240];
    rpl_replay_options o = { .level = ENG_LEVEL_DEEP, .quiet = common->quiet };
    eng_option_words run = *of_arm, recorded = { 0 };
    rpl_replay_words(s->tape, &recorded);
    const eng_arm *arm = recorded.arm ? eng_arm_find(recorded.arm) : NULL;
    if (!run.arm && arm && !arm->unsharded) run.arm = arm->name; /* of --only: the recorded arm */
    run.backend = "cuda";
    TRY(eng_options_parse(&run, common->threads, &o.run, e));
    snprintf(s->tape_text, sizeof s->tape_text, "%s cuda", o.run.arm->name);
    snprintf(folder, sizeof folder, "%.150s/sparktape-attribute-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder)) return err_set(e, ERR_IO, "%s: cannot be made: %s", folder, strerror(errno));
    snprintf(path, sizeof path, "%s/device.tape", folder);
    json_t *identity = eng_identity(s->weights, &o.run);
    err_code rc = identity ? rpl_replay_run(s->tape, s->weights, &o, identity, path, e)
                           : err_set(e, ERR_NOMEM, "attribute: no memory for the identity");
    if (rc == ERR_OK) rc = fmt_tape_open(path, &s->device, e);
    unlink(path);
    rmdir(folder);
    json_decref(identity);
    return rc;
}

/* ---- what to do ---- */

static err_code choose_rounds(session *s, const fmt_tape *t, const words *w, err *e)
{
    cap_round_list list;
    const int32_t *number;
    size_t n = fmt_tape_rounds(t, &number), n_listed = 0;
    if (!w->rounds) return ERR_OK;
    TRY(cap_round_list_parse(w->rounds, "--rounds", &list, e));
    free(s->rounds);
    s->rounds = mem_alloc(n + 1, sizeof *s->rounds);
    if (!s->rounds) return err_set(e, ERR_NOMEM, "attribute: no memory for %zu rounds", n);
    for (size_t i = 0; i < n; i++) n_listed += s->rounds[i] = cap_round_list_has(&list, number[i]);
    if (n_listed) return ERR_OK;
    return err_set(e, ERR_ARG, "--rounds %s: %s has no such round", w->rounds, fmt_tape_path(t));
}

static bool is_recorded(const char *impl) { return strcmp(impl, "tape") == 0 || strcmp(impl, "cuda") == 0; }

/* --only: who makes what. *recorded: "tape" or "cuda" where a set is made by one of these, else NULL. */
static err_code parse_only(session *s, const words *w, int64_t threads, const char **recorded, err *e)
{
    if (w->only.count > RPL_SUBSTITUTES_MAX)
        return err_set(e, ERR_ARG, "--only: found %d sets, wanted at most %d", w->only.count, RPL_SUBSTITUTES_MAX);
    for (int i = 0; i < w->only.count; i++) {
        const char *text = w->only.item[i], *equals = strchr(text, '=');
        rpl_substitute by;
        if (!equals || !is_recorded(equals + 1)) {
            TRY(rpl_substitute_parse(text, &w->run, threads, s->set[i], &by, e));
            s->only[i] = (rpl_only){ by.set, by.by };
            continue;
        }
        if (equals == text || equals - text >= RPL_SET_BYTES)
            return err_set(e, ERR_ARG, "--only: found '%.64s', wanted SET=IMPL, as in s0.attn=tape", text);
        if (*recorded && strcmp(*recorded, equals + 1) != 0)
            return err_set(e, ERR_ARG, "--only: found both tape and cuda, wanted one of the two");
        *recorded = equals + 1;
        memcpy(s->set[i], text, (size_t)(equals - text));
        s->only[i].set = s->set[i];
    }
    return ERR_OK;
}

/* An arm that cannot be is --against's here. */
static err_code parse_reference(const eng_option_words *of, int64_t threads, eng_options *out, err *e)
{
    err_code rc = eng_options_parse(of, threads, out, e);
    if (rc != ERR_OK) cli_say_as(e, "--arm", "--against");
    return rc;
}

static err_code make_options(session *s, const words *w, const cli_common *common, rpl_attribute_options *o, err *e)
{
    const char *recorded = NULL;
    eng_option_words reference = { .arm = w->against ? w->against : "mirror" };
    eng_option_words run = w->run;
    bool cuda = w->run.backend && strcmp(w->run.backend, "cuda") == 0;
    bool alone = !w->run.arm && w->only.count == 0;
    TRY(rpl_metric_parse(w->metric ? w->metric : "drafts", &o->metric, e));
    if (w->tries == 1 || w->tries == 2)
        return err_set(e, ERR_ARG, "--tries: found %lld, wanted 3 or more: the arm alone and the reference alone are two",
                       (long long)w->tries);
    if (alone) reference.combine = w->run.combine;
    TRY(parse_reference(&reference, common->threads, &o->reference, e));
    /* Of a tape alone the question is what went wrong over its weights; of an arm its weights are part of the answer. */
    if (alone) o->reference.reps = eng_identity_reps(json_object_get(fmt_tape_head(s->tape), "identity"));
    if (w->only.count && (w->run.arm || w->run.backend))
        return err_set(e, ERR_ARG, "--only: found --%s too, wanted one of the two", w->run.arm ? "arm" : "backend");
    if (alone && (w->run.tp || w->run.acc || w->run.backend))
        return err_set(e, ERR_ARG, "--tp, --acc and --backend: wanted --arm, which they are about");
    TRY(parse_only(s, w, common->threads, &recorded, e));
    cuda = cuda || (recorded && strcmp(recorded, "cuda") == 0);
    if (w->run.arm && !cuda) {
        TRY(eng_options_parse(&run, common->threads, &s->arm, e));
        o->arm = &s->arm;
    }
    if (cuda) TRY(record_on_device(s, &run, common, e));
    else snprintf(s->tape_text, sizeof s->tape_text, "the tape");
    if (s->device) TRY(choose_rounds(s, s->device, w, e));
    o->tape_text = s->tape_text;
    o->only = s->only;
    o->n_only = w->only.count;
    o->rounds = s->rounds;
    o->tries = w->tries && w->tries < INT32_MAX ? (int32_t)w->tries : 500;
    o->quiet = common->quiet;
    return ERR_OK;
}

static void say(void *ctx, const rpl_attribution *a, const rpl_try *t)
{
    const session *s = ctx;
    if (s->json) return;
    if (a->n_tries == 1) rpl_attribution_begin(a);
    rpl_attribution_print_try(a, t);
}

static err_code attribute(session *s, const cli_args *args, const words *w, const cli_common *common, int *exit_status,
                          err *e)
{
    rpl_attribute_options o = { .say = say, .ctx = s };
    s->json = common->json;
    cmd_use_threads(common);
    TRY(fmt_tape_open(args->item[0], &s->tape, e));
    TRY(choose_rounds(s, s->tape, w, e));
    TRY(eng_weights_open(args->item[1], common->quiet, &s->weights, e));
    TRY(eng_identity_check(json_object_get(fmt_tape_head(s->tape), "identity"), s->weights, e));
    bool damaged = rpl_warn_of_damage(s->tape);
    TRY(make_options(s, w, common, &o, e));
    interrupt_catch();
    TRY(rpl_attribute(s->device ? s->device : s->tape, s->weights, &o, &s->result, e));
    s->result.damaged = s->result.damaged || damaged;
    *exit_status = strcmp(rpl_attribution_verdict(&s->result), "SAME") == 0 ? 0 : 1;
    if (!common->json) {
        rpl_attribution_print(&s->result);
        return ERR_OK;
    }
    json_t *j = rpl_attribution_json(&s->result, s->tape);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "attribute: no memory for the report");
    json_decref(j);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { 0 };
    cli_common common;
    cli_args args;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    session *s = mem_alloc(1, sizeof *s);
    if (!s) return err_set(e, ERR_NOMEM, "attribute: no memory");
    err_code rc = attribute(s, &args, &w, &common, exit_status, e);
    if (s->tape) rc = rpl_say_recover(s->tape, rc, e);
    rpl_attribution_fini(&s->result);
    free(s->rounds);
    eng_weights_close(s->weights);
    fmt_tape_close(s->device);
    fmt_tape_close(s->tape);
    free(s);
    return rc;
}

const cli_command CMD_ATTRIBUTE = {
    "attribute", "TAPE MODEL", "finds the ops that make a run another one than the reference's", OPTIONS,
    (int)COUNT_OF(OPTIONS), run,
};
