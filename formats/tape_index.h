/* The tape's index: one row per record, kept as pages of columns.
 *
 * Internal to formats/. A page in memory and a page in the file have the same columns, so that one reader serves both: the
 * writer fills pages and writes them out, opening a finished tape points into the map, and scanning an unfinished one
 * fills pages as the writer would. */
#ifndef FORMATS_TAPE_INDEX_H
#define FORMATS_TAPE_INDEX_H

#include "base/mem.h"
#include "formats/tape_chunk.h"

enum { FMT_PAGE_EVENT_BYTES = 160 << 10 }; /* events of a page, packed */

/* A set of names, each with a number from 0 in order of arrival. Texts stay where they are until fini. */
typedef struct fmt_names {
    char **text;
    size_t n, cap;
    uint32_t *table; /* open addressing, number + 1; 0 is free */
    size_t table_cap;
} fmt_names;

/* s need not be terminated. false: no memory. */
bool fmt_names_add(fmt_names *t, const char *s, size_t bytes, uint32_t *number);
int64_t fmt_names_find(const fmt_names *t, const char *s, size_t bytes); /* -1: not there */
void fmt_names_clear(fmt_names *t); /* forgets the names, keeps the tables */
void fmt_names_fini(fmt_names *t);

/* Columns of a page, in file order: name, width in bytes, type as TAPE.md names it. */
#define FMT_COLUMN_LIST(X)   \
    X(CHUNK, "chunk", 8, "u64")       /* offset of the chunk that holds the first part */ \
    X(HASH, "hash", 8, "u64")         \
    X(DIGEST, "digest", 8, "u64")     /* not in pages without digests */ \
    X(STORED, "stored", 8, "u64")     /* bytes of all its parts in decoded payloads */ \
    X(MIN, "min", 8, "f64")           \
    X(MAX, "max", 8, "f64")           \
    X(RMS, "rms", 8, "f64")           \
    X(NAN, "nan", 8, "u64")           \
    X(INF, "inf", 8, "u64")           \
    X(ZERO, "zero", 8, "u64")         \
    X(DENORMAL, "denormal", 8, "u64") \
    X(RECORD, "record", 4, "u32")     /* running number of the record */ \
    X(PART, "part", 4, "u32")         /* number of the first part in its chunk */ \
    X(PARTS, "parts", 4, "u32")       \
    X(ROUND, "round", 4, "i32")       \
    X(SLOT, "slot", 4, "i32")         \
    X(RANK, "rank", 4, "i32")         \
    X(RANKS, "ranks", 4, "u32")       \
    X(NAME, "name", 4, "u32")         /* into the page's names */ \
    X(TYPE, "type", 4, "u32")         /* into the page's types */ \
    X(PLACE, "place", 1, "u8")        \
    X(AXIS, "axis", 1, "u8")          \
    X(TIER, "tier", 1, "u8")          \
    X(DIGESTS, "digests", 1, "u8")    /* fmt_digests; not in pages without digests */

#define X(id, name, width, type) FMT_COLUMN_##id,
typedef enum fmt_column { FMT_COLUMN_LIST(X) FMT_COLUMN_COUNT } fmt_column;
#undef X

/* What a record has in place of a hash. */
typedef enum fmt_digests {
    FMT_DIGESTS_NONE = 0,
    FMT_DIGESTS_TENSOR = 1, /* the tensor's digest */
    FMT_DIGESTS_ROWS = 2,   /* and one of every row */
} fmt_digests;

typedef struct fmt_type {
    fmt_tensor tensor; /* data NULL */
    uint64_t bytes;
} fmt_type;

typedef struct fmt_page {
    uint64_t first; /* row number of its first row */
    uint32_t rows;
    const uint8_t *column[FMT_COLUMN_COUNT]; /* into the file, or into storage; NULL: no digests in it */
    uint32_t *names; /* the page's name number -> number in the index's names */
    uint32_t n_names;
    fmt_type *types;
    uint32_t n_types;
    uint8_t *storage;     /* columns of a page made in memory; NULL: they lie in the file */
    size_t name_cap, type_cap, meta_bytes; /* while it is being filled */
} fmt_page;

typedef struct fmt_index {
    fmt_names names;
    fmt_page *pages;
    size_t n_pages, cap;
    uint64_t rows;
    uint32_t *local; /* name number -> its number + 1 in the open page; 0: not there yet */
    uint32_t *last_type; /* by the open page's name number: the type seen last */
    size_t local_cap, last_type_cap;
} fmt_index;

/* A record as the index knows it. */
typedef struct fmt_row {
    fmt_tape_record record;
    uint32_t number; /* running number, the same as in the parts */
    uint32_t part;   /* its first part in the chunk */
} fmt_row;

/* Adds a row; a new page is begun when the last one is full. ERR_NOMEM. */
MUST_USE err_code fmt_index_add(fmt_index *ix, const fmt_row *row, err *e);
bool fmt_index_full(const fmt_index *ix); /* the last page takes no more rows */
void fmt_index_at(const fmt_index *ix, uint64_t i, fmt_row *out);
/* The page that holds row i. */
const fmt_page *fmt_index_page(const fmt_index *ix, uint64_t i);
/* Writes the last page as an index chunk's meta and body; no page: one without rows. events: packed [round, event] pairs,
 * n of them, at most FMT_PAGE_EVENT_BYTES. */
void fmt_index_pack(const fmt_index *ix, const fmt_buf *events, uint32_t n_events, fmt_buf *meta, fmt_buf *body);
/* Frees all pages but keeps names and row numbers: the writer has them in the file. */
void fmt_index_forget_pages(fmt_index *ix);
/* Appends the page of a checked index chunk; columns stay in the file. Every number is checked against the file's size, so
 * that fmt_index_at can trust it. *events: the packed array of events, n_events long. ERR_FORMAT, ERR_NOMEM. */
MUST_USE err_code fmt_index_load(fmt_index *ix, const fmt_chunk *c, uint64_t file_bytes, fmt_unpack *events,
                                 uint32_t *n_events, err *e);
void fmt_index_fini(fmt_index *ix);

/* Bytes of dtype x shape, checked. false: a negative dimension, or more than a tape can hold. */
bool fmt_type_bytes(const fmt_tensor *t, uint64_t *bytes);
/* What the parts of a record hold, tensor elements or row digests: how many, and of which type. */
bool fmt_same_type(const fmt_tensor *a, const fmt_tensor *b); /* dtype and shape */
uint64_t fmt_tensor_rows(const fmt_tensor *t); /* rows as digests count them: the first dimension; 1 of less than two */
uint64_t fmt_content_elems(const fmt_tape_record *r);
fmt_dtype fmt_content_dtype(const fmt_tape_record *r);
/* Reads a dtype text; a shape array. On nonsense u->bad is set. */
fmt_dtype fmt_unpack_dtype(fmt_unpack *u);
void fmt_unpack_shape(fmt_unpack *u, fmt_type *t);
void fmt_pack_shape(fmt_buf *b, const fmt_tensor *t);

static inline uint8_t fmt_page_u8(const fmt_page *p, fmt_column c, uint32_t row) { return p->column[c][row]; }
static inline uint32_t fmt_page_u32(const fmt_page *p, fmt_column c, uint32_t row)
{
    return get_u32(p->column[c] + 4 * (size_t)row);
}
static inline int32_t fmt_page_i32(const fmt_page *p, fmt_column c, uint32_t row) { return (int32_t)fmt_page_u32(p, c,
                                                                                                                 row); }
static inline uint64_t fmt_page_u64(const fmt_page *p, fmt_column c, uint32_t row)
{
    return get_u64(p->column[c] + 8 * (size_t)row);
}
static inline double fmt_page_f64(const fmt_page *p, fmt_column c, uint32_t row)
{
    uint64_t bits = fmt_page_u64(p, c, row);
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

#endif
