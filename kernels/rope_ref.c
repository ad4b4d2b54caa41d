#include "kernels/rope.h"

void krn_rope_freqs(double theta, int32_t rope_dim, float *freq)
{
    for (int32_t i = 0; i < rope_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)rope_dim;
        freq[i] = 1.0f / (float)pow(theta, (double)exponent);
    }
}

void krn_rope_ref(const bf16 *x, bf16 *y, int32_t rows, int32_t heads, int32_t head_dim, int32_t rope_dim,
                  const int32_t *pos, const float *freq, bool inverse, krn_acc acc)
{
    if (y != x) memcpy(y, x, (size_t)rows * (size_t)heads * (size_t)head_dim * sizeof *y);
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t i = 0; i < rope_dim / 2; i++) {
            float angle = (float)pos[r] * freq[i];                                                   /* R1 */
            float c = (float)cos((double)angle), s = (float)sin((double)angle);                      /* R2 */
            if (inverse) s = -s;
            for (int32_t h = 0; h < heads; h++) {
                bf16 *pair = y + ((int64_t)r * heads + h) * head_dim + (head_dim - rope_dim) + 2 * i;
                float re = f32_from_bf16(pair[0]), im = f32_from_bf16(pair[1]), re2, im2;
                if (acc == KRN_ACC_F64) {                                                            /* R3 */
                    re2 = (float)((double)re * c - (double)im * s);
                    im2 = (float)((double)re * s + (double)im * c);
                } else {
                    re2 = re * c - im * s;
                    im2 = re * s + im * c;
                }
                pair[0] = bf16_from_f32(re2);                                                        /* R4 */
                pair[1] = bf16_from_f32(im2);
            }
        }
    }
}
