/* A ring of batches, each a data chunk in the making. The caller fills one: hashes, statistics, transforms. A thread
 * compresses full ones and writes them, and so does the caller instead of waiting when all are full: the work is shared
 * evenly, whichever part of it costs more. One of the two at a time writes, in order, so a file's bytes do not depend on
 * who did what. */
#include <inttypes.h>
#include <pthread.h>

#include "formats/tape_sink.h"

enum {
    RANKS_MAX = 64,
    BATCHES = 4, /* one open, one in the thread's hands, and two for the two to run apart */
};

struct fmt_tape_writer {
    fmt_sink out;
    fmt_batch ring[BATCHES], *open; /* the batch with serial k is ring[k % BATCHES] */
    uint64_t next_serial; /* one past the open batch's */
    uint32_t next_record;
    const fmt_tape *base; /* NULL: the tape stands alone */
    uint8_t *base_data;   /* the base's values of the records being put */
    size_t base_cap;
    err first; /* sticky */
    pthread_t thread;
    bool threaded;
    pthread_mutex_t lock; /* states and all below */
    pthread_cond_t change;
    uint64_t next_full; /* serial of the oldest batch that nobody has taken to compress */
    uint64_t to_write;  /* serial of the oldest batch that is not in the file */
    bool writing;       /* somebody writes that one */
    uint64_t written_bytes;
    err write_failed;   /* sticky: nothing is written after it */
    bool stop;
};

/* ---- compressing and writing ---- */

/* Takes the oldest full batch, with the lock held. NULL: none. */
static fmt_batch *take_full(fmt_tape_writer *w)
{
    fmt_batch *b = &w->ring[w->next_full % BATCHES];
    if (b->state != FMT_BATCH_FULL) return NULL;
    b->state = FMT_BATCH_BUSY;
    w->next_full++;
    return b;
}

/* Compresses a batch that was taken; the lock is held before and after, not meanwhile. */
static void compress(fmt_tape_writer *w, fmt_batch *b)
{
    pthread_mutex_unlock(&w->lock);
    b->failed.code = ERR_OK;
    if (fmt_payload_put(b->payload, b->payload_bytes, b->body, &b->body_bytes, &b->failed) == ERR_OK)
        b->body_crc = fmt_crc32c(0, b->body, b->body_bytes);
    pthread_mutex_lock(&w->lock);
    b->state = FMT_BATCH_DONE;
    pthread_cond_broadcast(&w->change);
}

/* Writes the oldest batch if it is compressed and nobody writes; the lock is held before and after, not meanwhile. */
static bool write_oldest(fmt_tape_writer *w)
{
    fmt_batch *b = &w->ring[w->to_write % BATCHES];
    if (w->writing || b->state != FMT_BATCH_DONE) return false;
    w->writing = true;
    err failed = w->write_failed;
    pthread_mutex_unlock(&w->lock);
    if (failed.code == ERR_OK) (void)!fmt_sink_batch(&w->out, b, &failed);
    pthread_mutex_lock(&w->lock);
    w->writing = false;
    w->write_failed = failed;
    w->written_bytes = outfile_bytes(w->out.file);
    b->state = FMT_BATCH_FREE;
    w->to_write++;
    pthread_cond_broadcast(&w->change);
    return true;
}

/* Does what there is to do, with the lock held. Writing comes first: it frees a batch, and what was just compressed is
 * still in this core's caches. */
static bool work(fmt_tape_writer *w)
{
    if (write_oldest(w)) return true;
    fmt_batch *b = take_full(w);
    if (b) compress(w, b);
    return b;
}

static void *run(void *ctx)
{
    fmt_tape_writer *w = ctx;
    pthread_mutex_lock(&w->lock);
    while (!w->stop)
        if (!work(w)) pthread_cond_wait(&w->change, &w->lock);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void stop_thread(fmt_tape_writer *w)
{
    if (!w->threaded) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->change);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->threaded = false;
}

/* Returns when at most n_left submitted batches are not in the file; works instead of waiting. */
static err_code drain(fmt_tape_writer *w, uint64_t n_left)
{
    pthread_mutex_lock(&w->lock);
    while (w->next_serial - 1 - w->to_write > n_left)
        if (!work(w)) pthread_cond_wait(&w->change, &w->lock);
    if (w->first.code == ERR_OK) w->first = w->write_failed;
    pthread_mutex_unlock(&w->lock);
    return w->first.code;
}

/* ---- parts ---- */

/* Passes the open batch on, and opens the next one. */
static err_code submit(fmt_tape_writer *w)
{
    if (w->open->n_parts == 0 && w->open->n_events == 0) return ERR_OK;
    if (!w->threaded) w->threaded = pthread_create(&w->thread, NULL, run, w) == 0; /* without it drain does it all */
    pthread_mutex_lock(&w->lock);
    w->open->state = FMT_BATCH_FULL;
    pthread_cond_broadcast(&w->change);
    pthread_mutex_unlock(&w->lock);
    w->open = &w->ring[w->next_serial++ % BATCHES];
    TRY(drain(w, BATCHES - 1));
    fmt_batch_reset(w->open, w->next_serial - 1);
    return ERR_OK;
}

/* Appends one part, in a new chunk if need be. *where: a sibling that the next rank's part may refer to. */
static err_code put_part(fmt_tape_writer *w, const char *name, fmt_part *p, const uint8_t *raw, const fmt_based *on,
                         bool equal, fmt_sibling *where)
{
    size_t raw_bytes = raw ? p->elems * fmt_dtype_bytes(fmt_content_dtype(&p->record)) : 0;
    bool refer = where->raw && equal && where->serial == w->open->serial;
    size_t need = FMT_PART_META_BYTES + (refer ? 0 : raw_bytes);
    if (w->open->n_parts == FMT_CHUNK_PARTS || fmt_batch_room(w->open) < need) {
        TRY(submit(w));
        refer = false;
    }
    fmt_batch *b = w->open;
    uint32_t number;
    if (!fmt_batch_name(b, name, &number)) return err_set(&w->first, ERR_NOMEM, "tape writer: no memory for a name");
    fmt_batch_part(b, p, number, raw_bytes ? raw : NULL, on, refer, where);
    return ERR_OK;
}

/* Finds the base's values of n records that differ in rank only. What the base lacks, has of another type, or cannot read
 * any more is stored by itself. */
static err_code find_based(fmt_tape_writer *w, const fmt_row *rows, int32_t n, fmt_based *on)
{
    memset(on, 0, (size_t)n * sizeof *on);
    const fmt_tape_record *r0 = &rows[0].record;
    if (!w->base || r0->tier != FMT_TIER_TENSOR || r0->raw_bytes == 0) return ERR_OK;
    size_t bytes = (size_t)r0->raw_bytes;
    if (!mem_grow((void **)&w->base_data, &w->base_cap, bytes * (size_t)n, 1))
        return err_set(&w->first, ERR_NOMEM, "tape writer: no memory for a value of the base");
    for (int32_t r = 0; r < n; r++) {
        fmt_tape_record have;
        int64_t i = fmt_tape_find(w->base, &rows[r].record.key);
        if (i < 0) continue;
        fmt_tape_at(w->base, (size_t)i, &have);
        if (have.tier != FMT_TIER_TENSOR || !fmt_same_type(&have.tensor, &r0->tensor)) continue;
        uint8_t *to = w->base_data + bytes * (size_t)r;
        if (fmt_tape_get(w->base, (size_t)i, to, bytes, NULL) == ERR_OK) on[r] = (fmt_based){ to, have.hash };
    }
    return ERR_OK;
}

/* Appends n records that differ in rank, hash, statistics and bytes only. data[rank]: the tensor or the row digests, not
 * read when there are neither. equal[r]: rank r has rank 0's bytes. Part by part over the ranks, so that equal copies lie
 * in the same chunk, where one can refer to the other. */
static err_code put_copies(fmt_tape_writer *w, fmt_row *rows, const void *const *data, const bool *equal, int32_t n)
{
    const fmt_tape_record *r0 = &rows[0].record;
    uint64_t size = fmt_dtype_bytes(fmt_content_dtype(r0)), elems = fmt_content_elems(r0);
    uint64_t step = FMT_PART_BYTES / size, n_parts = elems ? (elems + step - 1) / step : 1;
    fmt_based on[RANKS_MAX];
    TRY(find_based(w, rows, n, on));
    for (int32_t r = 0; r < n; r++) {
        rows[r].number = w->next_record++;
        rows[r].record.n_parts = (int32_t)n_parts;
        rows[r].record.stored_bytes = 0;
    }
    for (uint64_t k = 0; k < n_parts; k++) {
        fmt_sibling where = { 0 };
        for (int32_t r = 0; r < n; r++) {
            fmt_part p = { .record = rows[r].record, .number = rows[r].number, .first = k * step };
            p.elems = elems - p.first < step ? elems - p.first : step;
            const uint8_t *raw = elems ? (const uint8_t *)data[r] + p.first * size : NULL;
            const fmt_based run = { on[r].raw ? on[r].raw + p.first * size : NULL, on[r].hash };
            TRY(put_part(w, r0->key.name, &p, raw, &run, equal[r], &where));
            if (k == 0) {
                rows[r].record.first_chunk_offset = w->open->serial;
                rows[r].part = w->open->n_parts - 1;
            }
            rows[r].record.stored_bytes += p.bytes;
            if (k + 1 == n_parts) fmt_batch_row(w->open, &rows[r], r0->key.name);
        }
    }
    return ERR_OK;
}

/* ---- the interface ---- */

static err_code key_good(const fmt_tape_record *r, err *e)
{
    const fmt_tape_key *k = &r->key;
    size_t n = k->name ? strnlen(k->name, FMT_TAPE_NAME_BYTES + 1) : 0;
    if (n == 0 || n > FMT_TAPE_NAME_BYTES)
        return err_set(e, ERR_ARG, "tape: a name of %zu bytes, wanted 1 to %d", n, FMT_TAPE_NAME_BYTES);
    for (size_t i = 0; i < n; i++)
        if (k->name[i] < 0x20 || k->name[i] > 0x7e)
            return err_set(e, ERR_ARG, "tape: name %s: byte %02x at %zu, wanted printable ASCII", k->name,
                           (uint8_t)k->name[i], i);
    if (k->round < 0 || k->slot < FMT_TAPE_NO_SLOT || k->rank < FMT_TAPE_NO_RANK)
        return err_set(e, ERR_ARG, "tape: %s: round %d, slot %d, rank %d cannot be kept", k->name, k->round, k->slot,
                       k->rank);
    if (r->n_ranks < 1 || r->axis < 0 || r->axis >= FMT_DIMS_MAX || (unsigned)r->place > FMT_PLACE_PARTIAL ||
        (unsigned)r->tier > FMT_TIER_HASH)
        return err_set(e, ERR_ARG, "tape: %s: %d ranks, axis %d, place %d, tier %d cannot be kept", k->name, r->n_ranks,
                       r->axis, r->place, r->tier);
    uint64_t bytes;
    if ((unsigned)r->tensor.dtype >= FMT_DTYPE_COUNT || r->tensor.ndim < 0 || r->tensor.ndim > FMT_DIMS_MAX ||
        !fmt_type_bytes(&r->tensor, &bytes))
        return err_set(e, ERR_ARG, "tape: %s: dtype %d with %d dimensions cannot be kept", k->name, r->tensor.dtype,
                       r->tensor.ndim);
    return ERR_OK;
}

/* Passes the sticky error on, with the file's name already in it. */
static err_code sticky(const fmt_tape_writer *w, err *e)
{
    if (w->first.code != ERR_OK && e) *e = w->first;
    return w->first.code;
}

/* Sets hash and statistics, as far as the tier has them. */
static void measure(fmt_tape_record *r, const void *data)
{
    fmt_tensor t = r->tensor;
    t.data = data;
    if (r->tier == FMT_TIER_HASH) r->hash = fmt_hash64(data, fmt_tensor_bytes(&t));
    else fmt_stats_hash_of(&t, &r->stats, &r->hash);
}

err_code fmt_tape_put_ranks(fmt_tape_writer *w, const fmt_tape_key *key, const fmt_tensor *t, const void *const *data,
                            fmt_place place, int32_t axis, int32_t n_ranks, fmt_tier tier, err *e)
{
    TRY(sticky(w, e));
    fmt_row rows[RANKS_MAX];
    bool equal[RANKS_MAX] = { false };
    if (n_ranks < 1 || n_ranks > RANKS_MAX)
        return err_set(e, ERR_ARG, "tape: %s: %d ranks, wanted 1 to %d", key->name, n_ranks, RANKS_MAX);
    for (int32_t r = 0; r < n_ranks; r++) {
        fmt_tape_record *rec = &rows[r].record;
        *rec = (fmt_tape_record){ .key = *key, .tensor = *t, .place = place, .axis = axis, .tier = tier };
        rec->n_ranks = n_ranks;
        rec->key.rank = r;
        if (r == 0) TRY(key_good(rec, e));
        rec->raw_bytes = fmt_tensor_bytes(t);
        equal[r] = r > 0 && rec->raw_bytes && memcmp(data[r], data[0], rec->raw_bytes) == 0;
        if (equal[r]) {
            rec->hash = rows[0].record.hash;
            rec->stats = rows[0].record.stats;
        } else {
            measure(rec, data[r]);
        }
    }
    (void)put_copies(w, rows, data, equal, n_ranks);
    return sticky(w, e);
}

err_code fmt_tape_put(fmt_tape_writer *w, const fmt_tape_key *key, const fmt_tensor *t, fmt_place place, int32_t axis,
                      int32_t n_ranks, fmt_tier tier, err *e)
{
    fmt_tape_record r = { .key = *key, .tensor = *t, .place = place, .axis = axis, .n_ranks = n_ranks, .tier = tier };
    TRY(sticky(w, e));
    TRY(key_good(&r, e));
    measure(&r, t->data);
    return fmt_tape_put_record(w, &r, t->data, e);
}

err_code fmt_tape_put_record(fmt_tape_writer *w, const fmt_tape_record *r, const void *data, err *e)
{
    TRY(sticky(w, e));
    TRY(key_good(r, e));
    fmt_row row = { .record = *r };
    row.record.tensor.data = NULL;
    row.record.raw_bytes = fmt_tensor_bytes(&r->tensor);
    (void)put_copies(w, &row, &data, &(bool){ false }, 1);
    return sticky(w, e);
}

err_code fmt_tape_put_digest(fmt_tape_writer *w, const fmt_tape_key *key, const fmt_tensor *t, fmt_place place,
                             int32_t axis, int32_t n_ranks, fmt_tier tier, const fmt_digest *digest,
                             const fmt_stats *stats, err *e)
{
    fmt_tape_record r = { .key = *key, .tensor = *t, .place = place, .axis = axis, .n_ranks = n_ranks, .tier = tier,
                          .has_digest = true, .digest = digest->digest, .n_digest_rows = digest->n_rows };
    TRY(sticky(w, e));
    TRY(key_good(&r, e));
    uint64_t rows = fmt_tensor_rows(t);
    if (tier == FMT_TIER_TENSOR || (tier == FMT_TIER_STATS) != (stats != NULL))
        return err_set(e, ERR_ARG, "tape: %s: a digest of tier %d %s statistics cannot be kept", key->name, tier,
                       stats ? "with" : "without");
    if (digest->n_rows && (digest->n_rows != rows || rows > FMT_DIGEST_ROWS_MAX))
        return err_set(e, ERR_ARG, "tape: %s: digests of %" PRIu64 " rows, wanted %" PRIu64, key->name, digest->n_rows,
                       rows);
    if (stats) r.stats = *stats;
    return fmt_tape_put_record(w, &r, digest->row, e);
}

err_code fmt_tape_put_event(fmt_tape_writer *w, int32_t round, const json_t *event, err *e)
{
    TRY(sticky(w, e));
    if (round < 0 || !json_is_object(event)) return err_set(e, ERR_ARG, "tape: an event is an object of a round from 0");
    uint8_t *packed;
    size_t bytes;
    TRY(fmt_msgpack_pack(event, &packed, &bytes, e));
    if (bytes > FMT_EVENT_BYTES) {
        free(packed);
        return err_set(e, ERR_ARG, "tape: an event of %zu bytes, at most %d", bytes, FMT_EVENT_BYTES);
    }
    if (fmt_batch_room(w->open) < bytes + 32) (void)submit(w);
    if (w->first.code == ERR_OK) {
        fmt_batch *b = w->open;
        fmt_pack_array(&b->events, 3);
        fmt_pack_uint(&b->events, b->n_parts);
        fmt_pack_int(&b->events, round);
        fmt_buf_add(&b->events, packed, bytes);
        CHECK(!b->events.full);
        b->n_events++;
    }
    free(packed);
    return sticky(w, e);
}

static void writer_free(fmt_tape_writer *w)
{
    stop_thread(w);
    for (int i = 0; i < BATCHES; i++) fmt_batch_fini(&w->ring[i]);
    fmt_index_fini(&w->out.index);
    free(w->out.events.data);
    free(w->out.chunk_at);
    free(w->out.page_at);
    free(w->out.head);
    free(w->base_data);
    free(w->out.meta.data);
    free(w->out.body.data);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->change);
    free(w);
}

/* The head as given, with what names the base in it, or nothing that would. */
static err_code pack_head(fmt_tape_writer *w, const char *path, const json_t *head, err *e)
{
    json_t *note = NULL, *own = json_copy((json_t *)(uintptr_t)head);
    if (!own || json_object_size(own) != json_object_size(head)) { /* jansson leaves out what it has no memory for */
        json_decref(own);
        return err_set(e, ERR_NOMEM, "%s: no memory for a tape's head", path);
    }
    (void)json_object_del(own, "base");
    err_code rc = w->base ? fmt_base_note(path, w->base, &note, e) : ERR_OK;
    if (note && json_object_set_new(own, "base", note) != 0) rc = err_set(e, ERR_NOMEM, "%s: no memory for its head", path);
    if (rc == ERR_OK) rc = fmt_msgpack_pack(own, &w->out.head, &w->out.head_bytes, e);
    json_decref(own);
    return rc;
}

static err_code create(fmt_tape_writer *w, const char *path, const json_t *head, err *e)
{
    fmt_sink *s = &w->out;
    bool room = fmt_buf_init(&s->meta, FMT_META_BYTES) && fmt_buf_init(&s->body, FMT_TAPE_CHUNK_BYTES) &&
                fmt_buf_init(&s->events, FMT_PAGE_EVENT_BYTES);
    for (int i = 0; i < BATCHES; i++) room = room && fmt_batch_init(&w->ring[i]);
    if (!room) return err_set(e, ERR_NOMEM, "%s: no memory for a tape writer", path);
    if (!json_is_object(head)) return err_set(e, ERR_ARG, "%s: a tape's head is an object", path);
    TRY(pack_head(w, path, head, e));
    if (s->head_bytes > FMT_TAPE_HEAD_BYTES - FMT_CHUNK_HEADER_BYTES)
        return err_set(e, ERR_ARG, "%s: the head packs to %zu bytes, at most %d", path, s->head_bytes,
                       FMT_TAPE_HEAD_BYTES - FMT_CHUNK_HEADER_BYTES);
    TRY(outfile_open_private(path, &s->file, e)); /* what requests held, and what the model made of it */
    uint8_t prelude[FMT_PRELUDE_BYTES];
    fmt_prelude_put(prelude);
    outfile_write(s->file, prelude, sizeof prelude);
    fmt_buf_add(&s->meta, s->head, s->head_bytes);
    TRY(fmt_sink_chunk(s, FMT_CHUNK_HEAD, NULL, 0, 0, e));
    w->written_bytes = outfile_bytes(s->file);
    return ERR_OK;
}

err_code fmt_tape_create(const char *path, const json_t *head, fmt_tape_writer **out, err *e)
{
    return fmt_tape_create_on(path, head, NULL, out, e);
}

err_code fmt_tape_create_on(const char *path, const json_t *head, const fmt_tape *base, fmt_tape_writer **out, err *e)
{
    *out = NULL;
    fmt_tape_writer *w = mem_alloc(1, sizeof *w);
    if (!w) return err_set(e, ERR_NOMEM, "%s: no memory for a tape writer", path);
    w->base = base;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->change, NULL);
    err_code rc = create(w, path, head, e);
    if (rc != ERR_OK) {
        outfile_abandon(w->out.file);
        writer_free(w);
        return rc;
    }
    w->open = &w->ring[0];
    fmt_batch_reset(w->open, w->next_serial++);
    *out = w;
    return ERR_OK;
}

err_code fmt_tape_flush(fmt_tape_writer *w, err *e)
{
    if (w->first.code == ERR_OK && submit(w) == ERR_OK) (void)drain(w, 0);
    return sticky(w, e);
}

err_code fmt_tape_finish(fmt_tape_writer *w, const json_t *summary, err *e)
{
    uint8_t *packed = NULL;
    size_t bytes = 0;
    err_code rc = fmt_tape_flush(w, e);
    stop_thread(w);
    if (rc == ERR_OK && summary) rc = fmt_msgpack_pack(summary, &packed, &bytes, e);
    if (rc == ERR_OK && bytes > FMT_SUMMARY_BYTES)
        rc = err_set(e, ERR_ARG, "tape: the summary packs to %zu bytes, at most %d", bytes, FMT_SUMMARY_BYTES);
    if (rc == ERR_OK && (w->out.index.n_pages || w->out.n_events)) rc = fmt_sink_page(&w->out, e);
    if (rc == ERR_OK) rc = fmt_sink_end(&w->out, packed, bytes, e);
    if (rc == ERR_OK) rc = outfile_commit(w->out.file, e);
    else outfile_leave(w->out.file); /* what was flushed can be recovered */
    free(packed);
    writer_free(w);
    return rc;
}

void fmt_tape_discard(fmt_tape_writer *w)
{
    if (!w) return;
    stop_thread(w);
    outfile_abandon(w->out.file);
    writer_free(w);
}

uint64_t fmt_tape_written_bytes(fmt_tape_writer *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t bytes = w->written_bytes;
    pthread_mutex_unlock(&w->lock);
    return bytes;
}
