#include "formats/tape_codec.h"

#include <inttypes.h>
#include <lz4frame.h>

#include "base/cpu.h"
#include "formats/number.h"

/* ---- transforms ---- */

static inline void split(const uint8_t *restrict src, uint8_t *restrict dst, size_t n, size_t size)
{
    for (size_t b = 0; b < size; b++)
        for (size_t i = 0; i < n; i++) dst[b * n + i] = src[i * size + b];
}

static inline void split_xor(const uint8_t *restrict src, const uint8_t *restrict base, uint8_t *restrict dst, size_t n,
                             size_t size)
{
    for (size_t b = 0; b < size; b++)
        for (size_t i = 0; i < n; i++) dst[b * n + i] = src[i * size + b] ^ base[i * size + b];
}

static inline void join(const uint8_t *restrict src, uint8_t *restrict dst, size_t n, size_t size)
{
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[i * size + b] = src[b * n + i];
}

static inline void join_xor(const uint8_t *restrict src, uint8_t *restrict dst, size_t n, size_t size)
{
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++) dst[i * size + b] ^= src[b * n + i];
}

/* ---- QDQ ---- */

#define ALWAYS_INLINE static inline __attribute__((always_inline)) /* so that it is built for its caller's machine */

/* Codes and scale of one group, by bits: element = code * 2^(scale - 127) must hold exactly; where it does not, bits are
 * set in bad. The scale is the smallest that keeps the largest element within e4m3's 448, which leaves the smallest
 * elements the most room. false: there is none. Without branches on elements, in 16-bit lanes, so that the compiler makes
 * vectors of it. */
ALWAYS_INLINE bool qdq_group(const uint8_t *restrict src, uint8_t *restrict codes, uint8_t *scale, uint16_t *restrict bad)
{
    uint16_t x[FMT_QDQ_GROUP], top = 0;
    for (int i = 0; i < FMT_QDQ_GROUP; i++) {
        x[i] = get_u16(src + 2 * i);
        int16_t a = (int16_t)(x[i] & 0x7fff);
        top = a > (int16_t)top ? (uint16_t)a : top;
    }
    int s = (top >> 7) - ((top & 0x7f) <= 0x60 ? 8 : 7);
    if (top == 0) s = FMT_E8M0_BIAS;
    if (s < 0 || top >= 0x7f80) return false;
    const int16_t origin = (int16_t)(8 * (s - 7));
    for (int i = 0; i < FMT_QDQ_GROUP; i++) {
        int16_t a = (int16_t)((x[i] & 0x7fff) >> 4);
        int16_t t = (int16_t)(a - origin); /* from 8 on this is the code: exponent field and mantissa */
        /* Below lie the subnormal codes: 2^-7 * (1, 1.25, 1.5, 1.75), 2^-8 * (1, 1.5), 2^-9. */
        int16_t half = (int16_t)(4 + (t >> 1)), quarter = (int16_t)(4 + (t >> 2));
        int16_t code = t >= 8 ? t : t >= 0 ? half : t >= -8 ? quarter : 1;
        int16_t lost = t >= 8 ? 0 : t >= 0 ? (int16_t)(t & 1) : t >= -8 ? (int16_t)(t & 3) : (int16_t)(t + 16);
        code = a == 0 ? 0 : code;
        lost = a == 0 ? 0 : lost;
        bad[i] |= (uint16_t)(lost | (x[i] & 15)); /* 15: more than e4m3's three bits of mantissa */
        codes[i] = (uint8_t)(code | (x[i] >> 8 & 0x80));
    }
    *scale = (uint8_t)s;
    return true;
}

ALWAYS_INLINE bool qdq_put_loop(const uint8_t *src, uint64_t elems, uint8_t *dst)
{
    enum { RUN = 16 }; /* groups between two looks at what was bad */
    for (uint64_t at = 0, n = elems / FMT_QDQ_GROUP; at < n; at += RUN) {
        uint16_t bad[FMT_QDQ_GROUP] = { 0 }, any = 0;
        for (uint64_t g = at; g < n && g < at + RUN; g++)
            if (!qdq_group(src + 2 * FMT_QDQ_GROUP * g, dst + FMT_QDQ_GROUP * g, dst + elems + g, bad)) return false;
        for (int i = 0; i < FMT_QDQ_GROUP; i++) any |= bad[i];
        if (any) return false;
    }
    return true;
}

ALWAYS_INLINE void qdq_get_loop(const uint8_t *restrict src, uint64_t elems, uint8_t *restrict dst)
{
    for (uint64_t g = 0; g < elems / FMT_QDQ_GROUP; g++) {
        const int16_t origin = (int16_t)(8 * (src[elems + g] - 7));
        for (int i = 0; i < FMT_QDQ_GROUP; i++) {
            int16_t byte = src[FMT_QDQ_GROUP * g + (uint64_t)i], c = byte & 0x7f;
            int16_t t = c >= 8 ? c : c >= 4 ? (int16_t)(2 * (c - 4)) : c >= 2 ? (int16_t)(4 * (c - 4)) : -16;
            uint16_t a = c == 0 ? 0 : (uint16_t)((uint16_t)(t + origin) << 4 & 0x7fff);
            put_u16(dst + 2 * (FMT_QDQ_GROUP * g + (uint64_t)i), (uint16_t)(a | (byte & 0x80) << 8));
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static bool qdq_put_avx2(const uint8_t *src, uint64_t elems, uint8_t *dst)
{
    return qdq_put_loop(src, elems, dst);
}

__attribute__((target("avx2"))) static void qdq_get_avx2(const uint8_t *src, uint64_t elems, uint8_t *dst)
{
    qdq_get_loop(src, elems, dst);
}
#endif

static bool qdq_put(const uint8_t *src, uint64_t elems, uint8_t *dst)
{
#if defined(__x86_64__)
    if (cpu_has_avx2()) return qdq_put_avx2(src, elems, dst);
#endif
    return qdq_put_loop(src, elems, dst);
}

static void qdq_get(const uint8_t *src, uint64_t elems, uint8_t *dst)
{
#if defined(__x86_64__)
    if (cpu_has_avx2()) { qdq_get_avx2(src, elems, dst); return; }
#endif
    qdq_get_loop(src, elems, dst);
}

uint32_t fmt_codec_put(fmt_dtype d, const uint8_t *src, uint64_t elems, uint8_t *dst, fmt_transform *used)
{
    uint32_t size = fmt_dtype_bytes(d);
    uint64_t bytes = elems * size;
    if (d == FMT_DTYPE_BF16 && elems && elems % FMT_QDQ_GROUP == 0 && qdq_put(src, elems, dst)) {
        *used = FMT_TRANSFORM_QDQ;
        return (uint32_t)(elems + elems / FMT_QDQ_GROUP);
    }
    if (size == 1 || bytes < 64) { /* planes of a few elements only move bytes around */
        *used = FMT_TRANSFORM_RAW;
        memcpy(dst, src, bytes);
        return (uint32_t)bytes;
    }
    /* Exponents use few of their bits, so bit planes of floats beat byte planes (1.30x against 1.16x over a tape of every
     * value of a run); integers are small numbers, whose upper bytes are zero either way. */
    bool is_float = d == FMT_DTYPE_BF16 || d == FMT_DTYPE_F32 || d == FMT_DTYPE_F16 || d == FMT_DTYPE_F64;
    if (is_float && elems % 8 == 0) {
        *used = FMT_TRANSFORM_BITS;
        fmt_bits_split(src, dst, elems, (int)size);
    } else {
        *used = FMT_TRANSFORM_PLANES;
        FMT_BY_SIZE(size, split(src, dst, elems, SIZE));
    }
    return (uint32_t)bytes;
}

void fmt_codec_put_xor(fmt_dtype d, const uint8_t *src, const uint8_t *base, uint64_t elems, uint8_t *dst)
{
    FMT_BY_SIZE(fmt_dtype_bytes(d), split_xor(src, base, dst, elems, SIZE));
}

err_code fmt_codec_get(const fmt_parts *parts, size_t i, const uint8_t *payload, fmt_base_fn fn, void *ctx, uint8_t *dst,
                       err *e)
{
    const fmt_part *p = &parts->part[i];
    uint32_t size = fmt_dtype_bytes(fmt_content_dtype(&p->record));
    const uint8_t *src = payload ? payload + p->offset : NULL; /* a chunk without a body has none */
    if (p->elems == 0) return ERR_OK;
    switch (p->transform) {
    case FMT_TRANSFORM_RAW:
        memcpy(dst, src, p->elems * size);
        break;
    case FMT_TRANSFORM_PLANES:
        FMT_BY_SIZE(size, join(src, dst, p->elems, SIZE));
        break;
    case FMT_TRANSFORM_BITS:
        fmt_bits_join(src, dst, p->elems, (int)size);
        break;
    case FMT_TRANSFORM_QDQ:
        qdq_get(src, p->elems, dst);
        break;
    case FMT_TRANSFORM_REF:
        return fmt_codec_get(parts, p->base, payload, fn, ctx, dst, e); /* one level: a base is neither REF nor XOR */
    case FMT_TRANSFORM_XOR:
        TRY(fmt_codec_get(parts, p->base, payload, fn, ctx, dst, e));
        FMT_BY_SIZE(size, join_xor(src, dst, p->elems, SIZE));
        break;
    case FMT_TRANSFORM_BASE:
        TRY(fn(ctx, p, dst, e));
        if (p->bytes) FMT_BY_SIZE(size, join_xor(src, dst, p->elems, SIZE));
        break;
    default:
        return err_set(e, ERR_FORMAT, "part %zu: transform %d is of a later version of the format", i, p->transform);
    }
    return ERR_OK;
}

/* Bytes that a transform stores for elems elements; UINT64_MAX when it cannot be used for them. */
static uint64_t stored_bytes(fmt_transform t, fmt_dtype d, uint64_t elems)
{
    switch (t) {
    case FMT_TRANSFORM_RAW: case FMT_TRANSFORM_PLANES: case FMT_TRANSFORM_XOR: case FMT_TRANSFORM_BASE:
        return elems * fmt_dtype_bytes(d);
    case FMT_TRANSFORM_QDQ:
        return d == FMT_DTYPE_BF16 && elems % FMT_QDQ_GROUP == 0 ? elems + elems / FMT_QDQ_GROUP : UINT64_MAX;
    case FMT_TRANSFORM_BITS: return elems % 8 == 0 ? elems * fmt_dtype_bytes(d) : UINT64_MAX;
    case FMT_TRANSFORM_REF: return 0;
    }
    return UINT64_MAX;
}

/* ---- parts ---- */

bool fmt_part_whole(const fmt_part *p)
{
    return p->elems == fmt_content_elems(&p->record);
}

void fmt_part_put(fmt_buf *b, const fmt_part *p, uint32_t name)
{
    const fmt_tape_record *r = &p->record;
    bool slot = r->key.slot != FMT_TAPE_NO_SLOT, rank = r->key.rank != FMT_TAPE_NO_RANK, stats = r->tier != FMT_TIER_HASH;
    bool based = p->transform == FMT_TRANSFORM_REF || p->transform == FMT_TRANSFORM_XOR, cut = !fmt_part_whole(p);
    bool other_base = p->transform == FMT_TRANSFORM_BASE && p->base_hash != r->hash;
    fmt_pack_map(b, 6u + slot + rank + (r->place != 0) + (r->axis != 0) + (r->n_ranks != 1) + (r->tier != 0) + stats +
                        (r->n_digest_rows != 0) + 2u * cut + (p->transform != 0) + 2u * (p->bytes != 0) + based +
                        other_base);
    fmt_pack_str(b, "i"); fmt_pack_uint(b, p->number);
    fmt_pack_str(b, "n"); fmt_pack_uint(b, name);
    fmt_pack_str(b, "r"); fmt_pack_int(b, r->key.round);
    if (slot) { fmt_pack_str(b, "s"); fmt_pack_int(b, r->key.slot); }
    if (rank) { fmt_pack_str(b, "k"); fmt_pack_int(b, r->key.rank); }
    fmt_pack_str(b, "d"); fmt_pack_str(b, fmt_dtype_name(r->tensor.dtype));
    fmt_pack_str(b, "h"); fmt_pack_shape(b, &r->tensor);
    if (r->place) { fmt_pack_str(b, "p"); fmt_pack_uint(b, r->place); }
    if (r->axis) { fmt_pack_str(b, "a"); fmt_pack_int(b, r->axis); }
    if (r->n_ranks != 1) { fmt_pack_str(b, "w"); fmt_pack_int(b, r->n_ranks); }
    if (r->tier) { fmt_pack_str(b, "t"); fmt_pack_uint(b, r->tier); }
    fmt_pack_str(b, r->has_digest ? "g" : "x"); fmt_pack_uint(b, r->has_digest ? r->digest : r->hash);
    if (r->n_digest_rows) { fmt_pack_str(b, "G"); fmt_pack_uint(b, r->n_digest_rows); }
    if (stats) {
        fmt_pack_str(b, "m");
        fmt_pack_array(b, 7);
        fmt_pack_real(b, r->stats.min);
        fmt_pack_real(b, r->stats.max);
        fmt_pack_real(b, r->stats.rms);
        fmt_pack_uint(b, r->stats.n_nan);
        fmt_pack_uint(b, r->stats.n_inf);
        fmt_pack_uint(b, r->stats.n_zero);
        fmt_pack_uint(b, r->stats.n_denormal);
    }
    if (cut) {
        fmt_pack_str(b, "f"); fmt_pack_uint(b, p->first);
        fmt_pack_str(b, "e"); fmt_pack_uint(b, p->elems);
    }
    if (p->transform) { fmt_pack_str(b, "c"); fmt_pack_uint(b, p->transform); }
    if (p->bytes) {
        fmt_pack_str(b, "o"); fmt_pack_uint(b, p->offset);
        fmt_pack_str(b, "b"); fmt_pack_uint(b, p->bytes);
    }
    if (other_base) { fmt_pack_str(b, "y"); fmt_pack_uint(b, p->base_hash); }
    if (based) { fmt_pack_str(b, "u"); fmt_pack_uint(b, p->base); }
}

static void unpack_stats(fmt_unpack *u, fmt_stats *s)
{
    if (fmt_unpack_array(u) != 7) u->bad = true;
    s->min = fmt_unpack_real(u);
    s->max = fmt_unpack_real(u);
    s->rms = fmt_unpack_real(u);
    s->n_nan = fmt_unpack_u64(u);
    s->n_inf = fmt_unpack_u64(u);
    s->n_zero = fmt_unpack_u64(u);
    s->n_denormal = fmt_unpack_u64(u);
}

typedef struct name_view { const char *s; uint32_t bytes; } name_view;

/* Reads one part map as it stands; rules that join fields are checked by part_good. */
static void unpack_part(fmt_unpack *u, const name_view *names, uint32_t n_names, fmt_part *p)
{
    fmt_type type = { .tensor = { .dtype = FMT_DTYPE_COUNT } };
    bool named = false, shaped = false, ranged = false, numbered = false, has_base_hash = false;
    *p = (fmt_part){ .record.n_ranks = 1 };
    fmt_tape_record *r = &p->record;
    r->key = (fmt_tape_key){ .round = -1, .slot = FMT_TAPE_NO_SLOT, .rank = FMT_TAPE_NO_RANK };
    for (uint32_t n = fmt_unpack_map(u); n && !u->bad; n--) {
        uint32_t bytes;
        const char *key = fmt_unpack_str(u, &bytes);
        switch (key && bytes == 1 ? key[0] : 0) {
        case 'i': p->number = (uint32_t)fmt_unpack_int(u, 0, UINT32_MAX - 1); numbered = true; break;
        case 'n': {
            uint32_t i = (uint32_t)fmt_unpack_int(u, 0, (int64_t)n_names - 1);
            if (u->bad) break;
            p->name = names[i].s;
            p->name_bytes = names[i].bytes;
            named = true;
            break;
        }
        case 'r': r->key.round = (int32_t)fmt_unpack_int(u, 0, INT32_MAX); break;
        case 's': r->key.slot = (int32_t)fmt_unpack_int(u, 0, INT32_MAX); break;
        case 'k': r->key.rank = (int32_t)fmt_unpack_int(u, 0, INT32_MAX); break;
        case 'd': type.tensor.dtype = fmt_unpack_dtype(u); break;
        case 'h': {
            /* The size check waits for the dtype; an element takes 8 bytes at most. */
            fmt_dtype d = type.tensor.dtype;
            if (d == FMT_DTYPE_COUNT) type.tensor.dtype = FMT_DTYPE_U64;
            fmt_unpack_shape(u, &type);
            type.tensor.dtype = d;
            shaped = true;
            break;
        }
        case 'p': r->place = (fmt_place)fmt_unpack_int(u, 0, FMT_PLACE_PARTIAL); break;
        case 'a': r->axis = (int32_t)fmt_unpack_int(u, 0, FMT_DIMS_MAX - 1); break;
        case 'w': r->n_ranks = (int32_t)fmt_unpack_int(u, 1, INT32_MAX); break;
        case 't': r->tier = (fmt_tier)fmt_unpack_int(u, 0, FMT_TIER_HASH); break;
        case 'x': r->hash = fmt_unpack_u64(u); break;
        case 'g': r->digest = fmt_unpack_u64(u); r->has_digest = true; break;
        case 'G': r->n_digest_rows = (uint64_t)fmt_unpack_int(u, 1, FMT_DIGEST_ROWS_MAX); break;
        case 'm': unpack_stats(u, &r->stats); break;
        case 'f': p->first = fmt_unpack_u64(u); break;
        case 'e': p->elems = fmt_unpack_u64(u); ranged = true; break;
        case 'c': p->transform = (fmt_transform)fmt_unpack_int(u, 0, UINT8_MAX); break;
        case 'o': p->offset = (uint32_t)fmt_unpack_int(u, 0, FMT_TAPE_CHUNK_BYTES); break;
        case 'b': p->bytes = (uint32_t)fmt_unpack_int(u, 0, FMT_TAPE_CHUNK_BYTES); break;
        case 'y': p->base_hash = fmt_unpack_u64(u); has_base_hash = true; break;
        case 'u': p->base = (uint32_t)fmt_unpack_int(u, 0, UINT32_MAX); break;
        default: fmt_unpack_skip(u);
        }
    }
    if (!named || !shaped || !numbered || r->key.round < 0 || type.tensor.dtype == FMT_DTYPE_COUNT) u->bad = true;
    if (u->bad) return;
    r->tensor = type.tensor;
    r->raw_bytes = r->tier == FMT_TIER_TENSOR ? fmt_tensor_bytes(&r->tensor) : 0;
    if (!ranged) p->elems = fmt_content_elems(r);
    if (!has_base_hash) p->base_hash = r->hash;
}

/* A digest stands in place of a tensor, and row digests in place of all its rows. */
static bool digest_good(const fmt_tape_record *r)
{
    if (r->has_digest && (r->tier == FMT_TIER_TENSOR || r->hash)) return false;
    return r->n_digest_rows == 0 || (r->has_digest && r->n_digest_rows == fmt_tensor_rows(&r->tensor));
}

static bool part_good(const fmt_part *parts, size_t i)
{
    const fmt_part *p = &parts[i];
    fmt_dtype dtype = fmt_content_dtype(&p->record);
    uint64_t size = fmt_dtype_bytes(dtype), total = fmt_content_elems(&p->record);
    if (!digest_good(&p->record)) return false;
    if (p->first > total || p->elems > total - p->first || p->elems * size > FMT_TAPE_CHUNK_BYTES) return false;
    if (p->elems == 0 && total) return false;
    if (p->transform > FMT_TRANSFORM_BASE) return true; /* nothing is known of it: the part is not read */
    if (p->transform == FMT_TRANSFORM_BASE && p->record.tier != FMT_TIER_TENSOR) return false;
    bool same = p->transform == FMT_TRANSFORM_BASE && p->bytes == 0;
    if (!same && p->bytes != stored_bytes(p->transform, dtype, p->elems)) return false;
    if (p->transform != FMT_TRANSFORM_REF && p->transform != FMT_TRANSFORM_XOR) return true;
    if (p->base >= i) return false;
    const fmt_part *base = &parts[p->base];
    return base->transform != FMT_TRANSFORM_REF && base->transform != FMT_TRANSFORM_XOR &&
           base->elems * fmt_dtype_bytes(fmt_content_dtype(&base->record)) == p->elems * size;
}

err_code fmt_parts_get(const fmt_chunk *c, fmt_parts *out, err *e)
{
    fmt_unpack u = fmt_unpack_of(c->meta, c->meta_bytes), names_at = fmt_unpack_of(NULL, 0), parts_at = names_at;
    *out = (fmt_parts){ .events = names_at };
    for (uint32_t n = fmt_unpack_map(&u); n && !u.bad; n--) {
        uint32_t bytes;
        const char *key = fmt_unpack_str(&u, &bytes);
        fmt_unpack here = u;
        fmt_unpack_skip(&u);
        if (fmt_unpack_is(key, bytes, "names")) names_at = here;
        else if (fmt_unpack_is(key, bytes, "parts")) parts_at = here;
        else if (fmt_unpack_is(key, bytes, "events")) out->events = here;
    }
    uint32_t n_names = names_at.at ? fmt_unpack_array(&names_at) : 0, n_parts = parts_at.at ? fmt_unpack_array(&parts_at)
        : 0;
    if (out->events.at) out->n_events = fmt_unpack_array(&out->events);
    name_view *names = mem_alloc(n_names, sizeof *names);
    out->part = mem_alloc(n_parts, sizeof *out->part);
    if (!names || !out->part) {
        free(names);
        fmt_parts_fini(out);
        return err_set(e, ERR_NOMEM, "data chunk %u: no memory for %u parts", c->sequence, n_parts);
    }
    bool good = !u.bad && !out->events.bad;
    for (uint32_t i = 0; i < n_names && good; i++) {
        names[i].s = fmt_unpack_str(&names_at, &names[i].bytes);
        good = names[i].s && names[i].bytes && names[i].bytes <= FMT_TAPE_NAME_BYTES &&
               !memchr(names[i].s, 0, names[i].bytes);
    }
    for (; out->n < n_parts && good; out->n++) {
        unpack_part(&parts_at, names, n_names, &out->part[out->n]);
        good = !parts_at.bad && part_good(out->part, out->n);
    }
    free(names);
    if (good) return ERR_OK;
    uint32_t at = (uint32_t)out->n;
    fmt_parts_fini(out);
    return err_set(e, ERR_FORMAT, "data chunk %u at byte %" PRIu64 ": its meta breaks TAPE.md's rules at part %u",
                   c->sequence,
                   c->offset, at ? at - 1 : 0);
}

void fmt_parts_fini(fmt_parts *p)
{
    free(p->part);
    *p = (fmt_parts){ 0 };
}

/* ---- payload ---- */

err_code fmt_payload_put(const uint8_t *payload, size_t bytes, uint8_t *dst, size_t *dst_bytes, err *e)
{
    *dst_bytes = 0;
    if (bytes == 0) return ERR_OK;
    /* One block: LZ4 stores it as it is when it would grow. No checksum: the chunk has one. */
    LZ4F_preferences_t p = { .frameInfo = { .blockSizeID = LZ4F_max1MB, .blockMode = LZ4F_blockIndependent,
                                            .contentSize = bytes }, .autoFlush = 1 };
    size_t n = LZ4F_compressFrame(dst, LZ4F_compressFrameBound(bytes, &p), payload, bytes, &p);
    if (LZ4F_isError(n)) return err_set(e, ERR_SYSTEM, "LZ4 of %zu bytes: %s", bytes, LZ4F_getErrorName(n));
    *dst_bytes = n;
    return ERR_OK;
}

static err_code lz4_error(const fmt_chunk *c, const char *what, err *e)
{
    return err_set(e, ERR_FORMAT, "data chunk %u at byte %" PRIu64 ": LZ4 frame: %s", c->sequence, c->offset, what);
}

/* The frame at the body's start must be the whole body and hold at most a chunk. */
static err_code unframe(const fmt_chunk *c, LZ4F_dctx *ctx, uint8_t **payload, size_t *cap, size_t *bytes, err *e)
{
    LZ4F_frameInfo_t info = { 0 };
    size_t used = c->body_bytes, at = 0;
    size_t rc = LZ4F_getFrameInfo(ctx, &info, c->body, &used);
    if (LZ4F_isError(rc)) return lz4_error(c, LZ4F_getErrorName(rc), e);
    if (info.contentSize == 0 || info.contentSize > FMT_TAPE_CHUNK_BYTES)
        return lz4_error(c, "content size must be given, 1 byte to 1 MiB", e);
    size_t wrote = (size_t)info.contentSize;
    if (wrote / 255 > c->body_bytes) return lz4_error(c, "claims more than LZ4 can hold in its body", e);
    /* With room for a whole block of the frame LZ4 decodes in place; with less it goes through a buffer of its own. */
    if (!mem_grow((void **)payload, cap, wrote > 1 << 16 ? FMT_TAPE_CHUNK_BYTES : wrote, 1))
        return err_set(e, ERR_NOMEM, "data chunk %u: no memory for %zu bytes", c->sequence, wrote);
    at = used;
    used = c->body_bytes - at;
    wrote = *cap;
    rc = LZ4F_decompress(ctx, *payload, &wrote, c->body + at, &used, NULL);
    if (LZ4F_isError(rc)) return lz4_error(c, LZ4F_getErrorName(rc), e);
    if (rc != 0 || at + used != c->body_bytes || wrote != info.contentSize)
        return lz4_error(c, "does not fill its body and its content size", e);
    *bytes = wrote;
    return ERR_OK;
}

err_code fmt_payload_get(const fmt_chunk *c, const fmt_parts *parts, uint8_t **payload, size_t *cap, err *e)
{
    size_t bytes = 0;
    if (c->body_bytes) {
        LZ4F_dctx *ctx = NULL;
        if (LZ4F_isError(LZ4F_createDecompressionContext(&ctx, LZ4F_VERSION)))
            return err_set(e, ERR_NOMEM, "data chunk %u: no memory for LZ4", c->sequence);
        err_code rc = unframe(c, ctx, payload, cap, &bytes, e);
        LZ4F_freeDecompressionContext(ctx);
        TRY(rc);
    }
    for (size_t i = 0; i < parts->n; i++)
        if (parts->part[i].bytes > bytes || parts->part[i].offset > bytes - parts->part[i].bytes)
            return err_set(e, ERR_FORMAT,
                           "data chunk %u at byte %" PRIu64 ": part %zu lies outside the payload of %zu bytes",
                           c->sequence, c->offset, i, bytes);
    return ERR_OK;
}
