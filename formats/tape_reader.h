/* What the tape's own files and commands know of a reader and a writer beyond tape.h. Internal to formats/. */
#ifndef FORMATS_TAPE_READER_H
#define FORMATS_TAPE_READER_H

#include "formats/tape_codec.h"

typedef enum fmt_open_mode {
    FMT_OPEN_NORMAL, /* as fmt_tape_open */
    FMT_OPEN_SURVEY, /* reads every chunk, never the index; a lost head is a fault, not an error */
} fmt_open_mode;

MUST_USE err_code fmt_tape_open_mode(const char *path, fmt_open_mode mode, fmt_tape **out, err *e);

/* What the end chunk says; good false: there is none that can be read. */
typedef struct fmt_tape_end {
    bool good;
    uint64_t offset, records, events, chunks;
    const uint8_t *pages; /* packed array of the index pages' offsets */
    size_t pages_bytes;
} fmt_tape_end;

/* A record that is known to be missing, by a part that could be read. */
typedef struct fmt_tape_lost {
    uint32_t number;
    int32_t round;
    uint64_t offset; /* of the chunk */
    char key[FMT_TAPE_NAME_BYTES + 48];
} fmt_tape_lost;

const fmt_tape_end *fmt_tape_end_of(const fmt_tape *t);
bool fmt_tape_head_lost(const fmt_tape *t);
uint64_t fmt_tape_chunks(const fmt_tape *t);        /* sound chunks seen by a survey */
uint64_t fmt_tape_torn_bytes(const fmt_tape *t);    /* after the last sound chunk of a tape without end */
size_t fmt_tape_lost_records(const fmt_tape *t, const fmt_tape_lost **out);
uint32_t fmt_tape_next_number(const fmt_tape *t);   /* one past the largest record number seen anywhere */
const fmt_index *fmt_tape_index(const fmt_tape *t); /* the rows; borrowed, changed by fmt_tape_poll */
const json_t *fmt_tape_end_json(fmt_tape *t);       /* the end chunk's map as it is, NULL without one; borrowed */
const uint8_t *fmt_tape_map(const fmt_tape *t);

/* "3/0/s0.attn_out@r1": the record's part of a reference, into buf; returns buf. */
const char *fmt_tape_key_text(const fmt_tape_key *key, char *buf, size_t buf_bytes);

/* Appends a record as another tape has it: hash and statistics are taken over. data: raw bytes, NULL for a tier without
 * payload. Errors as fmt_tape_put. */
MUST_USE err_code fmt_tape_put_record(fmt_tape_writer *w, const fmt_tape_record *r, const void *data, err *e);

#endif
