#include "replay/judge_group.h"

double rpl_group_distance(bf16 got, krn_span x, double scale)
{
    const double value = (double)f32_from_bf16(got) / scale;
    const uint8_t code = e4m3_from_f32((float)value);
    if ((double)FMT_E4M3_VALUE[code] != value) return isnan(value) ? (double)NAN : (double)INFINITY;
    return krn_span_distance((krn_span){ x.lo / scale, x.hi / scale }, krn_preimage_e4m3(code));
}

static int32_t n_explained(const bf16 *got, const krn_span *x, double scale)
{
    int32_t n = 0;
    for (int i = 0; i < FMT_QDQ_GROUP; i++) n += rpl_group_distance(got[i], x[i], scale) <= 1;
    return n;
}

rpl_group_scale rpl_group_scale_of(const bf16 got[FMT_QDQ_GROUP], const krn_span x[FMT_QDQ_GROUP])
{
    double least = 0, most = 0; /* the largest magnitude */
    for (int i = 0; i < FMT_QDQ_GROUP; i++) {
        least = fmax(least, fmax(x[i].lo, -x[i].hi));
        most = fmax(most, fmax(-x[i].lo, x[i].hi));
    }
    uint8_t low = fmt_qdq_scale((float)least), high = fmt_qdq_scale((float)most);
    rpl_group_scale s = { (double)f32_from_e8m0(low), low != high };
    if (!s.stepped) return s;
    const double other = (double)f32_from_e8m0(high);
    if (n_explained(got, x, other) > n_explained(got, x, s.scale)) s.scale = other;
    return s;
}
