#include "engine/ab.h"

#include "engine/noise.h"

/* A number of about normal size where kind is none of the others. */
static float number(const float *normals, ab_kind kind, uint64_t bits, float scale)
{
    static const float TIES[4] = { -1.0f, 0.5f, 1.0f, 1.5f };
    const float sign = bits >> 63 ? -1.0f : 1.0f;
    switch (kind) {
    case AB_ZEROS: return sign * 0.0f;
    case AB_TIES: return scale * TIES[bits & 3];
    case AB_DENORMAL: return sign * ldexpf((float)(1 + bits % 127), -133); /* bf16 has them all */
    case AB_HUGE: return sign * ldexpf(1.0f + (float)(bits & 0x7f) / 128, 60 + (int)(bits >> 8 & 0xffff) % 60);
    default: return scale * eng_noise_normal(normals, bits);
    }
}

void ab_fill_numbers(fmt_dtype type, void *out, int64_t n, float scale, ab_kind kind, uint64_t seed, const char *name)
{
    const float *normals = eng_noise_normals();
    const uint64_t key = eng_noise_mix(eng_noise_key(seed, name) + (uint64_t)kind);
    float *f32 = out;
    bf16 *half = out;
    CHECK(type == FMT_DTYPE_F32 || type == FMT_DTYPE_BF16);
#pragma omp parallel for if (n > 100000)
    for (int64_t i = 0; i < n; i++) {
        const float v = number(normals, kind, eng_noise_bits(key, (uint64_t)i), scale);
        if (type == FMT_DTYPE_F32) f32[i] = v;
        else half[i] = bf16_from_f32(v);
    }
}
