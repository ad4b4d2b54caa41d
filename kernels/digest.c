/* Digests on the host: words in one loop that the compiler vectorizes, statistics by fmt_stats_of. */
#include "kernels/digest.h"

#include "base/cpu.h"
#include "base/mem.h"

#include <math.h>

#define ALWAYS_INLINE inline __attribute__((always_inline)) /* so that it is built for its caller's machine */

/* n whole words at p; salt: P1 * (place of the first one in its row + 1). It is added up: as a product the compiler would
 * spend a third vector multiplication on it. */
static ALWAYS_INLINE uint64_t sum_words(const uint8_t *p, uint64_t n, uint64_t salt)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++, salt += KRN_DIGEST_P1) {
        uint64_t word;
        memcpy(&word, p + 8 * i, sizeof word);
        sum += krn_digest_mix(word + salt);
    }
    return sum;
}

static uint64_t sum_words_plain(const uint8_t *p, uint64_t n, uint64_t salt) { return sum_words(p, n, salt); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t sum_words_avx2(const uint8_t *p, uint64_t n, uint64_t salt)
{
    return sum_words(p, n, salt);
}
/* The one with a product of 64-bit lanes. */
__attribute__((target("avx512f,avx512dq,avx512vl" CPU_PREFER_512))) static uint64_t
sum_words_avx512(const uint8_t *p, uint64_t n, uint64_t salt)
{
    return sum_words(p, n, salt);
}
#endif

/* Of `bytes` bytes at p that start at first_byte of their row: the sum over their words. */
static uint64_t sum_bytes(const uint8_t *p, uint64_t bytes, uint64_t first_byte)
{
    uint64_t (*sum)(const uint8_t *, uint64_t, uint64_t) = sum_words_plain;
    uint64_t n = bytes / 8, last = 0, salt = (first_byte / 8 + 1) * KRN_DIGEST_P1;
#if defined(__x86_64__)
    if (cpu_has_avx512()) sum = sum_words_avx512;
    else if (cpu_has_avx2()) sum = sum_words_avx2;
#endif
    uint64_t words = sum(p, n, salt);
    if (bytes % 8 == 0) return words;
    memcpy(&last, p + 8 * n, bytes % 8);
    return words + krn_digest_mix(last + (salt + n * KRN_DIGEST_P1));
}

void krn_digest_piece_ref(const void *data, uint64_t bytes, uint64_t first_byte, fmt_dtype dtype, krn_piece *out)
{
    fmt_stats s;
    const int64_t n = (int64_t)(bytes / fmt_dtype_bytes(dtype));
    fmt_tensor t = fmt_tensor_make(dtype, data, 1, &n);
    CHECK(bytes > 0 && bytes <= KRN_PIECE_BYTES && first_byte % KRN_PIECE_BYTES == 0);
    fmt_stats_of(&t, &s);
    uint64_t counted = (uint64_t)n - s.n_nan;
    *out = (krn_piece){
        .digest = sum_bytes(data, bytes, first_byte),
        .sum_squares = s.rms * s.rms * (double)counted,
        .min = counted ? s.min : INFINITY, .max = counted ? s.max : -INFINITY,
        .n_nan = (uint32_t)s.n_nan, .n_inf = (uint32_t)s.n_inf,
        .n_zero = (uint32_t)s.n_zero, .n_denormal = (uint32_t)s.n_denormal,
    };
}

static uint64_t digest_of_row(uint64_t sum, uint64_t row_bytes)
{
    return krn_digest_mix(sum + row_bytes * KRN_DIGEST_P1);
}

/* What row r adds to the sum of its tensor. */
static uint64_t share_of_row(uint64_t digest, uint64_t r) { return krn_digest_mix(digest + (r + 1) * KRN_DIGEST_P1); }

static uint64_t digest_of_tensor(uint64_t sum, uint64_t n_rows) { return krn_digest_mix(sum + n_rows * KRN_DIGEST_P1); }

static void add_piece(const krn_piece *p, double *sum_squares, fmt_stats *s)
{
    *sum_squares += p->sum_squares;
    if (p->min < s->min) s->min = p->min;
    if (p->max > s->max) s->max = p->max;
    s->n_nan += p->n_nan;
    s->n_inf += p->n_inf;
    s->n_zero += p->n_zero;
    s->n_denormal += p->n_denormal;
}

void krn_digest_join(const krn_piece *pieces, uint64_t n_rows, uint64_t row_bytes, fmt_dtype dtype, uint64_t *row_digest,
                     uint64_t *digest, fmt_stats *stats)
{
    const uint64_t per_row = krn_pieces(1, row_bytes);
    uint64_t sum = 0;
    double sum_squares = 0;
    *stats = (fmt_stats){ .min = INFINITY, .max = -INFINITY };
    for (uint64_t r = 0; r < n_rows; r++) {
        uint64_t row_sum = 0;
        for (uint64_t i = 0; i < per_row; i++, pieces++) {
            row_sum += pieces->digest;
            add_piece(pieces, &sum_squares, stats);
        }
        uint64_t row = digest_of_row(row_sum, row_bytes);
        if (row_digest) row_digest[r] = row;
        sum += share_of_row(row, r);
    }
    *digest = digest_of_tensor(sum, n_rows);
    uint64_t counted = n_rows * (row_bytes / fmt_dtype_bytes(dtype)) - stats->n_nan;
    if (counted == 0) stats->min = stats->max = 0;
    else stats->rms = sqrt(sum_squares / (double)counted);
}

uint64_t krn_digest_rows(const fmt_tensor *t) { return t->ndim < 2 ? 1 : (uint64_t)t->shape[0]; }

void krn_digest_ref(const fmt_tensor *t, uint64_t *row_digest, uint64_t *digest, fmt_stats *stats)
{
    const uint8_t *p = t->data;
    const uint64_t n_rows = krn_digest_rows(t), row_bytes = n_rows ? fmt_tensor_bytes(t) / n_rows : 0;
    uint64_t sum = 0;
    for (uint64_t r = 0; r < n_rows; r++) {
        uint64_t row = digest_of_row(row_bytes ? sum_bytes(p + r * row_bytes, row_bytes, 0) : 0, row_bytes);
        if (row_digest) row_digest[r] = row;
        sum += share_of_row(row, r);
    }
    *digest = digest_of_tensor(sum, n_rows);
    fmt_stats_of(t, stats);
}
