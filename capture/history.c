#include "capture/history.h"

#include "base/mem.h"
#include "engine/script.h"

err_code cap_history_broken(const cap_history *h, int32_t round, int32_t slot, const char *what, err *e)
{
    if (slot == FMT_TAPE_NO_SLOT) return err_set(e, ERR_INPUT, "%s: round %d: %s", fmt_tape_path(h->tape), round, what);
    return err_set(e, ERR_INPUT, "%s: round %d slot %d: %s", fmt_tape_path(h->tape), round, slot, what);
}

cap_slot *cap_history_slot(const cap_history *h, int32_t slot)
{
    for (size_t i = 0; i < h->n_slots; i++)
        if (h->slot[i].slot == slot) return &h->slot[i];
    return NULL;
}

/* The slot is in this round, for the first time in it; begin: its first row there. */
static err_code enter(cap_history *h, int32_t index, int32_t round, int32_t slot, int32_t begin, cap_slot **out, err *e)
{
    cap_slot *s = cap_history_slot(h, slot);
    if (!s) {
        void *array = h->slot;
        if (!mem_grow(&array, &h->capacity, h->n_slots + 1, sizeof *h->slot))
            return err_set(e, ERR_NOMEM, "%s: no memory for slot %d", fmt_tape_path(h->tape), slot);
        h->slot = array;
        s = &h->slot[h->n_slots++];
        *s = (cap_slot){ .slot = slot, .first = -1, .last = -1, .first_index = index, .drafted = -1 };
    } else if (s->last >= 0 && begin != s->last + 1 && h->chosen && round - s->round > index - s->index) {
        if (begin <= s->last) s->drafted = -1; /* a slot's positions do not go back: another request has it now */
        s->last = -1; /* a round between is not on the tape: it had the rows between */
    }
    s->anew = s->last < 0;
    s->begin = begin;
    s->round = round;
    s->index = index;
    *out = s;
    return ERR_OK;
}

err_code cap_history_insert(cap_history *h, int32_t index, int32_t round, int32_t slot, const int32_t *pos, int32_t rows,
                            err *e)
{
    char text[128];
    if (slot < 0) return cap_history_broken(h, round, slot, "wanted a slot of 0 or more", e);
    cap_slot *s = cap_history_slot(h, slot);
    if (!s || s->index != index) TRY(enter(h, index, round, slot, pos[0], &s, e));
    int32_t bad = 0;
    if (!eng_positions_follow(s->last, pos, rows, &bad)) {
        int32_t before = bad > 0 ? pos[bad - 1] : s->last;
        if (before < 0) snprintf(text, sizeof text, "position %d at row %d, wanted 0 or more", pos[bad], bad);
        else snprintf(text, sizeof text, "position %d at row %d does not follow %d", pos[bad], bad, before);
        return cap_history_broken(h, round, slot, text, e);
    }
    if (s->last < 0) s->first = pos[0];
    s->last = pos[rows - 1];
    return ERR_OK;
}

err_code cap_history_draft(cap_history *h, int32_t index, int32_t round, int32_t slot, int32_t pos, int32_t *from,
                           int32_t *to, err *e)
{
    char text[160];
    int32_t wants = pos >= h->config->window ? pos - h->config->window + 1 : 0;
    cap_slot *s = cap_history_slot(h, slot);
    *from = 0, *to = -1;
    if (!s && !h->chosen) return cap_history_broken(h, round, slot, "draft before any insert", e);
    if (slot < 0 || pos < 0 || pos == INT32_MAX) {
        snprintf(text, sizeof text, "draft at position %d, wanted a slot and a position of 0 or more", pos);
        return cap_history_broken(h, round, slot, text, e);
    }
    if (!s || s->index != index) {
        TRY(enter(h, index, round, slot, pos + 1, &s, e));
        if (s->anew) s->first = pos + 1, s->last = pos; /* it stands there, with none of its rows */
    }
    if (pos != s->last) {
        snprintf(text, sizeof text, "draft at position %d, wanted the last inserted one, %d", pos, s->last);
        return cap_history_broken(h, round, slot, text, e);
    }
    if (s->first <= wants) return ERR_OK;
    *from = wants;
    *to = s->first - 1;
    if (h->chosen) return ERR_OK;
    snprintf(text, sizeof text, "draft at position %d needs rows from %d on, the slot begins at %d", pos, wants, s->first);
    return cap_history_broken(h, round, slot, text, e);
}

err_code cap_history_share(cap_history *h, err *e)
{
    int32_t *until = mem_alloc(h->n_slots + 1, sizeof *until); /* per place in the engine: the last round that needs it */
    if (!until) return err_set(e, ERR_NOMEM, "%s: no memory for %zu slots", fmt_tape_path(h->tape), h->n_slots);
    for (size_t i = 0; i < h->n_slots; i++) { /* in the order of their first rounds */
        cap_slot *s = &h->slot[i];
        s->engine = 0;
        while (s->engine < h->n_engine && until[s->engine] >= s->first_index) s->engine++;
        if (s->engine == h->n_engine) h->n_engine++;
        until[s->engine] = s->index;
    }
    free(until);
    return ERR_OK;
}

void cap_history_fini(cap_history *h)
{
    free(h->slot);
    h->slot = NULL;
    h->n_slots = 0;
}
