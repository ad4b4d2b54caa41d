#include "formats/tape_batch.h"

#include "base/mem.h"

enum {
    TABLE_SLOTS = 2 * FMT_CHUNK_PARTS,
    MAP_BYTES = 64, /* keys and array headers around a data chunk's names, parts and events */
};

/* ---- room ---- */

void fmt_batch_reset(fmt_batch *b, uint64_t serial)
{
    b->serial = serial;
    b->payload_bytes = 0;
    b->names.used = b->parts.used = b->events.used = 0;
    b->n_parts = b->n_events = b->n_rows = 0;
    fmt_names_clear(&b->name_set);
    memset(b->table, 0, TABLE_SLOTS * sizeof *b->table);
}

bool fmt_buf_init(fmt_buf *b, size_t cap)
{
    *b = (fmt_buf){ .data = malloc(cap), .cap = cap };
    return b->data;
}

bool fmt_batch_init(fmt_batch *b)
{
    b->payload = malloc(FMT_TAPE_CHUNK_BYTES);
    b->body = malloc(FMT_TAPE_CHUNK_BYTES + FMT_FRAME_EXTRA_BYTES);
    b->stored = mem_alloc(FMT_CHUNK_PARTS, sizeof *b->stored);
    b->table = mem_alloc(TABLE_SLOTS, sizeof *b->table);
    b->rows = mem_alloc(FMT_CHUNK_PARTS, sizeof *b->rows);
    return fmt_buf_init(&b->names, FMT_META_BYTES) && fmt_buf_init(&b->parts, FMT_META_BYTES) &&
           fmt_buf_init(&b->events, FMT_META_BYTES) && b->payload && b->body && b->stored && b->table && b->rows;
}

void fmt_batch_fini(fmt_batch *b)
{
    free(b->payload);
    free(b->body);
    free(b->names.data);
    free(b->parts.data);
    free(b->events.data);
    free(b->stored);
    free(b->table);
    free(b->rows);
    fmt_names_fini(&b->name_set);
}

size_t fmt_batch_room(const fmt_batch *b)
{
    size_t used = FMT_CHUNK_HEADER_BYTES + MAP_BYTES + b->names.used + b->parts.used + b->events.used + b->payload_bytes +
                  FMT_FRAME_EXTRA_BYTES;
    return used < FMT_TAPE_CHUNK_BYTES ? FMT_TAPE_CHUNK_BYTES - used : 0;
}

bool fmt_batch_name(fmt_batch *b, const char *name, uint32_t *out)
{
    size_t had = b->name_set.n;
    if (!fmt_names_add(&b->name_set, name, strlen(name), out)) return false;
    if (b->name_set.n > had) fmt_pack_str(&b->names, name);
    return true;
}

/* ---- parts ---- */

/* Fewer than half of the bytes differ: what differs is then few enough for LZ4 to skip the zeros of the XOR. */
static bool nearly_equal(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    size_t same = 0;
    for (size_t at = 0; at < bytes; at += UINT8_MAX) { /* counters of a byte, so that vectors hold many */
        size_t n = bytes - at < UINT8_MAX ? bytes - at : UINT8_MAX;
        uint8_t count = 0;
        for (size_t i = 0; i < n; i++) count += a[at + i] == b[at + i];
        same += count;
    }
    return 2 * same > bytes;
}

/* What is the same for equal contents. */
static uint64_t identity(const fmt_tape_record *r) { return r->has_digest ? r->digest : r->hash; }

static uint16_t *find_stored(fmt_batch *b, const fmt_part *p)
{
    size_t at = (identity(&p->record) ^ p->first) % TABLE_SLOTS;
    for (; b->table[at]; at = (at + 1) % TABLE_SLOTS) {
        const fmt_stored *s = &b->stored[b->table[at] - 1];
        if (s->hash == identity(&p->record) && s->first == p->first && s->elems == p->elems &&
            s->dtype == fmt_content_dtype(&p->record))
            break;
    }
    return &b->table[at];
}

/* Stores the raw bytes of p in the batch through the first transform that fits. on: the base's bytes of the same run. */
static void encode(fmt_batch *b, fmt_part *p, const uint8_t *raw, const fmt_based *on, const fmt_sibling *near)
{
    uint8_t *dst = b->payload + b->payload_bytes;
    p->offset = (uint32_t)b->payload_bytes;
    fmt_dtype dtype = fmt_content_dtype(&p->record);
    size_t raw_bytes = p->elems * fmt_dtype_bytes(dtype);
    if (on->raw && memcmp(raw, on->raw, raw_bytes) == 0) {
        p->transform = FMT_TRANSFORM_BASE;
        p->base_hash = on->hash;
        p->bytes = p->offset = 0;
    } else if (on->raw && nearly_equal(raw, on->raw, raw_bytes)) {
        fmt_codec_put_xor(dtype, raw, on->raw, p->elems, dst);
        p->transform = FMT_TRANSFORM_BASE;
        p->base_hash = on->hash;
        p->bytes = (uint32_t)raw_bytes;
    } else if (near && nearly_equal(raw, near->raw, raw_bytes)) {
        fmt_codec_put_xor(dtype, raw, near->raw, p->elems, dst);
        p->transform = FMT_TRANSFORM_XOR;
        p->bytes = (uint32_t)raw_bytes;
        p->base = near->part;
    } else {
        bool tensor = p->record.tier == FMT_TIER_TENSOR; /* digests are noise: as they are */
        p->bytes = fmt_codec_put(tensor ? dtype : FMT_DTYPE_U8, raw, tensor ? p->elems : raw_bytes, dst, &p->transform);
        uint16_t *slot = find_stored(b, p);
        if (*slot) { /* the same hash: compare what is stored, which a transform makes only one way */
            const fmt_stored *s = &b->stored[*slot - 1];
            if (s->transform == p->transform && s->bytes == p->bytes && memcmp(b->payload + s->offset, dst,
                                                                               s->bytes) == 0) {
                p->transform = FMT_TRANSFORM_REF;
                p->base = *slot - 1u;
                p->bytes = p->offset = 0;
            }
        } else {
            *slot = (uint16_t)(b->n_parts + 1);
        }
    }
    b->payload_bytes += p->bytes;
}

void fmt_batch_part(fmt_batch *b, fmt_part *p, uint32_t name, const uint8_t *raw, const fmt_based *on, bool refer,
                    fmt_sibling *where)
{
    if (refer) {
        p->transform = FMT_TRANSFORM_REF;
        p->base = where->part;
    } else if (raw) {
        encode(b, p, raw, on, where->raw && where->serial == b->serial ? where : NULL);
        if (!where->raw || where->serial != b->serial)
            *where = (fmt_sibling){ .serial = b->serial, .raw = raw,
                                    .part = p->transform == FMT_TRANSFORM_REF ? p->base : b->n_parts };
    }
    b->stored[b->n_parts] = (fmt_stored){ identity(&p->record), p->first, p->elems, fmt_content_dtype(&p->record),
                                          p->transform, p->offset, p->bytes };
    fmt_part_put(&b->parts, p, name);
    CHECK(!b->parts.full && !b->names.full);
    b->n_parts++;
}

void fmt_batch_row(fmt_batch *b, const fmt_row *row, const char *name)
{
    fmt_row *r = &b->rows[b->n_rows++];
    *r = *row;
    /* The caller's name may be gone when the batch is written; the batch's own copy is not. */
    r->record.key.name = b->name_set.text[fmt_names_find(&b->name_set, name, strlen(name))];
}
