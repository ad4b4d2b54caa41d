/* The tape's outer layer: prelude, self-checking chunks, trailer; and the msgpack that chunks carry.
 *
 * Internal to formats/. Byte tables: TAPE.md. Writing goes through msgpack-c; reading uses a cursor of our own that never
 * allocates: msgpack-c reserves room for as many elements as a damaged array header claims. */
#ifndef FORMATS_TAPE_CHUNK_H
#define FORMATS_TAPE_CHUNK_H

#include "formats/tape.h"

#include <stddef.h>

enum {
    FMT_PRELUDE_BYTES = 16,
    FMT_CHUNK_HEADER_BYTES = 32,
    FMT_TRAILER_BYTES = 16,
    FMT_EVENT_BYTES = 1 << 16,   /* longest packed event */
    FMT_SUMMARY_BYTES = 1 << 17, /* longest packed summary */
};

typedef enum fmt_chunk_kind {
    FMT_CHUNK_HEAD = 'H',
    FMT_CHUNK_DATA = 'D',
    FMT_CHUNK_INDEX = 'I',
    FMT_CHUNK_END = 'E',
} fmt_chunk_kind;

/* A chunk in a mapped file: the header's fields, and views of what follows it. */
typedef struct fmt_chunk {
    uint64_t offset; /* of the header, in the file */
    uint8_t kind, flags;
    uint32_t sequence;
    uint32_t meta_bytes, body_bytes;
    uint32_t meta_crc, body_crc;
    const uint8_t *meta, *body;
} fmt_chunk;

const char *fmt_chunk_kind_name(uint8_t kind); /* "data"; "unknown" */
uint64_t fmt_chunk_end(const fmt_chunk *c);    /* offset of the byte after it */

/* Reads the header at offset and checks its checksum and lengths, not meta and body. ERR_FORMAT names the offset. */
MUST_USE err_code fmt_chunk_get(const uint8_t *file, uint64_t file_bytes, uint64_t offset, fmt_chunk *out, err *e);
/* Checks the checksums of meta and body. *meta_good: meta can be used even when the body cannot; may be NULL. */
MUST_USE err_code fmt_chunk_check(const fmt_chunk *c, bool *meta_good, err *e);
/* Offset of the next chunk whose header is sound, at or after from; file_bytes when there is none. */
uint64_t fmt_chunk_resync(const uint8_t *file, uint64_t file_bytes, uint64_t from);
/* The 32 bytes that go in front of meta and body. body_crc: of the body, which is not read. */
void fmt_chunk_put_header(uint8_t header[FMT_CHUNK_HEADER_BYTES], fmt_chunk_kind kind, uint32_t sequence, const void *meta,
                          uint32_t meta_bytes, uint32_t body_bytes, uint32_t body_crc);

void fmt_prelude_put(uint8_t out[FMT_PRELUDE_BYTES]);
bool fmt_prelude_is_tape(const uint8_t *file, uint64_t file_bytes); /* starts with the magic */
/* ERR_FORMAT: short, not a tape, checksum, or a major version this build does not know (*unknown_major is then true). */
MUST_USE err_code fmt_prelude_get(const uint8_t *file, uint64_t file_bytes, int *minor, bool *unknown_major, err *e);
void fmt_trailer_put(uint8_t out[FMT_TRAILER_BYTES], uint64_t end_offset);
/* true: p holds a trailer, and *end_offset is where it says the end chunk starts. */
bool fmt_trailer_get(const uint8_t p[FMT_TRAILER_BYTES], uint64_t *end_offset);

/* ---- msgpack out: a buffer of fixed capacity with a sticky overflow ---- */
typedef struct fmt_buf {
    uint8_t *data; /* caller's storage */
    size_t used, cap;
    bool full; /* something did not fit and was left out */
} fmt_buf;

void fmt_buf_add(fmt_buf *b, const void *data, size_t bytes);
void fmt_pack_map(fmt_buf *b, uint32_t n);
void fmt_pack_array(fmt_buf *b, uint32_t n);
void fmt_pack_str(fmt_buf *b, const char *s);
void fmt_pack_uint(fmt_buf *b, uint64_t v);
void fmt_pack_int(fmt_buf *b, int64_t v);
void fmt_pack_real(fmt_buf *b, double v);
void fmt_pack_nil(fmt_buf *b);

/* ---- msgpack in: a cursor with a sticky error ---- */
typedef struct fmt_unpack {
    const uint8_t *at, *end;
    bool bad; /* once set, every getter returns 0 */
} fmt_unpack;

fmt_unpack fmt_unpack_of(const void *data, size_t bytes);
uint32_t fmt_unpack_map(fmt_unpack *u);   /* entries; never more than the bytes left could hold */
uint32_t fmt_unpack_array(fmt_unpack *u); /* elements, likewise */
const char *fmt_unpack_str(fmt_unpack *u, uint32_t *bytes); /* not terminated; NULL when bad */
int64_t fmt_unpack_int(fmt_unpack *u, int64_t lo, int64_t hi); /* outside [lo, hi]: bad */
uint64_t fmt_unpack_u64(fmt_unpack *u);
double fmt_unpack_real(fmt_unpack *u); /* a float or an integer */
void fmt_unpack_skip(fmt_unpack *u);   /* one object with all it holds; cost is linear in its bytes */
/* One whole object as bytes. NULL when bad. */
const uint8_t *fmt_unpack_span(fmt_unpack *u, size_t *bytes);
/* true: the string at s (n bytes) is text. */
bool fmt_unpack_is(const char *s, uint32_t n, const char *text);

#endif
