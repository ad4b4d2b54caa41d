/* What the test.c of a bundle works with: its data, the ops that take more than one call of a kernel twin, and the
 * comparison of a result with the recorded one. `sparktape reduce` writes this file into a bundle as bundle.h; nothing else
 * includes it.
 *
 * data/NAME.npy holds a value that the op reads, or a weight; NAME.expected.npy what was recorded, NAME.reference.npy what
 * the twin made (float64 sums) when the bundle was; NAME.low.npy and NAME.high.npy where each element may lie before its
 * last rounding, in any order of f32 sums; NAME.allowed.npy, of integers, the other number that may stand there. bf16 is
 * stored as its bits. */
#ifndef REDUCE_BUNDLE_H
#define REDUCE_BUNDLE_H

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/act_qdq.h"
#include "kernels/argmax.h"
#include "kernels/attention.h"
#include "kernels/combine.h"
#include "kernels/confidence.h"
#include "kernels/embed.h"
#include "kernels/gate.h"
#include "kernels/linear.h"
#include "kernels/markov.h"
#include "kernels/mhc.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "kernels/exl3_loops.h"
#include "kernels/row_loops.h"
#include "kernels/simd_loops.h"
#include "replay/judge_group.h"

/* The twins' bits do not depend on the instruction set: here they run without one of their own. */
krn_isa krn_isa_get(void);
krn_isa krn_isa_get(void) { return KRN_ISA_SCALAR; }
const krn_loops KRN_LOOPS_AVX2, KRN_LOOPS_AVX512;
const krn_exl3_loops KRN_EXL3_AVX2, KRN_EXL3_AVX512;
const krn_row_loops *krn_row_loops_get(void) { return &KRN_ROWS_SCALAR; }

/* ---- data ---- */

/* Kept until the process ends, and reachable, so that no leak checker complains. */
__attribute__((unused)) static void *bundle_room(size_t bytes)
{
    typedef struct room { struct room *before; max_align_t data[]; } room;
    static room *last;
    room *p = calloc(1, sizeof *p + bytes + 1);
    if (p) {
        p->before = last;
        last = p;
        return p->data;
    }
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(2);
}

/* The array of data/NAME.npy, which has so many bytes. */
__attribute__((unused)) static void *bundle_load(const char *name, size_t bytes)
{
    char path[300];
    unsigned char head[10];
    snprintf(path, sizeof path, "data/%s.npy", name);
    FILE *f = fopen(path, "rb");
    void *p = bundle_room(bytes);
    bool fine = f && fread(head, 1, 10, f) == 10 && fseek(f, 10 + (head[8] | head[9] << 8), SEEK_SET) == 0 &&
                fread(p, 1, bytes, f) == bytes && fgetc(f) == EOF;
    if (f) fclose(f);
    if (fine) return p;
    fprintf(stderr, "%s: cannot be read, or does not hold %zu bytes (run the test in the bundle's folder)\n", path, bytes);
    exit(2);
}

/* A matrix [n, k]. */
__attribute__((unused)) static krn_weight bundle_weight(const char *name, krn_wformat format, int32_t n, int32_t k)
{
    krn_weight w = { .format = format, .n = n, .k = k };
    char scale[200];
    size_t groups = (size_t)k / 32, rows = format == KRN_W_FP8 ? ((size_t)n + 31) / 32 : (size_t)n;
    const int64_t nibbles[] = { [KRN_W_FP8] = 2, [KRN_W_FP4] = 1, [KRN_W_BF16] = 4, [KRN_W_F32] = 8 };
    w.row_bytes = k * nibbles[format] / 2;
    w.data = bundle_load(name, (size_t)n * (size_t)w.row_bytes);
    if (format != KRN_W_FP8 && format != KRN_W_FP4) return w;
    snprintf(scale, sizeof scale, "%s.scale", name);
    w.scale = bundle_load(scale, rows * groups);
    w.scale_row_bytes = (int64_t)groups;
    return w;
}

/* An EXL3 matrix [n, k], of whole blocks: tiles NAME.npy [inputs/16, outputs/16, 16 * bits], NAME.suh.npy, NAME.svh.npy. */
__attribute__((unused)) static krn_weight bundle_exl3(const char *name, int32_t bits, fmt_exl3_codebook codebook,
                                                      int32_t n, int32_t k)
{
    const size_t inputs = ((size_t)k + 127) / 128 * 128, outputs = ((size_t)n + 127) / 128 * 128;
    const int64_t block = (int64_t)fmt_exl3_tile_bytes(bits) * 8;
    krn_weight w = { .format = KRN_W_EXL3, .n = n, .k = k, .row_bytes = block * (int64_t)(outputs / 128) };
    char part[200];
    w.data = bundle_load(name, inputs / 16 * (size_t)w.row_bytes);
    w.exl3 = (krn_exl3){ .bits = bits, .codebook = (int32_t)codebook, .block_bytes = block };
    snprintf(part, sizeof part, "%s.suh", name);
    w.exl3.suh = bundle_load(part, inputs * 2);
    snprintf(part, sizeof part, "%s.svh", name);
    w.exl3.svh = bundle_load(part, outputs * 2);
    return w;
}

/* ---- ops ---- */

/* A sum over the columns of w in parts, one a rank: each part's f32 sum is made alone, and they are added by rank. */
__attribute__((unused)) static void bundle_parts(const bf16 *x, int32_t rows, const krn_weight *w, int32_t parts,
                                                 krn_acc acc, float *y)
{
    const int64_t n = (int64_t)rows * w->n;
    float *part = bundle_room((size_t)n * sizeof *part);
    for (int32_t p = 0; p < parts; p++) {
        const int32_t first = (int32_t)((int64_t)w->k * p / parts), end = (int32_t)((int64_t)w->k * (p + 1) / parts);
        const krn_weight slice = krn_weight_slice(w, 0, w->n, first, end - first);
        krn_linear_ref(x + first, w->k, rows, &slice, acc, KRN_OUT_F32, p ? part : y, w->n);
        if (p) krn_add_f32_ref(y, part, y, n);
    }
}

/* Row r's pick j is multiplied by the weight of expert ids[r][j], which is one of expert[n_experts]. x has a row for every
 * row, or for every pick. parts: as bundle_parts; more than one of f32 results alone. */
__attribute__((unused)) static void bundle_experts(const bf16 *x, bool x_per_pick, const int32_t *ids, int32_t rows,
                                                   int32_t k, const int32_t *expert, const krn_weight *w,
                                                   int32_t n_experts, krn_acc acc, int32_t parts, krn_out out, void *y)
{
    for (int32_t i = 0; i < rows * k; i++)
        for (int32_t e = 0; e < n_experts; e++) {
            if (expert[e] != ids[i]) continue;
            const bf16 *row = x + (int64_t)(x_per_pick ? i : i / k) * w[e].k;
            unsigned char *to = (unsigned char *)y + (size_t)i * (size_t)w[e].n * (out == KRN_OUT_F32 ? 4 : 2);
            if (parts > 1) bundle_parts(row, 1, &w[e], parts, acc, (float *)(void *)to);
            else krn_linear_ref(row, w[e].k, 1, &w[e], acc, out, to, w[e].n);
        }
}

/* Each group of heads with its own rows of the weight. */
__attribute__((unused)) static void bundle_grouped_linear(const bf16 *x, int32_t rows, const krn_weight *w, int32_t o_lora,
                                                          krn_acc acc, bf16 *y)
{
    int32_t groups = w->n / o_lora;
    for (int32_t g = 0; g < groups; g++) {
        krn_weight part = krn_weight_slice(w, g * o_lora, o_lora, 0, w->k);
        krn_linear_ref(x + (int64_t)g * w->k, (int64_t)groups * w->k, rows, &part, acc, KRN_OUT_BF16,
                       y + (int64_t)g * o_lora, w->n);
    }
}

/* before [batch, n_out]: the row of embed that position i comes after. head is the whole vocabulary. control: the control's
 * policy, which rounds term and sum to bf16 (kernels/markov.h). */
__attribute__((unused)) static void bundle_markov(const float *logits, const bf16 *embed, int32_t n_embed, const bf16 *head,
                                                  int32_t vocab, int32_t markov_rank, int32_t batch, int32_t block,
                                                  int32_t n_out, const int32_t *before, bool control, krn_acc acc,
                                                  float *biased, int32_t *drafts)
{
    const krn_markov_table rounding = { .bf16 = control }; /* no term is kept */
    int32_t previous[64] = { 0 }; /* as the twin reads it: of position i at i - 1, of the first one as the anchor */
    int32_t anchor[8] = { 0 };
    krn_best best[8];
    for (int32_t b = 0; b < batch; b++)
        for (int32_t i = 0; i < n_out; i++) *(i ? &previous[b * n_out + i - 1] : &anchor[b]) = before[b * n_out + i];
    for (int32_t i = 0; i < n_out; i++) {
        krn_markov_step_ref(logits, embed, head, n_embed, markov_rank, vocab, 0, batch, block, n_out, i, anchor, previous,
                            control ? &rounding : NULL, acc, biased, best);
        krn_markov_pick_ref(best, 1, batch, n_out, i, drafts);
    }
}

__attribute__((unused)) static void bundle_confidence(const bf16 *hidden, int32_t dim, const bf16 *embed,
                                                      int32_t markov_rank, const bf16 *w, int32_t batch, int32_t block,
                                                      int32_t n_out, const int32_t *before, krn_acc acc, float *y)
{
    for (int32_t b = 0; b < batch; b++)
        for (int32_t i = 0; i < n_out; i++)
            y[b * n_out + i] = krn_confidence_ref(hidden + ((int64_t)b * block + i) * dim, dim,
                                                  embed + (int64_t)before[b * n_out + i] * markov_rank, markov_rank, w,
                                                  acc);
}

/* ---- comparison ---- */

typedef enum bundle_dtype { BUNDLE_BF16, BUNDLE_F32, BUNDLE_I32 } bundle_dtype;

/* How elements are judged: bits alone; by the interval before the last rounding; by that before the QDQ, 32 under a scale;
 * an integer that must be one of two; not at all where bits differ (too much is hidden between the recorded values). */
typedef enum bundle_rule { BUNDLE_BITS, BUNDLE_SPAN, BUNDLE_CODES, BUNDLE_ALLOWED, BUNDLE_UNJUDGED } bundle_rule;

typedef struct bundle_value {
    const char *name;
    bundle_dtype dtype;
    bundle_rule rule;
    int64_t n, first;    /* elements here; index of the first of them in the whole value */
    int ndim;
    int64_t shape[3];    /* of the whole value */
} bundle_value;

static uint32_t bundle_bits(const bundle_value *v, const void *data, int64_t i)
{
    return v->dtype == BUNDLE_BF16 ? ((const uint16_t *)data)[i] : ((const uint32_t *)data)[i];
}

static double bundle_number(const bundle_value *v, const void *data, int64_t i)
{
    if (v->dtype == BUNDLE_I32) return (double)((const int32_t *)data)[i];
    return (double)f32_from_bits(bundle_bits(v, data, i) << (v->dtype == BUNDLE_BF16 ? 16 : 0));
}

static void *bundle_load_as(const char *name, const char *what, size_t bytes)
{
    char text[200];
    snprintf(text, sizeof text, "%s.%s", name, what);
    return bundle_load(text, bytes);
}

/* "index 133 [1, 5]" */
static void bundle_print_index(const bundle_value *v, int64_t i)
{
    int64_t at = i + v->first, below = 1;
    printf("index %" PRId64 " [", at);
    for (int d = 1; d < v->ndim; d++) below *= v->shape[d];
    for (int d = 0; d < v->ndim; d++) {
        printf("%s%" PRId64, d ? ", " : "", at / below);
        at %= below;
        if (d + 1 < v->ndim) below /= v->shape[d + 1];
    }
    printf("]");
}

/* How far element i is from where it may lie: up to 1 some order of sums gives it. scale: of its group, CODES alone. */
static double bundle_distance(const bundle_value *v, const void *got, const void *twin, const krn_span *span,
                              const int32_t *allowed, double scale, int64_t i)
{
    if (bundle_bits(v, got, i) == bundle_bits(v, twin, i)) return 0;
    if (v->rule == BUNDLE_ALLOWED) return ((const int32_t *)got)[i] == allowed[i] ? 1 : (double)INFINITY;
    if (v->rule == BUNDLE_CODES) return rpl_group_distance(((const bf16 *)got)[i], span[i], scale);
    if (v->rule != BUNDLE_SPAN) return (double)INFINITY;
    if (isnan(bundle_number(v, got, i)) && isnan(bundle_number(v, twin, i))) return 0;
    return krn_span_distance(span[i], v->dtype == BUNDLE_BF16 ? krn_preimage_bf16(((const bf16 *)got)[i])
                                                               : krn_span_point(bundle_number(v, got, i)));
}

/* Compares what was recorded with what the twin has just made. Returns 1 when they differ beyond the order of sums, or the
 * twin here is not the one that made the reference. */
static int bundle_compare(const bundle_value *v, const void *twin)
{
    const size_t bytes = (size_t)v->n * (v->dtype == BUNDLE_BF16 ? 2 : 4), wide = (size_t)v->n * sizeof(double);
    void *got = bundle_load_as(v->name, "expected", bytes), *reference = bundle_load_as(v->name, "reference", bytes);
    const int32_t *allowed = v->rule == BUNDLE_ALLOWED ? bundle_load_as(v->name, "allowed", bytes) : NULL;
    krn_span *span = NULL;
    int64_t n_differ = 0, n_illegal = 0, n_twin = 0, first = -1, worst = -1;
    double worst_ratio = 0, scale = 0;
    if (v->rule == BUNDLE_SPAN || v->rule == BUNDLE_CODES) {
        const double *low = bundle_load_as(v->name, "low", wide), *high = bundle_load_as(v->name, "high", wide);
        span = bundle_room((size_t)v->n * sizeof *span);
        for (int64_t i = 0; i < v->n; i++) span[i] = (krn_span){ low[i], high[i] };
    }
    for (int64_t i = 0; i < v->n; i++) {
        if (v->rule == BUNDLE_CODES && i % 32 == 0) scale = rpl_group_scale_of((const bf16 *)got + i, span + i).scale;
        n_twin += bundle_bits(v, twin, i) != bundle_bits(v, reference, i);
        if (bundle_bits(v, got, i) == bundle_bits(v, twin, i)) continue;
        double d = bundle_distance(v, got, twin, span, allowed, scale, i);
        n_differ++;
        if (d <= 1) continue;
        double ratio = isnan(d) ? (double)INFINITY : d;
        n_illegal++;
        if (first < 0) first = i;
        if (worst < 0 || ratio > worst_ratio) worst = i, worst_ratio = ratio;
    }
    printf("%s: ", v->name);
    if (n_twin) printf("THE TWIN HERE is not the one of the reference: %" PRId64 " elements; ", n_twin);
    if (n_differ == 0) printf("same, %" PRId64 " elements\n", v->n);
    else if (n_illegal == 0)
        printf("same but for the order of sums: %" PRId64 " of %" PRId64 " elements differ, each within its bound\n",
               n_differ, v->n);
    else {
        printf("DIFFERS, %" PRId64 " of %" PRId64 " elements%s; first ", n_illegal, v->n,
               v->rule == BUNDLE_UNJUDGED ? " (bits; they cannot be judged)" : "");
        bundle_print_index(v, first);
        printf(", worst ");
        bundle_print_index(v, worst);
        printf(": recorded %.9g, twin %.9g", bundle_number(v, got, worst), bundle_number(v, twin, worst));
        if (span) printf(", allowed %.9g to %.9g before rounding", span[worst].lo, span[worst].hi);
        printf("\n");
    }
    return n_illegal > 0 || n_twin > 0;
}

#endif
