/* A tape stored on another one: how it names its base, finds it again, and reads values through it. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "formats/tape_reader.h"

/* What tells a finished tape from every other one and is cheap to look at: its end chunk, which counts all that is before
 * it, and its length. */
typedef struct tape_id { uint32_t crc; uint64_t bytes; } tape_id;

/* false: it has no end. */
static bool id_of(const fmt_tape *t, tape_id *out)
{
    const fmt_tape_end *end = fmt_tape_end_of(t);
    if (!end->good) return false;
    out->bytes = fmt_tape_file_bytes(t);
    out->crc = fmt_crc32c(0, fmt_tape_map(t) + end->offset, (size_t)(out->bytes - end->offset));
    return true;
}

static const json_t *note_of(const fmt_tape *t) { return json_object_get(fmt_tape_head(t), "base"); }

/* ---- writing ---- */

/* The folder of path, absolute; owned by the caller. NULL: errno says why. */
static char *folder_of(const char *path)
{
    char *copy = mem_strdup(path);
    if (!copy) return NULL;
    char *slash = strrchr(copy, '/');
    if (slash) slash[slash == copy] = 0; /* "/x" lies in "/" */
    char *folder = realpath(slash ? copy : ".", NULL);
    free(copy);
    return folder;
}

/* The way from an absolute folder to an absolute path: "../runs/a.tape". */
static bool way_between(const char *folder, const char *to, char *out, size_t out_bytes)
{
    size_t same = 0, n = 0;
    for (size_t i = 0; ; i++) { /* same: bytes of the folders they share */
        bool end_a = folder[i] == 0 || folder[i] == '/', end_b = to[i] == '/';
        if (end_a && end_b) same = i;
        if (folder[i] == 0 || folder[i] != to[i]) break;
    }
    out[0] = 0;
    for (const char *p = folder + same; *p; p++)
        if (*p == '/' && p[1]) n += (size_t)snprintf(out + n, n < out_bytes ? out_bytes - n : 0, "../");
    if (n >= out_bytes) return false;
    n += (size_t)snprintf(out + n, out_bytes - n, "%s", to + same + 1);
    return n < out_bytes;
}

err_code fmt_base_note(const char *path, const fmt_tape *base, json_t **out, err *e)
{
    tape_id id;
    char way[PATH_MAX] = "";
    *out = NULL;
    if (note_of(base))
        return err_set(e, ERR_ARG, "%s: base %s is stored on a base itself (%s), wanted one that stands alone", path,
                       fmt_tape_path(base), json_string_value(json_object_get(note_of(base), "name")));
    if (!id_of(base, &id))
        return err_set(e, ERR_ARG, "%s: base %s is unfinished, wanted a finished tape", path, fmt_tape_path(base));
    char *folder = folder_of(path), *to = realpath(fmt_tape_path(base), NULL), *from = realpath(path, NULL);
    bool itself = from && to && strcmp(from, to) == 0; /* it would take the base's place */
    bool found = folder && to && way_between(folder, to, way, sizeof way);
    err_code rc = itself ? err_set(e, ERR_ARG, "%s: is its own base, wanted another tape", path)
                  : found ? ERR_OK
                          : err_set(e, ERR_IO, "%s: no way from it to its base %s", path, fmt_tape_path(base));
    free(from);
    free(folder);
    free(to);
    TRY(rc);
    *out = json_pack("{s:s, s:I, s:I}", "name", way, "crc", (json_int_t)id.crc, "bytes", (json_int_t)id.bytes);
    return *out ? ERR_OK : err_set(e, ERR_INPUT, "%s: the name of its base %s is no UTF-8", path, way);
}

/* ---- finding it again ---- */

/* Opens name in the folder of t. */
static err_code open_in_folder(const fmt_tape *t, const char *name, fmt_tape **out, err *e)
{
    char path[PATH_MAX];
    const char *slash = strrchr(fmt_tape_path(t), '/');
    int folder = slash ? (int)(slash + 1 - fmt_tape_path(t)) : 0;
    *out = NULL;
    if (snprintf(path, sizeof path, "%.*s%s", folder, fmt_tape_path(t), name) >= (int)sizeof path)
        return err_set(e, ERR_INPUT, "its name is too long");
    return fmt_tape_open(path, out, e);
}

static err_code open_base(const fmt_tape *t, fmt_tape **out, err *e)
{
    const json_t *note = note_of(t);
    const char *name = json_string_value(json_object_get(note, "name"));
    tape_id want = { (uint32_t)json_integer_value(json_object_get(note, "crc")),
                     (uint64_t)json_integer_value(json_object_get(note, "bytes")) }, have;
    err why = { 0 };
    *out = NULL;
    if (!name || !name[0] || name[0] == '/') return err_set(e, ERR_FORMAT, "its head names no base");
    const char *last = strrchr(name, '/');
    /* Where it was when the tape was made, or beside it. */
    if (open_in_folder(t, name, out, &why) != ERR_OK && !(last && open_in_folder(t, last + 1, out, NULL) == ERR_OK))
        return err_set(e, ERR_INPUT, "its base is not to be had: %.200s", why.msg);
    err_code rc = ERR_OK;
    if (note_of(*out))
        rc = err_set(e, ERR_INPUT, "its base %s is stored on a base itself, which none may be", fmt_tape_path(*out));
    /* The end of a damaged base may be lost: then every value's hash tells by itself. */
    else if (id_of(*out, &have) && (have.crc != want.crc || have.bytes != want.bytes))
        rc = err_set(e, ERR_INPUT, "%s is not its base %s: found end %08x of %" PRIu64 " bytes, wanted %08x of %" PRIu64,
                     fmt_tape_path(*out), name, have.crc, have.bytes, want.crc, want.bytes);
    if (rc == ERR_OK) return ERR_OK;
    fmt_tape_close(*out);
    *out = NULL;
    return rc;
}

err_code fmt_tape_base(const fmt_tape *t, const fmt_tape **out, err *e)
{
    fmt_tape *self = (fmt_tape *)t;
    pthread_mutex_lock(&self->lock);
    if (!self->base && self->base_failed.code == ERR_OK) (void)open_base(t, &self->base, &self->base_failed);
    *out = self->base;
    if (!self->base && e) *e = self->base_failed;
    err_code rc = self->base ? ERR_OK : self->base_failed.code;
    pthread_mutex_unlock(&self->lock);
    return rc;
}

const char *fmt_tape_base_name(const fmt_tape *t)
{
    return json_string_value(json_object_get(note_of(t), "name"));
}

/* ---- reading through it ---- */

err_code fmt_base_get(void *ctx, const fmt_part *p, uint8_t *dst, err *e)
{
    fmt_base_value *v = ctx;
    const fmt_tape *base;
    fmt_tape_record r = { .tier = FMT_TIER_HASH };
    char name[FMT_TAPE_NAME_BYTES + 1], text[FMT_TAPE_NAME_BYTES + 48];
    fmt_tape_key key = p->record.key;
    TRY(fmt_tape_base(v->tape, &base, e));
    snprintf(name, sizeof name, "%.*s", (int)p->name_bytes, p->name);
    key.name = name;
    int64_t i = fmt_tape_find(base, &key);
    if (i >= 0) fmt_tape_at(base, (size_t)i, &r);
    if (i < 0 || r.tier != FMT_TIER_TENSOR || !fmt_same_type(&r.tensor, &p->record.tensor) || r.hash != p->base_hash)
        return err_set(e, ERR_FORMAT, "base %s: %s there is not what it was stored on (hash %016" PRIx64 ")",
                       fmt_tape_path(base), fmt_tape_key_text(&key, text, sizeof text), p->base_hash);
    if (!v->data || v->record != i) { /* kept for the other parts of the value */
        v->record = -1; /* until it is there */
        if (!mem_grow((void **)&v->data, &v->cap, (size_t)r.raw_bytes + 1, 1))
            return err_set(e, ERR_NOMEM, "no memory for a value of the base");
        if (fmt_tape_get(base, (size_t)i, v->data, r.raw_bytes, e) != ERR_OK) return err_wrap(e, "base");
        v->record = i;
    }
    uint64_t size = fmt_dtype_bytes(r.tensor.dtype);
    memcpy(dst, v->data + p->first * size, (size_t)(p->elems * size));
    return ERR_OK;
}
