#include "kernels/linear.h"

#include "kernels/exl3_loops.h"
#include "kernels/simd_loops.h"

/* Below this many multiply-adds, waking threads costs more than it saves. */
enum { PARALLEL_MACS = 1 << 17 };

static const krn_loops *loops_get(void)
{
#if defined(__x86_64__)
    static const krn_loops *const LOOPS[KRN_ISA_COUNT] = { &KRN_LOOPS_SCALAR, &KRN_LOOPS_AVX2, &KRN_LOOPS_AVX512 };
    return LOOPS[krn_isa_get()];
#else
    return &KRN_LOOPS_SCALAR;
#endif
}

krn_weight krn_weight_slice(const krn_weight *w, int32_t n0, int32_t n, int32_t k0, int32_t k)
{
    CHECK(n0 >= 0 && n >= 1 && n <= w->n - n0 && k0 >= 0 && k >= 1 && k <= w->k - k0);
    krn_weight s = *w;
    const uint8_t *row = krn_weight_row(w, n0);
    s.n = n;
    s.k = k;
    switch (w->format) {
    case KRN_W_FP8:
        CHECK(k0 % 32 == 0 && k % 32 == 0);
        s.data = row + k0;
        s.scale_row0 = (w->scale_row0 + n0) % 32;
        break;
    case KRN_W_FP4:
        CHECK(k0 % 32 == 0 && k % 32 == 0);
        s.data = row + k0 / 2;
        break;
    case KRN_W_BF16: s.data = row + (int64_t)k0 * 2; break;
    case KRN_W_F32: s.data = row + (int64_t)k0 * 4; break;
    case KRN_W_EXL3: {
        const int32_t in = w->exl3.k0 + k0, out = w->exl3.n0 + n0, block = FMT_EXL3_BLOCK;
        s.data = (const uint8_t *)w->data + in / block * (block / FMT_EXL3_TILE) * w->row_bytes +
                 out / block * w->exl3.block_bytes;
        s.exl3.suh = w->exl3.suh + in / block * block;
        s.exl3.svh = w->exl3.svh + out / block * block;
        s.exl3.k0 = in % block;
        s.exl3.n0 = out % block;
        break;
    }
    }
    if (w->format == KRN_W_FP8 || w->format == KRN_W_FP4) s.scale = krn_weight_scale_row(w, n0) + k0 / 32;
    return s;
}

/* R2, or the f32 as it is. NaN is stored as the one quiet NaN: which operand's payload survives is up to the compiler. */
static void tile_store(float (*sum)[KRN_TILE_N], const krn_linear_job *rows, int32_t n_rows, int32_t n0, int32_t n,
                       krn_out out)
{
    for (int32_t t = 0; t < n_rows; t++)
        for (int32_t r = 0; r < n; r++) {
            float v = sum[t][r];
            if (out == KRN_OUT_BF16) ((bf16 *)rows[t].y)[n0 + r] = bf16_from_f32(v);
            else ((float *)rows[t].y)[n0 + r] = isnan(v) ? f32_from_bits(0x7fc00000) : v;
        }
}

/* Jobs from the first that share its weight, at most what a tile takes. */
static int32_t run_length(const krn_linear_job *jobs, int32_t n_jobs)
{
    int32_t n = 1;
    while (n < n_jobs && n < KRN_TILE_T && jobs[n].w == jobs[0].w) n++;
    return n;
}

void krn_linear_grouped_ref(const krn_linear_job *jobs, int32_t n_jobs, krn_acc acc, krn_out out)
{
    if (n_jobs <= 0) return;
    if (jobs[0].w->format == KRN_W_EXL3) {
        krn_exl3_grouped_ref(jobs, n_jobs, acc, out);
        return;
    }
    const krn_loops *loops = loops_get();
    krn_tile_fn *tile = acc == KRN_ACC_F64 ? loops->tile_f64 : loops->tile_blocked;
    const int32_t n = jobs[0].w->n, tiles = (n - 1) / KRN_TILE_N + 1;

#pragma omp parallel if ((int64_t)n * jobs[0].w->k * n_jobs >= PARALLEL_MACS)
    for (int32_t j = 0, run; j < n_jobs; j += run) {
        run = run_length(jobs + j, n_jobs - j);
#pragma omp for schedule(static) nowait
        for (int32_t i = 0; i < tiles; i++) {
            _Alignas(64) float sum[KRN_TILE_T][KRN_TILE_N];
            int32_t n0 = i * KRN_TILE_N, tile_n = n - n0 < KRN_TILE_N ? n - n0 : KRN_TILE_N;
            tile(jobs[j].w, n0, tile_n, jobs + j, run, sum);
            tile_store(sum, jobs + j, run, n0, tile_n, out);
        }
    }
}

void krn_linear_ref(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_acc acc, krn_out out, void *y,
                    int64_t ldy)
{
    const int64_t elem_bytes = out == KRN_OUT_BF16 ? 2 : 4;
    krn_linear_job rows[KRN_TILE_T];
    for (int32_t t0 = 0, n; t0 < T; t0 += n) {
        n = T - t0 < KRN_TILE_T ? T - t0 : KRN_TILE_T;
        for (int32_t t = 0; t < n; t++)
            rows[t] = (krn_linear_job){ w, x + (t0 + t) * ldx, (uint8_t *)y + (t0 + t) * ldy * elem_bytes };
        krn_linear_grouped_ref(rows, n, acc, out);
    }
}

void krn_weight_decode_f32(const krn_weight *w, int32_t n0, int32_t n, float *out)
{
    if (w->format == KRN_W_EXL3) {
        krn_exl3_weight_f32(w, n0, n, out);
        return;
    }
    const krn_loops *loops = loops_get();
#pragma omp parallel for schedule(static) if ((int64_t)n * w->k >= PARALLEL_MACS)
    for (int32_t r = 0; r < n; r++) loops->decode_row(w, n0 + r, out + (int64_t)r * w->k);
}

int64_t krn_weight_decode_bf16(const krn_weight *w, int32_t n0, int32_t n, bf16 *out)
{
    enum { PIECE = 1024 }; /* columns at a time, through the stack; whole scale groups */
    if (w->format == KRN_W_EXL3) return krn_exl3_weight_bf16(w, n0, n, out);
    const krn_loops *loops = loops_get();
    const bool scaled = w->format == KRN_W_FP8 || w->format == KRN_W_FP4;
    int64_t inexact = 0;
#pragma omp parallel for schedule(static) reduction(+ : inexact) if ((int64_t)n * w->k >= PARALLEL_MACS)
    for (int32_t r = 0; r < n; r++)
        for (int32_t k0 = 0; k0 < w->k; k0 += PIECE) {
            float v[PIECE];
            int32_t k = w->k - k0 < PIECE ? w->k - k0 : PIECE;
            /* FP8 slices start at multiples of 32 rows only, so the piece is cut from the row's own 32-group. */
            int32_t row = n0 + r, base = row / 32 * 32, base_n = w->n - base < 32 ? w->n - base : 32;
            krn_weight piece = krn_weight_slice(w, base, base_n, k0, k);
            loops->decode_row(&piece, row - base, v);
            bf16 *y = out + (int64_t)r * w->k + k0;
            for (int32_t i = 0; i < k; i++) {
                y[i] = bf16_from_f32(v[i]);
                /* A code times its scale may pass the f32 range: that infinity is not exact either. */
                if (!isnan(v[i]) && (f32_from_bf16(y[i]) != v[i] || (scaled && isinf(v[i])))) inexact++;
            }
        }
    return inexact;
}
