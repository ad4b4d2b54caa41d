#include "engine/weights_export.h"

#include "base/cli.h"
#include "base/clock.h"
#include "base/mem.h"
#include "formats/exl3.h"

enum { DECODE_BYTES = 1 << 20, PUT_BYTES = 1 << 22 };

/* The name without .weight, .scale or what is EXL3's. */
static void base_name(const char *name, char base[ENG_TENSOR_NAME])
{
    snprintf(base, ENG_TENSOR_NAME, "%s", name);
    char *dot = strrchr(base, '.');
    bool suffix = dot && (strcmp(dot, ".weight") == 0 || strcmp(dot, ".scale") == 0);
    for (int part = ENG_EXL3_TRELLIS; dot && part < ENG_EXL3_COUNT; part++)
        suffix = suffix || strcmp(dot, eng_exl3_suffix((eng_exl3)part)) == 0;
    if (suffix) *dot = 0;
}

static bool is_codes(const eng_tensor_spec *t)
{
    eng_wclass wclass = eng_wkind_of(t->wid)->wclass;
    return wclass == ENG_WC_FP4 || wclass == ENG_WC_FP8;
}

static bool chosen(const eng_export_options *o, const eng_tensor_spec *t)
{
    char base[ENG_TENSOR_NAME];
    base_name(t->name, base);
    if (o->decode && (t->is_scale || t->exl3 > ENG_EXL3_TRELLIS)) return false;
    return !o->pattern || cli_match(o->pattern, t->name) || cli_match(o->pattern, base);
}

static eng_export_item item_make(const eng_weights *w, const eng_export_options *o, const eng_tensor_spec *t)
{
    const eng_config *c = eng_weights_config(w);
    eng_export_item item = { .spec = *t, .share = eng_share_of(c, t, o->rank, o->n_ranks) };
    item.stored = fmt_checkpoint_find(eng_weights_files(w), t->name);
    CHECK(item.stored); /* eng_weights_open has checked the inventory */
    item.dtype = t->dtype;
    item.ndim = t->ndim;
    memcpy(item.shape, item.share.shape, sizeof item.shape);
    if (t->exl3 ? t->exl3 != ENG_EXL3_TRELLIS : !is_codes(t) || t->is_scale) return item;

    krn_weight whole = t->exl3 ? eng_weights_exl3(w, t->wid, t->stage, t->expert)
                               : eng_weights_view(w, t->wid, t->stage, t->expert);
    item.scale = whole.scale;
    if (!o->decode) return item;
    eng_range cut = eng_cut_range(c, t->wid, o->rank, o->n_ranks);
    bool by_cols = eng_wkind_of(t->wid)->cut == ENG_CUT_COLS;
    item.decode = true;
    item.view = by_cols ? krn_weight_slice(&whole, 0, whole.n, cut.first, cut.count)
                        : krn_weight_slice(&whole, cut.first, cut.count, 0, whole.k);
    item.dtype = t->exl3 ? FMT_DTYPE_F32 : FMT_DTYPE_BF16;
    item.ndim = 2;
    item.shape[0] = t->exl3 ? item.view.k : item.view.n;
    item.shape[1] = t->exl3 ? item.view.n : item.view.k;
    item.shape[2] = 1;
    return item;
}

err_code eng_export_select(const eng_weights *w, const eng_export_options *o, eng_export_item **out, size_t *n, err *e)
{
    *out = NULL;
    *n = 0;
    size_t n_specs;
    const eng_tensor_spec *spec = eng_weights_specs(w, &n_specs);
    eng_export_item *items = mem_alloc(n_specs, sizeof *items);
    if (!items) return err_set(e, ERR_NOMEM, "no memory for a list of %zu tensors", n_specs);
    for (size_t i = 0; i < n_specs; i++)
        if (chosen(o, &spec[i])) items[(*n)++] = item_make(w, o, &spec[i]);
    if (*n == 0) {
        free(items);
        return err_set(e, ERR_ARG, "no tensor of %s matches '%s'", eng_weights_folder(w), o->pattern);
    }
    *out = items;
    return ERR_OK;
}

uint64_t eng_export_bytes(const eng_export_item *item)
{
    uint64_t bytes = fmt_dtype_bytes(item->dtype);
    for (int32_t d = 0; d < item->ndim; d++) bytes *= (uint64_t)item->shape[d];
    return bytes;
}

/* The effective weight, a block of inputs at a time: a block of the transform is the least that can be decoded. */
static err_code stream_exl3(const eng_export_item *item, eng_export_sink sink, void *ctx, err *e)
{
    const int32_t n = item->view.n, most = FMT_EXL3_BLOCK;
    float *by_output = mem_alloc((size_t)n * (size_t)most, sizeof *by_output); /* [n, inputs] */
    float *row = mem_alloc((size_t)n, sizeof *row);
    err_code rc = by_output && row ? ERR_OK : err_set(e, ERR_NOMEM, "%s: no memory for decoded rows", item->spec.name);
    for (int32_t k0 = 0; rc == ERR_OK && k0 < item->view.k; ) {
        const int32_t left = item->view.k - k0, to_edge = most - (item->view.exl3.k0 + k0) % most;
        const int32_t k = left < to_edge ? left : to_edge;
        const krn_weight part = krn_weight_slice(&item->view, 0, n, k0, k);
        krn_weight_decode_f32(&part, 0, n, by_output);
        for (int32_t i = 0; i < k; i++) {
            for (int32_t o = 0; o < n; o++) row[o] = by_output[(int64_t)o * k + i];
            sink(ctx, row, (size_t)n * sizeof *row);
        }
        k0 += k;
    }
    free(by_output);
    free(row);
    return rc;
}

static err_code stream_decoded(const eng_export_item *item, eng_export_sink sink, void *ctx, err *e)
{
    int64_t row_bytes = (int64_t)item->view.k * (int64_t)sizeof(bf16);
    int32_t step = (int32_t)(row_bytes < DECODE_BYTES ? DECODE_BYTES / row_bytes : 1);
    bf16 *rows = mem_alloc_aligned((size_t)step * (size_t)item->view.k, sizeof *rows);
    if (!rows) return err_set(e, ERR_NOMEM, "%s: no memory for %d decoded rows", item->spec.name, step);
    err_code rc = ERR_OK;
    for (int32_t at = 0; rc == ERR_OK && at < item->view.n; at += step) {
        int32_t count = item->view.n - at < step ? item->view.n - at : step;
        int64_t inexact = krn_weight_decode_bf16(&item->view, at, count, rows);
        if (inexact)
            rc = err_set(e, ERR_INPUT, "%s: rows %d to %d: found %lld values that BF16 cannot hold, wanted none",
                         item->spec.name, at, at + count - 1, (long long)inexact);
        else
            sink(ctx, rows, (size_t)count * (size_t)row_bytes);
    }
    free(rows);
    return rc;
}

err_code eng_export_stream(const eng_export_item *item, eng_export_sink sink, void *ctx, err *e)
{
    if (item->decode) return item->spec.exl3 ? stream_exl3(item, sink, ctx, e) : stream_decoded(item, sink, ctx, e);
    const uint8_t *at = (const uint8_t *)item->stored->tensor.data + item->share.offset_bytes;
    for (int64_t i = 0; i < item->share.spans; i++, at += item->share.stride_bytes)
        for (uint64_t done = 0, n; done < item->share.span_bytes; done += n) {
            n = item->share.span_bytes - done < PUT_BYTES ? item->share.span_bytes - done : PUT_BYTES;
            sink(ctx, at + done, (size_t)n);
        }
    return ERR_OK;
}

static void hash_sink(void *ctx, const void *data, size_t bytes) { fmt_sha256_add(ctx, data, bytes); }

err_code eng_export_sha256(const eng_export_item *item, fmt_sha256 *out, err *e)
{
    fmt_sha256_state *state;
    TRY(fmt_sha256_open(&state, e));
    err_code rc = eng_export_stream(item, hash_sink, state, e);
    fmt_sha256_close(state, out);
    return rc;
}

typedef struct file_sink {
    fmt_safetensors_writer *w;
    progress progress;
} file_sink;

static void file_put(void *ctx, const void *data, size_t bytes)
{
    file_sink *f = ctx;
    fmt_safetensors_put(f->w, data, bytes);
    progress_add(&f->progress, bytes);
}

static json_t *export_metadata(const eng_weights *w, const eng_export_options *o)
{
    char id[FMT_SHA256_HEX], rank[32];
    eng_weights_identity(w, id);
    snprintf(rank, sizeof rank, "%d/%d", o->rank, o->n_ranks);
    return json_pack("{s:s,s:s,s:s,s:s}", "format", "sparktape-weights-1", "checkpoint", id, "rank", rank, "values",
                     o->decode ? "decoded" : "official");
}

err_code eng_export_write(const eng_weights *w, const eng_export_options *o, const eng_export_item *items,
                          size_t n, const char *path, bool quiet, err *e)
{
    file_sink f = { 0 };
    uint64_t total_bytes = 0;
    json_t *metadata = export_metadata(w, o);
    fmt_safetensors_decl *decl = mem_alloc(n, sizeof *decl);
    err_code rc = ERR_OK;
    if (!metadata || !decl) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory for its table of tensors", path);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        decl[i] = (fmt_safetensors_decl){ .name = items[i].spec.name, .dtype = items[i].dtype, .ndim = items[i].ndim };
        for (int32_t d = 0; d < items[i].ndim; d++) decl[i].shape[d] = items[i].shape[d];
        total_bytes += eng_export_bytes(&items[i]);
    }
    rc = fmt_safetensors_create(path, decl, n, metadata, &f.w, e);
    if (rc != ERR_OK) goto out;
    progress_begin(&f.progress, "writing", total_bytes, quiet);
    for (size_t i = 0; rc == ERR_OK && i < n; i++) rc = eng_export_stream(&items[i], file_put, &f, e);
    progress_end(&f.progress);
    if (rc == ERR_OK)
        rc = fmt_safetensors_finish(f.w, e);
    else
        fmt_safetensors_discard(f.w);
out:
    json_decref(metadata);
    free(decl);
    return rc;
}
