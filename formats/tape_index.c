#include "formats/tape_index.h"

#include <inttypes.h>

enum {
    PAGE_ROWS = 4096,
    /* Names and types of a page. With PAGE_ROWS rows (480 KiB) and the events that stays under the chunk's limit. */
    PAGE_META_BYTES = 320 << 10,
    PART_BYTES_MIN = 24, /* no part's map is shorter, so a file has at most one part per this many bytes */
};

#define X(id, name, width, type) [FMT_COLUMN_##id] = { name, width, type },
static const struct { const char *name; uint32_t width; const char *type; } COLUMN[] = { FMT_COLUMN_LIST(X) };
#undef X

/* ---- names ---- */

static size_t slot_of(const fmt_names *t, const char *s, size_t bytes)
{
    size_t at = (size_t)fmt_hash64(s, bytes) & (t->table_cap - 1);
    for (; t->table[at]; at = (at + 1) & (t->table_cap - 1)) {
        const char *have = t->text[t->table[at] - 1];
        if (strncmp(have, s, bytes) == 0 && have[bytes] == 0) break;
    }
    return at;
}

static bool rehash(fmt_names *t, size_t cap)
{
    uint32_t *table = mem_alloc(cap, sizeof *table);
    if (!table) return false;
    free(t->table);
    t->table = table;
    t->table_cap = cap;
    for (size_t i = 0; i < t->n; i++) t->table[slot_of(t, t->text[i], strlen(t->text[i]))] = (uint32_t)i + 1;
    return true;
}

bool fmt_names_add(fmt_names *t, const char *s, size_t bytes, uint32_t *number)
{
    if (2 * (t->n + 1) > t->table_cap && !rehash(t, t->table_cap ? 2 * t->table_cap : 64)) return false;
    size_t at = slot_of(t, s, bytes);
    if (!t->table[at]) {
        if (!mem_grow((void **)&t->text, &t->cap, t->n + 1, sizeof *t->text)) return false;
        char *copy = malloc(bytes + 1);
        if (!copy) return false;
        memcpy(copy, s, bytes);
        copy[bytes] = 0;
        t->text[t->n++] = copy;
        t->table[at] = (uint32_t)t->n;
    }
    *number = t->table[at] - 1;
    return true;
}

int64_t fmt_names_find(const fmt_names *t, const char *s, size_t bytes)
{
    return t->table_cap ? (int64_t)t->table[slot_of(t, s, bytes)] - 1 : -1;
}

void fmt_names_clear(fmt_names *t)
{
    for (size_t i = 0; i < t->n; i++) free(t->text[i]);
    t->n = 0;
    if (t->table) memset(t->table, 0, t->table_cap * sizeof *t->table);
}

void fmt_names_fini(fmt_names *t)
{
    fmt_names_clear(t);
    free(t->text);
    free(t->table);
    *t = (fmt_names){ 0 };
}

/* ---- types ---- */

bool fmt_type_bytes(const fmt_tensor *t, uint64_t *bytes)
{
    uint64_t n = fmt_dtype_bytes(t->dtype);
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] < 0 || !mul_u64(n, (uint64_t)t->shape[d], &n)) return false;
    *bytes = n;
    return n <= (uint64_t)1 << 48; /* a tape's parts are numbered by 32 bits: 2^32 parts of less than 2^19 bytes */
}

uint64_t fmt_tensor_rows(const fmt_tensor *t) { return t->ndim < 2 ? 1 : (uint64_t)t->shape[0]; }

uint64_t fmt_content_elems(const fmt_tape_record *r)
{
    return r->tier == FMT_TIER_TENSOR ? (uint64_t)fmt_tensor_elems(&r->tensor) : r->n_digest_rows;
}

fmt_dtype fmt_content_dtype(const fmt_tape_record *r)
{
    return r->tier == FMT_TIER_TENSOR ? r->tensor.dtype : FMT_DTYPE_U64;
}

fmt_dtype fmt_unpack_dtype(fmt_unpack *u)
{
    uint32_t n;
    const char *s = fmt_unpack_str(u, &n);
    char text[16] = { 0 };
    fmt_dtype d = FMT_DTYPE_U8;
    if (!s || n >= sizeof text) { u->bad = true; return d; }
    memcpy(text, s, n);
    if (!fmt_dtype_parse(text, &d)) u->bad = true;
    return d;
}

/* n dimensions follow. */
static void unpack_dims(fmt_unpack *u, uint32_t n, fmt_type *t)
{
    if (n > FMT_DIMS_MAX) u->bad = true;
    if (u->bad) return;
    t->tensor.ndim = (int32_t)n;
    for (uint32_t d = 0; d < FMT_DIMS_MAX; d++) t->tensor.shape[d] = d < n ? fmt_unpack_int(u, 0, INT64_MAX) : 1;
    if (!fmt_type_bytes(&t->tensor, &t->bytes)) u->bad = true;
}

void fmt_unpack_shape(fmt_unpack *u, fmt_type *t) { unpack_dims(u, fmt_unpack_array(u), t); }

void fmt_pack_shape(fmt_buf *b, const fmt_tensor *t)
{
    fmt_pack_array(b, (uint32_t)t->ndim);
    for (int d = 0; d < t->ndim; d++) fmt_pack_uint(b, (uint64_t)t->shape[d]);
}

bool fmt_same_type(const fmt_tensor *a, const fmt_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->shape, b->shape,
                                                                sizeof a->shape[0] * (size_t)a->ndim) == 0;
}

/* ---- filling pages ---- */

static void page_fini(fmt_page *p)
{
    free(p->names);
    free(p->types);
    free(p->storage);
}

static fmt_page *page_begin(fmt_index *ix)
{
    if (!mem_grow((void **)&ix->pages, &ix->cap, ix->n_pages + 1, sizeof *ix->pages)) return NULL;
    fmt_page p = { .first = ix->rows };
    size_t row_bytes = 0;
    for (int c = 0; c < FMT_COLUMN_COUNT; c++) row_bytes += COLUMN[c].width;
    p.storage = malloc(PAGE_ROWS * row_bytes); /* not zeroed: of half a MiB a short tape fills little */
    if (!p.storage) return NULL;
    size_t at = 0;
    for (int c = 0; c < FMT_COLUMN_COUNT; c++) {
        p.column[c] = p.storage + at;
        at += (size_t)COLUMN[c].width * PAGE_ROWS;
    }
    if (ix->local) memset(ix->local, 0, ix->local_cap * sizeof *ix->local);
    ix->pages[ix->n_pages] = p;
    return &ix->pages[ix->n_pages++];
}

/* The page's number of a name; new ones are added. */
static bool local_name(fmt_index *ix, fmt_page *p, const char *name, uint32_t *out)
{
    uint32_t number;
    size_t bytes = strlen(name), had = ix->local_cap;
    if (!fmt_names_add(&ix->names, name, bytes, &number)) return false;
    if (!mem_grow((void **)&ix->local, &ix->local_cap, number + 1u, sizeof *ix->local)) return false;
    memset(ix->local + had, 0, (ix->local_cap - had) * sizeof *ix->local);
    if (!ix->local[number]) {
        if (!mem_grow((void **)&p->names, &p->name_cap, p->n_names + 1u, sizeof *p->names)) return false;
        if (!mem_grow((void **)&ix->last_type, &ix->last_type_cap, p->n_names + 1u, sizeof *ix->last_type)) return false;
        p->names[p->n_names] = number;
        ix->last_type[p->n_names] = 0;
        ix->local[number] = ++p->n_names;
        p->meta_bytes += bytes + 5;
    }
    *out = ix->local[number] - 1;
    return true;
}

static bool local_type(fmt_index *ix, fmt_page *p, uint32_t name, const fmt_tensor *t, uint32_t *out)
{
    uint32_t i = ix->last_type[name];
    if (i >= p->n_types || !fmt_same_type(&p->types[i].tensor, t))
        for (i = 0; i < p->n_types && !fmt_same_type(&p->types[i].tensor, t); i++) { }
    if (i == p->n_types) {
        if (!mem_grow((void **)&p->types, &p->type_cap, p->n_types + 1u, sizeof *p->types)) return false;
        fmt_type *n = &p->types[p->n_types++];
        n->tensor = *t;
        n->tensor.data = NULL;
        n->bytes = fmt_tensor_bytes(t);
        p->meta_bytes += 20 + 9 * (size_t)t->ndim;
    }
    ix->last_type[name] = *out = i;
    return true;
}

static uint64_t f64_bits(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

bool fmt_index_full(const fmt_index *ix)
{
    if (!ix->n_pages) return false;
    const fmt_page *p = &ix->pages[ix->n_pages - 1];
    return !p->storage || p->rows == PAGE_ROWS || p->meta_bytes > PAGE_META_BYTES - 2 * FMT_TAPE_NAME_BYTES;
}

static fmt_digests digests_of(const fmt_tape_record *r)
{
    if (!r->has_digest) return FMT_DIGESTS_NONE;
    return r->n_digest_rows ? FMT_DIGESTS_ROWS : FMT_DIGESTS_TENSOR;
}

err_code fmt_index_add(fmt_index *ix, const fmt_row *row, err *e)
{
    const fmt_tape_record *r = &row->record;
    fmt_page *p = !ix->n_pages || fmt_index_full(ix) ? page_begin(ix) : &ix->pages[ix->n_pages - 1];
    uint32_t name, type;
    if (!p || !local_name(ix, p, r->key.name, &name) || !local_type(ix, p, name, &r->tensor, &type))
        return err_set(e, ERR_NOMEM, "tape index: no memory for row %" PRIu64, ix->rows);
    const fmt_stats *s = &r->stats;
    const uint64_t value[FMT_COLUMN_COUNT] = {
        [FMT_COLUMN_CHUNK] = r->first_chunk_offset, [FMT_COLUMN_HASH] = r->hash, [FMT_COLUMN_STORED] = r->stored_bytes,
        [FMT_COLUMN_MIN] = f64_bits(s->min), [FMT_COLUMN_MAX] = f64_bits(s->max), [FMT_COLUMN_RMS] = f64_bits(s->rms),
        [FMT_COLUMN_NAN] = s->n_nan, [FMT_COLUMN_INF] = s->n_inf, [FMT_COLUMN_ZERO] = s->n_zero,
        [FMT_COLUMN_DENORMAL] = s->n_denormal, [FMT_COLUMN_RECORD] = row->number, [FMT_COLUMN_PART] = row->part,
        [FMT_COLUMN_PARTS] = (uint32_t)r->n_parts, [FMT_COLUMN_ROUND] = (uint32_t)r->key.round,
        [FMT_COLUMN_SLOT] = (uint32_t)r->key.slot, [FMT_COLUMN_RANK] = (uint32_t)r->key.rank,
        [FMT_COLUMN_RANKS] = (uint32_t)r->n_ranks, [FMT_COLUMN_NAME] = name, [FMT_COLUMN_TYPE] = type,
        [FMT_COLUMN_PLACE] = r->place, [FMT_COLUMN_AXIS] = (uint8_t)r->axis, [FMT_COLUMN_TIER] = r->tier,
        [FMT_COLUMN_DIGEST] = r->digest, [FMT_COLUMN_DIGESTS] = digests_of(r),
    };
    for (int c = 0; c < FMT_COLUMN_COUNT; c++) {
        uint8_t *at = p->storage + (p->column[c] - p->storage) + (size_t)COLUMN[c].width * p->rows;
        if (COLUMN[c].width == 8) put_u64(at, value[c]);
        else if (COLUMN[c].width == 4) put_u32(at, (uint32_t)value[c]);
        else *at = (uint8_t)value[c];
    }
    p->rows++;
    ix->rows++;
    return ERR_OK;
}

/* ---- reading rows ---- */

const fmt_page *fmt_index_page(const fmt_index *ix, uint64_t i)
{
    size_t lo = 0, hi = ix->n_pages;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (ix->pages[mid].first <= i) lo = mid;
        else hi = mid;
    }
    return &ix->pages[lo];
}

void fmt_index_at(const fmt_index *ix, uint64_t i, fmt_row *out)
{
    CHECK(i < ix->rows);
    const fmt_page *p = fmt_index_page(ix, i);
    uint32_t row = (uint32_t)(i - p->first);
    const fmt_type *type = &p->types[fmt_page_u32(p, FMT_COLUMN_TYPE, row)];
    fmt_tape_record *r = &out->record;
    r->key.round = fmt_page_i32(p, FMT_COLUMN_ROUND, row);
    r->key.slot = fmt_page_i32(p, FMT_COLUMN_SLOT, row);
    r->key.rank = fmt_page_i32(p, FMT_COLUMN_RANK, row);
    r->key.name = ix->names.text[p->names[fmt_page_u32(p, FMT_COLUMN_NAME, row)]];
    r->tensor = type->tensor;
    r->place = (fmt_place)fmt_page_u8(p, FMT_COLUMN_PLACE, row);
    r->axis = fmt_page_u8(p, FMT_COLUMN_AXIS, row);
    r->n_ranks = fmt_page_i32(p, FMT_COLUMN_RANKS, row);
    r->tier = (fmt_tier)fmt_page_u8(p, FMT_COLUMN_TIER, row);
    r->hash = fmt_page_u64(p, FMT_COLUMN_HASH, row);
    r->stats.min = fmt_page_f64(p, FMT_COLUMN_MIN, row);
    r->stats.max = fmt_page_f64(p, FMT_COLUMN_MAX, row);
    r->stats.rms = fmt_page_f64(p, FMT_COLUMN_RMS, row);
    r->stats.n_nan = fmt_page_u64(p, FMT_COLUMN_NAN, row);
    r->stats.n_inf = fmt_page_u64(p, FMT_COLUMN_INF, row);
    r->stats.n_zero = fmt_page_u64(p, FMT_COLUMN_ZERO, row);
    r->stats.n_denormal = fmt_page_u64(p, FMT_COLUMN_DENORMAL, row);
    fmt_digests digests = p->column[FMT_COLUMN_DIGESTS] ? (fmt_digests)fmt_page_u8(p, FMT_COLUMN_DIGESTS, row) : 0;
    r->has_digest = digests != FMT_DIGESTS_NONE;
    r->digest = r->has_digest ? fmt_page_u64(p, FMT_COLUMN_DIGEST, row) : 0;
    r->n_digest_rows = digests == FMT_DIGESTS_ROWS ? fmt_tensor_rows(&r->tensor) : 0;
    r->raw_bytes = r->tier == FMT_TIER_TENSOR ? type->bytes : 0;
    r->stored_bytes = fmt_page_u64(p, FMT_COLUMN_STORED, row);
    r->first_chunk_offset = fmt_page_u64(p, FMT_COLUMN_CHUNK, row);
    r->n_parts = fmt_page_i32(p, FMT_COLUMN_PARTS, row);
    out->number = fmt_page_u32(p, FMT_COLUMN_RECORD, row);
    out->part = fmt_page_u32(p, FMT_COLUMN_PART, row);
}

/* ---- pages as chunks ---- */

/* Left out of a page whose records have no digest. */
static bool is_optional(int column) { return column == FMT_COLUMN_DIGEST || column == FMT_COLUMN_DIGESTS; }

static bool has_digests(const fmt_page *p)
{
    uint8_t any = 0;
    for (uint32_t r = 0; r < p->rows; r++) any |= fmt_page_u8(p, FMT_COLUMN_DIGESTS, r);
    return any;
}

void fmt_index_pack(const fmt_index *ix, const fmt_buf *events, uint32_t n_events, fmt_buf *meta, fmt_buf *body)
{
    const fmt_page none = { .first = ix->rows }, *page = ix->n_pages ? &ix->pages[ix->n_pages - 1] : &none;
    fmt_pack_map(meta, 6);
    fmt_pack_str(meta, "first");
    fmt_pack_uint(meta, page->first);
    fmt_pack_str(meta, "rows");
    fmt_pack_uint(meta, page->rows);
    fmt_pack_str(meta, "columns");
    bool digests = has_digests(page);
    fmt_pack_array(meta, FMT_COLUMN_COUNT - (digests ? 0u : 2u));
    for (int c = 0; c < FMT_COLUMN_COUNT; c++) {
        if (is_optional(c) && !digests) continue;
        fmt_pack_array(meta, 3);
        fmt_pack_str(meta, COLUMN[c].name);
        fmt_pack_str(meta, COLUMN[c].type);
        fmt_pack_uint(meta, body->used);
        fmt_buf_add(body, page->column[c], (size_t)COLUMN[c].width * page->rows);
    }
    fmt_pack_str(meta, "names");
    fmt_pack_array(meta, page->n_names);
    for (uint32_t i = 0; i < page->n_names; i++) fmt_pack_str(meta, ix->names.text[page->names[i]]);
    fmt_pack_str(meta, "types");
    fmt_pack_array(meta, page->n_types);
    for (uint32_t i = 0; i < page->n_types; i++) {
        fmt_pack_array(meta, 2);
        fmt_pack_str(meta, fmt_dtype_name(page->types[i].tensor.dtype));
        fmt_pack_shape(meta, &page->types[i].tensor);
    }
    fmt_pack_str(meta, "events");
    fmt_pack_array(meta, n_events);
    fmt_buf_add(meta, events->data, events->used);
}

void fmt_index_forget_pages(fmt_index *ix)
{
    for (size_t i = 0; i < ix->n_pages; i++) page_fini(&ix->pages[i]);
    ix->n_pages = 0;
}

static void unpack_columns(fmt_unpack *u, const fmt_chunk *c, fmt_page *p)
{
    for (uint32_t n = fmt_unpack_array(u); n && !u->bad; n--) {
        uint32_t name_bytes, type_bytes;
        if (fmt_unpack_array(u) != 3) { u->bad = true; return; }
        const char *name = fmt_unpack_str(u, &name_bytes), *type = fmt_unpack_str(u, &type_bytes);
        uint64_t offset = fmt_unpack_u64(u);
        for (int k = 0; k < FMT_COLUMN_COUNT && !u->bad; k++) {
            if (!fmt_unpack_is(name, name_bytes, COLUMN[k].name)) continue;
            bool fits = offset <= c->body_bytes && (uint64_t)COLUMN[k].width * p->rows <= c->body_bytes - offset;
            if (!fits || !fmt_unpack_is(type, type_bytes, COLUMN[k].type)) u->bad = true;
            else p->column[k] = c->body + offset;
        }
    }
}

static err_code unpack_names(fmt_index *ix, fmt_unpack *u, fmt_page *p, err *e)
{
    p->n_names = fmt_unpack_array(u);
    p->names = mem_alloc(p->n_names, sizeof *p->names);
    if (!p->names) return err_set(e, ERR_NOMEM, "tape index: no memory for %u names", p->n_names);
    for (uint32_t i = 0; i < p->n_names && !u->bad; i++) {
        uint32_t bytes;
        const char *s = fmt_unpack_str(u, &bytes);
        if (!s || bytes == 0 || bytes > FMT_TAPE_NAME_BYTES || memchr(s, 0, bytes)) u->bad = true;
        else if (!fmt_names_add(&ix->names, s, bytes, &p->names[i]))
            return err_set(e, ERR_NOMEM, "tape index: no memory for %u names", p->n_names);
    }
    return ERR_OK;
}

static err_code unpack_types(fmt_unpack *u, fmt_page *p, err *e)
{
    p->n_types = fmt_unpack_array(u);
    p->types = mem_alloc(p->n_types, sizeof *p->types);
    if (!p->types) return err_set(e, ERR_NOMEM, "tape index: no memory for %u types", p->n_types);
    for (uint32_t i = 0; i < p->n_types && !u->bad; i++) {
        if (fmt_unpack_array(u) != 2) u->bad = true;
        p->types[i].tensor.dtype = fmt_unpack_dtype(u);
        fmt_unpack_shape(u, &p->types[i]);
    }
    return ERR_OK;
}

/* Whether all of a column's numbers, plus add (which may wrap), are at most most. Without a branch in the loop, so that the
 * compiler makes vectors of it. */
#define DEFINE_AT_MOST(NAME, UINT, GET)                                                             \
    static bool NAME(const fmt_page *p, fmt_column c, UINT add, UINT most)                          \
    {                                                                                               \
        UINT worst = 0;                                                                             \
        for (uint32_t r = 0; r < p->rows; r++) {                                                    \
            UINT v = (UINT)(GET(p, c, r) + add);                                                    \
            worst = v > worst ? v : worst;                                                          \
        }                                                                                           \
        return worst <= most;                                                                       \
    }
DEFINE_AT_MOST(u8_at_most, uint8_t, fmt_page_u8)
DEFINE_AT_MOST(u32_at_most, uint32_t, fmt_page_u32)
DEFINE_AT_MOST(u64_at_most, uint64_t, fmt_page_u64)

/* Digests stand only where there is no tensor, and no row is counted that the record's parts could not hold. */
static bool digests_good(const fmt_page *p)
{
    if (!p->column[FMT_COLUMN_DIGESTS]) return !p->column[FMT_COLUMN_DIGEST];
    if (!p->column[FMT_COLUMN_DIGEST] || !u8_at_most(p, FMT_COLUMN_DIGESTS, 0, FMT_DIGESTS_ROWS)) return false;
    for (uint32_t r = 0; r < p->rows; r++) {
        fmt_digests digests = (fmt_digests)fmt_page_u8(p, FMT_COLUMN_DIGESTS, r);
        if (digests == FMT_DIGESTS_NONE) continue;
        if (fmt_page_u8(p, FMT_COLUMN_TIER, r) == FMT_TIER_TENSOR) return false;
        uint64_t rows = fmt_tensor_rows(&p->types[fmt_page_u32(p, FMT_COLUMN_TYPE, r)].tensor);
        uint64_t most = (uint64_t)fmt_page_u32(p, FMT_COLUMN_PARTS, r) * (FMT_TAPE_CHUNK_BYTES / sizeof(uint64_t));
        if (digests == FMT_DIGESTS_ROWS && (rows == 0 || rows > most)) return false;
    }
    return true;
}

/* What fmt_index_at and a caller's buffer for the value rely on. */
static bool rows_good(const fmt_page *p, uint64_t file_bytes)
{
    uint64_t parts_most = file_bytes / PART_BYTES_MIN < INT32_MAX ? file_bytes / PART_BYTES_MIN : INT32_MAX, longest = 0;
    if (p->rows == 0) return true;
    if (p->n_names == 0 || p->n_types == 0 || parts_most == 0) return false;
    bool good = u32_at_most(p, FMT_COLUMN_NAME, 0, p->n_names - 1) && u32_at_most(p, FMT_COLUMN_TYPE, 0, p->n_types - 1) &&
                u8_at_most(p, FMT_COLUMN_PLACE, 0, FMT_PLACE_PARTIAL) && u8_at_most(p, FMT_COLUMN_TIER, 0, FMT_TIER_HASH) &&
                u8_at_most(p, FMT_COLUMN_AXIS, 0, FMT_DIMS_MAX - 1) &&
                u32_at_most(p, FMT_COLUMN_RANKS, (uint32_t)-1, INT32_MAX - 1) && /* 1.. */
                u32_at_most(p, FMT_COLUMN_ROUND, 0, INT32_MAX) &&
                u32_at_most(p, FMT_COLUMN_SLOT, 1, (uint32_t)INT32_MAX + 1) && /* -1.. */
                u32_at_most(p, FMT_COLUMN_RANK, 1, (uint32_t)INT32_MAX + 1) &&
                u64_at_most(p, FMT_COLUMN_CHUNK, 0, file_bytes - 1) &&
                u32_at_most(p, FMT_COLUMN_PARTS, (uint32_t)-1, (uint32_t)parts_most - 1);
    if (!good || !digests_good(p)) return false;
    for (uint32_t i = 0; i < p->n_types; i++) longest = p->types[i].bytes > longest ? p->types[i].bytes : longest;
    for (uint32_t r = 0; r < p->rows && longest > FMT_TAPE_CHUNK_BYTES; r++)
        if (fmt_page_u8(p, FMT_COLUMN_TIER, r) == FMT_TIER_TENSOR &&
            p->types[fmt_page_u32(p, FMT_COLUMN_TYPE, r)].bytes >
                (uint64_t)fmt_page_u32(p, FMT_COLUMN_PARTS, r) * FMT_TAPE_CHUNK_BYTES)
            return false;
    return true;
}

err_code fmt_index_load(fmt_index *ix, const fmt_chunk *c, uint64_t file_bytes, fmt_unpack *events, uint32_t *n_events,
                        err *e)
{
    fmt_page p = { .first = ix->rows };
    fmt_unpack u = fmt_unpack_of(c->meta, c->meta_bytes);
    uint64_t first = UINT64_MAX;
    err_code rc = ERR_OK;
    *events = fmt_unpack_of(NULL, 0);
    *n_events = 0;
    for (uint32_t n = fmt_unpack_map(&u); n && !u.bad && rc == ERR_OK; n--) {
        uint32_t bytes;
        const char *key = fmt_unpack_str(&u, &bytes);
        if (fmt_unpack_is(key, bytes, "first")) first = fmt_unpack_u64(&u);
        else if (fmt_unpack_is(key, bytes, "rows")) p.rows = (uint32_t)fmt_unpack_int(&u, 0, FMT_TAPE_CHUNK_BYTES);
        else if (fmt_unpack_is(key, bytes, "columns")) unpack_columns(&u, c, &p);
        else if (fmt_unpack_is(key, bytes, "names") && !p.names) rc = unpack_names(ix, &u, &p, e);
        else if (fmt_unpack_is(key, bytes, "types") && !p.types) rc = unpack_types(&u, &p, e);
        else if (fmt_unpack_is(key, bytes, "events")) {
            *events = u;
            fmt_unpack_skip(&u);
            *n_events = fmt_unpack_array(events);
        } else fmt_unpack_skip(&u);
    }
    bool good = !u.bad && first == p.first && p.names && p.types;
    for (int k = 0; k < FMT_COLUMN_COUNT && good; k++) /* again: "rows" may have come after "columns" */
        good = p.column[k] ? (uint64_t)COLUMN[k].width * p.rows <= (uint64_t)(c->body + c->body_bytes - p.column[k])
                           : is_optional(k);
    if (rc == ERR_OK && !(good && rows_good(&p, file_bytes)))
        rc = err_set(e, ERR_FORMAT, "index chunk %u at byte %" PRIu64 ": its tables break TAPE.md's rules", c->sequence,
                     c->offset);
    if (rc == ERR_OK && !mem_grow((void **)&ix->pages, &ix->cap, ix->n_pages + 1, sizeof *ix->pages))
        rc = err_set(e, ERR_NOMEM, "tape index: no memory for page %zu", ix->n_pages);
    if (rc != ERR_OK) {
        page_fini(&p);
        return rc;
    }
    ix->pages[ix->n_pages++] = p;
    ix->rows += p.rows;
    return ERR_OK;
}

void fmt_index_fini(fmt_index *ix)
{
    fmt_index_forget_pages(ix);
    free(ix->pages);
    free(ix->local);
    free(ix->last_type);
    fmt_names_fini(&ix->names);
    *ix = (fmt_index){ 0 };
}
