/* The walk over routed experts in fragment-ordered FP4 (kernels/experts_kx.h), shared by experts_kx.cu and experts_kx2.cu.
 *
 *   unit     a tile of a used expert: 32 rows of the weight. All units lie end to end and are dealt out to the teams of all
 *            blocks; a team is the S warps that split a unit's steps (skinny.cuh). PAIRS: the unit after a tile of w1 is
 *            the same tile of w3, and both go to one team
 *   stream   a warp's own ring of blocks, filled by cp.async three steps ahead, across units too: about 100 KiB are under
 *            way on every multiprocessor. A lane copies the codes that it multiplies itself
 *   decode   nine instructions for eight codes, then a bf16 multiplication a pair by its scale, as in skinny.cuh. Of what
 *            bounds experts.cu, the logic unit, this takes about half
 *
 * Which k an mma adds, and in which order they and the slices are added, is experts.cu's: the bits are the same. Which team
 * has which unit changes none. */
#ifndef KERNELS_EXPERTS_KX_CUH
#define KERNELS_EXPERTS_KX_CUH

#include "kernels/experts_kx.h"

#include "kernels/launch.cuh"
#include "kernels/skinny.cuh"

enum {
    KX_MT = KRN_KX_ROWS / SKINNY_M, /* tiles of the mma in a unit's rows */
    KX_SLOTS = 4,
    KX_SLICES_MAX = 8,
    KX_WARPS_MAX = 16, KX_WARPS_SMALL = 8, /* of a block; the latter where shared memory is 99 KiB */
    KX_RING_BYTES = KX_SLOTS * KRN_KX_BLOCK_BYTES,
    KX_ROWS_MAX = SKINNY_ROWS_MAX,
    KX_NAMED_WORDS = KRN_EXPERTS_MAX / 32,
};

/* Rows of x and the bank that they are multiplied with. */
struct kx_operand {
    const bf16 *x;
    int32_t picks; /* that share a row of x: all of a row of ids, or 1 */
    krn_kx_bank bank;
};

/* ---- which experts, which rows ---- */

struct kx_routing {
    uint32_t named[KX_NAMED_WORDS];         /* a bit for each expert that some pick names */
    int32_t id[KRN_EXPERT_PICKS_MAX];    /* of every pick, -1 where it is outside the bank */
    int32_t n_used;
    int32_t expert[KRN_EXPERT_PICKS_MAX]; /* the named ones, ascending */
};
static_assert(KRN_EXPERT_PICKS_MAX <= KX_WARPS_SMALL * KRN_WARP, "a pick a thread");

/* Of ids [n_picks], at most KRN_EXPERT_PICKS_MAX. Every thread calls; ends in a __syncthreads. */
__device__ static void kx_routing_read(const int32_t *ids, int32_t n_picks, int32_t n_experts, kx_routing *r)
{
    const int32_t p = threadIdx.x, words = (n_experts - 1) / 32 + 1;
    int32_t id = -1, lower = 0, used = 0;
    bool first = false;
    if (p < words) r->named[p] = 0;
    if (p < n_picks) {
        id = ids[p];
        if (id < 0 || id >= n_experts) id = -1;
        r->id[p] = id;
    }
    __syncthreads();
    if (id >= 0) first = (atomicOr(&r->named[id / 32], 1u << id % 32) >> id % 32 & 1) == 0;
    __syncthreads();
    for (int32_t i = 0; i < words; i++) {
        const uint32_t bits = r->named[i];
        used += __popc(bits);
        if (first && i < id / 32) lower += __popc(bits);
        else if (first && i == id / 32) lower += __popc(bits & ((1u << id % 32) - 1));
    }
    if (first) r->expert[lower] = id;
    if (p == 0) r->n_used = used;
    __syncthreads();
}

/* The picks of an expert, ascending, at most KX_ROWS_MAX, into list. Returns their number. The whole warp calls. */
__device__ static int32_t kx_routing_picks(const kx_routing &r, int32_t n_picks, int32_t expert, int16_t *list)
{
    const int32_t lane = threadIdx.x % KRN_WARP;
    int32_t n = 0;
    for (int32_t p0 = 0; p0 < n_picks; p0 += KRN_WARP) {
        const bool mine = p0 + lane < n_picks && r.id[p0 + lane] == expert;
        const uint32_t those = __ballot_sync(0xffffffff, mine);
        const int32_t at = n + __popc(those & ((1u << lane) - 1));
        if (mine && at < KX_ROWS_MAX) list[at] = (int16_t)(p0 + lane);
        n += __popc(those);
    }
    return min(n, (int32_t)KX_ROWS_MAX);
}

/* ---- who does which units ---- */

struct kx_share { int32_t unit, last; };

/* This team's of `units`. The blocks' first teams come before their second ones, so that no multiprocessor has two units
 * more than another. block: of gridDim.x. */
__device__ __forceinline__ kx_share kx_deal(int32_t units, const skinny_split &split, int32_t team, uint32_t block)
{
    const uint32_t all_teams = gridDim.x * (blockDim.x / KRN_WARP >> split.log2_slices);
    const uint32_t index = (uint32_t)team * gridDim.x + block;
    const uint32_t each = (uint32_t)units / all_teams, more = (uint32_t)units % all_teams;
    return { (int32_t)split.first(index, each, more), (int32_t)split.first(index + 1, each, more) };
}

/* most: the most tiles of x that an expert can need. */
__device__ __forceinline__ skinny_team kx_team(uint8_t *shared, const skinny_split &split, int32_t most)
{
    const int32_t warps = blockDim.x / KRN_WARP, warp = threadIdx.x / KRN_WARP;
    skinny_team team(shared, split, KX_MT, most);
    team.ring = shared + warp * KX_RING_BYTES;
    team.sums = shared + warps * KX_RING_BYTES + (warp - team.slice) * skinny_sums_bytes(KX_MT, most);
    return team;
}

/* The tile of an expert's i-th unit. */
template <bool PAIRS> __device__ __forceinline__ int32_t kx_tile(int32_t i, int32_t tiles)
{
    return PAIRS ? i % 2 * (tiles / 2) + i / 2 : i;
}

/* ---- what a warp reads ---- */

/* Steps slice, slice + slices, ... of units [unit, last), one after the other. */
template <bool PAIRS> class kx_stream {
    const kx_routing &route;
    const krn_kx_bank &bank;
    const int32_t tiles, steps, slice, slices, last;
    int32_t unit, step; /* what is copied next: nothing where unit is last */
    const uint8_t *from;
    uint8_t *ring;
    int32_t slot, feed_slot;

    __device__ __forceinline__ void find_unit()
    {
        const int64_t tile = (int64_t)route.expert[unit / tiles] * tiles + kx_tile<PAIRS>(unit % tiles, tiles);
        from = bank.blocks + tile * steps * KRN_KX_BLOCK_BYTES;
    }

    __device__ __forceinline__ void feed()
    {
        if (unit < last) {
            const int32_t lane = threadIdx.x % KRN_WARP;
            const uint8_t *block = from + step * KRN_KX_BLOCK_BYTES + lane * 16;
            uint8_t *to = ring + feed_slot * KRN_KX_BLOCK_BYTES + lane * 16;
#pragma unroll
            for (int c = 0; c < 4; c++) skinny_copy16(to + c * KRN_KX_CHUNK_BYTES, block + c * KRN_KX_CHUNK_BYTES, true);
            if (lane < 8) skinny_copy16(to + KRN_KX_SCALES, block + KRN_KX_SCALES, true);
            step += slices;
            if (step >= steps) {
                step = slice;
                if (++unit < last) find_unit();
            }
        }
        skinny_commit();
    }

public:
    __device__ __forceinline__ kx_stream(const kx_routing &route_, const krn_kx_bank &bank_, const kx_share &own,
                                         const skinny_team &team)
        : route(route_), bank(bank_), tiles(krn_kx_tiles(bank_.n)), steps(krn_kx_steps(bank_.k)), slice(team.slice),
          slices(team.slices), last(own.last), unit(own.unit), step(team.slice), from(NULL), ring(team.ring), slot(0)
    {
        if (unit < last) find_unit();
#pragma unroll
        for (int i = 0; i < KX_SLOTS - 1; i++) {
            feed_slot = i;
            feed();
        }
        feed_slot = KX_SLOTS - 1;
    }

    /* The next block: until the call after this one. */
    __device__ __forceinline__ const uint8_t *take()
    {
        const uint8_t *block = ring + slot * KRN_KX_BLOCK_BYTES;
        skinny_wait<KX_SLOTS - 2>();
        __syncwarp(); /* what other lanes copied is there; and all are done with the slot that is filled next */
        feed();
        feed_slot = slot;
        slot = slot + 1 == KX_SLOTS ? 0 : slot + 1;
        return block;
    }

    /* After all steps: the ring is free. */
    __device__ __forceinline__ void finish()
    {
        skinny_wait<0>();
        __syncwarp();
    }
};

/* ---- what it multiplies ---- */

/* Eight codes of a row as pairs of weights. scales: of four rows; j: which of them is this one's. A large scale takes two
 * multiplications, as in skinny_factor. */
template <bool LARGE>
__device__ __forceinline__ void kx_decode(uint32_t code, uint32_t scales, int j, uint32_t pair[4])
{
    constexpr uint32_t TWICE = 0x00800080, LIMIT = KRN_KX_SCALE_SMALL; /* an exponent's 1, in both halves */
    const uint32_t b = __byte_perm(scales, 0, 0x4440 + j);
    const uint32_t first = (LARGE ? min(b, LIMIT) : b) * TWICE + (254 - LIMIT) * TWICE;
    const uint32_t second = LARGE ? (max(b, LIMIT) - LIMIT + 127) * TWICE : 0;
    krn_kx_place(code, pair);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pair[i] = skinny_mul2(pair[i], first);
        if (LARGE) pair[i] = skinny_mul2(pair[i], second);
    }
}

/* acc += one step, whose columns of x begin for the lane at k. Takes x of the step after from column next on. */
template <bool LARGE, int NT>
__device__ __forceinline__ void kx_step(const uint8_t *block, skinny_x<KRN_W_FP4, KX_MT, NT> &own, const bf16 *const x[NT],
                                        int32_t k, int32_t next, int32_t end, float acc[KX_MT][NT][4])
{
    constexpr int PIECES = skinny_x<KRN_W_FP4, KX_MT, NT>::PIECES, AHEAD = skinny_x<KRN_W_FP4, KX_MT, NT>::AHEAD;
    const int32_t lane = threadIdx.x % KRN_WARP;
    const uint4 scales = *(const uint4 *)(block + KRN_KX_SCALES + lane / 4 * 16);
    const uint32_t scale[4] = { scales.x, scales.y, scales.z, scales.w }; /* of a chunk: rows g, g + 8, g + 16, g + 24 */
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        const uint4 codes = *(const uint4 *)(block + c * KRN_KX_CHUNK_BYTES + lane * 16);
        const uint32_t code[2 * KX_MT] = { codes.x, codes.y, codes.z, codes.w };
        uint32_t pair[NT][4];
#pragma unroll
        for (int j = 0; j < NT; j++) skinny_pairs<KRN_W_FP4>(own.of[c % AHEAD][j], pair[j]);
        if (c + AHEAD < PIECES) own.load(x, k, end, c + AHEAD);
        else own.load(x, next, end, c + AHEAD - PIECES);
#pragma unroll
        for (int i = 0; i < KX_MT; i++) {
            uint32_t w[2][4]; /* rows g and g + 8 of the i-th 16 */
#pragma unroll
            for (int r = 0; r < 2; r++) kx_decode<LARGE>(code[2 * i + r], scale[c], 2 * i + r, w[r]);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    skinny_mma(acc[i][j], w[0][2 * h], w[1][2 * h], w[0][2 * h + 1], w[1][2 * h + 1], pair[j][2 * h],
                               pair[j][2 * h + 1]);
        }
    }
}
static_assert(KX_MT == 2, "a lane's 16 bytes are its rows of two tiles");

/* Units [unit, end) of an expert, which come next in the stream, times the n rows of x that the picks of list name, n <=
 * 8 NT; store(i, row, sum) gets the sums of list[i] (R1). */
template <bool LARGE, bool PAIRS, int NT, typename STORE>
__device__ __forceinline__ void kx_run(const skinny_team &team, kx_stream<PAIRS> &stream, const kx_operand &in,
                                       int32_t unit, int32_t end, const int16_t *list, int32_t n, STORE store)
{
    const int32_t steps = krn_kx_steps(in.bank.k), k_end = in.bank.k, tiles = krn_kx_tiles(in.bank.n);
    const int32_t lane_k = skinny_column(KRN_W_FP4, threadIdx.x % 4, 0), first_k = team.slice * KRN_KX_COLUMNS + lane_k;
    const bf16 *x[NT]; /* [k] */
    skinny_x<KRN_W_FP4, KX_MT, NT> own;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int32_t c = min(i * SKINNY_N + (int32_t)(threadIdx.x % KRN_WARP / 4), n - 1);
        x[i] = in.x + (int64_t)(list[c] / in.picks) * k_end;
    }
#pragma unroll
    for (int c = 0; c < skinny_x<KRN_W_FP4, KX_MT, NT>::AHEAD; c++) own.load(x, first_k, k_end, c);
    for (; unit < end; unit++) {
        float acc[KX_MT][NT][4] = {};
#pragma unroll 1
        for (int32_t step = team.slice; step < steps; step += team.slices) {
            const int32_t k = step * KRN_KX_COLUMNS + lane_k;
            const int32_t next = step + team.slices < steps ? k + team.slices * KRN_KX_COLUMNS : first_k;
            kx_step<LARGE, NT>(stream.take(), own, x, k, next, k_end, acc);
        }
        skinny_keep<KX_MT, NT>(team, acc);
        team.sync();
        for (int32_t i = team.thread(); i < KRN_KX_ROWS * n; i += team.threads()) {
            const int32_t r = i % KRN_KX_ROWS, row = kx_tile<PAIRS>(unit, tiles) * KRN_KX_ROWS + r;
            if (row >= in.bank.n) continue;
            store(i / KRN_KX_ROWS, row, skinny_joined<KX_MT, NT>(team.sums, team.slices, r, i / KRN_KX_ROWS));
        }
        team.sync(); /* before the next sums */
    }
}

/* The team's share, whose warps' streams are at its beginning. lists: of a warp each, KX_ROWS_MAX picks. store(pick, row,
 * sum) is called by whole warps for 32 rows of a pick, or what there is of them; done(used, n) by every thread after the
 * stores of n units of the used-th expert. */
template <bool LARGE, bool PAIRS, typename STORE, typename DONE>
__device__ __forceinline__ void kx_walk(const skinny_team &team, kx_stream<PAIRS> &stream, const kx_routing &route,
                                        int32_t n_picks, const kx_operand &in, kx_share own, int16_t (*lists)[KX_ROWS_MAX],
                                        STORE store, DONE done)
{
    const int32_t tiles = krn_kx_tiles(in.bank.n);
    int16_t *list = lists[threadIdx.x / KRN_WARP]; /* every warp its own: no barrier */
    auto store_listed = [&](int32_t i, int32_t row, float sum) { store((int64_t)list[i], row, sum); };
    while (own.unit < own.last) {
        const int32_t used = own.unit / tiles, unit = own.unit % tiles, end = min(unit + own.last - own.unit, tiles);
        __syncwarp(); /* the list is free */
        const int32_t n = kx_routing_picks(route, n_picks, route.expert[used], list);
        __syncwarp(); /* the list */
        if (n <= SKINNY_N) kx_run<LARGE, PAIRS, 1>(team, stream, in, unit, end, list, n, store_listed);
        else if (n <= 2 * SKINNY_N) kx_run<LARGE, PAIRS, 2>(team, stream, in, unit, end, list, n, store_listed);
        else kx_run<LARGE, PAIRS, 3>(team, stream, in, unit, end, list, n, store_listed);
        own.unit += end - unit;
        done(used, end - unit);
    }
}

/* ---- the launchers ---- */

static inline err_code kx_check(const char *op, const void *x, int32_t rows, int32_t picks, const krn_kx_bank *b, err *e)
{
    if (rows < 0 || picks < 1 || picks > KRN_EXPERT_PICKS_MAX || b->n_experts < 1 || b->n_experts > KRN_EXPERTS_MAX ||
        b->n < 1 || b->n > INT32_MAX / KRN_EXPERTS_MAX || b->k < 1 || b->k % 32)
        return err_set(e, ERR_ARG, "%s: rows=%d picks=%d n_experts=%d n=%d k=%d", op, rows, picks, b->n_experts, b->n,
                       b->k);
    if (!krn_aligned(x) || !krn_aligned(b->blocks))
        return err_set(e, ERR_ARG, "%s: x or the weights do not begin at 16 bytes", op);
    return ERR_OK;
}

static inline skinny_split kx_split(const krn_kx_bank *b)
{
    return skinny_split(skinny_slices(KRN_W_FP4, b->k, KX_SLICES_MAX));
}

/* Rows of one launch. */
static inline int32_t kx_rows_at_once(int32_t picks) { return min((int32_t)KX_ROWS_MAX, KRN_EXPERT_PICKS_MAX / picks); }

/* A launch of n_picks picks, of at most kx_rows_at_once rows: a block for every multiprocessor at most. */
struct kx_grid {
    int32_t warps, most, shared_bytes; /* most: as in kx_team */
    int32_t n_sm, n_used_max;

    kx_grid(const skinny_device &device, int32_t n_picks, int32_t picks, int32_t n_experts)
        : warps(device.large ? KX_WARPS_MAX : KX_WARPS_SMALL), most((int32_t)krn_blocks(n_picks / picks, SKINNY_N)),
          shared_bytes(warps * (KX_RING_BYTES + skinny_sums_bytes(KX_MT, most))), n_sm(device.n_sm),
          n_used_max(min(n_picks, n_experts))
    {
    }
    /* For `units` of every used expert. */
    int32_t blocks(int32_t units, const skinny_split &split) const
    {
        return (int32_t)min((int64_t)n_sm, krn_blocks((int64_t)units * n_used_max, warps >> split.log2_slices));
    }
};

#endif
