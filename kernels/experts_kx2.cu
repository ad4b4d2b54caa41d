/* The routed experts in one launch. The walk over the weights is experts_kx.cuh's, twice:
 *
 *   up       pairs of tiles, of w1 and of w3, are dealt out. Their team makes h and h_qdq of the 32 columns on the spot, a
 *            pick a warp: nothing passes between teams. Then it counts the pair
 *   down     tiles of w2 are dealt out. A warp's ring fills while h_qdq is still made elsewhere; a team begins when all
 *            pairs of its experts are counted
 *
 * A block reports when its teams have all that they wait for. When all have, one team zeroes the counters. */
#include "kernels/experts_kx2.h"

#include "kernels/experts_kx.cuh"
#include "kernels/qdq.cuh"
#include "kernels/swiglu.cuh"

/* Words of progress. A line for each counter: hundreds of teams look at one while others count. */
enum { LINE = 32, REPORTED = 0, COUNTERS = LINE };

struct job {
    const bf16 *x;
    const int32_t *ids;
    const float *weights;   /* or NULL */
    int32_t picks, n_picks; /* of a row; of all rows, at most KRN_EXPERT_PICKS_MAX */
    krn_kx_bank w13, w2;
    float limit;
    bf16 *gate, *up, *h, *h_qdq;
    float *slot;
    uint32_t *progress;
};

/* ---- progress ---- */

/* Adds n, after everything that this thread wrote, or that others wrote before a barrier with it. */
__device__ __forceinline__ void count(uint32_t *counter, uint32_t n)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}

/* Until n are counted: what was written before that is then there, for others after a barrier with this thread. */
__device__ __forceinline__ void wait_for(const uint32_t *counter, uint32_t n)
{
    for (;;) {
        uint32_t is;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is) : "l"(counter) : "memory");
        if (is == n) break;
        __nanosleep(32);
    }
}

/* ---- h ---- */

/* Element i, [n_picks, inter], of h and h_qdq. A warp calls for a group of ACT_QDQ. */
__device__ __forceinline__ void put_h(const job &j, int64_t pick, int64_t i, bf16 gate, bf16 up)
{
    const bf16 h = krn_swiglu_of(gate, up, j.weights ? j.weights[pick] : 1.0f, j.limit);
    j.h[i] = h;
    j.h_qdq[i] = krn_qdq_warp(h);
}

/* Of picks outside the bank, a row a block: from gate and up as they were. */
__device__ __forceinline__ void put_h_outside(const job &j, const kx_routing &route)
{
    const int32_t inter = j.w2.k;
    for (int32_t pick = blockIdx.x; pick < j.n_picks; pick += gridDim.x) {
        if (route.id[pick] >= 0) continue;
        for (int32_t c = threadIdx.x; c < inter; c += blockDim.x) {
            const int64_t i = (int64_t)pick * inter + c;
            put_h(j, pick, i, j.gate[i], j.up[i]);
        }
    }
}
static_assert((int)FMT_QDQ_GROUP == KRN_WARP && (int)KRN_KX_ROWS == KRN_WARP, "a warp makes a group, of a tile's rows");

/* Grid: a block for every multiprocessor. LARGE: of either bank; to scales that are not it makes no difference. */
template <bool LARGE>
__global__ static void __launch_bounds__(KX_WARPS_MAX *KRN_WARP, 1)
    kx2_kernel(const job j, const skinny_split up_split, const skinny_split down_split, int32_t most)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ kx_routing route;
    __shared__ int16_t lists[KX_WARPS_MAX][KX_ROWS_MAX];
    __shared__ int32_t n_ready; /* teams that have all that they wait for */
    krn_begin();
    const int32_t inter = j.w2.k, pairs = inter / KRN_KX_ROWS, n = j.w2.n;
    if (threadIdx.x == 0) n_ready = 0;
    kx_routing_read(j.ids, j.n_picks, j.w13.n_experts, &route);
    {
        const kx_operand in = { j.x, j.picks, j.w13 };
        const skinny_team team = kx_team(shared, up_split, most);
        kx_share own = kx_deal(route.n_used * pairs, up_split, team.index, blockIdx.x);
        own.unit *= 2, own.last *= 2;
        kx_stream<true> stream(route, j.w13, own, team);
        auto store = [&](int64_t pick, int32_t row, float sum) {
            if (row < inter) {
                j.gate[pick * inter + row] = krn_bf16_of(sum);
            } else {
                const int64_t i = pick * inter + row - inter;
                const bf16 gate = j.gate[i], up = krn_bf16_of(sum); /* this very thread wrote gate */
                j.up[i] = up;
                put_h(j, pick, i, gate, up);
            }
        };
        auto done = [&](int32_t used, int32_t units) {
            if (team.thread() == 0) count(j.progress + COUNTERS + used * LINE, (uint32_t)units / 2);
        };
        kx_walk<LARGE, true>(team, stream, route, j.n_picks, in, own, lists, store, done);
        stream.finish();
    }
    const kx_operand in = { j.h_qdq, 1, j.w2 };
    const skinny_team team = kx_team(shared, down_split, most);
    const int32_t tiles = krn_kx_tiles(n);
    /* The other way around: blocks that had a pair more do not get the tile more. */
    const kx_share own = kx_deal(route.n_used * tiles, down_split, team.index, gridDim.x - 1 - blockIdx.x);
    kx_stream<false> stream(route, j.w2, own, team);
    put_h_outside(j, route);
    __syncthreads(); /* named barriers and sums become those of other teams */
    if (team.thread() == 0) {
        for (int32_t unit = own.unit; unit < own.last; unit += tiles - unit % tiles)
            wait_for(j.progress + COUNTERS + unit / tiles * LINE, (uint32_t)pairs);
        const int32_t teams = blockDim.x / KRN_WARP >> down_split.log2_slices;
        if (atomicAdd(&n_ready, 1) == teams - 1) atomicAdd(j.progress + REPORTED, 1);
    }
    __syncwarp();
    team.sync();
    auto store = [&](int64_t pick, int32_t row, float sum) { j.slot[pick * n + row] = skinny_f32(sum); };
    kx_walk<LARGE, false>(team, stream, route, j.n_picks, in, own, lists, store, [](int32_t, int32_t) {});
    stream.finish();
    /* The first thread of the last team, which got the least to do. All blocks have long seen the counters. */
    if (blockIdx.x == 0 && threadIdx.x == blockDim.x - (KRN_WARP << down_split.log2_slices)) {
        wait_for(j.progress + REPORTED, gridDim.x);
        for (int32_t used = 0; used < route.n_used; used++) j.progress[COUNTERS + used * LINE] = 0;
        j.progress[REPORTED] = 0;
    }
}

/* ---- the launcher ---- */

static err_code launch(const job &j, krn_stream s, err *e)
{
    skinny_device device = {};
    TRY(skinny_device_get("experts_kx2", &device, e));
    const skinny_split up_split = kx_split(&j.w13), down_split = kx_split(&j.w2);
    const kx_grid grid(device, j.n_picks, j.picks, j.w2.n_experts);
    const int32_t blocks = max(grid.blocks(j.w2.k / KRN_KX_ROWS, up_split), grid.blocks(krn_kx_tiles(j.w2.n), down_split));
    auto *kernel = j.w13.large || j.w2.large ? kx2_kernel<true> : kx2_kernel<false>;
    TRY(skinny_prepare("experts_kx2", kernel, grid.shared_bytes, e));
    krn_launch(kernel, (unsigned)blocks, (unsigned)grid.warps * KRN_WARP, grid.shared_bytes, s, j, up_split, down_split,
               grid.most);
    return krn_launched("experts_kx2", e);
}

extern "C" int64_t krn_kx2_progress_bytes(int32_t n_experts)
{
    return (COUNTERS + (int64_t)min(n_experts, (int32_t)KRN_EXPERT_PICKS_MAX) * LINE) * (int64_t)sizeof(uint32_t);
}

extern "C" err_code krn_experts_kx2(const bf16 *x, const int32_t *ids, const float *weights, int32_t rows, int32_t picks,
                                    const krn_kx_bank *w13, const krn_kx_bank *w2, float limit, bf16 *gate, bf16 *up,
                                    bf16 *h, bf16 *h_qdq, float *slot, uint32_t *progress, krn_stream stream, err *e)
{
    TRY(kx_check("experts_kx2", x, rows, picks, w13, e));
    TRY(kx_check("experts_kx2", h_qdq, rows, picks, w2, e));
    const int32_t inter = w2->k;
    if (w13->n != 2 * (int64_t)inter || w13->n_experts != w2->n_experts)
        return err_set(e, ERR_ARG, "experts_kx2: w13 n=%d of %d experts, w2 k=%d of %d: wanted n twice k and as many",
                       w13->n, w13->n_experts, inter, w2->n_experts);
    for (int32_t r = 0, n; r < rows; r += n) {
        n = min(rows - r, kx_rows_at_once(picks));
        const int64_t pick = (int64_t)r * picks, at = pick * inter;
        const job j = { x + (int64_t)r * w13->k, ids + pick, weights ? weights + pick : NULL, picks, n * picks, *w13, *w2,
                        limit, gate + at, up + at, h + at, h_qdq + at, slot + pick * w2->n, progress };
        TRY(launch(j, stream, e));
    }
    return ERR_OK;
}
