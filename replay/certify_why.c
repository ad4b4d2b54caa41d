/* Why a value of a round was not judged: the first thing that is missing, by name. */
#include "replay/certify_round.h"

#include "base/mem.h"
#include "capture/redact.h"

static bool is_hidden(const rpl_certify *c, const char *name)
{
    return cap_redact_key_of(c->tape) && cap_redact_tells_ids(name);
}

/* Walks back from the op that makes value v to what is recorded of n's step, over values that are not. *missing: an input
 * of the step that the way ends in and that is not recorded, NULL: none. *stage: the last one whose attention lies on the
 * way, -1: none. */
static err_code walk_back(const rpl_certify *c, const cap_name *n, const eng_program *p, int32_t v, const char **missing,
                          int32_t *stage, err *e)
{
    bool *needed = mem_alloc((size_t)p->n_ops, sizeof *needed);
    *missing = NULL;
    *stage = -1;
    if (!needed) return err_set(e, ERR_NOMEM, "certify: no memory");
    if (p->value[v].producer >= 0) needed[p->value[v].producer] = true;
    for (int32_t i = p->value[v].producer; i >= 0; i--) {
        const eng_op *op = &p->op[i];
        if (!needed[i]) continue;
        if (op->kind == ENG_OP_ATTENTION && *stage < 0) *stage = op->stage;
        for (int32_t k = 0; k < op->n_in; k++) {
            const eng_value *in = &p->value[op->in[k]];
            if (in->state || (rpl_forced_has(c->forced, n->round, n->slot, in->name) && !is_hidden(c, in->name))) continue;
            if (in->producer >= 0) needed[in->producer] = true;
            else *missing = in->name;
        }
    }
    free(needed);
    return ERR_OK;
}

bool rpl_certify_is_window(const cap_name *n)
{
    const char *dot = strrchr(n->name, '.');
    return n->slot != FMT_TAPE_NO_SLOT && dot && strcmp(dot, ".window") == 0;
}

/* n is a value of the program or a window, and stands on the tape: what its op reads does not. */
static err_code name_missing(const rpl_certify *c, const cap_name *n, eng_step_kind step, char why[RPL_WHY_BYTES], err *e)
{
    const bool window = rpl_certify_is_window(n); /* looked at where a draft reads it */
    const bool drafts = window || step == ENG_STEP_DRAFT;
    const char *missing = drafts ? rpl_forced_draft_lacks(c->forced, n->round) : NULL;
    int32_t stage = -1;
    if (!drafts && !rpl_forced_has(c->forced, n->round, n->slot, "pos")) missing = "pos";
    if (window) stage = (int32_t)strtol(n->name + 1, NULL, 10);
    else if (!missing)
        TRY(walk_back(c, n, c->program[step], eng_program_find_value(c->program[step], n->name), &missing, &stage, e));
    if (missing && is_hidden(c, missing)) snprintf(why, RPL_WHY_BYTES, "token ids are redacted");
    else if (missing && rpl_forced_lost(c->forced, n->round, drafts ? FMT_TAPE_NO_SLOT : n->slot, missing))
        snprintf(why, RPL_WHY_BYTES, "%s is damaged", missing);
    else if (missing) snprintf(why, RPL_WHY_BYTES, "%s is not recorded", missing);
    else if (window) snprintf(why, RPL_WHY_BYTES, "s%d.main_kv and pos are not recorded for all of its rows", stage);
    else if (stage >= 0)
        snprintf(why, RPL_WHY_BYTES, "s%d.window is not recorded, nor s%d.main_kv and pos for all of its rows", stage,
                 stage);
    else snprintf(why, RPL_WHY_BYTES, "its inputs are not recorded");
    return ERR_OK;
}

err_code rpl_certify_why(const rpl_certify *c, const cap_name *n, bool bad_ids, char why[RPL_WHY_BYTES], err *e)
{
    fmt_tape_record r;
    fmt_tape_at(c->tape, n->first_record, &r);
    const eng_step_kind step = n->slot == FMT_TAPE_NO_SLOT ? ENG_STEP_DRAFT : ENG_STEP_INSERT;
    const char *dot = strrchr(n->name, '.'), *text = NULL;
    if (rpl_forced_lost(c->forced, n->round, n->slot, n->name)) text = "damaged: it cannot be read";
    else if (dot && (strcmp(dot, ".top") == 0 || strcmp(dot, ".top_ids") == 0))
        text = "a choice of another value's elements";
    else if (eng_program_find_value(c->program[step], n->name) < 0 && !rpl_certify_is_window(n))
        text = "not a value of the model";
    else if (r.tier != FMT_TIER_TENSOR) text = "no tensor was kept";
    else if (is_hidden(c, n->name)) text = "token ids are redacted";
    else if (bad_ids && step == ENG_STEP_DRAFT) text = "the round's ids name what the model does not have";
    if (!text) return name_missing(c, n, step, why, e);
    snprintf(why, RPL_WHY_BYTES, "%s", text);
    return ERR_OK;
}
