#include "kernels/bound_loops.h"

#include "kernels/simd.h"

enum { SQUARE_ROWS = 3 }; /* of x at a time, with a third sum in the registers */

SIMD_INLINE void dot_size(const bf16 *const *x, int n_rows, const float *w, int32_t n, double *sum, double *size)
{
    f64x16 s[KRN_BOUND_ROWS], a[KRN_BOUND_ROWS];
    SIMD_UNROLL
    for (int t = 0; t < n_rows; t++) s[t] = a[t] = f64x16_splat(0.0);
    int32_t k = 0;
    for (; k + KRN_LANES <= n; k += KRN_LANES) {
        const f64x16 wk = f64x16_from_f32(f32x16_load(w + k)), w_size = f64x16_abs(wk);
        SIMD_UNROLL
        for (int t = 0; t < n_rows; t++) {
            const f64x16 xk = f64x16_from_f32(f32x16_from_bf16(x[t] + k));
            s[t] = f64x16_add_product(s[t], xk, wk);
            a[t] = f64x16_add_product(a[t], f64x16_abs(xk), w_size);
        }
    }
    SIMD_UNROLL
    for (int t = 0; t < n_rows; t++) {
        sum[t] += f64x16_sum(s[t]);
        size[t] += f64x16_sum(a[t]);
        for (int32_t i = k; i < n; i++) {
            double product = (double)f32_from_bf16(x[t][i]) * (double)w[i];
            sum[t] += product;
            size[t] += fabs(product);
        }
    }
}

static void dot_size_rows(const bf16 *const *x, int32_t n_rows, const float *w, int32_t n, double *sum, double *size)
{
    if (n_rows == KRN_BOUND_ROWS) dot_size(x, KRN_BOUND_ROWS, w, n, sum, size);
    else
        for (int32_t t = 0; t < n_rows; t++) dot_size(x + t, 1, w, n, sum + t, size + t);
}

SIMD_INLINE void dot_square(const bf16 *const *x, int n_rows, const float *w, int32_t n, double *sum, double *size,
                            double *square)
{
    f64x16 s[SQUARE_ROWS], a[SQUARE_ROWS], q[SQUARE_ROWS];
    SIMD_UNROLL
    for (int t = 0; t < n_rows; t++) s[t] = a[t] = q[t] = f64x16_splat(0.0);
    int32_t k = 0;
    for (; k + KRN_LANES <= n; k += KRN_LANES) {
        const f64x16 wk = f64x16_from_f32(f32x16_load(w + k));
        SIMD_UNROLL
        for (int t = 0; t < n_rows; t++) {
            const f64x16 product = f64x16_mul(f64x16_from_f32(f32x16_from_bf16(x[t] + k)), wk);
            s[t] = f64x16_add(s[t], product);
            a[t] = f64x16_add(a[t], f64x16_abs(product));
            q[t] = f64x16_add_product(q[t], product, product);
        }
    }
    SIMD_UNROLL
    for (int t = 0; t < n_rows; t++) {
        sum[t] += f64x16_sum(s[t]);
        size[t] += f64x16_sum(a[t]);
        square[t] += f64x16_sum(q[t]);
        for (int32_t i = k; i < n; i++) {
            double product = (double)f32_from_bf16(x[t][i]) * (double)w[i];
            sum[t] += product;
            size[t] += fabs(product);
            square[t] += product * product;
        }
    }
}

static void dot_square_rows(const bf16 *const *x, int32_t n_rows, const float *w, int32_t n, double *sum, double *size,
                            double *square)
{
    int32_t t = 0;
    for (; t + SQUARE_ROWS <= n_rows; t += SQUARE_ROWS)
        dot_square(x + t, SQUARE_ROWS, w, n, sum + t, size + t, square + t);
    for (; t < n_rows; t++) dot_square(x + t, 1, w, n, sum + t, size + t, square + t);
}

SIMD_INLINE void only_size(const bf16 *const *x, int n_rows, const float *w, int32_t n, float *size)
{
    f32x16 a[KRN_BOUND_ROWS];
    SIMD_UNROLL
    for (int t = 0; t < n_rows; t++) a[t] = f32x16_splat(0.0f);
    int32_t k = 0;
    for (; k + KRN_LANES <= n; k += KRN_LANES) {
        const f32x16 wk = f32x16_abs(f32x16_load(w + k));
        SIMD_UNROLL
        for (int t = 0; t < n_rows; t++) a[t] = f32x16_add(a[t], f32x16_mul(f32x16_abs(f32x16_from_bf16(x[t] + k)), wk));
    }
    SIMD_UNROLL
    for (int t = 0; t < n_rows; t++) {
        size[t] += f32x16_sum(a[t]);
        for (int32_t i = k; i < n; i++) size[t] += fabsf(f32_from_bf16(x[t][i]) * w[i]);
    }
}

static void size_rows(const bf16 *const *x, int32_t n_rows, const float *w, int32_t n, float *size)
{
    if (n_rows == KRN_BOUND_ROWS) only_size(x, KRN_BOUND_ROWS, w, n, size);
    else
        for (int32_t t = 0; t < n_rows; t++) only_size(x + t, 1, w, n, size + t);
}

#if defined(KRN_SIMD_AVX512)
const krn_bound_loops KRN_BOUND_AVX512 = { dot_size_rows, dot_square_rows, size_rows };
#elif defined(KRN_SIMD_AVX2)
const krn_bound_loops KRN_BOUND_AVX2 = { dot_size_rows, dot_square_rows, size_rows };
#else
const krn_bound_loops KRN_BOUND_SCALAR = { dot_size_rows, dot_square_rows, size_rows };
#endif
