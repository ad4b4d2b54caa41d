#include "formats/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/infile.h"
#include "base/mem.h"
#include "base/outfile.h"

/* The whole of a regular file in memory. */
static err_code slurp(const char *path, size_t max_bytes, char **out, size_t *out_bytes, err *e)
{
    err_code rc = ERR_OK;
    char *text = NULL;
    size_t used = 0;
    int fd;
    uint64_t bytes;
    TRY(infile_open(path, path, "JSON text", &fd, &bytes, e));
    if (bytes > max_bytes) {
        rc = err_set(e, ERR_FORMAT, "%s: found %" PRIu64 " bytes, wanted at most %zu", path, bytes, max_bytes);
        goto out;
    }
    text = malloc((size_t)bytes + 1);
    if (!text) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory for %" PRIu64 " bytes", path, bytes);
        goto out;
    }
    while (used < (size_t)bytes) {
        ssize_t n = read(fd, text + used, (size_t)bytes - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = err_set(e, ERR_IO, "%s: reading failed at byte %zu: %s", path, used, strerror(errno));
            goto out;
        }
        if (n == 0) break;
        used += (size_t)n;
    }
    *out = text;
    *out_bytes = used;
    text = NULL;
out:
    free(text);
    close(fd);
    return rc;
}

err_code fmt_json_read(const char *path, size_t max_bytes, json_t **out, err *e)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t why;
    *out = NULL;
    TRY(slurp(path, max_bytes, &text, &bytes, e));
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (*out) return ERR_OK;
    if (json_error_code(&why) == json_error_out_of_memory || !why.text[0]) /* jansson says nothing when a node is refused */
        return err_set(e, ERR_NOMEM, "%s: no memory for its JSON", path);
    return err_set(e, ERR_FORMAT, "%s: line %d, column %d: %s", path, why.line, why.column, why.text);
}

static int to_outfile(const char *text, size_t bytes, void *f)
{
    outfile_write(f, text, bytes);
    return 0;
}

err_code fmt_json_write(const char *path, const json_t *value, err *e)
{
    outfile *f;
    TRY(outfile_open(path, &f, e));
    if (json_dump_callback(value, to_outfile, f, JSON_INDENT(2) | JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY) != 0) {
        outfile_abandon(f);
        return err_set(e, ERR_NOMEM, "%s: no memory to write JSON", path);
    }
    outfile_write(f, "\n", 1);
    return outfile_commit(f, e);
}

err_code fmt_json_print(FILE *out, const json_t *value, err *e)
{
    int failed = json_dumpf(value, out, JSON_COMPACT | JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY);
    if (putc('\n', out) == EOF || ferror(out)) return err_set(e, ERR_IO, "output: write failed: %s", strerror(errno));
    return failed ? err_set(e, ERR_NOMEM, "output: no memory to write JSON") : ERR_OK;
}

typedef struct text_buf { char *text; size_t used, cap; bool failed; } text_buf;

static int to_text(const char *text, size_t bytes, void *ctx)
{
    text_buf *b = ctx;
    void *array = b->text;
    b->failed = b->failed || !mem_grow(&array, &b->cap, b->used + bytes + 1, 1);
    b->text = array;
    if (b->failed) return -1;
    memcpy(b->text + b->used, text, bytes);
    b->used += bytes;
    b->text[b->used] = 0;
    return 0;
}

char *fmt_json_dumps(const json_t *value, size_t flags)
{
    text_buf b = { 0 };
    if (json_dump_callback(value, to_text, &b, flags) == 0 && !b.failed) return b.text;
    free(b.text);
    return NULL;
}

json_t *fmt_json_real(double v)
{
    if (isnan(v)) return json_string("nan");
    if (isinf(v)) return json_string(v > 0 ? "inf" : "-inf");
    return json_real(v);
}

void fmt_json_add(json_t **to, json_t *item)
{
    if (json_array_append_new(*to, item) == 0) return; /* which takes the item also when it fails */
    json_decref(*to);
    *to = NULL;
}

void fmt_json_put(json_t **to, const char *key, json_t *item)
{
    if (json_object_set_new(*to, key, item) == 0) return;
    json_decref(*to);
    *to = NULL;
}

const char *fmt_json_text(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}
