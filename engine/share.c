#include "engine/share.h"

#include "formats/exl3.h"
#include "formats/number.h"

#include <string.h>

enum { GROUP = FMT_QDQ_GROUP };

/* [first, first + count) in units of `per`; a last unit may be partly filled. */
static void coarser(int64_t *first, int64_t *count, int64_t per)
{
    int64_t end = (*first + *count + per - 1) / per;
    *first /= per;
    *count = end - *first;
}

/* The whole 128-blocks that [first, first + count) touches, in units of `unit` elements. */
static void whole_blocks(int64_t *first, int64_t *count, int64_t unit)
{
    coarser(first, count, FMT_EXL3_BLOCK);
    *first *= FMT_EXL3_BLOCK / unit;
    *count *= FMT_EXL3_BLOCK / unit;
}

/* rows: of the official weight (outputs), cols: its inputs. */
static eng_share exl3_share(const eng_tensor_spec *t, int64_t row0, int64_t rows, int64_t col0, int64_t cols)
{
    const bool trellis = t->exl3 == ENG_EXL3_TRELLIS, of_in = t->exl3 == ENG_EXL3_SUH || t->exl3 == ENG_EXL3_SU;
    const bool signs = t->exl3 == ENG_EXL3_SU || t->exl3 == ENG_EXL3_SV, marker = t->exl3 >= ENG_EXL3_MCG;
    eng_share s = { .dtype = t->dtype, .ndim = t->ndim, .spans = 1 };
    const int64_t elem_bytes = fmt_dtype_bytes(t->dtype), unit = trellis || signs ? FMT_EXL3_TILE : 1;
    whole_blocks(&row0, &rows, unit);
    whole_blocks(&col0, &cols, unit);
    if (marker) {
        s.shape[0] = t->shape[0];
        s.shape[1] = s.shape[2] = 1;
        s.span_bytes = s.stride_bytes = (uint64_t)(t->ndim ? t->shape[0] * elem_bytes : elem_bytes);
        s.whole = true;
        return s;
    }
    if (!trellis) {
        s.row0 = of_in ? col0 : row0;
        s.shape[0] = of_in ? cols : rows;
        s.shape[1] = s.shape[2] = 1;
        s.stride_bytes = s.span_bytes = (uint64_t)(s.shape[0] * elem_bytes);
        s.offset_bytes = (uint64_t)(s.row0 * elem_bytes);
        s.whole = s.shape[0] == t->shape[0];
        return s;
    }
    const int64_t tile_bytes = t->shape[2] * elem_bytes;
    const bool wide = rows == t->shape[1];
    s.row0 = col0;
    s.col0 = row0;
    s.shape[0] = cols;
    s.shape[1] = rows;
    s.shape[2] = t->shape[2];
    s.stride_bytes = (uint64_t)(t->shape[1] * tile_bytes);
    s.offset_bytes = (uint64_t)s.row0 * s.stride_bytes + (uint64_t)(s.col0 * tile_bytes);
    s.spans = wide ? 1 : cols;
    s.span_bytes = (uint64_t)(rows * tile_bytes * (wide ? cols : 1));
    s.whole = wide && cols == t->shape[0];
    return s;
}

eng_share eng_share_of(const eng_config *c, const eng_tensor_spec *t, int32_t rank, int32_t n_ranks)
{
    const eng_wkind *kind = eng_wkind_of(t->wid);
    int32_t n, k;
    eng_wid_shape(c, t->wid, &n, &k);
    eng_range cut = eng_cut_range(c, t->wid, rank, n_ranks);
    bool by_cols = kind->cut == ENG_CUT_COLS;
    int64_t row0 = by_cols ? 0 : cut.first, rows = by_cols ? n : cut.count;
    int64_t col0 = by_cols ? cut.first : 0, cols = by_cols ? cut.count : k;

    if (t->exl3) return exl3_share(t, row0, rows, col0, cols);
    if (kind->wclass == ENG_WC_FP4) coarser(&col0, &cols, t->is_scale ? GROUP : 2);
    if (kind->wclass == ENG_WC_FP8 && t->is_scale) {
        coarser(&row0, &rows, GROUP);
        coarser(&col0, &cols, GROUP);
    }
    int64_t stored_cols = t->ndim > 1 ? t->shape[1] : 1;
    uint64_t elem_bytes = fmt_dtype_bytes(t->dtype);
    eng_share s = { .dtype = t->dtype, .ndim = t->ndim, .row0 = row0, .col0 = col0 };
    s.shape[0] = rows;
    s.shape[1] = t->ndim > 1 ? cols : 1;
    s.shape[2] = 1;
    s.stride_bytes = (uint64_t)stored_cols * elem_bytes;
    s.offset_bytes = (uint64_t)row0 * s.stride_bytes + (uint64_t)col0 * elem_bytes;
    bool wide = cols == stored_cols; /* whole rows: one run */
    s.spans = wide ? 1 : rows;
    s.span_bytes = (uint64_t)cols * elem_bytes * (uint64_t)(wide ? rows : 1);
    s.whole = wide && rows == t->shape[0];
    return s;
}

uint64_t eng_share_bytes(const eng_share *s) { return (uint64_t)s->spans * s->span_bytes; }

err_code eng_share_sha256(const eng_share *s, const void *data, fmt_sha256 *out, err *e)
{
    fmt_sha256_state *state;
    TRY(fmt_sha256_open(&state, e));
    const uint8_t *at = (const uint8_t *)data + s->offset_bytes;
    for (int64_t i = 0; i < s->spans; i++, at += s->stride_bytes) fmt_sha256_add(state, at, (size_t)s->span_bytes);
    fmt_sha256_close(state, out);
    return ERR_OK;
}

/* ---- facts ---- */

/* Whether a float format with that many explicit mantissa bits, lowest normal exponent and largest value holds v. */
static bool holds(double v, int mantissa_bits, int exponent_min, double max)
{
    v = fabs(v);
    if (v > max) return false;
    int exponent = ilogb(v);
    if (exponent < exponent_min) exponent = exponent_min;
    double units = ldexp(v, mantissa_bits - exponent);
    return units == floor(units);
}

static void facts_add(eng_facts *f, double v, uint64_t count)
{
    int64_t n = (int64_t)count;
    f->elems += n;
    if (isnan(v)) { f->nans += n; return; }
    if (isinf(v)) { f->infs += n; return; }
    if (v == 0) { f->zeros += n; return; }
    double a = fabs(v);
    if (f->min_abs == 0 || a < f->min_abs) f->min_abs = a;
    if (a > f->max_abs) f->max_abs = a;
    if (!holds(v, 7, -126, 0x1.fep127)) f->inexact_bf16 += n;
    if (!holds(v, 10, -14, 65504)) f->inexact_fp16 += n;
}

static double e8m0_value(int b) { return b == FMT_E8M0_NAN ? NAN : ldexp(1, b - FMT_E8M0_BIAS); }

/* Counts code bytes under their scale: bins[scale * 256 + code]. group_bytes: code bytes that share a scale in a row;
 * row_group: rows that share a row of scales. */
static void count_codes(const eng_share *s, const uint8_t *data, const uint8_t *scale, int64_t scale_cols, int group_bytes,
                        int row_group, uint64_t *bins)
{
    for (int64_t r = s->row0; r < s->row0 + s->shape[0]; r++) {
        const uint8_t *row = data + r * (int64_t)s->stride_bytes, *row_scale = scale + r / row_group * scale_cols;
        for (int64_t i = s->col0, end; i < s->col0 + s->shape[1]; i = end) {
            uint64_t *bin = bins + row_scale[i / group_bytes] * 256;
            end = i - i % group_bytes + group_bytes;
            if (end > s->col0 + s->shape[1]) end = s->col0 + s->shape[1];
            for (int64_t j = i; j < end; j++) bin[row[j]]++;
        }
    }
}

static void facts_of_codes(const uint64_t *bins, bool fp4, eng_facts *out)
{
    for (int b = 0; b < 256; b++)
        for (int code = 0; code < 256; code++) {
            uint64_t n = bins[b * 256 + code];
            if (!n) continue;
            if (fp4) {
                facts_add(out, (double)FMT_E2M1_VALUE[code & 15] * e8m0_value(b), n);
                facts_add(out, (double)FMT_E2M1_VALUE[code >> 4] * e8m0_value(b), n);
            } else {
                facts_add(out, (double)FMT_E4M3_VALUE[code] * e8m0_value(b), n);
            }
        }
}

/* Counts the states of a share's tiles. */
static void count_states(const eng_share *s, const uint8_t *first, uint64_t *bins)
{
    const int32_t bits = (int32_t)(s->shape[2] / FMT_EXL3_TILE), tile_bytes = fmt_exl3_tile_bytes(bits);
    uint16_t words[FMT_EXL3_TILE * FMT_EXL3_BITS_MAX], state[FMT_EXL3_TILE_WEIGHTS];
    for (int64_t i = 0; i < s->spans; i++, first += s->stride_bytes)
        for (uint64_t at = 0; at < s->span_bytes; at += (uint64_t)tile_bytes) {
            memcpy(words, first + at, (size_t)tile_bytes); /* a mapped shard need not be aligned */
            fmt_exl3_unpack(words, bits, state);
            for (int p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) bins[state[p]]++;
        }
}

static void facts_of_exl3(const eng_tensor_spec *t, const eng_share *s, const uint8_t *first, uint64_t *bins,
                          eng_facts *out)
{
    if (t->exl3 >= ENG_EXL3_MCG) return;
    if (t->exl3 == ENG_EXL3_TRELLIS) {
        const float *value = fmt_exl3_table((fmt_exl3_codebook)t->codebook);
        count_states(s, first, bins);
        for (int v = 0; v < ENG_FACTS_BINS; v++)
            if (bins[v]) facts_add(out, (double)value[v], bins[v]);
        return;
    }
    for (int64_t i = 0; i < s->shape[0]; i++) {
        uint16_t v;
        memcpy(&v, first + 2 * i, sizeof v);
        if (t->exl3 == ENG_EXL3_SU || t->exl3 == ENG_EXL3_SV)
            for (int b = 0; b < 16; b++) facts_add(out, v >> b & 1 ? -1 : 1, 1);
        else facts_add(out, (double)f32_from_fp16(v), 1);
    }
}

void eng_facts_of(const eng_config *c, const eng_tensor_spec *t, const eng_share *s, const void *data, const uint8_t *scale,
                  uint64_t *bins, eng_facts *out)
{
    *out = (eng_facts){ 0 };
    eng_wclass wclass = eng_wkind_of(t->wid)->wclass;
    const uint8_t *first = (const uint8_t *)data + s->offset_bytes;
    int64_t elems = (int64_t)(s->span_bytes / fmt_dtype_bytes(s->dtype));
    memset(bins, 0, ENG_FACTS_BINS * sizeof *bins);

    if (t->exl3) {
        facts_of_exl3(t, s, first, bins, out);
    } else if (t->is_scale) {
        for (int64_t i = 0; i < s->spans; i++, first += s->stride_bytes)
            for (int64_t j = 0; j < elems; j++) bins[first[j]]++;
        for (int b = 0; b < 256; b++)
            if (bins[b]) facts_add(out, e8m0_value(b), bins[b]);
    } else if (wclass == ENG_WC_FP4 || wclass == ENG_WC_FP8) {
        int32_t n, k;
        eng_wid_shape(c, t->wid, &n, &k);
        bool fp4 = wclass == ENG_WC_FP4;
        count_codes(s, data, scale, (k + GROUP - 1) / GROUP, fp4 ? GROUP / 2 : GROUP, fp4 ? 1 : GROUP, bins);
        facts_of_codes(bins, fp4, out);
    } else if (wclass == ENG_WC_BF16) {
        for (int64_t i = 0; i < s->spans; i++, first += s->stride_bytes)
            for (int64_t j = 0; j < elems; j++) {
                bf16 v;
                memcpy(&v, first + 2 * j, sizeof v); /* a mapped shard need not be aligned */
                bins[v]++;
            }
        for (int v = 0; v < ENG_FACTS_BINS; v++)
            if (bins[v]) facts_add(out, (double)f32_from_bf16((bf16)v), bins[v]);
    } else {
        for (int64_t i = 0; i < s->spans; i++, first += s->stride_bytes)
            for (int64_t j = 0; j < elems; j++) {
                float v;
                memcpy(&v, first + 4 * j, sizeof v);
                facts_add(out, (double)v, 1);
            }
    }
}
