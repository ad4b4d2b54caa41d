#include "capture/rounds.h"

#include "base/mem.h"
#include "capture/joined.h"
#include "engine/engine.h"

/* An insert as the tape has it; its rows are read when its round is asked for. */
typedef struct insert_plan {
    int32_t slot, rows;
    int32_t *pos; /* [rows] */
    bool has_taps, has_main_x;
} insert_plan;

typedef struct round_plan {
    int32_t round;
    size_t first_insert;
    int32_t n_inserts, batch, n_out;
    int32_t slots[ENG_BATCH_MAX], anchors[ENG_BATCH_MAX], pos[ENG_BATCH_MAX];
} round_plan;

/* What the rules of a script need to know of a slot. Index is the engine's slot. */
typedef struct slot_state { int32_t slot, first, last; } slot_state;

struct cap_rounds {
    const fmt_tape *tape;
    eng_config config;
    round_plan *round;
    size_t n_rounds, rounds_capacity;
    insert_plan *insert; /* of all rounds, in order */
    size_t n_inserts, inserts_capacity;
    slot_state *slot;
    size_t n_slots, slots_capacity;
    int32_t most_inserts; /* in one round */
    /* Of the round that cap_rounds_at read last, per insert. */
    cap_value *taps, *main_x;
    const bf16 **main_x_rows;
    eng_insert_event *event;
};

/* ---- reading one input ---- */

/* "T.tape: round 3 slot 1 taps": where an error is. slot FMT_TAPE_NO_SLOT leaves it out. */
static err_code broken(const cap_rounds *r, int32_t round, int32_t slot, const char *what, err *e)
{
    if (slot == FMT_TAPE_NO_SLOT) return err_set(e, ERR_INPUT, "%s: round %d: %s", fmt_tape_path(r->tape), round, what);
    return err_set(e, ERR_INPUT, "%s: round %d slot %d: %s", fmt_tape_path(r->tape), round, slot, what);
}

/* Reads a value and checks dtype and shape; cols 0: one dimension. want_rows 0: any number from 1 on. */
static err_code get_input(const cap_rounds *r, const fmt_tape_key *key, fmt_dtype dtype, int64_t want_rows, int64_t cols,
                          cap_value *v, err *e)
{
    TRY(cap_joined_get(r->tape, key, v, e));
    const fmt_tensor *t = &v->tensor;
    int32_t ndim = cols ? 2 : 1;
    bool fits = t->dtype == dtype && t->ndim == ndim && (ndim == 1 || t->shape[1] == cols) && t->shape[0] >= 1 &&
                t->shape[0] <= INT32_MAX && (want_rows == 0 || t->shape[0] == want_rows);
    if (fits) return ERR_OK;
    char found[96], wanted[96], text[320];
    fmt_tensor want = fmt_tensor_make(dtype, NULL, ndim, (const int64_t[]){ want_rows, cols });
    fmt_tensor_text(t, found, sizeof found);
    fmt_tensor_text(&want, wanted, sizeof wanted);
    snprintf(text, sizeof text, "%.64s is %s, wanted %s%s", key->name, found, wanted,
             want_rows ? "" : " with 1 row or more");
    return broken(r, key->round, key->slot, text, e);
}

/* Reads n int32 of a draft input. */
static err_code get_ints(const cap_rounds *r, int32_t round, const char *name, int32_t n, int32_t *out, cap_value *v,
                         err *e)
{
    TRY(get_input(r, &(fmt_tape_key){ round, FMT_TAPE_NO_SLOT, 0, name }, FMT_DTYPE_I32, n, 0, v, e));
    memcpy(out, v->tensor.data, (size_t)n * sizeof *out);
    return ERR_OK;
}

/* ---- the rules of a script ---- */

static slot_state *find_slot(const cap_rounds *r, int32_t slot)
{
    for (size_t i = 0; i < r->n_slots; i++)
        if (r->slot[i].slot == slot) return &r->slot[i];
    return NULL;
}

static err_code check_insert(cap_rounds *r, int32_t round, const insert_plan *in, err *e)
{
    char text[128];
    if (in->slot < 0) return broken(r, round, in->slot, "wanted a slot of 0 or more", e);
    slot_state *s = find_slot(r, in->slot);
    if (!s) {
        void *array = r->slot;
        if (!mem_grow(&array, &r->slots_capacity, r->n_slots + 1, sizeof *r->slot))
            return err_set(e, ERR_NOMEM, "%s: no memory for slot %d", fmt_tape_path(r->tape), in->slot);
        r->slot = array;
        s = &r->slot[r->n_slots++];
        *s = (slot_state){ in->slot, -1, -1 };
    }
    int32_t bad = 0;
    if (!eng_positions_follow(s->last, in->pos, in->rows, &bad)) {
        int32_t before = bad > 0 ? in->pos[bad - 1] : s->last;
        if (before < 0) snprintf(text, sizeof text, "position %d at row %d, wanted 0 or more", in->pos[bad], bad);
        else snprintf(text, sizeof text, "position %d at row %d does not follow %d", in->pos[bad], bad, before);
        return broken(r, round, in->slot, text, e);
    }
    if (s->last < 0) s->first = in->pos[0];
    s->last = in->pos[in->rows - 1];
    return ERR_OK;
}

static err_code check_draft(const cap_rounds *r, const round_plan *p, err *e)
{
    const eng_config *c = &r->config;
    char text[160];
    if (p->n_out < 1 || p->n_out > c->block) {
        snprintf(text, sizeof text, "draft.n_out %d, wanted 1 to %d", p->n_out, c->block);
        return broken(r, p->round, FMT_TAPE_NO_SLOT, text, e);
    }
    for (int32_t b = 0; b < p->batch; b++) {
        const slot_state *s = find_slot(r, p->slots[b]);
        int32_t wants = p->pos[b] >= c->window ? p->pos[b] - c->window + 1 : 0;
        text[0] = 0;
        for (int32_t a = 0; a < b; a++)
            if (p->slots[a] == p->slots[b]) snprintf(text, sizeof text, "twice in one draft");
        if (p->anchors[b] < 0 || p->anchors[b] >= c->vocab)
            snprintf(text, sizeof text, "anchor %d, wanted 0 to %d", p->anchors[b], c->vocab - 1);
        else if (!s) snprintf(text, sizeof text, "draft before any insert");
        else if (p->pos[b] != s->last)
            snprintf(text, sizeof text, "draft at position %d, wanted the last inserted one, %d", p->pos[b], s->last);
        else if (s->first > wants)
            snprintf(text, sizeof text, "draft at position %d needs rows from %d on, the slot begins at %d", p->pos[b],
                     wants, s->first);
        if (text[0]) return broken(r, p->round, p->slots[b], text, e);
    }
    return ERR_OK;
}

/* ---- opening ---- */

typedef struct slot_list { int32_t *slot; size_t n, capacity; } slot_list;

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Distinct slots with an insert value in the round, ascending; *draft: it has draft inputs. */
static err_code scan_round(const cap_rounds *r, int32_t round, slot_list *list, bool *draft, err *e)
{
    size_t first, n, kept = 0;
    fmt_tape_round_span(r->tape, round, &first, &n);
    list->n = 0;
    *draft = false;
    for (size_t i = first; i < first + n; i++) {
        fmt_tape_record rec;
        fmt_tape_at(r->tape, i, &rec);
        if (rec.key.round != round) continue;
        const char *name = rec.key.name;
        if (rec.key.slot == FMT_TAPE_NO_SLOT) {
            *draft = *draft || strncmp(name, "draft.", 6) == 0;
            continue;
        }
        if (strcmp(name, "taps") != 0 && strcmp(name, "pos") != 0 && strcmp(name, "main_x") != 0) continue;
        void *array = list->slot;
        if (!mem_grow(&array, &list->capacity, list->n + 1, sizeof *list->slot))
            return err_set(e, ERR_NOMEM, "%s: no memory for the slots of round %d", fmt_tape_path(r->tape), round);
        list->slot = array;
        list->slot[list->n++] = rec.key.slot;
    }
    if (list->n) qsort(list->slot, list->n, sizeof *list->slot, by_number);
    for (size_t i = 0; i < list->n; i++)
        if (i == 0 || list->slot[i] != list->slot[i - 1]) list->slot[kept++] = list->slot[i];
    list->n = kept;
    return ERR_OK;
}

static bool has_value(const fmt_tape *t, int32_t round, int32_t slot, const char *name)
{
    for (int32_t rank = FMT_TAPE_NO_RANK; rank < ENG_RANKS_MAX; rank++)
        if (fmt_tape_find(t, &(fmt_tape_key){ round, slot, rank, name }) >= 0) return true;
    return false;
}

static err_code plan_insert(cap_rounds *r, int32_t round, int32_t slot, cap_value *v, err *e)
{
    void *array = r->insert;
    if (!mem_grow(&array, &r->inserts_capacity, r->n_inserts + 1, sizeof *r->insert))
        return err_set(e, ERR_NOMEM, "%s: no memory for round %d", fmt_tape_path(r->tape), round);
    r->insert = array;
    insert_plan *in = &r->insert[r->n_inserts++];
    *in = (insert_plan){ .slot = slot };
    TRY(get_input(r, &(fmt_tape_key){ round, slot, 0, "pos" }, FMT_DTYPE_I32, 0, 0, v, e));
    in->rows = (int32_t)v->tensor.shape[0];
    in->pos = mem_alloc((size_t)in->rows, sizeof *in->pos);
    if (!in->pos) return err_set(e, ERR_NOMEM, "%s: no memory for %d positions", fmt_tape_path(r->tape), in->rows);
    memcpy(in->pos, v->tensor.data, (size_t)in->rows * sizeof *in->pos);
    in->has_taps = has_value(r->tape, round, slot, "taps");
    in->has_main_x = has_value(r->tape, round, slot, "main_x");
    if (!in->has_taps && !in->has_main_x) return broken(r, round, slot, "has neither taps nor main_x to run from", e);
    return check_insert(r, round, in, e);
}

static err_code plan_draft(cap_rounds *r, round_plan *p, cap_value *v, err *e)
{
    TRY(get_input(r, &(fmt_tape_key){ p->round, FMT_TAPE_NO_SLOT, 0, "draft.slots" }, FMT_DTYPE_I32, 0, 0, v, e));
    if (v->tensor.shape[0] > ENG_BATCH_MAX) {
        char text[80];
        snprintf(text, sizeof text, "draft of %lld slots, wanted 1 to %d", (long long)v->tensor.shape[0], ENG_BATCH_MAX);
        return broken(r, p->round, FMT_TAPE_NO_SLOT, text, e);
    }
    p->batch = (int32_t)v->tensor.shape[0];
    memcpy(p->slots, v->tensor.data, (size_t)p->batch * sizeof *p->slots);
    TRY(get_ints(r, p->round, "draft.anchor", p->batch, p->anchors, v, e));
    TRY(get_ints(r, p->round, "draft.pos", p->batch, p->pos, v, e));
    TRY(get_ints(r, p->round, "draft.n_out", 1, &p->n_out, v, e));
    return check_draft(r, p, e);
}

static err_code plan_all(cap_rounds *r, slot_list *list, cap_value *v, err *e)
{
    const int32_t *numbers;
    size_t n = fmt_tape_rounds(r->tape, &numbers);
    for (size_t i = 0; i < n; i++) {
        bool draft;
        round_plan p = { .round = numbers[i], .first_insert = r->n_inserts };
        TRY(scan_round(r, numbers[i], list, &draft, e));
        for (size_t k = 0; k < list->n; k++) TRY(plan_insert(r, numbers[i], list->slot[k], v, e));
        p.n_inserts = (int32_t)list->n;
        if (draft) TRY(plan_draft(r, &p, v, e));
        if (p.n_inserts == 0 && !draft) continue; /* a round of values that nobody asked for */
        void *array = r->round;
        if (!mem_grow(&array, &r->rounds_capacity, r->n_rounds + 1, sizeof *r->round))
            return err_set(e, ERR_NOMEM, "%s: no memory for round %d", fmt_tape_path(r->tape), numbers[i]);
        r->round = array;
        r->round[r->n_rounds++] = p;
        if (p.n_inserts > r->most_inserts) r->most_inserts = p.n_inserts;
    }
    if (r->n_rounds == 0)
        return err_set(e, ERR_INPUT, "%s: holds no inputs to run, wanted taps (or main_x) and pos of inserts, or draft.*",
                       fmt_tape_path(r->tape));
    size_t most = (size_t)r->most_inserts + 1;
    r->taps = mem_alloc(most, sizeof *r->taps);
    r->main_x = mem_alloc(most, sizeof *r->main_x);
    r->main_x_rows = mem_alloc(most, sizeof *r->main_x_rows);
    r->event = mem_alloc(most, sizeof *r->event);
    if (!r->taps || !r->main_x || !r->main_x_rows || !r->event)
        return err_set(e, ERR_NOMEM, "%s: no memory for %d inserts", fmt_tape_path(r->tape), r->most_inserts);
    return ERR_OK;
}

err_code cap_rounds_open(const fmt_tape *t, const eng_config *c, cap_rounds **out, err *e)
{
    *out = NULL;
    cap_rounds *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(e, ERR_NOMEM, "%s: no memory for its rounds", fmt_tape_path(t));
    r->tape = t;
    r->config = *c;
    slot_list list = { 0 };
    cap_value v = { 0 };
    err_code rc = plan_all(r, &list, &v, e);
    cap_value_fini(&v);
    free(list.slot);
    if (rc != ERR_OK) {
        cap_rounds_close(r);
        return rc;
    }
    *out = r;
    return ERR_OK;
}

void cap_rounds_close(cap_rounds *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n_inserts; i++) free(r->insert[i].pos);
    for (int32_t i = 0; i < r->most_inserts; i++) {
        if (r->taps) cap_value_fini(&r->taps[i]);
        if (r->main_x) cap_value_fini(&r->main_x[i]);
    }
    free(r->taps);
    free(r->main_x);
    free(r->main_x_rows);
    free(r->event);
    free(r->round);
    free(r->insert);
    free(r->slot);
    free(r);
}

int32_t cap_rounds_count(const cap_rounds *r) { return (int32_t)r->n_rounds; }
int32_t cap_rounds_slots(const cap_rounds *r) { return (int32_t)r->n_slots; }

int32_t cap_rounds_dense(const cap_rounds *r, int32_t slot)
{
    const slot_state *s = find_slot(r, slot);
    return s ? (int32_t)(s - r->slot) : -1;
}

/* ---- one round ---- */

/* Reads the rows of an insert ([rows, cols] bf16) and refuses what a script may not hold. */
static err_code get_rows(const cap_rounds *r, int32_t round, const insert_plan *in, const char *name, int64_t cols,
                         cap_value *v, err *e)
{
    TRY(get_input(r, &(fmt_tape_key){ round, in->slot, 0, name }, FMT_DTYPE_BF16, in->rows, cols, v, e));
    const bf16 *x = v->tensor.data;
    for (int64_t i = 0; i < in->rows * cols; i++)
        if ((x[i] & 0x7f80) == 0x7f80) {
            char text[96];
            snprintf(text, sizeof text, "%s is not finite at row %lld, column %lld", name, (long long)(i / cols),
                     (long long)(i % cols));
            return broken(r, round, in->slot, text, e);
        }
    return ERR_OK;
}

err_code cap_rounds_at(cap_rounds *r, int32_t i, eng_round *out, const bf16 *const **main_x, err *e)
{
    const round_plan *p = &r->round[i];
    const eng_config *c = &r->config;
    for (int32_t k = 0; k < p->n_inserts; k++) {
        const insert_plan *in = &r->insert[p->first_insert + (size_t)k];
        if (in->has_taps) TRY(get_rows(r, p->round, in, "taps", (int64_t)c->n_taps * c->dim, &r->taps[k], e));
        if (in->has_main_x) TRY(get_rows(r, p->round, in, "main_x", c->dim, &r->main_x[k], e));
        r->event[k] = (eng_insert_event){ in->slot, in->rows, in->has_taps ? r->taps[k].tensor.data : NULL, in->pos };
        r->main_x_rows[k] = in->has_main_x ? r->main_x[k].tensor.data : NULL;
    }
    *out = (eng_round){ .round = p->round, .n_inserts = p->n_inserts, .inserts = r->event, .batch = p->batch,
                        .slots = p->slots, .anchors = p->anchors, .pos = p->pos, .n_out = p->n_out };
    *main_x = r->main_x_rows;
    return ERR_OK;
}
