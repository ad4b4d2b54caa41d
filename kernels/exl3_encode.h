/* krn_exl3_encode_tiles - the tile quantizer of EXL3 (formats/exl3.h): of all bit patterns of a tile, nearly the one whose
 * 256 values have the least squared distance from the weights. A Viterbi search over the tile's circle of states, twice:
 * once around the seam, to find where the circle passes it; then once around, from that node and back to it.
 *
 * Shapes    w [n, 256] f32 in position order (fmt_exl3_place), finite, |w| <= 2^20; tiles [n, 16 * bits] u16 as stored;
 *           error [n] f64. n >= 0, 1 <= bits <= 8. K = bits below
 * Search    A node is the low 16 - K bits of a state, E = 2^(16 - K) of them. State s = m * E + e, m = 0 .. 2^K - 1, leads
 *           from node s >> K into node e:
 *           R1 d = f32(value(s) - w[p])
 *           R2 c = fma(d, d, cost[s >> K]), one rounding
 *           R3 the low K bits of c become m
 *           next[e] = the least c over m. So equal sums go to the lowest m, and the cost itself tells where it came from
 *           First pass: positions -P/2 .. P/2 - 1 mod 256, P = seam; all costs start at 0. From the cheapest node at the
 *           end, the lowest of equal ones, back: q = the node before position 0
 *           Second pass: positions 0 .. 255, the cost of q starts at 0, others at 2^100. From node q at the end, back
 *           Error: the sum of (value - w)^2 in double, positions ascending; exact differences
 * seam      a multiple of 2 from 2 to 256. The work is (256 + seam) / 512 of the full search's; the relative error of
 *           N(0, 1) weights at K = 2 (256 tiles) 1.003 of the full one's for 128, 1.008 for 64, 1.015 for 32; K = 6: 1.001,
 *           1.004, 1.007
 * Match     all instruction sets, all thread counts and CUDA: bit-equal
 * Aliasing  none */
#ifndef KERNELS_EXL3_ENCODE_H
#define KERNELS_EXL3_ENCODE_H

#include "formats/exl3.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KRN_EXL3_SEAM_MAX = FMT_EXL3_TILE_WEIGHTS };

typedef struct krn_exl3_code {
    int32_t bits;
    fmt_exl3_codebook codebook;
    int32_t seam;
} krn_exl3_code;

/* OpenMP over tiles; each thread takes 4 MiB at 1 bit, 1 at 2, 2^(24 - bits) bytes at more; and some. ERR_NOMEM. */
MUST_USE err_code krn_exl3_encode_tiles_ref(const float *w, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error,
                                            err *e);

/* On CUDA w, tiles, error, values and scratch are device memory. values [65536] f32: fmt_exl3_table's, 16-byte aligned.
 * scratch: krn_exl3_encode_scratch bytes of the current device, 256-byte aligned; calls that may run at the same time need
 * one each. One launch on stream, no sync, no allocation; a block of threads a tile, as many as the card has
 * multiprocessors. ERR_ARG, ERR_DEVICE. */
MUST_USE err_code krn_exl3_encode_scratch(int32_t bits, uint64_t *bytes, err *e);
MUST_USE err_code krn_exl3_encode_tiles(const float *w, int64_t n, krn_exl3_code code, const float *values, void *scratch,
                                        uint16_t *tiles, double *error, krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
