/* Latencies, counted: a histogram whose buckets grow with the value, so that a microsecond and a minute are told equally
 * well.
 *
 * 256 buckets to every power of two: a quantile is at most 1/256 above the true one, and never below it. Values of 2^42 ns
 * (an hour) and more share the last bucket; count, sum, least and most are exact all the same. Plain data: zeroed is
 * empty. */
#ifndef SERVE_HISTOGRAM_H
#define SERVE_HISTOGRAM_H

#include "formats/json.h"

enum { SRV_HISTOGRAM_SUB_BITS = 8, SRV_HISTOGRAM_BITS = 42,
       SRV_HISTOGRAM_BUCKETS = (SRV_HISTOGRAM_BITS - SRV_HISTOGRAM_SUB_BITS + 1) << SRV_HISTOGRAM_SUB_BITS };

typedef struct srv_histogram {
    uint64_t count, sum_ns, min_ns, max_ns;
    uint64_t bucket[SRV_HISTOGRAM_BUCKETS];
} srv_histogram;

void srv_histogram_add(srv_histogram *h, uint64_t ns);
void srv_histogram_merge(srv_histogram *into, const srv_histogram *from);
/* The smallest value that a fraction q (0 to 1) of all is not above, as its bucket tells it. 0 when there are none. */
uint64_t srv_histogram_quantile(const srv_histogram *h, double q);
/* {"count", "mean_us", "min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"}. New reference; NULL: no memory. */
json_t *srv_histogram_json(const srv_histogram *h);

#endif
