/* What a data chunk holds: a payload (one LZ4 frame when stored), and parts that say what lies where in it.
 *
 * Internal to formats/. A part is a run of elements of one record, stored through a transform that is exact to the bit.
 * Parts refer only to their own chunk. Field tables: TAPE.md. */
#ifndef FORMATS_TAPE_CODEC_H
#define FORMATS_TAPE_CODEC_H

#include "formats/tape_index.h"

typedef enum fmt_transform {
    FMT_TRANSFORM_RAW = 0,    /* the bytes */
    FMT_TRANSFORM_PLANES = 1, /* byte 0 of every element, then byte 1 of every element, ... */
    FMT_TRANSFORM_QDQ = 2,    /* BF16 only: an e4m3 code per element, then one E8M0 byte per 32 elements */
    FMT_TRANSFORM_REF = 3,    /* nothing stored: the bytes of an earlier part of the chunk */
    FMT_TRANSFORM_XOR = 4,    /* planes of the XOR with an earlier part of the chunk */
    FMT_TRANSFORM_BITS = 5,   /* bit 0 of byte 0 of every element, 8 elements a byte, then bit 1, ...; elements % 8 == 0 */
    FMT_TRANSFORM_BASE = 6,   /* planes of the XOR with the base tape's value; nothing where they are equal */
} fmt_transform;

enum {
    FMT_PART_BYTES = 480 << 10,        /* longest run of raw bytes a writer makes one part: two fit in a chunk */
    FMT_PART_META_BYTES = 640,         /* a part's map and its name, at most */
    FMT_CHUNK_PARTS = 4096,            /* parts a writer puts in one chunk */
    FMT_FRAME_EXTRA_BYTES = 64,        /* an LZ4 frame is at most this much longer than what it holds */
};

/* As many row digests as fmt_type_bytes allows bytes. */
#define FMT_DIGEST_ROWS_MAX (1ll << 45)

/* One run of elements of a record. */
typedef struct fmt_part {
    fmt_tape_record record; /* key.name is NULL: the name below is not terminated */
    const char *name;       /* in the chunk's meta */
    uint32_t name_bytes;
    uint32_t number;        /* of the record */
    uint64_t first, elems;  /* which elements of the tensor, or row digests; 0, 0 when there are neither */
    fmt_transform transform;
    uint32_t offset, bytes; /* in the decoded payload */
    uint32_t base;          /* REF, XOR: number of the part referred to; itself neither */
    uint64_t base_hash;     /* BASE: hash of the base tape's record */
} fmt_part;

/* The parts of a data chunk, checked: ranges lie in their records, bases come first and match, no part's raw bytes
 * exceed FMT_TAPE_CHUNK_BYTES. */
typedef struct fmt_parts {
    fmt_part *part;
    size_t n;
    fmt_unpack events; /* packed [parts before it, round, event], n_events of them */
    uint32_t n_events;
} fmt_parts;

/* Reads the meta of a data chunk whose meta checksum is right. c's bytes must outlive *out. ERR_FORMAT, ERR_NOMEM. */
MUST_USE err_code fmt_parts_get(const fmt_chunk *c, fmt_parts *out, err *e);
void fmt_parts_fini(fmt_parts *p);
/* Packs one part; name: number of its name in the chunk's names. */
void fmt_part_put(fmt_buf *b, const fmt_part *p, uint32_t name);
bool fmt_part_whole(const fmt_part *p); /* holds all of its record */

/* Decodes the body of c into *payload, which is grown (*cap bytes; at most FMT_TAPE_CHUNK_BYTES), and checks that every
 * part lies in it. ERR_FORMAT, ERR_NOMEM. */
MUST_USE err_code fmt_payload_get(const fmt_chunk *c, const fmt_parts *parts, uint8_t **payload, size_t *cap, err *e);
/* The body: payload as an LZ4 frame in dst [bytes + FMT_FRAME_EXTRA_BYTES]; nothing for an empty payload. ERR_SYSTEM. */
MUST_USE err_code fmt_payload_put(const uint8_t *payload, size_t bytes, uint8_t *dst, size_t *dst_bytes, err *e);

/* Stores elems elements of src in dst (as many bytes as the raw ones, at most) through the first transform that applies:
 * QDQ, BITS for floats, PLANES, RAW. */
uint32_t fmt_codec_put(fmt_dtype d, const uint8_t *src, uint64_t elems, uint8_t *dst, fmt_transform *used);
/* Planes of src XOR base. */
void fmt_codec_put_xor(fmt_dtype d, const uint8_t *src, const uint8_t *base, uint64_t elems, uint8_t *dst);
/* Gives the raw bytes of what a part of transform BASE is stored on: the same run of the base tape's record. */
typedef err_code (*fmt_base_fn)(void *ctx, const fmt_part *p, uint8_t *dst, err *e);
/* Raw bytes of part i into dst. The payload was checked by fmt_payload_get. Errors: fn's; ERR_FORMAT: the transform is of a
 * later version of the format. */
MUST_USE err_code fmt_codec_get(const fmt_parts *parts, size_t i, const uint8_t *payload, fmt_base_fn fn, void *ctx,
                                uint8_t *dst, err *e);

/* A call per element size: with the size constant the compiler makes vector shuffles of these loops. */
#define FMT_BY_SIZE(size, call)                   \
    switch (size) {                               \
    case 1: { enum { SIZE = 1 }; call; } break;   \
    case 2: { enum { SIZE = 2 }; call; } break;   \
    case 4: { enum { SIZE = 4 }; call; } break;   \
    default: { enum { SIZE = 8 }; call; } break;  \
    }

/* The transform BITS of n elements of 1, 2, 4 or 8 bytes, and its inverse; n % 8 == 0. src and dst do not overlap. */
void fmt_bits_split(const uint8_t *src, uint8_t *dst, size_t n, int size);
void fmt_bits_join(const uint8_t *src, uint8_t *dst, size_t n, int size);

#endif
