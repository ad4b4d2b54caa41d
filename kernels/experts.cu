/* Routed experts: a block finds on the device which expert it works for, then multiplies only the rows that picked it. */
#include "kernels/experts.h"

#include "kernels/skinny.cuh"

enum { ROWS_MAX = 32, WORDS = KRN_EXPERTS_MAX / 32 };
static_assert((int)WORDS == (int)KRN_WARP, "a word of the used experts for every lane");

/* A launch's operands. A row of x is a row of ids for up, a pick for down. */
struct job {
    const bf16 *x;
    const int32_t *ids;
    int32_t picks, n_picks; /* of a row; of all rows, at most KRN_EXPERT_PICKS_MAX */
    krn_expert_bank bank;
    bf16 *gate, *up;        /* up */
    float *slot;            /* down */
    const float *add;       /* combine */
    float *y;
};

/* ---- which expert, which rows ---- */

/* What a block knows of the ids. */
struct routing {
    int32_t id[KRN_EXPERT_PICKS_MAX];
    uint32_t used[WORDS]; /* bit e % 32 of word e / 32: some pick names expert e */
};

/* Every thread calls; ends in a __syncthreads. */
__device__ static void routing_read(const job &j, routing *r)
{
    if (threadIdx.x < WORDS) r->used[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t p = threadIdx.x; p < j.n_picks; p += SKINNY_THREADS) {
        const int32_t id = j.ids[p];
        r->id[p] = id;
        if (id >= 0 && id < j.bank.n_experts) atomicOr(&r->used[id / 32], 1u << id % 32);
    }
    __syncthreads();
}

/* The i-th used expert, ascending; -1 when there are not so many. The whole warp calls. */
__device__ static int32_t routing_expert(const routing &r, int32_t i)
{
    const int32_t lane = threadIdx.x % KRN_WARP;
    uint32_t word = r.used[lane];
    const int32_t own = __popc(word);
    int32_t until = own; /* used experts in the words up to this lane's */
    for (int32_t apart = 1; apart < KRN_WARP; apart *= 2) {
        const int32_t below = __shfl_up_sync(0xffffffff, until, apart);
        if (lane >= apart) until += below;
    }
    const uint32_t found = __ballot_sync(0xffffffff, i < until && i >= until - own);
    if (!found) return -1;
    for (int32_t skip = i - (until - own); skip > 0 && word; skip--) word &= word - 1;
    return __shfl_sync(0xffffffff, lane * 32 + __ffs(word) - 1, __ffs(found) - 1);
}

/* The picks of an expert, ascending, at most `room`, into list. Returns their number. The whole warp calls. */
__device__ static int32_t routing_picks(const routing &r, int32_t n_picks, int32_t expert, int16_t *list, int32_t room)
{
    const int32_t lane = threadIdx.x % KRN_WARP;
    int32_t n = 0;
    for (int32_t p0 = 0; p0 < n_picks; p0 += KRN_WARP) {
        const bool mine = p0 + lane < n_picks && r.id[p0 + lane] == expert;
        const uint32_t those = __ballot_sync(0xffffffff, mine);
        const int32_t at = n + __popc(those & ((1u << lane) - 1));
        if (mine && at < room) list[at] = (int16_t)(p0 + lane);
        n += __popc(those);
    }
    return min(n, room);
}

__device__ static krn_weight bank_weight(const krn_expert_bank &b, int32_t expert)
{
    const int64_t row_bytes = b.format == KRN_W_FP4 ? b.k / 2 : 2 * (int64_t)b.k, first = (int64_t)expert * b.n;
    krn_weight w = { b.format, b.n, b.k, (const uint8_t *)b.data + first * row_bytes, row_bytes, NULL, b.k / 32, 0 };
    if (b.format == KRN_W_FP4) w.scale = b.scale + first * (b.k / 32);
    return w;
}

/* One warp's sum (R1) for the n picks of a list, 1 to 8 NT. Most experts have few rows, however many the call has: they do
 * not carry the tiles of the others. */
template <krn_wformat F, int MT, int NT>
__device__ __forceinline__ void picks_sum(const job &j, int32_t expert, int32_t picks_a_row, const int16_t *list, int32_t n,
                                          int32_t row0, int32_t slices, uint8_t *rings)
{
    const int32_t g = threadIdx.x % KRN_WARP / 4, warp = threadIdx.x / KRN_WARP;
    const krn_weight w = bank_weight(j.bank, expert);
    const bf16 *x[NT]; /* [k] */
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int32_t c = i * SKINNY_N + g;
        x[i] = c < n ? j.x + (int64_t)(list[c] / picks_a_row) * w.k : NULL;
    }
    uint8_t *ring = rings + warp * SKINNY_WARP_BYTES;
    if (NT == 1 || n <= SKINNY_N) skinny_sum<F, MT, 1>(w, row0, w.n, warp % slices, slices, x, 1, ring);
    else skinny_sum<F, MT, NT>(w, row0, w.n, warp % slices, slices, x, (n - 1) / SKINNY_N + 1, ring);
}

/* ---- every pick by itself ---- */

enum { MT = 2 }; /* of up and down: x is fetched, and its pairs are made, for twice the weights */

/* Grid: x: rows of the bank; y: the i-th used expert. Blocks whose i is past the last return. */
template <krn_wformat F, int NT, bool DOWN>
__global__ static void __launch_bounds__(SKINNY_THREADS, 2) picks_kernel(const job j)
{
    extern __shared__ __align__(16) uint8_t rings[];
    __shared__ routing route;
    __shared__ int16_t list[KRN_EXPERT_PICKS_MAX];
    __shared__ int32_t n_list;
    const int32_t slices = skinny_slices(F, j.bank.k), warp = threadIdx.x / KRN_WARP;
    const int32_t n_rows = SKINNY_WARPS / slices * MT * SKINNY_M, n0 = blockIdx.x * n_rows;

    routing_read(j, &route);
    const int32_t expert = routing_expert(route, blockIdx.y);
    if (expert < 0) return;
    if (warp == 0) {
        const int32_t n = routing_picks(route, j.n_picks, expert, list, KRN_EXPERT_PICKS_MAX);
        if (threadIdx.x == 0) n_list = n;
    }
    __syncthreads();
    for (int32_t c0 = 0; c0 < n_list; c0 += NT * SKINNY_N) {
        const int32_t n_x = min(n_list - c0, NT * SKINNY_N), row0 = n0 + warp / slices * MT * SKINNY_M;
        picks_sum<F, MT, NT>(j, expert, DOWN ? 1 : j.picks, list + c0, n_x, row0, slices, rings);
        __syncthreads();
        for (int32_t i = threadIdx.x; i < n_rows * n_x; i += SKINNY_THREADS) {
            const int32_t r = i % n_rows, n = n0 + r, inter = j.bank.n / 2;
            if (n >= j.bank.n) continue;
            const int64_t pick = list[c0 + i / n_rows];
            const float sum = skinny_joined<MT>(rings + r / (MT * SKINNY_M) * slices * SKINNY_WARP_BYTES, slices,
                                                r % (MT * SKINNY_M), i / n_rows);
            if (DOWN) j.slot[pick * j.bank.n + n] = skinny_f32(sum);
            else if (n < inter) j.gate[pick * inter + n] = krn_bf16_of(sum);                         /* R2 */
            else j.up[pick * inter + n - inter] = krn_bf16_of(sum);
        }
        __syncthreads(); /* the rings serve again */
    }
}

/* ---- summed over a row's picks ---- */

/* A block owns 16 columns of y and walks the used experts, as many at a time as it has warps for: slices of one, or fewer
 * slices of several. Thread i keeps the sums of elements i, i + 256: column i % 16 of row i / 16. */
template <krn_wformat F, int NT> __global__ static void __launch_bounds__(SKINNY_THREADS, 2) combine_kernel(const job j)
{
    enum { SUMS = SKINNY_M * NT * SKINNY_N / SKINNY_THREADS > 0 ? SKINNY_M * NT * SKINNY_N / SKINNY_THREADS : 1 };
    extern __shared__ __align__(16) uint8_t rings[];
    __shared__ routing route;
    __shared__ int16_t list[2][SKINNY_WARPS][NT * SKINNY_N]; /* by turns: one is read while the next is written */
    __shared__ int32_t n_list[2][SKINNY_WARPS];
    const int32_t slices = skinny_slices(F, j.bank.k), at_once = SKINNY_WARPS / slices;
    const int32_t warp = threadIdx.x / KRN_WARP, mine = warp / slices, n0 = blockIdx.x * SKINNY_M;
    const int32_t n_sums = j.n_picks / j.picks * SKINNY_M;
    float sum[SUMS] = {};

    routing_read(j, &route);
    for (int32_t first = 0, turn = 0; routing_expert(route, first) >= 0; first += at_once, turn ^= 1) {
        const int32_t expert = routing_expert(route, first + mine);
        if (warp % slices == 0) {
            const int32_t n = expert < 0 ? 0 : routing_picks(route, j.n_picks, expert, list[turn][mine], NT * SKINNY_N);
            if (threadIdx.x % KRN_WARP == 0) n_list[turn][mine] = n;
        }
        __syncthreads();
        if (expert >= 0)
            picks_sum<F, 1, NT>(j, expert, 1, list[turn][mine], n_list[turn][mine], n0, slices, rings);
        __syncthreads();
#pragma unroll
        for (int s = 0; s < SUMS; s++) {
            const int32_t i = threadIdx.x + s * SKINNY_THREADS, r = i % SKINNY_M, row = i / SKINNY_M;
            if (i >= n_sums) continue;
            for (int32_t m = 0; m < at_once; m++)
                for (int32_t c = 0; c < n_list[turn][m]; c++)
                    if (list[turn][m][c] / j.picks == row)
                        sum[s] = __fadd_rn(sum[s], skinny_joined<1>(rings + m * slices * SKINNY_WARP_BYTES, slices, r, c));
        }                                                                                            /* R3 */
    }
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
        const int32_t i = threadIdx.x + s * SKINNY_THREADS, n = n0 + i % SKINNY_M;
        if (i >= n_sums || n >= j.bank.n) continue;
        const int64_t at = (int64_t)(i / SKINNY_M) * j.bank.n + n;
        j.y[at] = skinny_f32(j.add ? __fadd_rn(sum[s], j.add[at]) : sum[s]);
    }
}

/* ---- the launchers ---- */

static err_code check(const char *op, const void *x, int32_t rows, int32_t picks, const krn_expert_bank *b, err *e)
{
    const bool fp4 = b->format == KRN_W_FP4;
    if (rows < 0 || picks < 1 || picks > KRN_EXPERT_PICKS_MAX || b->n_experts < 1 || b->n_experts > KRN_EXPERTS_MAX ||
        b->n < 1 || b->k < 1 || (!fp4 && b->format != KRN_W_BF16) || b->k % (fp4 ? 32 : 8))
        return err_set(e, ERR_ARG, "%s: rows=%d picks=%d n_experts=%d n=%d k=%d format=%d", op, rows, picks, b->n_experts,
                       b->n, b->k, (int)b->format);
    if (!krn_aligned(x) || !krn_aligned(b->data))
        return err_set(e, ERR_ARG, "%s: x or the weights do not begin at 16 bytes", op);
    return ERR_OK;
}

template <typename K> static err_code launch(const char *op, K *kernel, const job &j, dim3 grid, krn_stream s, err *e)
{
    TRY(skinny_prepare(op, kernel, e));
    kernel<<<grid, SKINNY_THREADS, SKINNY_SHARED_BYTES, s>>>(j);
    return krn_launched(op, e);
}

template <krn_wformat F, bool DOWN> static err_code launch_picks(const char *op, const job &j, krn_stream s, err *e)
{
    const int32_t n_rows = SKINNY_WARPS / skinny_slices(F, j.bank.k) * MT * SKINNY_M;
    const dim3 grid((unsigned)krn_blocks(j.bank.n, n_rows), (unsigned)min(j.n_picks, j.bank.n_experts));
    if (j.n_picks / j.picks <= SKINNY_N) return launch(op, picks_kernel<F, 1, DOWN>, j, grid, s, e);
    return launch(op, picks_kernel<F, 4, DOWN>, j, grid, s, e);
}

template <krn_wformat F> static err_code launch_combine(const char *op, const job &j, krn_stream s, err *e)
{
    const dim3 grid((unsigned)krn_blocks(j.bank.n, SKINNY_M));
    if (j.n_picks / j.picks <= SKINNY_N) return launch(op, combine_kernel<F, 1>, j, grid, s, e);
    return launch(op, combine_kernel<F, 4>, j, grid, s, e);
}

/* Rows of one launch. */
static int32_t rows_at_once(int32_t picks) { return min((int32_t)ROWS_MAX, KRN_EXPERT_PICKS_MAX / picks); }

extern "C" err_code krn_experts_up(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks,
                                   const krn_expert_bank *w13, bf16 *gate, bf16 *up, krn_stream stream, err *e)
{
    TRY(check("experts_up", x, rows, picks, w13, e));
    if (w13->n % 2) return err_set(e, ERR_ARG, "experts_up: n=%d is not w1 and w3", w13->n);
    for (int32_t r = 0, n; r < rows; r += n) {
        n = min(rows - r, rows_at_once(picks));
        const int64_t pick = (int64_t)r * picks, at = pick * (w13->n / 2);
        const job j = { x + (int64_t)r * w13->k, ids + pick, picks, n * picks, *w13, gate + at, up + at };
        TRY((w13->format == KRN_W_FP4 ? launch_picks<KRN_W_FP4, false> : launch_picks<KRN_W_BF16, false>)("experts_up", j,
                                                                                                          stream, e));
    }
    return ERR_OK;
}

extern "C" err_code krn_experts_down(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                     const krn_expert_bank *w2, float *slot, krn_stream stream, err *e)
{
    TRY(check("experts_down", h, rows, picks, w2, e));
    for (int32_t r = 0, n; r < rows; r += n) {
        n = min(rows - r, rows_at_once(picks));
        const int64_t pick = (int64_t)r * picks;
        const job j = { h + pick * w2->k, ids + pick, picks, n * picks, *w2, NULL, NULL, slot + pick * w2->n };
        TRY((w2->format == KRN_W_FP4 ? launch_picks<KRN_W_FP4, true> : launch_picks<KRN_W_BF16, true>)("experts_down", j,
                                                                                                       stream, e));
    }
    return ERR_OK;
}

extern "C" err_code krn_experts_down_combine(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                             const krn_expert_bank *w2, const float *add, float *y, krn_stream stream,
                                             err *e)
{
    TRY(check("experts_down_combine", h, rows, picks, w2, e));
    for (int32_t r = 0, n; r < rows; r += n) {
        n = min(rows - r, rows_at_once(picks));
        const int64_t pick = (int64_t)r * picks, at = (int64_t)r * w2->n;
        const float *add_at = add ? add + at : NULL;
        const job j = { h + pick * w2->k, ids + pick, picks, n * picks, *w2, NULL, NULL, NULL, add_at, y + at };
        TRY((w2->format == KRN_W_FP4 ? launch_combine<KRN_W_FP4> : launch_combine<KRN_W_BF16>)("experts_down_combine", j,
                                                                                              stream, e));
    }
    return ERR_OK;
}
