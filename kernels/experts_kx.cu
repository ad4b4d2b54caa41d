/* Routed experts over fragment-ordered FP4: what experts.cu does, with less to do for each byte.
 *
 *   unit     a tile of a used expert: 32 rows of the weight. All units lie end to end and are dealt out to the teams of all
 *            blocks; a team is the S warps that split a unit's steps (skinny.cuh)
 *   stream   a warp's own ring of SLOTS blocks, filled by cp.async three steps ahead, across units too: about 100 KiB are
 *            under way on every multiprocessor. A lane copies the codes that it multiplies itself
 *   decode   nine instructions for eight codes, then a bf16 multiplication a pair by its scale, as in skinny.cuh. Of what
 *            bounds experts.cu, the logic unit, this takes about half
 *
 * Which k an mma adds, and in which order they and the slices are added, is experts.cu's: the bits are the same. */
#include "kernels/experts_kx.h"

#include "kernels/launch.cuh"
#include "kernels/skinny.cuh"

enum {
    MT = KRN_KX_ROWS / SKINNY_M, /* tiles of the mma in a unit's rows */
    SLOTS = 4,
    SLICES_MAX = 8,
    WARPS_MAX = 16, WARPS_SMALL = 8, /* of a block; the latter where shared memory is 99 KiB */
    RING_BYTES = SLOTS * KRN_KX_BLOCK_BYTES,
    ROWS_MAX = SKINNY_ROWS_MAX,
    NAMED_WORDS = KRN_EXPERTS_MAX / 32,
};

/* A launch's operands. A row of x is a row of ids for up, a pick for down. */
struct job {
    const bf16 *x;
    const int32_t *ids;
    int32_t picks, n_picks; /* of a row; of all rows, at most KRN_EXPERT_PICKS_MAX */
    krn_kx_bank bank;
    bf16 *gate, *up;        /* up */
    float *slot;            /* down; NULL: up */
};

/* ---- which experts, which rows ---- */

struct routing {
    uint32_t named[NAMED_WORDS];         /* a bit for each expert that some pick names */
    int32_t id[KRN_EXPERT_PICKS_MAX];    /* of every pick, -1 where it is outside the bank */
    int32_t n_used;
    int32_t expert[KRN_EXPERT_PICKS_MAX]; /* the named ones, ascending */
};
static_assert(KRN_EXPERT_PICKS_MAX <= WARPS_SMALL * KRN_WARP, "a pick a thread");

/* Every thread calls; ends in a __syncthreads. */
__device__ static void routing_read(const job &j, routing *r)
{
    const int32_t p = threadIdx.x, words = (j.bank.n_experts - 1) / 32 + 1;
    int32_t id = -1, lower = 0, used = 0;
    bool first = false;
    if (p < words) r->named[p] = 0;
    if (p < j.n_picks) {
        id = j.ids[p];
        if (id < 0 || id >= j.bank.n_experts) id = -1;
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

/* The picks of an expert, ascending, at most ROWS_MAX, into list. Returns their number. The whole warp calls. */
__device__ static int32_t routing_picks(const routing &r, int32_t n_picks, int32_t expert, int16_t *list)
{
    const int32_t lane = threadIdx.x % KRN_WARP;
    int32_t n = 0;
    for (int32_t p0 = 0; p0 < n_picks; p0 += KRN_WARP) {
        const bool mine = p0 + lane < n_picks && r.id[p0 + lane] == expert;
        const uint32_t those = __ballot_sync(0xffffffff, mine);
        const int32_t at = n + __popc(those & ((1u << lane) - 1));
        if (mine && at < ROWS_MAX) list[at] = (int16_t)(p0 + lane);
        n += __popc(those);
    }
    return min(n, (int32_t)ROWS_MAX);
}

/* ---- what a warp reads ---- */

/* Steps slice, slice + slices, ... of units [unit, last), one after the other. */
class kx_stream {
    const routing &route;
    const krn_kx_bank &bank;
    const int32_t tiles, steps, slice, slices, last;
    int32_t unit, step; /* what is copied next: nothing where unit is last */
    const uint8_t *from;
    uint8_t *ring;
    int32_t slot, feed_slot;

    __device__ __forceinline__ void find_unit()
    {
        const int64_t tile = (int64_t)route.expert[unit / tiles] * tiles + unit % tiles;
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
    __device__ __forceinline__ kx_stream(const routing &route_, const krn_kx_bank &bank_, int32_t unit_, int32_t last_,
                                         int32_t slice_, int32_t slices_, uint8_t *ring_)
        : route(route_), bank(bank_), tiles(krn_kx_tiles(bank_.n)), steps(krn_kx_steps(bank_.k)), slice(slice_),
          slices(slices_), last(last_), unit(unit_), step(slice_), from(NULL), ring(ring_), slot(0)
    {
        if (unit < last) find_unit();
#pragma unroll
        for (int i = 0; i < SLOTS - 1; i++) {
            feed_slot = i;
            feed();
        }
        feed_slot = SLOTS - 1;
    }

    /* The next block: until the call after this one. */
    __device__ __forceinline__ const uint8_t *take()
    {
        const uint8_t *block = ring + slot * KRN_KX_BLOCK_BYTES;
        skinny_wait<SLOTS - 2>();
        __syncwarp(); /* what other lanes copied is there; and all are done with the slot that is filled next */
        feed();
        feed_slot = slot;
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
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
__device__ __forceinline__ void kx_step(const uint8_t *block, skinny_x<KRN_W_FP4, MT, NT> &own, const bf16 *const x[NT],
                                        int32_t k, int32_t next, int32_t end, float acc[MT][NT][4])
{
    constexpr int PIECES = skinny_x<KRN_W_FP4, MT, NT>::PIECES, AHEAD = skinny_x<KRN_W_FP4, MT, NT>::AHEAD;
    const int32_t lane = threadIdx.x % KRN_WARP;
    const uint4 scales = *(const uint4 *)(block + KRN_KX_SCALES + lane / 4 * 16);
    const uint32_t scale[4] = { scales.x, scales.y, scales.z, scales.w }; /* of a chunk: rows g, g + 8, g + 16, g + 24 */
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        const uint4 codes = *(const uint4 *)(block + c * KRN_KX_CHUNK_BYTES + lane * 16);
        const uint32_t code[2 * MT] = { codes.x, codes.y, codes.z, codes.w };
        uint32_t pair[NT][4];
#pragma unroll
        for (int j = 0; j < NT; j++) skinny_pairs<KRN_W_FP4>(own.of[c % AHEAD][j], pair[j]);
        if (c + AHEAD < PIECES) own.load(x, k, end, c + AHEAD);
        else own.load(x, next, end, c + AHEAD - PIECES);
#pragma unroll
        for (int i = 0; i < MT; i++) {
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
static_assert(MT == 2, "a lane's 16 bytes are its rows of two tiles");

/* Tiles [tile, end) of an expert, which come next in the stream, times the n rows of x that the picks of list name, n <=
 * 8 NT; store(i, row, sum) gets the sums of list[i] (R1). */
template <bool LARGE, int NT, typename STORE>
__device__ __forceinline__ void kx_run(const skinny_team &team, kx_stream &stream, const job &j, int32_t tile, int32_t end,
                                       const int16_t *list, int32_t n, STORE store)
{
    const int32_t steps = krn_kx_steps(j.bank.k), k_end = j.bank.k, picks_a_row = j.slot ? 1 : j.picks;
    const int32_t lane_k = skinny_column(KRN_W_FP4, threadIdx.x % 4, 0), first_k = team.slice * KRN_KX_COLUMNS + lane_k;
    const bf16 *x[NT]; /* [k] */
    skinny_x<KRN_W_FP4, MT, NT> own;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int32_t c = min(i * SKINNY_N + (int32_t)(threadIdx.x % KRN_WARP / 4), n - 1);
        x[i] = j.x + (int64_t)(list[c] / picks_a_row) * k_end;
    }
#pragma unroll
    for (int c = 0; c < skinny_x<KRN_W_FP4, MT, NT>::AHEAD; c++) own.load(x, first_k, k_end, c);
    for (; tile < end; tile++) {
        float acc[MT][NT][4] = {};
#pragma unroll 1
        for (int32_t step = team.slice; step < steps; step += team.slices) {
            const int32_t k = step * KRN_KX_COLUMNS + lane_k;
            const int32_t next = step + team.slices < steps ? k + team.slices * KRN_KX_COLUMNS : first_k;
            kx_step<LARGE, NT>(stream.take(), own, x, k, next, k_end, acc);
        }
        skinny_keep<MT, NT>(team, acc);
        team.sync();
        for (int32_t i = team.thread(); i < KRN_KX_ROWS * n; i += team.threads()) {
            const int32_t r = i % KRN_KX_ROWS, row = tile * KRN_KX_ROWS + r;
            if (row >= j.bank.n) continue;
            store(i / KRN_KX_ROWS, row, skinny_joined<MT, NT>(team.sums, team.slices, r, i / KRN_KX_ROWS));
        }
        team.sync(); /* before the next sums */
    }
}

/* Grid: a block for every multiprocessor. most: the most tiles of x that an expert can need. The blocks' first teams come
 * before their second ones, so that no multiprocessor has two units more than another. */
template <bool LARGE>
__global__ static void __launch_bounds__(WARPS_MAX *KRN_WARP, 1)
    kx_kernel(const job j, const skinny_split split, int32_t most)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ routing route;
    __shared__ int16_t lists[WARPS_MAX][ROWS_MAX];
    krn_begin();
    const int32_t warps = blockDim.x / KRN_WARP, warp = threadIdx.x / KRN_WARP, teams = warps >> split.log2_slices;
    const int32_t tiles = krn_kx_tiles(j.bank.n), inter = j.bank.n / 2;
    int16_t *list = lists[warp]; /* every warp its own: no barrier */
    skinny_team team(shared, split, MT, most);
    team.ring = shared + warp * RING_BYTES;
    team.sums = shared + warps * RING_BYTES + (warp - team.slice) * skinny_sums_bytes(MT, most);

    routing_read(j, &route);
    const uint32_t units = (uint32_t)(route.n_used * tiles), all_teams = gridDim.x * teams;
    const uint32_t index = (uint32_t)team.index * gridDim.x + blockIdx.x;
    const uint32_t each = units / all_teams, more = units % all_teams;
    const int32_t last = (int32_t)split.first(index + 1, each, more);
    int32_t unit = (int32_t)split.first(index, each, more);
    kx_stream stream(route, j.bank, unit, last, team.slice, team.slices, team.ring);
    while (unit < last) {
        const int32_t used = unit / tiles, tile = unit % tiles, end = min(tile + last - unit, tiles);
        __syncwarp(); /* the list is free */
        const int32_t n = routing_picks(route, j.n_picks, route.expert[used], list);
        auto store = [&](int32_t i, int32_t row, float sum) {
            const int64_t pick = list[i];
            if (j.slot) j.slot[pick * j.bank.n + row] = skinny_f32(sum);
            else if (row < inter) j.gate[pick * inter + row] = krn_bf16_of(sum);                     /* R2 */
            else j.up[pick * inter + row - inter] = krn_bf16_of(sum);
        };
        __syncwarp(); /* the list */
        if (n <= SKINNY_N) kx_run<LARGE, 1>(team, stream, j, tile, end, list, n, store);
        else if (n <= 2 * SKINNY_N) kx_run<LARGE, 2>(team, stream, j, tile, end, list, n, store);
        else kx_run<LARGE, 3>(team, stream, j, tile, end, list, n, store);
        unit += end - tile;
    }
    stream.finish();
}

/* ---- the launchers ---- */

static err_code check(const char *op, const void *x, int32_t rows, int32_t picks, const krn_kx_bank *b, err *e)
{
    if (rows < 0 || picks < 1 || picks > KRN_EXPERT_PICKS_MAX || b->n_experts < 1 || b->n_experts > KRN_EXPERTS_MAX ||
        b->n < 1 || b->n > INT32_MAX / KRN_EXPERTS_MAX || b->k < 1 || b->k % 32)
        return err_set(e, ERR_ARG, "%s: rows=%d picks=%d n_experts=%d n=%d k=%d", op, rows, picks, b->n_experts, b->n,
                       b->k);
    if (!krn_aligned(x) || !krn_aligned(b->blocks))
        return err_set(e, ERR_ARG, "%s: x or the weights do not begin at 16 bytes", op);
    return ERR_OK;
}

static err_code launch(const char *op, const job &j, krn_stream s, err *e)
{
    skinny_device device = {};
    TRY(skinny_device_get(op, &device, e));
    const skinny_split split(skinny_slices(KRN_W_FP4, j.bank.k, SLICES_MAX));
    const int32_t warps = device.large ? WARPS_MAX : WARPS_SMALL;
    const int32_t most = (int32_t)krn_blocks(j.n_picks / j.picks, SKINNY_N);
    const int32_t shared_bytes = warps * (RING_BYTES + skinny_sums_bytes(MT, most));
    const int64_t units = (int64_t)krn_kx_tiles(j.bank.n) * min(j.n_picks, j.bank.n_experts);
    const int64_t blocks = min((int64_t)device.n_sm, krn_blocks(units, warps >> split.log2_slices));
    auto *kernel = j.bank.large ? kx_kernel<true> : kx_kernel<false>;
    TRY(skinny_prepare(op, kernel, shared_bytes, e));
    krn_launch(kernel, (unsigned)blocks, (unsigned)warps * KRN_WARP, shared_bytes, s, j, split, most);
    return krn_launched(op, e);
}

/* Rows of one launch. */
static int32_t rows_at_once(int32_t picks) { return min((int32_t)ROWS_MAX, KRN_EXPERT_PICKS_MAX / picks); }

extern "C" err_code krn_experts_kx_up(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks,
                                      const krn_kx_bank *w13, bf16 *gate, bf16 *up, krn_stream stream, err *e)
{
    TRY(check("experts_kx_up", x, rows, picks, w13, e));
    if (w13->n % 2) return err_set(e, ERR_ARG, "experts_kx_up: n=%d is not w1 and w3", w13->n);
    for (int32_t r = 0, n; r < rows; r += n) {
        n = min(rows - r, rows_at_once(picks));
        const int64_t pick = (int64_t)r * picks, at = pick * (w13->n / 2);
        const job j = { x + (int64_t)r * w13->k, ids + pick, picks, n * picks, *w13, gate + at, up + at, NULL };
        TRY(launch("experts_kx_up", j, stream, e));
    }
    return ERR_OK;
}

extern "C" err_code krn_experts_kx_down(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                        const krn_kx_bank *w2, float *slot, krn_stream stream, err *e)
{
    TRY(check("experts_kx_down", h, rows, picks, w2, e));
    for (int32_t r = 0, n; r < rows; r += n) {
        n = min(rows - r, rows_at_once(picks));
        const int64_t pick = (int64_t)r * picks;
        const job j = { h + pick * w2->k, ids + pick, picks, n * picks, *w2, NULL, NULL, slot + pick * w2->n };
        TRY(launch("experts_kx_down", j, stream, e));
    }
    return ERR_OK;
}
