/* EXL3 products: input transform, sums (exl3_sums.cuh), output transform, one launch each.
 *
 * R5's order: the inputs of the view's blocks are cut into S slices of whole stages of 64 inputs, as equal as can be, the
 * longer ones first. A slice adds its rows of tiles ascending, from 0, an mma m16n8k16 each (f32 accumulation in the order
 * of the hardware); then the slices are added ascending, in f32. S is slices_linear(N, K); of experts slices_experts(K). */
#include "kernels/exl3.h"

#include "kernels/exl3_sums.cuh"

enum {
    BLOCK = FMT_EXL3_BLOCK,
    ROUNDS_MAX = 8,           /* blocks that a warp of the input transform keeps in registers */
    INPUT_WARPS_MAX = 32,
    INPUT_BLOCKS_MAX = ROUNDS_MAX * INPUT_WARPS_MAX,
    OUTPUT_WARPS = 8,
    AT_ONCE = 8,              /* partial sums that are on their way together */
};
static const uint64_t ALIGN = 256;

#define NORM __uint_as_float(0x3db504f3) /* 1 / sqrt(128) */

/* ---- transforms ---- */

/* R2, R6. Lane l has elements 4l .. 4l + 3 of the block. */
__device__ __forceinline__ static void butterfly(float v[4])
{
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
#pragma unroll
    for (int apart = 1; apart < KRN_WARP; apart *= 2) {
        const bool high = threadIdx.x & apart;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float other = __shfl_xor_sync(0xffffffff, v[i], apart);
            v[i] = high ? other - v[i] : v[i] + other;
        }
    }
}

__device__ __forceinline__ static float f32_of(fp16 h)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(h));
    return y;
}
/* fp16_from_f32. */
__device__ __forceinline__ static fp16 fp16_of(float v)
{
    fp16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(v));
    return v != v ? 0x7e00 : y;
}
__device__ __forceinline__ static float power_of_two(int32_t s) { return __uint_as_float((uint32_t)(s + 127) << 23); }
__device__ __forceinline__ static float canonical(float v) { return v != v ? __uint_as_float(0x7fc00000) : v; }

/* What the rows of A are made of. Row (pick, matrix) is x's row pick / per_row times suh of its expert and matrix. */
struct input_job {
    const bf16 *x;
    int64_t ldx;
    int32_t per_row;
    const int32_t *ids;          /* NULL: all are 0 */
    int32_t n_experts, matrices;
    const fp16 *suh;             /* [n_experts, matrices, suh_row] */
    int64_t suh_row;
    int32_t k0, k, n_blocks;     /* inputs [k0, k0 + k) of the blocks are x's, the others 0 */
    fp16 *a;                     /* [rows of A, 128 n_blocks], by 32 as exl3_place says */
    int32_t *exponent;           /* s of each row */
};

/* Four neighbours of which those from 0 to n are there. */
__device__ __forceinline__ static void load4(const uint16_t *p, int32_t first, int32_t n, uint16_t v[4])
{
    if (first >= 0 && first + 4 <= n && ((uintptr_t)(p + first) & 7) == 0) {
        const uint2 w = *(const uint2 *)(p + first);
        v[0] = (uint16_t)w.x, v[1] = (uint16_t)(w.x >> 16), v[2] = (uint16_t)w.y, v[3] = (uint16_t)(w.y >> 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = first + i >= 0 && first + i < n ? p[first + i] : 0;
}

/* A block a row of A; the last block of the warps' rounds may be missing. */
__global__ static void __launch_bounds__(INPUT_WARPS_MAX *KRN_WARP) input_kernel(const input_job j)
{
    __shared__ uint32_t largest;
    krn_wait_for_previous();
    krn_let_next_begin(); /* not before: it reads ids, which are there now */
    const int32_t row = blockIdx.x, pick = row / j.matrices, lane = threadIdx.x % KRN_WARP;
    const int32_t warp = threadIdx.x / KRN_WARP, n_warps = blockDim.x / KRN_WARP;
    const int32_t id = j.ids ? j.ids[pick] : 0;
    if (id < 0 || id >= j.n_experts) return;
    const bf16 *x = j.x + pick / j.per_row * j.ldx;
    const fp16 *suh = j.suh + ((int64_t)id * j.matrices + row % j.matrices) * j.suh_row;
    float z[ROUNDS_MAX][4];
    uint32_t most = 0;
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROUNDS_MAX; i++) {
        const int32_t block = i * n_warps + warp, first = block * BLOCK + 4 * lane;
        if (block >= j.n_blocks) break;
        uint16_t xs[4], signs[4];
        load4(x, first - j.k0, j.k, xs);
        load4(suh + j.k0, first - j.k0, j.k, signs);
#pragma unroll
        for (int c = 0; c < 4; c++) z[i][c] = krn_f32_of(xs[c]) * f32_of(signs[c]);                  /* R1 */
        butterfly(z[i]);                                                                             /* R2 */
#pragma unroll
        for (int c = 0; c < 4; c++) {
            z[i][c] *= NORM;                                                                         /* R3 */
            most = max(most, __float_as_uint(z[i][c]) & 0x7fffffff);
        }
    }
    most = __reduce_max_sync(0xffffffff, most);
    if (lane == 0) atomicMax(&largest, most);
    __syncthreads();
    most = largest;
    const int32_t s = most == 0 || most >= 0x7f800000 ? 0 : min(max((int32_t)(most >> 23) - 141, -100), 100);
    const float scale = power_of_two(-s);
    if (threadIdx.x == 0) j.exponent[row] = s;
#pragma unroll
    for (int i = 0; i < ROUNDS_MAX; i++) {
        const int32_t block = i * n_warps + warp, first = block * BLOCK + 4 * lane;
        if (block >= j.n_blocks) break;
        fp16 *a = j.a + ((int64_t)row * j.n_blocks * BLOCK + first / 32 * 32);
        fp16 h[4];
#pragma unroll
        for (int c = 0; c < 4; c++) h[c] = fp16_of(z[i][c] * scale);                                 /* R4 */
        *(uint32_t *)(a + exl3_place(first % 32)) = h[0] | (uint32_t)h[1] << 16;
        *(uint32_t *)(a + exl3_place(first % 32 + 2)) = h[2] | (uint32_t)h[3] << 16;
    }
}

/* What becomes of the sums. */
struct output_job {
    const float *sums;        /* [slices, n_picks, 128 n_blocks] */
    int32_t slices, n_picks, n_blocks;
    const int32_t *exponent;  /* [n_picks, matrices] */
    const int32_t *ids;
    int32_t n_experts, matrices;
    const fp16 *svh;          /* [n_experts, 128 n_blocks] */
    int32_t n0, n;            /* outputs [n0, n0 + n) of the blocks are stored */
    krn_out out;
    void *y[2];               /* of each matrix [n_picks, n / matrices] */
    int64_t ldy;
};

/* A warp a pick's block. */
__global__ static void __launch_bounds__(OUTPUT_WARPS *KRN_WARP) output_kernel(const output_job j)
{
    krn_let_next_begin();
    const int64_t unit = (int64_t)blockIdx.x * OUTPUT_WARPS + threadIdx.x / KRN_WARP;
    const int32_t pick = (int32_t)(unit / j.n_blocks), block = (int32_t)(unit % j.n_blocks), lane = threadIdx.x % KRN_WARP;
    krn_wait_for_previous();
    if (pick >= j.n_picks) return;
    const int32_t id = j.ids ? j.ids[pick] : 0;
    if (id < 0 || id >= j.n_experts) return;
    const int32_t each = j.n_blocks / j.matrices, matrix = block / each, first = block * BLOCK + 4 * lane;
    const float *sums = j.sums + (int64_t)pick * j.n_blocks * BLOCK + first;
    const int64_t slice = (int64_t)j.n_picks * j.n_blocks * BLOCK;
    const float scale = power_of_two(j.exponent[pick * j.matrices + matrix]);
    const fp16 *svh = j.svh + (int64_t)id * j.n_blocks * BLOCK;
    uint16_t signs[4];
    load4(svh + j.n0, first - j.n0, j.n, signs);
    float q[4] = { 0 };
    for (int32_t i0 = 0; i0 < j.slices; i0 += AT_ONCE) {                                             /* R5 */
        float4 v[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (i0 + i < j.slices) v[i] = *(const float4 *)(sums + (i0 + i) * slice);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (i0 + i >= j.slices) break;
            q[0] += v[i].x, q[1] += v[i].y, q[2] += v[i].z, q[3] += v[i].w;
        }
    }
    butterfly(q);                                                                                    /* R6 */
    void *y = matrix ? j.y[1] : j.y[0];
    const int64_t at = pick * j.ldy + first - j.n0 - matrix * each * BLOCK;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        if (first + c < j.n0 || first + c >= j.n0 + j.n) continue;
        const float value = q[c] * NORM * scale * f32_of(signs[c]);                                  /* R7 */
        if (j.out == KRN_OUT_BF16) ((bf16 *)y)[at + c] = krn_bf16_of(value);                         /* R8 */
        else ((float *)y)[at + c] = canonical(value);
    }
}

/* ---- slices ---- */

static int32_t blocks_of(int32_t n) { return n / BLOCK + (n % BLOCK != 0); }

/* Whole rounds of quads on an H200 and on an RTX 3090 are worth more slices; but the sums of each slice are written and
 * read once more, which takes as long as decoding some hundred weights of each output. */
static int32_t slices_linear(int32_t n, int32_t k)
{
    const double blocks = blocks_of(n), k_blocks = blocks_of(k);
    double best = 1e300;
    int32_t slices = 1;
    for (int32_t s = 1; s <= k_blocks; s++) {
        double cost = 2.5 * s / k_blocks;
        for (int large = 0; large < 2; large++) {
            const double rounds = blocks * s / ((large ? 132 : 82) * EXL3_QUADS);
            cost += ceil(rounds) / rounds / 2;
        }
        if (cost < best) best = cost, slices = s;
    }
    return slices;
}
/* An item of some 40 rows of tiles, but four slices at least: how many experts will be used is not known. */
static int32_t slices_experts(int32_t k)
{
    return max((int32_t)krn_blocks(blocks_of(k) * 8, 40), min(4, blocks_of(k)));
}

/* ---- scratch ---- */

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* A, s of its rows, sums; each begins at a multiple of ALIGN. */
struct parts {
    uint64_t exponent, sums, bytes;

    parts(int64_t rows_a, int64_t k_blocks, int64_t slices, int64_t picks, int64_t n_blocks)
    {
        exponent = aligned((uint64_t)(rows_a * k_blocks * BLOCK) * sizeof(fp16));
        sums = exponent + aligned((uint64_t)rows_a * sizeof(int32_t));
        bytes = sums + aligned((uint64_t)(slices * picks * n_blocks * BLOCK) * sizeof(float));
    }
};

extern "C" uint64_t krn_exl3_linear_scratch(int32_t T, int32_t n, int32_t k)
{
    if (T < 1 || n < 1 || k < 1) return 0;
    return parts(T, blocks_of(k) + 1, slices_linear(n, k), T, blocks_of(n) + 1).bytes; /* one more: cut inside of two */
}
extern "C" uint64_t krn_exl3_experts_scratch(int32_t rows, int32_t picks, int32_t n, int32_t k)
{
    if (rows < 1 || picks < 1 || n < 1 || k < 1) return 0;
    const int64_t all = (int64_t)rows * picks;
    return parts(2 * all, blocks_of(k), slices_experts(k), all, blocks_of(n)).bytes;
}

/* ---- launchers ---- */

static const exl3_kernels *const KERNELS[FMT_EXL3_CODEBOOKS] = { &exl3_3inst, &exl3_mcg, &exl3_mul1 };

static err_code card_get(exl3_card *out, err *e)
{
    int device = 0, n_sm = 0, major = 0;
    cudaError_t rc = cudaGetDevice(&device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (rc != cudaSuccess) return err_set(e, ERR_DEVICE, "exl3: the device: %s", cudaGetErrorString(rc));
    *out = { n_sm, major >= 9 };
    return ERR_OK;
}

static err_code format_check(const char *op, int32_t bits, int32_t codebook, const void *tiles, int64_t strides, err *e)
{
    if (bits < 1 || bits > FMT_EXL3_BITS_MAX || codebook < 0 || codebook >= FMT_EXL3_CODEBOOKS)
        return err_set(e, ERR_ARG, "%s: bits=%d codebook=%d", op, bits, codebook);
    if (!krn_aligned(tiles, strides)) return err_set(e, ERR_ARG, "%s: tiles do not begin at 16 bytes", op);
    return ERR_OK;
}

/* All three launches; the caller has filled in what does not lie in the scratch. */
static err_code product(const char *op, int32_t bits, int32_t codebook, input_job in, exl3_job j, output_job out,
                        krn_exl3_scratch scratch, krn_stream s, err *e)
{
    const int64_t rows_a = (int64_t)j.n_picks * j.matrices;
    const parts p(rows_a, in.n_blocks, j.slices, j.n_picks, j.n_blocks);
    if (in.n_blocks > INPUT_BLOCKS_MAX)
        return err_set(e, ERR_ARG, "%s: k=%d is more than %d", op, in.k, INPUT_BLOCKS_MAX * BLOCK);
    if (scratch.bytes < p.bytes || (uintptr_t)scratch.memory % ALIGN)
        return err_set(e, ERR_ARG, "%s: the scratch has %llu bytes, wanted %llu at a multiple of %llu", op,
                       (unsigned long long)scratch.bytes, (unsigned long long)p.bytes, (unsigned long long)ALIGN);
    if (j.n_picks > INT32_MAX / EXL3_QUADS / 2 / j.slices / j.n_blocks || rows_a * in.n_blocks > INT32_MAX / BLOCK)
        return err_set(e, ERR_ARG, "%s: %d rows of %d outputs are too many for one launch", op, j.n_picks, out.n);
    exl3_card card = {};
    TRY(card_get(&card, e));
    j.slice_stages = j.stages / j.slices;
    j.slice_more = j.stages % j.slices;
    uint8_t *memory = (uint8_t *)scratch.memory;
    in.a = (fp16 *)memory;
    in.exponent = (int32_t *)(memory + p.exponent);
    j.a = in.a;
    j.sums = (float *)(memory + p.sums);
    out.exponent = in.exponent;
    out.sums = j.sums;

    const int32_t rounds = (int32_t)krn_blocks(in.n_blocks, INPUT_WARPS_MAX);
    const int32_t warps = (int32_t)krn_blocks(in.n_blocks, rounds);
    krn_launch(input_kernel, (unsigned)rows_a, warps * KRN_WARP, 0, s, in);
    TRY(krn_launched(op, e));
    TRY(KERNELS[codebook]->sums(j, bits, card, s, e));
    const int64_t units = (int64_t)j.n_picks * j.n_blocks;
    krn_launch(output_kernel, (unsigned)krn_blocks(units, OUTPUT_WARPS), OUTPUT_WARPS * KRN_WARP, 0, s, out);
    return krn_launched(op, e);
}

static err_code weight_check(const char *op, const krn_weight *w, err *e)
{
    const krn_exl3 *x = &w->exl3;
    if (w->format != KRN_W_EXL3 || w->n < 1 || w->k < 1 || x->k0 < 0 || x->k0 >= BLOCK || x->n0 < 0 || x->n0 >= BLOCK ||
        w->n > INT32_MAX - 2 * BLOCK || w->k > INT32_MAX - 2 * BLOCK)
        return err_set(e, ERR_ARG, "%s: format=%d n=%d k=%d n0=%d k0=%d", op, (int)w->format, w->n, w->k, x->n0, x->k0);
    return format_check(op, x->bits, x->codebook, w->data, w->row_bytes | x->block_bytes, e);
}
/* The tiles of a weight as those of one expert. */
static exl3_job weight_job(const krn_weight *w)
{
    exl3_job j = {};
    j.tiles = (const uint8_t *)w->data;
    j.row_bytes = w->row_bytes;
    j.block_bytes = w->exl3.block_bytes;
    j.n_blocks = blocks_of(w->exl3.n0 + w->n);
    j.stages = 2 * blocks_of(w->exl3.k0 + w->k);
    j.n_experts = j.matrices = 1;
    j.matrix_blocks = j.n_blocks;
    return j;
}

extern "C" err_code krn_exl3_linear(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_out out, void *y,
                                    int64_t ldy, krn_exl3_scratch scratch, krn_stream stream, err *e)
{
    TRY(weight_check("exl3_linear", w, e));
    if (T < 0 || T > KRN_EXL3_ROWS_MAX) return err_set(e, ERR_ARG, "exl3_linear: T=%d", T);
    if (w->row_bytes * EXL3_STAGE_ROWS > UINT32_MAX)
        return err_set(e, ERR_ARG, "exl3_linear: rows of tiles are %lld bytes apart", (long long)w->row_bytes);
    if (T == 0) return ERR_OK;
    exl3_job j = weight_job(w);
    j.n_picks = T;
    j.slices = slices_linear(w->n, w->k);
    input_job in = { x, ldx, 1, NULL, 1, 1, w->exl3.suh, 0, w->exl3.k0, w->k, j.stages / 2, NULL, NULL };
    output_job o = { NULL, j.slices, T, j.n_blocks, NULL, NULL, 1, 1, w->exl3.svh, w->exl3.n0, w->n, out, { y, NULL },
                     ldy };
    return product("exl3_linear", w->exl3.bits, w->exl3.codebook, in, j, o, scratch, stream, e);
}

/* matrices: 2 for up, whose rows of x are rows of ids; 1 for down, whose rows are picks. */
static err_code experts(const char *op, const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks,
                        const krn_exl3_bank *b, int32_t matrices, krn_out out, void *y0, void *y1, krn_exl3_scratch scratch,
                        krn_stream s, err *e)
{
    if (rows < 0 || picks < 1 || (int64_t)rows * picks > EXL3_PICKS_MAX || b->n_experts < 1 ||
        b->n_experts > KRN_EXPERTS_MAX || b->n < 1 || b->n % (matrices * BLOCK) || b->k < 1 || b->k % BLOCK)
        return err_set(e, ERR_ARG, "%s: rows=%d picks=%d n_experts=%d n=%d k=%d", op, rows, picks, b->n_experts, b->n,
                       b->k);
    TRY(format_check(op, b->bits, b->codebook, b->tiles, 0, e));
    if (rows == 0) return ERR_OK;
    const int64_t row_bytes = 8 * fmt_exl3_tile_bytes(b->bits);
    exl3_job j = {};
    j.tiles = (const uint8_t *)b->tiles;
    j.row_bytes = row_bytes;
    j.block_bytes = b->k / FMT_EXL3_TILE * row_bytes;
    j.n_blocks = b->n / BLOCK;
    j.expert_bytes = j.n_blocks * j.block_bytes;
    j.stages = b->k / EXL3_STAGE_K;
    j.slices = slices_experts(b->k);
    j.ids = ids;
    j.n_picks = rows * picks;
    j.n_experts = b->n_experts;
    j.matrices = matrices;
    j.matrix_blocks = j.n_blocks / matrices;
    input_job in = { x, b->k, matrices == 2 ? picks : 1, ids, b->n_experts, matrices, b->suh, b->k, 0, b->k, b->k / BLOCK,
                     NULL, NULL };
    output_job o = { NULL, j.slices, j.n_picks, j.n_blocks, NULL, ids, b->n_experts, matrices, b->svh, 0, b->n, out,
                     { y0, y1 }, b->n / matrices };
    return product(op, b->bits, b->codebook, in, j, o, scratch, s, e);
}

extern "C" err_code krn_exl3_experts_up(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks,
                                        const krn_exl3_bank *w13, bf16 *gate, bf16 *up, krn_exl3_scratch scratch,
                                        krn_stream stream, err *e)
{
    return experts("exl3_experts_up", x, ids, rows, picks, w13, 2, KRN_OUT_BF16, gate, up, scratch, stream, e);
}
extern "C" err_code krn_exl3_experts_down(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                          const krn_exl3_bank *w2, float *slot, krn_exl3_scratch scratch, krn_stream stream,
                                          err *e)
{
    return experts("exl3_experts_down", h, ids, rows, picks, w2, 1, KRN_OUT_F32, slot, NULL, scratch, stream, e);
}

extern "C" err_code krn_exl3_decode(const krn_weight *w, uint16_t *wq, krn_stream stream, err *e)
{
    TRY(weight_check("exl3_decode", w, e));
    const exl3_job j = weight_job(w);
    const int32_t rows = j.stages * EXL3_STAGE_ROWS;
    if ((int64_t)rows * j.n_blocks > INT32_MAX / 8)
        return err_set(e, ERR_ARG, "exl3_decode: n=%d k=%d are too many for one launch", w->n, w->k);
    return KERNELS[w->exl3.codebook]->tiles(j, w->exl3.bits, rows, wq, stream, e);
}
