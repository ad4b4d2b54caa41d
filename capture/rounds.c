#include "capture/rounds.h"

#include "base/mem.h"
#include "capture/history.h"
#include "capture/joined.h"
#include "engine/engine.h"

/* An insert as the tape has it; its rows are read when its round is asked for. */
typedef struct insert_plan {
    int32_t slot, rows;
    int32_t nth;  /* which of its slot's inserts in the round */
    int32_t *pos; /* [rows] */
    bool has_taps, has_main_x;
} insert_plan;

typedef struct round_plan {
    int32_t round;
    size_t first_insert;
    int32_t n_inserts, batch, n_out;
    int32_t slots[ENG_BATCH_MAX], anchors[ENG_BATCH_MAX], pos[ENG_BATCH_MAX];
    size_t first_start;
    int32_t n_starts;
    bool lacks; /* the draft cannot be run: a start says why */
} round_plan;

struct cap_rounds {
    const fmt_tape *tape;
    eng_config config;
    round_plan *round;
    size_t n_rounds, rounds_capacity;
    insert_plan *insert; /* of all rounds, in order */
    size_t n_inserts, inserts_capacity;
    cap_start *start;    /* of all rounds, in order; windows unset */
    size_t n_starts, starts_capacity;
    cap_history history;
    int32_t most_inserts; /* in one round */
    /* Of the round that cap_rounds_at read last, per insert. */
    cap_value *taps, *main_x;
    const bf16 **main_x_rows;
    eng_insert_event *event;
    /* Of the round that cap_rounds_starts read last: [most_starts, n_stages]. */
    int32_t most_starts;
    cap_value *window;
    const bf16 **window_rows;
};

/* ---- reading one input ---- */

static err_code broken(const cap_rounds *r, int32_t round, int32_t slot, const char *what, err *e)
{
    return cap_history_broken(&r->history, round, slot, what, e);
}

/* The record of a value, whichever rank's: the nth of those with its key, as a slot may be inserted into several times in a
 * round. -1: none. */
static int64_t find_nth(const fmt_tape *t, int32_t round, int32_t slot, const char *name, int32_t nth)
{
    fmt_tape_key key = { round, slot, FMT_TAPE_NO_RANK, name };
    int64_t at = fmt_tape_find(t, &key);
    while (at < 0 && ++key.rank < ENG_RANKS_MAX) at = fmt_tape_find(t, &key);
    if (at < 0 || nth == 0) return at;
    size_t first, n;
    fmt_tape_round_span(t, round, &first, &n);
    for (size_t i = (size_t)at + 1; i < first + n; i++) {
        fmt_tape_record rec;
        fmt_tape_at(t, i, &rec);
        bool same = rec.key.round == round && rec.key.slot == slot && rec.key.rank == key.rank;
        if (same && strcmp(rec.key.name, name) == 0 && --nth == 0) return (int64_t)i;
    }
    return -1;
}

/* Reads a value and checks dtype and shape; cols 0: one dimension. want_rows 0: any number from 1 on. nth: see find_nth;
 * WHOLE: what cap_joined_get makes of all of them. */
enum { WHOLE = -1 };
static err_code get_input(const cap_rounds *r, const fmt_tape_key *key, int32_t nth, fmt_dtype dtype, int64_t want_rows,
                          int64_t cols, cap_value *v, err *e)
{
    int64_t at = nth != WHOLE ? find_nth(r->tape, key->round, key->slot, key->name, nth) : -1;
    if (at < 0) TRY(cap_joined_get(r->tape, key, v, e));
    else TRY(cap_record_get(r->tape, (size_t)at, v, e));
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
    TRY(get_input(r, &(fmt_tape_key){ round, FMT_TAPE_NO_SLOT, 0, name }, WHOLE, FMT_DTYPE_I32, n, 0, v, e));
    memcpy(out, v->tensor.data, (size_t)n * sizeof *out);
    return ERR_OK;
}

/* ---- the rules of a script ---- */

/* What slot is to be given before the round; made when there is none yet. */
static err_code start_of(cap_rounds *r, round_plan *p, int32_t slot, cap_start **out, err *e)
{
    for (size_t i = p->first_start; i < r->n_starts; i++)
        if (r->start[i].slot == slot) {
            *out = &r->start[i];
            return ERR_OK;
        }
    void *array = r->start;
    if (!mem_grow(&array, &r->starts_capacity, r->n_starts + 1, sizeof *r->start))
        return err_set(e, ERR_NOMEM, "%s: no memory for round %d", fmt_tape_path(r->tape), p->round);
    r->start = array;
    const cap_slot *s = cap_history_slot(&r->history, slot);
    *out = &r->start[r->n_starts++];
    **out = (cap_start){ .slot = slot, .last = s->begin - 1, .anew = s->anew, .to = -1, .pos = -1,
                          .before = s->drafted, .before_pos = s->drafted_pos };
    p->n_starts++;
    if (p->n_starts > r->most_starts) r->most_starts = p->n_starts;
    return ERR_OK;
}

/* Rows from .. to of the slot are missing for its draft at pos: are they in the windows that the draft saw? */
static err_code plan_restore(cap_rounds *r, round_plan *p, int32_t slot, int32_t pos, int32_t from, int32_t to, err *e)
{
    cap_start *start;
    TRY(start_of(r, p, slot, &start, e));
    start->from = from;
    start->to = to;
    start->pos = pos;
    for (int32_t k = 0; k < r->config.n_stages && !start->lacks[0]; k++) {
        char name[sizeof start->lacks];
        fmt_tape_record rec = { .tier = FMT_TIER_HASH };
        snprintf(name, sizeof name, "s%d.window", k);
        int64_t at = find_nth(r->tape, p->round, slot, name, 0);
        if (at >= 0) fmt_tape_at(r->tape, (size_t)at, &rec);
        if (rec.tier != FMT_TIER_TENSOR) memcpy(start->lacks, name, sizeof name);
    }
    if (start->lacks[0]) p->lacks = true;
    else cap_history_slot(&r->history, slot)->first = from;
    return ERR_OK;
}

static err_code check_draft(cap_rounds *r, round_plan *p, int32_t index, err *e)
{
    const eng_config *c = &r->config;
    char text[160];
    if (p->n_out < 1 || p->n_out > c->block) {
        snprintf(text, sizeof text, "draft.n_out %d, wanted 1 to %d", p->n_out, c->block);
        return broken(r, p->round, FMT_TAPE_NO_SLOT, text, e);
    }
    for (int32_t b = 0; b < p->batch; b++) {
        int32_t from, to;
        text[0] = 0;
        for (int32_t a = 0; a < b; a++)
            if (p->slots[a] == p->slots[b]) snprintf(text, sizeof text, "twice in one draft");
        if (p->anchors[b] < 0 || p->anchors[b] >= c->vocab)
            snprintf(text, sizeof text, "anchor %d, wanted 0 to %d", p->anchors[b], c->vocab - 1);
        if (text[0]) return broken(r, p->round, p->slots[b], text, e);
        TRY(cap_history_draft(&r->history, index, p->round, p->slots[b], p->pos[b], &from, &to, e));
        if (from <= to) TRY(plan_restore(r, p, p->slots[b], p->pos[b], from, to, e));
        cap_slot *s = cap_history_slot(&r->history, p->slots[b]);
        s->drafted = p->round;
        s->drafted_pos = p->pos[b];
    }
    return ERR_OK;
}

/* Every slot of the round whose rows before it are not those of its last round. */
static err_code plan_starts(cap_rounds *r, round_plan *p, err *e)
{
    cap_start *start;
    for (int32_t i = 0; i < p->n_inserts + p->batch; i++) {
        int32_t slot = i < p->n_inserts ? r->insert[p->first_insert + (size_t)i].slot : p->slots[i - p->n_inserts];
        if (cap_history_slot(&r->history, slot)->anew) TRY(start_of(r, p, slot, &start, e));
    }
    return ERR_OK;
}

/* ---- opening ---- */

/* A record of an insert's inputs. */
typedef struct input_at { int32_t slot, rank; bool is_pos; } input_at;
typedef struct input_list { input_at *item; size_t n, capacity; } input_list;

static int by_slot_and_rank(const void *x, const void *y)
{
    const input_at *a = x, *b = y;
    if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
    if (a->is_pos != b->is_pos) return a->is_pos ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* Input records of the round's inserts, by slot, `pos` first; *draft: it has draft inputs. */
static err_code scan_round(const cap_rounds *r, int32_t round, input_list *list, bool *draft, err *e)
{
    size_t first, n;
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
        bool is_pos = strcmp(name, "pos") == 0;
        if (!is_pos && strcmp(name, "taps") != 0 && strcmp(name, "main_x") != 0) continue;
        void *array = list->item;
        if (!mem_grow(&array, &list->capacity, list->n + 1, sizeof *list->item))
            return err_set(e, ERR_NOMEM, "%s: no memory for the slots of round %d", fmt_tape_path(r->tape), round);
        list->item = array;
        list->item[list->n++] = (input_at){ rec.key.slot, rec.key.rank, is_pos };
    }
    if (list->n) qsort(list->item, list->n, sizeof *list->item, by_slot_and_rank);
    return ERR_OK;
}

static err_code plan_insert(cap_rounds *r, int32_t index, int32_t round, int32_t slot, int32_t nth, cap_value *v, err *e)
{
    void *array = r->insert;
    if (!mem_grow(&array, &r->inserts_capacity, r->n_inserts + 1, sizeof *r->insert))
        return err_set(e, ERR_NOMEM, "%s: no memory for round %d", fmt_tape_path(r->tape), round);
    r->insert = array;
    insert_plan *in = &r->insert[r->n_inserts++];
    *in = (insert_plan){ .slot = slot, .nth = nth };
    TRY(get_input(r, &(fmt_tape_key){ round, slot, 0, "pos" }, nth, FMT_DTYPE_I32, 0, 0, v, e));
    in->rows = (int32_t)v->tensor.shape[0];
    in->pos = mem_alloc((size_t)in->rows, sizeof *in->pos);
    if (!in->pos) return err_set(e, ERR_NOMEM, "%s: no memory for %d positions", fmt_tape_path(r->tape), in->rows);
    memcpy(in->pos, v->tensor.data, (size_t)in->rows * sizeof *in->pos);
    in->has_taps = find_nth(r->tape, round, slot, "taps", nth) >= 0;
    in->has_main_x = find_nth(r->tape, round, slot, "main_x", nth) >= 0;
    if (!in->has_taps && !in->has_main_x) return broken(r, round, slot, "has neither taps nor main_x to run from", e);
    return cap_history_insert(&r->history, index, round, slot, in->pos, in->rows, e);
}

/* As many inserts as the slot has `pos` of one rank; without any the first one says what is missing. */
static err_code plan_inserts(cap_rounds *r, int32_t index, int32_t round, const input_list *list, cap_value *v, err *e)
{
    for (size_t i = 0, end; i < list->n; i = end) {
        int32_t slot = list->item[i].slot, nth = 0;
        for (end = i; end < list->n && list->item[end].slot == slot; end++)
            if (end == i || (list->item[end].is_pos && list->item[end].rank == list->item[i].rank))
                TRY(plan_insert(r, index, round, slot, nth++, v, e));
    }
    return ERR_OK;
}

static err_code plan_draft(cap_rounds *r, round_plan *p, int32_t index, cap_value *v, err *e)
{
    TRY(get_input(r, &(fmt_tape_key){ p->round, FMT_TAPE_NO_SLOT, 0, "draft.slots" }, WHOLE, FMT_DTYPE_I32, 0, 0, v, e));
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
    return check_draft(r, p, index, e);
}

/* Room for what is read of a round. */
static err_code make_room(cap_rounds *r, err *e)
{
    size_t most = (size_t)r->most_inserts + 1, windows = (size_t)r->most_starts * (size_t)r->config.n_stages + 1;
    r->taps = mem_alloc(most, sizeof *r->taps);
    r->main_x = mem_alloc(most, sizeof *r->main_x);
    r->main_x_rows = mem_alloc(most, sizeof *r->main_x_rows);
    r->event = mem_alloc(most, sizeof *r->event);
    r->window = mem_alloc(windows, sizeof *r->window);
    r->window_rows = mem_alloc(windows, sizeof *r->window_rows);
    if (r->taps && r->main_x && r->main_x_rows && r->event && r->window && r->window_rows) return ERR_OK;
    return err_set(e, ERR_NOMEM, "%s: no memory for %d inserts", fmt_tape_path(r->tape), r->most_inserts);
}

static err_code plan_all(cap_rounds *r, input_list *list, cap_value *v, err *e)
{
    const int32_t *numbers;
    size_t n = fmt_tape_rounds(r->tape, &numbers);
    for (size_t i = 0; i < n; i++) {
        bool draft;
        int32_t index = (int32_t)r->n_rounds;
        round_plan p = { .round = numbers[i], .first_insert = r->n_inserts, .first_start = r->n_starts };
        TRY(scan_round(r, numbers[i], list, &draft, e));
        TRY(plan_inserts(r, index, numbers[i], list, v, e));
        p.n_inserts = (int32_t)(r->n_inserts - p.first_insert);
        if (draft) TRY(plan_draft(r, &p, index, v, e));
        if (p.n_inserts == 0 && !draft) continue; /* a round of values that nobody asked for */
        TRY(plan_starts(r, &p, e));
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
    TRY(cap_history_share(&r->history, e));
    return make_room(r, e);
}

bool cap_rounds_synthetic(const fmt_tape *t)
{
    const json_t *head = fmt_tape_head(t), *own = json_object_get(head, "traffic");
    const char *traffic = json_string_value(own ? own : json_object_get(json_object_get(head, "imported"), "traffic"));
    return traffic && strcmp(traffic, "synthetic") == 0;
}

bool cap_rounds_chosen(const fmt_tape *t)
{
    const json_t *head = fmt_tape_head(t), *summary = fmt_tape_summary(t);
    static const char *const CHOSEN_BY[] = { "rounds", "when", "flight" };
    for (size_t i = 0; i < COUNT_OF(CHOSEN_BY); i++)
        if (json_object_get(head, CHOSEN_BY[i])) return true;
    const json_t *seen = json_object_get(summary, "rounds_seen"), *kept = json_object_get(summary, "rounds");
    if (seen && json_integer_value(seen) > json_integer_value(kept)) return true;
    for (size_t i = 0; i < fmt_tape_event_count(t); i++) {
        int32_t round;
        const json_t *event = fmt_tape_event_at(t, i, &round);
        if (!event) return true; /* no memory to look: the careful answer */
        const char *what = json_string_value(json_object_get(event, "event"));
        if (what && strcmp(what, "dropped") == 0) return true;
    }
    return false;
}

static err_code rounds_open(const fmt_tape *t, const eng_config *c, bool chosen, cap_rounds **out, err *e)
{
    *out = NULL;
    cap_rounds *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(e, ERR_NOMEM, "%s: no memory for its rounds", fmt_tape_path(t));
    r->tape = t;
    r->config = *c;
    r->history = (cap_history){ .tape = t, .config = &r->config, .chosen = chosen };
    input_list list = { 0 };
    cap_value v = { 0 };
    err_code rc = plan_all(r, &list, &v, e);
    cap_value_fini(&v);
    free(list.item);
    if (rc != ERR_OK) {
        cap_rounds_close(r);
        return rc;
    }
    *out = r;
    return ERR_OK;
}

err_code cap_rounds_open(const fmt_tape *t, const eng_config *c, cap_rounds **out, err *e)
{
    return rounds_open(t, c, false, out, e);
}

err_code cap_rounds_open_chosen(const fmt_tape *t, const eng_config *c, cap_rounds **out, err *e)
{
    return rounds_open(t, c, cap_rounds_chosen(t), out, e);
}

void cap_rounds_close(cap_rounds *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n_inserts; i++) free(r->insert[i].pos);
    for (int32_t i = 0; i < r->most_inserts; i++) {
        if (r->taps) cap_value_fini(&r->taps[i]);
        if (r->main_x) cap_value_fini(&r->main_x[i]);
    }
    for (int32_t i = 0; r->window && i < r->most_starts * r->config.n_stages; i++) cap_value_fini(&r->window[i]);
    free(r->window);
    free(r->window_rows);
    free(r->taps);
    free(r->main_x);
    free(r->main_x_rows);
    free(r->event);
    free(r->round);
    free(r->insert);
    free(r->start);
    cap_history_fini(&r->history);
    free(r);
}

int32_t cap_rounds_count(const cap_rounds *r) { return (int32_t)r->n_rounds; }
int32_t cap_rounds_slots(const cap_rounds *r) { return r->history.n_engine; }

int32_t cap_rounds_dense(const cap_rounds *r, int32_t slot)
{
    const cap_slot *s = cap_history_slot(&r->history, slot);
    return s ? s->engine : -1;
}

/* ---- one round ---- */

/* Reads the rows of an insert ([rows, cols] bf16) and refuses what a script may not hold. */
static err_code get_rows(const cap_rounds *r, int32_t round, const insert_plan *in, const char *name, int64_t cols,
                         cap_value *v, err *e)
{
    TRY(get_input(r, &(fmt_tape_key){ round, in->slot, 0, name }, in->nth, FMT_DTYPE_BF16, in->rows, cols, v, e));
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
        err why = { 0 };
        err_code rc = in->has_main_x ? get_rows(r, p->round, in, "main_x", c->dim, &r->main_x[k], &why) : ERR_OK;
        bool spare = rc == ERR_INPUT && in->has_taps; /* a main_x that went wrong can be made again */
        if (rc != ERR_OK && !spare) {
            if (e) *e = why;
            return rc;
        }
        r->event[k] = (eng_insert_event){ in->slot, in->rows, in->has_taps ? r->taps[k].tensor.data : NULL, in->pos };
        r->main_x_rows[k] = in->has_main_x && !spare ? r->main_x[k].tensor.data : NULL;
    }
    *out = (eng_round){ .round = p->round, .n_inserts = p->n_inserts, .inserts = r->event,
                        .batch = p->lacks ? 0 : p->batch, .slots = p->slots, .anchors = p->anchors, .pos = p->pos,
                        .n_out = p->n_out };
    *main_x = r->main_x_rows;
    return ERR_OK;
}

err_code cap_rounds_starts(cap_rounds *r, int32_t i, const cap_start **out, int32_t *n, err *e)
{
    const round_plan *p = &r->round[i];
    const eng_config *c = &r->config;
    cap_start *start = r->start + p->first_start;
    for (int32_t a = 0; a < p->n_starts; a++) {
        if (start[a].from > start[a].to || start[a].lacks[0]) continue;
        int64_t rows = start[a].pos < c->window ? start[a].pos + 1 : c->window;
        start[a].window = r->window_rows + (ptrdiff_t)a * c->n_stages;
        for (int32_t k = 0; k < c->n_stages; k++) {
            char name[32];
            cap_value *v = &r->window[a * c->n_stages + k];
            snprintf(name, sizeof name, "s%d.window", k);
            TRY(get_input(r, &(fmt_tape_key){ p->round, start[a].slot, 0, name }, WHOLE, FMT_DTYPE_BF16, rows, c->head_dim,
                          v, e));
            r->window_rows[a * c->n_stages + k] = v->tensor.data;
        }
    }
    *out = start;
    *n = p->n_starts;
    return ERR_OK;
}
