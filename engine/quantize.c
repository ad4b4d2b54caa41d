#include "engine/quantize.h"

#include <string.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "engine/inventory_index.h"
#include "engine/quantize_calibrate.h"
#include "engine/quantize_folder.h"
#include "engine/quantize_linear.h"

enum {
    SHARD_EXPERTS = 16,  /* of the official sizes some minutes on a card, 400 MB */
    PARTS_MAX = 4,       /* tensors of a linear */
    NAME_BYTES = ENG_TENSOR_NAME + 16,
    SHARD_NAME = 64,
    EXPERTS = 0, DENSE = 1, HEAD = 2, /* ENG_QUANTIZE_PART */
};
const char *const ENG_QUANTIZE_PART[ENG_QUANTIZE_PARTS] = { "experts", "dense", "head" };

typedef struct linear {
    eng_wid wid;
    int32_t stage, expert; /* -1 where the kind has none */
    char name[ENG_TENSOR_NAME];
} linear;

typedef struct shard {
    char name[SHARD_NAME];
    size_t first, n; /* linears */
    bool whole;      /* found so */
} shard;

/* Hessians that were made last: of an input that many linears share, and of one of its own. */
typedef struct known_hessian {
    uint64_t key;
    bool made;
    eng_hessian *hessian; /* NULL: unusable */
} known_hessian;

typedef struct run {
    const eng_quantize_options *o;
    const eng_weights *weights;
    const eng_config *config;
    eng_delivery delivery;
    linear *linear;
    size_t n_linears;
    shard *shard;
    size_t n_shards;
    char (*tensor)[NAME_BYTES];  /* [n_linears * PARTS_MAX] */
    fmt_checkpoint_place *place; /* of all of them */
    size_t n_places;
    eng_encoder *encoder;
    eng_calibration *calibration;
    known_hessian shared, own;
    progress progress;
    char what[SHARD_NAME + 32];
    uint64_t start_ns;
    double error2[ENG_QUANTIZE_PARTS], weight2[ENG_QUANTIZE_PARTS];
    eng_quantize_report *report;
} run;

static int part_of(eng_wid id)
{
    const eng_part part = eng_wkind_of(id)->part;
    return part == ENG_PART_EXPERTS ? EXPERTS : part == ENG_PART_HEAD ? HEAD : DENSE;
}

static int32_t bits_of(const run *r, eng_wid id)
{
    const int32_t bits[ENG_QUANTIZE_PARTS] = { r->o->experts, r->o->dense, r->o->head };
    return bits[part_of(id)];
}

static krn_weight view_of(const run *r, const linear *l)
{
    return eng_weights_view(r->weights, l->wid, l->stage, l->expert);
}

static int64_t tiles_of(const run *r, const linear *l)
{
    const krn_weight w = view_of(r, l);
    return (int64_t)eng_exl3_padded(w.k) * eng_exl3_padded(w.n) / FMT_EXL3_TILE_WEIGHTS;
}

/* ---- what goes where ---- */

static void add_linear(run *r, eng_wid id, int32_t stage, int32_t expert)
{
    linear *l = &r->linear[r->n_linears++];
    *l = (linear){ .wid = id, .stage = stage, .expert = expert };
    eng_weight_name(r->config, id, stage, expert, l->name);
    r->shard[r->n_shards - 1].n++;
}

static shard *add_shard(run *r)
{
    shard *s = &r->shard[r->n_shards++];
    *s = (shard){ .first = r->n_linears };
    return s;
}

static void lay_out(run *r)
{
    static const eng_wid OF_EXPERT[] = { ENG_W_EXPERT_W1, ENG_W_EXPERT_W3, ENG_W_EXPERT_W2 };
    const eng_config *c = r->config;
    for (int32_t stage = 0; stage < c->n_stages; stage++) {
        snprintf(add_shard(r)->name, SHARD_NAME, "exl3-s%d-dense.safetensors", stage);
        for (int id = 0; id < ENG_W_COUNT; id++)
            if (eng_wid_has_exl3(id) && part_of(id) == DENSE && (eng_wid_stages(c, id) > 1 || stage == 0))
                add_linear(r, id, stage, -1);
        for (int32_t expert = 0; expert < c->n_experts; expert++) {
            if (expert % SHARD_EXPERTS == 0)
                snprintf(add_shard(r)->name, SHARD_NAME, "exl3-s%d-experts-%03d.safetensors", stage, expert);
            for (size_t i = 0; i < COUNT_OF(OF_EXPERT); i++) add_linear(r, OF_EXPERT[i], stage, expert);
        }
    }
    snprintf(add_shard(r)->name, SHARD_NAME, "exl3-head.safetensors");
    add_linear(r, ENG_W_HEAD, -1, -1);
}

static err_code plan(run *r, err *e)
{
    const size_t linears = eng_weight_count(r->config);
    const size_t shards = (size_t)r->config->n_stages * (size_t)(2 + r->config->n_experts / SHARD_EXPERTS) + 1;
    r->linear = mem_alloc(linears, sizeof *r->linear);
    r->shard = mem_alloc(shards, sizeof *r->shard);
    r->tensor = mem_alloc(linears * PARTS_MAX, sizeof *r->tensor);
    r->place = mem_alloc(linears * PARTS_MAX, sizeof *r->place);
    if (!r->linear || !r->shard || !r->tensor || !r->place)
        return err_set(e, ERR_NOMEM, "no memory for a plan of %zu linears", linears);
    lay_out(r);
    CHECK(r->n_shards <= shards && r->n_linears <= linears);
    for (size_t i = 0; i < r->n_linears; i++)
        if (!view_of(r, &r->linear[i]).data)
            return err_set(e, ERR_IDENTITY, "%s: the official %s is missing: there is nothing to quantize",
                           eng_weights_folder(r->weights), r->linear[i].name);
    return ERR_OK;
}

/* ---- the tensors of a shard ---- */

/* Linear i's, sorted by name; returns how many. */
static size_t declare(run *r, size_t i, fmt_safetensors_decl decl[PARTS_MAX])
{
    static const eng_exl3 MARKER[FMT_EXL3_CODEBOOKS] = { ENG_EXL3_NONE, ENG_EXL3_MCG, ENG_EXL3_MUL1 };
    const linear *l = &r->linear[i];
    const krn_weight w = view_of(r, l);
    const int64_t in = eng_exl3_padded(w.k), out = eng_exl3_padded(w.n);
    const struct { eng_exl3 part; fmt_dtype dtype; int32_t ndim; int64_t shape[3]; } part[PARTS_MAX] = {
        { MARKER[r->o->codebook], FMT_DTYPE_I32, 0, { 0 } },
        { ENG_EXL3_SUH, FMT_DTYPE_F16, 1, { in } },
        { ENG_EXL3_SVH, FMT_DTYPE_F16, 1, { out } },
        { ENG_EXL3_TRELLIS, FMT_DTYPE_I16, 3, { in / FMT_EXL3_TILE, out / FMT_EXL3_TILE, 16 * bits_of(r, l->wid) } },
    };
    size_t n = 0;
    for (size_t k = 0; k < PARTS_MAX; k++) {
        if (part[k].part == ENG_EXL3_NONE) continue;
        char *name = r->tensor[i * PARTS_MAX + k];
        snprintf(name, NAME_BYTES, "%s%s", l->name, eng_exl3_suffix(part[k].part));
        decl[n] = (fmt_safetensors_decl){ .name = name, .dtype = part[k].dtype, .ndim = part[k].ndim };
        memcpy(decl[n++].shape, part[k].shape, sizeof part[k].shape);
    }
    return n;
}

static err_code metadata_of(const run *r, const shard *s, json_t **out, err *e)
{
    char made[160], source[FMT_SHA256_HEX];
    char(*name)[ENG_TENSOR_NAME] = mem_alloc(2 * s->n, sizeof *name);
    size_t n = 0;
    if (!name) return err_set(e, ERR_NOMEM, "%s: no memory for its metadata", s->name);
    for (size_t i = s->first; i < s->first + s->n; i++) {
        const linear *l = &r->linear[i];
        const eng_wclass wclass = eng_wkind_of(l->wid)->wclass;
        snprintf(name[n++], ENG_TENSOR_NAME, "%.*s.weight", ENG_TENSOR_NAME - 8, l->name);
        if (wclass == ENG_WC_FP8 || wclass == ENG_WC_FP4)
            snprintf(name[n++], ENG_TENSOR_NAME, "%.*s.scale", ENG_TENSOR_NAME - 8, l->name);
    }
    err_code rc = eng_delivery_source(r->weights, (const char(*)[ENG_TENSOR_NAME])name, n, source, e);
    free(name);
    if (rc != ERR_OK) return rc;
    snprintf(made, sizeof made, "%d bits, codebook %s, seed %llu, seam %d, rule 1", bits_of(r, r->linear[s->first].wid),
             fmt_exl3_codebook_name(r->o->codebook), (unsigned long long)r->o->seed, ENG_ENCODER_SEAM);
    *out = json_pack("{s:s, s:s, s:s, s:s}", "format", "pt", "source", source, "made", made, "calibration",
                     r->calibration ? eng_calibration_id(r->calibration) : "none");
    return *out ? ERR_OK : err_set(e, ERR_NOMEM, "%s: no memory for its metadata", s->name);
}

/* Table and metadata of a shard; both are the caller's. */
static err_code describe(run *r, const shard *s, fmt_safetensors_decl **decl, size_t *n, json_t **metadata, err *e)
{
    *n = 0;
    *metadata = NULL;
    *decl = mem_alloc(s->n * PARTS_MAX, sizeof **decl);
    if (!*decl) return err_set(e, ERR_NOMEM, "%s: no memory for its table", s->name);
    for (size_t i = s->first; i < s->first + s->n; i++) *n += declare(r, i, *decl + *n);
    return metadata_of(r, s, metadata, e);
}

/* Which shards are there, and how much there is to do. */
static err_code look(run *r, uint64_t *tiles, err *e)
{
    *tiles = 0;
    for (size_t i = 0; i < r->n_shards; i++) {
        shard *s = &r->shard[i];
        char path[ENG_DELIVERY_PATH];
        fmt_safetensors_decl *decl = NULL;
        json_t *metadata = NULL;
        size_t n = 0;
        err_code rc = eng_delivery_path(&r->delivery, s->name, path, e);
        if (rc == ERR_OK) rc = describe(r, s, &decl, &n, &metadata, e);
        if (rc == ERR_OK) rc = eng_delivery_has(path, decl, n, metadata, r->o->force, &s->whole, e);
        for (size_t k = 0; rc == ERR_OK && k < n; k++) {
            uint64_t bytes = fmt_dtype_bytes(decl[k].dtype);
            for (int32_t d = 0; d < decl[k].ndim; d++) bytes *= (uint64_t)decl[k].shape[d];
            r->place[r->n_places++] = (fmt_checkpoint_place){ decl[k].name, s->name, bytes };
            r->report->bytes += bytes;
        }
        free(decl);
        json_decref(metadata);
        if (rc != ERR_OK) return rc;
        r->report->kept += s->whole;
        for (size_t k = s->first; !s->whole && k < s->first + s->n; k++) *tiles += (uint64_t)tiles_of(r, &r->linear[k]);
    }
    r->report->shards = (int32_t)r->n_shards;
    r->report->tensors = (int64_t)r->n_places;
    return ERR_OK;
}

/* ---- making a shard ---- */

/* The signs' streams. Linears with one input share its signs, and so its Hessian. */
static eng_exl3_signs signs_of(const run *r, const linear *l)
{
    char in[NAME_BYTES], out[NAME_BYTES];
    switch (l->wid) {
    case ENG_W_EXPERT_W1: case ENG_W_EXPERT_W3: case ENG_W_SHARED_W1: case ENG_W_SHARED_W3:
        snprintf(in, sizeof in, "mtp.%d.ffn.suh", l->stage);
        break;
    default:
        snprintf(in, sizeof in, "%s.suh", l->name);
    }
    snprintf(out, sizeof out, "%s.svh", l->name);
    return (eng_exl3_signs){ eng_noise_key(r->o->seed, in), eng_noise_key(r->o->seed, out) };
}

static err_code hessian_of(run *r, const linear *l, uint64_t key, const eng_hessian **out, err *e)
{
    *out = NULL;
    if (!r->calibration) return ERR_OK;
    known_hessian *known = l->wid == ENG_W_EXPERT_W2 ? &r->own : &r->shared;
    if (!known->made || known->key != key) {
        float *x;
        int64_t rows;
        eng_hessian_close(known->hessian);
        *known = (known_hessian){ .key = key };
        TRY(eng_calibration_rows(r->calibration, l->wid, l->stage, l->expert, &x, &rows, e));
        err_code rc = eng_hessian_open(x, rows, view_of(r, l).k, key, &known->hessian, e);
        free(x);
        if (rc != ERR_OK) return rc;
        known->made = true;
    }
    *out = known->hessian;
    return ERR_OK;
}

static err_code tiles_done(void *ctx, int64_t tiles, err *e)
{
    run *r = ctx;
    r->report->tiles += tiles;
    const double seconds = (double)(clock_ns() - r->start_ns) * 1e-9;
    snprintf(r->what, sizeof r->what, "quantizing, %.0f tiles/s", (double)r->report->tiles / (seconds > 0 ? seconds : 1));
    progress_add(&r->progress, (uint64_t)tiles);
    if (!interrupt_seen()) return ERR_OK;
    return err_set(e, ERR_SYSTEM, "%s: interrupted; the same command goes on after the last whole shard",
                   r->delivery.folder);
}

static err_code write_linear(run *r, const linear *l, fmt_safetensors_writer *w, err *e)
{
    const krn_weight view = view_of(r, l);
    const krn_exl3_code code = { bits_of(r, l->wid), r->o->codebook, ENG_ENCODER_SEAM };
    const eng_exl3_signs signs = signs_of(r, l);
    const eng_hessian *hessian;
    eng_exl3_linear made;
    TRY(hessian_of(r, l, signs.in, &hessian, e));
    TRY(eng_exl3_quantize(&view, code, signs, r->encoder, hessian, tiles_done, r, &made, e));
    const int32_t marker = fmt_exl3_codebook_marker(code.codebook);
    if (marker) {
        uint8_t bytes[4];
        put_u32(bytes, (uint32_t)marker);
        fmt_safetensors_put(w, bytes, sizeof bytes);
    }
    fmt_safetensors_put(w, made.suh, (size_t)made.in * sizeof *made.suh);
    fmt_safetensors_put(w, made.svh, (size_t)made.out * sizeof *made.svh);
    fmt_safetensors_put(w, made.tiles, (size_t)made.in * (size_t)made.out / 8 * (size_t)code.bits);
    const int part = part_of(l->wid);
    r->error2[part] += made.error2;
    r->weight2[part] += made.weight2;
    r->report->part[part].linears++;
    r->report->part[part].calibrated += hessian != NULL;
    r->report->part[part].proxy += made.proxy;
    eng_exl3_linear_fini(&made);
    return ERR_OK;
}

static err_code write_shard(run *r, const shard *s, err *e)
{
    char path[ENG_DELIVERY_PATH];
    fmt_safetensors_decl *decl = NULL;
    fmt_safetensors_writer *w = NULL;
    json_t *metadata = NULL;
    size_t n;
    err_code rc = eng_delivery_path(&r->delivery, s->name, path, e);
    if (rc == ERR_OK) rc = describe(r, s, &decl, &n, &metadata, e);
    if (rc == ERR_OK) rc = fmt_safetensors_create(path, decl, n, metadata, &w, e);
    for (size_t i = s->first; rc == ERR_OK && i < s->first + s->n; i++) {
        rc = write_linear(r, &r->linear[i], w, e);
        if (rc != ERR_OK && rc != ERR_SYSTEM) err_wrap(e, "%s", r->linear[i].name);
    }
    if (rc == ERR_OK) rc = fmt_safetensors_finish(w, e);
    else fmt_safetensors_discard(w);
    free(decl);
    json_decref(metadata);
    return rc;
}

/* ---- all of it ---- */

static void finish_report(run *r)
{
    eng_quantize_report *p = r->report;
    p->seconds = (double)(clock_ns() - r->start_ns) * 1e-9;
    for (int i = 0; i < ENG_QUANTIZE_PARTS; i++) {
        p->part[i].error = r->weight2[i] > 0 ? sqrt(r->error2[i] / r->weight2[i]) : 0;
        if (p->part[i].calibrated) p->part[i].proxy /= p->part[i].calibrated;
    }
}

static err_code make(run *r, const char *out, err *e)
{
    uint64_t tiles;
    TRY(plan(r, e));
    const char **names = mem_alloc(r->n_shards, sizeof *names);
    if (!names) return err_set(e, ERR_NOMEM, "no memory for a plan of %zu shards", r->n_shards);
    for (size_t i = 0; i < r->n_shards; i++) names[i] = r->shard[i].name;
    err_code rc = eng_delivery_begin(r->weights, out, names, r->n_shards, &r->delivery, e);
    if (rc == ERR_OK) rc = look(r, &tiles, e);
    if (rc == ERR_OK && tiles > 0) {
        size_t n = 0;
        for (size_t i = 0; i < r->n_shards; i++)
            if (!r->shard[i].whole) names[n++] = r->shard[i].name;
        rc = eng_delivery_replace(&r->delivery, names, n, e);
    }
    free(names);
    if (rc != ERR_OK) return rc;
    r->start_ns = clock_ns();
    snprintf(r->what, sizeof r->what, "quantizing");
    progress_begin(&r->progress, r->what, tiles, r->o->quiet);
    for (size_t i = 0; i < r->n_shards && rc == ERR_OK; i++)
        if (!r->shard[i].whole) rc = write_shard(r, &r->shard[i], e);
    progress_end(&r->progress);
    if (rc != ERR_OK) return rc;
    finish_report(r);
    return eng_delivery_end(&r->delivery, r->place, r->n_places, r->o->force, e);
}

err_code eng_quantize(const char *model, const char *out, const eng_quantize_options *o, eng_quantize_report *report,
                      err *e)
{
    eng_weights *w = NULL;
    *report = (eng_quantize_report){ 0 };
    run r = { .o = o, .report = report };
    err_code rc = eng_encoder_open(o->cuda, &r.encoder, e); /* first: without a card nothing else is worth the time */
    if (rc == ERR_OK) rc = eng_weights_open(model, o->quiet, &w, e);
    if (rc == ERR_OK) {
        r.weights = w;
        r.config = eng_weights_config(w);
        if (o->calibrate) rc = eng_calibration_open(o->calibrate, w, &r.calibration, e);
    }
    if (rc == ERR_OK) rc = make(&r, out, e);
    eng_hessian_close(r.shared.hessian);
    eng_hessian_close(r.own.hessian);
    eng_calibration_close(r.calibration);
    eng_encoder_close(r.encoder);
    eng_weights_close(w);
    free(r.linear);
    free(r.shard);
    free(r.tensor);
    free(r.place);
    return rc;
}
