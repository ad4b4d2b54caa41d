#include "serve/drive_plan.h"

#include <limits.h>

#include "base/mem.h"
#include "capture/joined.h"
#include "capture/redact.h"
#include "capture/rounds.h"

struct srv_plan {
    srv_part *part;
    int32_t n_parts;
    int32_t *known;      /* slots in the order of their first use */
    size_t n_known, known_capacity;
    int32_t positions;
    eng_script *script;  /* what the inserts of a script point into */
    void **copy;         /* of a tape: copies that they point into */
    size_t n_copies, copies_capacity;
};

int32_t srv_plan_parts(const srv_plan *p) { return p->n_parts; }
const srv_part *srv_plan_part(const srv_plan *p, int32_t i) { return &p->part[i]; }

int32_t srv_plan_positions(const srv_plan *p) { return p->positions; }

void srv_plan_close(srv_plan *p)
{
    if (!p) return;
    for (int32_t i = 0; p->part && i < p->n_parts; i++) {
        for (size_t t = 0; t < p->part[i].n_turns; t++) free(p->part[i].turn[t].insert);
        free(p->part[i].turn);
        free(p->part[i].slot);
    }
    for (size_t i = 0; i < p->n_copies; i++) free(p->copy[i]);
    free(p->part);
    free(p->known);
    free(p->copy);
    eng_script_close(p->script);
    free(p);
}

static err_code no_memory(const char *what, err *e) { return err_set(e, ERR_NOMEM, "no memory for %s", what); }

static err_code make(int32_t n_parts, srv_plan **out, err *e)
{
    srv_plan *p = *out = mem_alloc(1, sizeof *p);
    if (!p) return no_memory("the rounds", e);
    p->n_parts = n_parts;
    p->part = mem_alloc((size_t)n_parts, sizeof *p->part);
    return p->part ? ERR_OK : no_memory("the rounds", e);
}

/* ---- dealing out ---- */

static err_code part_of(srv_plan *p, int32_t slot, int32_t *part, err *e)
{
    size_t i = 0;
    while (i < p->n_known && p->known[i] != slot) i++;
    if (i == p->n_known) {
        void *array = p->known;
        if (!mem_grow(&array, &p->known_capacity, p->n_known + 1, sizeof *p->known)) return no_memory("the slots", e);
        p->known = array;
        p->known[p->n_known++] = slot;
    }
    *part = (int32_t)(i % (size_t)p->n_parts);
    return ERR_OK;
}

/* Slot is used by the last turn of the part. */
static err_code use_slot(srv_part *part, int32_t slot, err *e)
{
    size_t turn = part->n_turns - 1;
    for (size_t i = 0; i < part->n_slots; i++)
        if (part->slot[i].slot == slot) {
            part->slot[i].last_turn = turn;
            return ERR_OK;
        }
    void *array = part->slot;
    if (!mem_grow(&array, &part->slots_capacity, part->n_slots + 1, sizeof *part->slot)) return no_memory("the slots", e);
    part->slot = array;
    part->slot[part->n_slots++] = (srv_plan_slot){ slot, turn, turn };
    return ERR_OK;
}

/* The part's turn of this round; the first time it is made. */
static err_code turn_of(srv_part *part, const eng_round *round, srv_turn **out, err *e)
{
    if (part->n_turns > 0 && part->turn[part->n_turns - 1].round == round->round) {
        *out = &part->turn[part->n_turns - 1];
        return ERR_OK;
    }
    void *array = part->turn;
    if (!mem_grow(&array, &part->turns_capacity, part->n_turns + 1, sizeof *part->turn)) return no_memory("the rounds", e);
    part->turn = array;
    srv_turn *t = *out = &part->turn[part->n_turns++];
    *t = (srv_turn){ .round = round->round, .n_out = round->n_out };
    t->insert = mem_alloc((size_t)round->n_inserts + 1, sizeof *t->insert);
    return t->insert ? ERR_OK : no_memory("the rounds", e);
}

static err_code deal(srv_plan *p, const eng_round *round, err *e)
{
    srv_turn *t;
    int32_t part = 0;
    for (int32_t i = 0; i < round->n_inserts; i++) {
        const eng_insert_event *in = &round->inserts[i];
        TRY(part_of(p, in->slot, &part, e));
        TRY(turn_of(&p->part[part], round, &t, e));
        TRY(use_slot(&p->part[part], in->slot, e));
        t->insert[t->n_inserts++] = *in;
        if (in->pos[in->rows - 1] >= p->positions) p->positions = in->pos[in->rows - 1] + 1;
    }
    for (int32_t b = 0; b < round->batch; b++) {
        TRY(part_of(p, round->slots[b], &part, e));
        TRY(turn_of(&p->part[part], round, &t, e));
        TRY(use_slot(&p->part[part], round->slots[b], e));
        t->slot[t->batch] = round->slots[b];
        t->anchor[t->batch] = round->anchors[b];
        t->pos[t->batch++] = round->pos[b];
    }
    return ERR_OK;
}

static void count_slots(srv_part *part)
{
    for (size_t t = 0; t < part->n_turns; t++) {
        int32_t n = 0;
        for (size_t i = 0; i < part->n_slots; i++) n += part->slot[i].first_turn <= t && t <= part->slot[i].last_turn;
        if (n > part->slots_at_once) part->slots_at_once = n;
    }
}

/* ---- sources ---- */

static err_code deal_script(srv_plan *p, const char *path, const eng_config *c, err *e)
{
    TRY(eng_script_open(path, c, &p->script, e));
    for (int32_t i = 0; i < eng_script_rounds(p->script); i++) TRY(deal(p, eng_script_at(p->script, i), e));
    return ERR_OK;
}

/* A copy of bytes that lives as long as the plan. */
static err_code keep(srv_plan *p, const void *data, size_t bytes, void **out, err *e)
{
    void *array = p->copy;
    if (!mem_grow(&array, &p->copies_capacity, p->n_copies + 1, sizeof *p->copy)) return no_memory("the tape's rows", e);
    p->copy = array;
    void *copy = *out = malloc(bytes);
    if (!copy) return no_memory("the tape's rows", e);
    memcpy(copy, data, bytes);
    p->copy[p->n_copies++] = copy;
    return ERR_OK;
}

static err_code deal_tape_round(srv_plan *p, const char *path, const eng_config *c, const eng_round *round, err *e)
{
    eng_insert_event *event = mem_alloc((size_t)round->n_inserts + 1, sizeof *event);
    err_code rc = event ? ERR_OK : no_memory("the rounds", e);
    for (int32_t i = 0; i < round->n_inserts && rc == ERR_OK; i++) {
        const eng_insert_event *in = &round->inserts[i];
        void *taps = NULL, *pos = NULL;
        if (!in->taps)
            rc = err_set(e, ERR_INPUT, "%s: round %d slot %d: found no taps, wanted them: a client sends nothing else",
                         path, round->round, in->slot);
        size_t row_bytes = (size_t)c->n_taps * (size_t)c->dim * sizeof(bf16);
        if (rc == ERR_OK) rc = keep(p, in->taps, (size_t)in->rows * row_bytes, &taps, e);
        if (rc == ERR_OK) rc = keep(p, in->pos, (size_t)in->rows * sizeof *in->pos, &pos, e);
        event[i] = (eng_insert_event){ in->slot, in->rows, taps, pos };
    }
    eng_round copied = *round;
    copied.inserts = event;
    if (rc == ERR_OK) rc = deal(p, &copied, e);
    free(event);
    return rc;
}

/* A worker would be sent ids that mean other tokens, and its answers be called wrong. */
static err_code check_ids(const fmt_tape *t, err *e)
{
    if (!cap_redact_key_of(t)) return ERR_OK;
    return err_set(e, ERR_INPUT, "%s: its token ids are redacted (key %s), wanted a tape with the real ones",
                   fmt_tape_path(t), cap_redact_key_of(t));
}

static err_code deal_tape(srv_plan *p, const char *path, const eng_config *c, err *e)
{
    fmt_tape *t;
    cap_rounds *rounds = NULL;
    TRY(fmt_tape_open(path, &t, e));
    err_code rc = check_ids(t, e);
    if (rc == ERR_OK) rc = cap_rounds_open(t, c, &rounds, e);
    for (int32_t i = 0; rc == ERR_OK && i < cap_rounds_count(rounds); i++) {
        eng_round round;
        const bf16 *const *main_x;
        rc = cap_rounds_at(rounds, i, &round, &main_x, e);
        if (rc == ERR_OK) rc = deal_tape_round(p, path, c, &round, e);
    }
    cap_rounds_close(rounds);
    fmt_tape_close(t);
    return rc;
}

static err_code finish(srv_plan *p, err_code rc, srv_plan **out)
{
    for (int32_t i = 0; rc == ERR_OK && i < p->n_parts; i++) count_slots(&p->part[i]);
    if (rc != ERR_OK) {
        srv_plan_close(p);
        p = NULL;
    }
    *out = p;
    return rc;
}

err_code srv_plan_script(const char *path, const eng_config *c, int32_t n_parts, srv_plan **out, err *e)
{
    srv_plan *p;
    err_code rc = make(n_parts, &p, e);
    if (rc == ERR_OK) rc = deal_script(p, path, c, e);
    return finish(p, rc, out);
}

err_code srv_plan_tape(const char *path, const eng_config *c, int32_t n_parts, srv_plan **out, err *e)
{
    srv_plan *p;
    err_code rc = make(n_parts, &p, e);
    if (rc == ERR_OK) rc = deal_tape(p, path, c, e);
    return finish(p, rc, out);
}

/* ---- expectations ---- */

typedef struct answers { cap_value slots, anchor, pos, drafts, confidence; } answers;

static err_code read_value(const fmt_tape *t, int32_t round, const char *name, fmt_dtype dtype, cap_value *v, err *e)
{
    TRY(cap_joined_get(t, &(fmt_tape_key){ round, FMT_TAPE_NO_SLOT, 0, name }, v, e));
    if (v->tensor.dtype == dtype) return ERR_OK;
    return err_set(e, ERR_INPUT, "%s: round %d: %s is no %s", fmt_tape_path(t), round, name, fmt_dtype_name(dtype));
}

static int64_t elems(const cap_value *v)
{
    int64_t n = 1;
    for (int32_t d = 0; d < v->tensor.ndim; d++) n *= v->tensor.shape[d];
    return n;
}

static err_code expect_turn(const fmt_tape *t, srv_turn *turn, answers *a, err *e)
{
    TRY(read_value(t, turn->round, "draft.slots", FMT_DTYPE_I32, &a->slots, e));
    TRY(read_value(t, turn->round, "draft.anchor", FMT_DTYPE_I32, &a->anchor, e));
    TRY(read_value(t, turn->round, "draft.pos", FMT_DTYPE_I32, &a->pos, e));
    TRY(read_value(t, turn->round, "drafts", FMT_DTYPE_I32, &a->drafts, e));
    TRY(read_value(t, turn->round, "confidence", FMT_DTYPE_F32, &a->confidence, e));
    int64_t n = elems(&a->slots), outputs = n * turn->n_out;
    bool fits = elems(&a->anchor) == n && elems(&a->pos) == n && elems(&a->drafts) == outputs &&
                elems(&a->confidence) == outputs;
    const int32_t *slot = a->slots.tensor.data, *anchor = a->anchor.tensor.data, *pos = a->pos.tensor.data;
    for (int32_t b = 0; b < turn->batch && fits; b++) {
        int64_t at = 0;
        while (at < n && slot[at] != turn->slot[b]) at++;
        fits = at < n && anchor[at] == turn->anchor[b] && pos[at] == turn->pos[b];
        if (!fits) break;
        size_t to = (size_t)(b * turn->n_out), from = (size_t)(at * turn->n_out), bytes = (size_t)turn->n_out * 4;
        memcpy(turn->drafts + to, (const int32_t *)a->drafts.tensor.data + from, bytes);
        memcpy(turn->confidence + to, (const float *)a->confidence.tensor.data + from, bytes);
    }
    turn->expected = fits;
    if (fits) return ERR_OK;
    return err_set(e, ERR_INPUT,
                   "%s: round %d: its draft is not the one that is played (slots, anchors, positions or n_out)",
                   fmt_tape_path(t), turn->round);
}

/* A tape of chosen rounds, or of other ones. */
static err_code check_rounds(const srv_plan *p, const fmt_tape *t, err *e)
{
    size_t drafts = 0, missing = 0, first, n;
    int32_t round = 0;
    for (int32_t i = 0; i < p->n_parts; i++)
        for (size_t k = 0; k < p->part[i].n_turns; k++) {
            if (!p->part[i].turn[k].batch) continue;
            drafts++;
            fmt_tape_round_span(t, p->part[i].turn[k].round, &first, &n);
            if (n == 0 && missing++ == 0) round = p->part[i].turn[k].round;
        }
    if (!missing) return ERR_OK;
    return err_set(e, ERR_INPUT, "--check %s: found no round %d, the first of %zu that it lacks, wanted all %zu that are "
                   "played", fmt_tape_path(t), round, missing, drafts);
}

err_code srv_plan_expect(srv_plan *p, const char *tape_path, err *e)
{
    fmt_tape *t;
    answers a = { 0 };
    TRY(fmt_tape_open(tape_path, &t, e));
    err_code rc = check_ids(t, e);
    if (rc == ERR_OK) rc = check_rounds(p, t, e);
    for (int32_t i = 0; i < p->n_parts; i++)
        for (size_t k = 0; k < p->part[i].n_turns && rc == ERR_OK; k++)
            if (p->part[i].turn[k].batch) rc = expect_turn(t, &p->part[i].turn[k], &a, e);
    cap_value_fini(&a.slots);
    cap_value_fini(&a.anchor);
    cap_value_fini(&a.pos);
    cap_value_fini(&a.drafts);
    cap_value_fini(&a.confidence);
    fmt_tape_close(t);
    return rc;
}
