#include "kernels/exl3_encode.h"

#include "base/mem.h"
#include "kernels/exl3_encode_loops.h"
#include "kernels/kernels.h"

enum { WEIGHTS = FMT_EXL3_TILE_WEIGHTS };

static krn_exl3_step_fn *step_get(void)
{
#if defined(__x86_64__)
    static krn_exl3_step_fn *const STEP[KRN_ISA_COUNT] = { krn_exl3_step_scalar, krn_exl3_step_avx2, krn_exl3_step_avx512 };
    return STEP[krn_isa_get()];
#else
    return krn_exl3_step_scalar;
#endif
}

/* What a thread searches with. */
typedef struct search {
    krn_exl3_code code;
    krn_exl3_step_fn *step;
    const float *table, *values; /* by state; in the loop's order */
    int32_t n_nodes;
    float *cost, *next;          /* [n_nodes] */
    int32_t row_bytes;
    uint8_t *from;               /* [256, row_bytes] m of the cheapest way into each node, krn_exl3_mark */
} search;

/* Positions [first, first + count) mod 256 from the costs in s->cost on; theirs after it. Row i of from is position i's of
 * the walk. */
static void walk(search *s, const float *w, int32_t first, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        uint8_t *from = s->from + (size_t)i * (size_t)s->row_bytes;
        s->step(s->code.bits, s->values, w[(first + i) % WEIGHTS], s->cost, s->next, from);
        float *swap = s->cost;
        s->cost = s->next;
        s->next = swap;
    }
}

/* From node e after row `last` of the walk back to the node before row `first`; the states between into state. */
static int32_t trace(const search *s, int32_t e, int32_t last, int32_t first, uint16_t *state)
{
    for (int32_t i = last; i >= first; i--) {
        const uint8_t *from = s->from + (size_t)i * (size_t)s->row_bytes;
        const int32_t all = krn_exl3_mark(s->code.bits, from, e) * s->n_nodes + e;
        if (state) state[i] = (uint16_t)all;
        e = all >> s->code.bits;
    }
    return e;
}

static int32_t cheapest(const search *s)
{
    int32_t best = 0;
    for (int32_t i = 1; i < s->n_nodes; i++)
        if (s->cost[i] < s->cost[best]) best = i;
    return best;
}

static void encode(search *s, const float *w, uint16_t *tile, double *error)
{
    uint16_t state[WEIGHTS];
    const int32_t half = s->code.seam / 2;
    for (int32_t i = 0; i < s->n_nodes; i++) s->cost[i] = 0;
    walk(s, w, WEIGHTS - half, s->code.seam);
    const int32_t q = trace(s, cheapest(s), s->code.seam - 1, half, NULL);

    for (int32_t i = 0; i < s->n_nodes; i++) s->cost[i] = 0x1p100f;
    s->cost[q] = 0;
    walk(s, w, 0, WEIGHTS);
    const int32_t back = trace(s, q, WEIGHTS - 1, 0, state);
    CHECK(back == q);
    double sum = 0;
    for (int32_t p = 0; p < WEIGHTS; p++) {
        const double d = (double)s->table[state[p]] - (double)w[p];
        sum += d * d;
    }
    *error = sum;
    fmt_exl3_pack(state, s->code.bits, tile);
}

static void search_fini(search *s)
{
    free(s->cost);
    free(s->next);
    free(s->from);
}

/* false: no memory; search_fini is the caller's all the same. */
static bool search_init(search *s)
{
    s->n_nodes = 1 << (16 - s->code.bits);
    s->cost = mem_alloc_aligned((size_t)s->n_nodes, sizeof *s->cost);
    s->next = mem_alloc_aligned((size_t)s->n_nodes, sizeof *s->next);
    s->row_bytes = krn_exl3_mark_bytes(s->code.bits);
    s->from = mem_alloc_aligned(WEIGHTS, (size_t)s->row_bytes);
    return s->cost && s->next && s->from;
}

err_code krn_exl3_encode_tiles_ref(const float *w, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error, err *e)
{
    CHECK(code.bits >= 1 && code.bits <= FMT_EXL3_BITS_MAX && n >= 0);
    CHECK(code.seam >= 2 && code.seam <= KRN_EXL3_SEAM_MAX && code.seam % 2 == 0);
    const float *table = fmt_exl3_table(code.codebook);
    float *values = mem_alloc_aligned(FMT_EXL3_STATES, sizeof *values);
    bool failed = !values;
    if (values) krn_exl3_encode_order(code.bits, table, values);
#pragma omp parallel if (n > 1 && !failed)
    {
        search s = { .code = code, .step = step_get(), .table = table, .values = values };
        const bool ready = values && search_init(&s);
        if (!ready) {
#pragma omp atomic write
            failed = true;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++)
            if (ready) encode(&s, w + i * WEIGHTS, tiles + i * 16 * code.bits, error + i);
        search_fini(&s);
    }
    free(values);
    if (!failed) return ERR_OK;
    return err_set(e, ERR_NOMEM, "no memory to encode EXL3 tiles of %d bits", code.bits);
}
