#include "engine/weights.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/inventory_index.h"
#include "engine/tensor_check.h"

struct eng_weights {
    char *folder;
    eng_config config;
    fmt_checkpoint *files;
    eng_tensor_spec *spec;  /* [n_specs] by name */
    eng_stored *stored;     /* [n_specs] where each is */
    fmt_sha256 *sha;        /* [n_specs] */
    size_t n_specs;
    krn_weight *view;       /* by eng_weight_index */
    void **copies;          /* [n_copies] of tensors that lie unaligned in their file */
    size_t n_copies;
    char identity[FMT_SHA256_HEX];
};

/* ---- which names matter ---- */

/* "mtp.N.embed..." and "mtp.N.head...": copies of the target's tensors, which the draft does not use. */
static bool is_target_copy(const char *name)
{
    const char *rest = strchr(name + strlen("mtp."), '.');
    if (!rest) return false;
    rest++;
    size_t n = strcspn(rest, ".");
    return (n == 5 && strncmp(rest, "embed", n) == 0) || (n == 4 && strncmp(rest, "head", n) == 0);
}

static bool is_wanted(void *ctx, const char *name)
{
    (void)ctx;
    if (strncmp(name, "mtp.", 4) == 0) return !is_target_copy(name);
    return strcmp(name, "embed.weight") == 0 || strcmp(name, "head.weight") == 0;
}

/* ---- the inventory against the files ---- */

/* The official checkpoint stores packed FP4 as I8; U8 holds the same bytes. */
static bool same_dtype(const eng_tensor_spec *s, fmt_dtype found)
{
    bool fp4 = !s->is_scale && eng_wkind_of(s->wid)->wclass == ENG_WC_FP4;
    return found == s->dtype || (fp4 && found == FMT_DTYPE_U8);
}

static err_code check_type(const eng_weights *w, size_t i, err *e)
{
    const eng_tensor_spec *s = &w->spec[i];
    const fmt_tensor *t = &w->stored[i].entry->tensor;
    fmt_tensor wanted = fmt_tensor_make(s->dtype, NULL, s->ndim, s->shape);
    bool same = same_dtype(s, t->dtype) && t->ndim == s->ndim;
    char a[160], b[160];
    for (int32_t d = 0; same && d < s->ndim; d++) same = t->shape[d] == s->shape[d];
    if (same) return ERR_OK;
    return err_set(e, ERR_IDENTITY, "%s: tensor %s: found %s, wanted %s", fmt_safetensors_path(w->stored[i].shard), s->name,
                   fmt_tensor_text(t, a, sizeof a), fmt_tensor_text(&wanted, b, sizeof b));
}

/* Walks both lists, each sorted by name, in step: every tensor of either must be in the other. */
static err_code match(eng_weights *w, err *e)
{
    size_t n_found = fmt_checkpoint_count(w->files), k = 0;
    for (size_t i = 0; i < w->n_specs || k < n_found; ) {
        const fmt_safetensors_entry *x = k < n_found ? fmt_checkpoint_at(w->files, k) : NULL;
        int order = i == w->n_specs ? 1 : !x ? -1 : strcmp(w->spec[i].name, x->name);
        if (order < 0)
            return err_set(e, ERR_IDENTITY, "%s: tensor %s is missing", w->folder, w->spec[i].name);
        if (order > 0)
            return err_set(e, ERR_IDENTITY, "%s: tensor %.200s is unknown: config.json has no such tensor",
                           fmt_safetensors_path(fmt_checkpoint_shard(w->files, k)), x->name);
        w->stored[i] = (eng_stored){ x, fmt_checkpoint_shard(w->files, k) };
        TRY(check_type(w, i, e));
        i++;
        k++;
    }
    return ERR_OK;
}

/* ---- views ---- */

/* The data of a tensor, aligned for its type. A file may hold a tensor at any byte; one that lies badly is copied. */
static err_code aligned_data(eng_weights *w, const fmt_safetensors_entry *x, const void **out, err *e)
{
    *out = x->tensor.data;
    if ((uintptr_t)*out % fmt_dtype_bytes(x->tensor.dtype) == 0) return ERR_OK;
    void *copy = x->bytes <= SIZE_MAX ? malloc((size_t)x->bytes) : NULL;
    if (!copy) return err_set(e, ERR_NOMEM, "%s: no memory for %" PRIu64 " bytes of %s", w->folder, x->bytes, x->name);
    *out = memcpy(copy, x->tensor.data, (size_t)x->bytes);
    w->copies[w->n_copies++] = copy;
    return ERR_OK;
}

static err_code make_views(eng_weights *w, err *e)
{
    static const krn_wformat FORMAT[] = { [ENG_WC_FP8] = KRN_W_FP8, [ENG_WC_FP4] = KRN_W_FP4, [ENG_WC_BF16] = KRN_W_BF16,
                                          [ENG_WC_F32] = KRN_W_F32 };
    for (size_t i = 0; i < w->n_specs; i++) {
        const eng_tensor_spec *s = &w->spec[i];
        krn_weight *v = &w->view[eng_weight_index(&w->config, s->wid, s->stage, s->expert)];
        const void *data;
        TRY(aligned_data(w, w->stored[i].entry, &data, e));
        int64_t row_bytes = (s->ndim == 2 ? s->shape[1] : 1) * fmt_dtype_bytes(s->dtype);
        if (s->is_scale) {
            v->scale = data;
            v->scale_row_bytes = row_bytes;
        } else {
            v->format = FORMAT[eng_wkind_of(s->wid)->wclass];
            eng_wid_shape(&w->config, s->wid, &v->n, &v->k);
            v->data = data;
            v->row_bytes = row_bytes;
        }
    }
    return ERR_OK;
}

/* ---- identity ---- */

/* sha256 of: the config as compact JSON with sorted keys and a newline, then one line per tensor in name order,
 * "mtp.0.attn.wkv.weight F8_E4M3 [512,5120] <sha256 in hex>\n". The type is the inventory's, so that FP4 stored as U8 is
 * the same checkpoint. */
static err_code make_identity(eng_weights *w, err *e)
{
    fmt_sha256_state *hash;
    fmt_sha256 id;
    json_t *config = eng_config_json(&w->config);
    char *text = config ? json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17)) : NULL;
    err_code rc = text ? fmt_sha256_open(&hash, e) : err_set(e, ERR_NOMEM, "%s: no memory for its identity", w->folder);
    if (rc != ERR_OK) goto out;
    fmt_sha256_add(hash, text, strlen(text));
    fmt_sha256_add(hash, "\n", 1);
    for (size_t i = 0; i < w->n_specs; i++) {
        const eng_tensor_spec *s = &w->spec[i];
        char hex[FMT_SHA256_HEX], line[ENG_TENSOR_NAME + FMT_SHA256_HEX + 80];
        fmt_sha256_hex(&w->sha[i], hex);
        int n = s->ndim == 1
            ? snprintf(line, sizeof line, "%s %s [%" PRId64 "] %s\n", s->name, fmt_dtype_name(s->dtype), s->shape[0], hex)
            : snprintf(line, sizeof line, "%s %s [%" PRId64 ",%" PRId64 "] %s\n", s->name, fmt_dtype_name(s->dtype),
                       s->shape[0], s->shape[1], hex);
        fmt_sha256_add(hash, line, (size_t)n);
    }
    fmt_sha256_close(hash, &id);
    fmt_sha256_hex(&id, w->identity);
out:
    free(text);
    json_decref(config);
    return rc;
}

/* ---- open, close, ask ---- */

static err_code fill(eng_weights *w, const char *folder, bool quiet, err *e)
{
    uint64_t opened_wall_ns = clock_wall_ns();
    if (!(w->folder = mem_strdup(folder))) return err_set(e, ERR_NOMEM, "%s: no memory to open it", folder);
    TRY(eng_config_read(folder, &w->config, e));
    TRY(eng_inventory(&w->config, &w->spec, &w->n_specs, e));
    TRY(fmt_checkpoint_open(folder, is_wanted, NULL, &w->files, e));
    w->stored = mem_alloc(w->n_specs, sizeof *w->stored);
    w->sha = mem_alloc(w->n_specs, sizeof *w->sha);
    w->copies = mem_alloc(w->n_specs, sizeof *w->copies);
    w->view = mem_alloc(eng_weight_count(&w->config), sizeof *w->view);
    if (!w->stored || !w->sha || !w->copies || !w->view)
        return err_set(e, ERR_NOMEM, "%s: no memory for a table of %zu tensors", folder, w->n_specs);
    TRY(match(w, e));
    TRY(eng_tensors_check(w->stored, w->n_specs, opened_wall_ns, quiet, w->sha, e));
    TRY(make_views(w, e));
    return make_identity(w, e);
}

err_code eng_weights_open(const char *folder, bool quiet, eng_weights **out, err *e)
{
    *out = NULL;
    eng_weights *w = mem_alloc(1, sizeof *w);
    if (!w) return err_set(e, ERR_NOMEM, "%s: no memory to open it", folder);
    err_code rc = fill(w, folder, quiet, e);
    if (rc == ERR_OK) *out = w;
    else eng_weights_close(w);
    return rc;
}

void eng_weights_close(eng_weights *w)
{
    if (!w) return;
    fmt_checkpoint_close(w->files);
    for (size_t i = 0; i < w->n_copies; i++) free(w->copies[i]);
    free(w->copies);
    free(w->view);
    free(w->sha);
    free(w->stored);
    free(w->spec);
    free(w->folder);
    free(w);
}

const eng_config *eng_weights_config(const eng_weights *w) { return &w->config; }
const char *eng_weights_folder(const eng_weights *w) { return w->folder; }
const fmt_checkpoint *eng_weights_files(const eng_weights *w) { return w->files; }

void eng_weights_identity(const eng_weights *w, char hex[FMT_SHA256_HEX]) { memcpy(hex, w->identity, FMT_SHA256_HEX); }

static int name_against_spec(const void *name, const void *spec)
{
    return strcmp(name, ((const eng_tensor_spec *)spec)->name);
}

err_code eng_weights_sha256(const eng_weights *w, const char *name, fmt_sha256 *out, err *e)
{
    const eng_tensor_spec *s = bsearch(name, w->spec, w->n_specs, sizeof *w->spec, name_against_spec);
    if (!s) return err_set(e, ERR_ARG, "%s: tensor %.200s is not one of the draft's", w->folder, name);
    *out = w->sha[s - w->spec];
    return ERR_OK;
}

krn_weight eng_weights_view(const eng_weights *w, eng_wid id, int32_t stage, int32_t expert)
{
    return w->view[eng_weight_index(&w->config, id, stage, expert)];
}
