#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "engine/traffic.h"
#include "replay/commands.h"
#include "replay/scorecard.h"

#include <unistd.h>

typedef struct words {
    const char *script, *kinds, *ops, *arms, *bound;
    int64_t every, seed;
    bool all;
} words;

#define OFFICIAL_ARMS "native-packed,native-packed/2/fused,native-expanded/2,mirror64/graph"
#define CONTROL_ARM "k2-tp2/2"

static const cli_option OPTIONS[] = {
    { "--kinds", "PATTERN", "only faults whose name matches (* and ?, commas between patterns; sparktape inject --list)",
      CLI_STR, offsetof(words, kinds) },
    { "--ops", "PATTERN", "only ops whose name matches", CLI_STR, offsetof(words, ops) },
    { "--arms", "LIST", "ARM[/RANKS][/fused][/graph][/f64], commas between (default: native-packed, native-packed/2/fused, "
      "native-expanded/2, mirror64/graph; with EXL3 weights k2-tp2/2 too)", CLI_STR, offsetof(words, arms) },
    { "--bound", "BOUND", "what the certificate judges by: default, worst or sharp (sparktape certify --help)", CLI_STR,
      offsetof(words, bound) },
    { "--every", "N", "only one planting in N, chosen by the seed (default: 1, all)", CLI_COUNT, offsetof(words, every) },
    { "--seed", "N", "of the script and of the choice (default: 1)", CLI_COUNT, offsetof(words, seed) },
    { "--script", "S", "the rounds to run (default: three rounds of synthetic traffic with two slots)", CLI_IN,
      offsetof(words, script) },
    { "--all", NULL, "a line for every planting, not only for those missed, found elsewhere or with another cause",
      CLI_FLAG, offsetof(words, all) },
};

/* ---- report ---- */

static int64_t count(const rpl_scorecard *c, rpl_outcome o) { return rpl_scorecard_count(c, o, NULL); }
static int64_t detected(const rpl_scorecard *c) { return count(c, RPL_SCORE_RIGHT) + count(c, RPL_SCORE_ELSEWHERE); }
static double share(int64_t part, int64_t of) { return of ? 100.0 * (double)part / (double)of : 0; }

/* Plantings whose kind has a cause class and whose origin was found, and those of them that are named as the kind says. */
static void count_causes(const rpl_scorecard *c, int64_t *named, int64_t *right)
{
    *named = *right = 0;
    for (size_t i = 0; i < c->n_plantings; i++) {
        const rpl_planting *p = &c->planting[i];
        *named += rpl_planting_has_class(p);
        *right += rpl_planting_has_class(p) && rpl_planting_named(p);
    }
}

/* Found, and called something else. */
static bool is_misnamed(const rpl_planting *p) { return rpl_planting_has_class(p) && !rpl_planting_named(p); }

static void print_planting(const rpl_scorecard *c, const rpl_planting *p)
{
    printf("%-10s %s@%s:step=%s  %s: %lld changed, %lld illegal, moved %.2g", rpl_outcome_name(p->outcome), p->kind->name,
           p->op, p->step == ENG_STEP_DRAFT ? "draft" : "insert", c->arm[p->arm].text, (long long)p->n_changed,
           (long long)p->n_illegal, p->moved);
    if (p->origin[0]) printf(", first origin %s", p->origin);
    if (is_misnamed(p)) printf(" (cause %s, wanted %s)", p->cause[0] ? p->cause : "none", eng_cause_name(p->kind->cause));
    else if (p->cause[0]) printf(" (%s)", p->cause);
    printf("\n");
}

static void print_kinds(const rpl_scorecard *c)
{
    printf("%-22s %7s %9s %7s %7s %11s %9s %6s\n", "kind", "planted", "detected", "origin", "missed", "admissible",
           "absorbed", "idle");
    for (size_t k = 0; k < eng_fault_count(); k++) {
        const eng_fault_kind *kind = eng_fault_at(k);
        long long n[RPL_SCORE_OUTCOMES], all = 0;
        for (int o = 0; o < RPL_SCORE_OUTCOMES; o++) all += n[o] = rpl_scorecard_count(c, (rpl_outcome)o, kind);
        if (!all) continue;
        printf("%-22s %7lld %9lld %7lld %7lld %11lld %9lld %6lld\n", kind->name, all,
               n[RPL_SCORE_RIGHT] + n[RPL_SCORE_ELSEWHERE], n[RPL_SCORE_RIGHT], n[RPL_SCORE_MISSED],
               n[RPL_SCORE_ADMISSIBLE], n[RPL_SCORE_ABSORBED], n[RPL_SCORE_IDLE]);
    }
}

static void print_text(const rpl_scorecard *c, rpl_bound bound, bool all, double seconds)
{
    int64_t named, named_right, beyond = detected(c) + count(c, RPL_SCORE_MISSED);
    print_kinds(c);
    printf("\n");
    for (size_t i = 0; i < c->n_plantings; i++) {
        const rpl_planting *p = &c->planting[i];
        bool wrong = p->outcome == RPL_SCORE_MISSED || p->outcome == RPL_SCORE_ELSEWHERE || is_misnamed(p);
        if (all || wrong) print_planting(c, p);
    }
    printf("admissible: some order of sums gives the changed values; absorbed: a later rounding hid the change;\n"
           "idle: without occasion, the op had nothing to get wrong\n");
    for (size_t i = 0; i < c->n_arms; i++) printf("%-28s without a fault: %s\n", c->arm[i].text, c->arm[i].clean);
    printf("bound: %s\n", rpl_bound_name(bound));
    count_causes(c, &named, &named_right);
    if (c->interrupted) printf("partial: interrupted after %zu of %zu plantings\n", c->n_plantings, c->n_plantings_wanted);
    printf("%zu faults planted in %.1f s: %lld beyond admissibility, %lld admissible, %lld absorbed, %lld without "
           "occasion\n", c->n_plantings, seconds, (long long)beyond, (long long)count(c, RPL_SCORE_ADMISSIBLE),
           (long long)count(c, RPL_SCORE_ABSORBED), (long long)count(c, RPL_SCORE_IDLE));
    printf("%s: detected %lld of %lld (%.2f %%), first origin right %lld of %lld (%.2f %%)",
           rpl_scorecard_verdict(c), (long long)detected(c), (long long)beyond, share(detected(c), beyond),
           (long long)count(c, RPL_SCORE_RIGHT), (long long)detected(c), share(count(c, RPL_SCORE_RIGHT), detected(c)));
    if (named)
        printf(", cause right %lld of %lld (%.2f %%)", (long long)named_right, (long long)named, share(named_right, named));
    printf("\n");
}

static json_t *planting_json(const rpl_scorecard *c, const rpl_planting *p)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:I, s:I, s:s, s:s, s:s}", "kind", p->kind->name, "op", p->op,
                     "step", p->step == ENG_STEP_DRAFT ? "draft" : "insert", "op_kind", eng_kind_name(p->op_kind), "stage",
                     p->stage, "arm", c->arm[p->arm].text, "outcome", rpl_outcome_name(p->outcome), "changed",
                     (json_int_t)p->n_changed, "illegal", (json_int_t)p->n_illegal, "origin", p->origin, "cause", p->cause,
                     "wanted_cause", eng_cause_name(p->kind->cause));
}

static err_code print_json(const rpl_scorecard *c, const char *model, const words *w, rpl_bound bound, double seconds,
                           err *e)
{
    json_t *arms = json_array(), *list = json_array();
    int64_t named, named_right;
    bool fine = arms && list;
    count_causes(c, &named, &named_right);
    for (size_t i = 0; i < c->n_arms && fine; i++)
        fine = json_array_append_new(arms, json_pack("{s:s, s:s}", "arm", c->arm[i].text, "clean", c->arm[i].clean)) == 0;
    for (size_t i = 0; i < c->n_plantings && fine; i++)
        fine = json_array_append_new(list, planting_json(c, &c->planting[i])) == 0;
    json_t *j = !fine ? NULL :
        json_pack("{s:i, s:s, s:s, s:s, s:s?, s:s?, s:I, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
                  "s:f, s:O, s:O}", "schema", 1, "type", "scorecard", "model", model, "bound", rpl_bound_name(bound),
                  "kinds", w->kinds, "ops", w->ops, "every", (json_int_t)w->every, "verdict", rpl_scorecard_verdict(c),
                  "partial", c->interrupted, "planted_wanted", (json_int_t)c->n_plantings_wanted, "seed",
                  (json_int_t)c->seed, "planted", (json_int_t)c->n_plantings, "detected", (json_int_t)detected(c), "right",
                  (json_int_t)count(c, RPL_SCORE_RIGHT), "missed", (json_int_t)count(c, RPL_SCORE_MISSED), "admissible",
                  (json_int_t)count(c, RPL_SCORE_ADMISSIBLE), "absorbed", (json_int_t)count(c, RPL_SCORE_ABSORBED), "idle",
                  (json_int_t)count(c, RPL_SCORE_IDLE), "causes_named", (json_int_t)named, "causes_right",
                  (json_int_t)named_right, "seconds", seconds, "arms", arms, "plantings", list);
    if (j && json_object_set_new(j, "matrix", rpl_scorecard_matrix(c)) != 0) fine = false;
    err_code rc = j && fine ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    json_decref(arms);
    json_decref(list);
    return rc;
}

/* ---- the command ---- */

static err_code open_script(const words *w, const char *folder, const eng_config *c, eng_script **out, err *e)
{
    enum { ROUNDS = 3, SLOTS = 2 };
    char path[200];
    eng_traffic_report made;
    if (w->script) return eng_script_open(w->script, c, out, e);
    snprintf(path, sizeof path, "%s/script.safetensors", folder);
    TRY(eng_traffic_write(path, c, ROUNDS, SLOTS, (uint64_t)w->seed, true, &made, e));
    err_code rc = eng_script_open(path, c, out, e);
    unlink(path); /* mapped: stays readable */
    return rc;
}

/* A word that no fault fits would be left out without a word. */
static err_code check_kinds(const char *list, err *e)
{
    char word[64];
    for (const char *at = list; at;) {
        size_t n = strcspn(at, ",");
        bool fits = false;
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        for (size_t k = 0; k < eng_fault_count() && !fits; k++)
            fits = n < sizeof word && cli_match(word, eng_fault_at(k)->name);
        if (!fits)
            return err_set(e, ERR_ARG, "--kinds: found '%s', wanted names or patterns of sparktape inject --list", word);
        at = at[n] ? at + n + 1 : NULL;
    }
    return ERR_OK;
}

/* The official arms, and the control where the checkpoint has what it reads. */
static const char *default_arms(const eng_weights *w)
{
    const eng_reps control = eng_arm_reps(eng_arm_find("k2-tp2"));
    return eng_weights_need(w, &control, NULL) == ERR_OK ? OFFICIAL_ARMS "," CONTROL_ARM : OFFICIAL_ARMS;
}

static err_code scorecard(const char *model, const words *w, const cli_common *common, int *exit_status, err *e)
{
    rpl_scorecard card = { 0 };
    eng_weights *weights = NULL;
    eng_script *script = NULL;
    const char *tmp = getenv("TMPDIR");
    char folder[160];
    rpl_score_options o = { .kinds = w->kinds, .ops = w->ops, .every = (int32_t)w->every, .seed = (uint64_t)w->seed,
                            .threads = (int32_t)common->threads, .quiet = common->quiet };
    uint64_t start = clock_ns();
    TRY(rpl_bound_parse(w->bound, &o.bound, e));
    if (!tmp || !*tmp) tmp = "/tmp";
    if (snprintf(folder, sizeof folder, "%s/sparktape-XXXXXX", tmp) >= (int)sizeof folder || !mkdtemp(folder))
        return err_set(e, ERR_SYSTEM, "scorecard: no folder for tapes can be made in %.80s", tmp);
    err_code rc = eng_weights_open(model, common->quiet, &weights, e);
    if (rc == ERR_OK) rc = rpl_scorecard_arms(w->arms ? w->arms : default_arms(weights), &card, e);
    if (rc == ERR_OK) rc = open_script(w, folder, eng_weights_config(weights), &script, e);
    interrupt_catch();
    if (rc == ERR_OK) rc = rpl_scorecard_run(&card, weights, script, folder, &o, e);
    if (rc == ERR_OK && card.n_plantings_wanted == 0)
        rc = err_set(e, ERR_ARG, "scorecard: no fault fits what was asked for");
    double seconds = (double)(clock_ns() - start) * 1e-9;
    if (rc == ERR_OK && common->json) rc = print_json(&card, model, w, o.bound, seconds, e);
    else if (rc == ERR_OK) print_text(&card, o.bound, w->all, seconds);
    *exit_status = strcmp(rpl_scorecard_verdict(&card), "PASS") == 0 ? 0 : 1;
    rmdir(folder);
    eng_script_close(script);
    eng_weights_close(weights);
    rpl_scorecard_fini(&card);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { .every = 1, .seed = 1 };
    cli_common common;
    cli_args args;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    TRY(check_kinds(w.kinds, e));
    if (w.every > INT32_MAX) return err_set(e, ERR_ARG, "--every: found %lld, wanted less", (long long)w.every);
    return scorecard(args.item[0], &w, &common, exit_status, e);
}

const cli_command CMD_SCORECARD = {
    "scorecard", "MODEL", "plants faults one at a time and says which the certificate finds, and where", OPTIONS,
    sizeof OPTIONS / sizeof OPTIONS[0], run,
};
