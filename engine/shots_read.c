#include "engine/shots_state.h"

eng_step_kind eng_shot_step(const eng_shot *shot) { return shot->step; }
const eng_extents *eng_shot_extents(const eng_shot *shot) { return &shot->extents; }

bool eng_shot_has(const eng_shot *shot, int32_t value)
{
    const eng_value *v = &shot->pool->program[shot->step]->value[value];
    bool kept_here = shot->whole && shot->pool->keep[shot->step][value] != ENG_KEEP_OFF;
    return kept_here && (v->state || v->producer >= shot->first_op);
}

/* Rank's index here; a window is kept once, by the first rank. */
static int32_t holder(const eng_shot *shot, int32_t rank, int32_t value)
{
    return shot->pool->program[shot->step]->value[value].state ? 0 : rank - shot->pool->first_rank;
}

/* The value's dtype and shape on a rank, and the bytes of what its item kept. */
static fmt_tensor kept(const eng_shot *shot, int32_t rank, int32_t value, int32_t b)
{
    const eng_shots *s = shot->pool;
    const eng_program *p = s->program[shot->step];
    const eng_value *v = &p->value[value];
    int32_t here = holder(shot, rank, value), i = s->items[here][shot->table].at[value];
    fmt_tensor t = { .dtype = v->dtype, .ndim = v->ndim, .data = shot->data[here] };
    CHECK(shot->landed && (v->state ? b < shot->extents.n[ENG_DIM_B] : b == 0));
    for (int d = 0; d < FMT_DIMS_MAX; d++) t.shape[d] = 1;
    if (v->state) {
        t.ndim = 2;
        t.shape[0] = shot->live.count[KRN_SNAP_PER_WINDOW + b];
        t.shape[1] = p->config.head_dim;
    } else eng_value_shape(p, value, &shot->extents, rank, s->n_ranks, t.shape);
    if (i >= 0) t.data = shot->data[here] + shot->offset[here][i + b]; /* else a rank without columns */
    return t;
}

void eng_shot_tensor(const eng_shot *shot, int32_t rank, int32_t value, int32_t b, fmt_tensor *out)
{
    CHECK(shot->pool->keep[shot->step][value] & ENG_KEEP_TENSOR);
    *out = kept(shot, rank, value, b);
}

void eng_shot_digest(eng_shot *shot, int32_t rank, int32_t value, int32_t b, const uint64_t **row_digest, uint64_t *n_rows,
                     uint64_t *digest, fmt_stats *stats)
{
    const eng_shots *s = shot->pool;
    CHECK(s->keep[shot->step][value] & ENG_KEEP_DIGEST);
    int32_t here = holder(shot, rank, value);
    const eng_shot_items *items = &s->items[here][shot->table];
    fmt_tensor t = kept(shot, rank, value, b);
    uint64_t *rows = shot->row_digest[here] + s->rows_at[shot->step][value] + (uint64_t)(b * s->program[0]->config.window);
    const krn_snap_item *item = items->at[value] < 0 ? NULL : &items->item[items->at[value] + b];
    *n_rows = krn_digest_rows(&t);
    *row_digest = rows;
    if (item && item->keep == KRN_SNAP_DIGEST) {
        krn_digest_join((const krn_piece *)t.data, *n_rows, item->row_bytes, t.dtype, rows, digest, stats);
        return;
    }
    krn_digest_ref(&t, rows, digest, stats);
}

int32_t eng_shot_top(eng_shot *shot, int32_t value, const float **values, const int32_t **ids, int64_t *rows)
{
    const eng_shots *s = shot->pool;
    const eng_program *p = s->program[shot->step];
    const int32_t last = p->value[value].ndim - 1;
    const float *shard[ENG_RANKS_MAX];      /* a rank's columns, or the largest of them, which have ids */
    const int32_t *shard_id[ENG_RANKS_MAX];
    int64_t whole[3], cols[ENG_RANKS_MAX], first[ENG_RANKS_MAX], n_before = 0;
    CHECK(shot->landed && s->n_here == s->n_ranks && s->keep[shot->step][value] & ENG_KEEP_TOP);
    eng_value_shape(p, value, &shot->extents, 0, 1, whole);
    int64_t n = whole[0] * (last == 2 ? whole[1] : 1);
    for (int32_t here = 0; here < s->n_here; here++) {
        fmt_tensor t = kept(shot, here, value, 0);
        int32_t top = s->items[here][shot->table].top[value];
        shard[here] = t.data;
        shard_id[here] = NULL;
        cols[here] = t.shape[last];
        first[here] = n_before;
        n_before += t.shape[last];
        if (top < 0) continue;
        if (cols[here] > KRN_TOP_ROWS) cols[here] = KRN_TOP_ROWS;
        shard[here] = (const float *)(const void *)(shot->data[here] + shot->offset[here][top]);
        shard_id[here] = (const int32_t *)(const void *)(shard[here] + n * cols[here]);
    }
    int32_t k = whole[last] < KRN_TOP_ROWS ? (int32_t)whole[last] : KRN_TOP_ROWS;
    float *value_out = shot->top_value + s->top_at[value] * KRN_TOP_ROWS;
    int32_t *id_out = shot->top_id + s->top_at[value] * KRN_TOP_ROWS;
    krn_top_rows(shard, cols, s->n_here, n, k, value_out, id_out);
    for (int64_t i = 0; i < n * k; i++) { /* the place among what the shards held becomes a column */
        int64_t at = id_out[i];
        int32_t here = 0;
        while (at >= cols[here]) at -= cols[here++];
        id_out[i] = (int32_t)(first[here] + (shard_id[here] ? shard_id[here][i / k * cols[here] + at] : at));
    }
    *values = value_out;
    *ids = id_out;
    *rows = n;
    return k;
}
