#include "engine/weights.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/inventory_index.h"
#include "engine/tensor_check.h"
#include "engine/weights_exl3.h"

struct eng_weights {
    char *folder;
    eng_config config;
    fmt_checkpoint *files;
    eng_tensor_spec *spec;  /* [n_specs] stored tensors by name */
    eng_stored *stored;     /* [n_specs] where each is */
    fmt_sha256 *sha;        /* [n_specs] */
    size_t n_specs;
    krn_weight *view;       /* by eng_weight_index: official; data NULL: not stored */
    krn_weight *exl3;       /* by eng_weight_index: EXL3; data NULL: not stored */
    void **copies;          /* [n_copies] of tensors that lie unaligned in their file, and of unpacked signs */
    size_t n_copies;
    char identity[FMT_SHA256_HEX], official[FMT_SHA256_HEX]; /* of all tensors; of the official ones alone */
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

/* "head.trellis" and its like, of an EXL3 head. */
static bool is_exl3_head(const char *name)
{
    if (strncmp(name, "head", 4) != 0) return false;
    for (int part = ENG_EXL3_TRELLIS; part < ENG_EXL3_COUNT; part++)
        if (strcmp(name + 4, eng_exl3_suffix((eng_exl3)part)) == 0) return true;
    return strcmp(name + 4, ".bias") == 0;
}

static bool is_wanted(void *ctx, const char *name)
{
    (void)ctx;
    if (strncmp(name, "mtp.", 4) == 0) return !is_target_copy(name);
    return strcmp(name, "embed.weight") == 0 || strcmp(name, "head.weight") == 0 || is_exl3_head(name);
}

/* "mtp.0.attn.wo_a.slice.3.trellis": another program's EXL3 form of wo_a, which is official in every arm here. */
static bool is_wo_a_slice(const char *name) { return strstr(name, ".attn.wo_a.slice.") != NULL; }

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

static int by_name(const void *a, const void *b)
{
    return strcmp(((const eng_tensor_spec *)a)->name, ((const eng_tensor_spec *)b)->name);
}

/* Everything that may be stored, official and EXL3, by name. *out malloc'd. */
static err_code all_specs(const eng_config *c, eng_tensor_spec **out, size_t *n, err *e)
{
    eng_tensor_spec *official = NULL, *exl3 = NULL;
    size_t n_official, n_exl3;
    TRY(eng_inventory(c, &official, &n_official, e));
    err_code rc = eng_inventory_exl3(c, &exl3, &n_exl3, e);
    if (rc == ERR_OK && !(*out = mem_alloc(n_official + n_exl3, sizeof **out)))
        rc = err_set(e, ERR_NOMEM, "no memory for the list of tensors");
    if (rc == ERR_OK) {
        memcpy(*out, official, n_official * sizeof **out);
        memcpy(*out + n_official, exl3, n_exl3 * sizeof **out);
        *n = n_official + n_exl3;
        qsort(*out, *n, sizeof **out, by_name);
    }
    free(official);
    free(exl3);
    return rc;
}

/* Which tensors of a weight are stored: bits by eng_exl3, that of NONE for any official one. */
static uint32_t bit(eng_exl3 part) { return 1u << part; }

/* Whether a tensor that is not stored should be. have: the bits of its weight. */
static bool is_missing(const eng_tensor_spec *s, uint32_t have)
{
    switch (s->exl3) {
    case ENG_EXL3_NONE: return (have & bit(ENG_EXL3_NONE)) || !(have & ~bit(ENG_EXL3_NONE));
    case ENG_EXL3_TRELLIS: return (have & ~bit(ENG_EXL3_NONE)) != 0;
    case ENG_EXL3_SUH: return (have & bit(ENG_EXL3_TRELLIS)) && !(have & bit(ENG_EXL3_SU));
    case ENG_EXL3_SVH: return (have & bit(ENG_EXL3_TRELLIS)) && !(have & bit(ENG_EXL3_SV));
    default: return false;
    }
}

static err_code refuse_unknown(const eng_weights *w, size_t k, err *e)
{
    const char *name = fmt_checkpoint_at(w->files, k)->name;
    const char *path = fmt_safetensors_path(fmt_checkpoint_shard(w->files, k));
    const char *dot = strrchr(name, '.');
    if (dot && strcmp(dot, ".bias") == 0)
        return err_set(e, ERR_IDENTITY, "%s: tensor %.200s is a bias: the draft's products have none", path, name);
    return err_set(e, ERR_IDENTITY, "%s: tensor %.200s is unknown: config.json has no such tensor", path, name);
}

static err_code refuse_missing(const eng_weights *w, const eng_tensor_spec *s, bool sliced, err *e)
{
    if (s->wid == ENG_W_WO_A && sliced)
        return err_set(e, ERR_IDENTITY, "%s: tensor %s is missing: attn.wo_a.slice.* in EXL3 are not read in its place",
                       w->folder, s->name);
    return err_set(e, ERR_IDENTITY, "%s: tensor %s is missing", w->folder, s->name);
}

/* Of two names the first that is wrong is reported. found [n_all]: index of a spec's entry plus 1, 0: none. have: by
 * eng_weight_index. */
static err_code find_all(eng_weights *w, const eng_tensor_spec *all, size_t n_all, size_t *found, uint32_t *have, err *e)
{
    size_t n_found = fmt_checkpoint_count(w->files), unknown = n_found, i = 0;
    bool sliced = false;
    for (size_t k = 0; k < n_found; k++) {
        const char *name = fmt_checkpoint_at(w->files, k)->name;
        while (i < n_all && strcmp(all[i].name, name) < 0) i++;
        if (i < n_all && strcmp(all[i].name, name) == 0) {
            found[i] = k + 1;
            have[eng_weight_index(&w->config, all[i].wid, all[i].stage, all[i].expert)] |= bit(all[i].exl3);
        } else if (is_wo_a_slice(name)) {
            sliced = true;
        } else if (unknown == n_found) {
            unknown = k;
        }
    }
    for (i = 0; i < n_all; i++) {
        if (unknown < n_found && strcmp(fmt_checkpoint_at(w->files, unknown)->name, all[i].name) < 0) break;
        if (found[i] || !is_missing(&all[i], have[eng_weight_index(&w->config, all[i].wid, all[i].stage, all[i].expert)]))
            continue;
        return refuse_missing(w, &all[i], sliced, e);
    }
    return unknown < n_found ? refuse_unknown(w, unknown, e) : ERR_OK;
}

/* Keeps the specs that are stored, with where. */
static err_code keep_found(eng_weights *w, const eng_tensor_spec *all, size_t n_all, const size_t *found, err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < n_all; i++) n += found[i] != 0;
    w->spec = mem_alloc(n, sizeof *w->spec);
    w->stored = mem_alloc(n, sizeof *w->stored);
    w->sha = mem_alloc(n, sizeof *w->sha);
    w->copies = mem_alloc(n, sizeof *w->copies);
    if (!w->spec || !w->stored || !w->sha || !w->copies)
        return err_set(e, ERR_NOMEM, "%s: no memory for a table of %zu tensors", w->folder, n);
    for (size_t i = 0; i < n_all; i++) {
        if (!found[i]) continue;
        size_t at = w->n_specs++, k = found[i] - 1;
        w->spec[at] = all[i];
        w->stored[at] = (eng_stored){ fmt_checkpoint_at(w->files, k), fmt_checkpoint_shard(w->files, k) };
        TRY(all[i].exl3 ? eng_exl3_check(&w->spec[at], &w->stored[at], e) : check_type(w, at, e));
    }
    return ERR_OK;
}

static err_code match(eng_weights *w, err *e)
{
    eng_tensor_spec *all = NULL;
    size_t n_all = 0;
    TRY(all_specs(&w->config, &all, &n_all, e));
    size_t *found = mem_alloc(n_all, sizeof *found);
    uint32_t *have = mem_alloc(eng_weight_count(&w->config), sizeof *have);
    err_code rc = found && have ? find_all(w, all, n_all, found, have, e)
                                : err_set(e, ERR_NOMEM, "%s: no memory for a table of %zu tensors", w->folder, n_all);
    if (rc == ERR_OK) rc = keep_found(w, all, n_all, found, e);
    free(all);
    free(found);
    free(have);
    return rc;
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

static err_code official_view(eng_weights *w, size_t i, err *e)
{
    static const krn_wformat FORMAT[] = { [ENG_WC_FP8] = KRN_W_FP8, [ENG_WC_FP4] = KRN_W_FP4, [ENG_WC_BF16] = KRN_W_BF16,
                                          [ENG_WC_F32] = KRN_W_F32 };
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
    return ERR_OK;
}

/* Signs as factors, unless the factors are stored too. */
static err_code unpack_signs(eng_weights *w, eng_exl3_parts *p, eng_exl3 signs, eng_exl3 factors, err *e)
{
    if (!p->spec[signs] || p->spec[factors]) return ERR_OK;
    uint16_t *copy = eng_exl3_signs(p->data[signs], p->spec[signs]->shape[0]);
    if (!copy) return err_set(e, ERR_NOMEM, "%s: no memory for the signs of %s", w->folder, p->spec[signs]->name);
    p->data[factors] = copy;
    w->copies[w->n_copies++] = copy;
    return ERR_OK;
}

static err_code exl3_views(eng_weights *w, eng_exl3_parts *parts, err *e)
{
    for (size_t i = 0; i < w->n_specs; i++) {
        const eng_tensor_spec *s = &w->spec[i];
        if (s->exl3 != ENG_EXL3_TRELLIS) continue;
        size_t at = eng_weight_index(&w->config, s->wid, s->stage, s->expert);
        int32_t n, k;
        eng_wid_shape(&w->config, s->wid, &n, &k);
        TRY(unpack_signs(w, &parts[at], ENG_EXL3_SU, ENG_EXL3_SUH, e));
        TRY(unpack_signs(w, &parts[at], ENG_EXL3_SV, ENG_EXL3_SVH, e));
        TRY(eng_exl3_view(&parts[at], n, k, &w->exl3[at], e));
        w->spec[i].codebook = w->exl3[at].exl3.codebook;
    }
    return ERR_OK;
}

static err_code make_views(eng_weights *w, err *e)
{
    eng_exl3_parts *parts = mem_alloc(eng_weight_count(&w->config), sizeof *parts);
    err_code rc = parts ? ERR_OK : err_set(e, ERR_NOMEM, "%s: no memory for the views", w->folder);
    for (size_t i = 0; i < w->n_specs && rc == ERR_OK; i++) {
        const eng_tensor_spec *s = &w->spec[i];
        eng_exl3_parts *p = &parts[eng_weight_index(&w->config, s->wid, s->stage, s->expert)];
        p->spec[s->exl3] = s;
        rc = s->exl3 ? aligned_data(w, w->stored[i].entry, &p->data[s->exl3], e) : official_view(w, i, e);
    }
    if (rc == ERR_OK) rc = exl3_views(w, parts, e);
    free(parts);
    return rc;
}

/* ---- identity ---- */

/* sha256 of: the config as compact JSON with sorted keys and a newline, then one line per tensor in name order,
 * "mtp.0.attn.wkv.weight F8_E4M3 [512,5120] <sha256 in hex>\n". The type is the inventory's, so that FP4 stored as U8 is
 * the same checkpoint. */
static err_code make_identity(const eng_weights *w, bool with_exl3, char out[FMT_SHA256_HEX], err *e)
{
    fmt_sha256_state *hash;
    fmt_sha256 id;
    json_t *config = eng_config_json(&w->config);
    char *text = config ? fmt_json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17)) : NULL;
    err_code rc = text ? fmt_sha256_open(&hash, e) : err_set(e, ERR_NOMEM, "%s: no memory for its identity", w->folder);
    if (rc != ERR_OK) goto out;
    fmt_sha256_add(hash, text, strlen(text));
    fmt_sha256_add(hash, "\n", 1);
    for (size_t i = 0; i < w->n_specs; i++) {
        const eng_tensor_spec *s = &w->spec[i];
        char hex[FMT_SHA256_HEX], line[ENG_TENSOR_NAME + FMT_SHA256_HEX + 80];
        if (s->exl3 && !with_exl3) continue;
        fmt_sha256_hex(&w->sha[i], hex);
        int n = snprintf(line, sizeof line, "%s %s [", s->name, fmt_dtype_name(s->dtype));
        for (int32_t d = 0; d < s->ndim; d++)
            n += snprintf(line + n, sizeof line - (size_t)n, "%s%" PRId64, d ? "," : "", s->shape[d]);
        n += snprintf(line + n, sizeof line - (size_t)n, "] %s\n", hex);
        fmt_sha256_add(hash, line, (size_t)n);
    }
    fmt_sha256_close(hash, &id);
    fmt_sha256_hex(&id, out);
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
    TRY(fmt_checkpoint_open(folder, is_wanted, NULL, &w->files, e));
    w->view = mem_alloc(eng_weight_count(&w->config), sizeof *w->view);
    w->exl3 = mem_alloc(eng_weight_count(&w->config), sizeof *w->exl3);
    if (!w->view || !w->exl3) return err_set(e, ERR_NOMEM, "%s: no memory for its weights", folder);
    TRY(match(w, e));
    TRY(eng_tensors_check(w->stored, w->n_specs, opened_wall_ns, quiet, w->sha, e));
    TRY(make_views(w, e));
    TRY(make_identity(w, false, w->official, e));
    return make_identity(w, true, w->identity, e);
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
    free(w->exl3);
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
const char *eng_weights_official_identity(const eng_weights *w) { return w->official; }

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

const eng_tensor_spec *eng_weights_specs(const eng_weights *w, size_t *n)
{
    *n = w->n_specs;
    return w->spec;
}

krn_weight eng_weights_exl3(const eng_weights *w, eng_wid id, int32_t stage, int32_t expert)
{
    return w->exl3[eng_weight_index(&w->config, id, stage, expert)];
}

krn_weight eng_weights_held(const eng_weights *w, const eng_reps *reps, eng_wid id, int32_t stage, int32_t expert)
{
    return eng_reps_exl3(reps, id) ? eng_weights_exl3(w, id, stage, expert) : eng_weights_view(w, id, stage, expert);
}

err_code eng_weights_need(const eng_weights *w, const eng_reps *reps, err *e)
{
    const eng_config *c = &w->config;
    char name[ENG_TENSOR_NAME];
    for (int id = 0; id < ENG_W_COUNT; id++)
        for (int32_t stage = 0; stage < eng_wid_stages(c, id); stage++)
            for (int32_t expert = 0; expert < eng_wid_experts(c, id); expert++) {
                if (eng_weights_held(w, reps, id, stage, expert).data) continue;
                eng_weight_name(c, id, stage, expert, name);
                if (!eng_reps_exl3(reps, id))
                    return err_set(e, ERR_IDENTITY, "%s has no %s.weight: it holds that weight in EXL3 only, wanted an arm "
                                   "that runs EXL3", w->folder, name);
                bool head_alone = !eng_reps_exl3(reps, ENG_W_EXPERT_W1) && !eng_reps_exl3(reps, ENG_W_WQ_A);
                return err_set(e, ERR_IDENTITY, "%s%s has no %s.trellis: make it with `sparktape quantize`",
                               head_alone ? "--head k6: " : "", w->folder, name);
            }
    return ERR_OK;
}

krn_weight eng_weights_view(const eng_weights *w, eng_wid id, int32_t stage, int32_t expert)
{
    return w->view[eng_weight_index(&w->config, id, stage, expert)];
}
