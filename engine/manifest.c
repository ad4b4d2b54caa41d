#include "engine/manifest.h"

#include "base/clock.h"
#include "base/infile.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "formats/exl3.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MANIFEST_BYTES_MAX = 64 << 20, PATH_BYTES = 4096 };

/* ---- scan ---- */

/* The scales of a code tensor, NULL for anything else. */
static const uint8_t *scales_of(const eng_weights *w, const eng_tensor_spec *t)
{
    eng_wclass wclass = eng_wkind_of(t->wid)->wclass;
    if (t->exl3 || t->is_scale || (wclass != ENG_WC_FP4 && wclass != ENG_WC_FP8)) return NULL;
    return eng_weights_view(w, t->wid, t->stage, t->expert).scale;
}

static err_code scan_tensor(const eng_weights *w, bool with_ranks, uint64_t *bins, eng_tensor_record *r, err *e)
{
    const eng_config *c = eng_weights_config(w);
    eng_share whole = eng_share_of(c, &r->spec, 0, 1);
    TRY(eng_share_sha256(&whole, r->data, &r->sha256, e));
    eng_facts_of(c, &r->spec, &whole, r->data, scales_of(w, &r->spec), bins, &r->facts);
    for (int32_t rank = 0; with_ranks && rank < ENG_MANIFEST_RANKS; rank++) {
        r->share[rank] = eng_share_of(c, &r->spec, rank, ENG_MANIFEST_RANKS);
        r->share_sha256[rank] = r->sha256;
        if (!r->share[rank].whole) TRY(eng_share_sha256(&r->share[rank], r->data, &r->share_sha256[rank], e));
    }
    return ERR_OK;
}

/* Both lists are sorted by name; the checkpoint's may have more. */
static void find_stored(const eng_weights *w, eng_scan *s)
{
    const fmt_checkpoint *files = eng_weights_files(w);
    size_t at = 0;
    for (size_t i = 0; i < s->n; i++) {
        while (strcmp(fmt_checkpoint_at(files, at)->name, s->record[i].spec.name) != 0) at++;
        s->record[i].data = fmt_checkpoint_at(files, at)->tensor.data;
        s->record[i].shard = fmt_checkpoint_shard_name(files, at);
        s->record[i].bytes = fmt_checkpoint_at(files, at)->bytes;
        s->bytes += s->record[i].bytes;
    }
}

err_code eng_scan_open(const eng_weights *w, bool with_ranks, bool quiet, eng_scan *out, err *e)
{
    eng_scan s = { 0 };
    const eng_tensor_spec *spec = eng_weights_specs(w, &s.n);
    s.record = mem_alloc(s.n, sizeof *s.record);
    if (!s.record) return err_set(e, ERR_NOMEM, "no memory for the records of %zu tensors", s.n);
    for (size_t i = 0; i < s.n; i++) s.record[i].spec = spec[i];
    find_stored(w, &s);

    err why = { 0 };
    s.has_ranks = with_ranks && eng_cut_check(eng_weights_config(w), ENG_MANIFEST_RANKS, &why) == ERR_OK;
    snprintf(s.no_ranks, sizeof s.no_ranks, "%.*s", (int)sizeof s.no_ranks - 1, why.msg);

    progress p;
    progress_begin(&p, "hashing", s.bytes, quiet);
    err_code rc = ERR_OK;
#pragma omp parallel
    {
        uint64_t *bins = mem_alloc(ENG_FACTS_BINS, sizeof *bins);
        /* Large tensors come first by name (embed, head), so that no thread is left with one at the end. */
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < (int64_t)s.n; i++) {
            err mine = { 0 };
            err_code one = bins ? scan_tensor(w, s.has_ranks, bins, &s.record[i], &mine)
                                : err_set(&mine, ERR_NOMEM, "no memory for %d counts", ENG_FACTS_BINS);
#pragma omp critical(eng_scan)
            {
                if (one != ERR_OK && rc == ERR_OK) {
                    rc = one;
                    if (e) *e = mine;
                }
                progress_add(&p, s.record[i].bytes);
            }
        }
        free(bins);
    }
    progress_end(&p);
    if (rc != ERR_OK) {
        eng_scan_close(&s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

void eng_scan_close(eng_scan *s)
{
    free(s->record);
    *s = (eng_scan){ 0 };
}

/* ---- the object ---- */

const char *eng_format_name(const eng_tensor_spec *t)
{
    static const char *const NAMES[] = { [ENG_WC_FP8] = "FP8", [ENG_WC_FP4] = "MXFP4", [ENG_WC_BF16] = "BF16",
                                         [ENG_WC_F32] = "F32" };
    if (t->exl3 == ENG_EXL3_TRELLIS) return "EXL3";
    if (t->exl3) return t->dtype == FMT_DTYPE_F16 ? "F16" : "EXL3";
    return t->is_scale ? "E8M0" : NAMES[eng_wkind_of(t->wid)->wclass];
}

static json_t *shape_json(const int64_t *shape, int32_t ndim)
{
    json_t *a = json_array();
    for (int32_t d = 0; d < ndim; d++)
        if (json_array_append_new(a, json_integer(shape[d])) != 0) break;
    return a;
}

static json_t *share_json(const eng_share *s, int32_t rank, const fmt_sha256 *sha256)
{
    char hex[FMT_SHA256_HEX];
    fmt_sha256_hex(sha256, hex);
    json_t *j = json_pack("{s:i,s:o}", "rank", rank, "shape", shape_json(s->shape, s->ndim));
    if (s->ndim > 0) json_object_set_new(j, "first_row", json_integer(s->row0));
    if (s->ndim > 1) json_object_set_new(j, "first_col", json_integer(s->col0));
    json_object_set_new(j, "bytes", json_integer((json_int_t)eng_share_bytes(s)));
    json_object_set_new(j, "sha256", json_string(hex));
    return j;
}

static json_t *record_json(const eng_scan *s, const eng_tensor_record *r)
{
    char hex[FMT_SHA256_HEX];
    fmt_sha256_hex(&r->sha256, hex);
    const eng_wkind *kind = eng_wkind_of(r->spec.wid);
    const eng_facts *f = &r->facts;
    bool shared = kind->part == ENG_PART_EMBED || kind->part == ENG_PART_HEAD;
    json_t *j = json_pack("{s:s,s:s,s:s,s:o,s:I,s:s,s:s,s:s,s:b}", "name", r->spec.name, "format",
                          eng_format_name(&r->spec), "dtype", fmt_dtype_name(r->spec.dtype), "shape",
                          shape_json(r->spec.shape, r->spec.ndim), "bytes", (json_int_t)r->bytes, "sha256", hex, "shard",
                          r->shard, "supply", shared ? "shared" : "draft-only", "loaded", kind->loaded);
    json_t *values = json_pack("{s:I,s:o,s:o,s:I,s:I,s:I,s:I,s:I}", "elements", (json_int_t)f->elems, "min_abs",
                               fmt_json_real(f->min_abs), "max_abs", fmt_json_real(f->max_abs), "zeros",
                               (json_int_t)f->zeros, "nan", (json_int_t)f->nans, "inf", (json_int_t)f->infs, "inexact_bf16",
                               (json_int_t)f->inexact_bf16, "inexact_fp16", (json_int_t)f->inexact_fp16);
    json_object_set_new(j, "values", values);
    if (r->spec.exl3 == ENG_EXL3_TRELLIS) {
        json_object_set_new(j, "bits", json_integer(r->spec.shape[2] / FMT_EXL3_TILE));
        json_object_set_new(j, "codebook", json_string(fmt_exl3_codebook_name((fmt_exl3_codebook)r->spec.codebook)));
    }
    if (!s->has_ranks) return j;
    json_t *ranks = json_array();
    for (int32_t rank = 0; rank < ENG_MANIFEST_RANKS; rank++)
        json_array_append_new(ranks, share_json(&r->share[rank], rank, &r->share_sha256[rank]));
    json_object_set_new(j, "ranks", ranks);
    return j;
}

json_t *eng_manifest_json(const eng_weights *w, const eng_scan *s)
{
    char id[FMT_SHA256_HEX];
    eng_weights_identity(w, id);
    json_t *tensors = json_array();
    for (size_t i = 0; i < s->n; i++) json_array_append_new(tensors, record_json(s, &s->record[i]));
    json_t *j = json_pack("{s:i,s:s,s:s,s:o,s:I}", "schema", 1, "format", "sparktape-manifest-1", "checkpoint", id,
                          "config", eng_config_json(eng_weights_config(w)), "bytes", (json_int_t)s->bytes);
    if (s->has_ranks)
        json_object_set_new(j, "ranks", json_integer(ENG_MANIFEST_RANKS));
    else
        json_object_set_new(j, "no_ranks", json_string(s->no_ranks));
    json_object_set_new(j, "tensors", tensors);
    /* A tensor that did not fit into memory is missing from the array: half a manifest is none. */
    if (j && json_array_size(tensors) == s->n) return j;
    json_decref(j);
    return NULL;
}

/* ---- checks ---- */

static void differ(eng_difference *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void differ(eng_difference *d, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(d->text, sizeof d->text, fmt, args);
    va_end(args);
    utf8_defuse(d->text, strlen(d->text), ""); /* it quotes a stranger's file */
}

static void compare_record(const char *path, const eng_tensor_record *r, const json_t *wanted, eng_difference *d)
{
    char hex[FMT_SHA256_HEX];
    fmt_sha256_hex(&r->sha256, hex);
    const char *sha256 = json_string_value(json_object_get(wanted, "sha256"));
    const char *dtype = json_string_value(json_object_get(wanted, "dtype"));
    json_t *shape = shape_json(r->spec.shape, r->spec.ndim);
    if (strcmp(dtype, fmt_dtype_name(r->spec.dtype)) != 0)
        differ(d, "%s: dtype is %s, %s says %s", r->spec.name, fmt_dtype_name(r->spec.dtype), path, dtype);
    else if (!json_equal(shape, json_object_get(wanted, "shape")))
        differ(d, "%s: the shape differs from that in %s", r->spec.name, path);
    else if (strcmp(sha256, hex) != 0)
        differ(d, "%s (%s): sha256 is %s, %s says %s", r->spec.name, r->shard, hex, path, sha256);
    json_decref(shape);
}

/* tensors by name; checks that each has what compare_record reads. */
static err_code manifest_tensors(const char *path, const json_t *manifest, json_t *by_name, err *e)
{
    const json_t *tensors = json_object_get(manifest, "tensors"), *t;
    if (!json_is_array(tensors)) return err_set(e, ERR_FORMAT, "%s: found no array \"tensors\", wanted a manifest", path);
    size_t i;
    json_array_foreach(tensors, i, t) {
        const char *name = json_string_value(json_object_get(t, "name"));
        const char *sha256 = json_string_value(json_object_get(t, "sha256"));
        if (!name || !sha256 || !json_is_string(json_object_get(t, "dtype")) || !json_is_array(json_object_get(t, "shape")))
            return err_set(e, ERR_FORMAT, "%s: tensors[%zu] (%s): wanted name, dtype, shape and sha256", path, i,
                           name ? name : "no name");
        if (json_object_get(by_name, name))
            return err_set(e, ERR_FORMAT, "%s: tensors[%zu]: %s is listed twice", path, i, name);
        if (json_object_set(by_name, name, (json_t *)t) != 0) return err_set(e, ERR_NOMEM, "%s: no memory", path);
    }
    return ERR_OK;
}

err_code eng_manifest_check(const char *path, const eng_weights *w, const eng_scan *s, eng_difference *d, err *e)
{
    json_t *manifest = NULL, *by_name = NULL, *config = NULL;
    *d = (eng_difference){ 0 };
    TRY(fmt_json_read(path, MANIFEST_BYTES_MAX, &manifest, e));
    err_code rc = ERR_OK;
    by_name = json_object();
    config = eng_config_json(eng_weights_config(w));
    if (!by_name || !config) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory", path);
        goto out;
    }
    rc = manifest_tensors(path, manifest, by_name, e);
    if (rc != ERR_OK) goto out;
    for (size_t i = 0; i < s->n && !d->text[0]; i++) {
        const json_t *wanted = json_object_get(by_name, s->record[i].spec.name);
        if (wanted)
            compare_record(path, &s->record[i], wanted, d);
        else
            differ(d, "%s: %s does not list it", s->record[i].spec.name, path);
        json_object_del(by_name, s->record[i].spec.name);
    }
    const char *name = json_object_iter_key(json_object_iter(by_name));
    if (!d->text[0] && name) differ(d, "%s: %s lists it, the checkpoint has none", name, path);
    if (!d->text[0] && json_object_get(manifest, "config") && !json_equal(config, json_object_get(manifest, "config")))
        differ(d, "config.json: differs from the config in %s", path);
out:
    json_decref(manifest);
    json_decref(by_name);
    json_decref(config);
    return rc;
}

static err_code open_file(const char *path, FILE **out, err *e)
{
    int fd;
    TRY(infile_open(path, path, "one that can be read", &fd, NULL, e));
    if ((*out = fdopen(fd, "rb"))) return ERR_OK;
    close(fd);
    return err_set(e, ERR_NOMEM, "%s: no memory for reading it", path);
}

static err_code file_sha256(const char *path, progress *p, fmt_sha256 *out, err *e)
{
    enum { BUF_BYTES = 1 << 20 };
    fmt_sha256_state *state = NULL;
    uint8_t *buf = malloc(BUF_BYTES);
    FILE *f = NULL;
    err_code rc = buf ? open_file(path, &f, e) : err_set(e, ERR_NOMEM, "%s: no memory for a buffer", path);
    if (rc == ERR_OK) rc = fmt_sha256_open(&state, e);
    if (rc != ERR_OK) goto out;
    for (size_t n; (n = fread(buf, 1, BUF_BYTES, f)) > 0;) {
        fmt_sha256_add(state, buf, n);
        progress_add(p, n);
    }
    if (ferror(f)) rc = err_set(e, ERR_IO, "cannot read %s: %s", path, strerror(errno));
    fmt_sha256_close(state, out);
out:
    if (f) fclose(f);
    free(buf);
    return rc;
}

/* Splits "sha256  file" in place; the file's last component is what counts. NULL: not such a line. */
static const char *receipt_file(char *line)
{
    size_t hex = 0;
    while (isxdigit((unsigned char)line[hex])) hex++;
    if (hex != FMT_SHA256_HEX - 1 || line[hex] != ' ' || (line[hex + 1] != ' ' && line[hex + 1] != '*')) return NULL;
    for (size_t i = 0; i < hex; i++) line[i] = (char)tolower((unsigned char)line[i]);
    line[hex] = 0;
    const char *name = line + hex + 2, *slash = strrchr(name, '/');
    if (slash) name = slash + 1;
    return *name && strcmp(name, ".") && strcmp(name, "..") ? name : NULL;
}

static bool shard_in_use(const eng_scan *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->record[i].shard, name) == 0) return true;
    return false;
}

typedef struct receipt {
    const char *path, *folder;
    const eng_scan *scan;
    json_t *seen; /* shards that were checked */
    progress progress;
} receipt;

static err_code receipt_line(receipt *r, char *line, int64_t number, int32_t *checked, int32_t *absent, eng_difference *d,
                             err *e)
{
    line[strcspn(line, "\r\n")] = 0;
    if (line[0] == 0 || line[0] == '#') return ERR_OK;
    const char *name = receipt_file(line);
    if (!name)
        return err_set(e, ERR_FORMAT, "%s: line %lld: found '%.80s', wanted 64 hex digits, two spaces and a file name",
                       r->path, (long long)number, line);
    char path[PATH_BYTES], hex[FMT_SHA256_HEX];
    if (snprintf(path, sizeof path, "%s/%s", r->folder, name) >= (int)sizeof path)
        return err_set(e, ERR_FORMAT, "%s: line %lld: the name is longer than %d bytes", r->path, (long long)number,
                       PATH_BYTES - 1);
    if (access(path, F_OK) != 0 && !shard_in_use(r->scan, name)) { (*absent)++; return ERR_OK; }
    fmt_sha256 sha256;
    TRY(file_sha256(path, &r->progress, &sha256, e));
    fmt_sha256_hex(&sha256, hex);
    (*checked)++;
    if (strcmp(hex, line) != 0 && !d->text[0]) differ(d, "%s: sha256 is %s, %s says %s", name, hex, r->path, line);
    return json_object_set_new(r->seen, name, json_true()) == 0 ? ERR_OK : err_set(e, ERR_NOMEM, "%s: no memory", r->path);
}

err_code eng_receipt_check(const char *path, const eng_weights *w, const eng_scan *s, bool quiet, int32_t *checked,
                           int32_t *absent, eng_difference *d, err *e)
{
    *d = (eng_difference){ 0 };
    *checked = *absent = 0;
    receipt r = { .path = path, .folder = eng_weights_folder(w), .scan = s, .seen = json_object() };
    char *line = NULL;
    size_t cap = 0;
    FILE *f = NULL;
    err_code rc = r.seen ? open_file(path, &f, e) : err_set(e, ERR_NOMEM, "%s: no memory", path);
    if (rc != ERR_OK) goto out;
    progress_begin(&r.progress, "hashing shards", s->bytes, quiet);
    for (int64_t number = 1; rc == ERR_OK && getline(&line, &cap, f) >= 0; number++)
        rc = receipt_line(&r, line, number, checked, absent, d, e);
    progress_end(&r.progress);
    if (rc == ERR_OK && ferror(f)) rc = err_set(e, ERR_IO, "cannot read %s: %s", path, strerror(errno));
    for (size_t i = 0; rc == ERR_OK && !d->text[0] && i < s->n; i++)
        if (!json_object_get(r.seen, s->record[i].shard)) differ(d, "%s: %s does not list it", s->record[i].shard, path);
out:
    if (f) fclose(f);
    free(line);
    json_decref(r.seen);
    return rc;
}
