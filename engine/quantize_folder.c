#include "engine/quantize_folder.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/outfile.h"

static const char OFFICIAL[] = "exl3-official.safetensors", CONFIG[] = "config.json",
                  INDEX[] = "model.safetensors.index.json";
enum { CONFIG_BYTES_MAX = 16 << 20 };

err_code eng_delivery_path(const eng_delivery *d, const char *name, char path[ENG_DELIVERY_PATH], err *e)
{
    if (snprintf(path, ENG_DELIVERY_PATH, "%s/%s", d->folder, name) < ENG_DELIVERY_PATH) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: the name is longer than %d bytes", d->folder, ENG_DELIVERY_PATH - 1);
}

/* ---- what may stand there ---- */

/* name, or name.part that a killed run left. */
static bool is_file(const char *found, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(found, name, n) == 0 && (found[n] == 0 || strcmp(found + n, ".part") == 0);
}

static bool belongs(const eng_delivery *d, const char *found, const char *const *shard, size_t n_shards)
{
    if (strcmp(found, ".") == 0 || strcmp(found, "..") == 0) return true;
    for (size_t i = 0; i < n_shards; i++)
        if (is_file(found, shard[i])) return true;
    if (d->beside) return strncmp(found, "exl3-", 5) != 0; /* of the model, or none of ours */
    return is_file(found, OFFICIAL) || is_file(found, CONFIG) || is_file(found, INDEX);
}

err_code eng_delivery_begin(const eng_weights *weights, const char *folder, const char *const *shard, size_t n_shards,
                            eng_delivery *d, err *e)
{
    struct stat model, own;
    *d = (eng_delivery){ weights, folder, false };
    if (mkdir(folder, 0777) == 0) return ERR_OK;
    if (errno != EEXIST) return err_set(e, ERR_IO, "cannot make the folder %s: %s", folder, strerror(errno));
    if (stat(eng_weights_folder(weights), &model) == 0 && stat(folder, &own) == 0)
        d->beside = model.st_dev == own.st_dev && model.st_ino == own.st_ino;
    DIR *dir = opendir(folder);
    if (!dir) return err_set(e, ERR_ARG, "%s: cannot be opened as a folder: %s", folder, strerror(errno));
    err_code rc = ERR_OK;
    for (struct dirent *f; rc == ERR_OK && (f = readdir(dir));)
        if (!belongs(d, f->d_name, shard, n_shards))
            rc = err_set(e, ERR_ARG, "%s: holds %s, which is none of this delivery: wanted %s", folder, f->d_name,
                         d->beside ? "no other exl3- files" : "MODEL itself, a new folder, or one of an earlier run");
    closedir(dir);
    return rc;
}

/* ---- a shard that is there ---- */

static bool same_tensors(const fmt_safetensors *f, const fmt_safetensors_decl *decl, size_t n)
{
    if (fmt_safetensors_count(f) != n) return false;
    for (size_t i = 0; i < n; i++) {
        const fmt_safetensors_entry *x = fmt_safetensors_find(f, decl[i].name);
        if (!x || x->tensor.dtype != decl[i].dtype || x->tensor.ndim != decl[i].ndim) return false;
        for (int32_t k = 0; k < decl[i].ndim; k++)
            if (x->tensor.shape[k] != decl[i].shape[k]) return false;
    }
    return true;
}

err_code eng_delivery_has(const char *path, const fmt_safetensors_decl *decl, size_t n, const json_t *metadata, bool force,
                          bool *has, err *e)
{
    struct stat st;
    fmt_safetensors *f = NULL;
    *has = false;
    if (lstat(path, &st) != 0) return ERR_OK;
    err_code rc = fmt_safetensors_open(path, &f, e);
    if (rc == ERR_OK) {
        const json_t *found = fmt_safetensors_metadata(f);
        *has = found && json_equal((json_t *)found, (json_t *)metadata) && same_tensors(f, decl, n);
    }
    fmt_safetensors_close(f);
    if (*has || force) return ERR_OK;
    if (rc != ERR_OK) return rc;
    return err_set(e, ERR_ARG, "%s: was made of another model or with other parameters: wanted the same ones, another "
                               "folder, or --force to replace it", path);
}

err_code eng_delivery_replace(const eng_delivery *d, const char *const *shard, size_t n_shards, err *e)
{
    const fmt_checkpoint *files = eng_weights_files(d->weights);
    if (!d->beside) {
        char path[ENG_DELIVERY_PATH];
        TRY(eng_delivery_path(d, INDEX, path, e));
        if (unlink(path) == 0 || errno == ENOENT) return ERR_OK;
        return err_set(e, ERR_IO, "%s: cannot be replaced: %s", path, strerror(errno));
    }
    fmt_checkpoint_place *old = mem_alloc(fmt_checkpoint_count(files), sizeof *old);
    size_t n = 0;
    if (!old) return err_set(e, ERR_NOMEM, "%s: no memory for its index", d->folder);
    for (size_t i = 0; i < fmt_checkpoint_count(files); i++)
        for (size_t k = 0; k < n_shards; k++) {
            if (strcmp(fmt_checkpoint_shard_name(files, i), shard[k]) != 0) continue;
            const fmt_safetensors_entry *x = fmt_checkpoint_at(files, i);
            old[n++] = (fmt_checkpoint_place){ x->name, shard[k], x->bytes };
        }
    err_code rc = fmt_checkpoint_index_drop(d->folder, old, n, e);
    free(old);
    return rc;
}

err_code eng_delivery_source(const eng_weights *w, const char (*name)[ENG_TENSOR_NAME], size_t n, char hex[FMT_SHA256_HEX],
                             err *e)
{
    fmt_sha256_state *state;
    fmt_sha256 sum;
    err_code rc = ERR_OK;
    TRY(fmt_sha256_open(&state, e));
    for (size_t i = 0; i < n && rc == ERR_OK; i++) {
        rc = eng_weights_sha256(w, name[i], &sum, e);
        if (rc != ERR_OK) break;
        fmt_sha256_hex(&sum, hex);
        fmt_sha256_add(state, name[i], strlen(name[i]));
        fmt_sha256_add(state, " ", 1);
        fmt_sha256_add(state, hex, strlen(hex));
        fmt_sha256_add(state, "\n", 1);
    }
    fmt_sha256_close(state, &sum);
    fmt_sha256_hex(&sum, hex);
    return rc;
}

/* ---- a folder of its own ---- */

/* The official tensors without an EXL3 form. */
typedef struct rest {
    eng_tensor_spec *spec;
    size_t n_specs, n;
    char (*name)[ENG_TENSOR_NAME];
    const fmt_safetensors_entry **entry;
    fmt_safetensors_decl *decl;
} rest;

static err_code rest_open(const eng_weights *w, rest *r, err *e)
{
    TRY(eng_inventory(eng_weights_config(w), &r->spec, &r->n_specs, e));
    r->name = mem_alloc(r->n_specs, sizeof *r->name);
    r->entry = mem_alloc(r->n_specs, sizeof *r->entry);
    r->decl = mem_alloc(r->n_specs, sizeof *r->decl);
    if (!r->name || !r->entry || !r->decl)
        return err_set(e, ERR_NOMEM, "%s: no memory for its table of tensors", eng_weights_folder(w));
    for (size_t i = 0; i < r->n_specs; i++) {
        const eng_tensor_spec *s = &r->spec[i];
        if (eng_wid_has_exl3(s->wid)) continue;
        const fmt_safetensors_entry *x = fmt_checkpoint_find(eng_weights_files(w), s->name);
        if (!x) return err_set(e, ERR_IDENTITY, "%s: tensor %s is missing", eng_weights_folder(w), s->name);
        r->entry[r->n] = x;
        memcpy(r->name[r->n], s->name, sizeof s->name);
        fmt_safetensors_decl *d = &r->decl[r->n++];
        *d = (fmt_safetensors_decl){ .name = x->name, .dtype = x->tensor.dtype, .ndim = x->tensor.ndim };
        for (int32_t k = 0; k < d->ndim; k++) d->shape[k] = x->tensor.shape[k];
    }
    return ERR_OK;
}

static void rest_close(rest *r)
{
    free(r->spec);
    free(r->name);
    free(r->entry);
    free(r->decl);
}

static err_code rest_write(const eng_delivery *d, const rest *r, bool force, err *e)
{
    char path[ENG_DELIVERY_PATH], source[FMT_SHA256_HEX];
    fmt_safetensors_writer *w;
    bool has;
    TRY(eng_delivery_path(d, OFFICIAL, path, e));
    TRY(eng_delivery_source(d->weights, (const char(*)[ENG_TENSOR_NAME])r->name, r->n, source, e));
    json_t *metadata = json_pack("{s:s, s:s}", "format", "pt", "source", source);
    if (!metadata) return err_set(e, ERR_NOMEM, "%s: no memory for its metadata", path);
    err_code rc = eng_delivery_has(path, r->decl, r->n, metadata, force, &has, e);
    if (rc != ERR_OK || has) goto out;
    rc = fmt_safetensors_create(path, r->decl, r->n, metadata, &w, e);
    if (rc != ERR_OK) goto out;
    for (size_t i = 0; i < r->n; i++) fmt_safetensors_put(w, r->entry[i]->tensor.data, (size_t)r->entry[i]->bytes);
    rc = fmt_safetensors_finish(w, e);
out:
    json_decref(metadata);
    return rc;
}

static err_code config_copy(const eng_delivery *d, err *e)
{
    const eng_delivery from = { d->weights, eng_weights_folder(d->weights), true };
    char source[ENG_DELIVERY_PATH], path[ENG_DELIVERY_PATH];
    json_t *config;
    TRY(eng_delivery_path(&from, CONFIG, source, e));
    TRY(eng_delivery_path(d, CONFIG, path, e));
    TRY(fmt_json_read(source, CONFIG_BYTES_MAX, &config, e));
    err_code rc = fmt_json_write(path, config, e);
    json_decref(config);
    return rc;
}

err_code eng_delivery_end(const eng_delivery *d, const fmt_checkpoint_place *place, size_t n, bool force, err *e)
{
    rest r = { 0 };
    fmt_checkpoint_place *all = NULL;
    if (d->beside) return fmt_checkpoint_index_add(d->folder, place, n, false, e);
    err_code rc = rest_open(d->weights, &r, e);
    if (rc == ERR_OK) rc = rest_write(d, &r, force, e);
    if (rc == ERR_OK) rc = config_copy(d, e);
    if (rc == ERR_OK && !(all = mem_alloc(n + r.n, sizeof *all)))
        rc = err_set(e, ERR_NOMEM, "%s: no memory for its index", d->folder);
    if (rc == ERR_OK) {
        memcpy(all, place, n * sizeof *all);
        for (size_t i = 0; i < r.n; i++)
            all[n + i] = (fmt_checkpoint_place){ r.name[i], OFFICIAL, r.entry[i]->bytes };
        rc = fmt_checkpoint_index_add(d->folder, all, n + r.n, true, e);
    }
    free(all);
    rest_close(&r);
    return rc;
}
