/* What the tape's own files and commands know of a reader and a writer beyond tape.h. Internal to formats/. */
#ifndef FORMATS_TAPE_READER_H
#define FORMATS_TAPE_READER_H

#include <pthread.h>

#include "formats/tape_codec.h"

typedef enum fmt_open_mode {
    FMT_OPEN_NORMAL, /* as fmt_tape_open */
    FMT_OPEN_SURVEY, /* reads every chunk, never the index; a lost head is a fault, not an error; values are hashed again */
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
    bool no_base;    /* it is there, but its base is not */
    char key[FMT_TAPE_NAME_BYTES + 48];
} fmt_tape_lost;

/* ---- a tape being read: tape_reader.c opens and scans, tape_lookup.c finds, tape_value.c decodes ---- */

enum {
    FMT_PENDING_MAX = 64, /* records whose parts are still coming: the ranks of one value at most */
    FMT_SLOTS = 8,        /* decoded chunks kept; one is 1 MiB at most */
};

typedef struct fmt_pending { fmt_row row; uint64_t filled; } fmt_pending;

typedef struct fmt_event_ref {
    int32_t round;
    uint64_t offset;
    size_t bytes;
    json_t *json; /* made when asked for */
} fmt_event_ref;

typedef struct fmt_round_span { int32_t round; uint64_t first, last; } fmt_round_span;

typedef enum fmt_slot_state { FMT_SLOT_EMPTY, FMT_SLOT_LOADING, FMT_SLOT_READY } fmt_slot_state;

/* A decoded data chunk. */
typedef struct fmt_slot {
    fmt_slot_state state;
    uint64_t offset, used_at;
    int users;
    fmt_chunk chunk;
    fmt_parts parts;
    uint8_t *payload;
    size_t payload_cap;
} fmt_slot;

struct fmt_tape {
    char *path;
    int fd;
    fmt_open_mode mode;
    const uint8_t *map;
    uint64_t map_bytes;
    json_t *head, *summary, *end_json;
    int minor;
    bool head_lost;
    fmt_tape_end end;
    fmt_index index;
    fmt_event_ref *events;
    size_t n_events, event_cap;
    fmt_tape_fault *faults;
    size_t n_faults, fault_cap;
    /* the scan */
    uint64_t scan_at, n_chunks;
    uint32_t next_sequence, next_number;
    fmt_pending pending[FMT_PENDING_MAX];
    int n_pending;
    fmt_tape_lost *lost;
    size_t n_lost, lost_cap;
    /* made when asked for, under the lock, like the slots */
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint32_t *find; /* row + 1 by key, the last of its rows; 0 is free */
    size_t find_cap;
    uint64_t find_rows;
    uint32_t *again; /* [find_rows] row + 1 of the next with the same key, of the last the first */
    size_t again_cap;
    fmt_round_span *spans;
    int32_t *rounds;
    size_t n_rounds;
    uint64_t round_rows;
    fmt_slot slots[FMT_SLOTS];
    uint64_t tick;
    fmt_tape *base;  /* opened when a value needs it */
    err base_failed; /* that it cannot be */
};

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

/* ---- a tape stored on another one (tape_base.c) ---- */

/* What the head of a new tape at path says of its base. *out is a new reference. Errors as fmt_tape_create_on. */
MUST_USE err_code fmt_base_note(const char *path, const fmt_tape *base, json_t **out, err *e);

/* A value of the base, kept while the parts of one of ours are put together; the caller frees data. */
typedef struct fmt_base_value {
    const fmt_tape *tape; /* ours */
    int64_t record;       /* of the base */
    uint8_t *data;
    size_t cap;
} fmt_base_value;
err_code fmt_base_get(void *ctx, const fmt_part *p, uint8_t *dst, err *e); /* an fmt_base_fn of an fmt_base_value */

/* Appends a record as another tape has it: hash and statistics are taken over. data: raw bytes, NULL for a tier without
 * payload. Errors as fmt_tape_put. */
MUST_USE err_code fmt_tape_put_record(fmt_tape_writer *w, const fmt_tape_record *r, const void *data, err *e);

#endif
