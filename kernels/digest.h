/* Digests: what the cheap tiers keep of a tensor instead of its values, made of pieces that need no order.
 *
 * A tensor is n_rows rows of row_bytes (rows: its first dimension; a tensor of fewer than two dimensions is one row). A row
 * is cut into pieces of KRN_PIECE_BYTES, the last one shorter. Pieces are summed up independently, wherever the tensor is,
 * and joined in row order on the host: the same bits from every backend, but for the order-free tie below.
 *
 *   word i of a row    its bytes 8i .. 8i+7 as a little-endian integer, zeros behind the row's end
 *   digest of a piece  sum mod 2^64 over its words of mix(word + (i + 1) * P1), i counted from the start of the row
 *   mix(x)             x ^= x >> 32; x *= P2; x ^= x >> 29; x *= P3; x ^= x >> 32
 *   digest of a row    mix(sum of its pieces + row_bytes * P1)
 *   digest of a tensor mix(sum over rows r of mix(digest of r + (r + 1) * P1) + n_rows * P1)
 *   P1 0x9e3779b97f4a7c15, P2 0xd6e8feb86659fd93, P3 0xc2b2ae3d27d4eb4f
 *
 * The sums are of integers, so any order gives the same bits; a swapped word, row or value changes them.
 * Statistics: as fmt_stats_of, but for the last digits of an rms that was joined: every piece has a float64 sum of squares,
 * and pieces are added in order. A piece's is counted elements * rms^2 on the CPU, a fixed tree on CUDA (snapshot.h). */
#ifndef KERNELS_DIGEST_H
#define KERNELS_DIGEST_H

#include "formats/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define KRN_HOST_DEVICE __host__ __device__
#else
#define KRN_HOST_DEVICE
#endif

enum { KRN_PIECE_BYTES = 16384 }; /* a multiple of 16 and of every dtype's bytes */

#define KRN_DIGEST_P1 0x9e3779b97f4a7c15ull
#define KRN_DIGEST_P2 0xd6e8feb86659fd93ull
#define KRN_DIGEST_P3 0xc2b2ae3d27d4eb4full
KRN_HOST_DEVICE static inline uint64_t krn_digest_mix(uint64_t x)
{
    x = (x ^ x >> 32) * KRN_DIGEST_P2;
    x = (x ^ x >> 29) * KRN_DIGEST_P3;
    return x ^ x >> 32;
}

typedef struct krn_piece {
    uint64_t digest;
    double sum_squares, min, max; /* over non-NaN elements, -0 as 0; min +inf and max -inf where there are none */
    uint32_t n_nan, n_inf, n_zero, n_denormal;
} krn_piece;

/* Pieces of a tensor of these extents. */
KRN_HOST_DEVICE static inline uint64_t krn_pieces(uint64_t n_rows, uint64_t row_bytes)
{
    return n_rows * ((row_bytes + KRN_PIECE_BYTES - 1) / KRN_PIECE_BYTES);
}

/* One piece: 1 to KRN_PIECE_BYTES bytes, whole elements, that start at `first_byte` of their row (a multiple of
 * KRN_PIECE_BYTES). Any dtype; on CUDA BF16, F32 and I32. data need not be aligned. */
void krn_digest_piece_ref(const void *data, uint64_t bytes, uint64_t first_byte, fmt_dtype dtype, krn_piece *out);
/* Joins the pieces of a tensor, in order: row_digest [n_rows] (NULL: not wanted), *digest and *stats (over n_rows *
 * row_bytes / element bytes elements; integers have rms 0, min and max are 0 where nothing counts, as in fmt_stats_of). */
void krn_digest_join(const krn_piece *pieces, uint64_t n_rows, uint64_t row_bytes, fmt_dtype dtype, uint64_t *row_digest,
                     uint64_t *digest, fmt_stats *stats);
/* All of it for a tensor in host memory, any dtype: what replay compares a cheap tier with. row_digest may be NULL;
 * *stats are those of fmt_stats_of. */
void krn_digest_ref(const fmt_tensor *t, uint64_t *row_digest, uint64_t *digest, fmt_stats *stats);
/* Rows as digests count them: the first dimension, or 1 of a tensor of fewer than two. */
uint64_t krn_digest_rows(const fmt_tensor *t);

#ifdef __cplusplus
}
#endif

#endif
