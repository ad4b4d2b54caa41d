/* Opening a tape, through its index or by a scan, and following one that grows. */
#include "formats/tape_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/infile.h"

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
    l->no_base = false;
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
           a->key.name == b->key.name && a->hash == b->hash && a->digest == b->digest && a->raw_bytes == b->raw_bytes &&
           a->n_digest_rows == b->n_digest_rows && a->tensor.dtype == b->tensor.dtype;
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
        if (t->n_pending == FMT_PENDING_MAX) TRY(drop_pending(t, 0, true, e));
        t->pending[t->n_pending++] = (fmt_pending){ row, p->elems };
        return ERR_OK;
    }
    if (p->number >= t->next_number) t->next_number = p->number + 1;
    int i = 0;
    while (i < t->n_pending && t->pending[i].row.number != p->number) i++;
    if (i == t->n_pending) return lose(t, p->number, key, c->offset, e);
    fmt_pending *have = &t->pending[i];
    if (have->filled != p->first || !same_record(&have->row.record, &row.record)) return drop_pending(t, i, true, e);
    have->filled += p->elems;
    have->row.record.stored_bytes += p->bytes;
    have->row.record.n_parts++;
    if (have->filled < fmt_content_elems(&p->record)) return ERR_OK;
    TRY(fmt_index_add(&t->index, &have->row, e));
    return drop_pending(t, i, false, e);
}

/* Notes the next event of u, [round, event], lying in chunk c. */
static err_code take_event(fmt_tape *t, fmt_unpack *u, err *e)
{
    fmt_event_ref ref = { 0 };
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

/* *out: NULL on error. ERR_FORMAT: no object. ERR_NOMEM, which says nothing of the bytes. */
static err_code unpack_object(const uint8_t *data, size_t bytes, json_t **out, err *e)
{
    TRY(fmt_msgpack_unpack(data, bytes, out, e));
    if (json_is_object(*out)) return ERR_OK;
    json_decref(*out);
    *out = NULL;
    return err_set(e, ERR_FORMAT, "no object");
}

/* Reads a checked end chunk. ERR_FORMAT: it breaks the rules. ERR_NOMEM. */
static err_code take_end(fmt_tape *t, const fmt_chunk *c, err *e)
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
    if (u.bad || !end.pages || !summary || !head) return err_set(e, ERR_FORMAT, "no end");
    json_decref(t->summary);
    t->summary = NULL;
    if (unpack_object(summary, summary_bytes, &t->summary, e) == ERR_NOMEM) return ERR_NOMEM; /* else there is none */
    if (!t->head && unpack_object(head, head_bytes, &t->head, e) == ERR_NOMEM) return ERR_NOMEM; /* the spare copy */
    t->end = end;
    return ERR_OK;
}

static err_code take_chunk(fmt_tape *t, const fmt_chunk *c, err *e)
{
    uint64_t span = fmt_chunk_end(c) - c->offset;
    err why;
    if (c->kind == FMT_CHUNK_DATA) return take_data(t, c, e);
    if (fmt_chunk_check(c, NULL, &why) != ERR_OK) return fault(t, c->offset, span, c->sequence, e, "%s", why.msg);
    err_code rc = ERR_OK;
    if (c->kind == FMT_CHUNK_HEAD && (c->offset != FMT_PRELUDE_BYTES || t->head)) rc = ERR_FORMAT;
    else if (c->kind == FMT_CHUNK_HEAD) rc = unpack_object(c->meta, c->meta_bytes, &t->head, &why);
    else if (c->kind == FMT_CHUNK_END) rc = take_end(t, c, &why);
    if (rc == ERR_NOMEM) return err_set(e, rc, "%s", why.msg);
    if (rc == ERR_OK) t->n_chunks++;
    else return fault(t, c->offset, span, c->sequence, e,
                      "%s chunk %u at byte %" PRIu64 ": its meta breaks TAPE.md's rules",
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
            TRY(fault(t, c.offset, 0, c.sequence, e,
                      "byte %" PRIu64 ": found chunk %u, wanted chunk %u: chunks are missing",
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
        return err_set(e, ERR_FORMAT, "end chunk at byte %" PRIu64 ": found %" PRIu64 " records and %zu events in the "
                       "index, wanted %" PRIu64 " and %" PRIu64, t->end.offset, t->index.rows, t->n_events, t->end.records,
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
    if (head.kind != FMT_CHUNK_HEAD) return err_set(e, ERR_FORMAT, "no head");
    TRY(unpack_object(head.meta, head.meta_bytes, &t->head, e));
    TRY(fmt_chunk_get(t->map, t->map_bytes, offset, &end, e));
    TRY(fmt_chunk_check(&end, NULL, e));
    if (end.kind != FMT_CHUNK_END || fmt_chunk_end(&end) != t->map_bytes - FMT_TRAILER_BYTES)
        return err_set(e, ERR_FORMAT, "no end");
    TRY(take_end(t, &end, e));
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
    TRY(infile_open(t->path, NULL, "a tape", &t->fd, NULL, e)); /* who called names the path */
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
    fmt_tape_close(t->base);
    for (int i = 0; i < FMT_SLOTS; i++) {
        fmt_parts_fini(&t->slots[i].parts);
        free(t->slots[i].payload);
    }
    free(t->events);
    free(t->faults);
    free(t->lost);
    free(t->find);
    free(t->again);
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
        rc = err_set(&why, ERR_FORMAT, "found %" PRIu64 " bytes, there were %" PRIu64 ": the file was cut", t->map_bytes,
                     had);
    if (rc == ERR_OK && t->map_bytes != had) {
        for (int i = 0; i < FMT_SLOTS; i++) t->slots[i].state = FMT_SLOT_EMPTY; /* their names point into the old map */
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

void fmt_tape_let_go(const fmt_tape *t)
{
    if (t->map) (void)madvise((void *)(uintptr_t)t->map, t->map_bytes, MADV_DONTNEED); /* a mapped file: nothing is lost */
}

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
        (void)!unpack_object(c.meta, c.meta_bytes, &t->end_json, NULL);
    return t->end_json;
}

const json_t *fmt_tape_event_at(const fmt_tape *t, size_t i, int32_t *round)
{
    CHECK(i < t->n_events);
    fmt_tape *self = (fmt_tape *)t;
    fmt_event_ref *ref = &self->events[i];
    *round = ref->round;
    pthread_mutex_lock(&self->lock);
    if (!ref->json && unpack_object(t->map + ref->offset, ref->bytes, &ref->json, NULL) == ERR_FORMAT)
        ref->json = json_object(); /* no object by our rules, though its chunk is sound */
    const json_t *json = ref->json;
    pthread_mutex_unlock(&self->lock);
    return json;
}
