/* A checkpoint folder: which shard holds which tensor, and the shards that are needed, opened. */
#include "formats/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

static const char INDEX_NAME[] = "model.safetensors.index.json", SUFFIX[] = ".safetensors";
enum { INDEX_BYTES_MAX = 1 << 28 }; /* 96,085 names take 8 MB */

typedef struct shard {
    char *name; /* in the folder */
    fmt_safetensors *file;
} shard;

/* A wanted tensor. While the index is read, entry is NULL and shard_name (of the index) says where to look. */
typedef struct item {
    const char *name, *shard_name;
    const fmt_safetensors_entry *entry;
    size_t shard;
} item;

struct fmt_checkpoint {
    char *folder, *index_path;
    json_t *index; /* NULL: the folder has none */
    shard *shards; /* by name */
    size_t n_shards, cap_shards;
    item *items; /* by name */
    size_t n_items, cap_items;
    fmt_wanted wanted;
    void *ctx;
};

static bool is_wanted(const fmt_checkpoint *c, const char *name) { return !c->wanted || c->wanted(c->ctx, name); }

static err_code no_memory(const fmt_checkpoint *c, err *e)
{
    return err_set(e, ERR_NOMEM, "%s: no memory for its tables", c->folder);
}

/* "FOLDER/name", malloc'd. */
static char *path_in(const char *folder, const char *name)
{
    size_t n = strlen(folder), m = strlen(name);
    char *path = malloc(n + m + 2);
    if (!path) return NULL;
    memcpy(path, folder, n);
    path[n] = '/';
    memcpy(path + n + 1, name, m + 1);
    return path;
}

static int by_name(const void *a, const void *b) { return strcmp(((const item *)a)->name, ((const item *)b)->name); }
static int by_shard_name(const void *a, const void *b)
{
    return strcmp(((const shard *)a)->name, ((const shard *)b)->name);
}
static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Opens folder/name and appends it. */
static err_code add_shard(fmt_checkpoint *c, const char *name, err *e)
{
    err_code rc;
    char *path = NULL;
    shard s = { .name = mem_strdup(name) };
    if (!s.name || !mem_grow((void **)&c->shards, &c->cap_shards, c->n_shards + 1, sizeof s)) {
        rc = no_memory(c, e);
        goto fail;
    }
    if (!(path = path_in(c->folder, name))) {
        rc = no_memory(c, e);
        goto fail;
    }
    if ((rc = fmt_safetensors_open(path, &s.file, e)) != ERR_OK) goto fail;
    free(path);
    c->shards[c->n_shards++] = s;
    return ERR_OK;
fail:
    free(path);
    free(s.name);
    return rc;
}

static err_code add_item(fmt_checkpoint *c, item x, err *e)
{
    if (!mem_grow((void **)&c->items, &c->cap_items, c->n_items + 1, sizeof x)) return no_memory(c, e);
    c->items[c->n_items++] = x;
    return ERR_OK;
}

static item *find_item(const fmt_checkpoint *c, const char *name)
{
    item key = { .name = name };
    return c->n_items ? bsearch(&key, c->items, c->n_items, sizeof key, by_name) : NULL;
}

/* ---- with an index ---- */

/* A shard is a file of the folder itself: a name that could point elsewhere is refused, whatever is there. */
static const char *shard_name_fault(const json_t *v)
{
    const char *s = json_string_value(v);
    if (!s) return "no string";
    if (!*s) return "an empty name";
    if (strlen(s) != json_string_length(v)) return "a name with a NUL";
    if (s[0] == '/') return "an absolute path";
    if (strchr(s, '/') || strchr(s, '\\') || strcmp(s, ".") == 0 || strcmp(s, "..") == 0)
        return "a path, wanted a file of the folder";
    return NULL;
}

/* The index's wanted names become items, sorted; their shards are opened, sorted. */
static err_code read_index(fmt_checkpoint *c, err *e)
{
    const char *name;
    json_t *v;
    TRY(fmt_json_read(c->index_path, INDEX_BYTES_MAX, &c->index, e));
    const json_t *map = json_object_get(c->index, "weight_map");
    if (!json_is_object(map))
        return err_set(e, ERR_FORMAT, "%s: found no object \"weight_map\", wanted tensor names with their shards",
                       c->index_path);
    json_object_foreach((json_t *)map, name, v) {
        const char *fault = shard_name_fault(v);
        if (fault)
            return err_set(e, ERR_INPUT, "%s: tensor %.200s: shard '%.100s' is %s", c->index_path, name,
                           json_is_string(v) ? json_string_value(v) : "", fault);
        if (is_wanted(c, name)) TRY(add_item(c, (item){ .name = name, .shard_name = json_string_value(v) }, e));
    }
    if (c->n_items) qsort(c->items, c->n_items, sizeof *c->items, by_name);
    return ERR_OK;
}

static err_code open_needed_shards(fmt_checkpoint *c, err *e)
{
    err_code rc = ERR_OK;
    const char **names = mem_alloc(c->n_items, sizeof *names);
    if (!names) return no_memory(c, e);
    for (size_t i = 0; i < c->n_items; i++) names[i] = c->items[i].shard_name;
    qsort(names, c->n_items, sizeof *names, by_text);
    for (size_t i = 0; i < c->n_items && rc == ERR_OK; i++) {
        if (i && strcmp(names[i - 1], names[i]) == 0) continue;
        rc = add_shard(c, names[i], e);
        if (rc == ERR_INPUT || rc == ERR_FORMAT) err_wrap(e, "%s: shard %.100s", c->index_path, names[i]);
    }
    free(names);
    return rc;
}

/* Finds every item in its shard, and no other wanted name in any opened shard. */
static err_code match_index(fmt_checkpoint *c, err *e)
{
    for (size_t i = 0; i < c->n_items; i++) {
        item *x = &c->items[i];
        shard key = { .name = (char *)x->shard_name };
        shard *s = bsearch(&key, c->shards, c->n_shards, sizeof key, by_shard_name);
        CHECK(s);
        x->shard = (size_t)(s - c->shards);
        x->entry = fmt_safetensors_find(s->file, x->name);
        if (!x->entry)
            return err_set(e, ERR_INPUT, "%s: tensor %.200s: shard %.100s lacks it", c->index_path, x->name, x->shard_name);
    }
    for (size_t k = 0; k < c->n_shards; k++)
        for (size_t i = 0; i < fmt_safetensors_count(c->shards[k].file); i++) {
            const char *name = fmt_safetensors_at(c->shards[k].file, i)->name;
            const item *x = find_item(c, name);
            if (x && x->shard != k)
                return err_set(e, ERR_INPUT, "%s: tensor %.200s: found in shard %.100s, wanted only in %.100s",
                               c->index_path, name, c->shards[k].name, x->shard_name);
            if (!x && is_wanted(c, name))
                return err_set(e, ERR_INPUT, "%s: tensor %.200s: found in shard %.100s, but the index lacks it",
                               c->index_path, name, c->shards[k].name);
        }
    return ERR_OK;
}

/* ---- without one ---- */

static bool has_suffix(const char *name)
{
    size_t n = strlen(name), m = sizeof SUFFIX - 1;
    return n > m && strcmp(name + n - m, SUFFIX) == 0;
}

static err_code open_all_shards(fmt_checkpoint *c, err *e)
{
    err_code rc = ERR_OK;
    DIR *d = opendir(c->folder);
    if (!d)
        return err_set(e, errno == ENOENT || errno == ENOTDIR ? ERR_INPUT : ERR_IO, "%s: cannot be opened as a folder: %s",
                       c->folder, strerror(errno));
    for (struct dirent *x; rc == ERR_OK && (x = readdir(d));)
        if (x->d_name[0] != '.' && has_suffix(x->d_name)) rc = add_shard(c, x->d_name, e);
    closedir(d);
    if (rc == ERR_OK && c->n_shards == 0)
        rc = err_set(e, ERR_INPUT, "%s: found neither %s nor a *%s file", c->folder, INDEX_NAME, SUFFIX);
    if (rc == ERR_OK) qsort(c->shards, c->n_shards, sizeof *c->shards, by_shard_name);
    return rc;
}

static err_code take_all(fmt_checkpoint *c, err *e)
{
    for (size_t k = 0; k < c->n_shards; k++)
        for (size_t i = 0; i < fmt_safetensors_count(c->shards[k].file); i++) {
            const fmt_safetensors_entry *entry = fmt_safetensors_at(c->shards[k].file, i);
            if (is_wanted(c, entry->name)) TRY(add_item(c, (item){ .name = entry->name, .entry = entry, .shard = k }, e));
        }
    if (c->n_items) qsort(c->items, c->n_items, sizeof *c->items, by_name);
    for (size_t i = 1; i < c->n_items; i++)
        if (strcmp(c->items[i - 1].name, c->items[i].name) == 0)
            return err_set(e, ERR_INPUT, "%s: tensor %.200s: found in shard %.100s and in %.100s", c->folder,
                           c->items[i].name, fmt_checkpoint_shard_name(c, i - 1), fmt_checkpoint_shard_name(c, i));
    return ERR_OK;
}

/* ---- extending an index ---- */

/* What one call does to the entries; *total is what all tensors have. false: no memory. */
typedef bool index_edit(json_t *map, const fmt_checkpoint_place *place, size_t n, json_int_t *total, bool *changed);

static bool index_add(json_t *map, const fmt_checkpoint_place *place, size_t n, json_int_t *total, bool *changed)
{
    for (size_t i = 0; i < n; i++) {
        const char *there = json_string_value(json_object_get(map, place[i].name));
        if (there && strcmp(there, place[i].shard) == 0) continue;
        if (!there) *total += (json_int_t)place[i].bytes;
        if (json_object_set_new(map, place[i].name, json_string(place[i].shard)) != 0) return false;
        *changed = true;
    }
    return true;
}

static bool index_drop(json_t *map, const fmt_checkpoint_place *place, size_t n, json_int_t *total, bool *changed)
{
    for (size_t i = 0; i < n; i++) {
        const char *there = json_string_value(json_object_get(map, place[i].name));
        if (!there || strcmp(there, place[i].shard) != 0) continue;
        *total -= (json_int_t)place[i].bytes;
        json_object_del(map, place[i].name);
        *changed = true;
    }
    return true;
}

static bool index_run(json_t *index, json_t *map, index_edit *edit, const fmt_checkpoint_place *place, size_t n,
                      bool *changed)
{
    json_t *metadata = json_object_get(index, "metadata");
    json_int_t total = json_integer_value(json_object_get(metadata, "total_size"));
    if (!edit(map, place, n, &total, changed)) return false;
    if (!json_is_object(metadata)) {
        metadata = json_object();
        if (json_object_set_new(index, "metadata", metadata) != 0) return false;
    }
    return json_object_set_new(metadata, "total_size", json_integer(total)) == 0;
}

static err_code edit_index(const char *folder, index_edit *edit, const fmt_checkpoint_place *place, size_t n, bool create,
                           err *e)
{
    struct stat st;
    err_code rc = ERR_OK;
    json_t *index = NULL;
    bool changed = false;
    char *path = path_in(folder, INDEX_NAME);
    if (!path) return err_set(e, ERR_NOMEM, "%s: no memory for its index", folder);
    const bool there = lstat(path, &st) == 0;
    if (!there && !create) goto out;
    if (there) rc = fmt_json_read(path, INDEX_BYTES_MAX, &index, e);
    else if (!(index = json_pack("{s:{s:i}, s:{}}", "metadata", "total_size", 0, "weight_map")))
        rc = err_set(e, ERR_NOMEM, "%s: no memory for it", path);
    if (rc != ERR_OK) goto out;
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map))
        rc = err_set(e, ERR_FORMAT, "%s: found no object \"weight_map\", wanted tensor names with their shards", path);
    else if (!index_run(index, map, edit, place, n, &changed))
        rc = err_set(e, ERR_NOMEM, "%s: no memory for it", path);
    else if (changed)
        rc = fmt_json_write(path, index, e);
out:
    json_decref(index);
    free(path);
    return rc;
}

err_code fmt_checkpoint_index_add(const char *folder, const fmt_checkpoint_place *place, size_t n, bool create, err *e)
{
    return edit_index(folder, index_add, place, n, create, e);
}

err_code fmt_checkpoint_index_drop(const char *folder, const fmt_checkpoint_place *place, size_t n, err *e)
{
    return edit_index(folder, index_drop, place, n, false, e);
}

/* ---- public ---- */

err_code fmt_checkpoint_open(const char *folder, fmt_wanted wanted, void *ctx, fmt_checkpoint **out, err *e)
{
    err_code rc;
    struct stat st;
    *out = NULL;
    fmt_checkpoint *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "%s: no memory to open it", folder);
    c->wanted = wanted;
    c->ctx = ctx;
    c->folder = mem_strdup(folder);
    c->index_path = path_in(folder, INDEX_NAME);
    if (!c->folder || !c->index_path) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory to open it", folder);
        goto fail;
    }
    /* lstat: an index that is a dangling link is a fault, not a folder without index. */
    if (lstat(c->index_path, &st) == 0) {
        if ((rc = read_index(c, e)) != ERR_OK) goto fail;
        if ((rc = open_needed_shards(c, e)) != ERR_OK) goto fail;
        if ((rc = match_index(c, e)) != ERR_OK) goto fail;
    } else {
        if ((rc = open_all_shards(c, e)) != ERR_OK) goto fail;
        if ((rc = take_all(c, e)) != ERR_OK) goto fail;
    }
    *out = c;
    return ERR_OK;
fail:
    fmt_checkpoint_close(c);
    return rc;
}

void fmt_checkpoint_close(fmt_checkpoint *c)
{
    if (!c) return;
    for (size_t k = 0; k < c->n_shards; k++) {
        fmt_safetensors_close(c->shards[k].file);
        free(c->shards[k].name);
    }
    free(c->shards);
    free(c->items);
    json_decref(c->index);
    free(c->index_path);
    free(c->folder);
    free(c);
}

const char *fmt_checkpoint_folder(const fmt_checkpoint *c) { return c->folder; }
size_t fmt_checkpoint_count(const fmt_checkpoint *c) { return c->n_items; }
const fmt_safetensors_entry *fmt_checkpoint_at(const fmt_checkpoint *c, size_t i) { return c->items[i].entry; }
const fmt_safetensors *fmt_checkpoint_shard(const fmt_checkpoint *c, size_t i) { return c->shards[c->items[i].shard].file; }
const char *fmt_checkpoint_shard_name(const fmt_checkpoint *c, size_t i) { return c->shards[c->items[i].shard].name; }

const fmt_safetensors_entry *fmt_checkpoint_find(const fmt_checkpoint *c, const char *name)
{
    const item *x = find_item(c, name);
    return x ? x->entry : NULL;
}
