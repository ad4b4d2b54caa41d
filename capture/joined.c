#include "capture/joined.h"

#include "base/mem.h"
#include "engine/config.h"
#include "kernels/reduce.h"

typedef struct buffer { uint8_t *data; size_t capacity; } buffer;
/* The bytes behind cap_value.owned: the value itself, one rank's part while it is being joined, and the rows of all of a
 * slot's inserts. */
typedef struct storage { buffer value, part, rows; } storage;

static err_code reserve(buffer *b, uint64_t bytes, const char *path, err *e)
{
    if (b->data && b->capacity >= bytes) return ERR_OK;
    free(b->data);
    b->capacity = 0;
    b->data = bytes > SIZE_MAX - 64 ? NULL : mem_alloc_aligned((size_t)bytes + 1, 1); /* + 1: a value may be empty */
    if (!b->data) return err_set(e, ERR_NOMEM, "%s: no memory for a value of %llu bytes", path, (unsigned long long)bytes);
    b->capacity = (size_t)bytes;
    return ERR_OK;
}

static err_code storage_of(cap_value *v, storage **out, err *e)
{
    if (!v->owned) v->owned = mem_alloc(1, sizeof(storage));
    *out = v->owned;
    return v->owned ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a value");
}

void cap_value_fini(cap_value *v)
{
    storage *s = v->owned;
    if (s) {
        free(s->value.data);
        free(s->part.data);
        free(s->rows.data);
        free(s);
    }
    *v = (cap_value){ 0 };
}

static err_code no_payload(const fmt_tape *t, const fmt_tape_record *r, err *e)
{
    const char *what = r->tier == FMT_TIER_STATS ? "statistics" : r->has_digest ? "a digest" : "a hash";
    return err_set(e, ERR_INPUT, "%s: round %d %s was kept as %s only", fmt_tape_path(t), r->key.round, r->key.name, what);
}

err_code cap_record_get(const fmt_tape *t, size_t i, cap_value *v, err *e)
{
    fmt_tape_record r;
    storage *s;
    v->tensor.data = NULL;
    fmt_tape_at(t, i, &r);
    if (r.tier != FMT_TIER_TENSOR) return no_payload(t, &r, e);
    TRY(storage_of(v, &s, e));
    TRY(reserve(&s->value, r.raw_bytes, fmt_tape_path(t), e));
    TRY(fmt_tape_get(t, i, s->value.data, r.raw_bytes, e));
    v->tensor = r.tensor;
    v->tensor.data = s->value.data;
    v->place = r.place;
    v->n_ranks = r.n_ranks;
    v->ranks_differ = 0;
    return ERR_OK;
}

/* ---- the parts of one value ---- */

typedef struct parts {
    size_t index[ENG_RANKS_MAX]; /* record of rank r */
    bool there[ENG_RANKS_MAX];
    int32_t n_ranks, first;      /* first: lowest recorded rank */
} parts;

static err_code misfit(const fmt_tape *t, const fmt_tape_key *key, const char *what, int32_t rank, err *e)
{
    return err_set(e, ERR_INPUT, "%s: round %d %s: rank %d: %s", fmt_tape_path(t), key->round, key->name, rank, what);
}

/* Finds the records of all ranks. ERR_INPUT when there are none. An imported value (FMT_TAPE_NO_RANK) is one part. */
static err_code find_parts(const fmt_tape *t, const fmt_tape_key *key, parts *p, err *e)
{
    *p = (parts){ .first = -1 };
    fmt_tape_key k = *key;
    for (k.rank = FMT_TAPE_NO_RANK; k.rank < ENG_RANKS_MAX; k.rank++) {
        int64_t i = fmt_tape_find(t, &k);
        if (i < 0) continue;
        int32_t rank = k.rank == FMT_TAPE_NO_RANK ? 0 : k.rank;
        p->index[rank] = (size_t)i;
        p->there[rank] = true;
        if (p->first < 0) {
            fmt_tape_record r;
            fmt_tape_at(t, (size_t)i, &r);
            p->first = rank;
            p->n_ranks = k.rank == FMT_TAPE_NO_RANK ? 1 : r.n_ranks;
        }
        if (k.rank == FMT_TAPE_NO_RANK) break;
        if (rank + 1 >= p->n_ranks) break; /* the last one, as the first record found says */
    }
    if (p->first < 0) {
        if (key->slot == FMT_TAPE_NO_SLOT)
            return err_set(e, ERR_INPUT, "%s: round %d has no %s", fmt_tape_path(t), key->round, key->name);
        return err_set(e, ERR_INPUT, "%s: round %d slot %d has no %s", fmt_tape_path(t), key->round, key->slot, key->name);
    }
    if (p->n_ranks < 1 || p->n_ranks > ENG_RANKS_MAX) return misfit(t, key, "rank count is impossible", p->first, e);
    return ERR_OK;
}

static err_code wants_every_rank(const fmt_tape *t, const fmt_tape_key *key, const parts *p, err *e)
{
    for (int32_t rank = 0; rank < p->n_ranks; rank++) {
        if (!p->there[rank]) return misfit(t, key, "its part is missing", rank, e);
        fmt_tape_record r;
        fmt_tape_at(t, p->index[rank], &r);
        if (r.tier != FMT_TIER_TENSOR) return no_payload(t, &r, e);
    }
    return ERR_OK;
}

static bool same_shape(const fmt_tensor *a, const fmt_tensor *b, int32_t but_axis)
{
    if (a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (int32_t d = 0; d < a->ndim; d++)
        if (d != but_axis && a->shape[d] != b->shape[d]) return false;
    return true;
}

/* First rank whose copy is not that of the first one: told by the hash of the whole payload. */
static int32_t first_other(const fmt_tape *t, const parts *p)
{
    fmt_tape_record a, b;
    fmt_tape_at(t, p->index[p->first], &a);
    for (int32_t rank = p->first + 1; rank < p->n_ranks; rank++) {
        if (!p->there[rank]) continue;
        fmt_tape_at(t, p->index[rank], &b);
        if (b.tier != a.tier) continue; /* a cheaper one cannot tell */
        if (a.hash != b.hash || a.raw_bytes != b.raw_bytes || !same_shape(&a.tensor, &b.tensor, -1)) return rank;
    }
    return 0;
}

/* Partials: p0 + p1 + ... in rank order, as the engine's all_reduce adds them. */
static err_code sum_parts(const fmt_tape *t, const fmt_tape_key *key, const parts *p, cap_value *v, err *e)
{
    TRY(wants_every_rank(t, key, p, e));
    TRY(cap_record_get(t, p->index[0], v, e));
    storage *s = v->owned;
    fmt_tensor whole = v->tensor;
    v->tensor.data = NULL; /* until every rank has been added */
    if (whole.dtype != FMT_DTYPE_F32) return misfit(t, key, "a partial that is not F32", 0, e);
    for (int32_t rank = 1; rank < p->n_ranks; rank++) {
        fmt_tape_record r;
        fmt_tape_at(t, p->index[rank], &r);
        if (!same_shape(&whole, &r.tensor, -1)) return misfit(t, key, "its partial does not fit rank 0's", rank, e);
        TRY(reserve(&s->part, r.raw_bytes, fmt_tape_path(t), e));
        TRY(fmt_tape_get(t, p->index[rank], s->part.data, r.raw_bytes, e));
        const float *pair[2] = { (const float *)s->value.data, (const float *)s->part.data };
        krn_sum_ranks_ref(pair, 2, 0, fmt_tensor_elems(&whole), (float *)s->value.data);
    }
    v->tensor.data = whole.data;
    return ERR_OK;
}

/* Shards: [outer, axis, inner]; the rank's rows of the axis go side by side. */
static err_code join_shards(const fmt_tape *t, const fmt_tape_key *key, const parts *p, cap_value *v, err *e)
{
    TRY(wants_every_rank(t, key, p, e));
    fmt_tape_record first, r;
    fmt_tape_at(t, p->index[0], &first);
    int32_t axis = first.axis;
    if (axis < 0 || axis >= first.tensor.ndim) return misfit(t, key, "is cut along an axis that it has not", 0, e);
    fmt_tensor whole = first.tensor;
    uint64_t bytes = 0;
    whole.shape[axis] = 0;
    for (int32_t rank = 0; rank < p->n_ranks; rank++) {
        fmt_tape_at(t, p->index[rank], &r);
        if (!same_shape(&first.tensor, &r.tensor, axis) || r.axis != axis || r.place != FMT_PLACE_SHARDED)
            return misfit(t, key, "its shard does not fit rank 0's", rank, e);
        if (__builtin_add_overflow(whole.shape[axis], r.tensor.shape[axis], &whole.shape[axis]) ||
            !add_u64(bytes, r.raw_bytes, &bytes))
            return misfit(t, key, "the joined value is too large", rank, e);
    }
    storage *s;
    TRY(storage_of(v, &s, e));
    TRY(reserve(&s->value, bytes, fmt_tape_path(t), e));
    int64_t outer = 1;
    for (int32_t d = 0; d < axis; d++) outer *= whole.shape[d];
    size_t row = outer ? (size_t)(bytes / (uint64_t)outer) : 0, at = 0; /* bytes of one outer index, all ranks */
    for (int32_t rank = 0; rank < p->n_ranks; rank++) {
        fmt_tape_at(t, p->index[rank], &r);
        TRY(reserve(&s->part, r.raw_bytes, fmt_tape_path(t), e));
        TRY(fmt_tape_get(t, p->index[rank], s->part.data, r.raw_bytes, e));
        size_t mine = outer ? (size_t)(r.raw_bytes / (uint64_t)outer) : 0;
        for (int64_t o = 0; o < outer; o++)
            memcpy(s->value.data + (size_t)o * row + at, s->part.data + (size_t)o * mine, mine);
        at += mine;
    }
    v->tensor = whole;
    v->tensor.data = s->value.data;
    return ERR_OK;
}

static err_code join_ranks(const fmt_tape *t, const fmt_tape_key *key, const parts *p, cap_value *v, err *e)
{
    fmt_tape_record first;
    fmt_tape_at(t, p->index[p->first], &first);
    if (p->n_ranks == 1 || first.place == FMT_PLACE_REPLICATED) TRY(cap_record_get(t, p->index[p->first], v, e));
    else if (first.place == FMT_PLACE_SHARDED) TRY(join_shards(t, key, p, v, e));
    else TRY(sum_parts(t, key, p, v, e));
    v->place = first.place;
    v->n_ranks = p->n_ranks;
    v->ranks_differ = first.place == FMT_PLACE_REPLICATED ? first_other(t, p) : 0;
    return ERR_OK;
}

/* ---- the inserts of a slot ---- */

/* Moves p to the next insert's records. false: it was the last one. */
static bool next_insert(const fmt_tape *t, const fmt_tape_key *key, parts *p)
{
    if (key->slot == FMT_TAPE_NO_SLOT) return false; /* the draft step runs once */
    int64_t next = fmt_tape_again(t, p->index[p->first]);
    if (next < 0) return false;
    for (int32_t rank = 0; rank < p->n_ranks; rank++) {
        if (!p->there[rank]) continue;
        next = fmt_tape_again(t, p->index[rank]);
        p->there[rank] = next >= 0;
        if (next >= 0) p->index[rank] = (size_t)next;
    }
    return true;
}

/* Puts v's rows behind those of *whole, in s->rows. */
static err_code add_rows(const fmt_tape *t, const fmt_tape_key *key, const cap_value *v, storage *s, fmt_tensor *whole,
                         err *e)
{
    const fmt_tensor *more = &v->tensor;
    if (more->ndim < 1 || (whole->data && !same_shape(whole, more, 0)))
        return misfit(t, key, "the rows of its inserts do not fit each other", 0, e);
    const uint64_t bytes = (uint64_t)fmt_tensor_bytes(more);
    uint64_t had = whole->data ? (uint64_t)fmt_tensor_bytes(whole) : 0, all;
    int64_t rows = whole->data ? whole->shape[0] : 0;
    buffer grown = { 0 };
    if (!add_u64(had, bytes, &all) || __builtin_add_overflow(rows, more->shape[0], &rows))
        return misfit(t, key, "the joined value is too large", 0, e);
    TRY(reserve(&grown, all, fmt_tape_path(t), e));
    if (had) memcpy(grown.data, s->rows.data, (size_t)had);
    memcpy(grown.data + had, more->data, (size_t)bytes);
    free(s->rows.data);
    s->rows = grown;
    *whole = *more;
    whole->shape[0] = rows;
    whole->data = grown.data;
    return ERR_OK;
}

/* A slot that was inserted into several times in a round: the rows of all inserts, and the window after the last. */
static err_code join_inserts(const fmt_tape *t, const fmt_tape_key *key, parts *p, cap_value *v, err *e)
{
    const char *dot = strrchr(key->name, '.');
    const bool window = dot && strcmp(dot, ".window") == 0;
    int32_t differ = v->ranks_differ;
    fmt_tensor whole = { 0 };
    if (!window) TRY(add_rows(t, key, v, v->owned, &whole, e));
    while (next_insert(t, key, p)) {
        v->tensor.data = NULL;
        TRY(join_ranks(t, key, p, v, e));
        if (!differ) differ = v->ranks_differ;
        if (!window) TRY(add_rows(t, key, v, v->owned, &whole, e));
    }
    if (!window) v->tensor = whole;
    v->ranks_differ = differ;
    return ERR_OK;
}

static err_code join(const fmt_tape *t, const fmt_tape_key *key, parts *p, cap_value *v, err *e)
{
    TRY(join_ranks(t, key, p, v, e));
    if (key->slot == FMT_TAPE_NO_SLOT || fmt_tape_again(t, p->index[p->first]) < 0) return ERR_OK;
    err_code rc = join_inserts(t, key, p, v, e);
    if (rc != ERR_OK) v->tensor.data = NULL;
    return rc;
}

err_code cap_joined_get(const fmt_tape *t, const fmt_tape_key *key, cap_value *v, err *e)
{
    parts p;
    v->tensor.data = NULL;
    TRY(find_parts(t, key, &p, e));
    return join(t, key, &p, v, e);
}

err_code cap_rank_get(const fmt_tape *t, const fmt_tape_key *key, cap_value *v, err *e)
{
    v->tensor.data = NULL;
    int64_t at = fmt_tape_find(t, key);
    if (at < 0) return misfit(t, key, "is not recorded", key->rank, e);
    parts p = { .index = { (size_t)at }, .there = { true }, .n_ranks = 1 };
    return join(t, key, &p, v, e);
}
