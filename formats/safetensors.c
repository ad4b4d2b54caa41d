#include "formats/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/infile.h"
#include "base/mem.h"
#include "formats/tape_chunk.h"

/* File: u64 header_bytes, header (JSON, may end in spaces), data. Offsets in the header count from the start of data. */
enum { LENGTH_BYTES = 8 };

struct fmt_safetensors {
    char *path;
    uint8_t *map; /* [file_bytes] */
    uint64_t file_bytes, data_start;
    json_t *header; /* owns the names */
    const json_t *metadata;
    fmt_safetensors_entry *entries; /* [count], by name */
    size_t count;
};

/* A fault of one tensor. Its name is cut, so that a long one cannot push found and wanted off the line. */
#define FAULT(f, name, e, ...) \
    (err_set(e, ERR_FORMAT, __VA_ARGS__), err_wrap(e, "%s: tensor %.200s", (f)->path, name), ERR_FORMAT)

static err_code map_file(fmt_safetensors *f, err *e)
{
    int fd;
    uint64_t bytes;
    err_code rc = ERR_OK;
    TRY(infile_open(f->path, f->path, "a safetensors file", &fd, &bytes, e));
    if (bytes < LENGTH_BYTES)
        rc = err_set(e, ERR_FORMAT, "%s: found %" PRIu64 " bytes, wanted at least the %d of the header's length", f->path,
                     bytes, LENGTH_BYTES);
    else if ((f->map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED) {
        f->map = NULL;
        rc = err_set(e, ERR_IO, "%s: cannot be mapped: %s", f->path, strerror(errno));
    } else {
        f->file_bytes = bytes;
    }
    close(fd);
    return rc;
}

static err_code parse_header(fmt_safetensors *f, err *e)
{
    uint64_t n = get_u64(f->map), room = f->file_bytes - LENGTH_BYTES;
    if (fmt_prelude_is_tape(f->map, f->file_bytes))
        return err_set(e, ERR_FORMAT, "%s: found a tape, wanted a safetensors file", f->path);
    if (n > FMT_SAFETENSORS_HEADER_MAX)
        return err_set(e, ERR_FORMAT, "%s: byte 0: found a header of %" PRIu64 " bytes, wanted at most %d", f->path, n,
                       FMT_SAFETENSORS_HEADER_MAX);
    if (n > room)
        return err_set(e, ERR_FORMAT,
                       "%s: byte 0: found a header of %" PRIu64 " bytes, wanted at most the %" PRIu64 " that follow",
                       f->path, n, room);
    const char *text = (const char *)f->map + LENGTH_BYTES;
    if (n == 0) return err_set(e, ERR_FORMAT, "%s: byte 0: found a header of 0 bytes, wanted at least {}", f->path);
    if (text[0] != '{')
        return err_set(e, ERR_FORMAT, "%s: byte %d: found 0x%02x, wanted a header that starts with {", f->path,
                       LENGTH_BYTES, (uint8_t)text[0]);
    json_error_t why;
    f->header = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    if (!f->header && (json_error_code(&why) == json_error_out_of_memory || !why.text[0]))
        return err_set(e, ERR_NOMEM, "%s: no memory for its header", f->path);
    if (!f->header)
        return err_set(e, ERR_FORMAT, "%s: byte %d: header: %s", f->path, LENGTH_BYTES + why.position, why.text);
    f->data_start = LENGTH_BYTES + n;
    return ERR_OK;
}

static err_code check_metadata(const fmt_safetensors *f, const json_t *metadata, err *e)
{
    const char *key;
    json_t *v;
    if (!json_is_object(metadata)) return err_set(e, ERR_FORMAT, "%s: __metadata__ is no object of strings", f->path);
    json_object_foreach((json_t *)metadata, key, v)
        if (!json_is_string(v)) return err_set(e, ERR_FORMAT, "%s: __metadata__: %.200s is no string", f->path, key);
    return ERR_OK;
}

/* A JSON integer >= 0. */
static bool get_count(const json_t *v, int64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = json_integer_value(v);
    return true;
}

/* Dtype and shape of t, and the bytes they take. */
static err_code parse_type(const fmt_safetensors *f, const char *name, const json_t *info, fmt_tensor *t, uint64_t *bytes,
                           err *e)
{
    const json_t *dtype = json_object_get(info, "dtype"), *shape = json_object_get(info, "shape");
    if (!json_is_string(dtype)) return FAULT(f, name, e, "dtype is missing or no string");
    if (!fmt_dtype_parse(json_string_value(dtype), &t->dtype))
        return FAULT(f, name, e, "dtype %.40s is unknown", json_string_value(dtype));
    if (!json_is_array(shape)) return FAULT(f, name, e, "shape is missing or no list");
    if (json_array_size(shape) > FMT_DIMS_MAX)
        return FAULT(f, name, e, "found %zu dimensions, wanted at most %d", json_array_size(shape), FMT_DIMS_MAX);
    int64_t dims[FMT_DIMS_MAX];
    uint64_t elems = 1;
    int32_t ndim = (int32_t)json_array_size(shape);
    for (int32_t d = 0; d < ndim; d++) {
        if (!get_count(json_array_get(shape, (size_t)d), &dims[d]))
            return FAULT(f, name, e, "shape[%d] is no integer >= 0", d);
        if (!mul_u64(elems, (uint64_t)dims[d], &elems)) return FAULT(f, name, e, "its shape overflows at dimension %d", d);
    }
    if (!mul_u64(elems, fmt_dtype_bytes(t->dtype), bytes)) return FAULT(f, name, e, "its shape overflows in bytes");
    *t = fmt_tensor_make(t->dtype, NULL, ndim, dims);
    return ERR_OK;
}

static err_code parse_entry(const fmt_safetensors *f, const char *name, const json_t *info, fmt_safetensors_entry *out,
                            err *e)
{
    uint64_t wanted = 0, data_bytes = f->file_bytes - f->data_start;
    int64_t begin, end;
    if (!json_is_object(info)) return FAULT(f, name, e, "found no object");
    TRY(parse_type(f, name, info, &out->tensor, &wanted, e));
    const json_t *span = json_object_get(info, "data_offsets");
    if (!json_is_array(span) || json_array_size(span) != 2 || !get_count(json_array_get(span, 0), &begin) ||
        !get_count(json_array_get(span, 1), &end))
        return FAULT(f, name, e, "data_offsets is missing or not two integers >= 0");
    if (begin > end || (uint64_t)end > data_bytes)
        return FAULT(f, name, e, "found data_offsets %" PRId64 " to %" PRId64 ", wanted a span inside the %" PRIu64
                     " bytes of data", begin, end, data_bytes);
    if ((uint64_t)(end - begin) != wanted) {
        char text[200];
        return FAULT(f, name, e, "found a span of %" PRId64 " bytes, wanted %" PRIu64 " for %s", end - begin, wanted,
                     fmt_tensor_text(&out->tensor, text, sizeof text));
    }
    out->name = name;
    out->offset = f->data_start + (uint64_t)begin;
    out->bytes = wanted;
    out->tensor.data = f->map + out->offset;
    return ERR_OK;
}

/* Empty tensors come before one that starts at the same byte. */
static int by_span(const void *a, const void *b)
{
    const fmt_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const fmt_safetensors_entry *)a)->name, ((const fmt_safetensors_entry *)b)->name);
}

/* The spans must cover the data without gap, overlap or rest. Leaves the entries in span order. */
static err_code check_cover(fmt_safetensors *f, err *e)
{
    uint64_t at = f->data_start;
    qsort(f->entries, f->count, sizeof *f->entries, by_span);
    for (size_t i = 0; i < f->count; i++) {
        const fmt_safetensors_entry *x = &f->entries[i];
        if (x->offset != at)
            return FAULT(f, x->name, e, "found data at offset %" PRIu64 ", wanted %" PRIu64 ": its span %s %.100s",
                         x->offset - f->data_start, at - f->data_start, x->offset < at ? "overlaps" : "leaves a gap after",
                         i ? f->entries[i - 1].name : "the header");
        at += x->bytes;
    }
    if (at != f->file_bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: byte %" PRIu64 ": found %" PRIu64 " bytes after the last tensor's data, wanted none",
                       f->path, at, f->file_bytes - at);
    return ERR_OK;
}

static err_code parse_entries(fmt_safetensors *f, err *e)
{
    const char *name;
    json_t *info;
    f->entries = mem_alloc(json_object_size(f->header), sizeof *f->entries);
    if (!f->entries) return err_set(e, ERR_NOMEM, "%s: no memory for its table", f->path);
    json_object_foreach(f->header, name, info) {
        if (strcmp(name, "__metadata__") == 0) {
            if (json_is_null(info)) continue;
            TRY(check_metadata(f, info, e));
            f->metadata = info;
        } else {
            TRY(parse_entry(f, name, info, &f->entries[f->count], e));
            f->count++;
        }
    }
    TRY(check_cover(f, e));
    qsort(f->entries, f->count, sizeof *f->entries, by_name);
    return ERR_OK;
}

err_code fmt_safetensors_open(const char *path, fmt_safetensors **out, err *e)
{
    err_code rc;
    *out = NULL;
    fmt_safetensors *f = mem_alloc(1, sizeof *f);
    if (!f || !(f->path = mem_strdup(path))) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory to open it", path);
        goto fail;
    }
    if ((rc = map_file(f, e)) != ERR_OK) goto fail;
    if ((rc = parse_header(f, e)) != ERR_OK) goto fail;
    if ((rc = parse_entries(f, e)) != ERR_OK) goto fail;
    *out = f;
    return ERR_OK;
fail:
    fmt_safetensors_close(f);
    return rc;
}

void fmt_safetensors_close(fmt_safetensors *f)
{
    if (!f) return;
    if (f->map) munmap(f->map, (size_t)f->file_bytes);
    json_decref(f->header);
    free(f->entries);
    free(f->path);
    free(f);
}

const char *fmt_safetensors_path(const fmt_safetensors *f) { return f->path; }
size_t fmt_safetensors_count(const fmt_safetensors *f) { return f->count; }
const fmt_safetensors_entry *fmt_safetensors_at(const fmt_safetensors *f, size_t i) { return &f->entries[i]; }
const json_t *fmt_safetensors_metadata(const fmt_safetensors *f) { return f->metadata; }

const fmt_safetensors_entry *fmt_safetensors_find(const fmt_safetensors *f, const char *name)
{
    fmt_safetensors_entry key = { .name = name };
    return bsearch(&key, f->entries, f->count, sizeof key, by_name);
}
