/* Doctor and recovery: both read the whole tape chunk by chunk, decode every record, and hold the result against the index
 * and the end chunk. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/tape_reader.h"

/* What a full read of a tape found. */
typedef struct survey {
    fmt_tape *t;
    fmt_tape_fault *faults;
    size_t n_faults, fault_cap;
    fmt_tape_lost *lost; /* records by name; sorted, each number once */
    size_t n_lost, lost_cap;
    bool *sound;         /* [fmt_tape_count] the record decodes to what was put */
    uint64_t n_sound, n_lost_records, n_lost_rounds, n_base_records, lost_bytes, lost_events;
    uint8_t *buf;        /* one value */
    size_t buf_cap;
} survey;

static __attribute__((format(printf, 6, 7))) err_code add_fault(survey *s, uint64_t offset, uint64_t span, int64_t chunk,
                                                                err *e, const char *format, ...)
{
    if (!mem_grow((void **)&s->faults, &s->fault_cap, s->n_faults + 1, sizeof *s->faults))
        return err_set(e, ERR_NOMEM, "no memory for the list of faults");
    fmt_tape_fault *f = &s->faults[s->n_faults++];
    *f = (fmt_tape_fault){ .offset_bytes = offset, .span_bytes = span, .chunk = chunk };
    va_list args;
    va_start(args, format);
    vsnprintf(f->what, sizeof f->what, format, args);
    va_end(args);
    return ERR_OK;
}

static err_code add_lost(survey *s, const fmt_row *row, bool no_base, err *e)
{
    if (!mem_grow((void **)&s->lost, &s->lost_cap, s->n_lost + 1, sizeof *s->lost))
        return err_set(e, ERR_NOMEM, "no memory for the list of losses");
    fmt_tape_lost *l = &s->lost[s->n_lost++];
    *l = (fmt_tape_lost){ row->number, row->record.key.round, row->record.first_chunk_offset, no_base, "" };
    fmt_tape_key_text(&row->record.key, l->key, sizeof l->key);
    return ERR_OK;
}

/* What the chunks alone told. */
static err_code take_scan(survey *s, err *e)
{
    const fmt_tape_fault *faults;
    const fmt_tape_lost *lost;
    size_t n = fmt_tape_damage(s->t, &faults);
    for (size_t i = 0; i < n; i++) {
        TRY(add_fault(s, faults[i].offset_bytes, faults[i].span_bytes, faults[i].chunk, e, "%s", faults[i].what));
        s->lost_bytes += faults[i].span_bytes;
    }
    n = fmt_tape_lost_records(s->t, &lost);
    if (!mem_grow((void **)&s->lost, &s->lost_cap, n + 1, sizeof *s->lost))
        return err_set(e, ERR_NOMEM, "no memory for the list of losses");
    if (n) memcpy(s->lost, lost, n * sizeof *lost);
    s->n_lost = n;
    uint64_t torn = fmt_tape_torn_bytes(s->t), at = fmt_tape_file_bytes(s->t) - torn;
    s->lost_bytes += torn;
    if (torn) TRY(add_fault(s, at, torn, -1, e, "byte %" PRIu64 ": the last %" PRIu64 " bytes are no whole chunk", at,
                            torn));
    if (!fmt_tape_finished(s->t))
        TRY(add_fault(s, at, 0, -1, e, "byte %" PRIu64 ": no end chunk: the writer did not finish, or the end is cut off",
                      at));
    if (fmt_tape_head_lost(s->t))
        TRY(add_fault(s, FMT_PRELUDE_BYTES, 0, -1, e, "no sound head: the tape's identity and configuration are lost"));
    return ERR_OK;
}

static uint64_t content_bytes(const fmt_tape_record *r)
{
    return fmt_content_elems(r) * fmt_dtype_bytes(fmt_content_dtype(r));
}

/* The tensor, or the digests of its rows, or nothing. */
static err_code get_content(const survey *s, size_t i, const fmt_tape_record *r, uint8_t *dst, err *e)
{
    if (r->tier == FMT_TIER_TENSOR) return fmt_tape_get(s->t, i, dst, r->raw_bytes, e);
    if (r->n_digest_rows) return fmt_tape_digest_rows(s->t, i, (uint64_t *)(void *)dst, r->n_digest_rows, e);
    return ERR_OK;
}

static err_code read_record(survey *s, size_t i, const fmt_tape_record *r, err *why)
{
    uint64_t bytes = content_bytes(r);
    if (r->tier != FMT_TIER_TENSOR && bytes == 0) return ERR_OK;
    if (!mem_grow((void **)&s->buf, &s->buf_cap, (size_t)bytes, 1))
        return err_set(why, ERR_NOMEM, "no memory for a value");
    return get_content(s, i, r, s->buf, why);
}

static err_code read_records(survey *s, err *e)
{
    const fmt_index *ix = fmt_tape_index(s->t);
    s->sound = mem_alloc((size_t)ix->rows, sizeof *s->sound);
    if (!s->sound) return err_set(e, ERR_NOMEM, "no memory for %" PRIu64 " records", ix->rows);
    for (uint64_t i = 0; i < ix->rows; i++) {
        fmt_row row;
        err why;
        fmt_index_at(ix, i, &row);
        err_code rc = read_record(s, (size_t)i, &row.record, &why);
        s->sound[i] = rc == ERR_OK;
        if (rc == ERR_OK) { s->n_sound++; continue; }
        if (rc == ERR_INPUT) { /* its base is not to be had: one fault for all of them */
            s->n_base_records++;
            TRY(add_lost(s, &row, true, e));
            continue;
        }
        if (rc != ERR_FORMAT) { if (e) *e = why; return rc; }
        const char *text = why.msg + strlen(fmt_tape_path(s->t)) + 2; /* the path is in every line already */
        TRY(add_fault(s, row.record.first_chunk_offset, 0, -1, e, "%s", text));
        TRY(add_lost(s, &row, false, e));
    }
    return ERR_OK;
}

static bool same_row(const fmt_row *a, const fmt_row *b)
{
    const fmt_tape_record *x = &a->record, *y = &b->record;
    return a->number == b->number && a->part == b->part && x->key.round == y->key.round && x->key.slot == y->key.slot &&
           x->key.rank == y->key.rank && strcmp(x->key.name, y->key.name) == 0 && x->tensor.dtype == y->tensor.dtype &&
           x->tensor.ndim == y->tensor.ndim && memcmp(x->tensor.shape, y->tensor.shape, sizeof x->tensor.shape) == 0 &&
           x->place == y->place && x->axis == y->axis && x->n_ranks == y->n_ranks && x->tier == y->tier &&
           x->hash == y->hash && x->has_digest == y->has_digest && x->digest == y->digest &&
           x->n_digest_rows == y->n_digest_rows && memcmp(&x->stats, &y->stats, sizeof x->stats) == 0 &&
           x->raw_bytes == y->raw_bytes &&
           x->stored_bytes == y->stored_bytes && x->first_chunk_offset == y->first_chunk_offset && x->n_parts == y->n_parts;
}

/* Holds the index's rows against those the chunks gave; both run up by number. */
static err_code compare_rows(survey *s, const fmt_index *want, err *e)
{
    const fmt_index *have = fmt_tape_index(s->t);
    uint64_t h = 0;
    for (uint64_t i = 0; i < want->rows; i++) {
        fmt_row w, r = { .number = 0 };
        fmt_index_at(want, i, &w);
        for (; h < have->rows; h++) {
            fmt_index_at(have, h, &r);
            if (r.number >= w.number) break;
            TRY(add_fault(s, r.record.first_chunk_offset, 0, -1, e, "record %u is not in the index", r.number));
        }
        if (h == have->rows || r.number != w.number) {
            TRY(add_lost(s, &w, false, e));
            continue;
        }
        h++;
        if (!same_row(&w, &r))
            TRY(add_fault(s, r.record.first_chunk_offset, 0, -1, e, "record %u: the index and the chunk differ", r.number));
    }
    return ERR_OK;
}

/* Reads the index pages that the end chunk names and compares. A damaged page is a fault that the scan has listed. */
static err_code check_index(survey *s, err *e)
{
    const fmt_tape_end *end = fmt_tape_end_of(s->t);
    if (!end->good) return ERR_OK;
    fmt_index ix = { 0 };
    fmt_unpack u = fmt_unpack_of(end->pages, end->pages_bytes), events;
    const uint8_t *map = fmt_tape_map(s->t);
    uint64_t bytes = fmt_tape_file_bytes(s->t), n_events = 0;
    err_code rc = ERR_OK;
    bool whole = true;
    for (uint32_t n = fmt_unpack_array(&u); n && !u.bad && rc == ERR_OK && whole; n--) {
        uint64_t offset = fmt_unpack_u64(&u);
        fmt_chunk c;
        uint32_t page_events = 0;
        err why;
        whole = fmt_chunk_get(map, bytes, offset, &c, &why) == ERR_OK && fmt_chunk_check(&c, NULL, &why) == ERR_OK;
        if (!whole) break;
        rc = c.kind == FMT_CHUNK_INDEX ? fmt_index_load(&ix, &c, bytes, &events, &page_events, &why)
                                       : err_set(&why, ERR_FORMAT, "byte %" PRIu64 ": wanted an index page", offset);
        if (rc == ERR_FORMAT) {
            whole = false;
            rc = add_fault(s, offset, 0, -1, e, "%s", why.msg);
        } else if (rc != ERR_OK && e) {
            *e = why;
        }
        n_events += page_events;
    }
    if (rc == ERR_OK) rc = compare_rows(s, &ix, e);
    if (rc == ERR_OK && whole && (u.bad || ix.rows != end->records || n_events != end->events))
        rc = add_fault(s, end->offset, 0, -1, e, "end chunk: its counts are not those of the index");
    fmt_index_fini(&ix);
    if (end->events > fmt_tape_event_count(s->t)) s->lost_events = end->events - fmt_tape_event_count(s->t);
    if (rc == ERR_OK && s->lost_events)
        rc = add_fault(s, end->offset, 0, -1, e, "%" PRIu64 " of %" PRIu64 " events are lost", s->lost_events, end->events);
    return rc;
}

static int by_number(const void *a, const void *b)
{
    const fmt_tape_lost *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Sorts the losses, drops doubles and those that were found sound after all, and counts: every number below the largest one
 * known belongs to a record, so what is not sound is lost, named or not. */
static err_code settle_losses(survey *s, err *e)
{
    const fmt_index *ix = fmt_tape_index(s->t);
    const fmt_tape_end *end = fmt_tape_end_of(s->t);
    uint64_t expected = fmt_tape_next_number(s->t), kept = 0, i = 0, last_round = UINT64_MAX;
    if (end->good && end->records > expected) expected = end->records;
    if (s->n_lost) qsort(s->lost, s->n_lost, sizeof *s->lost, by_number);
    for (size_t k = 0; k < s->n_lost; k++) {
        const fmt_tape_lost l = s->lost[k];
        fmt_row row = { .number = UINT32_MAX };
        for (; i < ix->rows; i++) {
            fmt_index_at(ix, i, &row);
            if (row.number >= l.number) break;
        }
        bool found = i < ix->rows && row.number == l.number && s->sound[i];
        if (found || (kept && s->lost[kept - 1].number == l.number)) continue;
        s->lost[kept++] = l;
        if ((uint64_t)l.round != last_round) s->n_lost_rounds++;
        last_round = (uint64_t)l.round;
    }
    s->n_lost = (size_t)kept;
    s->n_lost_records = expected > s->n_sound ? expected - s->n_sound : 0;
    if (s->n_base_records)
        TRY(add_fault(s, 0, 0, -1, e, "%" PRIu64 " records are stored on base %s and cannot be read without it",
                      s->n_base_records, fmt_tape_base_name(s->t) ? fmt_tape_base_name(s->t) : "?"));
    for (size_t k = 0; k < s->n_lost; k++)
        if (!s->lost[k].no_base)
            TRY(add_fault(s, s->lost[k].offset, 0, -1, e, "record %u (%s) is lost", s->lost[k].number, s->lost[k].key));
    if (s->n_lost_records > s->n_lost)
        TRY(add_fault(s, 0, 0, -1, e, "%" PRIu64 " more records are lost, their names with them",
                      s->n_lost_records - s->n_lost));
    return ERR_OK;
}

static void survey_fini(survey *s)
{
    fmt_tape_close(s->t);
    free(s->faults);
    free(s->lost);
    free(s->sound);
    free(s->buf);
}

static err_code survey_run(survey *s, const char *path, err *e)
{
    *s = (survey){ 0 };
    TRY(fmt_tape_open_mode(path, FMT_OPEN_SURVEY, &s->t, e));
    err why = { 0 };
    err_code rc = take_scan(s, &why);
    if (rc == ERR_OK) rc = read_records(s, &why);
    if (rc == ERR_OK) rc = check_index(s, &why);
    if (rc == ERR_OK) rc = settle_losses(s, &why);
    return rc == ERR_OK ? ERR_OK : err_set(e, rc, "%s: %s", path, why.msg);
}

/* Moves the faults into the report. */
static void make_report(survey *s, fmt_tape_report *out)
{
    const int32_t *rounds;
    *out = (fmt_tape_report){
        .faults = s->faults, .n_faults = s->n_faults, .n_chunks = fmt_tape_chunks(s->t), .n_records = s->n_sound,
        .n_rounds = fmt_tape_rounds(s->t, &rounds), .n_lost_records = s->n_lost_records,
            .finished = fmt_tape_finished(s->t),
    };
    s->faults = NULL;
    s->n_faults = 0;
    out->n_base_records = s->n_base_records;
    const char *name = fmt_tape_base_name(s->t);
    const fmt_tape *base;
    err why;
    if (!name) return;
    if (fmt_tape_base(s->t, &base, &why) == ERR_OK) snprintf(out->base, sizeof out->base, "%s", fmt_tape_path(base));
    else snprintf(out->base, sizeof out->base, "%.100s: %.150s", name, why.msg);
}

err_code fmt_tape_examine(const char *path, fmt_tape_report *out, err *e)
{
    survey s;
    *out = (fmt_tape_report){ 0 };
    err_code rc = survey_run(&s, path, e);
    if (rc == ERR_OK) make_report(&s, out);
    survey_fini(&s);
    return rc;
}

void fmt_tape_report_fini(fmt_tape_report *r)
{
    free(r->faults);
    *r = (fmt_tape_report){ 0 };
}

/* ---- recovery ---- */

/* Records from i on that are the ranks' copies of one value, all sound; 1 when they are not to be put together. */
static size_t copies_at(const survey *s, size_t i, const fmt_tape_record *first)
{
    size_t n = (size_t)first->n_ranks;
    if (first->tier != FMT_TIER_TENSOR || first->key.rank != 0 || n > fmt_tape_count(s->t) - i) return 1;
    for (size_t k = 0; k < n; k++) {
        fmt_tape_record r;
        fmt_tape_at(s->t, i + k, &r);
        if (!s->sound[i + k] || r.key.rank != (int32_t)k || r.key.round != first->key.round ||
            r.key.slot != first->key.slot || r.key.name != first->key.name || r.tier != first->tier ||
            r.n_ranks != first->n_ranks || r.tensor.dtype != first->tensor.dtype || r.raw_bytes != first->raw_bytes ||
            memcmp(r.tensor.shape, first->tensor.shape, sizeof r.tensor.shape) != 0)
            return 1;
    }
    return n;
}

enum { COPIES_MAX = 64 };

/* Copies record i, or all ranks' copies of its value, so that equal ones are stored once again. *n: records dealt with. */
static err_code copy_records(survey *s, fmt_tape_writer *w, size_t i, size_t *n, err *e)
{
    fmt_tape_record r;
    const void *data[COPIES_MAX];
    uint64_t bytes, one;
    fmt_tape_at(s->t, i, &r);
    one = content_bytes(&r);
    *n = r.n_ranks <= COPIES_MAX ? copies_at(s, i, &r) : 1;
    if (!s->sound[i]) return ERR_OK;
    if (!mul_u64(one, *n, &bytes) || !mem_grow((void **)&s->buf, &s->buf_cap, (size_t)bytes + 1, 1))
        return err_set(e, ERR_NOMEM, "no memory for a value");
    for (size_t k = 0; k < *n; k++) {
        data[k] = s->buf + k * one;
        TRY(get_content(s, i + k, &r, s->buf + k * one, e));
    }
    if (*n == 1) return fmt_tape_put_record(w, &r, s->buf, e);
    return fmt_tape_put_ranks(w, &r.key, &r.tensor, data, r.place, r.axis, r.n_ranks, r.tier, e);
}

static err_code copy_event(fmt_tape_writer *w, int32_t round, const json_t *event, err *e)
{
    if (!event) return err_set(e, ERR_NOMEM, "no memory for an event");
    return fmt_tape_put_event(w, round, event, e);
}

/* Writes what is sound under out_path + ".part" and finishes it. Events keep their place among the rounds. */
static err_code copy_tape(survey *s, const char *out_path, const fmt_tape_loss *lost, err *e)
{
    fmt_tape_writer *w;
    size_t event = 0, n_events = fmt_tape_event_count(s->t), n = 1;
    int32_t round = 0, event_round = 0;
    TRY(fmt_tape_create(out_path, fmt_tape_head(s->t), &w, e));
    err_code rc = ERR_OK;
    for (size_t i = 0; i < fmt_tape_count(s->t) && rc == ERR_OK; i += n) {
        fmt_tape_record r;
        fmt_tape_at(s->t, i, &r);
        round = r.key.round;
        for (; event < n_events && rc == ERR_OK; event++) {
            const json_t *what = fmt_tape_event_at(s->t, event, &event_round);
            if (event_round >= round) break;
            rc = copy_event(w, event_round, what, e);
        }
        if (rc == ERR_OK) rc = copy_records(s, w, i, &n, e);
    }
    for (; event < n_events && rc == ERR_OK; event++) {
        const json_t *what = fmt_tape_event_at(s->t, event, &event_round);
        rc = copy_event(w, event_round, what, e);
    }
    if (rc == ERR_OK && !lost->complete) { /* the tape says so itself from now on */
        json_t *note = json_pack("{s:s, s:I, s:I, s:I, s:b, s:b}", "event", "recovered", "lost_records",
                                 (json_int_t)lost->lost_records, "lost_events", (json_int_t)lost->lost_events, "lost_bytes",
                                 (json_int_t)lost->lost_bytes, "head_lost", lost->head_lost, "was_finished",
                                 lost->was_finished);
        rc = note ? fmt_tape_put_event(w, round, note, e) : err_set(e, ERR_NOMEM, "no memory for the recovery's event");
        json_decref(note);
    }
    if (rc == ERR_OK) return fmt_tape_finish(w, fmt_tape_summary(s->t), e);
    fmt_tape_discard(w);
    return rc;
}

static err_code verify(const char *path, uint64_t records, err *e)
{
    fmt_tape_report r;
    TRY(fmt_tape_examine(path, &r, e));
    err_code rc = ERR_OK;
    if (r.n_faults || r.n_records != records)
        rc = err_set(e, ERR_SYSTEM, "%s: the recovered tape holds %" PRIu64 " records with %zu faults, wanted %" PRIu64
                     " without", path, r.n_records, r.n_faults, records);
    fmt_tape_report_fini(&r);
    return rc;
}

static err_code recover(survey *s, const char *path, const char *out_path, fmt_tape_loss *lost, err *e)
{
    const int32_t *rounds;
    struct stat in, out;
    if (stat(path, &in) == 0 && stat(out_path, &out) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return err_set(e, ERR_ARG, "%s: input and output are the same file", out_path);
    *lost = (fmt_tape_loss){
        .kept_records = s->n_sound, .kept_rounds = fmt_tape_rounds(s->t, &rounds),
            .kept_events = fmt_tape_event_count(s->t),
        .lost_records = s->n_lost_records, .lost_rounds = s->n_lost_rounds, .lost_events = s->lost_events,
        .lost_bytes = s->lost_bytes, .head_lost = fmt_tape_head_lost(s->t), .was_finished = fmt_tape_finished(s->t),
        .newer_minor = fmt_tape_minor(s->t) > FMT_TAPE_MINOR,
    };
    lost->complete = !lost->lost_records && !lost->lost_events && !lost->head_lost && lost->was_finished &&
        !lost->newer_minor;
    if (!lost->complete && lost->kept_records == 0 && lost->kept_events == 0)
        return err_set(e, ERR_FORMAT, "%s: nothing to save: found no sound record", path);
    /* Not OUT.part: that may be the very tape that is being recovered. */
    size_t n = strlen(out_path) + sizeof ".recovered.part";
    char *new_path = malloc(n);
    if (!new_path) return err_set(e, ERR_NOMEM, "%s: no memory for a path", out_path);
    snprintf(new_path, n, "%s.recovered", out_path);
    err_code rc = copy_tape(s, new_path, lost, e);
    if (rc == ERR_OK) rc = verify(new_path, lost->kept_records, e);
    if (rc == ERR_OK && rename(new_path, out_path) != 0)
        rc = err_set(e, ERR_IO, "%s: cannot be given its name: %s", out_path, strerror(errno));
    if (rc != ERR_OK) {
        unlink(new_path);
        snprintf(new_path, n, "%s.recovered.part", out_path);
        unlink(new_path);
    }
    free(new_path);
    return rc;
}

err_code fmt_tape_recover(const char *path, const char *out_path, fmt_tape_loss *lost, fmt_tape_report *report, err *e)
{
    survey s;
    *lost = (fmt_tape_loss){ 0 };
    if (report) *report = (fmt_tape_report){ 0 };
    err_code rc = survey_run(&s, path, e);
    if (rc == ERR_OK) rc = recover(&s, path, out_path, lost, e);
    if (rc == ERR_OK && report) make_report(&s, report);
    survey_fini(&s);
    return rc;
}
