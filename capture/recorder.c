#include "capture/recorder.h"

#include "base/clock.h"
#include "base/mem.h"
#include "capture/taps.h"
#include "capture/topk.h"

/* Where the step that runs puts one value of one rank. */
typedef struct staged { uint64_t offset, bytes, seen_bytes; } staged;

/* One rank's own: its thread alone writes here during a step. */
typedef struct rank_buffer {
    uint8_t *data; /* grown between steps only */
    uint64_t capacity;
    staged *value; /* of the step that runs */
    uint64_t tap_ns;
} rank_buffer;

struct cap_recorder {
    eng_engine *g;
    fmt_tape_writer *tape;
    const eng_program *program[CAP_STEPS];
    cap_armed *armed[CAP_STEPS];
    int32_t n_ranks, first_rank, end_rank; /* of the run; ranks [first, end) are in this process and shown to it */
    rank_buffer rank[ENG_RANKS_MAX];
    int32_t *slots; /* distinct request slots seen */
    size_t n_slots, slots_capacity;
    float *top_values; /* [rows, CAP_TOP] */
    int32_t *top_ids;
    size_t top_capacity;
    uint64_t n_rounds, n_inserts, n_drafts, n_values, raw_bytes, write_ns;
};

/* ---- during a step ---- */

static void on_tensor(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    cap_recorder *r = ctx;
    if (!cap_is_armed(&r->armed[site->program->step][site->value])) return;
    uint64_t start_ns = clock_ns(), bytes = fmt_tensor_bytes(t);
    rank_buffer *b = &r->rank[site->rank];
    staged *at = &b->value[site->value];
    /* Rows are the first dimension of every value of an insert, so a bucket's rows are one span. */
    uint64_t first = site->row0 ? (uint64_t)site->row0 * (bytes / (uint64_t)t->shape[0]) : 0;
    CHECK(first + bytes <= at->bytes);
    if (bytes) memcpy(b->data + at->offset + first, t->data, bytes);
    at->seen_bytes += bytes;
    b->tap_ns += clock_ns() - start_ns;
}

/* Gives every armed value of the coming step its place on every rank. */
static err_code stage(cap_recorder *r, eng_step_kind step, const eng_extents *x, err *e)
{
    enum { ALIGN = 64 };
    const eng_program *p = r->program[step];
    for (int32_t rank = r->first_rank; rank < r->end_rank; rank++) {
        rank_buffer *b = &r->rank[rank];
        uint64_t bytes = 0;
        for (int32_t v = 0; v < p->n_values; v++) {
            b->value[v] = (staged){ 0 };
            if (!cap_is_armed(&r->armed[step][v]) || p->value[v].state) continue;
            b->value[v].offset = bytes;
            b->value[v].bytes = (uint64_t)eng_value_elems(p, v, x, rank, r->n_ranks) * fmt_dtype_bytes(p->value[v].dtype);
            bytes += (b->value[v].bytes + ALIGN - 1) / ALIGN * ALIGN;
        }
        if (bytes <= b->capacity) continue;
        free(b->data);
        b->capacity = 0;
        b->data = mem_alloc_aligned(bytes, 1);
        if (!b->data)
            return err_set(e, ERR_NOMEM, "no memory for %llu bytes of tapped values", (unsigned long long)bytes);
        b->capacity = bytes;
    }
    return ERR_OK;
}

/* ---- after a step ---- */

static err_code put(cap_recorder *r, const fmt_tape_key *key, const fmt_tensor *t, err *e)
{
    r->n_values++;
    r->raw_bytes += fmt_tensor_bytes(t);
    return fmt_tape_put(r->tape, key, t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e);
}

static err_code put_array(cap_recorder *r, int32_t round, int32_t slot, const char *name, fmt_dtype dtype, const void *data,
                          int64_t rows, int64_t cols, err *e)
{
    const int64_t shape[2] = { rows, cols };
    fmt_tensor t = fmt_tensor_make(dtype, data, cols ? 2 : 1, shape);
    return put(r, &(fmt_tape_key){ round, slot, 0, name }, &t, e);
}

/* The largest entries of each row, joined over the vocabulary shards. */
static err_code put_top(cap_recorder *r, const fmt_tape_key *key, const eng_program *p, int32_t v, const eng_extents *x,
                        err *e)
{
    const eng_value *value = &p->value[v];
    const float *shard[ENG_RANKS_MAX];
    int64_t cols[ENG_RANKS_MAX], shape[FMT_DIMS_MAX], rows = 1, all = 0;
    int32_t n_shards = value->place == FMT_PLACE_SHARDED ? r->n_ranks : 1, last = value->ndim - 1;
    for (int32_t rank = 0; rank < n_shards; rank++) {
        eng_value_shape(p, v, x, rank, r->n_ranks, shape);
        shard[rank] = (const float *)(r->rank[rank].data + r->rank[rank].value[v].offset);
        cols[rank] = shape[last];
        all += cols[rank];
    }
    for (int32_t d = 0; d < last; d++) rows *= shape[d];
    int32_t k = all < CAP_TOP ? (int32_t)all : CAP_TOP;
    if ((size_t)rows > r->top_capacity) {
        free(r->top_values);
        free(r->top_ids);
        r->top_capacity = 0;
        r->top_values = mem_alloc((size_t)rows * CAP_TOP, sizeof *r->top_values);
        r->top_ids = mem_alloc((size_t)rows * CAP_TOP, sizeof *r->top_ids);
        if (!r->top_values || !r->top_ids) return err_set(e, ERR_NOMEM, "no memory for the top entries of %s", value->name);
        r->top_capacity = (size_t)rows;
    }
    cap_topk(shard, cols, n_shards, rows, k, r->top_values, r->top_ids);
    char name[64];
    shape[last] = k;
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, r->top_values, value->ndim, shape);
    fmt_tier tier = (fmt_tier)r->armed[p->step][v].top_tier;
    fmt_tape_key top = { key->round, key->slot, 0, name };
    cap_top_name(value, name);
    TRY(fmt_tape_put(r->tape, &top, &t, FMT_PLACE_REPLICATED, 0, 1, tier, e));
    t = fmt_tensor_make(FMT_DTYPE_I32, r->top_ids, value->ndim, shape);
    strcat(name, "_ids");
    TRY(fmt_tape_put(r->tape, &top, &t, FMT_PLACE_REPLICATED, 0, 1, tier, e));
    r->n_values += 2;
    r->raw_bytes += 2 * fmt_tensor_bytes(&t);
    return ERR_OK;
}

static bool all_ranks_are_here(const cap_recorder *r) { return r->end_rank - r->first_rank == r->n_ranks; }

/* One value of all ranks here: in one record set where it has every rank and their shapes agree, else (a vocabulary's
 * shards, a process that is one rank of several) one by one. */
static err_code put_parts(cap_recorder *r, fmt_tape_key key, const eng_program *p, int32_t v, const eng_extents *x, err *e)
{
    const eng_value *value = &p->value[v];
    const void *data[ENG_RANKS_MAX];
    fmt_tensor t[ENG_RANKS_MAX];
    bool alike = all_ranks_are_here(r);
    for (int32_t rank = r->first_rank; rank < r->end_rank; rank++) {
        int64_t shape[FMT_DIMS_MAX];
        eng_value_shape(p, v, x, rank, r->n_ranks, shape);
        data[rank] = r->rank[rank].data + r->rank[rank].value[v].offset;
        t[rank] = fmt_tensor_make(value->dtype, data[rank], value->ndim, shape);
        alike = alike && memcmp(t[rank].shape, t[r->first_rank].shape, sizeof t[0].shape) == 0;
        r->raw_bytes += fmt_tensor_bytes(&t[rank]);
    }
    const cap_armed *a = &r->armed[p->step][v];
    fmt_tier tier = (fmt_tier)(a->tier != CAP_TIER_OFF ? a->tier : a->top_tier);
    r->n_values++;
    if (alike) return fmt_tape_put_ranks(r->tape, &key, &t[0], data, value->place, value->axis, r->n_ranks, tier, e);
    for (key.rank = r->first_rank; key.rank < r->end_rank; key.rank++)
        TRY(fmt_tape_put(r->tape, &key, &t[key.rank], value->place, value->axis, r->n_ranks, tier, e));
    return ERR_OK;
}

/* *fired: every rank here has shown the value whole. ERR_SYSTEM when only some of it came. */
static err_code check_shown(const cap_recorder *r, const eng_value *value, int32_t v, bool *fired, err *e)
{
    int32_t n_whole = 0, n_none = 0, n_here = r->end_rank - r->first_rank;
    for (int32_t rank = r->first_rank; rank < r->end_rank; rank++) {
        const staged *s = &r->rank[rank].value[v];
        n_whole += s->seen_bytes == s->bytes;
        n_none += s->seen_bytes == 0;
    }
    *fired = n_whole == n_here;
    if (*fired || n_none == n_here) return ERR_OK;
    return err_set(e, ERR_SYSTEM, "%s: %d of %d ranks showed it whole", value->name, n_whole, n_here);
}

static err_code put_step(cap_recorder *r, eng_step_kind step, int32_t round, int32_t slot, const eng_extents *x, err *e)
{
    const eng_program *p = r->program[step];
    const fmt_tape_key at = { round, slot, 0, NULL };
    for (int32_t v = 0; v < p->n_values; v++) {
        cap_armed *a = &r->armed[step][v];
        bool fired;
        if (!cap_is_armed(a) || p->value[v].state) continue;
        TRY(check_shown(r, &p->value[v], v, &fired, e));
        if (!fired) continue;
        a->fired = true;
        fmt_tape_key key = at;
        key.name = p->value[v].name;
        /* One rank of several processes does not see the other shards: it keeps its own whole instead of the top of all. */
        bool top = a->top_tier != CAP_TIER_OFF, joined = p->value[v].place != FMT_PLACE_SHARDED || all_ranks_are_here(r);
        if (a->tier != CAP_TIER_OFF || (top && !joined)) TRY(put_parts(r, key, p, v, x, e));
        if (top && joined) TRY(put_top(r, &key, p, v, x, e));
    }
    return ERR_OK;
}

/* ---- rounds ---- */

static err_code note_slot(cap_recorder *r, int32_t slot, err *e)
{
    for (size_t i = 0; i < r->n_slots; i++)
        if (r->slots[i] == slot) return ERR_OK;
    void *array = r->slots;
    if (!mem_grow(&array, &r->slots_capacity, r->n_slots + 1, sizeof *r->slots))
        return err_set(e, ERR_NOMEM, "no memory for slot %d", slot);
    r->slots = array;
    r->slots[r->n_slots++] = slot;
    return ERR_OK;
}

/* Captured main_x rows went in instead of taps: the engine did not make the value, so it is staged by hand. */
static void stage_main_x(cap_recorder *r, const bf16 *main_x)
{
    int32_t v = eng_program_find_value(r->program[ENG_STEP_INSERT], "main_x");
    if (v < 0 || !cap_is_armed(&r->armed[ENG_STEP_INSERT][v])) return;
    for (int32_t rank = r->first_rank; rank < r->end_rank; rank++) {
        staged *s = &r->rank[rank].value[v];
        if (s->seen_bytes == s->bytes) continue;
        memcpy(r->rank[rank].data + s->offset, main_x, s->bytes);
        s->seen_bytes = s->bytes;
    }
}

static err_code run_insert(cap_recorder *r, int32_t round, const eng_insert_event *in, int32_t engine_slot,
                           const bf16 *main_x, err *e)
{
    const eng_config *c = eng_config_of(r->g);
    const eng_extents x = eng_extents_of(c, in->rows, 1, 1);
    const eng_tap tap = { on_tensor, r };
    TRY(note_slot(r, in->slot, e));
    TRY(stage(r, ENG_STEP_INSERT, &x, e));
    if (main_x) {
        TRY(eng_insert_main_x(r->g, engine_slot, main_x, in->pos, in->rows, &tap, e));
        stage_main_x(r, main_x);
    } else TRY(eng_insert(r->g, engine_slot, in->taps, in->pos, in->rows, &tap, e));
    uint64_t start_ns = clock_ns();
    if (in->taps) TRY(put_array(r, round, in->slot, "taps", FMT_DTYPE_BF16, in->taps, in->rows, x.n[ENG_DIM_TAPS], e));
    TRY(put_array(r, round, in->slot, "pos", FMT_DTYPE_I32, in->pos, in->rows, 0, e));
    TRY(put_step(r, ENG_STEP_INSERT, round, in->slot, &x, e));
    r->n_inserts++;
    r->write_ns += clock_ns() - start_ns;
    return ERR_OK;
}

/* Windows of the drafted slots as the draft saw them: rank 0's copy, once. */
static err_code put_windows(cap_recorder *r, const eng_round *in, const int32_t *engine_slots, err *e)
{
    const eng_program *p = r->program[ENG_STEP_DRAFT];
    for (int32_t b = 0; b < in->batch; b++)
        for (int32_t k = 0; k < p->config.n_stages; k++) {
            char name[64];
            snprintf(name, sizeof name, "s%d.window", k);
            int32_t v = eng_program_find_value(p, name);
            cap_armed *a = v < 0 ? NULL : &r->armed[ENG_STEP_DRAFT][v];
            if (!a || a->tier == CAP_TIER_OFF) continue;
            fmt_tensor t;
            TRY(eng_window(r->g, engine_slots[b], k, &t, e));
            const fmt_tape_key key = { in->round, in->slots[b], 0, name };
            TRY(fmt_tape_put(r->tape, &key, &t, FMT_PLACE_REPLICATED, 0, 1, (fmt_tier)a->tier, e));
            r->n_values++;
            r->raw_bytes += fmt_tensor_bytes(&t);
            a->fired = true;
        }
    return ERR_OK;
}

static err_code run_draft(cap_recorder *r, const eng_round *in, const int32_t *engine_slots, err *e)
{
    const eng_config *c = eng_config_of(r->g);
    const eng_extents x = eng_extents_of(c, c->block * in->batch, in->batch, in->n_out);
    const eng_tap tap = { on_tensor, r };
    int32_t drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    TRY(stage(r, ENG_STEP_DRAFT, &x, e));
    TRY(eng_draft(r->g, in->batch, engine_slots, in->anchors, in->pos, in->n_out, drafts, confidence, &tap, e));
    uint64_t start_ns = clock_ns();
    TRY(put_array(r, in->round, FMT_TAPE_NO_SLOT, "draft.slots", FMT_DTYPE_I32, in->slots, in->batch, 0, e));
    TRY(put_array(r, in->round, FMT_TAPE_NO_SLOT, "draft.anchor", FMT_DTYPE_I32, in->anchors, in->batch, 0, e));
    TRY(put_array(r, in->round, FMT_TAPE_NO_SLOT, "draft.pos", FMT_DTYPE_I32, in->pos, in->batch, 0, e));
    TRY(put_array(r, in->round, FMT_TAPE_NO_SLOT, "draft.n_out", FMT_DTYPE_I32, &in->n_out, 1, 0, e));
    TRY(put_windows(r, in, engine_slots, e));
    TRY(put_step(r, ENG_STEP_DRAFT, in->round, FMT_TAPE_NO_SLOT, &x, e));
    r->n_drafts++;
    r->write_ns += clock_ns() - start_ns;
    return ERR_OK;
}

err_code cap_recorder_round(cap_recorder *r, const eng_round *round, const int32_t *engine_slots_of_inserts,
                            const int32_t *engine_slots_of_draft, const bf16 *const *main_x, err *e)
{
    for (int32_t i = 0; i < round->n_inserts; i++) {
        const eng_insert_event *in = &round->inserts[i];
        if (run_insert(r, round->round, in, engine_slots_of_inserts[i], main_x ? main_x[i] : NULL, e) != ERR_OK)
            return err_wrap(e, "round %d slot %d", round->round, in->slot);
    }
    if (round->batch && run_draft(r, round, engine_slots_of_draft, e) != ERR_OK)
        return err_wrap(e, "round %d draft", round->round);
    uint64_t start_ns = clock_ns();
    TRY(fmt_tape_flush(r->tape, e));
    r->write_ns += clock_ns() - start_ns;
    r->n_rounds++;
    return ERR_OK;
}

/* ---- head and summary ---- */

/* Ops in order, each with the names of what it writes. NULL: no memory. */
static json_t *program_json(const eng_program *p)
{
    json_t *ops = json_array();
    for (int32_t i = 0; i < p->n_ops; i++) {
        json_t *out = json_array();
        for (int32_t k = 0; k < p->op[i].n_out; k++)
            json_array_append_new(out, json_string(p->value[p->op[i].out[k]].name));
        json_array_append_new(ops, json_pack("{s:s, s:o}", "op", p->op[i].name, "out", out));
    }
    return ops;
}

static json_t *head_json(const cap_recorder *r, const json_t *identity, const cap_options *o)
{
    json_t *taps = json_array();
    for (int i = 0; o->taps && i < o->taps->count; i++) json_array_append_new(taps, json_string(o->taps->item[i]));
    return json_pack("{s:s, s:s, s:O, s:o, s:{s:o, s:o}, s:o, s:I}", "format", "sparktape", "level",
                     eng_level_name(o->level), "identity", identity, "config", eng_config_json(eng_config_of(r->g)),
                     "program", "insert", program_json(r->program[ENG_STEP_INSERT]), "draft",
                     program_json(r->program[ENG_STEP_DRAFT]), "taps", taps, "created",
                     (json_int_t)(clock_wall_ns() / 1000000000u));
}

static json_t *summary_json(const cap_recorder *r)
{
    json_int_t n_armed = 0, n_fired = 0;
    json_t *never = json_array();
    for (int s = 0; s < CAP_STEPS; s++)
        for (int32_t v = 0; v < r->program[s]->n_values; v++) {
            const cap_armed *a = &r->armed[s][v];
            /* A window is a value of both programs; only the draft's is recorded. */
            if (!cap_is_armed(a) || (r->program[s]->value[v].state && s == ENG_STEP_INSERT)) continue;
            n_armed++;
            if (a->fired) n_fired++;
            else json_array_append_new(never, json_string(r->program[s]->value[v].name));
        }
    uint64_t tap_ns = 0; /* ranks run side by side: the slowest counts */
    for (int32_t rank = 0; rank < r->n_ranks; rank++)
        if (r->rank[rank].tap_ns > tap_ns) tap_ns = r->rank[rank].tap_ns;
    uint64_t rounds = r->n_rounds ? r->n_rounds : 1;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:o}, s:I, s:I, s:f}", "rounds", (json_int_t)r->n_rounds,
                     "inserts", (json_int_t)r->n_inserts, "drafts", (json_int_t)r->n_drafts, "slots",
                     (json_int_t)r->n_slots, "values", (json_int_t)r->n_values, "raw_bytes", (json_int_t)r->raw_bytes,
                     "taps", "armed", n_armed, "fired", n_fired, "never", never, "dropped", (json_int_t)0, "padded_rows",
                     (json_int_t)0,
                     "cost_us_per_round", (double)((tap_ns + r->write_ns) / rounds) / 1000.0);
}

/* ---- open and close ---- */

static void recorder_free(cap_recorder *r)
{
    for (int s = 0; s < CAP_STEPS; s++) free(r->armed[s]);
    for (int32_t rank = 0; rank < ENG_RANKS_MAX; rank++) {
        free(r->rank[rank].data);
        free(r->rank[rank].value);
    }
    free(r->slots);
    free(r->top_values);
    free(r->top_ids);
    free(r);
}

void cap_recorder_discard(cap_recorder *r)
{
    if (!r) return;
    fmt_tape_discard(r->tape);
    recorder_free(r);
}

static err_code recorder_open(cap_recorder *r, eng_engine *g, const char *path, const json_t *identity,
                              const cap_options *o, err *e)
{
    int32_t n_values = 1;
    r->g = g;
    const eng_options *run = eng_options_of(g);
    r->n_ranks = run->n_ranks;
    r->first_rank = run->bootstrap ? run->rank : 0;
    r->end_rank = run->bootstrap ? run->rank + 1 : run->n_ranks;
    for (int s = 0; s < CAP_STEPS; s++) {
        r->program[s] = eng_program_of(g, (eng_step_kind)s);
        if (r->program[s]->n_values > n_values) n_values = r->program[s]->n_values;
        r->armed[s] = mem_alloc((size_t)r->program[s]->n_values + 1, sizeof *r->armed[s]);
        if (!r->armed[s]) return err_set(e, ERR_NOMEM, "%s: no memory for the tap table", path);
    }
    for (int32_t rank = 0; rank < r->n_ranks; rank++) {
        r->rank[rank].value = mem_alloc((size_t)n_values, sizeof *r->rank[rank].value);
        if (!r->rank[rank].value) return err_set(e, ERR_NOMEM, "%s: no memory for the tap table", path);
    }
    TRY(cap_arm(r->program, o, r->armed, e));
    json_t *head = head_json(r, identity, o);
    if (!head) return err_set(e, ERR_NOMEM, "%s: no memory for the head", path);
    err_code rc = fmt_tape_create(path, head, &r->tape, e);
    json_decref(head);
    return rc;
}

err_code cap_recorder_open(eng_engine *g, const char *path, const json_t *identity, const cap_options *o,
                           cap_recorder **out, err *e)
{
    *out = NULL;
    cap_recorder *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(e, ERR_NOMEM, "%s: no memory for the recorder", path);
    err_code rc = recorder_open(r, g, path, identity, o, e);
    if (rc != ERR_OK) {
        cap_recorder_discard(r);
        return rc;
    }
    *out = r;
    return ERR_OK;
}

err_code cap_recorder_finish(cap_recorder *r, err *e)
{
    json_t *summary = summary_json(r); /* NULL without memory: the tape is worth keeping all the same */
    err_code rc = fmt_tape_finish(r->tape, summary, e);
    json_decref(summary);
    recorder_free(r);
    return rc;
}
