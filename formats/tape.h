/* The tape: the container that capture writes and everything else reads. Byte layout: TAPE.md beside this file.
 *
 * A tape is a sequence of self-checking chunks of at most 1 MiB: one head, data chunks, index pages, an end. It knows
 * nothing of the model: a record is a value named by (round, slot, rank, name). One writer, append-only; any number of
 * readers, also while it is still being written.
 *
 * Loss is bounded: a record never refers to bytes outside its own chunk, so a flipped bit costs at most one chunk. */
#ifndef FORMATS_TAPE_H
#define FORMATS_TAPE_H

#include "formats/dtype.h"
#include "formats/json.h"

enum {
    FMT_TAPE_MAJOR = 1,
    FMT_TAPE_MINOR = 1,
    FMT_TAPE_CHUNK_BYTES = 1 << 20, /* a whole chunk on disk, header included, is never larger */
    FMT_TAPE_HEAD_BYTES = 1 << 16,  /* the head chunk likewise */
    FMT_TAPE_NAME_BYTES = 128,      /* longest value name */
    FMT_TAPE_NO_SLOT = -1,
    FMT_TAPE_NO_RANK = -1,          /* an imported value: joined, no rank known */
};

/* How the ranks' copies of a value relate. */
typedef enum fmt_place {
    FMT_PLACE_REPLICATED = 0, /* every rank holds the same bits */
    FMT_PLACE_SHARDED = 1,    /* cut along axis, rank order */
    FMT_PLACE_PARTIAL = 2,    /* the value is the sum over ranks */
} fmt_place;

/* What was kept of a value. */
typedef enum fmt_tier { FMT_TIER_TENSOR = 0, FMT_TIER_STATS = 1, FMT_TIER_HASH = 2 } fmt_tier;

typedef struct fmt_tape_key {
    int32_t round;    /* >= 0 */
    int32_t slot;     /* the request's slot, FMT_TAPE_NO_SLOT for a value of the whole draft step */
    int32_t rank;
    const char *name; /* "s0.attn_out"; docs/values.md's names, without round and slot */
} fmt_tape_key;

typedef struct fmt_stats {
    double min, max, rms;                   /* over non-NaN elements; 0 when there are none */
    uint64_t n_nan, n_inf, n_zero, n_denormal;
} fmt_stats;

typedef struct fmt_tape_record {
    fmt_tape_key key;
    fmt_tensor tensor;   /* dtype and shape; data NULL here: fetch with fmt_tape_get */
    fmt_place place;
    int32_t axis;        /* of FMT_PLACE_SHARDED */
    int32_t n_ranks;     /* ranks of the run that made it, 1.. */
    fmt_tier tier;
    uint64_t hash;       /* fmt_hash64 of the raw bytes: order-sensitive; 0 with has_digest */
    bool has_digest;     /* of tiers stats and hash: fmt_tape_put_digest made it */
    uint64_t digest, n_digest_rows; /* rows: 0 or all of the tensor; fetch with fmt_tape_digest_rows */
    fmt_stats stats;     /* zeros for integer dtypes except min, max, n_zero */
    uint64_t raw_bytes, stored_bytes; /* stored: share of its transform's output, before LZ4 */
    uint64_t first_chunk_offset;
    int32_t n_parts;
} fmt_tape_record;

/* ---- writing ---- */
typedef struct fmt_tape_writer fmt_tape_writer;
typedef struct fmt_tape fmt_tape; /* being read, see below */

/* Creates PATH.part, mode 0600, and writes the head. head: an object (identity, configuration, producer: see TAPE.md),
 * copied; its key "base" is left out. ERR_ARG also: it packs to more than FMT_TAPE_HEAD_BYTES less the chunk header. */
MUST_USE err_code fmt_tape_create(const char *path, const json_t *head, fmt_tape_writer **out, err *e);
/* The same for a tape that is stored on another one: where a value's key, dtype and shape are in base and most of its bytes
 * are the same there, only the difference is kept, and nothing when all are. base: finished, stands alone (ERR_ARG
 * otherwise), borrowed until finish or discard; NULL: as fmt_tape_create. The head's key "base" then names it, by its place
 * relative to path's folder and by what its end says; a reader opens it when the first such value is asked for, and says so
 * when it is not to be had or is another tape. */
MUST_USE err_code fmt_tape_create_on(const char *path, const json_t *head, const fmt_tape *base, fmt_tape_writer **out,
                                     err *e);
/* Appends one value. t->data is read during the call. Records may come in any order; a reader sees them in this one.
 * ERR_ARG for a key or a shape that the format cannot hold. After ERR_IO every later call fails too. */
MUST_USE err_code fmt_tape_put(fmt_tape_writer *w, const fmt_tape_key *key, const fmt_tensor *t, fmt_place place,
                               int32_t axis, int32_t n_ranks, fmt_tier tier, err *e);
/* The copies of one value on all ranks, data[rank]; equal payloads are stored once. shape is one rank's. */
MUST_USE err_code fmt_tape_put_ranks(fmt_tape_writer *w, const fmt_tape_key *key, const fmt_tensor *t,
                                     const void *const *data, fmt_place place, int32_t axis, int32_t n_ranks,
                                     fmt_tier tier, err *e);
/* A value of which only a digest was kept (kernels/digest.h, TAPE.md): t has dtype and shape, no data. tier HASH or STATS;
 * stats NULL with HASH. n_rows: the tensor's rows (krn_digest_rows), or 0 to keep no row digests. ERR_ARG as fmt_tape_put,
 * and for another count of rows. */
typedef struct fmt_digest {
    uint64_t digest;
    const uint64_t *row; /* [n_rows] */
    uint64_t n_rows;
} fmt_digest;
MUST_USE err_code fmt_tape_put_digest(fmt_tape_writer *w, const fmt_tape_key *key, const fmt_tensor *t, fmt_place place,
                                      int32_t axis, int32_t n_ranks, fmt_tier tier, const fmt_digest *digest,
                                      const fmt_stats *stats, err *e);
/* A fact that is no value (a drop, a wait, a mismatch): an object, kept in order among the records. Copied. */
MUST_USE err_code fmt_tape_put_event(fmt_tape_writer *w, int32_t round, const json_t *event, err *e);
/* Closes the current chunk and hands it to the kernel: a killed process does not lose what was put before. */
MUST_USE err_code fmt_tape_flush(fmt_tape_writer *w, err *e);
/* Writes index and end, renames to PATH, frees w whatever happens. summary: object or NULL (counts of drops, waits …).
 * On error PATH is untouched and PATH.part is kept. */
MUST_USE err_code fmt_tape_finish(fmt_tape_writer *w, const json_t *summary, err *e);
/* Frees w and removes PATH.part: nothing was worth keeping. NULL is a no-op. */
void fmt_tape_discard(fmt_tape_writer *w);
uint64_t fmt_tape_written_bytes(fmt_tape_writer *w); /* in the file so far; what was put last may not be */

/* ---- reading ---- */

/* Opens through the footer index when the tape has one, else by scanning its chunks (an unfinished or damaged tape).
 * ERR_FORMAT: not a tape, unknown major version, or the head is damaged. Damage elsewhere does not fail the open: see
 * fmt_tape_damage. *out is NULL on error. */
MUST_USE err_code fmt_tape_open(const char *path, fmt_tape **out, err *e);
void fmt_tape_close(fmt_tape *t);
const char *fmt_tape_path(const fmt_tape *t);
/* Borrowed, never NULL. Its texts, as those of events and the summary, hold no control characters (fmt_msgpack_unpack). */
const json_t *fmt_tape_head(const fmt_tape *t);
const json_t *fmt_tape_summary(const fmt_tape *t); /* NULL: unfinished, or none */
bool fmt_tape_finished(const fmt_tape *t);
int fmt_tape_minor(const fmt_tape *t);
uint64_t fmt_tape_file_bytes(const fmt_tape *t);
/* Gives the memory of what has been read of the file back to the kernel; it is read again when it is asked for. For a
 * process that goes through a long tape and stays. Thread-safe. */
void fmt_tape_let_go(const fmt_tape *t);

/* The base that its values are stored on: the name in its head, NULL for a tape that stands alone; and the base itself,
 * opened when first asked for, borrowed. ERR_INPUT: absent, or another tape. Thread-safe. */
const char *fmt_tape_base_name(const fmt_tape *t);
MUST_USE err_code fmt_tape_base(const fmt_tape *t, const fmt_tape **out, err *e);

/* Follow: looks for chunks appended since; *n_new is the number of new records. Cheap when nothing is new. No other thread
 * may use t meanwhile. */
MUST_USE err_code fmt_tape_poll(fmt_tape *t, size_t *n_new, err *e);

size_t fmt_tape_count(const fmt_tape *t); /* records, in writing order */
/* Fills *r; r->key.name is valid until close. */
void fmt_tape_at(const fmt_tape *t, size_t i, fmt_tape_record *r);
/* Index of the record with this key, or -1. */
int64_t fmt_tape_find(const fmt_tape *t, const fmt_tape_key *key);
/* The next record with the key of record i, after it in its round, or -1: a slot's values stand there once for each
 * insert. */
int64_t fmt_tape_again(const fmt_tape *t, size_t i);
/* The first record of `round` at or after writing order, and one past its last; rounds are contiguous as capture writes
 * them. n = 0 when absent. */
void fmt_tape_round_span(const fmt_tape *t, int32_t round, size_t *first, size_t *n);
/* Distinct rounds, ascending; *rounds is owned by t. */
size_t fmt_tape_rounds(const fmt_tape *t, const int32_t **rounds);

/* The value's bytes, decoded and checked (the chunks' checksums; fmt_tape_examine asks the record's hash too), into dst of
 * at least raw_bytes. ERR_FORMAT names file, chunk and record. ERR_INPUT: the record's tier holds no payload, or the base
 * that it is stored on is not to be had.
 * Thread-safe. */
MUST_USE err_code fmt_tape_get(const fmt_tape *t, size_t i, void *dst, uint64_t dst_bytes, err *e);
/* The row digests of a record with n_digest_rows > 0, into row[n], n of at least that many. Errors as fmt_tape_get;
 * ERR_INPUT: it holds none. Thread-safe. */
MUST_USE err_code fmt_tape_digest_rows(const fmt_tape *t, size_t i, uint64_t *row, uint64_t n, err *e);

size_t fmt_tape_event_count(const fmt_tape *t);
/* An object, borrowed; an empty one where what the chunk holds is none. NULL: no memory. */
const json_t *fmt_tape_event_at(const fmt_tape *t, size_t i, int32_t *round);

/* Damages found when the tape was opened (a scan stops trusting a chunk, not the file). */
typedef struct fmt_tape_fault {
    uint64_t offset_bytes, span_bytes; /* where in the file */
    int64_t chunk;                     /* sequence number, -1 unknown */
    char what[160];                    /* "data chunk 7: body checksum 1234abcd, wanted …" */
} fmt_tape_fault;
size_t fmt_tape_damage(const fmt_tape *t, const fmt_tape_fault **faults);

/* Reads every chunk and every record of path and lists every fault, also those that only a full read finds.
 * *faults is malloc'd. ERR_FORMAT only when it is no tape at all. unfinished: no end chunk. */
typedef struct fmt_tape_report {
    fmt_tape_fault *faults;
    size_t n_faults;
    uint64_t n_chunks, n_records, n_rounds, n_lost_records; /* lost: named by the index or by a chunk, payload unreadable */
    uint64_t n_base_records; /* of the lost ones: those that only lack the base */
    bool finished;
    char base[256];          /* the base that its values are stored on: where it is, or why it is not to be had; "" none */
} fmt_tape_report;
MUST_USE err_code fmt_tape_examine(const char *path, fmt_tape_report *out, err *e);
void fmt_tape_report_fini(fmt_tape_report *r);

/* Writes a clean tape with every sound record and event of path; says in *lost what is missing, and in *report (may be
 * NULL) what fmt_tape_examine would. The output is verified before it gets its name. ERR_FORMAT: nothing to save (and no
 * file). ERR_ARG: out_path is path. */
typedef struct fmt_tape_loss {
    uint64_t kept_records, kept_rounds, kept_events;
    uint64_t lost_records, lost_rounds, lost_events; /* known to be missing; rounds that lost a record */
    uint64_t lost_bytes;       /* of the file, in chunks that could not be used */
    bool head_lost;            /* both the head and its copy in the end chunk */
    bool was_finished;         /* false: what was not flushed, and the summary, are missing too */
    bool newer_minor;          /* fields that this build does not know were left behind */
    bool complete;             /* none of the above */
} fmt_tape_loss;
MUST_USE err_code fmt_tape_recover(const char *path, const char *out_path, fmt_tape_loss *lost, fmt_tape_report *report,
                                   err *e);

/* ---- pieces that others use ---- */
/* Order-sensitive 64-bit hash of bytes (defined in TAPE.md): a swapped row or a permutation changes it. */
uint64_t fmt_hash64(const void *data, size_t bytes);
/* The same hash of bytes that come in pieces. add: bytes % 32 == 0. end: fewer than 32, those left. */
typedef struct fmt_hash_run { uint64_t v[4], bytes; } fmt_hash_run;
fmt_hash_run fmt_hash_begin(void);
void fmt_hash_add(fmt_hash_run *run, const void *data, size_t bytes);
uint64_t fmt_hash_end(const fmt_hash_run *run, const void *data, size_t bytes);
uint32_t fmt_crc32c(uint32_t crc, const void *data, size_t bytes); /* start with 0 */
/* Statistics of a tensor, one pass. */
void fmt_stats_of(const fmt_tensor *t, fmt_stats *out);
/* Both the hash of its bytes and its statistics, which reads a tensor larger than the caches once instead of twice. */
void fmt_stats_hash_of(const fmt_tensor *t, fmt_stats *out, uint64_t *hash);

#endif
