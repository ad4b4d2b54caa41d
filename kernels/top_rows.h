/* The largest entries of rows that lie in column shards: what a tape keeps of the logits where not all of them. The kernel
 * that does it on a device, for one shard, is part of kernels/snapshot.h. */
#ifndef KERNELS_TOP_ROWS_H
#define KERNELS_TOP_ROWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KRN_TOP_ROWS = 64 };

/* shard[r] [rows, cols[r]]; column ids count on over the shards. values, ids [rows, k], descending, the lower id first
 * among equals (-0 equals 0), NaN after every number; a value keeps its bits. 1 <= k <= all columns together, and at most
 * KRN_TOP_ROWS. */
void krn_top_rows(const float *const *shard, const int64_t *cols, int32_t n_shards, int64_t rows, int32_t k, float *values,
              int32_t *ids);

#ifdef __cplusplus
}
#endif

#endif
