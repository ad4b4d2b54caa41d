#include "capture/export.h"

#include "base/cli.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "capture/joined.h"
#include "capture/npy.h"
#include "formats/safetensors.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* One value to write. */
typedef struct item {
    char name[CAP_EXPORT_NAME];
    size_t record; /* the record itself, or the first of the value's */
} item;

typedef enum sink_kind { SINK_SAFETENSORS, SINK_NPZ, SINK_FOLDER } sink_kind;
typedef struct sink {
    sink_kind kind;
    const char *path;
    fmt_safetensors_writer *tensors;
    outfile *file;
    cap_zip *zip;
    char *folder;      /* PATH.part */
    size_t n_made;     /* files in it: of the first n_made items */
} sink;

typedef struct exporter {
    const fmt_tape *t;
    const cap_export_options *o;
    cap_export_result *result;
    item *item;
    fmt_safetensors_decl *decl; /* name, dtype and shape of each item */
    size_t n, n_found;
    cap_value value;
} exporter;

/* ---- what to write ---- */

static err_code get(exporter *x, size_t i, err *e)
{
    fmt_tape_record r;
    if (x->o->per_rank) return cap_record_get(x->t, x->item[i].record, &x->value, e);
    fmt_tape_at(x->t, x->item[i].record, &r);
    return cap_joined_get(x->t, &r.key, &x->value, e);
}

static void add_item(exporter *x, size_t record)
{
    fmt_tape_record r;
    item *at = &x->item[x->n_found];
    fmt_tape_at(x->t, record, &r);
    cap_export_name(r.key.round, r.key.slot, r.key.name, at->name);
    if (x->o->pattern && !cli_match(x->o->pattern, r.key.name) && !cli_match(x->o->pattern, at->name)) return;
    if (r.tier != FMT_TIER_TENSOR) {
        x->result->n_no_payload++;
        return;
    }
    if (x->o->per_rank && r.key.rank != FMT_TAPE_NO_RANK) {
        size_t len = strlen(at->name);
        snprintf(at->name + len, sizeof at->name - len, ".rank%d", r.key.rank);
    }
    at->record = record;
    x->n_found++;
}

static err_code find_items(exporter *x, err *e)
{
    size_t n_records = fmt_tape_count(x->t);
    x->item = mem_alloc(n_records + 1, sizeof *x->item);
    x->decl = mem_alloc(n_records + 1, sizeof *x->decl);
    if (!x->item || !x->decl) return err_set(e, ERR_NOMEM, "%s: no memory for %zu names", fmt_tape_path(x->t), n_records);
    if (x->o->per_rank) {
        for (size_t i = 0; i < n_records; i++) add_item(x, i);
        return ERR_OK;
    }
    cap_names *names;
    TRY(cap_names_make(x->t, &names, e));
    for (size_t i = 0; i < cap_names_count(names); i++) add_item(x, cap_names_at(names, i)->first_record);
    cap_names_free(names);
    return ERR_OK;
}

static void note_damage(cap_export_result *r, const char *what)
{
    if (!r->damage[0]) snprintf(r->damage, sizeof r->damage, "%s", what);
}

/* Reads every value once before anything is declared: what is not sound must not be in the table of names. */
static err_code keep_sound(exporter *x, err *e)
{
    progress p;
    progress_begin(&p, "checking", x->n_found, x->o->quiet);
    err_code rc = ERR_OK;
    for (size_t i = 0; i < x->n_found && rc == ERR_OK; i++) {
        err why = { 0 };
        rc = get(x, i, &why);
        progress_add(&p, 1);
        if (rc == ERR_FORMAT || rc == ERR_INPUT) {
            x->result->n_damaged++;
            note_damage(x->result, why.msg);
            rc = ERR_OK;
            continue;
        }
        if (rc != ERR_OK) {
            *e = why;
            break;
        }
        x->item[x->n] = x->item[i];
        fmt_safetensors_decl *d = &x->decl[x->n];
        *d = (fmt_safetensors_decl){ x->item[x->n].name, x->value.tensor.dtype, x->value.tensor.ndim, { 0 } };
        memcpy(d->shape, x->value.tensor.shape, sizeof d->shape);
        x->n++;
    }
    progress_end(&p);
    return rc;
}

/* ---- metadata ---- */

static void set_text(json_t **meta, const char *key, const json_t *text)
{
    if (json_is_string(text)) fmt_json_put(meta, key, json_incref((json_t *)(uintptr_t)text));
}

/* NULL: no memory. */
static json_t *metadata_of(const fmt_tape *t, const char *pattern)
{
    const json_t *head = fmt_tape_head(t), *identity = json_object_get(head, "identity"), *value;
    const char *key;
    json_t *meta = json_object();
    json_object_foreach((json_t *)(uintptr_t)json_object_get(head, "imported"), key, value) set_text(&meta, key, value);
    fmt_json_put(&meta, "format", json_string("sparktape-export-1"));
    /* A selection is no level. */
    if (pattern) fmt_json_put(&meta, "pattern", json_string(utf8_valid(pattern) ? pattern : "?"));
    else set_text(&meta, "level", json_object_get(head, "level"));
    set_text(&meta, "traffic", json_object_get(head, "traffic"));
    set_text(&meta, "combine", json_object_get(identity, "combine"));
    set_text(&meta, "redact", json_object_get(json_object_get(head, "redact"), "key")); /* whose ids these are */
    const char *checkpoint = json_string_value(json_object_get(identity, "checkpoint"));
    if (checkpoint && strcmp(checkpoint, "unknown") != 0) {
        char *text = fmt_json_dumps(identity, JSON_COMPACT);
        fmt_json_put(&meta, "identity", text ? json_string(text) : NULL);
        free(text);
    }
    return meta;
}

/* ---- where to ---- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n > k && strcmp(s + n - k, tail) == 0;
}

static char *join_text(const char *a, const char *b, const char *c)
{
    size_t bytes = strlen(a) + strlen(b) + strlen(c) + 1;
    char *s = malloc(bytes);
    if (s) snprintf(s, bytes, "%s%s%s", a, b, c);
    return s;
}

static err_code write_file(const sink *s, const char *name, const void *head, size_t head_bytes, const void *body,
                           size_t body_bytes, err *e)
{
    char *path = join_text(s->folder, "/", name);
    if (!path) return err_set(e, ERR_NOMEM, "%s: no memory for a file name", s->path);
    FILE *f = fopen(path, "wbx");
    bool ok = f && fwrite(head, 1, head_bytes, f) == head_bytes && fwrite(body, 1, body_bytes, f) == body_bytes;
    if (f && fclose(f) != 0) ok = false;
    err_code rc = ok ? ERR_OK : err_set(e, ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    free(path);
    return rc;
}

static const char METADATA[] = "metadata.json";

static err_code put_metadata(sink *s, const json_t *meta, err *e)
{
    char *text = fmt_json_dumps(meta, JSON_INDENT(2));
    if (!text) return err_set(e, ERR_NOMEM, "%s: no memory for the metadata", s->path);
    err_code rc = s->kind == SINK_NPZ ? cap_zip_put(s->zip, METADATA, text, strlen(text), "\n", 1, e)
                                      : write_file(s, METADATA, text, strlen(text), "\n", 1, e);
    free(text);
    return rc;
}

static err_code folder_open(sink *s, err *e)
{
    s->folder = join_text(s->path, ".part", "");
    if (!s->folder) return err_set(e, ERR_NOMEM, "%s: no memory for its name", s->path);
    err_code rc = ERR_OK;
    if (rmdir(s->path) != 0 && errno != ENOENT) { /* an empty one gives way */
        const char *why = strerror(errno);
        bool there = access(s->path, F_OK) == 0;
        rc = there ? err_set(e, ERR_ARG, "%s: exists, wanted a new or an empty folder: %s", s->path, why)
                   : err_set(e, ERR_IO, "%s: cannot be made: %s", s->path, why);
    } else if (mkdir(s->folder, 0777) == 0) return ERR_OK;
    else if (errno == EEXIST)
        rc = err_set(e, ERR_ARG, "%s is what a killed export left, or is being written: remove it, or name another folder",
                     s->folder);
    else rc = err_set(e, ERR_IO, "%s: cannot be made: %s", s->folder, strerror(errno));
    free(s->folder); /* not ours to clean up */
    s->folder = NULL;
    return rc;
}

static err_code sink_open(sink *s, const char *path, const exporter *x, const json_t *meta, err *e)
{
    *s = (sink){ .path = path };
    s->kind = ends_with(path, ".safetensors") ? SINK_SAFETENSORS : ends_with(path, ".npz") ? SINK_NPZ : SINK_FOLDER;
    switch (s->kind) {
    case SINK_SAFETENSORS:
        return fmt_safetensors_create(path, x->decl, x->n, meta, &s->tensors, e);
    case SINK_NPZ:
        TRY(outfile_open(path, &s->file, e));
        TRY(cap_zip_open(s->file, &s->zip, e));
        break;
    case SINK_FOLDER:
        TRY(folder_open(s, e));
        break;
    }
    return put_metadata(s, meta, e);
}

static err_code sink_put(sink *s, const item *at, const fmt_tensor *t, err *e)
{
    size_t bytes = (size_t)fmt_tensor_bytes(t);
    if (s->kind == SINK_SAFETENSORS) {
        fmt_safetensors_put(s->tensors, t->data, bytes);
        return ERR_OK;
    }
    uint8_t head[CAP_NPY_HEADER];
    char file[CAP_EXPORT_NAME + 8];
    size_t head_bytes = cap_npy_header(t, head);
    snprintf(file, sizeof file, "%s.npy", at->name);
    if (s->kind == SINK_NPZ) return cap_zip_put(s->zip, file, head, head_bytes, t->data, bytes, e);
    s->n_made++;
    return write_file(s, file, head, head_bytes, t->data, bytes, e);
}

/* Gives the output its name. */
static err_code sink_close(sink *s, err *e)
{
    if (s->kind == SINK_SAFETENSORS) {
        fmt_safetensors_writer *w = s->tensors;
        s->tensors = NULL;
        return fmt_safetensors_finish(w, e);
    }
    if (s->kind == SINK_NPZ) {
        outfile *f = s->file;
        cap_zip_close(s->zip);
        s->zip = NULL;
        s->file = NULL;
        return outfile_commit(f, e);
    }
    if (rename(s->folder, s->path) != 0)
        return err_set(e, ERR_IO, "%s: cannot be renamed from .part: %s", s->path, strerror(errno));
    free(s->folder);
    s->folder = NULL;
    return ERR_OK;
}

/* Removes what is not whole; after sink_close there is nothing left to do. */
static void sink_abandon(sink *s, const exporter *x)
{
    fmt_safetensors_discard(s->tensors);
    cap_zip_free(s->zip);
    outfile_abandon(s->file);
    if (!s->folder) return;
    for (size_t i = 0; i <= s->n_made; i++) {
        char *path = i < s->n_made ? join_text(s->folder, "/", x->item[i].name) : join_text(s->folder, "/", METADATA);
        char *file = path && i < s->n_made ? join_text(path, ".npy", "") : path;
        if (file) unlink(file);
        if (file != path) free(file);
        free(path);
    }
    rmdir(s->folder);
    free(s->folder);
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* A damaged or hostile tape may hold two records of one export name, or a name that is no file name. */
static err_code check_names(const exporter *x, err *e)
{
    const char **name = mem_alloc(x->n + 1, sizeof *name);
    if (!name) return err_set(e, ERR_NOMEM, "%s: no memory for the names", fmt_tape_path(x->t));
    err_code rc = ERR_OK;
    for (size_t i = 0; i < x->n; i++) {
        name[i] = x->item[i].name;
        if (strchr(name[i], '/')) /* would be a path */
            rc = err_set(e, ERR_INPUT, "%s: value name '%s' holds a '/'", fmt_tape_path(x->t), name[i]);
    }
    qsort(name, x->n, sizeof *name, by_text);
    for (size_t i = 1; i < x->n && rc == ERR_OK; i++)
        if (strcmp(name[i], name[i - 1]) == 0)
            rc = err_set(e, ERR_INPUT, "%s: two values would be exported as %s", fmt_tape_path(x->t), name[i]);
    free(name);
    return rc;
}

static err_code write_all(exporter *x, const char *path, err *e)
{
    json_t *meta = metadata_of(x->t, x->o->pattern);
    if (!meta) return err_set(e, ERR_NOMEM, "%s: no memory for the metadata", path);
    sink s;
    progress p;
    progress_begin(&p, "exporting", x->n, x->o->quiet);
    err_code rc = sink_open(&s, path, x, meta, e);
    for (size_t i = 0; i < x->n && rc == ERR_OK; i++) {
        rc = get(x, i, e);
        if (rc == ERR_OK) rc = sink_put(&s, &x->item[i], &x->value.tensor, e);
        if (rc == ERR_OK) x->result->bytes += fmt_tensor_bytes(&x->value.tensor);
        progress_add(&p, 1);
    }
    if (rc == ERR_OK) rc = sink_close(&s, e);
    if (rc != ERR_OK) sink_abandon(&s, x);
    progress_end(&p);
    json_decref(meta);
    x->result->n_values = x->n;
    return rc;
}

static err_code export_all(exporter *x, const char *path, err *e)
{
    const fmt_tape_fault *faults;
    TRY(find_items(x, e));
    TRY(keep_sound(x, e));
    if (fmt_tape_damage(x->t, &faults) > 0) note_damage(x->result, faults[0].what);
    else if (!fmt_tape_finished(x->t)) note_damage(x->result, "the tape is unfinished");
    if (x->n == 0) {
        if (x->result->n_damaged) return err_set(e, ERR_INPUT, "no sound value: %s", x->result->damage);
        return err_set(e, ERR_INPUT, "%s: no value to export%s%s", fmt_tape_path(x->t), x->o->pattern ? " matches " : "",
                       x->o->pattern ? x->o->pattern : "");
    }
    TRY(check_names(x, e));
    return write_all(x, path, e);
}

err_code cap_export(const fmt_tape *t, const char *path, const cap_export_options *o, cap_export_result *out, err *e)
{
    *out = (cap_export_result){ 0 };
    exporter x = { .t = t, .o = o, .result = out };
    err_code rc = export_all(&x, path, e);
    cap_value_fini(&x.value);
    free(x.item);
    free(x.decl);
    return rc;
}
