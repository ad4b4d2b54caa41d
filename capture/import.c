#include "capture/import.h"

#include "base/clock.h"
#include "base/mem.h"
#include "capture/joined.h"
#include "capture/narrow.h"

/* A tensor under the name it gets on the tape. */
typedef struct item {
    int32_t round, slot, order;
    bool insert; /* of an insert: its slot comes before its place in the program */
    char name[FMT_TAPE_NAME_BYTES];
    const fmt_safetensors_entry *from;
} item;

static int compare(int64_t a, int64_t b) { return (a > b) - (a < b); }

/* Inserts by slot, then the draft's inputs, windows and values: the order of a recorder. */
static int by_order(const void *pa, const void *pb)
{
    const item *a = pa, *b = pb;
    int c = compare(a->round, b->round);
    if (!c) c = compare(b->insert, a->insert);
    if (!c && a->insert) c = compare(a->slot, b->slot);
    if (!c) c = compare(a->order, b->order);
    if (!c) c = compare(a->slot, b->slot);
    return c ? c : strcmp(a->name, b->name);
}

static void add_name(cap_import_names *names, const char *name)
{
    if (names->n < CAP_IMPORT_FIRST) names->first[names->n] = name;
    names->n++;
}

void cap_import_list(const cap_import_names *names, char out[CAP_IMPORT_LIST])
{
    enum { WIDTH = 64 }; /* of a name: three of them and the rest fit */
    size_t n = 0;
    out[0] = 0;
    for (uint64_t i = 0; i < names->n && i < CAP_IMPORT_FIRST; i++) {
        const char *name = names->first[i];
        const bool cut = strlen(name) > WIDTH;
        n += (size_t)snprintf(out + n, CAP_IMPORT_LIST - n, "%s%.*s%s", i ? ", " : "", WIDTH, name, cut ? "..." : "");
    }
    if (names->n > CAP_IMPORT_FIRST)
        snprintf(out + n, CAP_IMPORT_LIST - n, " and %llu more", (unsigned long long)(names->n - CAP_IMPORT_FIRST));
}

/* *nameless: the tensor has no name for a tape, which is not refused here, so that all such are told at once. */
static err_code name_item(const fmt_safetensors *f, const fmt_safetensors_entry *from, const json_t *map, item *at,
                          bool *nameless, err *e)
{
    *nameless = false;
    const char *name = from->name;
    const json_t *mapped = json_object_get(map, name);
    if (mapped && !json_is_string(mapped))
        return err_set(e, ERR_INPUT, "%s: tensor %s: the map's entry is no string", fmt_safetensors_path(f), name);
    if (mapped) name = json_string_value(mapped);
    if (!cap_export_parse(name, &at->round, &at->slot, at->name)) {
        *nameless = !mapped;
        if (!mapped) return ERR_OK;
        return err_set(e, ERR_INPUT, "%s: tensor %s: found '%s' in the map, wanted a name like round.0.s0.attn_out",
                       fmt_safetensors_path(f), from->name, name);
    }
    at->order = cap_name_order(at->name);
    at->insert = strncmp(strchr(name + strlen("round."), '.'), ".insert.", 8) == 0;
    at->from = from;
    return ERR_OK;
}

/* Tensors that a tape has no name for. Entries of the map that nothing has are told too: often the same names, misspelt. */
static err_code refuse_nameless(const fmt_safetensors *f, const cap_import_names *nameless, const cap_import_names *unused,
                                err *e)
{
    char names[CAP_IMPORT_LIST], spare[CAP_IMPORT_LIST] = "";
    cap_import_list(nameless, names);
    cap_import_list(unused, spare);
    return err_set(e, ERR_INPUT, "%s: found %llu of %zu tensors without a name of a tape's, wanted names like "
                   "round.0.s0.attn_out or round.0.insert.1.main_x, or entries in --map: %s%s%s", fmt_safetensors_path(f),
                   (unsigned long long)nameless->n, fmt_safetensors_count(f), names,
                   unused->n ? "; in the map, but no tensor: " : "", spare);
}

static err_code make_items(const fmt_safetensors *f, const json_t *map, item *list, size_t n, cap_import_result *out,
                           err *e)
{
    cap_import_names nameless = { 0 };
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, key, value)
        if (!fmt_safetensors_find(f, key)) add_name(&out->unused, key);
    for (size_t i = 0; i < n; i++) {
        const fmt_safetensors_entry *from = fmt_safetensors_at(f, i);
        bool is_nameless;
        TRY(name_item(f, from, map, &list[i], &is_nameless, e));
        if (is_nameless) add_name(&nameless, from->name);
        else if (map && !json_object_get(map, from->name)) add_name(&out->unmapped, from->name);
        if (!is_nameless && !cap_name_known(list[i].name)) add_name(&out->unknown, from->name);
    }
    if (nameless.n) return refuse_nameless(f, &nameless, &out->unused, e);
    qsort(list, n, sizeof *list, by_order);
    for (size_t i = 1; i < n; i++)
        if (by_order(&list[i], &list[i - 1]) == 0)
            return err_set(e, ERR_INPUT, "%s: tensors %s and %s are the same value", fmt_safetensors_path(f),
                           list[i - 1].from->name, list[i].from->name);
    return ERR_OK;
}

/* value NULL: there is none. */
static void take(json_t **to, const char *key, const json_t *value)
{
    if (value) fmt_json_put(to, key, json_incref((json_t *)(uintptr_t)value));
}

/* NULL: no memory. */
static json_t *head_of(const fmt_safetensors *f, const fmt_tape *origin)
{
    static const char *const TAKEN[] = { "identity", "config", "program", "rounds", "when", "flight" };
    const json_t *meta = fmt_safetensors_metadata(f), *from = origin ? fmt_tape_head(origin) : NULL;
    const char *key;
    const json_t *value;
    json_t *head = json_pack("{s:s, s:s}", "format", "sparktape", "producer", "import");
    const json_t *level = json_object_get(from, "level");
    if (!level) level = json_object_get(meta, "level");
    take(&head, "level", level);
    for (size_t i = 0; i < COUNT_OF(TAKEN); i++) take(&head, TAKEN[i], json_object_get(from, TAKEN[i]));
    if (!json_object_get(from, "identity")) fmt_json_put(&head, "identity", json_pack("{s:s}", "checkpoint", "unknown"));
    fmt_json_put(&head, "created", json_integer((json_int_t)(clock_wall_ns() / 1000000000u)));
    json_t *imported = json_object();
    json_object_foreach((json_t *)(uintptr_t)meta, key, value) take(&imported, key, value);
    fmt_json_put(&head, "imported", imported);
    return head;
}

static err_code put_one(fmt_tape_writer *w, const item *it, cap_import_result *out, err *e)
{
    const fmt_tape_key key = { it->round, it->slot, FMT_TAPE_NO_RANK, it->name };
    cap_as as;
    if (cap_put_named(w, &key, &it->from->tensor, &as, e) != ERR_OK) return err_wrap(e, "tensor %s", it->from->name);
    out->n_narrowed += as == CAP_AS_NAMED;
    out->n_other_dtype += as == CAP_AS_OTHER;
    return ERR_OK;
}

static err_code put_all(fmt_tape_writer *w, const item *list, size_t n, bool quiet, cap_import_result *out, err *e)
{
    progress p;
    err_code rc = ERR_OK;
    progress_begin(&p, "importing", n, quiet);
    for (size_t i = 0; i < n && rc == ERR_OK; i++) {
        rc = put_one(w, &list[i], out, e);
        if (rc != ERR_OK) break;
        progress_add(&p, 1);
        out->n_values++;
        out->bytes += list[i].from->bytes;
        if (i + 1 < n && list[i + 1].round == list[i].round) continue;
        out->n_rounds++;
        rc = fmt_tape_flush(w, e);
    }
    progress_end(&p);
    return rc;
}

static err_code write_tape(const fmt_safetensors *f, const char *path, const item *list, size_t n,
                           const cap_import_options *o, cap_import_result *out, err *e)
{
    fmt_tape_writer *w = NULL;
    json_t *head = head_of(f, o->origin);
    if (!head) return err_set(e, ERR_NOMEM, "%s: no memory for the head", path);
    err_code rc = fmt_tape_create(path, head, &w, e);
    json_decref(head);
    if (rc == ERR_ARG) rc = e->code = ERR_INPUT; /* the file's metadata is more than a head holds: not the user's usage */
    if (rc == ERR_OK) rc = put_all(w, list, n, o->quiet, out, e);
    json_t *summary = json_pack("{s:I, s:I, s:I, s:I, s:I}", "rounds", (json_int_t)out->n_rounds, "values",
                                (json_int_t)out->n_values, "raw_bytes", (json_int_t)out->bytes, "dropped", (json_int_t)0,
                                "padded_rows", (json_int_t)0);
    if (rc == ERR_OK && !summary) rc = err_set(e, ERR_NOMEM, "%s: no memory for the summary", path);
    if (rc == ERR_OK) rc = fmt_tape_finish(w, summary, e);
    else fmt_tape_discard(w);
    json_decref(summary);
    return rc;
}

err_code cap_import(const fmt_safetensors *f, const char *path, const cap_import_options *o, cap_import_result *out, err *e)
{
    *out = (cap_import_result){ 0 };
    size_t n = fmt_safetensors_count(f);
    if (n == 0) return err_set(e, ERR_INPUT, "%s: holds no tensor", fmt_safetensors_path(f));
    item *list = mem_alloc(n, sizeof *list);
    if (!list) return err_set(e, ERR_NOMEM, "%s: no memory for %zu names", fmt_safetensors_path(f), n);
    err_code rc = make_items(f, o->map, list, n, out, e);
    if (rc == ERR_OK) rc = write_tape(f, path, list, n, o, out, e);
    free(list);
    return rc;
}
