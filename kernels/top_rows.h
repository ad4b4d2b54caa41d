/* The largest entries of rows that lie in column shards: what a V1 tape keeps of the logits. */
#ifndef CAPTURE_TOPK_H
#define CAPTURE_TOPK_H

#include <stdint.h>

enum { CAP_TOP = 64 };

/* shard[r] [rows, cols[r]]; column ids count on over the shards. values, ids [rows, k], descending, the lower id first
 * among equals, NaN after every number. 1 <= k <= all columns together, and at most CAP_TOP. */
void cap_topk(const float *const *shard, const int64_t *cols, int32_t n_shards, int64_t rows, int32_t k, float *values,
              int32_t *ids);

#endif
