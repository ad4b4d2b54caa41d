#include "engine/shots_state.h"

#include "base/clock.h"
#include "base/mem.h"

_Static_assert((int)KRN_SNAP_SLOTS >= (int)ENG_BATCH_MAX, "a snapshot has room for the windows of a draft");

/* ---- what is kept ---- */

static eng_step_kind step_of(int32_t table) { return table == 0 ? ENG_STEP_INSERT : ENG_STEP_DRAFT; }

static err_code check_keep(const eng_shots *s, eng_step_kind step, err *e)
{
    const eng_program *p = s->program[step];
    const eng_options *o = eng_options_of(s->g);
    for (int32_t v = 0; v < p->n_values; v++) {
        const eng_value *value = &p->value[v];
        uint8_t keep = s->keep[step][v];
        if (keep == ENG_KEEP_OFF) continue;
        bool fine = keep <= (ENG_KEEP_TENSOR | ENG_KEEP_DIGEST | ENG_KEEP_TOP) && value->level <= ENG_LEVEL_DEEP;
        if (value->state) fine = fine && step == ENG_STEP_DRAFT && !(keep & ENG_KEEP_TOP);
        else fine = fine && value->producer >= 0;
        if (keep & ENG_KEEP_TOP) fine = fine && value->dtype == FMT_DTYPE_F32 && value->dim[value->ndim - 1] == ENG_DIM_V;
        if (!fine) return err_set(e, ERR_ARG, "shots: %s cannot be kept so (%d)", value->name, keep);
        if (o->mode == ENG_MODE_GRAPH && !value->state && value->level > eng_retain_of(s->g))
            return err_set(e, ERR_ARG, "shots: %s needs an engine that retains %s, this one retains %s", value->name,
                           eng_level_name(value->level), eng_level_name(eng_retain_of(s->g)));
    }
    return ERR_OK;
}

static void add_item(eng_shot_items *items, krn_snap_item item)
{
    if (items->item) items->item[items->n] = item;
    items->n++;
}

/* The items of value v on one rank; with item NULL they are only counted. A rank without columns of it has none. */
static void add_value(const eng_shots *s, int32_t here, int32_t n_out, int32_t v, eng_shot_items *items)
{
    const eng_program *p = items->program;
    const eng_value *value = &p->value[v];
    uint8_t keep = s->keep[p->step][v];
    eng_extents unit = eng_extents_of(&p->config, 1, 1, n_out);
    int64_t shape[3];
    items->at[v] = items->top[v] = -1;
    if (keep == ENG_KEEP_OFF || (value->state && here > 0)) return;
    /* A value of one dimension is one row to a digest, whose length only the step knows: it is small, so it is copied. */
    bool copy = !s->cuda || (keep & ENG_KEEP_TENSOR) || ((keep & ENG_KEEP_DIGEST) && value->ndim < 2);
    eng_value_shape(p, v, &unit, s->first_rank + here, s->n_ranks, shape);
    krn_snap_item item = { .dtype = value->dtype, .keep = copy ? KRN_SNAP_COPY : KRN_SNAP_DIGEST };
    item.row_bytes = (uint64_t)(shape[0] * shape[1] * shape[2]) * fmt_dtype_bytes(value->dtype);
    if (value->state) {
        item.row_bytes = (uint64_t)p->config.head_dim * sizeof(bf16);
        item.slot_bytes = item.row_bytes * (uint64_t)p->config.window * (uint64_t)p->config.n_stages;
        items->at[v] = items->n;
        for (int32_t b = 0; b < ENG_BATCH_MAX; b++) {
            item.per = KRN_SNAP_PER_WINDOW + b;
            add_item(items, item);
        }
        return;
    }
    CHECK(value->dim[0] == ENG_DIM_ROWS || value->dim[0] == ENG_DIM_B);
    if (item.row_bytes == 0) return;
    item.per = value->dim[0] == ENG_DIM_ROWS ? KRN_SNAP_PER_ROW : KRN_SNAP_PER_SLOT;
    if (copy || (keep & ENG_KEEP_DIGEST)) {
        items->at[v] = items->n;
        add_item(items, item);
    }
    if (!copy && (keep & ENG_KEEP_TOP)) {
        item.keep = KRN_SNAP_TOP_ROWS;
        item.cols = (int32_t)shape[value->ndim - 1];
        items->top[v] = items->n;
        add_item(items, item);
    }
}

static err_code make_items(eng_shots *s, int32_t here, int32_t table, err *e)
{
    eng_shot_items *items = &s->items[here][table];
    const eng_program *p = items->program = s->program[step_of(table)];
    items->at = mem_alloc((size_t)p->n_values, sizeof *items->at);
    items->top = mem_alloc((size_t)p->n_values, sizeof *items->top);
    if (!items->at || !items->top) return err_set(e, ERR_NOMEM, "shots: no memory for %d values", p->n_values);
    for (int32_t v = 0; v < p->n_values; v++) add_value(s, here, table, v, items);
    if (items->n > KRN_SNAP_ITEMS_MAX)
        return err_set(e, ERR_ARG, "shots: %d parts of a step, wanted at most %d", items->n, KRN_SNAP_ITEMS_MAX);
    items->item = mem_alloc((size_t)items->n + 1, sizeof *items->item);
    if (!items->item) return err_set(e, ERR_NOMEM, "shots: no memory for %d parts", items->n);
    items->n = 0;
    for (int32_t v = 0; v < p->n_values; v++) add_value(s, here, table, v, items);
    return ERR_OK;
}

/* ---- room ---- */

static int32_t draft_rows(const eng_shots *s) { return s->program[0]->config.block * ENG_BATCH_MAX; }

static int32_t n_buckets(int32_t rows) { return (rows + ENG_INSERT_ROWS_MAX - 1) / ENG_INSERT_ROWS_MAX; }

/* Bytes of all ranks [here, here + n) when `rows` rows are live (of a draft: everything is). */
static uint64_t packed_bytes(const eng_shots *s, int32_t here, int32_t n, int32_t table, int32_t rows)
{
    uint64_t offset[KRN_SNAP_ITEMS_MAX], bytes = 0;
    krn_snap_live live = { .count = { [KRN_SNAP_PER_ROW] = rows, [KRN_SNAP_PER_SLOT] = ENG_BATCH_MAX } };
    for (int32_t b = 0; b < ENG_BATCH_MAX; b++) live.count[KRN_SNAP_PER_WINDOW + b] = s->program[0]->config.window;
    for (int32_t r = here; r < here + n; r++)
        bytes += krn_snapshot_layout(s->items[r][table].item, s->items[r][table].n, &live, offset);
    return bytes;
}

/* Where the row digests and top rows of each value begin, at their most. */
static err_code make_answers(eng_shots *s, err *e)
{
    const eng_config *c = &s->program[0]->config;
    for (int step = 0; step < 2; step++) {
        const eng_program *p = s->program[step];
        uint64_t n = 0;
        s->rows_at[step] = mem_alloc((size_t)p->n_values + 1, sizeof *s->rows_at[step]);
        if (!s->rows_at[step]) return err_set(e, ERR_NOMEM, "shots: no memory for %d values", p->n_values);
        for (int32_t v = 0; v <= p->n_values; v++) {
            s->rows_at[step][v] = n;
            if (v == p->n_values || !(s->keep[step][v] & ENG_KEEP_DIGEST)) continue;
            if (p->value[v].state) n += (uint64_t)ENG_BATCH_MAX * (uint64_t)c->window;
            else n += (uint64_t)(step == ENG_STEP_INSERT ? s->insert_rows : draft_rows(s));
        }
    }
    const eng_program *p = s->program[ENG_STEP_DRAFT];
    s->top_at = mem_alloc((size_t)p->n_values + 1, sizeof *s->top_at);
    if (!s->top_at) return err_set(e, ERR_NOMEM, "shots: no memory for %d values", p->n_values);
    for (int32_t v = 0; v < p->n_values; v++)
        s->top_at[v + 1] = s->top_at[v] + (s->keep[ENG_STEP_DRAFT][v] & ENG_KEEP_TOP ? (uint64_t)draft_rows(s) : 0);
    return ERR_OK;
}

static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* What a shot takes: packed bytes of ranks [here, here + n) in one buffer, inserts being one part or cut into buckets. */
static uint64_t buffer_bytes(const eng_shots *s, int32_t here, int32_t n, bool buckets)
{
    uint64_t bytes = packed_bytes(s, here, n, 0, buckets ? ENG_INSERT_ROWS_MAX : s->insert_rows);
    if (buckets) bytes *= (uint64_t)n_buckets(s->insert_rows);
    for (int32_t n_out = 1; n_out <= s->program[0]->config.block; n_out++)
        bytes = most(bytes, packed_bytes(s, here, n, n_out, draft_rows(s)));
    return bytes;
}

static uint64_t memory_bytes(const eng_shots *s)
{
    if (!s->cuda) return buffer_bytes(s, 0, s->n_here, false);
    return n_buckets(s->insert_rows) > 1 ? packed_bytes(s, 0, s->n_here, 0, s->insert_rows) : 0;
}

static uint64_t n_row_digests(const eng_shots *s)
{
    return most(s->rows_at[0][s->program[0]->n_values], s->rows_at[1][s->program[1]->n_values]);
}

static uint64_t n_top_rows(const eng_shots *s) { return s->top_at[s->program[ENG_STEP_DRAFT]->n_values]; }

static uint64_t shot_bytes(const eng_shots *s)
{
    uint64_t bytes = memory_bytes(s) + n_row_digests(s) * sizeof(uint64_t) * (uint64_t)s->n_here;
    bytes += n_top_rows(s) * KRN_TOP_ROWS * (sizeof(float) + sizeof(int32_t));
    for (int32_t k = 0; s->cuda && k < s->n_groups; k++) /* on the device and on the host */
        bytes += 2 * buffer_bytes(s, k * s->n_here / s->n_groups, s->n_here / s->n_groups, true);
    return bytes;
}

static err_code open_shot(eng_shots *s, eng_shot *shot, err *e)
{
    uint64_t memory = memory_bytes(s), n_top = n_top_rows(s) * KRN_TOP_ROWS;
    shot->pool = s;
    shot->index = (int32_t)(shot - s->shot);
    shot->memory = mem_alloc_aligned(memory + 1, 1);
    shot->top_value = mem_alloc(n_top + 1, sizeof *shot->top_value);
    shot->top_id = mem_alloc(n_top + 1, sizeof *shot->top_id);
    bool fine = shot->memory && shot->top_value && shot->top_id;
    for (int32_t here = 0; here < s->n_here; here++) {
        int32_t n = s->items[here][0].n;
        for (int32_t t = 1; t < ENG_SHOT_TABLES; t++)
            if (s->items[here][t].n > n) n = s->items[here][t].n;
        shot->offset[here] = mem_alloc((size_t)n + 1, sizeof *shot->offset[here]);
        shot->row_digest[here] = mem_alloc(n_row_digests(s) + 1, sizeof *shot->row_digest[here]);
        fine = fine && shot->offset[here] && shot->row_digest[here];
    }
    if (!fine) return err_set(e, ERR_NOMEM, "shots: no memory for %llu bytes", (unsigned long long)shot_bytes(s));
    return ERR_OK;
}

/* ---- open and close ---- */

static err_code open_pool(eng_shots *s, const uint8_t *const keep[2], int32_t depth, uint64_t max_bytes, err *e)
{
    const eng_options *o = eng_options_of(s->g);
    s->cuda = o->backend == ENG_BACKEND_CUDA;
    s->n_ranks = o->n_ranks;
    s->first_rank = s->cuda && o->bootstrap ? o->rank : 0;
    s->n_groups = s->cuda ? eng_device_groups(o) : 1;
    s->n_here = s->cuda && (o->bootstrap || o->comm == ENG_COMM_SOLO) ? 1 : o->n_ranks;
    for (int step = 0; step < 2; step++) {
        const eng_program *p = s->program[step] = eng_program_of(s->g, (eng_step_kind)step);
        s->keep[step] = mem_alloc((size_t)p->n_values, sizeof *s->keep[step]);
        if (!s->keep[step]) return err_set(e, ERR_NOMEM, "shots: no memory for %d values", p->n_values);
        memcpy(s->keep[step], keep[step], (size_t)p->n_values);
        TRY(check_keep(s, (eng_step_kind)step, e));
    }
    for (int32_t here = 0; here < s->n_here; here++)
        for (int32_t t = 0; t <= s->program[0]->config.block; t++) TRY(make_items(s, here, t, e));
    TRY(make_answers(s, e));
    uint64_t each = shot_bytes(s);
    s->depth = max_bytes > 0 && each > 0 && max_bytes / each < (uint64_t)depth ? (int32_t)(max_bytes / each) : depth;
    if (s->depth < 1) s->depth = 1;
    s->bytes = each * (uint64_t)s->depth;
    s->shot = mem_alloc((size_t)s->depth, sizeof *s->shot);
    if (!s->shot) return err_set(e, ERR_NOMEM, "shots: no memory for %d shots", s->depth);
    for (int32_t i = 0; i < s->depth; i++) TRY(open_shot(s, &s->shot[i], e));
    for (int32_t k = 0; s->cuda && k < s->n_groups; k++) {
        int32_t n = s->n_here / s->n_groups, here = k * n;
        eng_device_shots_setup setup = { &s->items[here], s->depth, n_buckets(s->insert_rows),
                                         packed_bytes(s, here, n, 0, ENG_INSERT_ROWS_MAX), buffer_bytes(s, here, n, true) };
        TRY(eng_device_shots_open(eng_device_of(s->g, k), &setup, &s->device[k], e));
    }
    return ERR_OK;
}

err_code eng_shots_open(eng_engine *g, const uint8_t *const keep[2], int32_t depth, uint64_t max_bytes, int32_t insert_rows,
                        eng_shots **out, err *e)
{
    *out = NULL;
    if (depth < 1 || insert_rows < 1)
        return err_set(e, ERR_ARG, "shots: depth %d, insert rows %d, wanted 1 or more", depth, insert_rows);
    eng_shots *s = mem_alloc(1, sizeof *s);
    if (!s) return err_set(e, ERR_NOMEM, "shots: no memory");
    s->g = g;
    s->insert_rows = insert_rows;
    err_code rc = open_pool(s, keep, depth, max_bytes, e);
    if (rc != ERR_OK) {
        eng_shots_close(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

static void close_shot(eng_shot *shot)
{
    CHECK(!__atomic_load_n(&shot->used, __ATOMIC_ACQUIRE));
    for (int32_t here = 0; here < ENG_RANKS_MAX; here++) {
        free(shot->offset[here]);
        free(shot->row_digest[here]);
    }
    free(shot->memory);
    free(shot->top_value);
    free(shot->top_id);
}

void eng_shots_close(eng_shots *s)
{
    if (!s) return;
    for (int32_t k = 0; k < ENG_RANKS_MAX; k++) eng_device_shots_close(s->device[k]);
    for (int32_t i = 0; s->shot && i < s->depth; i++) close_shot(&s->shot[i]);
    for (int32_t here = 0; here < ENG_RANKS_MAX; here++)
        for (int32_t t = 0; t < ENG_SHOT_TABLES; t++) {
            free(s->items[here][t].item);
            free(s->items[here][t].at);
            free(s->items[here][t].top);
        }
    for (int step = 0; step < 2; step++) {
        free(s->keep[step]);
        free(s->rows_at[step]);
    }
    free(s->top_at);
    free(s->shot);
    free(s);
}

int32_t eng_shots_depth(const eng_shots *s) { return s->depth; }
uint64_t eng_shots_bytes(const eng_shots *s) { return s->bytes; }

eng_shot *eng_shots_take(eng_shots *s)
{
    for (int32_t i = 0; i < s->depth; i++) {
        eng_shot *shot = &s->shot[i];
        if (__atomic_load_n(&shot->used, __ATOMIC_ACQUIRE)) continue;
        __atomic_store_n(&shot->used, true, __ATOMIC_RELAXED); /* one thread takes: nobody was faster */
        shot->whole = shot->landed = false;
        return shot;
    }
    return NULL;
}

void eng_shot_free(eng_shot *shot) { __atomic_store_n(&shot->used, false, __ATOMIC_RELEASE); }

eng_shot_cost eng_shots_cost(const eng_shots *s)
{
    return (eng_shot_cost){ .host_ns = __atomic_load_n(&s->cost.host_ns, __ATOMIC_RELAXED),
                            .device_ns = __atomic_load_n(&s->cost.device_ns, __ATOMIC_RELAXED),
                            .bytes = __atomic_load_n(&s->cost.bytes, __ATOMIC_RELAXED),
                            .n_shots = __atomic_load_n(&s->cost.n_shots, __ATOMIC_RELAXED),
                            .n_timed = __atomic_load_n(&s->cost.n_timed, __ATOMIC_RELAXED) };
}

/* ---- filling ---- */

err_code eng_shot_begin(eng_shot *shot, const eng_engine *g, int32_t first_op, int32_t rows, const eng_device_draft *draft,
                        err *e)
{
    uint64_t start = clock_ns();
    eng_shots *s = shot->pool;
    const eng_config *c = &s->program[0]->config;
    CHECK(s->g == g);
    if (!draft && rows > s->insert_rows)
        return err_set(e, ERR_ARG, "shot: insert of %d rows, there is room for %d", rows, s->insert_rows);
    shot->whole = shot->landed = false;
    shot->step = draft ? ENG_STEP_DRAFT : ENG_STEP_INSERT;
    shot->table = draft ? draft->n_out : 0;
    shot->first_op = first_op;
    shot->n_parts = draft ? 1 : n_buckets(rows);
    shot->extents = eng_extents_of(c, rows, draft ? draft->batch : 1, draft ? draft->n_out : 1);
    shot->live = (krn_snap_live){ .count = { [KRN_SNAP_PER_ROW] = rows, [KRN_SNAP_PER_SLOT] = draft ? draft->batch : 1 } };
    for (int32_t b = 0; draft && b < draft->batch; b++) {
        shot->live.count[KRN_SNAP_PER_WINDOW + b] = draft->pos[b] + 1 < c->window ? draft->pos[b] + 1 : c->window;
        shot->live.slot[b] = draft->slots[b];
    }
    uint64_t at = 0;
    int32_t n_local = s->n_here / s->n_groups;
    bool apart = s->cuda && shot->n_parts == 1; /* read where each group's copy brings it */
    shot->bytes = 0;
    for (int32_t here = 0; here < s->n_here; here++) {
        const eng_shot_items *items = &s->items[here][shot->table];
        uint8_t *home = apart ? eng_device_shots_data(s->device[here / n_local], shot->index) : shot->memory;
        if (apart && here % n_local == 0) at = 0;
        shot->data[here] = home + at;
        uint64_t bytes = krn_snapshot_layout(items->item, items->n, &shot->live, shot->offset[here]);
        at += bytes;
        shot->bytes += bytes;
        shot->host_ns[here] = 0;
    }
    shot->begin_ns = clock_ns() - start;
    return ERR_OK;
}

void eng_shot_end(eng_shot *shot, bool whole)
{
    eng_shot_cost *cost = &shot->pool->cost;
    uint64_t slowest = 0;
    for (int32_t here = 0; here < shot->pool->n_here; here++) slowest = most(slowest, shot->host_ns[here]);
    shot->whole = whole;
    __atomic_fetch_add(&cost->host_ns, shot->begin_ns + slowest, __ATOMIC_RELAXED);
    __atomic_fetch_add(&cost->bytes, shot->bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&cost->n_shots, 1, __ATOMIC_RELAXED);
}

void eng_shot_put(eng_shot *shot, int32_t rank, int32_t value, int32_t b, int32_t row0, const fmt_tensor *t)
{
    int32_t here = rank - shot->pool->first_rank;
    const eng_shot_items *items = &shot->pool->items[here][shot->table];
    int32_t i = items->at[value];
    if (i < 0) return;
    uint64_t start = clock_ns();
    memcpy(shot->data[here] + shot->offset[here][i + b] + (uint64_t)row0 * items->item[i].row_bytes, t->data,
           fmt_tensor_bytes(t));
    shot->host_ns[here] += clock_ns() - start;
}

err_code eng_shot_pack(eng_shot *shot, int32_t first_rank, int32_t row0, int32_t rows, err *e)
{
    uint64_t start = clock_ns();
    eng_shots *s = shot->pool;
    int32_t here = first_rank - s->first_rank;
    krn_snap_live live = shot->live;
    live.count[KRN_SNAP_PER_ROW] = rows;
    err_code rc = eng_device_shots_pack(s->device[here / (s->n_here / s->n_groups)], shot->index,
                                        row0 / ENG_INSERT_ROWS_MAX, shot->table, &live, e);
    shot->host_ns[here] += clock_ns() - start;
    return rc;
}

/* ---- waiting ---- */

/* An insert came in buckets, each packed for itself: puts the rows of every item behind one another. */
static void join_buckets(eng_shot *shot)
{
    const eng_shots *s = shot->pool;
    int32_t n_local = s->n_here / s->n_groups, rows = shot->live.count[KRN_SNAP_PER_ROW];
    uint64_t offset[KRN_SNAP_ITEMS_MAX];
    for (int32_t k = 0; k < s->n_groups; k++)
        for (int32_t part = 0; part < shot->n_parts; part++) {
            int32_t row0 = part * ENG_INSERT_ROWS_MAX;
            krn_snap_live live = shot->live;
            live.count[KRN_SNAP_PER_ROW] = rows - row0 < ENG_INSERT_ROWS_MAX ? rows - row0 : ENG_INSERT_ROWS_MAX;
            const uint8_t *from = eng_device_shots_data(s->device[k], shot->index) +
                                  (uint64_t)part * packed_bytes(s, k * n_local, n_local, 0, ENG_INSERT_ROWS_MAX);
            for (int32_t here = k * n_local; here < (k + 1) * n_local; here++) {
                const eng_shot_items *items = &s->items[here][0];
                uint64_t bytes = krn_snapshot_layout(items->item, items->n, &live, offset);
                for (int32_t i = 0; i < items->n; i++)
                    memcpy(shot->data[here] + shot->offset[here][i] + krn_snapshot_bytes(&items->item[i], (uint64_t)row0),
                           from + offset[i], krn_snapshot_bytes(&items->item[i], (uint64_t)live.count[KRN_SNAP_PER_ROW]));
                from += bytes;
            }
        }
}

err_code eng_shot_wait(eng_shot *shot, err *e)
{
    eng_shots *s = shot->pool;
    if (!shot->whole) return err_set(e, ERR_DEVICE, "shot: its step failed, or there was none");
    if (shot->landed) return ERR_OK;
    double slowest_us = 0;
    for (int32_t k = 0; s->cuda && k < s->n_groups; k++) {
        double us = 0;
        TRY(eng_device_shots_wait(s->device[k], shot->index, &us, e));
        if (us > slowest_us) slowest_us = us;
    }
    if (s->cuda && shot->n_parts > 1) join_buckets(shot);
    __atomic_fetch_add(&s->cost.device_ns, (uint64_t)(slowest_us * 1e3), __ATOMIC_RELAXED);
    __atomic_fetch_add(&s->cost.n_timed, 1, __ATOMIC_RELAXED);
    shot->landed = true;
    return ERR_OK;
}
