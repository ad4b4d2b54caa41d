/* Values: chunks checked and decoded once and shared between threads, parts put together. */
#include <inttypes.h>

#include "formats/tape_reader.h"

static err_code load_slot(const fmt_tape *t, fmt_slot *s, err *e)
{
    fmt_parts_fini(&s->parts);
    TRY(fmt_chunk_get(t->map, t->map_bytes, s->offset, &s->chunk, e));
    if (s->chunk.kind != FMT_CHUNK_DATA) return ERR_OK; /* an index page among the data: stepped over */
    TRY(fmt_chunk_check(&s->chunk, NULL, e));
    TRY(fmt_parts_get(&s->chunk, &s->parts, e));
    return fmt_payload_get(&s->chunk, &s->parts, &s->payload, &s->payload_cap, e);
}

/* The decoded chunk at offset, shared between threads until release. */
static err_code acquire(fmt_tape *t, uint64_t offset, fmt_slot **out, err *e)
{
    pthread_mutex_lock(&t->lock);
    for (;;) {
        fmt_slot *best = NULL, *have = NULL;
        for (int i = 0; i < FMT_SLOTS; i++) {
            fmt_slot *s = &t->slots[i];
            if (s->state != FMT_SLOT_EMPTY && s->offset == offset) have = s;
            else if (s->users == 0 && s->state != FMT_SLOT_LOADING && (!best || s->used_at < best->used_at)) best = s;
        }
        fmt_slot *s = have ? have : best;
        if (!s || s->state == FMT_SLOT_LOADING) { /* all are in use, or another thread is at it */
            pthread_cond_wait(&t->change, &t->lock);
            continue;
        }
        s->used_at = ++t->tick;
        s->users++;
        *out = s;
        if (have) break;
        s->state = FMT_SLOT_LOADING;
        s->offset = offset;
        pthread_mutex_unlock(&t->lock);
        err_code rc = load_slot(t, s, e);
        pthread_mutex_lock(&t->lock);
        s->state = rc == ERR_OK ? FMT_SLOT_READY : FMT_SLOT_EMPTY;
        if (rc != ERR_OK) s->users--;
        pthread_cond_broadcast(&t->change);
        pthread_mutex_unlock(&t->lock);
        return rc;
    }
    pthread_mutex_unlock(&t->lock);
    return ERR_OK;
}

static void release(fmt_tape *t, fmt_slot *s)
{
    pthread_mutex_lock(&t->lock);
    s->users--;
    pthread_cond_broadcast(&t->change);
    pthread_mutex_unlock(&t->lock);
}

static bool part_of(const fmt_part *p, const fmt_tape_record *r)
{
    return p->record.key.round == r->key.round && p->record.key.slot == r->key.slot && p->record.key.rank == r->key.rank &&
           fmt_unpack_is(p->name, p->name_bytes, r->key.name) && p->record.raw_bytes == r->raw_bytes &&
           p->record.tensor.dtype == r->tensor.dtype && p->record.tier == r->tier && p->record.hash == r->hash &&
           p->record.digest == r->digest && p->record.n_digest_rows == r->n_digest_rows;
}

/* Decodes the parts of the record that lie in the chunk of s, the first of them at number from. */
static err_code get_from_chunk(const fmt_slot *s, const fmt_row *row, size_t from, fmt_base_value *base, uint8_t *dst,
                               uint64_t *done, err *e)
{
    const fmt_tape_record *r = &row->record;
    uint64_t size = fmt_dtype_bytes(fmt_content_dtype(r)), elems = fmt_content_elems(r);
    for (size_t i = from; i < s->parts.n; i++) {
        const fmt_part *p = &s->parts.part[i];
        if (p->number != row->number) continue;
        if (!part_of(p, r) || p->first != *done)
            return err_set(e, ERR_FORMAT, "chunk at byte %" PRIu64 ": part %zu is not what the index says", s->offset, i);
        TRY(fmt_codec_get(&s->parts, i, s->payload, fmt_base_get, base, dst + *done * size, e));
        *done += p->elems;
        if (*done == elems) break;
    }
    return ERR_OK;
}

static err_code get_parts(fmt_tape *t, const fmt_row *row, fmt_base_value *base, uint8_t *dst, err *e)
{
    const fmt_tape_record *r = &row->record;
    uint64_t offset = r->first_chunk_offset, elems = fmt_content_elems(r), done = 0;
    for (bool first = true; first || done < elems; first = false) {
        fmt_slot *s;
        TRY(acquire(t, offset, &s, e));
        err_code rc = ERR_OK;
        if (s->chunk.kind == FMT_CHUNK_END || (first && (row->part >= s->parts.n ||
                                                         s->parts.part[row->part].number != row->number)))
            rc = err_set(e, ERR_FORMAT, "chunk at byte %" PRIu64 ": found no part of it from element %" PRIu64, offset,
                         done);
        else rc = get_from_chunk(s, row, first ? row->part : 0, base, dst, &done, e);
        offset = fmt_chunk_end(&s->chunk);
        release(t, s);
        TRY(rc);
    }
    /* The chunks' checksums cover these bytes; that a part is what its hash says is for doctor and recover to ask. */
    if (t->mode != FMT_OPEN_SURVEY || r->tier != FMT_TIER_TENSOR) return ERR_OK;
    uint64_t hash = fmt_hash64(dst, r->raw_bytes);
    if (hash != r->hash)
        return err_set(e, ERR_FORMAT, "chunk at byte %" PRIu64 ": value hash %016" PRIx64 ", wanted %016" PRIx64,
                       r->first_chunk_offset, hash, r->hash);
    return ERR_OK;
}

static err_code get_content(const fmt_tape *t, const fmt_row *row, void *dst, uint64_t dst_bytes, err *e)
{
    const fmt_tape_record *r = &row->record;
    uint64_t bytes = fmt_content_elems(r) * fmt_dtype_bytes(fmt_content_dtype(r));
    char key[FMT_TAPE_NAME_BYTES + 48];
    err why = { 0 };
    fmt_tape_key_text(&r->key, key, sizeof key);
    if (dst_bytes < bytes)
        return err_set(e, ERR_ARG, "%s: record %u (%s): room for %" PRIu64 " bytes, wanted %" PRIu64, t->path, row->number,
                       key, dst_bytes, bytes);
    fmt_base_value base = { .tape = t, .record = -1 };
    err_code rc = get_parts((fmt_tape *)t, row, &base, dst, &why);
    free(base.data);
    return rc == ERR_OK ? ERR_OK : err_set(e, rc, "%s: record %u (%s): %s", t->path, row->number, key, why.msg);
}

err_code fmt_tape_get(const fmt_tape *t, size_t i, void *dst, uint64_t dst_bytes, err *e)
{
    fmt_row row;
    char key[FMT_TAPE_NAME_BYTES + 48];
    fmt_index_at(&t->index, i, &row);
    if (row.record.tier != FMT_TIER_TENSOR) {
        fmt_tape_key_text(&row.record.key, key, sizeof key);
        return err_set(e, ERR_INPUT, "%s: record %u (%s): only its %s was recorded, wanted the tensor", t->path, row.number,
                       key, row.record.tier == FMT_TIER_STATS ? "statistics" : row.record.has_digest ? "digest" : "hash");
    }
    return get_content(t, &row, dst, dst_bytes, e);
}

err_code fmt_tape_digest_rows(const fmt_tape *t, size_t i, uint64_t *row_digest, uint64_t n, err *e)
{
    fmt_row row;
    char key[FMT_TAPE_NAME_BYTES + 48];
    fmt_index_at(&t->index, i, &row);
    if (row.record.n_digest_rows == 0)
        return err_set(e, ERR_INPUT, "%s: record %u (%s): no digests of its rows were recorded", t->path, row.number,
                       fmt_tape_key_text(&row.record.key, key, sizeof key));
    return get_content(t, &row, row_digest, n * sizeof *row_digest, e);
}
