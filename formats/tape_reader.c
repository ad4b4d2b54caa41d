/* Reading: open through the index or by a scan, look records up, decode values. Scanning and reading are in one file
 * because a tape being followed does both at once on the same state. */
#include "formats/tape_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PENDING_MAX = 64, /* records whose parts are still coming: the ranks of one value at most */
    SLOTS = 8,        /* decoded chunks kept; one is 1 MiB at most */
};

typedef struct pending_record { fmt_row row; uint64_t filled; } pending_record;

typedef struct event_ref {
    int32_t round;
    uint64_t offset;
    size_t bytes;
    json_t *json; /* made when asked for */
} event_ref;

typedef struct round_span { int32_t round; uint64_t first, last; } round_span;

typedef enum slot_state { SLOT_EMPTY, SLOT_LOADING, SLOT_READY } slot_state;

/* A decoded data chunk. */
typedef struct slot {
    slot_state state;
    uint64_t offset, used_at;
    int users;
    fmt_chunk chunk;
    fmt_parts parts;
    uint8_t *payload;
    size_t payload_cap;
} slot;

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
    event_ref *events;
    size_t n_events, event_cap;
    fmt_tape_fault *faults;
    size_t n_faults, fault_cap;
    /* the scan */
    uint64_t scan_at, n_chunks;
    uint32_t next_sequence, next_number;
    pending_record pending[PENDING_MAX];
    int n_pending;
    fmt_tape_lost *lost;
    size_t n_lost, lost_cap;
    /* made when asked for, under the lock, like the slots */
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint32_t *find; /* row + 1 by key; 0 is free */
    size_t find_cap;
    uint64_t find_rows;
    round_span *spans;
    int32_t *rounds;
    size_t n_rounds;
    uint64_t round_rows;
    slot slots[SLOTS];
    uint64_t tick;
};

/* ---- faults and losses ---- */

static __attribute__((format(printf, 6, 7))) err_code fault(fmt_tape *t, uint64_t offset, uint64_t span, int64_t chunk,
                                                            err *e, const char *format, ...)
{
    if (!mem_grow((void **)&t->faults, &t->fault_cap, t->n_faults + 1, sizeof *t->faults))
        return err_set(e, ERR_NOMEM, "%s: no memory for the list of faults", t->path);
    fmt_tape_fault *f = &t->faults[t->n_faults++];
    *f = (fmt_tape_fault){ .offset_bytes = offset, .span_bytes = span, .chunk = chunk };
    va_list args;
    va_start(args, format);
    vsnprintf(f->what, sizeof f->what, format, args);
    va_end(args);
    return ERR_OK;
}

const char *fmt_tape_key_text(const fmt_tape_key *key, char *buf, size_t buf_bytes)
{
    char slot_text[16] = "-", rank_text[16] = "";
    if (key->slot != FMT_TAPE_NO_SLOT) snprintf(slot_text, sizeof slot_text, "%d", key->slot);
    if (key->rank != FMT_TAPE_NO_RANK) snprintf(rank_text, sizeof rank_text, "@r%d", key->rank);
    snprintf(buf, buf_bytes, "%d/%s/%s%s", key->round, slot_text, key->name, rank_text);
    return buf;
}

static err_code lose(fmt_tape *t, uint32_t number, const fmt_tape_key *key, uint64_t offset, err *e)
{
    if (!mem_grow((void **)&t->lost, &t->lost_cap, t->n_lost + 1, sizeof *t->lost))
        return err_set(e, ERR_NOMEM, "%s: no memory for the list of losses", t->path);
    fmt_tape_lost *l = &t->lost[t->n_lost++];
    l->number = number;
    l->round = key->round;
    l->offset = offset;
    fmt_tape_key_text(key, l->key, sizeof l->key);
    return ERR_OK;
}

/* ---- scanning ---- */

static err_code drop_pending(fmt_tape *t, int i, bool lost, err *e)
{
    fmt_row *row = &t->pending[i].row;
    err_code rc = lost ? lose(t, row->number, &row->record.key, row->record.first_chunk_offset, e) : ERR_OK;
    memmove(&t->pending[i], &t->pending[i + 1], sizeof t->pending[0] * (size_t)(t->n_pending - i - 1));
    t->n_pending--;
    return rc;
}

static bool same_record(const fmt_tape_record *a, const fmt_tape_record *b)
{
    return a->key.round == b->key.round && a->key.slot == b->key.slot && a->key.rank == b->key.rank &&
           a->key.name == b->key.name && a->hash == b->hash && a->raw_bytes == b->raw_bytes &&
           a->tensor.dtype == b->tensor.dtype;
}

/* A part whose bytes are good. The record joins the index with its last part. */
static err_code take_part(fmt_tape *t, const fmt_chunk *c, const fmt_part *p, uint32_t at, const fmt_tape_key *key, err *e)
{
    fmt_row row = { .record = p->record, .number = p->number, .part = at };
    row.record.key = *key;
    row.record.first_chunk_offset = c->offset;
    row.record.stored_bytes = p->bytes;
    row.record.n_parts = 1;
    if (p->first == 0) {
        if (p->number < t->next_number) return lose(t, p->number, key, c->offset, e); /* a chunk from elsewhere */
        t->next_number = p->number + 1;
        if (fmt_part_whole(p)) return fmt_index_add(&t->index, &row, e);
        if (t->n_pending == PENDING_MAX) TRY(drop_pending(t, 0, true, e));
        t->pending[t->n_pending++] = (pending_record){ row, p->elems };
        return ERR_OK;
    }
    if (p->number >= t->next_number) t->next_number = p->number + 1;
    int i = 0;
    while (i < t->n_pending && t->pending[i].row.number != p->number) i++;
    if (i == t->n_pending) return lose(t, p->number, key, c->offset, e);
    pending_record *have = &t->pending[i];
    if (have->filled != p->first || !same_record(&have->row.record, &row.record)) return drop_pending(t, i, true, e);
    have->filled += p->elems;
    have->row.record.stored_bytes += p->bytes;
    have->row.record.n_parts++;
    if (have->filled < (uint64_t)fmt_tensor_elems(&p->record.tensor)) return ERR_OK;
    TRY(fmt_index_add(&t->index, &have->row, e));
    return drop_pending(t, i, false, e);
}

/* Notes the next event of u, [round, event], lying in chunk c. */
static err_code take_event(fmt_tape *t, fmt_unpack *u, err *e)
{
    event_ref ref = { 0 };
    ref.round = (int32_t)fmt_unpack_int(u, 0, INT32_MAX);
    const uint8_t *at = fmt_unpack_span(u, &ref.bytes);
    if (!at) return ERR_OK;
    ref.offset = (uint64_t)(at - t->map);
    if (!mem_grow((void **)&t->events, &t->event_cap, t->n_events + 1, sizeof *t->events))
        return err_set(e, ERR_NOMEM, "%s: no memory for events", t->path);
    t->events[t->n_events++] = ref;
    return ERR_OK;
}

static err_code take_parts(fmt_tape *t, const fmt_chunk *c, const fmt_parts *parts, bool body_good, err *e)
{
    for (size_t i = 0; i < parts->n; i++) {
        const fmt_part *p = &parts->part[i];
        uint32_t name;
        if (!fmt_names_add(&t->index.names, p->name, p->name_bytes, &name))
            return err_set(e, ERR_NOMEM, "%s: no memory for names", t->path);
        fmt_tape_key key = p->record.key;
        key.name = t->index.names.text[name];
        /* Facts without a payload stand in the meta and survive a damaged body. */
        if (body_good || p->elems == 0) {
            TRY(take_part(t, c, p, (uint32_t)i, &key, e));
        } else {
            if (p->number >= t->next_number) t->next_number = p->number + 1;
            TRY(lose(t, p->number, &key, c->offset, e));
        }
    }
    return ERR_OK;
}

static err_code take_data(fmt_tape *t, const fmt_chunk *c, err *e)
{
    uint64_t span = fmt_chunk_end(c) - c->offset;
    bool meta_good;
    err why;
    bool body_good = fmt_chunk_check(c, &meta_good, &why) == ERR_OK;
    if (!body_good) TRY(fault(t, c->offset, span, c->sequence, e, "%s", why.msg));
    if (!meta_good) return ERR_OK;
    fmt_parts parts;
    err_code rc = fmt_parts_get(c, &parts, &why);
    if (rc == ERR_FORMAT) return fault(t, c->offset, span, c->sequence, e, "%s", why.msg);
    if (rc != ERR_OK) { if (e) *e = why; return rc; }
    if (body_good) t->n_chunks++;
    rc = take_parts(t, c, &parts, body_good, e);
    for (uint32_t i = 0; i < parts.n_events && rc == ERR_OK && !parts.events.bad; i++) {
        if (fmt_unpack_array(&parts.events) != 3) break;
        fmt_unpack_skip(&parts.events); /* parts before it: writing order among records */
        rc = take_event(t, &parts.events, e);
    }
    fmt_parts_fini(&parts);
    return rc;
}

static json_t *unpack_object(const uint8_t *data, size_t bytes)
{
    json_t *j = NULL;
    err ignored;
    if (fmt_msgpack_unpack(data, bytes, &j, &ignored) != ERR_OK) return NULL;
    if (json_is_object(j)) return j;
    json_decref(j);
    return NULL;
}

/* Reads a checked end chunk. false: it breaks the rules. */
static bool take_end(fmt_tape *t, const fmt_chunk *c)
{
    fmt_unpack u = fmt_unpack_of(c->meta, c->meta_bytes);
    fmt_tape_end end = { .good = true, .offset = c->offset };
    const uint8_t *summary = NULL, *head = NULL;
    size_t summary_bytes = 0, head_bytes = 0;
    for (uint32_t n = fmt_unpack_map(&u); n && !u.bad; n--) {
        uint32_t bytes;
        const char *key = fmt_unpack_str(&u, &bytes);
        if (fmt_unpack_is(key, bytes, "records")) end.records = fmt_unpack_u64(&u);
        else if (fmt_unpack_is(key, bytes, "events")) end.events = fmt_unpack_u64(&u);
        else if (fmt_unpack_is(key, bytes, "chunks")) end.chunks = fmt_unpack_u64(&u);
        else if (fmt_unpack_is(key, bytes, "summary")) summary = fmt_unpack_span(&u, &summary_bytes);
        else if (fmt_unpack_is(key, bytes, "head")) head = fmt_unpack_span(&u, &head_bytes);
        else if (fmt_unpack_is(key, bytes, "index")) end.pages = fmt_unpack_span(&u, &end.pages_bytes);
        else fmt_unpack_skip(&u);
    }
    if (u.bad || !end.pages || !summary || !head) return false;
    t->end = end;
    json_decref(t->summary);
    t->summary = unpack_object(summary, summary_bytes);
    if (!t->head) t->head = unpack_object(head, head_bytes); /* the spare copy */
    return true;
}

static err_code take_chunk(fmt_tape *t, const fmt_chunk *c, err *e)
{
    uint64_t span = fmt_chunk_end(c) - c->offset;
    err why;
    if (c->kind == FMT_CHUNK_DATA) return take_data(t, c, e);
    if (fmt_chunk_check(c, NULL, &why) != ERR_OK) return fault(t, c->offset, span, c->sequence, e, "%s", why.msg);
    bool good = true;
    if (c->kind == FMT_CHUNK_HEAD) {
        good = c->offset == FMT_PRELUDE_BYTES && !t->head && (t->head = unpack_object(c->meta, c->meta_bytes)) != NULL;
    } else if (c->kind == FMT_CHUNK_END) {
        good = take_end(t, c);
    }
    if (good) t->n_chunks++;
    else return fault(t, c->offset, span, c->sequence, e, "%s chunk %u at byte %" PRIu64 ": its meta breaks TAPE.md's rules",
                      fmt_chunk_kind_name(c->kind), c->sequence, c->offset);
    return ERR_OK; /* index pages are not needed by a scan, kinds of a later minor version are stepped over */
}

/* Takes the chunks from scan_at on, up to the end or to where no sound chunk follows: the torn tail of a tape that its
 * writer did not finish, or has not yet. */
static err_code scan(fmt_tape *t, err *e)
{
    while (t->scan_at < t->map_bytes && !t->end.good) {
        fmt_chunk c;
        err why;
        if (fmt_chunk_get(t->map, t->map_bytes, t->scan_at, &c, &why) != ERR_OK) {
            uint64_t next = fmt_chunk_resync(t->map, t->map_bytes, t->scan_at + 1);
            if (next == t->map_bytes) return ERR_OK;
            TRY(fault(t, t->scan_at, next - t->scan_at, -1, e, "%s", why.msg));
            t->scan_at = next;
            t->next_sequence = UINT32_MAX; /* how many were lost is not known */
            continue;
        }
        if (t->next_sequence != UINT32_MAX && c.sequence != t->next_sequence)
            TRY(fault(t, c.offset, 0, c.sequence, e, "byte %" PRIu64 ": found chunk %u, wanted chunk %u: chunks are missing",
                      c.offset, c.sequence, t->next_sequence));
        t->next_sequence = c.sequence + 1;
        TRY(take_chunk(t, &c, e));
        t->scan_at = fmt_chunk_end(&c);
    }
    if (!t->end.good) return ERR_OK;
    uint64_t left = t->map_bytes - t->scan_at, end_offset;
    if (left != FMT_TRAILER_BYTES || !fmt_trailer_get(t->map + t->scan_at, &end_offset) || end_offset != t->end.offset)
        return fault(t, t->scan_at, left, -1, e, "byte %" PRIu64 ": found %" PRIu64
                     " bytes that are not the trailer, wanted %d bytes that name byte %" PRIu64, t->scan_at, left,
                     FMT_TRAILER_BYTES, t->end.offset);
    return ERR_OK;
}

/* ---- opening ---- */

static err_code load_pages(fmt_tape *t, err *e)
{
    fmt_unpack u = fmt_unpack_of(t->end.pages, t->end.pages_bytes);
    for (uint32_t n = fmt_unpack_array(&u); n && !u.bad; n--) {
        uint64_t offset = fmt_unpack_u64(&u);
        fmt_chunk c;
        fmt_unpack events;
        uint32_t n_events;
        TRY(fmt_chunk_get(t->map, t->map_bytes, offset, &c, e));
        TRY(fmt_chunk_check(&c, NULL, e));
        if (c.kind != FMT_CHUNK_INDEX)
            return err_set(e, ERR_FORMAT, "byte %" PRIu64 ": found a %s chunk, wanted an index page", offset,
                           fmt_chunk_kind_name(c.kind));
        TRY(fmt_index_load(&t->index, &c, t->map_bytes, &events, &n_events, e));
        for (uint32_t i = 0; i < n_events && !events.bad; i++) {
            if (fmt_unpack_array(&events) != 2) break;
            TRY(take_event(t, &events, e));
        }
    }
    if (u.bad || t->index.rows != t->end.records || t->n_events != t->end.events)
        return err_set(e, ERR_FORMAT, "end chunk at byte %" PRIu64 ": found %" PRIu64 " records and %zu events in the index, "
                       "wanted %" PRIu64 " and %" PRIu64, t->end.offset, t->index.rows, t->n_events, t->end.records,
                       t->end.events);
    return ERR_OK;
}

/* Head, end and index pages: all that opening a finished tape touches. ERR_FORMAT: it has to be scanned. */
static err_code open_indexed(fmt_tape *t, err *e)
{
    fmt_chunk head, end;
    uint64_t offset;
    if (t->map_bytes < FMT_PRELUDE_BYTES + FMT_TRAILER_BYTES ||
        !fmt_trailer_get(t->map + t->map_bytes - FMT_TRAILER_BYTES, &offset))
        return err_set(e, ERR_FORMAT, "no trailer");
    TRY(fmt_chunk_get(t->map, t->map_bytes, FMT_PRELUDE_BYTES, &head, e));
    TRY(fmt_chunk_check(&head, NULL, e));
    if (head.kind != FMT_CHUNK_HEAD || !(t->head = unpack_object(head.meta, head.meta_bytes)))
        return err_set(e, ERR_FORMAT, "no head");
    TRY(fmt_chunk_get(t->map, t->map_bytes, offset, &end, e));
    TRY(fmt_chunk_check(&end, NULL, e));
    if (end.kind != FMT_CHUNK_END || fmt_chunk_end(&end) != t->map_bytes - FMT_TRAILER_BYTES || !take_end(t, &end))
        return err_set(e, ERR_FORMAT, "no end");
    return load_pages(t, e);
}

static void forget(fmt_tape *t)
{
    fmt_index_fini(&t->index);
    json_decref(t->head);
    json_decref(t->summary);
    for (size_t i = 0; i < t->n_events; i++) json_decref(t->events[i].json);
    t->head = t->summary = NULL;
    t->n_events = 0;
    t->end = (fmt_tape_end){ 0 };
}

static err_code map_file(fmt_tape *t, err *e)
{
    struct stat st;
    if (fstat(t->fd, &st) != 0) return err_set(e, ERR_IO, "cannot be examined: %s", strerror(errno));
    if (!S_ISREG(st.st_mode)) return err_set(e, ERR_FORMAT, "not a tape: no regular file");
    if (st.st_size == 0) return err_set(e, ERR_FORMAT, "not a tape: empty");
    if ((uint64_t)st.st_size == t->map_bytes) return ERR_OK;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, t->fd, 0);
    if (map == MAP_FAILED) return err_set(e, ERR_IO, "cannot be mapped: %s", strerror(errno));
    if (t->map) munmap((void *)t->map, t->map_bytes);
    t->map = map;
    t->map_bytes = (uint64_t)st.st_size;
    return ERR_OK;
}

static err_code open_scanned(fmt_tape *t, err *e)
{
    t->scan_at = t->map_bytes < FMT_PRELUDE_BYTES ? t->map_bytes : FMT_PRELUDE_BYTES;
    TRY(scan(t, e));
    if (t->head) return ERR_OK;
    t->head_lost = true;
    if (t->mode == FMT_OPEN_SURVEY)
        return (t->head = json_object()) ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a head");
    return err_set(e, ERR_FORMAT, "the head is missing or damaged: %s; sparktape recover saves the values",
                   t->n_faults ? t->faults[0].what : "no sound head chunk");
}

static err_code open_tape(fmt_tape *t, err *e)
{
    bool unknown_major;
    err why;
    t->fd = open(t->path, O_RDONLY | O_CLOEXEC);
    if (t->fd < 0) return err_set(e, ERR_IO, "cannot be opened: %s", strerror(errno));
    TRY(map_file(t, e));
    if (fmt_prelude_get(t->map, t->map_bytes, &t->minor, &unknown_major, &why) != ERR_OK) {
        fmt_chunk first;
        bool tape = fmt_prelude_is_tape(t->map, t->map_bytes) ||
                    fmt_chunk_get(t->map, t->map_bytes, FMT_PRELUDE_BYTES, &first, NULL) == ERR_OK ||
                    (t->mode == FMT_OPEN_SURVEY && fmt_chunk_resync(t->map, t->map_bytes, 0) < t->map_bytes);
        if (unknown_major) return err_set(e, ERR_FORMAT, "%s", why.msg);
        if (!tape) return err_set(e, ERR_FORMAT, "not a tape: %s", why.msg);
        TRY(fault(t, 0, FMT_PRELUDE_BYTES, -1, e, "%s", why.msg));
    }
    if (t->mode == FMT_OPEN_NORMAL) {
        err_code rc = open_indexed(t, &why);
        if (rc == ERR_OK) return ERR_OK;
        if (rc != ERR_FORMAT) { if (e) *e = why; return rc; }
        forget(t);
    }
    return open_scanned(t, e);
}

err_code fmt_tape_open_mode(const char *path, fmt_open_mode mode, fmt_tape **out, err *e)
{
    *out = NULL;
    err why = { 0 };
    fmt_tape *t = mem_alloc(1, sizeof *t);
    if (!t) return err_set(e, ERR_NOMEM, "%s: no memory for a tape", path);
    t->fd = -1;
    t->mode = mode;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->change, NULL);
    t->path = mem_strdup(path);
    err_code rc = t->path ? open_tape(t, &why) : err_set(&why, ERR_NOMEM, "no memory for a tape");
    if (rc != ERR_OK) {
        fmt_tape_close(t);
        return err_set(e, rc, "%s: %s", path, why.msg);
    }
    *out = t;
    return ERR_OK;
}

err_code fmt_tape_open(const char *path, fmt_tape **out, err *e)
{
    return fmt_tape_open_mode(path, FMT_OPEN_NORMAL, out, e);
}

void fmt_tape_close(fmt_tape *t)
{
    if (!t) return;
    forget(t);
    json_decref(t->end_json);
    for (int i = 0; i < SLOTS; i++) {
        fmt_parts_fini(&t->slots[i].parts);
        free(t->slots[i].payload);
    }
    free(t->events);
    free(t->faults);
    free(t->lost);
    free(t->find);
    free(t->spans);
    free(t->rounds);
    if (t->map) munmap((void *)t->map, t->map_bytes);
    if (t->fd >= 0) close(t->fd);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->change);
    free(t->path);
    free(t);
}

err_code fmt_tape_poll(fmt_tape *t, size_t *n_new, err *e)
{
    uint64_t rows = t->index.rows, had = t->map_bytes;
    err why = { 0 };
    *n_new = 0;
    if (t->end.good) return ERR_OK;
    err_code rc = map_file(t, &why);
    if (rc == ERR_OK && t->map_bytes < had)
        rc = err_set(&why, ERR_FORMAT, "found %" PRIu64 " bytes, there were %" PRIu64 ": the file was cut", t->map_bytes, had);
    if (rc == ERR_OK && t->map_bytes != had) {
        for (int i = 0; i < SLOTS; i++) t->slots[i].state = SLOT_EMPTY; /* their names point into the old map */
        rc = scan(t, &why);
    }
    if (rc != ERR_OK) return err_set(e, rc, "%s: %s", t->path, why.msg);
    *n_new = (size_t)(t->index.rows - rows);
    return ERR_OK;
}

/* ---- facts ---- */

const char *fmt_tape_path(const fmt_tape *t) { return t->path; }
const json_t *fmt_tape_head(const fmt_tape *t) { return t->head; }
const json_t *fmt_tape_summary(const fmt_tape *t) { return t->summary; }
bool fmt_tape_finished(const fmt_tape *t) { return t->end.good; }
int fmt_tape_minor(const fmt_tape *t) { return t->minor; }
uint64_t fmt_tape_file_bytes(const fmt_tape *t) { return t->map_bytes; }
size_t fmt_tape_count(const fmt_tape *t) { return (size_t)t->index.rows; }
size_t fmt_tape_event_count(const fmt_tape *t) { return t->n_events; }
const fmt_tape_end *fmt_tape_end_of(const fmt_tape *t) { return &t->end; }
bool fmt_tape_head_lost(const fmt_tape *t) { return t->head_lost; }
uint64_t fmt_tape_chunks(const fmt_tape *t) { return t->n_chunks; }
uint64_t fmt_tape_torn_bytes(const fmt_tape *t) { return t->end.good ? 0 : t->map_bytes - t->scan_at; }
uint32_t fmt_tape_next_number(const fmt_tape *t) { return t->next_number; }
const fmt_index *fmt_tape_index(const fmt_tape *t) { return &t->index; }
const uint8_t *fmt_tape_map(const fmt_tape *t) { return t->map; }

size_t fmt_tape_damage(const fmt_tape *t, const fmt_tape_fault **faults)
{
    *faults = t->faults;
    return t->n_faults;
}

size_t fmt_tape_lost_records(const fmt_tape *t, const fmt_tape_lost **out)
{
    /* What is still pending when nothing more comes is lost too. */
    fmt_tape *self = (fmt_tape *)t;
    err ignored;
    while (self->n_pending && drop_pending(self, 0, true, &ignored) == ERR_OK) { }
    *out = t->lost;
    return t->n_lost;
}

void fmt_tape_at(const fmt_tape *t, size_t i, fmt_tape_record *r)
{
    fmt_row row;
    fmt_index_at(&t->index, i, &row);
    *r = row.record;
}

const json_t *fmt_tape_end_json(fmt_tape *t)
{
    fmt_chunk c;
    if (!t->end_json && t->end.good && fmt_chunk_get(t->map, t->map_bytes, t->end.offset, &c, NULL) == ERR_OK)
        t->end_json = unpack_object(c.meta, c.meta_bytes);
    return t->end_json;
}

const json_t *fmt_tape_event_at(const fmt_tape *t, size_t i, int32_t *round)
{
    CHECK(i < t->n_events);
    fmt_tape *self = (fmt_tape *)t;
    event_ref *ref = &self->events[i];
    *round = ref->round;
    pthread_mutex_lock(&self->lock);
    if (!ref->json) ref->json = unpack_object(t->map + ref->offset, ref->bytes);
    if (!ref->json) ref->json = json_object(); /* no object by our rules, though its chunk is sound */
    const json_t *json = ref->json;
    pthread_mutex_unlock(&self->lock);
    return json;
}

/* ---- looking up ---- */

static uint64_t key_hash(int32_t round, int32_t slot_number, int32_t rank, uint32_t name)
{
    uint64_t h = ((uint64_t)(uint32_t)round << 32 | name) * 0x9e3779b97f4a7c15u;
    h ^= (((uint64_t)(uint32_t)slot_number << 32 | (uint32_t)rank) + 0x632be59bd9b4e019u) * 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    return h * 0x9e3779b97f4a7c15u >> 16;
}

/* The place of a key in the table: its row, or a free one. */
static uint32_t *find_slot(const fmt_tape *t, int32_t round, int32_t slot_number, int32_t rank, uint32_t name)
{
    size_t at = key_hash(round, slot_number, rank, name) & (t->find_cap - 1);
    for (; t->find[at]; at = (at + 1) & (t->find_cap - 1)) {
        const fmt_page *p = fmt_index_page(&t->index, t->find[at] - 1);
        uint32_t r = (uint32_t)(t->find[at] - 1 - p->first);
        if (fmt_page_i32(p, FMT_COLUMN_ROUND, r) == round && fmt_page_i32(p, FMT_COLUMN_SLOT, r) == slot_number &&
            fmt_page_i32(p, FMT_COLUMN_RANK, r) == rank && p->names[fmt_page_u32(p, FMT_COLUMN_NAME, r)] == name)
            break;
    }
    return &t->find[at];
}

/* Brings the table up to the rows there are. false: no memory. */
static bool find_ready(fmt_tape *t)
{
    if (t->index.rows > UINT32_MAX / 4) return false;
    if (2 * t->index.rows >= t->find_cap) {
        size_t cap = 64;
        while (cap <= 2 * t->index.rows) cap *= 2;
        uint32_t *table = mem_alloc(cap, sizeof *table);
        if (!table) return false;
        free(t->find);
        t->find = table;
        t->find_cap = cap;
        t->find_rows = 0;
    }
    for (; t->find_rows < t->index.rows; t->find_rows++) {
        const fmt_page *p = fmt_index_page(&t->index, t->find_rows);
        uint32_t r = (uint32_t)(t->find_rows - p->first);
        uint32_t *at = find_slot(t, fmt_page_i32(p, FMT_COLUMN_ROUND, r), fmt_page_i32(p, FMT_COLUMN_SLOT, r),
                                 fmt_page_i32(p, FMT_COLUMN_RANK, r), p->names[fmt_page_u32(p, FMT_COLUMN_NAME, r)]);
        if (!*at) *at = (uint32_t)t->find_rows + 1;
    }
    return true;
}

int64_t fmt_tape_find(const fmt_tape *t, const fmt_tape_key *key)
{
    fmt_tape *self = (fmt_tape *)t;
    int64_t name = fmt_names_find(&t->index.names, key->name, strlen(key->name)), found = -1;
    if (name < 0) return -1;
    pthread_mutex_lock(&self->lock);
    if (find_ready(self)) found = (int64_t)*find_slot(t, key->round, key->slot, key->rank, (uint32_t)name) - 1;
    pthread_mutex_unlock(&self->lock);
    return found;
}

static int by_round(const void *a, const void *b)
{
    const round_span *x = a, *y = b;
    if (x->round != y->round) return x->round < y->round ? -1 : 1;
    return x->first < y->first ? -1 : 1;
}

/* Makes spans and rounds for the rows there are. */
static bool rounds_ready(fmt_tape *t)
{
    if (t->round_rows == t->index.rows) return true;
    round_span *spans = NULL;
    size_t n = 0, cap = 0, merged = 0;
    bool sorted = true;
    for (size_t k = 0; k < t->index.n_pages; k++) {
        const fmt_page *p = &t->index.pages[k];
        for (uint32_t r = 0; r < p->rows; r++) {
            int32_t round = fmt_page_i32(p, FMT_COLUMN_ROUND, r);
            if (n && spans[n - 1].round == round) { spans[n - 1].last = p->first + r; continue; }
            if (n && spans[n - 1].round > round) sorted = false;
            if (!mem_grow((void **)&spans, &cap, n + 1, sizeof *spans)) { free(spans); return false; }
            spans[n++] = (round_span){ round, p->first + r, p->first + r };
        }
    }
    if (!sorted) qsort(spans, n, sizeof *spans, by_round);
    int32_t *rounds = mem_alloc(n, sizeof *rounds);
    if (!rounds) { free(spans); return false; }
    for (size_t i = 0; i < n; i++) {
        if (merged && spans[merged - 1].round == spans[i].round) {
            if (spans[i].last > spans[merged - 1].last) spans[merged - 1].last = spans[i].last;
            continue;
        }
        rounds[merged] = spans[i].round;
        spans[merged++] = spans[i];
    }
    free(t->spans);
    free(t->rounds);
    t->spans = spans;
    t->rounds = rounds;
    t->n_rounds = merged;
    t->round_rows = t->index.rows;
    return true;
}

void fmt_tape_round_span(const fmt_tape *t, int32_t round, size_t *first, size_t *n)
{
    fmt_tape *self = (fmt_tape *)t;
    *first = *n = 0;
    pthread_mutex_lock(&self->lock);
    size_t lo = 0, hi = rounds_ready(self) ? t->n_rounds : 0;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (t->spans[mid].round < round) lo = mid + 1;
        else hi = mid;
    }
    if (lo < t->n_rounds && t->spans[lo].round == round) {
        *first = (size_t)t->spans[lo].first;
        *n = (size_t)(t->spans[lo].last - t->spans[lo].first + 1);
    }
    pthread_mutex_unlock(&self->lock);
}

size_t fmt_tape_rounds(const fmt_tape *t, const int32_t **rounds)
{
    fmt_tape *self = (fmt_tape *)t;
    pthread_mutex_lock(&self->lock);
    size_t n = rounds_ready(self) ? t->n_rounds : 0;
    *rounds = t->rounds;
    pthread_mutex_unlock(&self->lock);
    return n;
}

/* ---- values ---- */

static err_code load_slot(const fmt_tape *t, slot *s, err *e)
{
    fmt_parts_fini(&s->parts);
    TRY(fmt_chunk_get(t->map, t->map_bytes, s->offset, &s->chunk, e));
    if (s->chunk.kind != FMT_CHUNK_DATA) return ERR_OK; /* an index page among the data: stepped over */
    TRY(fmt_chunk_check(&s->chunk, NULL, e));
    TRY(fmt_parts_get(&s->chunk, &s->parts, e));
    return fmt_payload_get(&s->chunk, &s->parts, &s->payload, &s->payload_cap, e);
}

/* The decoded chunk at offset, shared between threads until release. */
static err_code acquire(fmt_tape *t, uint64_t offset, slot **out, err *e)
{
    pthread_mutex_lock(&t->lock);
    for (;;) {
        slot *best = NULL, *have = NULL;
        for (int i = 0; i < SLOTS; i++) {
            slot *s = &t->slots[i];
            if (s->state != SLOT_EMPTY && s->offset == offset) have = s;
            else if (s->users == 0 && s->state != SLOT_LOADING && (!best || s->used_at < best->used_at)) best = s;
        }
        slot *s = have ? have : best;
        if (!s || s->state == SLOT_LOADING) { /* all are in use, or another thread is at it */
            pthread_cond_wait(&t->change, &t->lock);
            continue;
        }
        s->used_at = ++t->tick;
        s->users++;
        *out = s;
        if (have) break;
        s->state = SLOT_LOADING;
        s->offset = offset;
        pthread_mutex_unlock(&t->lock);
        err_code rc = load_slot(t, s, e);
        pthread_mutex_lock(&t->lock);
        s->state = rc == ERR_OK ? SLOT_READY : SLOT_EMPTY;
        if (rc != ERR_OK) s->users--;
        pthread_cond_broadcast(&t->change);
        pthread_mutex_unlock(&t->lock);
        return rc;
    }
    pthread_mutex_unlock(&t->lock);
    return ERR_OK;
}

static void release(fmt_tape *t, slot *s)
{
    pthread_mutex_lock(&t->lock);
    s->users--;
    pthread_cond_broadcast(&t->change);
    pthread_mutex_unlock(&t->lock);
}

static bool part_of(const fmt_part *p, const fmt_tape_record *r)
{
    return p->record.key.round == r->key.round && p->record.key.slot == r->key.slot && p->record.key.rank == r->key.rank &&
           fmt_unpack_is(p->name, p->name_bytes, r->key.name) && p->record.raw_bytes == r->raw_bytes &&
           p->record.tensor.dtype == r->tensor.dtype && p->record.tier == r->tier && p->record.hash == r->hash;
}

/* Decodes the parts of the record that lie in the chunk of s, the first of them at number from. */
static err_code get_from_chunk(const slot *s, const fmt_row *row, size_t from, uint8_t *dst, uint64_t *done, err *e)
{
    const fmt_tape_record *r = &row->record;
    uint64_t size = fmt_dtype_bytes(r->tensor.dtype), elems = r->raw_bytes / size;
    for (size_t i = from; i < s->parts.n; i++) {
        const fmt_part *p = &s->parts.part[i];
        if (p->number != row->number) continue;
        if (!part_of(p, r) || p->first != *done)
            return err_set(e, ERR_FORMAT, "chunk at byte %" PRIu64 ": part %zu is not what the index says", s->offset, i);
        fmt_codec_get(&s->parts, i, s->payload, dst + *done * size);
        *done += p->elems;
        if (*done == elems) break;
    }
    return ERR_OK;
}

static err_code get_parts(fmt_tape *t, const fmt_row *row, uint8_t *dst, err *e)
{
    const fmt_tape_record *r = &row->record;
    uint64_t offset = r->first_chunk_offset, elems = r->raw_bytes / fmt_dtype_bytes(r->tensor.dtype), done = 0;
    for (bool first = true; first || done < elems; first = false) {
        slot *s;
        TRY(acquire(t, offset, &s, e));
        err_code rc = ERR_OK;
        if (s->chunk.kind == FMT_CHUNK_END || (first && (row->part >= s->parts.n || s->parts.part[row->part].number != row->number)))
            rc = err_set(e, ERR_FORMAT, "chunk at byte %" PRIu64 ": found no part of it from element %" PRIu64, offset, done);
        else rc = get_from_chunk(s, row, first ? row->part : 0, dst, &done, e);
        offset = fmt_chunk_end(&s->chunk);
        release(t, s);
        TRY(rc);
    }
    uint64_t hash = fmt_hash64(dst, r->raw_bytes);
    if (hash != r->hash)
        return err_set(e, ERR_FORMAT, "chunk at byte %" PRIu64 ": value hash %016" PRIx64 ", wanted %016" PRIx64,
                       r->first_chunk_offset, hash, r->hash);
    return ERR_OK;
}

err_code fmt_tape_get(const fmt_tape *t, size_t i, void *dst, uint64_t dst_bytes, err *e)
{
    fmt_row row;
    char key[FMT_TAPE_NAME_BYTES + 48];
    err why = { 0 };
    fmt_index_at(&t->index, i, &row);
    fmt_tape_key_text(&row.record.key, key, sizeof key);
    if (row.record.tier != FMT_TIER_TENSOR)
        return err_set(e, ERR_INPUT, "%s: record %u (%s): only its %s was recorded, wanted the tensor", t->path, row.number,
                       key, row.record.tier == FMT_TIER_STATS ? "statistics" : "hash");
    if (dst_bytes < row.record.raw_bytes)
        return err_set(e, ERR_ARG, "%s: record %u (%s): room for %" PRIu64 " bytes, wanted %" PRIu64, t->path, row.number, key,
                       dst_bytes, row.record.raw_bytes);
    err_code rc = get_parts((fmt_tape *)t, &row, dst, &why);
    return rc == ERR_OK ? ERR_OK : err_set(e, rc, "%s: record %u (%s): %s", t->path, row.number, key, why.msg);
}
