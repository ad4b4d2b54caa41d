/* State: positions, the rows that inserts made, and where they lie in the windows. */
#include "replay/classify_in.h"

#include "base/mem.h"

/* ---- positions ---- */

/* Flags a position that is not what the rules want. */
static err_code gap(rpl_classify *c, int32_t round, int32_t slot, const char *value, int32_t found, int32_t wanted, err *e)
{
    rpl_flag f = { .round = round, .slot = slot, .kind = RPL_FLAG_GAP, .position = found, .row = -1, .n = 1, .got = found,
                   .wanted = wanted };
    snprintf(f.value, sizeof f.value, "%s", value);
    return rpl_classify_flag(c, &f, e);
}

/* One insert. Between rounds that the tape does not hold, a slot may have gone on, or be another request's. */
static err_code look_at_insert(rpl_classify *c, const fmt_tape_record *r, rpl_slot_seen *s, bool flags, err *e)
{
    const int32_t *pos = c->scratch[0].tensor.data, round = r->key.round;
    int64_t rows = fmt_tensor_elems(&c->scratch[0].tensor);
    bool again = s->round == round, follows = again || !c->chosen;
    if (flags && s->last >= 0 && follows && pos[0] != s->last + 1)
        TRY(gap(c, round, s->slot, "pos", pos[0], s->last + 1, e));
    for (int64_t i = 1; flags && i < rows; i++)
        if (pos[i] != pos[i - 1] + 1) TRY(gap(c, round, s->slot, "pos", pos[i], pos[i - 1] + 1, e));
    s->round = round;
    s->rank = r->key.rank;
    s->last = pos[rows - 1];
    return ERR_OK;
}

err_code rpl_classify_positions(rpl_classify *c, int32_t round, bool flags, err *e)
{
    size_t first, n;
    fmt_tape_round_span(c->tape, round, &first, &n);
    for (size_t i = first; i < first + n; i++) {
        fmt_tape_record r;
        fmt_tape_at(c->tape, i, &r);
        if (r.key.round != round || r.key.slot == FMT_TAPE_NO_SLOT || strcmp(r.key.name, "pos") != 0) continue;
        if (r.tier != FMT_TIER_TENSOR || r.tensor.dtype != FMT_DTYPE_I32 || r.tensor.ndim != 1 || r.tensor.shape[0] < 1)
            continue; /* the forced run says what is wrong with it */
        rpl_slot_seen *s = rpl_classify_slot(c, r.key.slot);
        if (!s) return err_set(e, ERR_NOMEM, "classify: no memory for slot %d", r.key.slot);
        if (s->round == round && s->rank != r.key.rank) continue; /* another rank's copy */
        TRY(cap_record_get(c->tape, i, &c->scratch[0], e));
        TRY(look_at_insert(c, &r, s, flags, e));
    }
    return ERR_OK;
}

/* A draft comes after the last row of its slot, when the tape tells which that is. */
static err_code look_at_draft(rpl_classify *c, int32_t round, int32_t b, err *e)
{
    rpl_slot_seen *s = rpl_classify_slot(c, c->slots[b]);
    if (!s) return err_set(e, ERR_NOMEM, "classify: no memory for slot %d", c->slots[b]);
    bool known = s->last >= 0 && (!c->chosen || s->round == round);
    if (known && c->pos[b] != s->last) return gap(c, round, c->slots[b], "draft.pos", c->pos[b], s->last, e);
    return ERR_OK;
}

void rpl_classify_drafted(rpl_classify *c, int32_t round)
{
    for (int32_t b = 0; b < c->batch; b++) {
        rpl_slot_seen *s = rpl_classify_slot(c, c->slots[b]);
        if (!s) continue;
        s->drafted = round;
        s->drafted_pos = c->pos[b];
    }
}

/* ---- windows ---- */

typedef struct window {
    const bf16 *now, *want;  /* recorded; what the inserts brought. [rows, width] */
    const bf16 *before;      /* recorded for the slot's last draft, NULL: unknown */
    int32_t rows, before_rows;
    size_t width;
} window;

static bool same_row(const window *w, const bf16 *a, const bf16 *b) { return memcmp(a, b, w->width * sizeof *a) == 0; }

/* Zero or NaN throughout: nobody wrote it. */
static bool is_unwritten(const window *w, const bf16 *row)
{
    size_t n_zero = 0, n_nan = 0;
    for (size_t i = 0; i < w->width; i++) {
        n_zero += (row[i] & 0x7fff) == 0;
        n_nan += (row[i] & 0x7fff) > 0x7f80;
    }
    return n_zero == w->width || n_nan == w->width;
}

static rpl_flag_kind kind_of_row(const window *w, int32_t r)
{
    const bf16 *row = w->now + (size_t)r * w->width;
    if (is_unwritten(w, row)) return RPL_FLAG_MISSING;
    if (w->before && r < w->before_rows && same_row(w, row, w->before + (size_t)r * w->width)) return RPL_FLAG_STALE;
    for (int32_t q = 0; q < w->rows; q++)
        if (q != r && same_row(w, row, w->want + (size_t)q * w->width)) return RPL_FLAG_PLACE;
    return RPL_FLAG_DIFFERS;
}

/* The position that ring row r of a window holds, the last inserted one being pos. */
static int32_t position_of(int32_t r, int32_t pos, int32_t ring) { return pos - (pos - r) % ring; }

/* The window that the slot's last draft saw, if it was recorded. */
static err_code load_before(rpl_classify *c, const rpl_forced_value *v, window *w, err *e)
{
    const rpl_slot_seen *s = rpl_classify_slot(c, v->slot);
    if (!s || s->drafted < 0 || s->drafted == v->round || !rpl_classify_has(c, s->drafted, v->slot, v->name)) return ERR_OK;
    const fmt_tape_key key = { s->drafted, v->slot, 0, v->name };
    TRY(cap_joined_get(c->tape, &key, &c->scratch[1], e));
    const fmt_tensor *t = &c->scratch[1].tensor;
    if (t->dtype != FMT_DTYPE_BF16 || t->ndim != 2 || t->shape[1] != c->config.head_dim) return ERR_OK;
    w->before = t->data;
    w->before_rows = (int32_t)t->shape[0];
    return ERR_OK;
}

static err_code look_at_window(rpl_classify *c, const rpl_forced_value *v, int32_t pos, err *e)
{
    window w = { .now = v->recorded.data, .want = v->computed.data, .rows = (int32_t)v->recorded.shape[0],
                 .width = (size_t)v->recorded.shape[1] };
    rpl_flag found[RPL_FLAG_COUNT] = { { 0 } };
    c->out.n_windows++;
    c->out.n_state_rows += w.rows;
    if (memcmp(w.now, w.want, (size_t)w.rows * w.width * sizeof *w.now) == 0) return ERR_OK;
    TRY(load_before(c, v, &w, e));
    for (int32_t r = 0; r < w.rows; r++) {
        if (same_row(&w, w.now + (size_t)r * w.width, w.want + (size_t)r * w.width)) continue;
        rpl_flag_kind kind = kind_of_row(&w, r);
        if (found[kind].n++) continue;
        found[kind].position = position_of(r, pos, c->config.window);
        found[kind].row = r;
    }
    for (int k = 0; k < RPL_FLAG_COUNT; k++) {
        if (found[k].n == 0) continue;
        found[k].round = v->round;
        found[k].slot = v->slot;
        found[k].kind = (rpl_flag_kind)k;
        snprintf(found[k].value, sizeof found[k].value, "%s", v->name);
        TRY(rpl_classify_flag(c, &found[k], e));
    }
    return ERR_OK;
}

/* ---- rows and the certificate ---- */

/* Illegal elements of main_x or main_kv: one flag, at the worst. */
static err_code look_at_rows(rpl_classify *c, const rpl_forced_value *v, const rpl_verdict *verdict, err *e)
{
    c->out.n_state_rows += v->recorded.shape[0];
    if (verdict->n_illegal == 0) return ERR_OK;
    int64_t row = verdict->worst / v->recorded.shape[1];
    rpl_flag f = { .round = v->round, .slot = v->slot, .kind = RPL_FLAG_ILLEGAL, .row = -1, .n = verdict->n_illegal,
                   .got = verdict->got, .wanted = verdict->exact };
    const fmt_tape_key key = { v->round, v->slot, 0, "pos" };
    TRY(cap_joined_get(c->tape, &key, &c->scratch[0], e));
    f.position = ((const int32_t *)c->scratch[0].tensor.data)[row];
    snprintf(f.value, sizeof f.value, "%s", v->name);
    return rpl_classify_flag(c, &f, e);
}

static void add_certificate(rpl_classify *c, const rpl_forced_value *v, const rpl_verdict *verdict)
{
    rpl_verdict *sum = &c->out.certificate;
    if (verdict->n_illegal && sum->n_illegal == 0) {
        char slot[24] = "";
        if (v->slot != FMT_TAPE_NO_SLOT) snprintf(slot, sizeof slot, " slot %d", v->slot);
        snprintf(c->out.first_illegal, sizeof c->out.first_illegal, "round %d%s %.24s", v->round, slot, v->name);
    }
    sum->n += verdict->n;
    sum->n_equal += verdict->n_equal;
    sum->n_flip += verdict->n_flip;
    sum->n_illegal += verdict->n_illegal;
    sum->n_unjudged += verdict->n_unjudged;
    sum->n_events += verdict->n_events;
}

static err_code on_value(void *ctx, const rpl_forced_value *v, err *e)
{
    rpl_classify *c = ctx;
    rpl_verdict verdict;
    TRY(rpl_judge_value(c->judge, v, &verdict, NULL, e));
    add_certificate(c, v, &verdict);
    for (int32_t b = 0; v->value < 0 && b < c->batch; b++)
        if (c->slots[b] == v->slot) return look_at_window(c, v, c->pos[b], e);
    bool made_by_insert = v->slot != FMT_TAPE_NO_SLOT && v->value >= 0;
    return made_by_insert ? look_at_rows(c, v, &verdict, e) : ERR_OK;
}

/* Rows of main_x that were taken as given. */
static void count_given(rpl_classify *c, int32_t round)
{
    for (size_t k = 0; k < c->n_slots; k++) {
        const rpl_slot_seen *s = &c->slot[k];
        if (s->round != round || !rpl_classify_has(c, round, s->slot, "main_x")) continue;
        if (rpl_classify_has(c, round, s->slot, "taps")) continue;
        fmt_tape_record r;
        int64_t at = cap_names_find(c->names, round, s->slot, "main_x");
        fmt_tape_at(c->tape, cap_names_at(c->names, (size_t)at)->first_record, &r);
        c->out.n_main_x_given += r.tensor.shape[0];
    }
}

err_code rpl_classify_state(rpl_classify *c, int32_t i, int32_t round, err *e)
{
    int64_t before = c->out.n_windows;
    for (int32_t b = 0; b < c->batch; b++) TRY(look_at_draft(c, round, b, e));
    count_given(c, round);
    TRY(rpl_forced_round(c->forced, i, on_value, c, NULL, e));
    for (int32_t b = 0; b < c->batch; b++) TRY(rpl_classify_rows(c, round, b, e));
    c->out.n_windows_unchecked += (int64_t)c->batch * c->config.n_stages - (c->out.n_windows - before);
    return ERR_OK;
}
