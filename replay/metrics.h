/* Metrics of two tensors: how far A lies from B, in one pass, and what makes the comparison itself worthless.
 *
 * B is the reference: relative figures divide by B. Integer counts are exact; sums are double in 16 lanes (lane i takes
 * elements i, i+16, ...) joined by a halving tree, so every instruction set and caller gets the same bits. Elements
 * that are not finite on either side are counted, are at infinite distance unless their bits agree, and take no part in
 * sums. */
#ifndef REPLAY_METRICS_H
#define REPLAY_METRICS_H

#include "formats/dtype.h"

/* ULP buckets: 0 | 1 | 2 | 3-4 | 5-8 | ... | 2^31+1 and more; the last one also holds NaN against anything else. */
enum { RPL_ULP_BUCKETS = 34, RPL_TOP_K = 64, RPL_PROFILE_BLOCK = 32 };

/* Why a comparison proves less than it seems to; a set of bits. */
typedef enum rpl_finding {
    RPL_FIND_EMPTY = 1,        /* zero elements: nothing was compared */
    RPL_FIND_ALL_ZERO = 2,     /* floats, zero throughout on both sides: equal, and it means nothing */
    RPL_FIND_NAN_EQUALS_NAN = 4, /* NaN at the same place on both sides */
    RPL_FIND_RANKS_DIFFER = 8, /* a replicated value is not the same on all ranks of one tape */
} rpl_finding;
enum { RPL_FINDING_COUNT = 4 };
/* Text of one bit: "nothing compared", "all zero on both sides", ... */
const char *rpl_finding_text(rpl_finding f);

typedef struct rpl_metrics {
    int64_t n;            /* elements compared */
    int64_t n_equal;      /* same bits */
    double max_abs;       /* infinite when one side is NaN or the infinities differ */
    double max_rel;       /* |a-b| / |b| over b != 0, evaluated in f32 for F32 and BF16 */
    double rel_l2;        /* ||a-b|| / ||b||; 0 when both are 0, infinite when only b is */
    double cosine;        /* 1 when both norms are 0 */
    double norm_a, norm_b;
    uint64_t max_ulp;     /* in the dtype's own grid, -0 = +0; integers: |a-b|; UINT64_MAX with NaN on one side */
    int64_t ulp[RPL_ULP_BUCKETS];
    int64_t first, worst; /* first element whose bits differ; first with the largest |a-b|; -1 when all bits are equal */
    int64_t n_nan_a, n_nan_b, n_nan_both; /* both: NaN at the same place */
    int64_t n_inf_a, n_inf_b, n_inf_differ; /* differ: infinite on one side only, or of other sign */
    int64_t n_zero_a, n_zero_b, n_zero_differ; /* differ: zero on exactly one side */
    uint32_t findings;    /* rpl_finding bits */
} rpl_metrics;

/* Compares n elements of dtype (any of FMT_DTYPE_LIST). a and b may be the same; no alignment is needed. */
void rpl_metrics_of(fmt_dtype dtype, const void *a, const void *b, int64_t n, rpl_metrics *out);

/* Half-open value range of a bucket as text: "0", "1", "2", "3-4", "5-8", ... into buf (24 bytes or more). */
const char *rpl_ulp_bucket_text(int bucket, char buf[24]);
int rpl_ulp_bucket(uint64_t ulp);

/* One cell of a heat strip: a row, or RPL_PROFILE_BLOCK elements of one. */
typedef struct rpl_cell {
    int32_t n_differ;
    float rel_l2, max_abs; /* infinite where an element is not comparable */
    uint64_t max_ulp;
} rpl_cell;
/* Profile of [rows, cols]: by_row [rows], by_block [rows * ceil(cols / 32)]; either may be NULL. */
void rpl_profile(fmt_dtype dtype, const void *a, const void *b, int64_t rows, int64_t cols, rpl_cell *by_row,
                 rpl_cell *by_block);

/* One row of logits. */
typedef struct rpl_logits_row {
    double kl;                 /* KL(softmax B || softmax A), nats, in double, of exponentials within 1.05 ulp; NaN when a
                                * side is not finite */
    int32_t overlap, k;        /* of the k = min(64, n) largest of each side */
    int32_t argmax_a, argmax_b;/* lowest index wins a tie; -1: no number in the row */
    double margin_a, margin_b; /* largest less second largest; infinite for n = 1 */
} rpl_logits_row;
void rpl_logits_row_of(const float *a, const float *b, int64_t n, rpl_logits_row *out);

/* All rows of a logits value. */
typedef struct rpl_logits {
    int64_t rows, n_argmax_equal;
    double kl_mean, kl_max;
    int32_t overlap_min, k;
    double margin_min;         /* smallest margin_b among rows whose argmax differs; infinite when none does */
} rpl_logits;
void rpl_logits_of(const float *a, const float *b, int64_t rows, int64_t n, rpl_logits *out);

/* Rows of expert ids: the same set, and the same order. */
typedef struct rpl_ids {
    int64_t rows, n_same_set, n_same_order;
    int64_t first_set, first_order; /* first row that differs, -1: none */
} rpl_ids;
/* k: ids in a row, 1 .. 64; rows with repeated ids are compared as multisets. */
void rpl_ids_of(const int32_t *a, const int32_t *b, int64_t rows, int32_t k, rpl_ids *out);

/* Element i of a tensor as a double (integers above 2^53 are rounded), and its bits. */
double rpl_element(fmt_dtype dtype, const void *data, int64_t i);
uint64_t rpl_element_bits(fmt_dtype dtype, const void *data, int64_t i);

#endif
