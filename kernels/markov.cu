/* The step streams the head once, through tensor cores: four entries cost what one does. A warp takes 16 rows at a time and
 * holds 256 columns of them in registers; a register that was used is loaded anew at once, for the next rows, so that a
 * multiprocessor has up to 128 KiB on the way. The previous tokens are chosen while the first rows travel.
 *
 * With a table the tokens are chosen first: where it has the terms of all of them, the head is not read at all. */
#include "kernels/markov.h"

#include "kernels/launch.cuh"
#include "kernels/skinny.cuh"

enum {
    WARPS = 16,
    THREADS = WARPS * KRN_WARP,
    UNIT_ROWS = 16,                                    /* of a warp at a time: the M of an mma */
    ROUND_ROWS = KRN_MARKOV_PARTS * WARPS * UNIT_ROWS, /* of all warps at a time */
    CHUNK = 8,                                         /* elements of a 16-byte load */
    QUAD = 4,                                          /* lanes that share a row */
    STEPS = 8,                                         /* chunks of a row that a lane holds */
    PANEL = STEPS * QUAD,                              /* that its quad holds: 256 columns */
};

/* Where a term comes from and what becomes of it. TERMS: the product alone, for a table. */
typedef enum variant { FACTORISED, HOT_F32, CACHE_BF16, TERMS_F32, TERMS_BF16 } variant;
__host__ __device__ constexpr bool makes_terms(variant v) { return v == TERMS_F32 || v == TERMS_BF16; }
__host__ __device__ constexpr bool has_table(variant v) { return v == HOT_F32 || v == CACHE_BF16; }

typedef struct step_args {
    const float *logits;
    const bf16 *embed, *head;
    int32_t vocab, k, n, first_id, block, n_out, i;
    const int32_t *anchor;
    const krn_best *before;
    int32_t n_ranks;
    int32_t *drafts;
    float *biased;
    krn_best *best;
    const int32_t *table_row; /* HOT_F32, CACHE_BF16; NULL: the table is empty */
    void *term;               /* the table's rows, read alone; TERMS: where they go */
    const int32_t *tokens;    /* TERMS: BATCH of them */
} step_args;

/* ---- the order of kernels/argmax.h ---- */

__device__ static bool value_before(float a, float b) { return a > b || (b != b && a == a); }

__device__ static krn_best best_of(krn_best a, krn_best b)
{
    bool first = value_before(a.value, b.value) || (!value_before(b.value, a.value) && a.id <= b.id);
    return first ? a : b;
}

/* Of the lanes that are multiples of apart away from one another, in each of them; apart 1: of the whole warp. */
__device__ static krn_best warp_best(krn_best best, int apart)
{
    for (; apart < KRN_WARP; apart *= 2) {
        krn_best other;
        other.value = __shfl_xor_sync(0xffffffff, best.value, apart);
        other.id = __shfl_xor_sync(0xffffffff, best.id, apart);
        best = best_of(best, other);
    }
    return best;
}

/* The warp's best of all parts of one entry. from: the parts of rank 0; those of the next rank are stride further. */
__device__ static krn_best join_parts(const krn_best *from, int32_t n_ranks, int32_t stride)
{
    enum { LOADS = (KRN_MARKOV_PARTS + KRN_WARP - 1) / KRN_WARP };
    krn_best own = { __uint_as_float(0x7fc00000), INT32_MAX }; /* loses against all */
    for (int32_t rank = 0; rank < n_ranks; rank++, from += stride) {
        int2 bits[LOADS];
#pragma unroll
        for (int j = 0; j < LOADS; j++) /* past the end the last one again, which changes nothing */
            bits[j] = __ldcg((const int2 *)from + min(j * KRN_WARP + (int)threadIdx.x % KRN_WARP, KRN_MARKOV_PARTS - 1));
#pragma unroll
        for (int j = 0; j < LOADS; j++) own = best_of(own, { __int_as_float(bits[j].x), bits[j].y });
    }
    return warp_best(own, 1);
}

/* ---- the step ---- */

__host__ __device__ static int32_t panels_of(int32_t k) { return (k + PANEL * CHUNK - 1) / (PANEL * CHUNK); }

/* Chunk c of a row of k elements; past the end zeros. WIDE: rows are 16-byte aligned and k is whole chunks. */
template <bool WIDE> __device__ __forceinline__ static uint4 chunk_of(const bf16 *row, int32_t c, int32_t k)
{
    if constexpr (WIDE) return c * CHUNK < k ? __ldg((const uint4 *)row + c) : make_uint4(0, 0, 0, 0);
    else return krn_load8(row + c * CHUNK, k - c * CHUNK, false);
}

/* The tokens before position i, and their rows of the table, -1 where it has none. */
template <int BATCH, variant V> __device__ static void choose_tokens(const step_args &a, int32_t *token, int32_t *ready)
{
    const int b = threadIdx.x / KRN_WARP;
    if (b < BATCH) {
        int32_t id;
        if constexpr (makes_terms(V)) id = a.tokens[b];
        else if (a.i == 0) id = a.anchor[b];
        else id = join_parts(a.before + b * KRN_MARKOV_PARTS, a.n_ranks, BATCH * KRN_MARKOV_PARTS).id;
        if (threadIdx.x % KRN_WARP == 0) {
            token[b] = id < 0 || id >= a.vocab ? 0 : id;
            if constexpr (has_table(V)) ready[b] = a.table_row ? a.table_row[token[b]] : -1;
            if (!makes_terms(V) && a.i > 0 && blockIdx.x == 0) a.drafts[b * a.n_out + a.i - 1] = id;
        }
    }
    __syncthreads();
}

/* Their embeddings, as staged [panels * STEPS][BATCH][QUAD]: what lanes read together lies together. */
template <int BATCH, bool WIDE>
__device__ static void stage_embeddings(const step_args &a, const int32_t *token, int32_t panels, uint4 *staged)
{
    for (int32_t at = threadIdx.x; at < panels * PANEL * BATCH; at += THREADS) {
        int32_t entry = at / QUAD % BATCH, c = at / (QUAD * BATCH) * QUAD + at % QUAD;
        staged[at] = chunk_of<WIDE>(a.embed + (int64_t)token[entry] * a.k, c, a.k);
    }
    __syncthreads();
}

/* R1 of a row that the table has. */
template <variant V> __device__ __forceinline__ static float ready_term(const step_args &a, int32_t row, int64_t v)
{
    const int64_t at = (int64_t)row * a.n + v;
    if constexpr (V == CACHE_BF16) return krn_f32_of(((const bf16 *)a.term)[at]);
    else return ((const float *)a.term)[at];
}

/* R2 of entry b and row v, given R1's sum or the table's term. */
template <variant V> __device__ __forceinline__ static float add_term(float logit, float term)
{
    float biased = logit + (V == CACHE_BF16 ? krn_bf16_rounded(term) : term);
    if (biased != biased) return __uint_as_float(0x7fc00000);
    return V == CACHE_BF16 ? krn_bf16_rounded(biased) : biased;
}

/* The whole of a block's part from the table: a warp's 16 rows of all entries at a time, the best of each to bests. */
template <int BATCH, variant V>
__device__ static void step_from_table(const step_args &a, const int32_t *ready, krn_best (*bests)[WARPS])
{
    constexpr int LOADS = (BATCH * UNIT_ROWS + KRN_WARP - 1) / KRN_WARP;
    const int lane = threadIdx.x % KRN_WARP, warp = threadIdx.x / KRN_WARP;
    krn_best best[LOADS];
    for (int j = 0; j < LOADS; j++) best[j] = { __uint_as_float(0x7fc00000), a.first_id };
    for (int32_t row0 = (warp * KRN_MARKOV_PARTS + blockIdx.x) * UNIT_ROWS; row0 < a.n; row0 += ROUND_ROWS)
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const int64_t b = lane / UNIT_ROWS + 2 * j, v = row0 + lane % UNIT_ROWS;
            if (b >= BATCH || v >= a.n) continue;
            float biased = add_term<V>(a.logits[(b * a.block + a.i) * a.n + v], ready_term<V>(a, ready[b], v));
            a.biased[(b * a.n_out + a.i) * a.n + v] = biased;
            best[j] = best_of(best[j], { biased, (int32_t)(a.first_id + v) });
        }
    for (int j = 0; j < LOADS; j++) {
        for (int apart = 1; apart < UNIT_ROWS; apart *= 2) {
            krn_best other;
            other.value = __shfl_xor_sync(0xffffffff, best[j].value, apart);
            other.id = __shfl_xor_sync(0xffffffff, best[j].id, apart);
            best[j] = best_of(best[j], other);
        }
        const int b = lane / UNIT_ROWS + 2 * j;
        if (lane % UNIT_ROWS == 0 && b < BATCH) bests[b][warp] = best[j];
    }
}

/* Every warp's best of an entry is in bests: the block's goes out. */
template <int BATCH> __device__ static void put_best(const step_args &a, krn_best (*bests)[WARPS])
{
    const int lane = threadIdx.x % KRN_WARP, warp = threadIdx.x / KRN_WARP;
    __syncthreads();
    if (warp >= BATCH) return;
    krn_best winner = warp_best(bests[warp][lane % WARPS], 1);
    if (lane == 0) a.best[warp * KRN_MARKOV_PARTS + blockIdx.x] = winner;
}

/* Lane 4g + q has the sums of rows g and g + 8 of its warp's 16, for entries 2q and 2q + 1. What it brings to the mma are
 * chunks q, 4 + q, ... of both rows, and of the embedding of entry g. */
template <int BATCH, bool WIDE, variant V>
__global__ static void __launch_bounds__(THREADS, 1) step_kernel(const step_args a)
{
    static_assert(BATCH <= WARPS, "a warp joins the parts of each entry");
    extern __shared__ uint4 staged[];
    __shared__ krn_best bests[BATCH][WARPS];
    __shared__ int32_t token[BATCH], ready[BATCH];
    const int lane = threadIdx.x % KRN_WARP, warp = threadIdx.x / KRN_WARP, g = lane / QUAD, q = lane % QUAD;
    const int32_t panels = panels_of(a.k);
    const bf16 *row[2];
    uint4 w[STEPS][2];   /* [][r]: of row g + 8r */
    float logit[2][2];   /* [c][r]: of entry 2q + c */
    krn_best best[2];
    best[0] = best[1] = { __uint_as_float(0x7fc00000), a.first_id };
    auto find_rows = [&](int32_t row0) {
        for (int r = 0; r < 2; r++) /* past the end the last row again, which nobody reads */
            row[r] = a.head + (int64_t)min(row0 + g + 8 * r, a.n - 1) * a.k;
    };
    auto load_step = [&](int j, int32_t c0) {
        for (int r = 0; r < 2; r++) w[j][r] = chunk_of<WIDE>(row[r], c0 + j * QUAD + q, a.k);
    };
    /* use(c, r, b, v) where entry b = 2q + c and row v exist. */
    auto each_sum = [&](int32_t row0, auto use) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t b = 2 * q + i / 2, v = row0 + g + 8 * (i % 2);
            if (b < BATCH && v < a.n) use(i / 2, i % 2, b, v);
        }
    };
    auto load_logits = [&](int32_t row0) {
        if (makes_terms(V)) return;
        each_sum(row0, [&](int c, int r, int64_t b, int64_t v) { logit[c][r] = a.logits[(b * a.block + a.i) * a.n + v]; });
    };

    krn_let_next_begin();
    if constexpr (has_table(V)) {
        bool all_ready = true;
        krn_wait_for_previous();
        choose_tokens<BATCH, V>(a, token, ready);
        for (int b = 0; b < BATCH; b++) all_ready = all_ready && ready[b] >= 0;
        if (all_ready) {
            step_from_table<BATCH, V>(a, ready, bests);
            put_best<BATCH>(a, bests);
            return;
        }
    }
    int32_t row0 = (warp * KRN_MARKOV_PARTS + blockIdx.x) * UNIT_ROWS;
    bool more = row0 < a.n;
    if (more) {
        find_rows(row0);
#pragma unroll
        for (int j = 0; j < STEPS; j++) load_step(j, 0);
    }
    if constexpr (!has_table(V)) krn_wait_for_previous();
    if (more) load_logits(row0);
    if constexpr (!has_table(V)) choose_tokens<BATCH, V>(a, token, ready);
    stage_embeddings<BATCH, WIDE>(a, token, panels, staged);

    while (more) {
        float sum[4] = { 0 }; /* [2r + c] */
        more = a.n - row0 > ROUND_ROWS;
        for (int32_t p = 0; p < panels; p++) {
            const bool last = p == panels - 1;
            /* An mma has eight entries: those past the last read it again, and nobody reads their sums. */
            const uint4 *x = staged + (p * STEPS * BATCH + min(g, BATCH - 1)) * QUAD + q;
            if (last && more) find_rows(row0 + ROUND_ROWS);
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                const uint4 e = x[j * BATCH * QUAD];
                skinny_mma(sum, w[j][0].x, w[j][1].x, w[j][0].y, w[j][1].y, e.x, e.y);               /* R1 */
                skinny_mma(sum, w[j][0].z, w[j][1].z, w[j][0].w, w[j][1].w, e.z, e.w);
                if (!last || more) load_step(j, last ? 0 : (p + 1) * PANEL);
            }
        }
        each_sum(row0, [&](int c, int r, int64_t b, int64_t v) {
            float term = sum[2 * r + c];
            if constexpr (makes_terms(V)) {
                if (term != term) term = __uint_as_float(0x7fc00000);
                if constexpr (V == TERMS_BF16) ((bf16 *)a.term)[b * a.n + v] = krn_bf16_of(term);
                else ((float *)a.term)[b * a.n + v] = term;
                return;
            }
            if constexpr (has_table(V)) term = ready[b] >= 0 ? ready_term<V>(a, ready[b], v) : term;
            float biased = add_term<V>(logit[c][r], term);                                           /* R2 */
            a.biased[(b * a.n_out + a.i) * a.n + v] = biased;
            best[c] = best_of(best[c], { biased, (int32_t)(a.first_id + v) });
        });
        if (more) load_logits(row0 += ROUND_ROWS);
    }
    if constexpr (!makes_terms(V)) {
        for (int c = 0; c < 2; c++) {
            best[c] = warp_best(best[c], QUAD);
            if (g == 0 && 2 * q + c < BATCH) bests[2 * q + c][warp] = best[c];
        }
        put_best<BATCH>(a, bests);
    }
}

template <int BATCH, variant V> static void launch(const step_args &a, bool wide, krn_stream stream)
{
    size_t shared_bytes = sizeof(uint4) * PANEL * BATCH * (size_t)panels_of(a.k);
    if (wide) krn_launch(step_kernel<BATCH, true, V>, KRN_MARKOV_PARTS, THREADS, shared_bytes, stream, a);
    else krn_launch(step_kernel<BATCH, false, V>, KRN_MARKOV_PARTS, THREADS, shared_bytes, stream, a);
}

template <variant V> static void launch_batch(const step_args &a, int32_t batch, bool wide, krn_stream stream)
{
    switch (batch) {
    case 1: launch<1, V>(a, wide, stream); break;
    case 2: launch<2, V>(a, wide, stream); break;
    case 3: launch<3, V>(a, wide, stream); break;
    default: launch<KRN_MARKOV_BATCH_MAX, V>(a, wide, stream); break;
    }
}

static bool is_wide(const bf16 *embed, const bf16 *head, int32_t markov_rank)
{
    int64_t row_bytes = (int64_t)markov_rank * (int64_t)sizeof(bf16);
    return krn_aligned(head, row_bytes) && krn_aligned(embed, row_bytes);
}

extern "C" err_code krn_markov_step(const float *logits, const bf16 *embed, const bf16 *head, int32_t vocab,
                                    int32_t markov_rank, int32_t n, int32_t first_id, int32_t batch, int32_t block,
                                    int32_t n_out, int32_t i, const int32_t *anchor, const krn_best *before,
                                    int32_t n_ranks, const krn_markov_table *table, int32_t *drafts, float *biased,
                                    krn_best *best, krn_stream stream, err *e)
{
    if (vocab < 1 || markov_rank < 1 || markov_rank > KRN_MARKOV_RANK_MAX || n < 0 || batch < 1 ||
        batch > KRN_MARKOV_BATCH_MAX || n_out < 1 || n_out > block || i < 0 || i >= n_out || n_ranks < 1)
        return err_set(e, ERR_ARG, "markov_step: vocab=%d markov_rank=%d n=%d batch=%d block=%d n_out=%d i=%d n_ranks=%d",
                       vocab, markov_rank, n, batch, block, n_out, i, n_ranks);
    step_args a = { logits, embed,  head,    vocab,  markov_rank, n,    first_id, block, n_out,
                    i,      anchor, before,  n_ranks, drafts,     biased, best };
    const bool wide = is_wide(embed, head, markov_rank);
    if (table) {
        a.table_row = table->row;
        a.term = (void *)table->term;
    }
    if (!table) launch_batch<FACTORISED>(a, batch, wide, stream);
    else if (table->bf16) launch_batch<CACHE_BF16>(a, batch, wide, stream);
    else launch_batch<HOT_F32>(a, batch, wide, stream);
    return krn_launched("markov_step", e);
}

extern "C" err_code krn_markov_terms(const bf16 *embed, const bf16 *head, int32_t vocab, int32_t markov_rank, int32_t n,
                                     const int32_t *tokens, int32_t count, bool round_bf16, void *term, krn_stream stream,
                                     err *e)
{
    if (vocab < 1 || markov_rank < 1 || markov_rank > KRN_MARKOV_RANK_MAX || n < 0 || count < 0)
        return err_set(e, ERR_ARG, "markov_terms: vocab=%d markov_rank=%d n=%d count=%d", vocab, markov_rank, n, count);
    const bool wide = is_wide(embed, head, markov_rank);
    const int64_t elem_bytes = round_bf16 ? sizeof(bf16) : sizeof(float);
    for (int32_t t = 0; t < count && n > 0; t += KRN_MARKOV_BATCH_MAX) {
        step_args a = {};
        a.embed = embed;
        a.head = head;
        a.vocab = vocab;
        a.k = markov_rank;
        a.n = n;
        a.tokens = tokens + t;
        a.term = (uint8_t *)term + t * n * elem_bytes;
        const int32_t some = count - t < KRN_MARKOV_BATCH_MAX ? count - t : KRN_MARKOV_BATCH_MAX;
        if (round_bf16) launch_batch<TERMS_BF16>(a, some, wide, stream);
        else launch_batch<TERMS_F32>(a, some, wide, stream);
        TRY(krn_launched("markov_terms", e));
    }
    return ERR_OK;
}

/* ---- the last choice ---- */

/* A warp for each entry. */
__global__ static void pick_kernel(const krn_best *best, int32_t n_ranks, int32_t batch, int32_t n_out, int32_t *draft)
{
    krn_begin();
    const int32_t b = threadIdx.x / KRN_WARP;
    const krn_best winner = join_parts(best + b * KRN_MARKOV_PARTS, n_ranks, batch * KRN_MARKOV_PARTS);
    if (threadIdx.x % KRN_WARP == 0) draft[b * n_out] = winner.id;
}

extern "C" err_code krn_markov_pick(const krn_best *best, int32_t n_ranks, int32_t batch, int32_t n_out, int32_t i,
                                    int32_t *drafts, krn_stream stream, err *e)
{
    if (n_ranks < 1 || batch < 1 || batch > KRN_MARKOV_BATCH_MAX || i < 0 || i >= n_out)
        return err_set(e, ERR_ARG, "markov_pick: n_ranks=%d batch=%d n_out=%d i=%d", n_ranks, batch, n_out, i);
    krn_launch(pick_kernel, 1, (unsigned)batch * KRN_WARP, 0, stream, best, n_ranks, batch, n_out, drafts + i);
    return krn_launched("markov_pick", e);
}
