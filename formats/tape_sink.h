/* The file side of a tape writer: chunks in order, the index page being filled, the end. Internal to formats/; one caller
 * at a time. */
#ifndef FORMATS_TAPE_SINK_H
#define FORMATS_TAPE_SINK_H

#include "base/outfile.h"
#include "formats/tape_batch.h"

typedef struct fmt_sink {
    outfile *file;
    uint32_t sequence;
    fmt_index index; /* the page being filled */
    fmt_buf events;  /* of that page */
    uint32_t n_events;
    uint64_t records, events_total;
    uint64_t *chunk_at; /* offset of every data chunk, by serial */
    size_t n_chunks, chunk_cap;
    uint64_t *page_at;
    size_t n_pages, page_cap;
    uint8_t *head;
    size_t head_bytes;
    fmt_buf meta, body; /* room for one chunk */
} fmt_sink;

/* Writes s->meta and a body as the next chunk, and empties s->meta. All: ERR_IO, ERR_NOMEM. */
MUST_USE err_code fmt_sink_chunk(fmt_sink *s, fmt_chunk_kind kind, const void *body, size_t body_bytes, uint32_t body_crc,
                                 err *e);
MUST_USE err_code fmt_sink_page(fmt_sink *s, err *e); /* the index page, as far as it is filled */
/* A compressed batch; its records and events go into the index. Also the error of its compression. */
MUST_USE err_code fmt_sink_batch(fmt_sink *s, fmt_batch *b, err *e);
/* The end chunk and the trailer. summary: packed, NULL: none. */
MUST_USE err_code fmt_sink_end(fmt_sink *s, const uint8_t *summary, size_t summary_bytes, err *e);

#endif
