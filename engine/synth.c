#include "engine/synth.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/inventory.h"
#include "engine/noise.h"
#include "formats/number.h"
#include "formats/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CODES = 1 << 16,          /* a table turns 16 random bits into a code byte */
    CHUNK_ELEMS = 1 << 22,    /* made in parallel, then written; a multiple of every group size */
    PIECE_ELEMS = 1 << 16,    /* one thread's share of it */
    SHARDS_MAX = 5,
    PATH_BYTES = 4096,
};
static const uint64_t OFFICIAL_LAYOUT_BYTES = (uint64_t)1 << 30;

/* mean + std * N(0, 1); by_fan: std is divided by sqrt(inputs), which keeps a linear's output near std * its input. */
static const struct recipe { float mean, std; bool by_fan; } RECIPES[ENG_W_COUNT] = {
    [ENG_W_EMBED] = { 0, 1, false },
    [ENG_W_HEAD] = { 0, 0.05f, false },
    [ENG_W_MAIN_PROJ] = { 0, 1, true },
    [ENG_W_MAIN_NORM] = { 0.05f, 0.01f, false },
    [ENG_W_ATTN_NORM] = { 0.25f, 0.05f, false },
    [ENG_W_WQ_A] = { 0, 1, true },
    [ENG_W_Q_NORM] = { 1, 0.2f, false },
    [ENG_W_WQ_B] = { 0, 1, true },
    [ENG_W_WKV] = { 0, 1, true },
    [ENG_W_KV_NORM] = { 1, 0.2f, false },
    [ENG_W_SINK] = { 0, 1, false },
    [ENG_W_WO_A] = { 0, 1, true },
    [ENG_W_WO_B] = { 0, 1, true },
    [ENG_W_HC_ATTN_FN] = { 0, 1.2f, true },
    [ENG_W_HC_ATTN_BASE] = { 0, 0.5f, false },
    [ENG_W_HC_ATTN_SCALE] = { 0.6f, 0.1f, false },
    [ENG_W_FFN_NORM] = { 0.2f, 0.05f, false },
    [ENG_W_GATE] = { 0, 2, true },
    [ENG_W_GATE_BIAS] = { 0, 0.1f, false },
    [ENG_W_GATE_BIAS_VL] = { 0, 0.1f, false },
    /* 8: with ffn_norm at 0.2 gate and up reach the swiglu limit of 10 in some per mille of the elements. */
    [ENG_W_EXPERT_W1] = { 0, 8, true },
    [ENG_W_EXPERT_W3] = { 0, 8, true },
    [ENG_W_EXPERT_W2] = { 0, 1, true },
    [ENG_W_SHARED_W1] = { 0, 8, true },
    [ENG_W_SHARED_W3] = { 0, 8, true },
    [ENG_W_SHARED_W2] = { 0, 1, true },
    [ENG_W_HC_FFN_FN] = { 0, 1.2f, true },
    [ENG_W_HC_FFN_BASE] = { 0, 0.5f, false },
    [ENG_W_HC_FFN_SCALE] = { 0.6f, 0.1f, false },
    [ENG_W_FINAL_NORM] = { 1, 0.2f, false },
    [ENG_W_MARKOV_EMBED] = { 0, 1, false },
    [ENG_W_MARKOV_HEAD] = { 0, 0.15f, false },
    [ENG_W_CONFIDENCE] = { 0, 0.05f, false },
};

/* ---- codes ---- */

enum { FP8_STEPS = 4, FP8_STEP_MIN = -2, FP4_STEPS = 5, FP4_STEP_MIN = -2 }; /* scale exponents around the base */
static const float FP8_CODE_STD = 40.0f; /* codes spread like a normal of this width at step 0 */
static const float FP4_CODE_STD = 2.5f;  /* about what FP4_WEIGHT below gives */

static uint8_t fp8_code[FP8_STEPS][CODES], fp4_code[CODES];
static pthread_once_t codes_once = PTHREAD_ONCE_INIT;

/* How often each E2M1 code occurs, of 256; +0 and -0 both do. */
static const uint8_t FP4_WEIGHT[16] = { 19, 28, 26, 20, 15, 10, 8, 5, 13, 28, 26, 20, 15, 10, 8, 5 };

static void make_codes(void)
{
    const float *normals = eng_noise_normals();
    for (int s = 0; s < FP8_STEPS; s++)
        for (int i = 0; i < CODES; i++) {
            uint8_t code = e4m3_from_f32(ldexpf(normals[i] * FP8_CODE_STD, -(s + FP8_STEP_MIN)));
            /* Magnitudes below 2^-7 become zero: at the smallest official scale, 2^-14, none is then below 2^-21. */
            fp8_code[s][i] = (code & 0x7f) < 4 ? code & 0x80 : code;
        }
    uint8_t nibble[256];
    for (int code = 0, i = 0; code < 16; code++)
        for (int n = 0; n < FP4_WEIGHT[code]; n++) nibble[i++] = (uint8_t)code;
    for (int i = 0; i < CODES; i++) fp4_code[i] = (uint8_t)(nibble[i & 255] | nibble[i >> 8] << 4);
}

/* ---- one stored tensor ---- */

typedef struct source {
    const eng_tensor_spec *spec;
    eng_wclass wclass;
    uint64_t key, scale_key;
    int64_t cols, scale_cols; /* FP8: columns of the stored tensor and of its scales */
    float mean, std;
    int scale_base;           /* E8M0 byte at step 0 */
} source;

static source source_make(const eng_config *c, const eng_tensor_spec *spec, uint64_t seed)
{
    const struct recipe *r = &RECIPES[spec->wid];
    int32_t n, k;
    eng_wid_shape(c, spec->wid, &n, &k);
    source s = { .spec = spec, .wclass = eng_wkind_of(spec->wid)->wclass, .mean = r->mean };
    s.std = r->by_fan ? r->std / sqrtf((float)k) : r->std;
    s.cols = k;
    s.scale_cols = (k + FMT_QDQ_GROUP - 1) / FMT_QDQ_GROUP;
    float code_std = s.wclass == ENG_WC_FP8 ? FP8_CODE_STD : FP4_CODE_STD;
    s.scale_base = FMT_E8M0_BIAS + (int)lrintf(log2f(s.std / code_std));

    /* A weight must know its scales' stream: both are named after the weight. */
    char base[ENG_TENSOR_NAME + 16];
    snprintf(base, sizeof base, "%s", spec->name);
    char *dot = strrchr(base, '.');
    if (spec->is_scale && dot) *dot = 0;
    else if (dot && strcmp(dot, ".weight") == 0) *dot = 0;
    s.key = eng_noise_key(seed, spec->name);
    strcat(base, ".scale");
    s.scale_key = eng_noise_key(seed, base);
    return s;
}

static int scale_step(const source *s, int64_t block)
{
    uint64_t bits = eng_noise_bits(s->scale_key, (uint64_t)block) >> 32;
    return (int)(bits * (s->wclass == ENG_WC_FP8 ? FP8_STEPS : FP4_STEPS) >> 32);
}

/* Bytes out of a table by 16 random bits each, four from one hash. */
static void fill_codes(const uint8_t *table, uint64_t key, int64_t first, int64_t count, uint8_t *out)
{
    uint64_t bits = 0;
    for (int64_t i = first; i < first + count; i++) {
        if (i == first || (i & 3) == 0) bits = eng_noise_bits(key, (uint64_t)(i >> 2));
        out[i - first] = table[bits >> (16 * (i & 3)) & 0xffff];
    }
}

/* Elements [first, first + count) of the stored tensor. */
static void source_fill(const source *s, int64_t first, int64_t count, void *out)
{
    const float *normals = eng_noise_normals();
    if (s->spec->is_scale) {
        int step_min = s->wclass == ENG_WC_FP8 ? FP8_STEP_MIN : FP4_STEP_MIN;
        for (int64_t i = 0; i < count; i++)
            ((uint8_t *)out)[i] = (uint8_t)(s->scale_base + step_min + scale_step(s, first + i));
        return;
    }
    switch (s->wclass) {
    case ENG_WC_FP4:
        fill_codes(fp4_code, s->key, first, count, out);
        return;
    case ENG_WC_FP8:
        for (int64_t i = first, run; i < first + count; i += run) { /* run: inside one 32-wide block */
            int64_t row = i / s->cols, col = i % s->cols;
            run = FMT_QDQ_GROUP - col % FMT_QDQ_GROUP;
            if (run > s->cols - col) run = s->cols - col;
            if (run > first + count - i) run = first + count - i;
            int step = scale_step(s, row / FMT_QDQ_GROUP * s->scale_cols + col / FMT_QDQ_GROUP);
            fill_codes(fp8_code[step], s->key, i, run, (uint8_t *)out + (i - first));
        }
        return;
    case ENG_WC_BF16:
        for (int64_t i = 0; i < count; i++)
            ((bf16 *)out)[i] = bf16_from_f32(
                s->mean + s->std * eng_noise_normal(normals, eng_noise_bits(s->key, (uint64_t)(first + i))));
        return;
    case ENG_WC_F32:
        for (int64_t i = 0; i < count; i++)
            ((float *)out)[i] =
                s->mean + s->std * eng_noise_normal(normals, eng_noise_bits(s->key, (uint64_t)(first + i)));
        return;
    }
}

/* ---- shards ---- */

typedef struct layout {
    int32_t n_shards;
    char name[SHARDS_MAX][40];
} layout;

/* The stage in a name "mtp.N.…", -1 for other names. */
static int32_t stage_of(const char *name) { return strncmp(name, "mtp.", 4) == 0 ? atoi(name + 4) : -1; }

static layout layout_make(uint64_t total_bytes)
{
    static const int OFFICIAL[SHARDS_MAX] = { 2, 43, 44, 45, 46 };
    bool official = total_bytes > OFFICIAL_LAYOUT_BYTES;
    layout l = { .n_shards = official ? SHARDS_MAX : 2 };
    for (int32_t i = 0; i < l.n_shards; i++)
        snprintf(l.name[i], sizeof l.name[i], "model-%05d-of-%05d.safetensors", official ? OFFICIAL[i] : i + 1,
                 official ? 46 : 2);
    return l;
}

static int32_t layout_shard(const layout *l, const eng_tensor_spec *spec, size_t i, size_t n)
{
    if (l->n_shards == 2) return i < n / 2 ? 0 : 1;
    if (spec->wid == ENG_W_EMBED) return 0;
    if (spec->wid == ENG_W_HEAD) return 1;
    int32_t stage = stage_of(spec->name);
    return 2 + (stage < 0 ? 0 : stage > 2 ? 2 : stage);
}

static int64_t spec_elems(const eng_tensor_spec *s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s->ndim; d++) n *= s->shape[d];
    return n;
}

typedef struct synth_run {
    const char *folder;
    const eng_config *config;
    uint64_t seed;
    eng_tensor_spec *spec;
    size_t n_specs;
    layout layout;
    uint8_t *chunk;
    progress progress;
} synth_run;

static void write_tensor(synth_run *s, const eng_tensor_spec *spec, fmt_safetensors_writer *w)
{
    source src = source_make(s->config, spec, s->seed);
    int64_t total = spec_elems(spec), elem_bytes = fmt_dtype_bytes(spec->dtype);
    for (int64_t first = 0; first < total; first += CHUNK_ELEMS) {
        int64_t count = total - first < CHUNK_ELEMS ? total - first : CHUNK_ELEMS;
#pragma omp parallel for schedule(static) if (count > PIECE_ELEMS)
        for (int64_t at = 0; at < count; at += PIECE_ELEMS)
            source_fill(&src, first + at, count - at < PIECE_ELEMS ? count - at : PIECE_ELEMS, s->chunk + at * elem_bytes);
        fmt_safetensors_put(w, s->chunk, (size_t)(count * elem_bytes));
        progress_add(&s->progress, (uint64_t)(count * elem_bytes));
    }
}

static err_code path_join(const synth_run *s, const char *name, char path[PATH_BYTES], err *e)
{
    if (snprintf(path, PATH_BYTES, "%s/%s", s->folder, name) >= PATH_BYTES)
        return err_set(e, ERR_ARG, "%s: the name is longer than %d bytes", s->folder, PATH_BYTES - 1);
    return ERR_OK;
}

static err_code write_shard(synth_run *s, int32_t shard, err *e)
{
    char path[PATH_BYTES];
    fmt_safetensors_decl *decl = NULL;
    const eng_tensor_spec **mine = NULL;
    fmt_safetensors_writer *w = NULL;
    json_t *metadata = NULL;
    size_t n = 0;
    err_code rc = path_join(s, s->layout.name[shard], path, e);
    if (rc != ERR_OK) return rc;
    decl = mem_alloc(s->n_specs, sizeof *decl);
    mine = mem_alloc(s->n_specs, sizeof *mine);
    metadata = json_pack("{s:s}", "format", "pt");
    if (!decl || !mine || !metadata) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory for its table of tensors", path);
        goto out;
    }
    for (size_t i = 0; i < s->n_specs; i++) {
        const eng_tensor_spec *t = &s->spec[i];
        if (layout_shard(&s->layout, t, i, s->n_specs) != shard) continue;
        decl[n] = (fmt_safetensors_decl){ .name = t->name, .dtype = t->dtype, .ndim = t->ndim };
        for (int32_t d = 0; d < t->ndim; d++) decl[n].shape[d] = t->shape[d];
        mine[n++] = t;
    }
    rc = fmt_safetensors_create(path, decl, n, metadata, &w, e);
    if (rc != ERR_OK) goto out;
    for (size_t i = 0; i < n; i++) write_tensor(s, mine[i], w);
    rc = fmt_safetensors_finish(w, e);
out:
    free(decl);
    free(mine);
    json_decref(metadata);
    return rc;
}

static err_code write_index(const synth_run *s, uint64_t total_bytes, err *e)
{
    char path[PATH_BYTES];
    TRY(path_join(s, "model.safetensors.index.json", path, e));
    json_t *map = json_object();
    bool good = map != NULL;
    for (size_t i = 0; good && i < s->n_specs; i++) {
        int32_t shard = layout_shard(&s->layout, &s->spec[i], i, s->n_specs);
        good = json_object_set_new(map, s->spec[i].name, json_string(s->layout.name[shard])) == 0;
    }
    json_t *index = json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)total_bytes, "weight_map", map);
    err_code rc = good && index ? fmt_json_write(path, index, e) : err_set(e, ERR_NOMEM, "%s: no memory", path);
    json_decref(index); /* holds map; when it could not be made, json_pack has dropped map */
    return rc;
}

static err_code write_config(const synth_run *s, err *e)
{
    char path[PATH_BYTES];
    TRY(path_join(s, "config.json", path, e));
    json_t *config = eng_config_json(s->config);
    err_code rc = config ? fmt_json_write(path, config, e) : err_set(e, ERR_NOMEM, "%s: no memory", path);
    json_decref(config);
    return rc;
}

/* ---- the folder ---- */

static err_code folder_prepare(const char *folder, bool *made, err *e)
{
    *made = mkdir(folder, 0777) == 0;
    if (*made) return ERR_OK;
    if (errno != EEXIST) return err_set(e, ERR_IO, "cannot make the folder %s: %s", folder, strerror(errno));
    DIR *d = opendir(folder);
    if (!d) return err_set(e, ERR_ARG, "%s: found no folder (%s), wanted a new or empty one", folder, strerror(errno));
    err_code rc = ERR_OK;
    for (struct dirent *f; rc == ERR_OK && (f = readdir(d));)
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0)
            rc = err_set(e, ERR_ARG, "%s: holds %s already, wanted a new or empty folder", folder, f->d_name);
    closedir(d);
    return rc;
}

/* After an error: whole shards without an index would look like a checkpoint that lost tensors. */
static void folder_clear(const synth_run *s, bool made)
{
    char path[PATH_BYTES];
    err ignored;
    for (int32_t i = 0; i < s->layout.n_shards; i++)
        if (path_join(s, s->layout.name[i], path, &ignored) == ERR_OK) unlink(path);
    if (path_join(s, "model.safetensors.index.json", path, &ignored) == ERR_OK) unlink(path);
    if (made) rmdir(s->folder);
}

err_code eng_synth_checkpoint(const char *folder, const eng_config *c, uint64_t seed, bool quiet, eng_synth_report *report,
                              err *e)
{
    synth_run s = { .folder = folder, .config = c, .seed = seed };
    bool made = false;
    TRY(folder_prepare(folder, &made, e));
    pthread_once(&codes_once, make_codes);

    uint64_t total_bytes = 0;
    err_code rc = eng_inventory(c, &s.spec, &s.n_specs, e);
    if (rc != ERR_OK) goto out;
    for (size_t i = 0; i < s.n_specs; i++)
        total_bytes += (uint64_t)spec_elems(&s.spec[i]) * fmt_dtype_bytes(s.spec[i].dtype);
    s.layout = layout_make(total_bytes);
    s.chunk = mem_alloc_aligned(CHUNK_ELEMS, sizeof(float));
    if (!s.chunk) {
        rc = err_set(e, ERR_NOMEM, "no memory for %d elements", CHUNK_ELEMS);
        goto out;
    }
    progress_begin(&s.progress, "writing", total_bytes, quiet);
    for (int32_t i = 0; rc == ERR_OK && i < s.layout.n_shards; i++) rc = write_shard(&s, i, e);
    progress_end(&s.progress);
    if (rc == ERR_OK) rc = write_index(&s, total_bytes, e);
    if (rc == ERR_OK) rc = write_config(&s, e);
    if (rc == ERR_OK)
        *report = (eng_synth_report){ (int64_t)s.n_specs, s.layout.n_shards, total_bytes };
out:
    if (rc != ERR_OK) folder_clear(&s, made);
    free(s.spec);
    free(s.chunk);
    return rc;
}
