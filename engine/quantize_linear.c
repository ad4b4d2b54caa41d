#include "engine/quantize_linear.h"

#include <string.h>

#include "base/mem.h"

enum { BLOCK = FMT_EXL3_BLOCK, TILE = FMT_EXL3_TILE, WEIGHTS = FMT_EXL3_TILE_WEIGHTS };
static const float INV_SQRT_128 = 0x1.6a09e6p-4f; /* 0x3DB504F3 */

/* RMS of the codebook, and of the weights in parts of it that has the least error: measured on 256,000 normal weights and
 * more. Too small wastes codes, too large cuts the tails off: 3.45 is the largest value of mul1. Flat: 0.05 off costs half
 * a percent. */
static const float CODEBOOK_RMS[FMT_EXL3_CODEBOOKS] = { 1.24371f, 1.24411f, 1.00031f };
static const float BEST_RMS[FMT_EXL3_BITS_MAX + 1] = { 0, 1.10f, 1.00f, 0.95f, 0.90f, 0.88f, 0.85f, 0.82f, 0.80f };

/* What an fp16 scale may be: normal numbers, away from both ends. */
static const float SCALE_MIN = 0x1p-14f, SCALE_MAX = 0x1p14f;

/* The linear while it is worked on. */
typedef struct work {
    float *w;           /* [out, in]: one output's weights are neighbours */
    int32_t in, out;    /* padded */
    fp16 *suh, *svh;
    double *part;       /* [max(in, out)] sums of one row or column each */
} work;

static int32_t padded(int32_t n) { return (n + BLOCK - 1) / BLOCK * BLOCK; }

/* sign * size, rounded to fp16 within its good range; exactly 0 for 0. */
static fp16 scale_of(double size, float sign)
{
    if (size == 0) return 0;
    float s = (float)size;
    if (s < SCALE_MIN) s = SCALE_MIN;
    if (s > SCALE_MAX) s = SCALE_MAX;
    return fp16_from_f32(sign * s);
}

/* ---- steps 1 to 4 ---- */

static void decode(work *k, const krn_weight *w)
{
#pragma omp parallel for schedule(static)
    for (int32_t r = 0; r < w->n; r++) {
        float *row = k->w + (int64_t)r * k->in; /* [in], zeros behind w->k */
        double sum = 0;
        krn_weight_decode_f32(w, r, 1, row);
        for (int32_t i = 0; i < w->k; i++) sum += (double)row[i] * row[i];
        k->part[r] = sum;
    }
}

/* What the transform leaves of the RMS of a block of which only these are not zero. */
static double spread(const double *rms, int32_t n)
{
    int32_t used = 0;
    for (int32_t i = 0; i < n; i++) used += rms[i] > 0;
    return sqrt((double)used / BLOCK);
}

/* Step 1. n: outputs that are no padding. */
static void scale_outputs(work *k, int32_t n, int32_t n_in, uint64_t key)
{
    double mean = 0;
    int32_t used = 0;
    for (int32_t r = 0; r < n; r++) {
        k->part[r] = sqrt(k->part[r] / n_in);
        mean += k->part[r];
        used += k->part[r] > 0;
    }
    if (used) mean /= used;
    /* suh becomes about the mean; outside of 2^-10 .. 2^6 svh takes half of its exponent. */
    int exponent = 0;
    if (used && (mean < 0x1p-10 || mean > 0x1p6)) (void)frexp(mean, &exponent);
    exponent /= 2;
    for (int32_t first = 0; used && first < n; first += BLOCK) {
        const int32_t end = n - first < BLOCK ? n : first + BLOCK;
        const double share = spread(k->part + first, end - first);
        for (int32_t r = first; r < end; r++)
            k->svh[r] = scale_of(ldexp(share * k->part[r] / mean, exponent), eng_exl3_sign(key, r));
    }
#pragma omp parallel for schedule(static)
    for (int32_t r = 0; r < n; r++) {
        float *row = k->w + (int64_t)r * k->in;
        const float s = f32_from_fp16(k->svh[r]);
        if (s == 0) continue;
        for (int32_t i = 0; i < k->in; i++) row[i] /= s;
    }
}

/* Step 2: 128 rows, `BLOCK` of their columns. */
static void hadamard_outputs(float *w, int64_t row)
{
    for (int32_t stride = 1; stride < BLOCK; stride *= 2)
        for (int32_t r = 0; r < BLOCK; r++) {
            if (r & stride) continue;
            float *a = w + r * row, *b = a + stride * row;
            for (int32_t i = 0; i < BLOCK; i++) {
                const float x = a[i], y = b[i];
                a[i] = x + y;
                b[i] = x - y;
            }
        }
    for (int32_t r = 0; r < BLOCK; r++)
        for (int32_t i = 0; i < BLOCK; i++) w[r * row + i] *= INV_SQRT_128;
}

/* Steps 2 to 4, a block of inputs at a time: all outputs of them in order, so that sums depend on nothing else. */
static void turn(work *k, double target_rms, uint64_t key)
{
#pragma omp parallel for schedule(dynamic, 1)
    for (int32_t first = 0; first < k->in; first += BLOCK) {
        double rms[BLOCK] = { 0 };
        float scale[BLOCK];
        for (int32_t r = 0; r < k->out; r += BLOCK) hadamard_outputs(k->w + (int64_t)r * k->in + first, k->in);
        for (int32_t r = 0; r < k->out; r++) {
            const float *row = k->w + (int64_t)r * k->in + first;
            for (int32_t i = 0; i < BLOCK; i++) rms[i] += (double)row[i] * row[i];
        }
        for (int32_t i = 0; i < BLOCK; i++) rms[i] = sqrt(rms[i] / k->out);
        const double share = spread(rms, BLOCK) / target_rms;
        for (int32_t i = 0; i < BLOCK; i++) {
            k->suh[first + i] = scale_of(share * rms[i], eng_exl3_sign(key, first + i));
            scale[i] = rms[i] > 0 ? f32_from_fp16(k->suh[first + i]) : 1;
        }
        for (int32_t r = 0; r < k->out; r++) {
            float *row = k->w + (int64_t)r * k->in + first;
            for (int32_t i = 0; i < BLOCK; i++) row[i] /= scale[i];
            eng_exl3_hadamard(row);
        }
    }
}

/* ---- step 5 ---- */

/* Tile (i, j) in position order. */
static void tile_get(const float *w, int32_t in, int32_t i, int32_t j, float out[WEIGHTS])
{
    const float *corner = w + (int64_t)j * TILE * in + (int64_t)i * TILE;
    for (int32_t p = 0; p < WEIGHTS; p++) {
        const int32_t at = fmt_exl3_place(p);
        out[p] = corner[(int64_t)(at % TILE) * in + at / TILE];
    }
}

typedef struct job {
    const work *k;
    krn_exl3_code code;
    eng_encoder *encoder;
    double *error; /* [batch] */
    eng_exl3_tiles_done done;
    void *ctx;
    eng_exl3_linear *out;
} job;

/* Tiles [first, first + n) of the matrix, rows of tiles first, from w; n at most a batch. */
static err_code run_batch(job *q, const float *w, int64_t first, int64_t n, err *e)
{
    float *batch = eng_encoder_weights(q->encoder);
    const int32_t across = q->k->out / TILE;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < n; t++)
        tile_get(w, q->k->in, (int32_t)((first + t) / across), (int32_t)((first + t) % across), batch + t * WEIGHTS);
    TRY(eng_encoder_run(q->encoder, n, q->code, q->out->tiles + first * 16 * q->code.bits, q->error, e));
    return q->done ? q->done(q->ctx, n, e) : ERR_OK;
}

static err_code encode_alone(job *q, err *e)
{
    const int64_t all = (int64_t)(q->k->in / TILE) * (q->k->out / TILE), batch = eng_encoder_batch(q->encoder);
    for (int64_t first = 0; first < all; first += batch) {
        const int64_t n = all - first < batch ? all - first : batch;
        TRY(run_batch(q, q->k->w, first, n, e));
        for (int64_t t = 0; t < n; t++) q->out->error2 += q->error[t];
    }
    return ERR_OK;
}

/* r^T D r */
static double weighed(const float *pivot, const float r[TILE])
{
    double sum = 0;
    for (int32_t a = 0; a < TILE; a++)
        for (int32_t b = 0; b < TILE; b++) sum += (double)pivot[a * TILE + b] * r[a] * r[b];
    return sum;
}

/* row[0 .. 16 b) += sum over the 16 rows c of block b of by[c] * L[c]. */
static void take_over(const eng_hessian *h, int32_t b, const float by[TILE], float *row)
{
    const float *l = h->lower + (int64_t)b * TILE * h->n;
    for (int32_t c = 0; c < TILE; c += 4)
        for (int32_t i = 0; i < b * TILE; i++) {
            const float *at = l + (int64_t)c * h->n + i;
            row[i] += by[c] * at[0] + by[c + 1] * at[h->n] + by[c + 2] * at[2 * (int64_t)h->n] +
                      by[c + 3] * at[3 * (int64_t)h->n];
        }
}

/* tr(W^T H W) of all outputs. scratch: one more matrix like w. */
static double weight_proxy(const work *k, const eng_hessian *h, float *scratch)
{
    double sum = 0;
    memcpy(scratch, k->w, (size_t)k->in * (size_t)k->out * sizeof *scratch);
    for (int32_t r = 0; r < k->out; r++) k->part[r] = 0;
    for (int32_t b = k->in / TILE - 1; b >= 0; b--) {
#pragma omp parallel for schedule(static)
        for (int32_t r = 0; r < k->out; r++) {
            float *row = scratch + (int64_t)r * k->in;
            k->part[r] += weighed(h->pivot + (int64_t)b * WEIGHTS, row + b * TILE);
            take_over(h, b, k->w + (int64_t)r * k->in + b * TILE, row);
        }
    }
    for (int32_t r = 0; r < k->out; r++) sum += k->part[r];
    return sum;
}

/* Row b of tiles as weights, [out, 16]. */
static void tiles_decode(const job *q, int32_t b, float *out)
{
    const float *table = fmt_exl3_table(q->code.codebook);
    const int32_t across = q->k->out / TILE;
#pragma omp parallel for schedule(static)
    for (int32_t j = 0; j < across; j++) {
        uint16_t state[WEIGHTS];
        fmt_exl3_unpack(q->out->tiles + ((int64_t)b * across + j) * 16 * q->code.bits, q->code.bits, state);
        for (int32_t p = 0; p < WEIGHTS; p++) {
            const int32_t at = fmt_exl3_place(p);
            out[((int64_t)j * TILE + at % TILE) * TILE + at / TILE] = table[state[p]];
        }
    }
}

static err_code encode_with(job *q, const eng_hessian *h, err *e)
{
    const work *k = q->k;
    const int32_t across = k->out / TILE;
    const int64_t batch = eng_encoder_batch(q->encoder);
    double proxy = 0;
    CHECK(h->n == k->in);
    /* What the quantizer gets: the weights and the errors that they took over. */
    float *input = mem_alloc_aligned((size_t)k->in * (size_t)k->out, sizeof *input);
    float *chosen = mem_alloc_aligned((size_t)k->out, TILE * sizeof *chosen);
    err_code rc = input && chosen ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the errors of %d x %d weights", k->out,
                                                     k->in);
    if (rc != ERR_OK) goto out;
    const double weights = weight_proxy(k, h, input);
    memcpy(input, k->w, (size_t)k->in * (size_t)k->out * sizeof *input);
    for (int32_t r = 0; r < k->out; r++) k->part[r] = 0;
    for (int32_t b = k->in / TILE - 1; b >= 0; b--) {
        for (int64_t first = 0; first < across; first += batch) {
            rc = run_batch(q, input, (int64_t)b * across + first, across - first < batch ? across - first : batch, e);
            if (rc != ERR_OK) goto out;
        }
        tiles_decode(q, b, chosen);
        double error2 = 0;
#pragma omp parallel for schedule(static)
        for (int32_t r = 0; r < k->out; r++) {
            const float *want = k->w + (int64_t)r * k->in + b * TILE, *got = chosen + (int64_t)r * TILE;
            float *row = input + (int64_t)r * k->in, left[TILE], wrong[TILE];
            for (int32_t i = 0; i < TILE; i++) {
                left[i] = row[b * TILE + i] - got[i];
                wrong[i] = want[i] - got[i];
            }
            k->part[r] += weighed(h->pivot + (int64_t)b * WEIGHTS, left);
            take_over(h, b, wrong, row);
        }
        for (int32_t r = 0; r < k->out; r++)
            for (int32_t i = 0; i < TILE; i++) {
                const double d = (double)k->w[(int64_t)r * k->in + b * TILE + i] - chosen[(int64_t)r * TILE + i];
                error2 += d * d;
            }
        q->out->error2 += error2;
    }
    for (int32_t r = 0; r < k->out; r++) proxy += k->part[r];
    q->out->proxy = weights > 0 ? proxy / weights : 0;
out:
    free(chosen);
    free(input);
    return rc;
}

/* ---- all of it ---- */

static double sum_of_squares(const work *k)
{
    double sum = 0;
#pragma omp parallel for schedule(static)
    for (int32_t r = 0; r < k->out; r++) {
        double mine = 0;
        for (int32_t i = 0; i < k->in; i++) mine += (double)k->w[(int64_t)r * k->in + i] * k->w[(int64_t)r * k->in + i];
        k->part[r] = mine;
    }
    for (int32_t r = 0; r < k->out; r++) sum += k->part[r];
    return sum;
}

err_code eng_exl3_quantize(const krn_weight *w, krn_exl3_code code, eng_exl3_signs signs, eng_encoder *encoder,
                           const eng_hessian *hessian, eng_exl3_tiles_done done, void *ctx, eng_exl3_linear *out, err *e)
{
    work k = { .in = padded(w->k), .out = padded(w->n) };
    const size_t n = (size_t)k.in * (size_t)k.out;
    const double target_rms = (double)BEST_RMS[code.bits] * CODEBOOK_RMS[code.codebook];
    *out = (eng_exl3_linear){ .in = k.in, .out = k.out };
    job q = { &k, code, encoder, NULL, done, ctx, out };
    k.w = mem_alloc_aligned(n, sizeof *k.w);
    k.part = mem_alloc((size_t)(k.in > k.out ? k.in : k.out), sizeof *k.part);
    out->tiles = mem_alloc(n / WEIGHTS, (size_t)fmt_exl3_tile_bytes(code.bits));
    out->suh = k.suh = mem_alloc((size_t)k.in, sizeof *k.suh);
    out->svh = k.svh = mem_alloc((size_t)k.out, sizeof *k.svh);
    q.error = mem_alloc((size_t)eng_encoder_batch(encoder), sizeof *q.error);
    err_code rc = ERR_OK;
    if (!k.w || !k.part || !out->tiles || !k.suh || !k.svh || !q.error) {
        rc = err_set(e, ERR_NOMEM, "no memory to quantize %d x %d weights", w->n, w->k);
        goto out;
    }
    decode(&k, w);
    scale_outputs(&k, w->n, w->k, signs.out);
    turn(&k, target_rms, signs.in);
    out->weight2 = sum_of_squares(&k);
    /* Each weight is about target_rms by now, or less; more only where a scale was cut off. NaN: a transform overflowed. */
    if (!(out->weight2 <= 2 * (double)n * target_rms * target_rms)) {
        rc = err_set(e, ERR_INPUT, "the weights are too large for fp16 scales: wanted an RMS below %.0e",
                     (double)SCALE_MAX * SCALE_MAX);
        goto out;
    }
    rc = hessian ? encode_with(&q, hessian, e) : encode_alone(&q, e);
out:
    if (rc != ERR_OK) eng_exl3_linear_fini(out);
    free(k.w);
    free(k.part);
    free(q.error);
    return rc;
}

void eng_exl3_linear_fini(eng_exl3_linear *x)
{
    free(x->tiles);
    free(x->suh);
    free(x->svh);
    *x = (eng_exl3_linear){ 0 };
}
