#include "capture/taps.h"

#include "base/mem.h"

static const struct { const char *name; int tier; } TIERS[] = {
    { "tensor", FMT_TIER_TENSOR }, { "stats", FMT_TIER_STATS }, { "hash", FMT_TIER_HASH }, { "off", CAP_TIER_OFF },
};

/* "PATTERN=TIER": pattern is copied out. */
static err_code parse_tap(const char *item, char pattern[256], int *tier, err *e)
{
    const char *eq = strrchr(item, '=');
    if (!eq || eq == item || eq - item >= 256)
        return err_set(e, ERR_ARG, "--tap: found '%s', wanted PATTERN=TIER", item);
    for (size_t i = 0; i < COUNT_OF(TIERS); i++)
        if (strcmp(eq + 1, TIERS[i].name) == 0) {
            memcpy(pattern, item, (size_t)(eq - item));
            pattern[eq - item] = 0;
            *tier = TIERS[i].tier;
            return ERR_OK;
        }
    return err_set(e, ERR_ARG, "--tap %s: tier found '%s', wanted tensor, stats, hash or off", item, eq + 1);
}

err_code cap_taps_check(const cli_list *taps, err *e)
{
    char pattern[256];
    int tier;
    for (int i = 0; taps && i < taps->count; i++) TRY(parse_tap(taps->item[i], pattern, &tier, e));
    return ERR_OK;
}

eng_level cap_retain_level(const cap_options *o)
{
    return o->taps && o->taps->count > 0 ? ENG_LEVEL_DEEP : o->level; /* a tap item may name any value */
}

/* Inputs of a round: written by the recorder itself, not by taps. */
static bool is_input(const eng_value *v) { return v->producer < 0 && !v->state; }
static bool is_hidden(const eng_value *v) { return v->level == ENG_LEVEL_HIDDEN; }

void cap_top_name(const eng_value *v, char out[CAP_TOP_NAME]) { snprintf(out, CAP_TOP_NAME, "%s.top", v->name); }

static void arm_by_level(const eng_value *v, eng_level level, cap_armed *a)
{
    *a = (cap_armed){ .tier = CAP_TIER_OFF, .top_tier = CAP_TIER_OFF };
    if (is_input(v) || is_hidden(v) || v->level > level) return;
    if (v->top_only && level == ENG_LEVEL_V1) a->top_tier = FMT_TIER_TENSOR;
    else a->tier = FMT_TIER_TENSOR;
}

err_code cap_arm(const eng_program *const program[CAP_STEPS], const cap_options *o, cap_armed *const armed[CAP_STEPS],
                 err *e)
{
    for (int s = 0; s < CAP_STEPS; s++)
        for (int32_t v = 0; v < program[s]->n_values; v++)
            arm_by_level(&program[s]->value[v], o->level, &armed[s][v]);
    for (int i = 0; o->taps && i < o->taps->count; i++) {
        char pattern[256], top[CAP_TOP_NAME];
        int tier = 0;
        bool matched = false;
        TRY(parse_tap(o->taps->item[i], pattern, &tier, e));
        for (int s = 0; s < CAP_STEPS; s++)
            for (int32_t v = 0; v < program[s]->n_values; v++) {
                const eng_value *value = &program[s]->value[v];
                if (is_hidden(value)) continue;
                if (cli_match(pattern, value->name)) {
                    matched = true;
                    if (!is_input(value)) armed[s][v].tier = tier;
                }
                cap_top_name(value, top);
                if (value->top_only && cli_match(pattern, top)) {
                    matched = true;
                    armed[s][v].top_tier = tier;
                }
            }
        if (!matched) return err_set(e, ERR_ARG, "--tap %s: no value has such a name", o->taps->item[i]);
    }
    return ERR_OK;
}

/* A window is a value of both programs; only the draft's is kept. One process of several does not see the other shards: it
 * keeps its own whole instead of the top of all. */
static void settle(const eng_value *v, eng_step_kind step, bool all_ranks_here, cap_armed *a)
{
    if (v->state) a->top_tier = CAP_TIER_OFF;
    if (v->state && step == ENG_STEP_INSERT) a->tier = CAP_TIER_OFF;
    if (all_ranks_here) return;
    if (a->tier == CAP_TIER_OFF) a->tier = a->top_tier;
    a->top_tier = CAP_TIER_OFF;
}

static uint8_t keep_of(const cap_armed *a)
{
    /* What is permuted first is digested afterwards. */
    bool whole = a->tier == FMT_TIER_TENSOR || a->hide != CAP_HIDE_NOTHING;
    int keep = a->tier == CAP_TIER_OFF ? ENG_KEEP_OFF : whole ? ENG_KEEP_TENSOR : ENG_KEEP_DIGEST;
    return (uint8_t)(a->top_tier == CAP_TIER_OFF ? keep : keep | ENG_KEEP_TOP);
}

/* Asked for by its own name, not by a pattern that happens to match it. */
static bool is_asked_for(const cli_list *taps, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; taps && i < taps->count; i++)
        if (strncmp(taps->item[i], name, n) == 0 && taps->item[i][n] == '=' && strcmp(taps->item[i] + n, "=off") != 0)
            return true;
    return false;
}

static err_code hide(cap_plan *plan, eng_step_kind step, const cap_options *o, bool all_ranks_here, err *e)
{
    const eng_program *p = plan->program[step];
    cap_hide *how = mem_alloc((size_t)p->n_values, sizeof *how);
    if (!how) return err_set(e, ERR_NOMEM, "no memory for the tap table");
    err_code rc = cap_redact_program(plan->redact, p, all_ranks_here, how, e);
    for (int32_t v = 0; rc == ERR_OK && v < p->n_values; v++) {
        cap_armed *a = &plan->armed[step][v];
        a->hide = how[v];
        if (a->hide != CAP_HIDE_VALUE) continue;
        a->tier = a->top_tier = CAP_TIER_OFF;
        if (is_asked_for(o->taps, p->value[v].name))
            rc = err_set(e, ERR_ARG, "--tap %s: its bits tell the ids that --redact hides", p->value[v].name);
    }
    free(how);
    return rc;
}

json_t *cap_plan_redact_json(const cap_plan *p)
{
    if (!p->redact) return NULL;
    json_t *withheld = json_array();
    for (int s = 0; s < CAP_STEPS; s++)
        for (int32_t v = 0; v < p->program[s]->n_values; v++)
            if (p->armed[s][v].hide == CAP_HIDE_VALUE && !is_hidden(&p->program[s]->value[v]))
                json_array_append_new(withheld, json_string(p->program[s]->value[v].name));
    json_t *j = cap_redact_json(p->redact, withheld);
    json_decref(withheld);
    return j;
}

err_code cap_plan_init(eng_engine *g, const cap_options *o, cap_plan *out, err *e)
{
    const eng_options *run = eng_options_of(g);
    out->n_ranks = run->n_ranks;
    out->first_rank = run->bootstrap ? run->rank : 0;
    out->end_rank = run->bootstrap ? run->rank + 1 : run->n_ranks;
    for (int s = 0; s < CAP_STEPS; s++) {
        out->program[s] = eng_program_of(g, (eng_step_kind)s);
        size_t n = (size_t)out->program[s]->n_values + 1;
        out->armed[s] = mem_alloc(n, sizeof *out->armed[s]);
        out->keep[s] = mem_alloc(n, sizeof *out->keep[s]);
        if (!out->armed[s] || !out->keep[s]) return err_set(e, ERR_NOMEM, "no memory for the tap table");
    }
    out->main_x = eng_program_find_value(out->program[ENG_STEP_INSERT], "main_x");
    TRY(cap_arm(out->program, o, out->armed, e));
    out->redact = o->redact;
    bool all_ranks_here = out->end_rank - out->first_rank == out->n_ranks;
    for (int s = 0; s < CAP_STEPS; s++) {
        for (int32_t v = 0; v < out->program[s]->n_values; v++)
            settle(&out->program[s]->value[v], (eng_step_kind)s, all_ranks_here, &out->armed[s][v]);
        TRY(hide(out, (eng_step_kind)s, o, all_ranks_here, e));
        for (int32_t v = 0; v < out->program[s]->n_values; v++) out->keep[s][v] = keep_of(&out->armed[s][v]);
    }
    return ERR_OK;
}

void cap_plan_fini(cap_plan *p)
{
    for (int s = 0; s < CAP_STEPS; s++) {
        free(p->armed[s]);
        free(p->keep[s]);
    }
}
