/* A data chunk in the making: its parts with their names and bytes, its events, and the records that end in it.
 *
 * Internal to formats/. The writer fills batches and compresses them (tape_writer.c), a sink writes them (tape_sink.h). */
#ifndef FORMATS_TAPE_BATCH_H
#define FORMATS_TAPE_BATCH_H

#include "formats/tape_reader.h"

enum { FMT_META_BYTES = FMT_TAPE_CHUNK_BYTES - FMT_CHUNK_HEADER_BYTES }; /* the most that a chunk's meta can take */

/* What a later part of the same chunk needs to find an equal one. */
typedef struct fmt_stored {
    uint64_t hash, first, elems;
    fmt_dtype dtype;
    fmt_transform transform;
    uint32_t offset, bytes;
} fmt_stored;

typedef enum fmt_batch_state {
    FMT_BATCH_FREE, /* or being filled: the caller's */
    FMT_BATCH_FULL, /* to be compressed, by who takes it first */
    FMT_BATCH_BUSY, /* somebody is compressing it */
    FMT_BATCH_DONE, /* to be written */
} fmt_batch_state;

/* A data chunk being filled, compressed, written. */
typedef struct fmt_batch {
    fmt_batch_state state; /* under the writer's lock */
    uint64_t serial;       /* which data chunk of the tape, from 0 */
    uint8_t *payload;
    size_t payload_bytes;
    fmt_buf names, parts, events;
    fmt_names name_set; /* its numbers are the chunk's */
    uint32_t n_parts, n_events;
    fmt_stored *stored;   /* [n_parts] */
    uint16_t *table;      /* number + 1 of parts, by hash; 0 is free */
    fmt_row *rows;        /* records whose last part is here; first_chunk_offset holds a serial until it is written */
    uint32_t n_rows;
    uint8_t *body;        /* the payload, compressed */
    size_t body_bytes;
    uint32_t body_crc;
    err failed;           /* compression's error */
} fmt_batch;

/* A copy of the same value on another rank, put just before. */
typedef struct fmt_sibling {
    uint64_t serial;
    uint32_t part; /* neither REF nor XOR */
    const uint8_t *raw;
} fmt_sibling;

/* The base tape's value of a record, or NULL. */
typedef struct fmt_based { const uint8_t *raw; uint64_t hash; } fmt_based;

MUST_USE bool fmt_buf_init(fmt_buf *b, size_t cap); /* allocates; false: no memory */
/* false: no memory; fini is right for it all the same. */
MUST_USE bool fmt_batch_init(fmt_batch *b);
void fmt_batch_fini(fmt_batch *b);
void fmt_batch_reset(fmt_batch *b, uint64_t serial); /* empties it */
size_t fmt_batch_room(const fmt_batch *b); /* bytes still free in the chunk, all of it stored raw */
/* Number of a name in the chunk. false: no memory. */
MUST_USE bool fmt_batch_name(fmt_batch *b, const char *name, uint32_t *out);
/* Appends a part, for which there is room, and sets how its raw bytes (NULL: it has none) are stored. on: the base's bytes
 * of the same run. refer: as what *where names; else *where becomes what the next rank's part may refer to, where it names
 * nothing of this batch yet. */
void fmt_batch_part(fmt_batch *b, fmt_part *p, uint32_t name, const uint8_t *raw, const fmt_based *on, bool refer,
                    fmt_sibling *where);
void fmt_batch_row(fmt_batch *b, const fmt_row *row, const char *name); /* a record whose last part is here */

#endif
