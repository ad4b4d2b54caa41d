#include "kernels/bound.h"

static krn_span mirrored(krn_span s) { return (krn_span){ -s.hi, -s.lo }; }

krn_span krn_preimage_bf16(bf16 v)
{
    const bf16 size = v & 0x7fff;
    if (size > 0x7f80) return krn_span_point(NAN);
    /* Neighbours by size; past the largest number stands 2^128, where rounding to infinity begins half way. */
    double at = size == 0x7f80 ? 0x1p128 : (double)f32_from_bf16(size);
    double below = size == 0 ? -(double)f32_from_bf16(1) : (double)f32_from_bf16((bf16)(size - 1));
    double above = size >= 0x7f7f ? 0x1p128 : (double)f32_from_bf16((bf16)(size + 1));
    krn_span s = { (at + below) / 2, size == 0x7f80 ? (double)INFINITY : (at + above) / 2 };
    return v & 0x8000 ? mirrored(s) : s;
}

krn_span krn_preimage_e4m3(uint8_t code)
{
    enum { LARGEST = 0x7e };
    const uint8_t size = code & 0x7f;
    if (size > LARGEST) return krn_span_point(NAN);
    double at = (double)FMT_E4M3_VALUE[size];
    double below = size == 0 ? -(double)FMT_E4M3_VALUE[1] : (double)FMT_E4M3_VALUE[size - 1];
    krn_span s = { (at + below) / 2, size == LARGEST ? (double)INFINITY : (at + (double)FMT_E4M3_VALUE[size + 1]) / 2 };
    return code & 0x80 ? mirrored(s) : s;
}

double krn_span_distance(krn_span s, krn_span preimage)
{
    double middle = krn_span_middle(s), below = preimage.lo - middle, above = middle - preimage.hi;
    if (isnan(below) || isnan(above)) return NAN;
    double need = below > above ? below : above;
    return need <= 0 ? 0 : need / krn_span_half(s);
}
