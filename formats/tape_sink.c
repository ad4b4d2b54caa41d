#include "formats/tape_sink.h"

#include "base/mem.h"

err_code fmt_sink_chunk(fmt_sink *s, fmt_chunk_kind kind, const void *body, size_t body_bytes, uint32_t body_crc, err *e)
{
    CHECK(!s->meta.full && FMT_CHUNK_HEADER_BYTES + s->meta.used + body_bytes <= FMT_TAPE_CHUNK_BYTES);
    uint8_t header[FMT_CHUNK_HEADER_BYTES];
    fmt_chunk_put_header(header, kind, s->sequence++, s->meta.data, (uint32_t)s->meta.used, (uint32_t)body_bytes, body_crc);
    outfile_write(s->file, header, sizeof header);
    outfile_write(s->file, s->meta.data, s->meta.used);
    if (body_bytes) outfile_write(s->file, body, body_bytes);
    s->meta.used = 0;
    return outfile_flush(s->file, e);
}

static err_code push_u64(uint64_t **array, size_t *n, size_t *cap, uint64_t v, err *e)
{
    if (!mem_grow((void **)array, cap, *n + 1, sizeof **array)) return err_set(e, ERR_NOMEM, "tape writer: no memory");
    (*array)[(*n)++] = v;
    return ERR_OK;
}

err_code fmt_sink_page(fmt_sink *s, err *e)
{
    s->body.used = 0;
    fmt_index_pack(&s->index, &s->events, s->n_events, &s->meta, &s->body);
    CHECK(!s->body.full);
    fmt_index_forget_pages(&s->index);
    s->events.used = s->n_events = 0;
    TRY(push_u64(&s->page_at, &s->n_pages, &s->page_cap, outfile_bytes(s->file), e));
    return fmt_sink_chunk(s, FMT_CHUNK_INDEX, s->body.data, s->body.used, fmt_crc32c(0, s->body.data, s->body.used), e);
}

/* Takes the batch's events over into the index: [parts before, round, event] becomes [round, event]. */
static err_code index_events(fmt_sink *s, const fmt_batch *b, err *e)
{
    fmt_unpack u = fmt_unpack_of(b->events.data, b->events.used);
    for (uint32_t i = 0; i < b->n_events; i++) {
        size_t bytes;
        CHECK(fmt_unpack_array(&u) == 3);
        fmt_unpack_skip(&u);
        int64_t round = fmt_unpack_int(&u, 0, INT32_MAX);
        const uint8_t *event = fmt_unpack_span(&u, &bytes);
        CHECK(event);
        if (s->events.used + bytes + 16 > s->events.cap) TRY(fmt_sink_page(s, e));
        fmt_pack_array(&s->events, 2);
        fmt_pack_int(&s->events, round);
        fmt_buf_add(&s->events, event, bytes);
        s->n_events++;
        s->events_total++;
    }
    return ERR_OK;
}

err_code fmt_sink_batch(fmt_sink *s, fmt_batch *b, err *e)
{
    if (b->failed.code != ERR_OK) { *e = b->failed; return e->code; }
    fmt_pack_map(&s->meta, 3);
    fmt_pack_str(&s->meta, "names");
    fmt_pack_array(&s->meta, (uint32_t)b->name_set.n);
    fmt_buf_add(&s->meta, b->names.data, b->names.used);
    fmt_pack_str(&s->meta, "parts");
    fmt_pack_array(&s->meta, b->n_parts);
    fmt_buf_add(&s->meta, b->parts.data, b->parts.used);
    fmt_pack_str(&s->meta, "events");
    fmt_pack_array(&s->meta, b->n_events);
    fmt_buf_add(&s->meta, b->events.data, b->events.used);
    CHECK(b->serial == s->n_chunks);
    TRY(push_u64(&s->chunk_at, &s->n_chunks, &s->chunk_cap, outfile_bytes(s->file), e));
    TRY(fmt_sink_chunk(s, FMT_CHUNK_DATA, b->body, b->body_bytes, b->body_crc, e));
    for (uint32_t i = 0; i < b->n_rows; i++) {
        b->rows[i].record.first_chunk_offset = s->chunk_at[b->rows[i].record.first_chunk_offset];
        if (fmt_index_full(&s->index)) TRY(fmt_sink_page(s, e));
        TRY(fmt_index_add(&s->index, &b->rows[i], e));
        s->records++;
    }
    return index_events(s, b, e);
}

err_code fmt_sink_end(fmt_sink *s, const uint8_t *summary, size_t summary_bytes, err *e)
{
    uint64_t offset = outfile_bytes(s->file);
    fmt_pack_map(&s->meta, 6);
    fmt_pack_str(&s->meta, "records");
    fmt_pack_uint(&s->meta, s->records);
    fmt_pack_str(&s->meta, "events");
    fmt_pack_uint(&s->meta, s->events_total);
    fmt_pack_str(&s->meta, "chunks");
    fmt_pack_uint(&s->meta, s->n_chunks);
    fmt_pack_str(&s->meta, "summary");
    if (summary) fmt_buf_add(&s->meta, summary, summary_bytes);
    else fmt_pack_nil(&s->meta);
    fmt_pack_str(&s->meta, "head");
    fmt_buf_add(&s->meta, s->head, s->head_bytes);
    fmt_pack_str(&s->meta, "index");
    fmt_pack_array(&s->meta, (uint32_t)s->n_pages);
    for (size_t i = 0; i < s->n_pages; i++) fmt_pack_uint(&s->meta, s->page_at[i]);
    if (s->meta.full) return err_set(e, ERR_ARG, "tape: %zu index pages do not fit in the end chunk", s->n_pages);
    TRY(fmt_sink_chunk(s, FMT_CHUNK_END, NULL, 0, 0, e));
    uint8_t trailer[FMT_TRAILER_BYTES];
    fmt_trailer_put(trailer, offset);
    outfile_write(s->file, trailer, sizeof trailer);
    return outfile_flush(s->file, e);
}
