#include "serve/histogram.h"

#include <math.h>

enum { SUB_BITS = SRV_HISTOGRAM_SUB_BITS, SUBS = 1 << SUB_BITS };

/* Below SUBS every value has a bucket; above, the bits after the highest one choose among the SUBS of its power of two. */
static int32_t bucket_of(uint64_t ns)
{
    if (ns >= (uint64_t)1 << SRV_HISTOGRAM_BITS) return SRV_HISTOGRAM_BUCKETS - 1;
    if (ns < SUBS) return (int32_t)ns;
    int32_t shift = 63 - __builtin_clzll(ns) - SUB_BITS;
    return (shift << SUB_BITS) + (int32_t)(ns >> shift);
}

/* Largest value that falls into bucket i. */
static uint64_t bucket_top(int32_t i)
{
    if (i < SUBS) return (uint64_t)i;
    int32_t shift = (i >> SUB_BITS) - 1;
    return ((uint64_t)(i - (shift << SUB_BITS) + 1) << shift) - 1;
}

void srv_histogram_add(srv_histogram *h, uint64_t ns)
{
    if (h->count == 0 || ns < h->min_ns) h->min_ns = ns;
    if (ns > h->max_ns) h->max_ns = ns;
    h->count++;
    h->sum_ns += ns;
    h->bucket[bucket_of(ns)]++;
}

void srv_histogram_merge(srv_histogram *into, const srv_histogram *from)
{
    if (from->count == 0) return;
    if (into->count == 0 || from->min_ns < into->min_ns) into->min_ns = from->min_ns;
    if (from->max_ns > into->max_ns) into->max_ns = from->max_ns;
    into->count += from->count;
    into->sum_ns += from->sum_ns;
    for (int32_t i = 0; i < SRV_HISTOGRAM_BUCKETS; i++) into->bucket[i] += from->bucket[i];
}

uint64_t srv_histogram_quantile(const srv_histogram *h, double q)
{
    uint64_t wanted = (uint64_t)ceil(q * (double)h->count), seen = 0;
    if (wanted == 0) return h->min_ns;
    if (wanted >= h->count) return h->max_ns;
    for (int32_t i = 0; i < SRV_HISTOGRAM_BUCKETS - 1; i++) {
        seen += h->bucket[i];
        if (seen >= wanted) return bucket_top(i) < h->max_ns ? bucket_top(i) : h->max_ns;
    }
    return h->max_ns;
}

json_t *srv_histogram_json(const srv_histogram *h)
{
    double mean_ns = h->count ? (double)h->sum_ns / (double)h->count : 0;
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "count", (json_int_t)h->count, "mean_us", mean_ns * 1e-3,
                     "min_us", (double)h->min_ns * 1e-3, "p50_us", (double)srv_histogram_quantile(h, 0.5) * 1e-3,
                     "p90_us", (double)srv_histogram_quantile(h, 0.9) * 1e-3,
                     "p99_us", (double)srv_histogram_quantile(h, 0.99) * 1e-3,
                     "p999_us", (double)srv_histogram_quantile(h, 0.999) * 1e-3, "max_us", (double)h->max_ns * 1e-3);
}
