#include "replay/inject.h"

#include "base/clock.h"
#include "base/mem.h"
#include "capture/recorder.h"
#include "engine/identity.h"

static err_code run_rounds(const eng_script *s, cap_recorder *r, eng_fault *f, bool quiet, err *e)
{
    progress bar;
    err_code rc = ERR_OK;
    size_t capacity = 0;
    void *array = NULL;
    bool met = false;
    progress_begin(&bar, "recording", (uint64_t)eng_script_rounds(s), quiet);
    for (int32_t i = 0; i < eng_script_rounds(s) && rc == ERR_OK; i++, progress_add(&bar, 1)) {
        const eng_round *round = eng_script_at(s, i);
        if (!mem_grow(&array, &capacity, (size_t)round->n_inserts + (size_t)round->batch + 1, sizeof(int32_t))) {
            rc = err_set(e, ERR_NOMEM, "round %d: no memory", round->round);
            break;
        }
        int32_t *of_insert = array, *of_draft = of_insert + round->n_inserts;
        for (int32_t k = 0; k < round->n_inserts; k++) of_insert[k] = eng_script_dense(s, round->inserts[k].slot);
        for (int32_t k = 0; k < round->batch; k++) of_draft[k] = eng_script_dense(s, round->slots[k]);
        if (f) met |= f->armed = f->round < 0 || f->round == round->round;
        rc = cap_recorder_round(r, round, of_insert, of_draft, NULL, e);
    }
    progress_end(&bar);
    free(array);
    if (rc == ERR_OK && f && !met) rc = err_set(e, ERR_ARG, "fault: round %d, wanted one of the script", f->round);
    return rc;
}

static bool has_slot(const eng_script *s, int32_t slot)
{
    for (int32_t i = 0; i < eng_script_rounds(s); i++)
        for (int32_t k = 0; k < eng_script_at(s, i)->n_inserts; k++)
            if (eng_script_at(s, i)->inserts[k].slot == slot) return true;
    return false;
}

static err_code changed_nothing(const eng_fault *f, err *e)
{
    return err_set(e, ERR_INPUT, "%s at %s has no occasion in this script: every value is as it would be without it",
                   f->kind->name, f->op);
}

err_code rpl_inject(const eng_weights *w, const eng_script *s, const eng_options *o, eng_level level, bool refuse_unchanged,
                    const char *out, bool quiet, err *e)
{
    const cap_options capture = { .level = level, .synthetic = eng_script_synthetic(s) };
    eng_fault *f = o->fault;
    eng_engine *g = NULL;
    json_t *identity = NULL;
    cap_recorder *r = NULL;
    if (f && f->slot >= 0 && !has_slot(s, f->slot))
        return err_set(e, ERR_ARG, "fault: slot %d, wanted one of the script", f->slot);
    if (f) {
        f->engine_slot = f->slot < 0 ? -1 : eng_script_dense(s, f->slot);
        memset(f->changed, 0, sizeof f->changed);
    }
    err_code rc = eng_open(w, o, eng_script_slots(s), cap_retain_level(&capture), quiet, &g, e);
    if (rc != ERR_OK) goto out;
    if (!(identity = eng_identity(w, o))) { /* after eng_open, which has found the fault's step */
        rc = err_set(e, ERR_NOMEM, "no memory for the identity");
        goto out;
    }
    if ((rc = cap_recorder_open(g, out, identity, &capture, &r, e)) != ERR_OK) goto out;
    rc = run_rounds(s, r, f, quiet, e);
    if (rc == ERR_OK && f && refuse_unchanged && eng_fault_changed(f) == 0) rc = changed_nothing(f, e);
    if (rc != ERR_OK) cap_recorder_discard(r);
    else if ((rc = cap_recorder_finish(r, e)) != ERR_OK && e) rc = cap_say_what_is_left(out, e);
out:
    json_decref(identity);
    eng_close(g);
    return rc;
}

const char *rpl_injected(const json_t *identity, char buf[RPL_INJECTED_TEXT])
{
    static const char *const KEYS[] = { "rank", "round", "slot", "row", "index" };
    const json_t *j = json_object_get(identity, "injected");
    const char *kind = json_string_value(json_object_get(j, "kind")), *op = json_string_value(json_object_get(j, "op"));
    const char *step = json_string_value(json_object_get(j, "step"));
    if (!j) return NULL;
    size_t n = (size_t)snprintf(buf, RPL_INJECTED_TEXT, "%.40s at %.40s (%.8s)", kind ? kind : "?", op ? op : "?",
                                step ? step : "?");
    for (size_t i = 0; i < COUNT_OF(KEYS) && n < RPL_INJECTED_TEXT; i++) {
        const json_t *v = json_object_get(j, KEYS[i]);
        if (!v) continue;
        n += (size_t)snprintf(buf + n, RPL_INJECTED_TEXT - n, ", %s %lld", KEYS[i], (long long)json_integer_value(v));
    }
    for (char *c = buf; *c; c++) /* text out of a file: a terminal must not obey it */
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return buf;
}
