#include "kernels/mhc.h"

#include "kernels/row_loops.h"

/* Sum of n terms, stride apart, ascending; rounded to f32 at every add (blocked) or once (F64). */
static float sum_f32(const float *v, int32_t n, int64_t stride, krn_acc acc)
{
    if (acc == KRN_ACC_F64) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++) sum += v[i * stride];
        return (float)sum;
    }
    float sum = v[0];
    for (int32_t i = 1; i < n; i++) sum += v[i * stride];
    return sum;
}

static void rows_normalise(float *c, int32_t hc, float eps, krn_acc acc)
{
    for (int32_t j = 0; j < hc; j++) {
        float sum = sum_f32(c + j * hc, hc, 1, acc) + eps;
        for (int32_t k = 0; k < hc; k++) c[j * hc + k] /= sum;
    }
}

static void columns_normalise(float *c, int32_t hc, float eps, krn_acc acc)
{
    for (int32_t k = 0; k < hc; k++) {
        float sum = sum_f32(c + k, hc, hc, acc) + eps;
        for (int32_t j = 0; j < hc; j++) c[j * hc + k] /= sum;
    }
}

/* Softmax of every row, + eps: the first row step has its eps outside the quotient, the later ones inside. */
static void rows_softmax(float *c, int32_t hc, float eps, krn_acc acc)
{
    for (int32_t j = 0; j < hc; j++) {
        float *row = c + j * hc; /* [hc] */
        float max = row[0];
        for (int32_t k = 1; k < hc; k++)
            if (row[k] > max) max = row[k];
        for (int32_t k = 0; k < hc; k++) row[k] = krn_f32_exp(row[k] - max);
        float sum = sum_f32(row, hc, 1, acc);
        for (int32_t k = 0; k < hc; k++) row[k] = row[k] / sum + eps;
    }
}

void krn_mhc_mixes_ref(const bf16 *x, const float *dots, const float *base, const float *scale, int32_t rows, int32_t hc,
                       int32_t dim, float norm_eps, float hc_eps, int32_t iters, float *pre, float *post, float *comb,
                       krn_acc acc)
{
    const krn_row_loops *loops = krn_row_loops_get();
    int64_t row_elements = (int64_t)hc * dim;
    for (int32_t row = 0; row < rows; row++) {
        const float *dot = dots + (int64_t)row * (2 + hc) * hc; /* [(2 + hc) * hc] */
        float *pre_r = pre + (int64_t)row * hc, *post_r = post + (int64_t)row * hc; /* [hc] */
        float *c = comb + (int64_t)row * hc * hc;                                   /* [hc, hc] */
        float r = loops->inv_rms(x + row * row_elements, row_elements, norm_eps);                    /* R1 */
        for (int32_t j = 0; j < hc; j++) {
            float z_pre = dot[j] * r * scale[0] + base[j];                                           /* R2 */
            float z_post = dot[hc + j] * r * scale[1] + base[hc + j];
            pre_r[j] = krn_f32_sigmoid(z_pre) + hc_eps;                                              /* R3 */
            post_r[j] = 2.0f * krn_f32_sigmoid(z_post);
        }
        for (int32_t j = 0; j < hc * hc; j++) c[j] = dot[2 * hc + j] * r * scale[2] + base[2 * hc + j]; /* R2 */
        rows_softmax(c, hc, hc_eps, acc);                                                            /* R4 */
        columns_normalise(c, hc, hc_eps, acc);
        for (int32_t i = 1; i < iters; i++) {                                                        /* R5 */
            rows_normalise(c, hc, hc_eps, acc);
            columns_normalise(c, hc, hc_eps, acc);
        }
    }
}

void krn_mhc_collapse_ref(const bf16 *x, const float *pre, bf16 *y, int32_t rows, int32_t hc, int32_t dim, krn_acc acc)
{
    const krn_row_loops *loops = krn_row_loops_get();
    for (int64_t row = 0; row < rows; row++)
        loops->collapse(x + row * hc * dim, pre + row * hc, y + row * dim, hc, dim, acc);
}

void krn_mhc_expand_ref(const bf16 *y, const bf16 *x, const float *post, const float *comb, bf16 *out, int32_t rows,
                        int32_t hc, int32_t dim, krn_acc acc)
{
    const krn_row_loops *loops = krn_row_loops_get();
    for (int64_t row = 0; row < rows; row++)
        for (int32_t k = 0; k < hc; k++)
            loops->expand(y + row * dim, x + row * hc * dim, post[row * hc + k], comb + row * hc * hc + k,
                          out + (row * hc + k) * dim, hc, dim, acc);
}
