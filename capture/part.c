#include "capture/part.h"

#include "base/mem.h"
#include "kernels/digest.h"
#include "kernels/top_rows.h"

/* ---- making ---- */

uint64_t cap_part_insert_bytes(const eng_config *c, bool taps, bool main_x, int32_t rows)
{
    uint64_t row = sizeof(int32_t) + (taps ? (uint64_t)c->n_taps * (uint64_t)c->dim * sizeof(bf16) : 0) +
                   (main_x ? (uint64_t)c->dim * sizeof(bf16) : 0);
    return sizeof(cap_part) + (uint64_t)rows * row;
}

uint64_t cap_part_draft_bytes(int32_t batch, int32_t n_out)
{
    return sizeof(cap_part) + (uint64_t)batch * (3 + 2 * (uint64_t)n_out) * sizeof(int32_t);
}

/* *room is where the inputs go: behind the struct, with its alignment. */
static cap_part *part_new(eng_step_kind step, uint64_t bytes, _Atomic uint64_t *held, uint8_t **room)
{
    cap_part *p = malloc(bytes); /* not zeroed: the inputs are most of it and are copied over all of it */
    if (!p) return NULL;
    *p = (cap_part){ .item.kind = CAP_ITEM_PART, .step = step, .bytes = bytes, .held = held };
    atomic_fetch_add(held, bytes);
    *room = (uint8_t *)(p + 1);
    return p;
}

static const void *copy(uint8_t **room, const void *src, uint64_t bytes)
{
    void *at = *room;
    memcpy(at, src, bytes);
    *room += bytes;
    return at;
}

cap_part *cap_part_of_insert(const eng_config *c, int32_t slot, const bf16 *taps, const bf16 *main_x, const int32_t *pos,
                             int32_t rows, _Atomic uint64_t *held)
{
    uint8_t *room;
    cap_part *p = part_new(ENG_STEP_INSERT, cap_part_insert_bytes(c, taps, main_x, rows), held, &room);
    if (!p) return NULL;
    uint64_t n = (uint64_t)rows, row = (uint64_t)c->dim * sizeof(bf16);
    p->slot = slot;
    p->rows = rows;
    p->pos = copy(&room, pos, n * sizeof *pos);
    if (taps) p->taps = copy(&room, taps, n * (uint64_t)c->n_taps * row);
    if (main_x) p->main_x = copy(&room, main_x, n * row);
    return p;
}

cap_part *cap_part_of_draft(int32_t batch, const int32_t *slots, const int32_t *anchors, const int32_t *pos, int32_t n_out,
                            _Atomic uint64_t *held)
{
    uint8_t *room;
    cap_part *p = part_new(ENG_STEP_DRAFT, cap_part_draft_bytes(batch, n_out), held, &room);
    if (!p) return NULL;
    uint64_t n = (uint64_t)batch * sizeof(int32_t);
    p->batch = batch;
    p->n_out = n_out;
    p->slots = copy(&room, slots, n);
    p->anchors = copy(&room, anchors, n);
    p->pos = copy(&room, pos, n);
    p->drafts = (int32_t *)room;
    p->confidence = (float *)(p->drafts + batch * n_out);
    return p;
}

void cap_scratch_fini(cap_scratch *s)
{
    free(s->row_digest);
    free(s->hidden);
}

void cap_part_free(cap_part *p)
{
    if (!p) return;
    if (p->shot) eng_shot_free(p->shot);
    atomic_fetch_sub(p->held, p->bytes);
    free(p);
}

const eng_tap *cap_part_tap(const cap_part *p) { return &p->tap; }
eng_shot *cap_part_shot(const cap_part *p) { return p->shot; }

void cap_part_inputs(const cap_part *p, int32_t *slot, const bf16 **taps, const int32_t **pos, int32_t *rows)
{
    *slot = p->slot;
    *taps = p->taps;
    *pos = p->pos;
    *rows = p->rows;
}

void cap_part_want(cap_part *p, const char *why) { p->wanted = why; }

void cap_part_answer(cap_part *p, const int32_t *drafts, const float *confidence)
{
    size_t n = (size_t)p->batch * (size_t)p->n_out;
    memcpy(p->drafts, drafts, n * sizeof *drafts);
    memcpy(p->confidence, confidence, n * sizeof *confidence);
    p->answered = true;
}

/* ---- writing ---- */

/* A part on its way to the tape. */
typedef struct put {
    cap_plan *plan;
    cap_part *part;
    const eng_program *program;
    fmt_tape_writer *tape;
    cap_scratch *scratch;
    cap_tally *tally;
    int32_t slot; /* of the step's records */
} put;

static err_code put_tensor(const put *c, int32_t slot, const char *name, const fmt_tensor *t, err *e)
{
    TRY(fmt_tape_put(c->tape, &(fmt_tape_key){ c->part->item.round, slot, 0, name }, t, FMT_PLACE_REPLICATED, 0, 1,
                     FMT_TIER_TENSOR, e));
    c->tally->values++;
    c->tally->raw_bytes += fmt_tensor_bytes(t);
    return ERR_OK;
}

static err_code put_input(const put *c, const char *name, fmt_dtype dtype, const void *data, int64_t rows, int64_t cols,
                          err *e)
{
    fmt_tensor t = fmt_tensor_make(dtype, data, cols ? 2 : 1, (const int64_t[]){ rows, cols });
    return put_tensor(c, c->slot, name, &t, e);
}

static err_code put_inputs(const put *c, err *e)
{
    const cap_part *p = c->part;
    const eng_config *config = &c->program->config;
    if (p->step == ENG_STEP_INSERT) {
        int64_t width = (int64_t)config->n_taps * config->dim;
        if (p->taps) TRY(put_input(c, "taps", FMT_DTYPE_BF16, p->taps, p->rows, width, e));
        return put_input(c, "pos", FMT_DTYPE_I32, p->pos, p->rows, 0, e);
    }
    TRY(put_input(c, "draft.slots", FMT_DTYPE_I32, p->slots, p->batch, 0, e));
    int32_t anchors[ENG_BATCH_MAX];
    cap_redact_ids(c->plan->redact, p->anchors, p->batch, anchors);
    TRY(put_input(c, "draft.anchor", FMT_DTYPE_I32, anchors, p->batch, 0, e));
    TRY(put_input(c, "draft.pos", FMT_DTYPE_I32, p->pos, p->batch, 0, e));
    return put_input(c, "draft.n_out", FMT_DTYPE_I32, &p->n_out, 1, 0, e);
}

/* Captured main_x rows went in instead of taps: the engine did not make the value, the part has it. */
static bool is_given_main_x(const put *c, int32_t v)
{
    return c->part->main_x && c->part->step == ENG_STEP_INSERT && v == c->plan->main_x && !eng_shot_has(c->part->shot, v);
}

/* dtype and shape of a value on a rank, no data. */
static fmt_tensor form_of(const put *c, int32_t rank, int32_t v)
{
    int64_t shape[FMT_DIMS_MAX];
    eng_value_shape(c->program, v, eng_shot_extents(c->part->shot), rank, c->plan->n_ranks, shape);
    return fmt_tensor_make(c->program->value[v].dtype, NULL, c->program->value[v].ndim, shape);
}

static err_code put_digest(const put *c, const fmt_tape_key *key, const fmt_tensor *form, fmt_place place, int32_t axis,
                           int32_t n_ranks, int tier, const fmt_digest *digest, const fmt_stats *stats, err *e)
{
    return fmt_tape_put_digest(c->tape, key, form, place, axis, n_ranks, (fmt_tier)tier, digest,
                               tier == FMT_TIER_STATS ? stats : NULL, e);
}

/* A cheap tier of what lies in host memory. */
static err_code put_digest_of(const put *c, const fmt_tape_key *key, const fmt_tensor *t, fmt_place place, int32_t axis,
                              int32_t n_ranks, int tier, err *e)
{
    uint64_t n_rows = krn_digest_rows(t);
    void *rows = c->scratch->row_digest;
    bool room = mem_grow(&rows, &c->scratch->capacity, (size_t)n_rows + 1, sizeof(uint64_t));
    c->scratch->row_digest = rows;
    if (!room) return err_set(e, ERR_NOMEM, "%s: no memory for %llu digests", key->name, (unsigned long long)n_rows);
    fmt_digest d = { .row = c->scratch->row_digest, .n_rows = n_rows };
    fmt_stats stats;
    krn_digest_ref(t, c->scratch->row_digest, &d.digest, &stats);
    fmt_tensor form = *t;
    form.data = NULL;
    return put_digest(c, key, &form, place, axis, n_ranks, tier, &d, &stats, e);
}

/* Room for a permuted value. NULL: no memory. */
static void *room_to_hide(const put *c, const char *name, uint64_t bytes, err *e)
{
    void *hidden = c->scratch->hidden;
    bool room = mem_grow(&hidden, &c->scratch->hidden_capacity, bytes + 1, 1);
    c->scratch->hidden = hidden;
    if (!room) (void)err_set(e, ERR_NOMEM, "%s: no memory for %llu bytes", name, (unsigned long long)bytes);
    return room ? hidden : NULL;
}

/* Puts a value's ids, or its columns, through the permutation; t is of the ranks here. */
static err_code hide(const put *c, int32_t v, fmt_tensor *t, err *e)
{
    const eng_value *value = &c->program->value[v];
    cap_hide how = c->plan->armed[c->part->step][v].hide;
    int32_t n = c->plan->end_rank - c->plan->first_rank;
    const void *shard[ENG_RANKS_MAX];
    int64_t cols[ENG_RANKS_MAX], rows = 1;
    uint64_t bytes = 0;
    if (how == CAP_HIDE_NOTHING) return ERR_OK;
    for (int32_t k = 0; k < n; k++) {
        bytes += fmt_tensor_bytes(&t[k]);
        shard[k] = t[k].data;
        cols[k] = t[k].shape[value->ndim - 1];
    }
    uint8_t *to = room_to_hide(c, value->name, bytes, e);
    if (!to) return ERR_NOMEM;
    for (int32_t d = 0; d < value->ndim - 1; d++) rows *= t[0].shape[d];
    if (how == CAP_HIDE_COLUMNS) cap_redact_columns(c->plan->redact, shard, cols, n, rows, (uint32_t *)(void *)to);
    for (int32_t k = 0; k < n; k++, to += fmt_tensor_bytes(&t[k - 1])) {
        if (how == CAP_HIDE_IDS)
            cap_redact_ids(c->plan->redact, t[k].data, fmt_tensor_elems(&t[k]), (int32_t *)(void *)to);
        t[k].data = to;
    }
    return ERR_OK;
}

/* A value of every rank here, as it goes on the tape: t[0] is of the first one. */
static err_code get_ranks(const put *c, int32_t v, fmt_tensor t[ENG_RANKS_MAX], err *e)
{
    int32_t first = c->plan->first_rank;
    for (int32_t k = 0; k < c->plan->end_rank - first; k++) {
        if (is_given_main_x(c, v)) {
            t[k] = form_of(c, first + k, v);
            t[k].data = c->part->main_x;
        } else eng_shot_tensor(c->part->shot, first + k, v, 0, &t[k]);
    }
    return hide(c, v, t, e);
}

/* In one record set where it has every rank and their shapes agree, else (a vocabulary's shards, a process that is one rank
 * of several) one by one. */
static err_code put_ranks(const put *c, fmt_tape_key key, int32_t v, err *e)
{
    const eng_value *value = &c->program->value[v];
    const void *data[ENG_RANKS_MAX] = { NULL };
    fmt_tensor t[ENG_RANKS_MAX];
    int32_t first = c->plan->first_rank, n = c->plan->end_rank - first, n_ranks = c->plan->n_ranks;
    bool alike = n == n_ranks;
    TRY(get_ranks(c, v, t, e));
    for (int32_t k = 0; k < n; k++) {
        data[k] = t[k].data;
        alike = alike && memcmp(t[k].shape, t[0].shape, sizeof t[0].shape) == 0;
    }
    if (alike)
        return fmt_tape_put_ranks(c->tape, &key, &t[0], data, value->place, value->axis, n_ranks, FMT_TIER_TENSOR, e);
    for (int32_t k = 0; k < n; k++) {
        key.rank = first + k;
        TRY(fmt_tape_put(c->tape, &key, &t[k], value->place, value->axis, n_ranks, FMT_TIER_TENSOR, e));
    }
    return ERR_OK;
}

/* The digests of a value of all ranks here. */
static err_code put_rank_digests(const put *c, fmt_tape_key key, int32_t v, int tier, err *e)
{
    const eng_value *value = &c->program->value[v];
    int32_t first = c->plan->first_rank, n_ranks = c->plan->n_ranks;
    bool whole = is_given_main_x(c, v) || c->plan->armed[c->part->step][v].hide != CAP_HIDE_NOTHING;
    fmt_tensor t[ENG_RANKS_MAX];
    if (whole) TRY(get_ranks(c, v, t, e));
    for (key.rank = first; key.rank < c->plan->end_rank; key.rank++) {
        if (whole) {
            TRY(put_digest_of(c, &key, &t[key.rank - first], value->place, value->axis, n_ranks, tier, e));
            continue;
        }
        fmt_tensor form = form_of(c, key.rank, v);
        fmt_digest d;
        fmt_stats stats;
        eng_shot_digest(c->part->shot, key.rank, v, 0, &d.row, &d.n_rows, &d.digest, &stats);
        TRY(put_digest(c, &key, &form, value->place, value->axis, n_ranks, tier, &d, &stats, e));
    }
    return ERR_OK;
}

/* The largest entries of each row, joined over the vocabulary shards. */
static err_code put_top(const put *c, const fmt_tape_key *at, int32_t v, int tier, err *e)
{
    const eng_value *value = &c->program->value[v];
    const float *values;
    const int32_t *ids;
    int64_t rows, shape[FMT_DIMS_MAX];
    int32_t k = eng_shot_top(c->part->shot, v, &values, &ids, &rows);
    char name[CAP_TOP_NAME + sizeof "_ids"];
    fmt_tape_key key = { at->round, at->slot, 0, name };
    eng_value_shape(c->program, v, eng_shot_extents(c->part->shot), 0, c->plan->n_ranks, shape);
    shape[value->ndim - 1] = k;
    cap_top_name(value, name);
    int32_t *hidden = room_to_hide(c, name, (uint64_t)(rows * k) * sizeof *hidden, e);
    if (!hidden) return ERR_NOMEM;
    cap_redact_ids(c->plan->redact, ids, rows * k, hidden);
    for (int i = 0; i < 2; i++) {
        fmt_tensor t = i == 0 ? fmt_tensor_make(FMT_DTYPE_F32, values, value->ndim, shape)
                              : fmt_tensor_make(FMT_DTYPE_I32, hidden, value->ndim, shape);
        if (i == 1) strcat(name, "_ids");
        if (tier == FMT_TIER_TENSOR)
            TRY(fmt_tape_put(c->tape, &key, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
        else TRY(put_digest_of(c, &key, &t, FMT_PLACE_REPLICATED, 0, 1, tier, e));
        c->tally->values++;
        c->tally->raw_bytes += fmt_tensor_bytes(&t);
    }
    return ERR_OK;
}

static err_code put_values(const put *c, err *e)
{
    for (int32_t v = 0; v < c->program->n_values; v++) {
        cap_armed *a = &c->plan->armed[c->part->step][v];
        if (!cap_is_armed(a) || c->program->value[v].state) continue;
        if (!eng_shot_has(c->part->shot, v) && !is_given_main_x(c, v)) continue;
        const fmt_tape_key key = { c->part->item.round, c->slot, 0, c->program->value[v].name };
        a->fired = true;
        c->tally->tapped++;
        if (a->tier != CAP_TIER_OFF) {
            if (a->tier == FMT_TIER_TENSOR) TRY(put_ranks(c, key, v, e));
            else TRY(put_rank_digests(c, key, v, a->tier, e));
            c->tally->values++;
            for (int32_t rank = c->plan->first_rank; rank < c->plan->end_rank; rank++) {
                fmt_tensor form = form_of(c, rank, v);
                c->tally->raw_bytes += fmt_tensor_bytes(&form);
            }
        }
        if (a->top_tier != CAP_TIER_OFF) TRY(put_top(c, &key, v, a->top_tier, e));
    }
    return ERR_OK;
}

/* Windows of the drafted slots as the draft saw them: one rank's copy, once. */
static err_code put_windows(const put *c, err *e)
{
    const eng_config *config = &c->program->config;
    const cap_part *p = c->part;
    for (int32_t b = 0; b < p->batch; b++)
        for (int32_t k = 0; k < config->n_stages; k++) {
            char name[64];
            snprintf(name, sizeof name, "s%d.window", k);
            int32_t v = eng_program_find_value(c->program, name), rank = c->plan->first_rank;
            cap_armed *a = v < 0 ? NULL : &c->plan->armed[ENG_STEP_DRAFT][v];
            if (!a || a->tier == CAP_TIER_OFF || !eng_shot_has(p->shot, v)) continue;
            const fmt_tape_key key = { p->item.round, p->slots[b], 0, name };
            a->fired = true;
            c->tally->tapped++;
            if (a->tier == FMT_TIER_TENSOR) {
                fmt_tensor t;
                eng_shot_tensor(p->shot, rank, v, b, &t);
                TRY(put_tensor(c, p->slots[b], name, &t, e));
                continue;
            }
            int64_t live = p->pos[b] + 1 < config->window ? p->pos[b] + 1 : config->window;
            fmt_tensor form = fmt_tensor_make(FMT_DTYPE_BF16, NULL, 2, (const int64_t[]){ live, config->head_dim });
            fmt_digest d;
            fmt_stats stats;
            eng_shot_digest(p->shot, rank, v, b, &d.row, &d.n_rows, &d.digest, &stats);
            TRY(put_digest(c, &key, &form, FMT_PLACE_REPLICATED, 0, 1, a->tier, &d, &stats, e));
            c->tally->values++;
            c->tally->raw_bytes += fmt_tensor_bytes(&form);
        }
    return ERR_OK;
}

/* The answer is a value of the tape whether or not its tap is armed. An armed one is on the tape already: what must be
 * there beside it is that the client was told something else. */
static err_code put_answer(const put *c, const char *name, fmt_dtype dtype, const void *data, err *e)
{
    const cap_part *p = c->part;
    int32_t v = eng_program_find_value(c->program, name), ids[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    bool drafts = dtype == FMT_DTYPE_I32;
    if (drafts) cap_redact_ids(c->plan->redact, data, p->batch * p->n_out, ids);
    fmt_tensor t = fmt_tensor_make(dtype, drafts ? ids : data, 2, (const int64_t[]){ p->batch, p->n_out }), shown;
    const cap_armed *a = v < 0 ? NULL : &c->plan->armed[ENG_STEP_DRAFT][v];
    if (!a || a->tier == CAP_TIER_OFF || !eng_shot_has(p->shot, v)) return put_tensor(c, c->slot, name, &t, e);
    if (a->tier != FMT_TIER_TENSOR) return ERR_OK;
    eng_shot_tensor(p->shot, c->plan->first_rank, v, 0, &shown);
    if (fmt_tensor_bytes(&shown) == fmt_tensor_bytes(&t) && memcmp(shown.data, data, fmt_tensor_bytes(&t)) == 0)
        return ERR_OK;
    json_t *event = json_pack("{s:s, s:s}", "event", "answer differs", "value", name), *answer = json_array();
    for (int32_t i = 0; i < p->batch * p->n_out; i++)
        json_array_append_new(answer, drafts                       ? json_integer(ids[i])
                                      : isfinite(p->confidence[i]) ? json_real(p->confidence[i])
                                                                   : json_null());
    json_object_set_new(event, "answer", answer);
    err_code rc = event ? fmt_tape_put_event(c->tape, p->item.round, event, e)
                        : err_set(e, ERR_NOMEM, "no memory for an event");
    c->tally->events += rc == ERR_OK;
    json_decref(event);
    return rc;
}

err_code cap_part_put(cap_plan *plan, cap_part *p, fmt_tape_writer *tape, cap_scratch *scratch, cap_tally *t, err *e)
{
    const put c = { plan, p, plan->program[p->step], tape, scratch, t,
                    p->step == ENG_STEP_INSERT ? p->slot : FMT_TAPE_NO_SLOT };
    TRY(eng_shot_wait(p->shot, e));
    TRY(put_inputs(&c, e));
    if (p->step == ENG_STEP_DRAFT) TRY(put_windows(&c, e));
    TRY(put_values(&c, e));
    if (p->answered) {
        TRY(put_answer(&c, "drafts", FMT_DTYPE_I32, p->drafts, e));
        TRY(put_answer(&c, "confidence", FMT_DTYPE_F32, p->confidence, e));
    }
    if (p->step == ENG_STEP_INSERT) t->inserts++;
    else t->drafts++;
    return ERR_OK;
}
