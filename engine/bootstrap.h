/* How ranks in processes of their own find each other: rank 0 listens at an address and hands every other rank the same few
 * bytes (NCCL's unique id). Nothing else ever goes over it. */
#ifndef ENGINE_BOOTSTRAP_H
#define ENGINE_BOOTSTRAP_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Whether text is HOST:PORT (a name, an IPv4 address, or an IPv6 address in brackets; port 1 to 65535). ERR_ARG. */
MUST_USE err_code eng_bootstrap_check(const char *text, err *e);
/* Rank 0 of n_ranks: serves bytes of blob to the others. Another rank: fills blob, trying again until rank 0 is there. All
 * within deadline_ns. Peers that say another n_ranks, or a rank that was there before, are turned away and named.
 * ERR_COMM: time is up, with how many ranks came; ERR_SYSTEM: the address cannot be used. */
MUST_USE err_code eng_bootstrap(const char *address, int32_t rank, int32_t n_ranks, void *blob, size_t bytes,
                                uint64_t deadline_ns, err *e);

#endif
