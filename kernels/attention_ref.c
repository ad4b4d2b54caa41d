#include "kernels/attention.h"

#include "kernels/lanes.h"

/* The keys of a slot: two pieces, one order. */
typedef struct keys {
    const bf16 *ring, *block; /* [n_ring, head_dim], [n - n_ring, head_dim] */
    int32_t n_ring, n, head_dim;
} keys;

static const bf16 *key_at(const keys *k, int32_t i)
{
    return i < k->n_ring ? k->ring + (int64_t)i * k->head_dim : k->block + (int64_t)(i - k->n_ring) * k->head_dim;
}

/* The running state of one head of one row. */
typedef struct head_state {
    float m, l;
    float acc[KRN_ATTENTION_HEAD_DIM_MAX];  /* first head_dim used */
    double sum[KRN_ATTENTION_HEAD_DIM_MAX]; /* F64: one block's p * v */
} head_state;

/* R1, R2 for keys [first, first + count): p, the correction c; m moves on. */
static float probabilities(head_state *st, const bf16 *q, const keys *k, int32_t first, int32_t count, float scale,
                           krn_acc acc, float *p)
{
    float m = st->m;
    for (int32_t j = 0; j < count; j++) {
        const bf16 *key = key_at(k, first + j);
        float dot = acc == KRN_ACC_F64 ? (float)krn_lanes_dot_f64(q, key, k->head_dim)
                                       : krn_lanes_dot_f32(q, key, k->head_dim);
        p[j] = dot * scale;                                                                          /* R1 */
        if (p[j] > m) m = p[j];
    }
    float c = krn_f32_exp(st->m - m);                                                                /* R2 */
    for (int32_t j = 0; j < count; j++) p[j] = krn_f32_exp(p[j] - m);
    st->m = m;
    return c;
}

/* R3, R4 in f32. */
static void accumulate_f32(head_state *st, const keys *k, int32_t first, int32_t count, float c, const float *p)
{
    float sum = 0;
    for (int32_t j = 0; j < count; j++) sum += p[j];
    st->l = fmaf(st->l, c, sum);                                                                     /* R3 */
    for (int32_t d = 0; d < k->head_dim; d++) st->acc[d] *= c;                                       /* R4 */
    for (int32_t j = 0; j < count; j++) {
        const bf16 *value = key_at(k, first + j);
        float pb = bf16_round(p[j]);
        for (int32_t d = 0; d < k->head_dim; d++) st->acc[d] += pb * f32_from_bf16(value[d]);
    }
}

/* R3, R4 with the sums in double. */
static void accumulate_f64(head_state *st, const keys *k, int32_t first, int32_t count, float c, const float *p)
{
    double sum = 0;
    for (int32_t j = 0; j < count; j++) sum += p[j];
    st->l = (float)((double)st->l * c + sum);                                                        /* R3 */
    memset(st->sum, 0, (size_t)k->head_dim * sizeof st->sum[0]);
    for (int32_t j = 0; j < count; j++) {
        const bf16 *value = key_at(k, first + j);
        double pb = bf16_round(p[j]);
        for (int32_t d = 0; d < k->head_dim; d++) st->sum[d] += pb * f32_from_bf16(value[d]);
    }
    for (int32_t d = 0; d < k->head_dim; d++) {
        float scaled = st->acc[d] * c;
        st->acc[d] = (float)(scaled + st->sum[d]);                                                   /* R4 */
    }
}

static void attend(const bf16 *q, const keys *k, float sink, float scale, krn_acc acc, bf16 *o)
{
    head_state st;
    st.m = -1e30f;
    st.l = 0;
    memset(st.acc, 0, (size_t)k->head_dim * sizeof st.acc[0]);
    for (int32_t first = 0; first < k->n; first += KRN_ATTENTION_KEYS) {
        int32_t count = k->n - first < KRN_ATTENTION_KEYS ? k->n - first : KRN_ATTENTION_KEYS;
        float p[KRN_ATTENTION_KEYS];
        float c = probabilities(&st, q, k, first, count, scale, acc, p);
        if (acc == KRN_ACC_F64) accumulate_f64(&st, k, first, count, c, p);
        else accumulate_f32(&st, k, first, count, c, p);
    }
    float l = st.l + krn_f32_exp(sink - st.m);                                                       /* R5 */
    for (int32_t d = 0; d < k->head_dim; d++) o[d] = bf16_from_f32(st.acc[d] / l);                   /* R6 */
}

void krn_attention_ref(const bf16 *q, const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t n_block,
                       const float *sink, float scale, int32_t heads, int32_t head_dim, bf16 *o, krn_acc acc)
{
    CHECK(head_dim >= 1 && head_dim <= KRN_ATTENTION_HEAD_DIM_MAX);
    keys k = { ring, block_kv, n_ring, n_ring + n_block, head_dim };
    int64_t tasks = (int64_t)n_block * heads;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < tasks; i++) attend(q + i * head_dim, &k, sink[i % heads], scale, acc, o + i * head_dim);
}
