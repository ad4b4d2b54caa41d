/* Routed experts: a block finds on the device which expert it works for, then multiplies only the rows that picked it. */
#include "kernels/experts.h"

#include "kernels/launch.cuh"
#include "kernels/skinny.cuh"

enum { ROWS_MAX = SKINNY_ROWS_MAX, SLICES_MAX = 8 };

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

enum { NOBODY = INT32_MAX }; /* no expert's id */

/* What a block knows of the ids. */
struct routing {
    __align__(16) int32_t id[KRN_EXPERT_PICKS_MAX];    /* of every pick */
    __align__(16) int32_t named[KRN_EXPERT_PICKS_MAX]; /* the same for the first pick of an expert, NOBODY for others */
    int32_t cost[KRN_EXPERT_PICKS_MAX];                /* of a tile of that expert */
    int32_t n_used;                                    /* experts that some pick names; of these, ids ascending: */
    int32_t expert[KRN_EXPERT_PICKS_MAX];
    int32_t before[KRN_EXPERT_PICKS_MAX + 1];          /* cost of a tile of each expert before it; at n_used, of all */
};
static_assert(KRN_EXPERT_PICKS_MAX <= skinny_threads(4) && KRN_EXPERT_PICKS_MAX % 4 == 0, "a pick a thread");

/* What a tile takes, roughly, as measured: FP4 is bound by instructions, of which more tiles of x make more. */
__device__ __forceinline__ static int32_t tile_cost(krn_wformat f, int32_t n_picks)
{
    return f == KRN_W_FP4 ? 3 + (n_picks - 1) / SKINNY_N : 1;
}

/* Every thread calls; ends in a __syncthreads. */
__device__ static void routing_read(const job &j, routing *r)
{
    const int32_t p = threadIdx.x, padded = (j.n_picks + 3) / 4 * 4;
    int32_t id = NOBODY, same = 0, lower = 0, cost_lower = 0;
    if (p < padded) {
        if (p < j.n_picks) id = j.ids[p];
        if (id < 0 || id >= j.bank.n_experts) id = NOBODY;
        r->id[p] = id;
    }
    __syncthreads();
    bool first = id != NOBODY;
    for (int32_t i = 0; first && i < padded; i += 4) {
        const int4 v = *(const int4 *)&r->id[i];
        const int32_t others[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (others[c] != id) continue;
            same++;
            first = first && i + c >= p;
        }
    }
    const int32_t cost = first ? tile_cost(j.bank.format, same) : 0;
    if (p < padded) {
        r->named[p] = first ? id : (int32_t)NOBODY;
        r->cost[p] = cost;
    }
    const int32_t n_used = __syncthreads_count(first);
    if (first) {
        for (int32_t i = 0; i < padded; i++) {
            const bool below = r->named[i] < id;
            lower += below;
            cost_lower += below ? r->cost[i] : 0;
        }
        r->expert[lower] = id;
        r->before[lower] = cost_lower;
        if (lower == n_used - 1) r->before[n_used] = cost_lower + cost;
    }
    if (p == 0) {
        r->n_used = n_used;
        if (n_used == 0) r->before[0] = 0;
    }
    __syncthreads();
}

/* Where a share of the work ends: tile `tile` of the used expert `used`. All tiles, each as long as it costs, lie end to
 * end: this is the one that covers `at`, or n_used and 0 for the end of all. The whole warp calls. */
struct position { int32_t used, tile; };
__device__ static position routing_find(const routing &r, uint32_t tiles, uint32_t at)
{
    int32_t used = -1;
    for (int32_t i0 = 0; i0 <= r.n_used; i0 += KRN_WARP) {
        const int32_t i = i0 + threadIdx.x % KRN_WARP;
        used += __popc(__ballot_sync(0xffffffff, i <= r.n_used && r.before[i] * tiles <= at));
    }
    if (used == r.n_used) return { used, 0 };
    return { used, (int32_t)((at - r.before[used] * tiles) / (uint32_t)(r.before[used + 1] - r.before[used])) };
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

/* The rows of all experts, one expert's after the other's. */
__device__ static krn_weight bank_rows(const krn_expert_bank &b)
{
    const int64_t row_bytes = b.format == KRN_W_FP4 ? b.k / 2 : 2 * (int64_t)b.k;
    return { b.format, b.n_experts * b.n, b.k, b.data, row_bytes, b.scale, b.k / 32, 0 };
}

/* ---- every pick by itself ---- */

/* What a team multiplies, a run for each expert. */
struct share {
    const routing &route;
    int32_t n, tiles; /* rows of an expert; their tiles */
    position at, last;

    __device__ __forceinline__ bool next(int32_t *row0, int32_t *end)
    {
        if (at.used > last.used || (at.used == last.used && at.tile >= last.tile)) return false;
        const int32_t first = route.expert[at.used] * n, until = at.used < last.used ? tiles : last.tile;
        *row0 = first + at.tile * SKINNY_M;
        *end = first + min(until * SKINNY_M, n);
        at = { at.used + 1, 0 };
        return true;
    }
};

/* A run (R1) for the picks of a list, 1 to ROWS_MAX; store(i, row, sum) gets those of list[i]. Most experts have few rows,
 * however many the call has: they do not carry the tiles of the others. */
template <krn_wformat F, int MT, int NT, typename STORE>
__device__ __forceinline__ void run_product(const skinny_team &team, skinny_stream<F, MT, share> &stream, int32_t row0,
                                            int32_t end, const job &j, int32_t picks_a_row, const int16_t *list, int32_t n,
                                            STORE store)
{
    const bf16 *x[NT]; /* [k] */
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int32_t c = min(i * SKINNY_N + (int32_t)(threadIdx.x % KRN_WARP / 4), n - 1);
        x[i] = j.x + (int64_t)(list[c] / picks_a_row) * j.bank.k;
    }
    skinny_product<F, MT, NT>(team, stream, row0, end, j.bank.k, x, n, store);
}

/* The tiles of all used experts, in a row, are divided over the teams of all blocks, to equal cost. No expert has more than
 * 8 MOST picks. */
template <krn_wformat F, int MT, int MOST, bool DOWN>
__global__ static void __launch_bounds__(skinny_threads(MT), 1) picks_kernel(const job j, const skinny_split split)
{
    krn_begin();
    if (MT > 1 && !SKINNY_LARGE) return; /* is not launched */
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ routing route;
    __shared__ int16_t lists[skinny_warps(MT)][ROWS_MAX];
    const skinny_team team(shared, split, MT, MOST);
    const krn_weight bank = bank_rows(j.bank);
    const int32_t inter = j.bank.n / 2;
    int16_t *list = lists[threadIdx.x / KRN_WARP]; /* every warp its own: no barrier */

    routing_read(j, &route);
    const uint32_t tiles = (j.bank.n - 1) / SKINNY_M + 1, all = route.before[route.n_used] * tiles;
    const uint32_t teams = gridDim.x * split.teams(MT), each = all / teams, more = all % teams;
    const uint32_t index = blockIdx.x * split.teams(MT) + team.index;
    share mine = { route, j.bank.n, (int32_t)tiles, routing_find(route, tiles, split.first(index, each, more)),
                   routing_find(route, tiles, split.first(index + 1, each, more)) };
    skinny_stream<F, MT, share> stream(bank, mine, team.slice, team.slices, team.ring);
    for (int32_t row0, end; mine.next(&row0, &end);) {
        const int32_t expert = row0 / j.bank.n, row_of = expert * j.bank.n, per = DOWN ? 1 : j.picks;
        const int32_t n = routing_picks(route, j.n_picks, expert, list, MOST * SKINNY_N);
        auto store = [&](int32_t i, int32_t bank_row, float sum) {
            const int64_t pick = list[i];
            const int32_t row = bank_row - row_of;
            if (DOWN) j.slot[pick * j.bank.n + row] = skinny_f32(sum);
            else if (row < inter) j.gate[pick * inter + row] = krn_bf16_of(sum);                     /* R2 */
            else j.up[pick * inter + row - inter] = krn_bf16_of(sum);
        };
        __syncwarp(); /* the list */
        if (MOST == 1 || n <= SKINNY_N) run_product<F, MT, 1>(team, stream, row0, end, j, per, list, n, store);
        else if (MOST == 2 || n <= 2 * SKINNY_N) run_product<F, MT, 2>(team, stream, row0, end, j, per, list, n, store);
        else run_product<F, MT, 3>(team, stream, row0, end, j, per, list, n, store);
        __syncwarp(); /* the list is free */
    }
    stream.finish();
}

/* ---- summed over a row's picks ---- */

/* A block owns 16 columns of y and walks the used experts, as many at a time as it has teams. Thread i keeps the sum of
 * column i % 16 of row i / 16. */
template <krn_wformat F, int NT>
__global__ static void __launch_bounds__(skinny_threads(1), 1) combine_kernel(const job j, const skinny_split split)
{
    static_assert(ROWS_MAX * SKINNY_M <= skinny_threads(1), "a sum a thread");
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ routing route;
    __shared__ int16_t list[2][skinny_warps(1)][NT * SKINNY_N]; /* by turns: one is read while the next is written */
    __shared__ int32_t n_list[2][skinny_warps(1)];
    krn_begin();
    const int32_t slices = split.slices, at_once = split.teams(1);
    const skinny_team team(shared, split, 1, NT);
    const int32_t mine = team.index, n0 = blockIdx.x * SKINNY_M, r = threadIdx.x % SKINNY_M, row = threadIdx.x / SKINNY_M;
    const bool own = row < j.n_picks / j.picks && n0 + r < j.bank.n;
    const uint8_t *all_sums = shared + skinny_warps(1) * skinny_ring_bytes(1);
    const krn_weight bank = bank_rows(j.bank);
    float sum = 0;

    routing_read(j, &route);
    for (int32_t first = 0, turn = 0; first < route.n_used; first += at_once, turn ^= 1) {
        const int32_t expert = first + mine < route.n_used ? route.expert[first + mine] : -1;
        if (team.slice == 0) {
            const int32_t n = expert < 0 ? 0 : routing_picks(route, j.n_picks, expert, list[turn][mine], NT * SKINNY_N);
            if (threadIdx.x % KRN_WARP == 0) n_list[turn][mine] = n;
        }
        __syncthreads();
        if (expert >= 0) {
            const bf16 *x[NT]; /* [k] */
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const int32_t c = min(i * SKINNY_N + (int32_t)(threadIdx.x % KRN_WARP / 4), n_list[turn][mine] - 1);
                x[i] = j.x + (int64_t)list[turn][mine][c] * j.bank.k;
            }
            const int32_t row0 = expert * j.bank.n + n0, end = expert * j.bank.n + min(n0 + SKINNY_M, j.bank.n);
            skinny_stream<F, 1, skinny_run> stream(bank, { row0, end }, team.slice, slices, team.ring);
            skinny_walk<F, 1, NT>(stream, row0, end, team.slice, slices, j.bank.k, x,
                                  [&](int32_t, const float acc[1][NT][4]) { skinny_keep<1, NT>(team, acc); });
            stream.finish();
        }
        __syncthreads();
        if (!own) continue;
        for (int32_t m = 0; m < at_once; m++)
            for (int32_t c = 0; c < n_list[turn][m]; c++)
                if (list[turn][m][c] / j.picks == row) {
                    const uint8_t *sums = all_sums + m * slices * skinny_sums_bytes(1, NT);
                    sum = __fadd_rn(sum, skinny_joined<1, NT>(sums, slices, r, c));                  /* R3 */
                }
    }
    if (!own) return;
    const int64_t at = (int64_t)row * j.bank.n + n0 + r;
    j.y[at] = skinny_f32(j.add ? __fadd_rn(sum, j.add[at]) : sum);
}

/* ---- the launchers ---- */


static err_code check(const char *op, const void *x, int32_t rows, int32_t picks, const krn_expert_bank *b, err *e)
{
    const bool fp4 = b->format == KRN_W_FP4;
    if (rows < 0 || picks < 1 || picks > KRN_EXPERT_PICKS_MAX || b->n_experts < 1 || b->n_experts > KRN_EXPERTS_MAX ||
        b->n < 1 || b->n > INT32_MAX / KRN_EXPERTS_MAX || b->k < 1 ||
        (!fp4 && b->format != KRN_W_BF16) || b->k % (fp4 ? 32 : 8))
        return err_set(e, ERR_ARG, "%s: rows=%d picks=%d n_experts=%d n=%d k=%d format=%d", op, rows, picks, b->n_experts,
                       b->n, b->k, (int)b->format);
    if (!krn_aligned(x) || !krn_aligned(b->data))
        return err_set(e, ERR_ARG, "%s: x or the weights do not begin at 16 bytes", op);
    return ERR_OK;
}

template <typename K>
static err_code launch(const char *op, K *kernel, int mt, const job &j, const skinny_split &split, int64_t blocks,
                       int32_t shared_bytes, krn_stream s, err *e)
{
    TRY(skinny_prepare(op, kernel, shared_bytes, e));
    krn_launch(kernel, (unsigned)blocks, skinny_threads(mt), shared_bytes, s, j, split);
    return krn_launched(op, e);
}

/* One block for every multiprocessor, fewer where there cannot be a tile for every team. More tiles a warp read x, and make
 * its pairs, less often. */
template <krn_wformat F, int MT, int MOST, bool DOWN>
static err_code launch_tiles(const char *op, const job &j, const skinny_device &device, krn_stream s, err *e)
{
    const skinny_split split(skinny_slices(F, j.bank.k, SLICES_MAX));
    const int64_t tiles = krn_blocks(j.bank.n, SKINNY_M) * min(j.n_picks, j.bank.n_experts);
    if (tiles > INT32_MAX / 8) return err_set(e, ERR_ARG, "%s: n=%d is too much for one launch", op, j.bank.n);
    const int64_t blocks = min((int64_t)device.n_sm, krn_blocks(tiles, split.teams(MT)));
    return launch(op, picks_kernel<F, MT, MOST, DOWN>, MT, j, split, blocks, device.shared_bytes(MT, MOST), s, e);
}
template <krn_wformat F, int MOST, bool DOWN>
static err_code launch_most(const char *op, const job &j, krn_stream s, err *e)
{
    skinny_device device = {};
    TRY(skinny_device_get(op, &device, e));
    return device.large ? launch_tiles<F, 2, MOST, DOWN>(op, j, device, s, e)
                        : launch_tiles<F, 1, MOST, DOWN>(op, j, device, s, e);
}

template <krn_wformat F, bool DOWN> static err_code launch_picks(const char *op, const job &j, krn_stream s, err *e)
{
    switch (krn_blocks(j.n_picks / j.picks, SKINNY_N)) {
    case 1: return launch_most<F, 1, DOWN>(op, j, s, e);
    case 2: return launch_most<F, 2, DOWN>(op, j, s, e);
    default: return launch_most<F, 3, DOWN>(op, j, s, e);
    }
}

template <krn_wformat F> static err_code launch_combine(const char *op, const job &j, krn_stream s, err *e)
{
    skinny_device device = {};
    TRY(skinny_device_get(op, &device, e));
    const skinny_split split(skinny_slices(F, j.bank.k, SLICES_MAX));
    const int64_t blocks = krn_blocks(j.bank.n, SKINNY_M);
    if (j.n_picks / j.picks <= SKINNY_N)
        return launch(op, combine_kernel<F, 1>, 1, j, split, blocks, device.shared_bytes(1, 1), s, e);
    return launch(op, combine_kernel<F, 3>, 1, j, split, blocks, device.shared_bytes(1, 3), s, e);
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
