/* A warp takes one tile after another: a piece of a digest, or a span of a copy. Every CTA finds out for itself where the
 * items' tiles and parts begin, by a scan over the table of items, so that nothing is prepared on the host per launch.
 *
 * A digest reads 33 MB from the second-level cache in about the time that its instructions take, so these are counted: four
 * vectors at a time are looked at for special values (zeros, denormals, infinities, NaN) by minima and maxima, two bf16 an
 * instruction; only where there are some does a lane count them one by one.
 *
 * The largest entries of a row are found with one reading of it. Its columns are in 128 groups; the groups' maxima are all
 * in the row, so the k-th largest of them is a bound from below to the k-th largest entry. Rarely more than 100 entries
 * reach it, in few threads, which read theirs again. Their places are counted. */
#include "kernels/snapshot.h"

#include "kernels/bits.cuh"

#include <cuda_bf16.h>
#include <math.h>

enum {
    THREADS = 256,
    WARPS = THREADS / KRN_WARP,
    CTAS = 528, /* four on each processor of an H200: what 64 registers a thread allow */
    VECTOR = 16,
    WARP_BYTES = KRN_WARP * VECTOR,
    COPY_VECTORS = 8, /* of a lane in flight */
    SPAN_BYTES = COPY_VECTORS * WARP_BYTES,
    DIGEST_VECTORS = 4,
    TOP_THREADS = 1024,
    TOP_CTAS = 132,
    TOP_VECTORS = 4,
    TOP_GROUPS = 128,
    TOP_ROOM = TOP_THREADS + KRN_TOP_ROWS,
};
#define ALL_LANES 0xffffffffu
#define PACKED_BYTES_MAX (1ull << 34) /* keeps numbers of tiles and of KRN_SNAP_ALIGN units within 32 bits */

/* ---- which tile of which item ---- */

struct places {
    uint64_t before[KRN_SNAP_ITEMS_MAX]; /* what lies before item i: KRN_SNAP_ALIGN units of out, << 32, and tiles */
    uint64_t chunk[KRN_SNAP_ITEMS_MAX / KRN_WARP];
};

/* top: of the kernel for TOP_ROWS, whose tiles are rows; else of the other one, where such items have none. */
static __device__ uint64_t tiles_of(const krn_snap_item &it, uint64_t n, bool top)
{
    if (it.keep == KRN_SNAP_TOP_ROWS) return top ? krn_snapshot_top_rows(&it, n) : 0;
    if (top) return 0;
    return it.keep == KRN_SNAP_COPY ? (n * it.row_bytes + SPAN_BYTES - 1) / SPAN_BYTES : krn_pieces(n, it.row_bytes);
}

/* All threads of the CTA; returns the number of tiles. */
static __device__ uint32_t find_places(places *p, const krn_snap_item *items, int n_items, const krn_snap_live &live,
                                       bool top)
{
    const int lane = threadIdx.x % KRN_WARP, n_chunks = (n_items + KRN_WARP - 1) / KRN_WARP;
    for (int c = threadIdx.x / KRN_WARP; c < n_chunks; c += blockDim.x / KRN_WARP) {
        const int i = c * KRN_WARP + lane;
        uint64_t own = 0;
        if (i < n_items) {
            const krn_snap_item it = items[i];
            uint64_t n = (uint64_t)live.count[it.per];
            own = (krn_snapshot_bytes(&it, n) + KRN_SNAP_ALIGN - 1) / KRN_SNAP_ALIGN << 32 | tiles_of(it, n, top);
        }
        uint64_t sum = own;
        for (int d = 1; d < KRN_WARP; d *= 2) {
            uint64_t left = __shfl_up_sync(ALL_LANES, sum, d);
            if (lane >= d) sum += left;
        }
        p->before[i] = sum - own;
        if (lane == KRN_WARP - 1) p->chunk[c] = sum;
    }
    __syncthreads();
    uint64_t total = 0;
    for (int c = 0; c < n_chunks; c++) total += p->chunk[c];
    for (int i = threadIdx.x; i < n_items; i += blockDim.x) {
        uint64_t before = p->before[i];
        for (int c = 0; c < i / KRN_WARP; c++) before += p->chunk[c];
        p->before[i] = before;
    }
    __syncthreads();
    return (uint32_t)total;
}

/* The last item that begins at the tile or before it: ones without tiles begin where the next one does. A whole warp. */
static __device__ int item_of(const places *p, int n_items, uint32_t tile)
{
    int n = 0;
    for (int first = 0; first < n_items; first += KRN_WARP) {
        const int i = first + threadIdx.x % KRN_WARP;
        n += __popc(__ballot_sync(ALL_LANES, i < n_items && (uint32_t)p->before[i] <= tile));
    }
    return n - 1;
}

static __device__ const uint8_t *source_of(const krn_snap_item &it, const krn_snap_live &live)
{
    const uint8_t *src = (const uint8_t *)it.src;
    return it.per < KRN_SNAP_PER_WINDOW ? src : src + (uint64_t)live.slot[it.per - KRN_SNAP_PER_WINDOW] * it.slot_bytes;
}

/* ---- copies ---- to is 16-byte aligned, bytes are even */

static __device__ void copy_span(const uint8_t *from, uint8_t *to, uint32_t bytes)
{
    const bool aligned = krn_aligned(from);
    const uint32_t first = threadIdx.x % KRN_WARP * VECTOR;
    if (aligned && bytes == SPAN_BYTES) {
        uint4 v[COPY_VECTORS];
#pragma unroll
        for (int i = 0; i < COPY_VECTORS; i++) v[i] = krn_load16(from + first + i * WARP_BYTES);
#pragma unroll
        for (int i = 0; i < COPY_VECTORS; i++) krn_store16(to + first + i * WARP_BYTES, v[i]);
        return;
    }
    for (uint32_t at = first; at < bytes; at += WARP_BYTES) {
        int64_t n = (bytes - at) / sizeof(bf16);
        krn_store8((bf16 *)(to + at), krn_load8((const bf16 *)(from + at), n, aligned), n, true);
    }
}

/* ---- digests ---- */

/* What a lane has seen of a piece. D: FMT_DTYPE_BF16, F32 or I32. */
template <int D> struct sums {
    typedef float number;
    static constexpr int ELEMS = D == FMT_DTYPE_BF16 ? 8 : 4; /* of a vector */
    uint64_t words = 0, special = 0; /* special: NaN, infinities, zeros and denormals, 16 bits each from the lowest */
    double even = 0, odd = 0;
    float min = INFINITY, max = -INFINITY;
};
template <> struct sums<FMT_DTYPE_I32> {
    typedef int32_t number;
    static constexpr int ELEMS = 4;
    uint64_t words = 0, special = 0;
    double even = 0, odd = 0;
    int32_t min = INT32_MAX, max = INT32_MIN;
};

static __device__ __forceinline__ uint64_t mixed(uint32_t low, uint32_t high, uint64_t salt)
{
    return krn_digest_mix(((uint64_t)high << 32 | low) + salt);
}

/* One element. */
static __device__ __forceinline__ void take(float x, double &squares, uint64_t &special, float &min, float &max)
{
    const uint32_t magnitude = __float_as_uint(x) & 0x7fffffff, inf = 0x7f800000, normal = 0x00800000;
    if (magnitude > inf) {
        special++;
        return;
    }
    if (magnitude == inf) special += 1ull << 16;
    if (magnitude < normal) special += magnitude == 0 ? 1ull << 32 : 1ull << 48;
    min = fminf(min, x);
    max = fmaxf(max, x);
    squares = fma((double)x, (double)x, squares);
}
static __device__ __forceinline__ void take(int32_t x, double &, uint64_t &special, int32_t &min, int32_t &max)
{
    if (x == 0) special += 1ull << 32;
    if (x < min) min = x;
    if (x > max) max = x;
}

/* Element i of a vector. */
template <int D> static __device__ __forceinline__ typename sums<D>::number element(const uint32_t word[4], int i)
{
    if (D == FMT_DTYPE_BF16) return __uint_as_float(i % 2 ? word[i / 2] & 0xffff0000 : word[i / 2] << 16);
    if (D == FMT_DTYPE_F32) return __uint_as_float(word[i]);
    return (int32_t)word[i];
}

/* The first n elements of a vector, one by one. */
template <int D> static __device__ __forceinline__ void take_each(sums<D> &s, uint4 v, uint32_t n)
{
    const uint32_t word[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < sums<D>::ELEMS; i++)
        if (i < (int)n) take(element<D>(word, i), i % 2 ? s.odd : s.even, s.special, s.min, s.max);
}

/* take_plain: N whole vectors at once, false and nothing taken where some element is no normal number. */
template <int N> static __device__ __forceinline__ bool take_plain(sums<FMT_DTYPE_I32> &, const uint4 *) { return false; }

static __device__ __forceinline__ float min_or_nan(float a, float b)
{
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
static __device__ __forceinline__ float max_or_nan(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

template <int N> static __device__ __forceinline__ bool take_plain(sums<FMT_DTYPE_F32> &s, const uint4 *v)
{
    float min = INFINITY, max = -INFINITY, least = INFINITY;
#pragma unroll
    for (int i = 0; i < 4 * N; i++) {
        float x = element<FMT_DTYPE_F32>(&v[i / 4].x, i % 4);
        min = min_or_nan(min, x);
        max = max_or_nan(max, x);
        least = fminf(least, fabsf(x));
    }
    if (!(least >= 0x1p-126f && min >= -3.40282347e38f && max <= 3.40282347e38f)) return false;
#pragma unroll
    for (int i = 0; i < 4 * N; i++) {
        double x = element<FMT_DTYPE_F32>(&v[i / 4].x, i % 4), &sum = i % 2 ? s.odd : s.even;
        sum = fma(x, x, sum);
    }
    s.min = fminf(s.min, min);
    s.max = fmaxf(s.max, max);
    return true;
}

static __device__ __forceinline__ __nv_bfloat162 pair_of(uint32_t u) { return *(__nv_bfloat162 *)&u; }
static __device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 pair) { return *(uint32_t *)&pair; }

template <int N> static __device__ __forceinline__ bool take_plain(sums<FMT_DTYPE_BF16> &s, const uint4 *v)
{
    const uint32_t *u = &v->x; /* [4 * N] pairs */
    __nv_bfloat162 min = pair_of(u[0]), max = min, least = __habs2(min);
#pragma unroll
    for (int i = 1; i < 4 * N; i++) {
        min = __hmin2_nan(min, pair_of(u[i]));
        max = __hmax2_nan(max, pair_of(u[i]));
        least = __hmin2(least, __habs2(pair_of(u[i])));
    }
    /* Exponents of both halves: all ones in min or max, which carry into the sign, or zero in least, which does not. */
    const uint32_t exponent = 0x7f807f80, one = 0x00800080, sign = 0x80008000;
    uint32_t high = ((bits_of(min) & exponent) + one) | ((bits_of(max) & exponent) + one);
    uint32_t low = ~((bits_of(least) & exponent) + exponent);
    if ((high | low) & sign) return false;
    /* The magnitude of a normal number as a double, by its bits: conversion instructions are few a cycle. */
#pragma unroll
    for (int i = 0; i < 4 * N; i++) {
        double even = __hiloint2double(((u[i] & 0x7fff) << 13) + ((1023 - 127) << 20), 0);
        double odd = __hiloint2double(((u[i] & 0x7fff0000) >> 3) + ((1023 - 127) << 20), 0);
        s.even = fma(even, even, s.even);
        s.odd = fma(odd, odd, s.odd);
    }
    s.min = fminf(s.min, fminf(__low2float(min), __high2float(min)));
    s.max = fmaxf(s.max, fmaxf(__low2float(max), __high2float(max)));
    return true;
}

/* N whole vectors of a lane, WARP_BYTES apart, p aligned. salt: of the first one's first word. */
template <int D, int N> static __device__ __forceinline__ void take_vectors(sums<D> &s, const uint8_t *p, uint64_t salt)
{
    uint4 v[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = krn_load16(p + i * WARP_BYTES);
#pragma unroll
    for (int i = 0; i < N; i++, salt += WARP_BYTES / 8 * KRN_DIGEST_P1)
        s.words += mixed(v[i].x, v[i].y, salt) + mixed(v[i].z, v[i].w, salt + KRN_DIGEST_P1);
    if (take_plain<N>(s, v)) return;
#pragma unroll
    for (int i = 0; i < N; i++) take_each<D>(s, v[i], sums<D>::ELEMS);
}

/* One piece, by a warp. */
template <int D>
static __device__ __forceinline__ void digest_piece(const uint8_t *p, uint32_t bytes, uint64_t first_byte, krn_piece *out)
{
    const uint32_t lane = threadIdx.x % KRN_WARP, step = DIGEST_VECTORS * WARP_BYTES;
    const bool aligned = krn_aligned(p);
    uint64_t salt = (first_byte / 8 + lane * (VECTOR / 8) + 1) * KRN_DIGEST_P1;
    uint32_t at = lane * VECTOR, whole = aligned ? bytes / step * step : 0;
    sums<D> s;
    for (; at < whole; at += step, salt += step / 8 * KRN_DIGEST_P1) take_vectors<D, DIGEST_VECTORS>(s, p + at, salt);
    for (; at < bytes; at += WARP_BYTES, salt += WARP_BYTES / 8 * KRN_DIGEST_P1) {
        const uint32_t left = bytes - at;
        if (aligned && left >= VECTOR) {
            take_vectors<D, 1>(s, p + at, salt);
            continue;
        }
        uint4 v = krn_load8((const bf16 *)(p + at), left / sizeof(bf16), false);
        s.words += mixed(v.x, v.y, salt);
        if (left > VECTOR / 2) s.words += mixed(v.z, v.w, salt + KRN_DIGEST_P1);
        take_each<D>(s, v, left / (VECTOR / sums<D>::ELEMS));
    }
    double squares = s.even + s.odd;
    for (int d = KRN_WARP / 2; d > 0; d /= 2) {
        s.words += __shfl_down_sync(ALL_LANES, s.words, d);
        s.special += __shfl_down_sync(ALL_LANES, s.special, d);
        squares += __shfl_down_sync(ALL_LANES, squares, d);
        s.min = min(s.min, __shfl_down_sync(ALL_LANES, s.min, d));
        s.max = max(s.max, __shfl_down_sync(ALL_LANES, s.max, d));
    }
    if (lane > 0) return;
    krn_piece piece;
    piece.digest = s.words;
    piece.sum_squares = squares;
    piece.min = (double)s.min + 0.0; /* -0 becomes 0 */
    piece.max = (double)s.max + 0.0;
    piece.n_nan = (uint32_t)(s.special & 0xffff);
    piece.n_inf = (uint32_t)(s.special >> 16 & 0xffff);
    piece.n_zero = (uint32_t)(s.special >> 32 & 0xffff);
    piece.n_denormal = (uint32_t)(s.special >> 48);
    *out = piece;
}

/* Piece number `index` of an item. */
static __device__ void digest(const krn_snap_item &it, const uint8_t *src, uint32_t index, krn_piece *out)
{
    const uint32_t per_row = (uint32_t)krn_pieces(1, it.row_bytes), row = index / per_row;
    const uint64_t first = (uint64_t)(index - row * per_row) * KRN_PIECE_BYTES, left = it.row_bytes - first;
    const uint32_t bytes = left < KRN_PIECE_BYTES ? (uint32_t)left : KRN_PIECE_BYTES;
    const uint8_t *p = src + row * it.row_bytes + first;
    if (it.dtype == FMT_DTYPE_BF16) digest_piece<FMT_DTYPE_BF16>(p, bytes, first, out + index);
    else if (it.dtype == FMT_DTYPE_F32) digest_piece<FMT_DTYPE_F32>(p, bytes, first, out + index);
    else digest_piece<FMT_DTYPE_I32>(p, bytes, first, out + index);
}

__global__ static void __launch_bounds__(THREADS, 4)
    pack_kernel(const krn_snap_item *items, int n_items, const __grid_constant__ krn_snap_live live, uint8_t *out)
{
    __shared__ places p;
    const uint32_t n_tiles = find_places(&p, items, n_items, live, false);
    /* Neighbours, which are of like size, go to different CTAs. */
    for (uint32_t tile = threadIdx.x / KRN_WARP * gridDim.x + blockIdx.x; tile < n_tiles; tile += WARPS * gridDim.x) {
        const int i = item_of(&p, n_items, tile);
        const krn_snap_item it = items[i];
        const uint8_t *src = source_of(it, live);
        uint8_t *part = out + (p.before[i] >> 32) * KRN_SNAP_ALIGN;
        const uint32_t index = tile - (uint32_t)p.before[i];
        if (it.keep == KRN_SNAP_DIGEST) {
            digest(it, src, index, (krn_piece *)part);
            continue;
        }
        const uint64_t at = (uint64_t)index * SPAN_BYTES, left = (uint64_t)live.count[it.per] * it.row_bytes - at;
        copy_span(src + at, part + at, left < SPAN_BYTES ? (uint32_t)left : SPAN_BYTES);
    }
}

/* ---- the largest entries of rows ---- */

struct top_room {
    uint64_t best[TOP_THREADS], group[TOP_GROUPS], order[TOP_ROOM], top[KRN_TOP_ROWS], bound;
    uint32_t n; /* in order, and beyond it */
};

/* Larger for what comes earlier, never the same for two columns, never 0. */
static __device__ __forceinline__ uint64_t order_of(float x, uint32_t column)
{
    uint32_t u = __float_as_uint(x + 0.0f); /* -0 becomes 0 */
    uint32_t key = (u & 0x7fffffff) > 0x7f800000 ? 0 : u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000);
    return (uint64_t)key << 32 | ~column;
}
static __device__ __forceinline__ uint32_t column_of(uint64_t order) { return ~(uint32_t)order; }

/* Calls take(value, column) for the columns of this thread, the same ones every time, in order; those that the row does not
 * have are NaN. */
template <typename F> static __device__ __forceinline__ void scan_row(const float *x, uint32_t cols, F take)
{
    const bool whole = krn_aligned(x) && cols % 4 == 0;
    for (uint32_t first = 4 * threadIdx.x; first < cols; first += 4 * TOP_THREADS * TOP_VECTORS) {
        float v[TOP_VECTORS][4];
#pragma unroll
        for (int i = 0; i < TOP_VECTORS; i++) {
            const uint32_t c = first + i * 4 * TOP_THREADS;
            float4 four = make_float4(NAN, NAN, NAN, NAN);
            if (whole && c < cols) {
                four = *(const float4 *)(x + c);
            } else {
                if (c < cols) four.x = x[c];
                if (c + 1 < cols) four.y = x[c + 1];
                if (c + 2 < cols) four.z = x[c + 2];
                if (c + 3 < cols) four.w = x[c + 3];
            }
            v[i][0] = four.x;
            v[i][1] = four.y;
            v[i][2] = four.z;
            v[i][3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < 4 * TOP_VECTORS; i++) take(v[i / 4][i % 4], first + i / 4 * 4 * TOP_THREADS + i % 4);
    }
}

/* Calls put(place, order) for the k largest of order[n], by one thread each: place is how many are larger. All threads. */
template <typename F>
static __device__ __forceinline__ void for_places(const uint64_t *order, uint32_t n, uint32_t k, F put)
{
    enum { SHARE = 8 }; /* threads that count for one */
    const uint32_t part = threadIdx.x % SHARE;
    for (uint32_t first = 0; first < n; first += TOP_THREADS / SHARE) {
        const uint32_t i = first + threadIdx.x / SHARE;
        uint64_t own = i < n ? order[i] : 0;
        uint32_t place = 0;
        for (uint32_t j = part; j < n; j += SHARE) place += order[j] > own;
        for (int d = SHARE / 2; d > 0; d /= 2) place += __shfl_xor_sync(ALL_LANES, place, d);
        if (part == 0 && i < n && place < k) put(place, own);
    }
}

/* Where too many entries reach the bound: chunk after chunk, of which the k largest so far are kept and raise the bound.
 * Returns how many are in s->order. */
static __device__ uint32_t collect_by_chunks(top_room *s, const float *x, uint32_t cols, uint32_t k)
{
    uint64_t bound = s->bound;
    uint32_t n = 0;
    for (uint32_t first = 0; first < cols; first += TOP_THREADS) {
        const uint32_t c = first + threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) s->n = n;
        __syncthreads();
        uint64_t order = c < cols ? order_of(x[c], c) : 0;
        if (c < cols && order >= bound) s->order[atomicAdd(&s->n, 1)] = order;
        __syncthreads();
        n = s->n;
        if (n <= k) continue;
        for_places(s->order, n, k, [&](uint32_t place, uint64_t o) { s->top[place] = o; });
        __syncthreads();
        if (threadIdx.x < k) s->order[threadIdx.x] = s->top[threadIdx.x];
        bound = s->top[k - 1];
        n = k;
    }
    __syncthreads();
    return n;
}

static __device__ void top_of_row(top_room *s, const float *x, uint32_t cols, uint32_t k, float *values, int32_t *ids)
{
    float best = -INFINITY;
    uint64_t own = 0; /* of a thread that has only NaN and -infinity too: the bound is lower then */
    uint32_t column = UINT32_MAX;
    if (threadIdx.x == 0) {
        s->n = 0;
        s->bound = 0;
    }
    scan_row(x, cols, [&](float v, uint32_t c) {
        if (v > best) {
            best = v;
            column = c;
        }
    });
    if (column != UINT32_MAX) own = order_of(best, column);
    s->best[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x < TOP_GROUPS) {
        uint64_t most = 0;
#pragma unroll
        for (int i = threadIdx.x; i < TOP_THREADS; i += TOP_GROUPS) most = max(most, s->best[i]);
        s->group[threadIdx.x] = most;
    }
    __syncthreads();
    /* With fewer than k groups that have a number the bound stays 0. */
    for_places(s->group, TOP_GROUPS, k, [&](uint32_t place, uint64_t o) {
        if (place == k - 1) s->bound = o;
    });
    __syncthreads();
    const uint64_t bound = s->bound;
    if (own >= bound)
        scan_row(x, cols, [&](float v, uint32_t c) {
            uint64_t order = order_of(v, c);
            if (c >= cols || order < bound) return;
            uint32_t at = atomicAdd(&s->n, 1); /* any order will do: places are counted */
            if (at < TOP_ROOM) s->order[at] = order;
        });
    __syncthreads();
    uint32_t n = s->n;
    if (n > TOP_ROOM) n = collect_by_chunks(s, x, cols, k);
    for_places(s->order, n, k, [&](uint32_t place, uint64_t o) {
        values[place] = x[column_of(o)];
        ids[place] = (int32_t)column_of(o);
    });
    __syncthreads(); /* the next row writes here */
}

__global__ static void __launch_bounds__(TOP_THREADS)
    top_kernel(const krn_snap_item *items, int n_items, const __grid_constant__ krn_snap_live live, uint8_t *out)
{
    __shared__ places p;
    __shared__ top_room room;
    const uint32_t n_tiles = find_places(&p, items, n_items, live, true);
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const int i = item_of(&p, n_items, tile);
        const krn_snap_item it = items[i];
        const uint64_t rows = krn_snapshot_top_rows(&it, (uint64_t)live.count[it.per]), k = krn_snapshot_top(&it);
        const uint64_t row = tile - (uint32_t)p.before[i];
        float *values = (float *)(out + (p.before[i] >> 32) * KRN_SNAP_ALIGN);
        int32_t *ids = (int32_t *)(values + rows * k);
        top_of_row(&room, (const float *)source_of(it, live) + row * (uint64_t)it.cols, (uint32_t)it.cols, (uint32_t)k,
                   values + row * k, ids + row * k);
    }
}

/* ---- launching ---- */

static err_code check(const krn_snap_item *items, int32_t n_items, const krn_snap_live *live, const void *out, err *e)
{
    uint64_t offset[KRN_SNAP_ITEMS_MAX];
    if (n_items < 0 || n_items > KRN_SNAP_ITEMS_MAX)
        return err_set(e, ERR_ARG, "snapshot: %d items, wanted at most %d", n_items, KRN_SNAP_ITEMS_MAX);
    for (int32_t i = 0; i < n_items; i++) {
        const krn_snap_item *it = &items[i];
        const bool known = it->dtype == FMT_DTYPE_BF16 || it->dtype == FMT_DTYPE_F32 || it->dtype == FMT_DTYPE_I32;
        const uint64_t size = it->dtype == FMT_DTYPE_BF16 ? 2 : 4;
        bool fine = known && it->per >= 0 && it->per < KRN_SNAP_PER_COUNT && live->count[it->per] >= 0;
        if (it->keep == KRN_SNAP_TOP_ROWS)
            fine = fine && it->dtype == FMT_DTYPE_F32 && it->cols > 0 && it->row_bytes % (4 * (uint64_t)it->cols) == 0;
        else
            fine = fine && (it->keep == KRN_SNAP_COPY || it->keep == KRN_SNAP_DIGEST);
        if (!fine || it->row_bytes % size || it->slot_bytes % size || (uintptr_t)it->src % size)
            return err_set(e, ERR_ARG, "snapshot: item %d: per=%d keep=%d dtype=%d cols=%d row_bytes=%llu slot_bytes=%llu",
                           i, it->per, it->keep, it->dtype, it->cols, (unsigned long long)it->row_bytes,
                           (unsigned long long)it->slot_bytes);
    }
    uint64_t bytes = krn_snapshot_layout(items, n_items, live, offset);
    if (bytes >= PACKED_BYTES_MAX || !krn_aligned(out))
        return err_set(e, ERR_ARG, "snapshot: %llu bytes to %p", (unsigned long long)bytes, out);
    return ERR_OK;
}

extern "C" err_code krn_snapshot(const krn_snap_item *items_dev, const krn_snap_item *items_host, int32_t n_items,
                                 const krn_snap_live *live, void *out, krn_stream s, err *e)
{
    int32_t n_top = 0;
    TRY(check(items_host, n_items, live, out, e));
    for (int32_t i = 0; i < n_items; i++) n_top += items_host[i].keep == KRN_SNAP_TOP_ROWS;
    if (n_top < n_items) {
        pack_kernel<<<CTAS, THREADS, 0, s>>>(items_dev, n_items, *live, (uint8_t *)out);
        TRY(krn_launched("snapshot", e));
    }
    if (n_top == 0) return ERR_OK;
    top_kernel<<<TOP_CTAS, TOP_THREADS, 0, s>>>(items_dev, n_items, *live, (uint8_t *)out);
    return krn_launched("snapshot of largest entries", e);
}
