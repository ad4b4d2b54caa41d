#include "formats/safetensors.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/outfile.h"
#include "base/utf8.h"

enum { HEADER_ALIGN = 8 }; /* so that the data starts aligned */

struct fmt_safetensors_writer {
    outfile *f;
    char *path;
    uint64_t put_bytes, declared_bytes;
};

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static err_code check_names(const char *path, const fmt_safetensors_decl *decls, size_t n, err *e)
{
    const char **names = mem_alloc(n, sizeof *names);
    err_code rc = ERR_OK;
    if (!names) return err_set(e, ERR_NOMEM, "%s: no memory for its table", path);
    for (size_t i = 0; i < n; i++) names[i] = decls[i].name;
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n && rc == ERR_OK; i++) {
        if (strcmp(names[i], "__metadata__") == 0)
            rc = err_set(e, ERR_ARG, "%s: found a tensor named __metadata__, a reserved name", path);
        if (i && strcmp(names[i - 1], names[i]) == 0)
            rc = err_set(e, ERR_ARG, "%s: tensor %.200s: found its name twice", path, names[i]);
    }
    free(names);
    return rc;
}

/* One tensor's object; *at moves past its data. NULL: *rc says why. */
static json_t *describe(const char *path, const fmt_safetensors_decl *d, uint64_t *at, err_code *rc, err *e)
{
    uint64_t bytes = fmt_dtype_bytes(d->dtype), begin = *at;
    bool fits = d->dtype < FMT_DTYPE_COUNT && d->ndim >= 0 && d->ndim <= FMT_DIMS_MAX;
    json_t *shape = json_array();
    for (int32_t i = 0; fits && i < d->ndim; i++) {
        fits = d->shape[i] >= 0 && mul_u64(bytes, (uint64_t)d->shape[i], &bytes);
        fmt_json_add(&shape, json_integer(d->shape[i]));
    }
    if (!fits || !add_u64(begin, bytes, at) || *at > INT64_MAX) {
        json_decref(shape);
        *rc = err_set(e, ERR_ARG, "%s: tensor %.200s: its dtype or shape cannot be stored", path, d->name);
        return NULL;
    }
    json_t *info = json_pack("{s:s, s:o, s:[I, I]}", "dtype", fmt_dtype_name(d->dtype), "shape", shape, "data_offsets",
                             (json_int_t)begin, (json_int_t)*at);
    if (!info) *rc = err_set(e, ERR_NOMEM, "%s: no memory for its header", path);
    return info;
}

static err_code build_header(const char *path, const fmt_safetensors_decl *decls, size_t n, const json_t *metadata,
                             char **text, uint64_t *data_bytes, err *e)
{
    err_code rc = ERR_OK;
    json_t *header = json_object();
    const char *key;
    json_t *v;
    *text = NULL;
    *data_bytes = 0;
    if (!header) return err_set(e, ERR_NOMEM, "%s: no memory for its header", path);
    if (metadata) {
        bool fits = json_is_object(metadata);
        json_object_foreach((json_t *)metadata, key, v) fits = fits && json_is_string(v);
        if (!fits) {
            rc = err_set(e, ERR_ARG, "%s: metadata is no object of strings", path);
            goto out;
        }
        if (json_object_set(header, "__metadata__", (json_t *)metadata) != 0) {
            rc = err_set(e, ERR_NOMEM, "%s: no memory for its header", path);
            goto out;
        }
    }
    for (size_t i = 0; i < n; i++) {
        json_t *info = describe(path, &decls[i], data_bytes, &rc, e);
        if (!info) goto out;
        if (json_object_set_new(header, decls[i].name, info) == 0) continue;
        if (utf8_valid(decls[i].name)) rc = err_set(e, ERR_NOMEM, "%s: no memory for its header", path);
        else rc = err_set(e, ERR_ARG, "%s: tensor %.200s: its name is not UTF-8", path, decls[i].name);
        goto out;
    }
    *text = fmt_json_dumps(header, JSON_COMPACT);
    if (!*text) rc = err_set(e, ERR_NOMEM, "%s: no memory for its header", path);
out:
    json_decref(header);
    return rc;
}

err_code fmt_safetensors_create(const char *path, const fmt_safetensors_decl *decls, size_t n, const json_t *metadata,
                                fmt_safetensors_writer **out, err *e)
{
    err_code rc;
    char *text = NULL;
    uint8_t length[8];
    *out = NULL;
    fmt_safetensors_writer *w = mem_alloc(1, sizeof *w);
    if (!w || !(w->path = mem_strdup(path))) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory to create it", path);
        goto fail;
    }
    if ((rc = check_names(path, decls, n, e)) != ERR_OK) goto fail;
    if ((rc = build_header(path, decls, n, metadata, &text, &w->declared_bytes, e)) != ERR_OK) goto fail;
    size_t used = strlen(text), padded = (used + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    if (padded > FMT_SAFETENSORS_HEADER_MAX) {
        rc = err_set(e, ERR_ARG, "%s: found a header of %zu bytes, wanted at most %d", path, padded,
                     FMT_SAFETENSORS_HEADER_MAX);
        goto fail;
    }
    if ((rc = outfile_open(path, &w->f, e)) != ERR_OK) goto fail;
    put_u64(length, padded);
    outfile_write(w->f, length, sizeof length);
    outfile_write(w->f, text, used);
    outfile_write(w->f, "        ", padded - used);
    free(text);
    *out = w;
    return ERR_OK;
fail:
    free(text);
    fmt_safetensors_discard(w);
    return rc;
}

void fmt_safetensors_put(fmt_safetensors_writer *w, const void *data, size_t bytes)
{
    w->put_bytes += bytes;
    if (w->put_bytes <= w->declared_bytes) outfile_write(w->f, data, bytes); /* too many: finish refuses */
}

err_code fmt_safetensors_finish(fmt_safetensors_writer *w, err *e)
{
    err_code rc = ERR_OK;
    if (w->put_bytes != w->declared_bytes) {
        rc = err_set(e, ERR_ARG, "%s: found %" PRIu64 " bytes of data, wanted the %" PRIu64 " declared", w->path,
                     w->put_bytes,
                     w->declared_bytes);
    } else {
        rc = outfile_commit(w->f, e);
        w->f = NULL;
    }
    fmt_safetensors_discard(w);
    return rc;
}

void fmt_safetensors_discard(fmt_safetensors_writer *w)
{
    if (!w) return;
    outfile_abandon(w->f);
    free(w->path);
    free(w);
}
