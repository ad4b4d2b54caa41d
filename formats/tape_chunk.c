#include "formats/tape_chunk.h"

#include <inttypes.h>
#include <msgpack.h>

#include "base/mem.h"
#include "formats/kind.h"

static const uint8_t PRELUDE_MAGIC[8] = { 'S', 'P', 'K', 'T', 'A', 'P', 'E', '\n' };
static const uint8_t TRAILER_MAGIC[8] = { 'S', 'P', 'K', 'T', 'E', 'N', 'D', '\n' };
static const uint8_t CHUNK_MAGIC[4] = { 'S', 'P', 'K', 'C' };

/* Offsets in the chunk header. */
enum { AT_KIND = 4, AT_FLAGS = 5, AT_META = 8, AT_BODY = 12, AT_SEQUENCE = 16, AT_META_CRC = 20, AT_BODY_CRC = 24,
       AT_CRC = 28 };

const char *fmt_chunk_kind_name(uint8_t kind)
{
    switch (kind) {
    case FMT_CHUNK_HEAD: return "head";
    case FMT_CHUNK_DATA: return "data";
    case FMT_CHUNK_INDEX: return "index";
    case FMT_CHUNK_END: return "end";
    default: return "unknown";
    }
}

uint64_t fmt_chunk_end(const fmt_chunk *c)
{
    return c->offset + FMT_CHUNK_HEADER_BYTES + c->meta_bytes + c->body_bytes;
}

err_code fmt_chunk_get(const uint8_t *file, uint64_t file_bytes, uint64_t offset, fmt_chunk *out, err *e)
{
    if (offset > file_bytes || file_bytes - offset < FMT_CHUNK_HEADER_BYTES)
        return err_set(e, ERR_FORMAT, "byte %" PRIu64 ": found %" PRIu64 " bytes, a chunk header needs %d", offset,
                       offset > file_bytes ? 0 : file_bytes - offset, FMT_CHUNK_HEADER_BYTES);
    const uint8_t *h = file + offset;
    if (memcmp(h, CHUNK_MAGIC, sizeof CHUNK_MAGIC) != 0)
        return err_set(e, ERR_FORMAT, "byte %" PRIu64 ": found %02x %02x %02x %02x, wanted a chunk (53 50 4b 43)", offset,
                       h[0], h[1], h[2], h[3]);
    uint32_t crc = fmt_crc32c(0, h, AT_CRC);
    if (crc != get_u32(h + AT_CRC))
        return err_set(e, ERR_FORMAT, "byte %" PRIu64 ": chunk header checksum %08x, wanted %08x", offset, crc,
                       get_u32(h + AT_CRC));
    fmt_chunk c = {
        .offset = offset, .kind = h[AT_KIND], .flags = h[AT_FLAGS], .sequence = get_u32(h + AT_SEQUENCE),
        .meta_bytes = get_u32(h + AT_META), .body_bytes = get_u32(h + AT_BODY),
        .meta_crc = get_u32(h + AT_META_CRC), .body_crc = get_u32(h + AT_BODY_CRC),
    };
    uint64_t whole = (uint64_t)FMT_CHUNK_HEADER_BYTES + c.meta_bytes + c.body_bytes;
    uint64_t limit = c.kind == FMT_CHUNK_HEAD ? FMT_TAPE_HEAD_BYTES : FMT_TAPE_CHUNK_BYTES;
    if (whole > limit)
        return err_set(e, ERR_FORMAT, "%s chunk %u at byte %" PRIu64 ": %" PRIu64 " bytes, at most %" PRIu64,
                       fmt_chunk_kind_name(c.kind), c.sequence, offset, whole, limit);
    if (whole > file_bytes - offset)
        return err_set(e, ERR_FORMAT, "%s chunk %u at byte %" PRIu64 ": cut short, found %" PRIu64 " of %" PRIu64 " bytes",
                       fmt_chunk_kind_name(c.kind), c.sequence, offset, file_bytes - offset, whole);
    c.meta = h + FMT_CHUNK_HEADER_BYTES;
    c.body = c.meta + c.meta_bytes;
    *out = c;
    return ERR_OK;
}

err_code fmt_chunk_check(const fmt_chunk *c, bool *meta_good, err *e)
{
    uint32_t meta_crc = fmt_crc32c(0, c->meta, c->meta_bytes);
    if (meta_good) *meta_good = meta_crc == c->meta_crc;
    if (meta_crc != c->meta_crc)
        return err_set(e, ERR_FORMAT, "%s chunk %u at byte %" PRIu64 ": meta checksum %08x, wanted %08x",
                       fmt_chunk_kind_name(c->kind), c->sequence, c->offset, meta_crc, c->meta_crc);
    uint32_t body_crc = fmt_crc32c(0, c->body, c->body_bytes);
    if (body_crc != c->body_crc)
        return err_set(e, ERR_FORMAT, "%s chunk %u at byte %" PRIu64 ": body checksum %08x, wanted %08x",
                       fmt_chunk_kind_name(c->kind), c->sequence, c->offset, body_crc, c->body_crc);
    return ERR_OK;
}

uint64_t fmt_chunk_resync(const uint8_t *file, uint64_t file_bytes, uint64_t from)
{
    while (from < file_bytes) {
        const uint8_t *hit = memmem(file + from, file_bytes - from, CHUNK_MAGIC, sizeof CHUNK_MAGIC);
        if (!hit) break;
        from = (uint64_t)(hit - file);
        if (file_bytes - from >= FMT_CHUNK_HEADER_BYTES && fmt_crc32c(0, hit, AT_CRC) == get_u32(hit + AT_CRC)) return from;
        from++;
    }
    return file_bytes;
}

void fmt_chunk_put_header(uint8_t header[FMT_CHUNK_HEADER_BYTES], fmt_chunk_kind kind, uint32_t sequence, const void *meta,
                          uint32_t meta_bytes, uint32_t body_bytes, uint32_t body_crc)
{
    memset(header, 0, FMT_CHUNK_HEADER_BYTES);
    memcpy(header, CHUNK_MAGIC, sizeof CHUNK_MAGIC);
    header[AT_KIND] = (uint8_t)kind;
    put_u32(header + AT_META, meta_bytes);
    put_u32(header + AT_BODY, body_bytes);
    put_u32(header + AT_SEQUENCE, sequence);
    put_u32(header + AT_META_CRC, fmt_crc32c(0, meta, meta_bytes));
    put_u32(header + AT_BODY_CRC, body_crc);
    put_u32(header + AT_CRC, fmt_crc32c(0, header, AT_CRC));
}

void fmt_prelude_put(uint8_t out[FMT_PRELUDE_BYTES])
{
    memcpy(out, PRELUDE_MAGIC, sizeof PRELUDE_MAGIC);
    put_u16(out + 8, FMT_TAPE_MAJOR);
    put_u16(out + 10, FMT_TAPE_MINOR);
    put_u32(out + 12, fmt_crc32c(0, out, 12));
}

bool fmt_prelude_is_tape(const uint8_t *file, uint64_t file_bytes)
{
    return file_bytes >= sizeof PRELUDE_MAGIC && memcmp(file, PRELUDE_MAGIC, sizeof PRELUDE_MAGIC) == 0;
}

err_code fmt_prelude_get(const uint8_t *file, uint64_t file_bytes, int *minor, bool *unknown_major, err *e)
{
    *unknown_major = false;
    if (file_bytes < FMT_PRELUDE_BYTES)
        return err_set(e, ERR_FORMAT, "prelude: found %" PRIu64 " bytes, wanted %d", file_bytes, FMT_PRELUDE_BYTES);
    uint32_t crc = fmt_crc32c(0, file, 12);
    if (!fmt_prelude_is_tape(file, file_bytes))
        return err_set(e, ERR_FORMAT, "prelude: byte 0: found %02x %02x %02x %02x (%s), wanted a tape (53 50 4b 54 ...)",
                       file[0], file[1], file[2], file[3], fmt_kind_of_bytes(file, file_bytes));
    if (crc != get_u32(file + 12))
        return err_set(e, ERR_FORMAT, "prelude: checksum %08x, wanted %08x", crc, get_u32(file + 12));
    if (get_u16(file + 8) != FMT_TAPE_MAJOR) {
        *unknown_major = true;
        return err_set(e, ERR_FORMAT, "tape format %d.%d: major version %d is unknown, wanted %d", get_u16(file + 8),
                       get_u16(file + 10), get_u16(file + 8), FMT_TAPE_MAJOR);
    }
    *minor = get_u16(file + 10);
    return ERR_OK;
}

void fmt_trailer_put(uint8_t out[FMT_TRAILER_BYTES], uint64_t end_offset)
{
    memcpy(out, TRAILER_MAGIC, sizeof TRAILER_MAGIC);
    put_u64(out + 8, end_offset);
}

bool fmt_trailer_get(const uint8_t p[FMT_TRAILER_BYTES], uint64_t *end_offset)
{
    *end_offset = get_u64(p + 8);
    return memcmp(p, TRAILER_MAGIC, sizeof TRAILER_MAGIC) == 0;
}

/* ---- msgpack out ---- */

void fmt_buf_add(fmt_buf *b, const void *data, size_t bytes)
{
    if (bytes > b->cap - b->used) b->full = true;
    if (b->full || bytes == 0) return;
    memcpy(b->data + b->used, data, bytes);
    b->used += bytes;
}

static int pack_write(void *ctx, const char *data, size_t bytes)
{
    fmt_buf_add(ctx, data, bytes);
    return 0;
}

/* The overflow is sticky in the buffer, so msgpack-c's own result carries nothing. */
#define PACK(b, call)                               \
    do {                                            \
        msgpack_packer pk;                          \
        msgpack_packer_init(&pk, (b), pack_write);  \
        (void)(call);                               \
    } while (0)

void fmt_pack_map(fmt_buf *b, uint32_t n) { PACK(b, msgpack_pack_map(&pk, n)); }
void fmt_pack_array(fmt_buf *b, uint32_t n) { PACK(b, msgpack_pack_array(&pk, n)); }
void fmt_pack_uint(fmt_buf *b, uint64_t v) { PACK(b, msgpack_pack_uint64(&pk, v)); }
void fmt_pack_int(fmt_buf *b, int64_t v) { PACK(b, msgpack_pack_int64(&pk, v)); }
void fmt_pack_real(fmt_buf *b, double v) { PACK(b, msgpack_pack_double(&pk, v)); }
void fmt_pack_nil(fmt_buf *b) { PACK(b, msgpack_pack_nil(&pk)); }

void fmt_pack_str(fmt_buf *b, const char *s)
{
    size_t n = strlen(s);
    PACK(b, msgpack_pack_str(&pk, n));
    fmt_buf_add(b, s, n);
}

/* ---- msgpack in ---- */

typedef enum item_kind { ITEM_NIL, ITEM_BOOL, ITEM_UINT, ITEM_INT, ITEM_REAL, ITEM_STR, ITEM_BIN, ITEM_ARRAY, ITEM_MAP,
                         ITEM_EXT, ITEM_BAD } item_kind;

typedef struct item {
    item_kind kind;
    uint64_t u;  /* UINT; BOOL; bytes of STR, BIN, EXT; elements of ARRAY; entries of MAP */
    int64_t i;   /* INT: negative */
    double real;
    const uint8_t *bytes;
} item;

fmt_unpack fmt_unpack_of(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    return (fmt_unpack){ .at = p, .end = bytes ? p + bytes : p }; /* data may be NULL when there is none */
}

/* n big-endian bytes, 1, 2, 4 or 8; sets bad when they are not there. */
static uint64_t big(fmt_unpack *u, int n)
{
    if (u->bad || u->end - u->at < n) { u->bad = true; return 0; }
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v = v << 8 | *u->at++;
    return v;
}

static double real_of(uint64_t bits, int n)
{
    if (n == 4) {
        uint32_t b = (uint32_t)bits;
        float f;
        memcpy(&f, &b, sizeof f);
        return (double)f;
    }
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

static int64_t sign_extend(uint64_t v, int n)
{
    int shift = 64 - 8 * n;
    return (int64_t)(v << shift) >> shift;
}

static item signed_item(int64_t v)
{
    if (v >= 0) return (item){ .kind = ITEM_UINT, .u = (uint64_t)v };
    return (item){ .kind = ITEM_INT, .i = v };
}

/* The next item's head; for STR, BIN and EXT the bytes are stepped over, for ARRAY and MAP the elements are next. */
static item next_item(fmt_unpack *u)
{
    item it = { .kind = ITEM_BAD };
    uint8_t c = (uint8_t)big(u, 1);
    if (u->bad) return it;
    if (c < 0x80) it = (item){ .kind = ITEM_UINT, .u = c };
    else if (c < 0x90) it = (item){ .kind = ITEM_MAP, .u = c & 15 };
    else if (c < 0xa0) it = (item){ .kind = ITEM_ARRAY, .u = c & 15 };
    else if (c < 0xc0) it = (item){ .kind = ITEM_STR, .u = c & 31 };
    else if (c >= 0xe0) it = (item){ .kind = ITEM_INT, .i = (int8_t)c };
    else switch (c) {
    case 0xc0: it.kind = ITEM_NIL; break;
    case 0xc2: case 0xc3: it = (item){ .kind = ITEM_BOOL, .u = c & 1 }; break;
    case 0xc4: case 0xc5: case 0xc6: it = (item){ .kind = ITEM_BIN, .u = big(u, 1 << (c - 0xc4)) }; break;
    case 0xc7: case 0xc8: case 0xc9: it = (item){ .kind = ITEM_EXT, .u = big(u, 1 << (c - 0xc7)) + 1 }; break;
    case 0xca: it = (item){ .kind = ITEM_REAL, .real = real_of(big(u, 4), 4) }; break;
    case 0xcb: it = (item){ .kind = ITEM_REAL, .real = real_of(big(u, 8), 8) }; break;
    case 0xcc: case 0xcd: case 0xce: case 0xcf: it = (item){ .kind = ITEM_UINT, .u = big(u, 1 << (c - 0xcc)) }; break;
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: it = signed_item(sign_extend(big(u, 1 << (c - 0xd0)), 1 << (c - 0xd0)));
        break;
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8:
        it = (item){ .kind = ITEM_EXT, .u = (1u << (c - 0xd4)) + 1 };
        break;
    case 0xd9: case 0xda: case 0xdb: it = (item){ .kind = ITEM_STR, .u = big(u, 1 << (c - 0xd9)) }; break;
    case 0xdc: case 0xdd: it = (item){ .kind = ITEM_ARRAY, .u = big(u, 2 << (c - 0xdc)) }; break;
    case 0xde: case 0xdf: it = (item){ .kind = ITEM_MAP, .u = big(u, 2 << (c - 0xde)) }; break;
    default: u->bad = true; break; /* c1: never used */
    }
    /* Every element takes a byte or more, so a count beyond the bytes left is a lie. */
    uint64_t left = (uint64_t)(u->end - u->at);
    bool bytes = it.kind == ITEM_STR || it.kind == ITEM_BIN || it.kind == ITEM_EXT;
    if ((bytes || it.kind == ITEM_ARRAY) && it.u > left) u->bad = true;
    if (it.kind == ITEM_MAP && it.u > left / 2) u->bad = true;
    if (u->bad) return (item){ .kind = ITEM_BAD };
    if (bytes) {
        it.bytes = u->at;
        u->at += it.u;
    }
    return it;
}

static item want(fmt_unpack *u, item_kind kind)
{
    item it = next_item(u);
    if (it.kind != kind) {
        u->bad = true;
        return (item){ .kind = ITEM_BAD };
    }
    return it;
}

uint32_t fmt_unpack_map(fmt_unpack *u) { return (uint32_t)want(u, ITEM_MAP).u; }
uint32_t fmt_unpack_array(fmt_unpack *u) { return (uint32_t)want(u, ITEM_ARRAY).u; }

const char *fmt_unpack_str(fmt_unpack *u, uint32_t *bytes)
{
    item it = want(u, ITEM_STR);
    *bytes = (uint32_t)it.u;
    return (const char *)it.bytes;
}

int64_t fmt_unpack_int(fmt_unpack *u, int64_t lo, int64_t hi)
{
    item it = next_item(u);
    bool fits = it.kind == ITEM_INT || (it.kind == ITEM_UINT && it.u <= INT64_MAX);
    int64_t v = it.kind == ITEM_INT ? it.i : (int64_t)it.u;
    if (!fits || v < lo || v > hi) {
        u->bad = true;
        return 0;
    }
    return v;
}

uint64_t fmt_unpack_u64(fmt_unpack *u) { return want(u, ITEM_UINT).u; }

double fmt_unpack_real(fmt_unpack *u)
{
    item it = next_item(u);
    if (it.kind == ITEM_REAL) return it.real;
    if (it.kind == ITEM_UINT) return (double)it.u;
    if (it.kind == ITEM_INT) return (double)it.i;
    u->bad = true;
    return 0;
}

void fmt_unpack_skip(fmt_unpack *u)
{
    /* A count instead of recursion: nesting costs no stack. It cannot run away, since every turn eats a byte. */
    for (uint64_t todo = 1; todo && !u->bad; todo--) {
        item it = next_item(u);
        if (it.kind == ITEM_ARRAY) todo += it.u;
        if (it.kind == ITEM_MAP) todo += 2 * it.u;
    }
}

const uint8_t *fmt_unpack_span(fmt_unpack *u, size_t *bytes)
{
    const uint8_t *start = u->at;
    fmt_unpack_skip(u);
    *bytes = u->bad ? 0 : (size_t)(u->at - start);
    return u->bad ? NULL : start;
}

bool fmt_unpack_is(const char *s, uint32_t n, const char *text)
{
    return s && strlen(text) == n && memcmp(s, text, n) == 0;
}
