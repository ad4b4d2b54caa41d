#include "replay/metrics.h"

#include "base/mem.h"
#include "formats/number.h"
#include "kernels/kernels.h"
#include "replay/metrics_block.h"

#include <inttypes.h>
#include <math.h>

const char *rpl_finding_text(rpl_finding f)
{
    switch (f) {
    case RPL_FIND_EMPTY: return "nothing compared";
    case RPL_FIND_ALL_ZERO: return "all zero on both sides";
    case RPL_FIND_NAN_EQUALS_NAN: return "NaN equals NaN";
    case RPL_FIND_RANKS_DIFFER: return "ranks disagree on a replicated value";
    }
    return "?";
}

int rpl_ulp_bucket(uint64_t ulp)
{
    if (ulp < 2) return (int)ulp;
    int b = 65 - __builtin_clzll(ulp - 1); /* 2 -> 2, 3..4 -> 3, 5..8 -> 4 */
    return b < RPL_ULP_BUCKETS ? b : RPL_ULP_BUCKETS - 1;
}

const char *rpl_ulp_bucket_text(int bucket, char buf[24])
{
    uint32_t hi = bucket < 1 || bucket > 32 ? 0 : 1u << (bucket - 1), lo = bucket < 3 ? hi : (hi >> 1) + 1;
    if (bucket >= RPL_ULP_BUCKETS - 1) snprintf(buf, 24, "%" PRIu32 "..", (1u << 31) + 1);
    else if (lo == hi) snprintf(buf, 24, "%" PRIu32, lo);
    else snprintf(buf, 24, "%" PRIu32 "-%" PRIu32, lo, hi);
    return buf;
}

uint64_t rpl_element_bits(fmt_dtype dtype, const void *data, int64_t i)
{
    uint32_t bytes = fmt_dtype_bytes(dtype);
    const uint8_t *p = (const uint8_t *)data + (size_t)i * bytes;
    switch (bytes) {
    case 1: return *p;
    case 2: return get_u16(p);
    case 4: return get_u32(p);
    default: return get_u64(p);
    }
}

/* Value of a float of 1 sign, `exp` exponent and `man` mantissa bits with infinities. */
static double small_float(uint32_t bits, int exp, int man)
{
    int bias = (1 << (exp - 1)) - 1, e = (int)(bits >> man) & ((1 << exp) - 1), m = (int)(bits & ((1u << man) - 1));
    double sign = bits >> (exp + man) ? -1.0 : 1.0;
    if (e == (1 << exp) - 1) return m ? (double)NAN : sign * (double)INFINITY;
    return sign * (e ? ldexp(1.0 + ldexp(m, -man), e - bias) : ldexp(m, 1 - bias - man));
}

double rpl_element(fmt_dtype dtype, const void *data, int64_t i)
{
    uint64_t u = rpl_element_bits(dtype, data, i);
    switch (dtype) {
    case FMT_DTYPE_F32: return (double)f32_from_bits((uint32_t)u);
    case FMT_DTYPE_BF16: return (double)f32_from_bf16((bf16)u);
    case FMT_DTYPE_F64: { double d; memcpy(&d, &u, 8); return d; }
    case FMT_DTYPE_F16: return small_float((uint32_t)u, 5, 10);
    case FMT_DTYPE_F8: return (double)FMT_E4M3_VALUE[u];
    case FMT_DTYPE_F8_E5M2: return small_float((uint32_t)u, 5, 2);
    case FMT_DTYPE_E8M0: return (double)f32_from_e8m0((uint8_t)u);
    case FMT_DTYPE_I8: return (double)(int8_t)u;
    case FMT_DTYPE_I16: return (double)(int16_t)u;
    case FMT_DTYPE_I32: return (double)(int32_t)u;
    case FMT_DTYPE_I64: return (double)(int64_t)u;
    default: return (double)u; /* U8 U16 U32 U64 BOOL */
    }
}

/* Distance on the dtype's own grid. NaN was settled before. */
static uint64_t ulp_distance(fmt_dtype dtype, uint64_t a, uint64_t b, double va, double vb)
{
    switch (dtype) {
    case FMT_DTYPE_F32:
    case FMT_DTYPE_BF16:
    case FMT_DTYPE_F16:
    case FMT_DTYPE_F64:
    case FMT_DTYPE_F8:
    case FMT_DTYPE_F8_E5M2: {
        uint64_t sign = 1ull << (8 * fmt_dtype_bytes(dtype) - 1), ma = a & (sign - 1), mb = b & (sign - 1);
        return (a ^ b) & sign ? ma + mb : ma > mb ? ma - mb : mb - ma;
    }
    case FMT_DTYPE_E8M0: return a > b ? a - b : b - a;
    case FMT_DTYPE_I64: return (int64_t)a > (int64_t)b ? a - b : b - a;
    case FMT_DTYPE_U64: return a > b ? a - b : b - a;
    default: return (uint64_t)fabs(va - vb); /* integers of at most 32 bits: exact in double */
    }
}

/* What the block kernels and the element-by-element path add to. */
typedef struct tally {
    rpl_metrics *m;
    rpl_sums sums;
    double worst;      /* |a-b| at m->worst; F32 and BF16: rounded to f32, as the block kernels compare it */
    bool incomparable; /* NaN on one side, or infinities that differ */
} tally;

/* One element that the block kernels do not take: any dtype, any value. at: where it lies in a and b; i: in the value. */
static void add_element(tally *t, fmt_dtype dtype, const void *a, const void *b, int64_t at, int64_t i)
{
    rpl_metrics *m = t->m;
    uint64_t ua = rpl_element_bits(dtype, a, at), ub = rpl_element_bits(dtype, b, at);
    double va = rpl_element(dtype, a, at), vb = rpl_element(dtype, b, at), d = fabs(va - vb), rel = 0;
    bool nan_a = isnan(va), nan_b = isnan(vb), inf_a = isinf(va), inf_b = isinf(vb), same = ua == ub;
    bool f32 = dtype == FMT_DTYPE_F32 || dtype == FMT_DTYPE_BF16;
    double key = f32 ? (double)fabsf((float)va - (float)vb) : d;
    uint64_t ulp;
    m->n_nan_a += nan_a, m->n_nan_b += nan_b, m->n_nan_both += nan_a && nan_b;
    m->n_inf_a += inf_a, m->n_inf_b += inf_b, m->n_inf_differ += (inf_a || inf_b) && !(inf_a && inf_b && va == vb);
    m->n_zero_a += va == 0, m->n_zero_b += vb == 0, m->n_zero_differ += (va == 0) != (vb == 0);
    if (nan_a || nan_b || inf_a || inf_b) {
        bool equal = same || va == vb;
        d = key = equal ? 0 : (double)INFINITY;
        ulp = same ? 0 : nan_a || nan_b ? UINT64_MAX : ulp_distance(dtype, ua, ub, va, vb);
        t->incomparable |= !equal;
    } else {
        ulp = ulp_distance(dtype, ua, ub, va, vb);
        if (vb != 0) rel = f32 ? (double)((float)key / fabsf((float)vb)) : d / fabs(vb);
    }
    m->n_equal += same;
    m->ulp[rpl_ulp_bucket(ulp)]++;
    if (ulp > m->max_ulp) m->max_ulp = ulp;
    if (!same && m->first < 0) m->first = i;
    if (key > t->worst) t->worst = key, m->max_abs = d, m->worst = i;
    if (rel > m->max_rel) m->max_rel = rel;
    if (!isfinite(va) || !isfinite(vb)) return;
    int lane = (int)(i % KRN_LANES);
    t->sums.aa[lane] += va * va;
    t->sums.bb[lane] += vb * vb;
    t->sums.ab[lane] += va * vb;
    t->sums.dd[lane] += (va - vb) * (va - vb);
}

static double join(double lane[KRN_LANES])
{
    for (int half = KRN_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* Position of the largest |a-b|, which the kernel found to be `max`, within a block of F32 or BF16. */
static int64_t find_worst(fmt_dtype dtype, const void *a, const void *b, float max)
{
    const uint8_t *p = a, *q = b;
    int64_t i = 0;
    if (dtype == FMT_DTYPE_BF16)
        while (fabsf(f32_from_bf16(get_u16(p + 2 * i)) - f32_from_bf16(get_u16(q + 2 * i))) != max) i++;
    else
        while (fabsf(f32_from_bits(get_u32(p + 4 * i)) - f32_from_bits(get_u32(q + 4 * i))) != max) i++;
    return i;
}

static int64_t find_first(fmt_dtype dtype, const void *a, const void *b)
{
    int64_t i = 0;
    while (rpl_element_bits(dtype, a, i) == rpl_element_bits(dtype, b, i)) i++;
    return i;
}

/* One block through the vector kernel, elements i .. i + n - 1 of the value; what lies past n is zero on both sides. A
 * block that holds NaN or infinity goes element by element. */
static void add_block(tally *t, fmt_dtype dtype, rpl_block_fn *kernel, const void *a, const void *b, int64_t i, int64_t n)
{
    rpl_metrics *m = t->m;
    rpl_block r;
    int64_t padding = RPL_BLOCK - n;
    if (!kernel(a, b, &t->sums, &r)) {
        for (int64_t j = 0; j < n; j++) add_element(t, dtype, a, b, j, i + j);
        return;
    }
    m->n_equal += n - r.n_differ;
    m->n_zero_a += r.n_zero_a - padding;
    m->n_zero_b += r.n_zero_b - padding;
    m->n_zero_differ += r.n_zero_differ;
    m->ulp[0] -= padding;
    if (!r.n_differ) {
        m->ulp[0] += RPL_BLOCK;
        return;
    }
    for (int k = 0; k < RPL_ULP_BUCKETS; k++) m->ulp[k] += r.ulp[k];
    if (r.max_ulp > m->max_ulp) m->max_ulp = r.max_ulp;
    if (m->first < 0) m->first = i + find_first(dtype, a, b);
    if ((double)r.max_abs > t->worst) {
        int64_t at = find_worst(dtype, a, b, r.max_abs);
        t->worst = (double)r.max_abs;
        m->worst = i + at;
        m->max_abs = fabs(rpl_element(dtype, a, at) - rpl_element(dtype, b, at));
    }
}

static void add_blocks(tally *t, fmt_dtype dtype, const uint8_t *a, const uint8_t *b, int64_t n)
{
    rpl_block_fn *kernel = rpl_block_kernel(dtype, krn_isa_get());
    size_t bytes = fmt_dtype_bytes(dtype);
    int64_t i = 0;
    for (; i + RPL_BLOCK <= n; i += RPL_BLOCK)
        add_block(t, dtype, kernel, a + (size_t)i * bytes, b + (size_t)i * bytes, i, RPL_BLOCK);
    if (i == n) return;
    uint8_t tail[2][RPL_BLOCK * sizeof(float)] = { { 0 } };
    memcpy(tail[0], a + (size_t)i * bytes, (size_t)(n - i) * bytes);
    memcpy(tail[1], b + (size_t)i * bytes, (size_t)(n - i) * bytes);
    add_block(t, dtype, kernel, tail[0], tail[1], i, n - i);
}

static bool is_float(fmt_dtype dtype)
{
#define X(name, text, bytes, is_float) is_float,
    static const bool FLOAT[FMT_DTYPE_COUNT] = { FMT_DTYPE_LIST(X) };
#undef X
    return FLOAT[dtype];
}

void rpl_metrics_of(fmt_dtype dtype, const void *a, const void *b, int64_t n, rpl_metrics *out)
{
    rpl_metrics m = { .n = n, .first = -1, .worst = -1 };
    tally t = { .m = &m };
    if (dtype == FMT_DTYPE_F32 || dtype == FMT_DTYPE_BF16) add_blocks(&t, dtype, a, b, n);
    else
        for (int64_t i = 0; i < n; i++) add_element(&t, dtype, a, b, i, i);

    double aa = join(t.sums.aa), bb = join(t.sums.bb), ab = join(t.sums.ab), dd = join(t.sums.dd);
    if ((double)t.sums.max_rel > m.max_rel) m.max_rel = (double)t.sums.max_rel;
    m.norm_a = sqrt(aa);
    m.norm_b = sqrt(bb);
    m.rel_l2 = dd == 0 ? 0 : bb == 0 ? (double)INFINITY : sqrt(dd) / m.norm_b;
    m.cosine = aa == 0 && bb == 0 ? 1 : aa == 0 || bb == 0 ? 0 : ab / (m.norm_a * m.norm_b);
    if (t.incomparable) m.rel_l2 = (double)INFINITY; /* an element that cannot be compared is no small error */
    if (m.worst < 0) m.worst = m.first; /* -0 against +0: other bits, no distance */
    if (n == 0) m.findings |= RPL_FIND_EMPTY;
    if (n > 0 && m.n_zero_a == n && m.n_zero_b == n && is_float(dtype)) m.findings |= RPL_FIND_ALL_ZERO;
    if (m.n_nan_both) m.findings |= RPL_FIND_NAN_EQUALS_NAN;
    *out = m;
}

static rpl_cell cell_of(fmt_dtype dtype, const void *a, const void *b, int64_t first, int64_t n)
{
    rpl_metrics m;
    uint32_t bytes = fmt_dtype_bytes(dtype);
    rpl_metrics_of(dtype, (const uint8_t *)a + (size_t)first * bytes, (const uint8_t *)b + (size_t)first * bytes, n, &m);
    return (rpl_cell){ .n_differ = (int32_t)(m.n - m.n_equal), .rel_l2 = (float)m.rel_l2, .max_abs = (float)m.max_abs,
                       .max_ulp = m.max_ulp };
}

void rpl_profile(fmt_dtype dtype, const void *a, const void *b, int64_t rows, int64_t cols, rpl_cell *by_row,
                 rpl_cell *by_block)
{
    int64_t blocks = (cols + RPL_PROFILE_BLOCK - 1) / RPL_PROFILE_BLOCK;
    for (int64_t r = 0; r < rows; r++) {
        if (by_row) by_row[r] = cell_of(dtype, a, b, r * cols, cols);
        for (int64_t k = 0; by_block && k < blocks; k++) {
            int64_t first = k * RPL_PROFILE_BLOCK, n = cols - first < RPL_PROFILE_BLOCK ? cols - first : RPL_PROFILE_BLOCK;
            by_block[r * blocks + k] = cell_of(dtype, a, b, r * cols + first, n);
        }
    }
}
