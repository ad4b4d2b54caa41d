#include "replay/report_sum.h"

#include "base/mem.h"
#include "replay/accept.h"
#include "replay/report.h"
#include "replay/scorecard.h"

#include <math.h>

/* ---- acceptance ---- */

/* The control's run in the windows of run i; -1: it is that run, or there is none. */
static int64_t control_of(const json_t *j, size_t i)
{
    const json_t *runs = json_object_get(j, "runs"), *run = json_array_get(runs, i);
    size_t k;
    json_t *other;
    if (!fmt_json_text(run, "windows")[0]) return -1;
    json_array_foreach((json_t *)runs, k, other)
        if (k != i && strcmp(fmt_json_text(other, "arm"), fmt_json_text(j, "control")) == 0 &&
            !json_object_get(other, "missing") &&
            strcmp(fmt_json_text(other, "windows"), fmt_json_text(run, "windows")) == 0)
            return strcmp(fmt_json_text(run, "arm"), fmt_json_text(j, "control")) == 0 ? -1 : (int64_t)k;
    return -1;
}

/* Run i's figure of a block; NaN: it has none. */
static double figure(const json_t *block, const char *key, int64_t i)
{
    return i < 0 ? NAN : rpl_json_number(json_array_get(json_object_get(block, key), (size_t)i));
}

static bool set_mean(json_t *run, const char *key, const rpl_moments *m)
{
    rpl_mean mean = rpl_moments_mean(m);
    return json_object_set_new(run, key, rpl_mean_json(&mean)) == 0;
}

static bool sum_run(const json_t *j, json_t *run, size_t i)
{
    rpl_moments accepted = { 0 }, p = { 0 }, versus = { 0 }, p_versus = { 0 };
    int64_t control = control_of(j, i);
    size_t k;
    json_t *b;
    json_array_foreach(json_object_get(j, "block_list"), k, b) {
        rpl_moments_add(&accepted, figure(b, "accepted", (int64_t)i));
        rpl_moments_add(&p, figure(b, "p_target", (int64_t)i));
        rpl_moments_add(&versus, figure(b, "accepted", (int64_t)i) - figure(b, "accepted", control));
        rpl_moments_add(&p_versus, figure(b, "p_target", (int64_t)i) - figure(b, "p_target", control));
    }
    return set_mean(run, "accepted", &accepted) && set_mean(run, "versus_control", &versus) &&
           set_mean(run, "p_target", &p) && set_mean(run, "p_target_versus_control", &p_versus);
}

static err_code sum_acceptance(json_t *j, err *e)
{
    size_t i;
    json_t *run;
    json_array_foreach(json_object_get(j, "runs"), i, run)
        if (!json_object_get(run, "missing") && !sum_run(j, run, i))
            return err_set(e, ERR_NOMEM, "no memory for the means of %zu runs", i);
    return ERR_OK;
}

/* ---- verdicts ---- */

static bool some(const json_t *j, const char *key) { return json_array_size(json_object_get(j, key)) > 0; }

/* As rpl_certificate_verdict. */
static const char *certificate_verdict(const json_t *j)
{
    if (rpl_count(j, "illegal") || some(j, "origins") || some(j, "findings")) return "FAIL";
    return rpl_count(j, "elements") > 0 ? "PASS" : "FAIL";
}

/* As rpl_parity_verdict. */
static const char *parity_verdict(const json_t *j)
{
    bool incomplete = rpl_count(j, "values") == 0;
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(j, "bitwise"), i, o)
        if (rpl_count(o, "differ")) return "FAIL";
    json_array_foreach(json_object_get(j, "columns"), i, o) {
        if (rpl_count(o, "unstable") || rpl_count(o, "ranks_differ") || rpl_count(o, "poisoned") || rpl_count(o, "differs"))
            return "FAIL";
        incomplete = incomplete || rpl_count(o, "unjudged") || rpl_count(o, "absent") == rpl_count(j, "values");
    }
    return incomplete ? "INCOMPLETE" : "PASS";
}

/* As rpl_scorecard_passes. */
static const char *scorecard_verdict(const json_t *j)
{
    int64_t detected = rpl_count(j, "detected");
    size_t i;
    json_t *arm;
    json_array_foreach(json_object_get(j, "arms"), i, arm)
        if (strcmp(fmt_json_text(arm, "clean"), "PASS") != 0) return "FAIL";
    bool passes = rpl_count(j, "missed") == 0 && detected > 0 && rpl_score_is_enough(rpl_count(j, "right"), detected);
    return passes ? "PASS" : "FAIL";
}

/* NULL: as it says itself. */
static const char *summed_verdict(const char *type, const json_t *j)
{
    if (strcmp(type, "certificate") == 0) return certificate_verdict(j);
    if (strcmp(type, "parity") == 0) return parity_verdict(j);
    if (strcmp(type, "scorecard") == 0) return scorecard_verdict(j);
    if (strcmp(type, "acceptance") == 0) return rpl_count(j, "blocks") ? "PASS" : "FAIL";
    return NULL;
}

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

const rpl_verdict_word RPL_VERDICT_WORD[RPL_VERDICT_WORDS] = {
    { "DONE", RPL_LOOK_NONE, true },
    { "PASS", RPL_LOOK_GOOD, true },
    { "WAIVED", RPL_LOOK_OPEN, true },
    { "PARTIAL", RPL_LOOK_OPEN, false },
    { "INCOMPLETE", RPL_LOOK_OPEN, false },
    { "CONTROL-FAILS", RPL_LOOK_OPEN, false },
    { "FAIL", RPL_LOOK_BAD, false },
};

int rpl_badness(const char *verdict)
{
    int i = 0;
    while (i < RPL_VERDICT_WORDS && !is(verdict, RPL_VERDICT_WORD[i].text)) i++;
    return i;
}

const rpl_verdict_word *rpl_word_of(const char *verdict)
{
    int i = rpl_badness(verdict);
    return &RPL_VERDICT_WORD[i < RPL_VERDICT_WORDS ? i : RPL_VERDICT_WORDS - 1];
}

bool rpl_result_has_all(const json_t *j)
{
    const json_t *shard = json_object_get(j, "shard");
    return !shard || (int64_t)json_array_size(json_object_get(shard, "have")) == rpl_count(shard, "n");
}

err_code rpl_merge_derive(const rpl_analysis *a, json_t *j, err *e)
{
    if (is(a->type, "classification")) TRY(rpl_sum_classification(j, e));
    if (is(a->type, "acceptance")) TRY(sum_acceptance(j, e));
    const char *verdict = summed_verdict(a->type, j);
    if (!verdict) return ERR_OK;
    return json_object_set_new(j, "verdict", json_string(verdict)) == 0
               ? ERR_OK : err_set(e, ERR_NOMEM, "%s: no memory for the verdict", a->name);
}

const char *rpl_result_verdict(const rpl_result *r)
{
    const json_t *j = r->json;
    const char *v = fmt_json_text(j, "verdict");
    bool left_out = json_is_true(json_object_get(j, "partial")) || !rpl_result_has_all(j) ||
                    (json_object_get(j, "rounds_wanted") && rpl_count(j, "rounds") != rpl_count(j, "rounds_wanted"));
    if (is(r->analysis->type, "injection") || is(r->analysis->type, "reduction")) return "DONE";
    if (is(r->analysis->type, "attribution")) return is(v, "PARTIAL") || is(v, "INCOMPLETE") ? v : "DONE";
    if (is(r->analysis->type, "first divergence")) v = rpl_count(j, "round") >= 0 ? "FAIL" : v[0] ? v : "PASS";
    if (is(v, "CONTROL-FAILS")) return "CONTROL-FAILS";
    bool passes = is(v, "PASS") || is(v, "SAME"), open = is(v, "PARTIAL") || is(v, "EMPTY") || is(v, "INCOMPLETE");
    if (left_out && (passes || open)) return "PARTIAL";
    if (is(v, "INCOMPLETE")) return "INCOMPLETE";
    if (is(v, "PARTIAL") || is(v, "EMPTY")) return "PARTIAL";
    if (!passes) return "FAIL";
    return is(r->analysis->type, "acceptance") ? "DONE" : "PASS";
}
