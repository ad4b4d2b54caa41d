/* Any bytes as a tape: opened both ways, every record and event read, examined and recovered. Checksums are made right
 * first in half of the inputs, so that the fuzzer gets past them. */
#include "formats/tape_reader.h"

#include <string.h>

#include "memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VALUE_MAX = 1 << 22 };

/* Makes every checksum right, chunk by chunk, as far as lengths lead. */
static void repair_checksums(uint8_t *p, size_t size)
{
    if (size < FMT_PRELUDE_BYTES) return;
    fmt_prelude_put(p);
    for (size_t at = FMT_PRELUDE_BYTES; size - at >= FMT_CHUNK_HEADER_BYTES; ) {
        uint64_t meta = get_u32(p + at + 8), body = get_u32(p + at + 12), left = size - at - FMT_CHUNK_HEADER_BYTES;
        if (meta > left || body > left - meta) return;
        uint8_t *m = p + at + FMT_CHUNK_HEADER_BYTES;
        fmt_chunk_put_header(p + at, (fmt_chunk_kind)p[at + 4], get_u32(p + at + 16), m, (uint32_t)meta, (uint32_t)body,
                             fmt_crc32c(0, m + meta, body));
        at += FMT_CHUNK_HEADER_BYTES + meta + body;
    }
}

static void read_all(const char *path, fmt_open_mode mode)
{
    fmt_tape *t;
    err e = { 0 };
    const int32_t *rounds;
    if (fmt_tape_open_mode(path, mode, &t, &e) != ERR_OK) {
        CHECK(e.code == ERR_FORMAT && !strchr(e.msg, '\n'));
        return;
    }
    size_t n_rounds = fmt_tape_rounds(t, &rounds);
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        CHECK(fmt_tape_find(t, &r.key) >= 0 && n_rounds > 0);
        if (r.raw_bytes > VALUE_MAX || r.n_digest_rows > VALUE_MAX / 8) continue;
        uint64_t *value = malloc(r.raw_bytes + 8 * r.n_digest_rows + 1);
        err_code rc = fmt_tape_get(t, i, value, r.raw_bytes, &e);
        CHECK(rc == ERR_OK || rc == ERR_FORMAT || rc == ERR_INPUT);
        rc = fmt_tape_digest_rows(t, i, value, r.n_digest_rows, &e);
        CHECK(rc == ERR_OK || rc == ERR_FORMAT || rc == ERR_INPUT);
        free(value);
    }
    for (size_t i = 0; i < fmt_tape_event_count(t); i++) {
        int32_t round;
        CHECK(fmt_tape_event_at(t, i, &round));
    }
    fmt_tape_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[MEMFILE_PATH];
    uint8_t *copy = malloc(size + 1);
    memcpy(copy, data, size);
    if (size && data[size - 1] % 2 == 0) repair_checksums(copy, size);
    int fd = memfile(copy, size, path);
    read_all(path, FMT_OPEN_NORMAL);
    read_all(path, FMT_OPEN_SURVEY);
    fmt_tape_report report;
    err e;
    if (fmt_tape_examine(path, &report, &e) == ERR_OK) fmt_tape_report_fini(&report);
    close(fd);
    free(copy);
    return 0;
}
