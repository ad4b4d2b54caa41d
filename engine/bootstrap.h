/* How ranks in processes of their own find each other, and hear of each other's end: rank 0 listens at an address and hands
 * every other rank the same few bytes (NCCL's unique id). The connections stay open: a rank that fails says so, and one
 * that dies is noticed, so that no rank goes on with what a failed peer has sent. No tensor ever goes over them. */
#ifndef ENGINE_BOOTSTRAP_H
#define ENGINE_BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Whether text is HOST:PORT (a name, an IPv4 address, or an IPv6 address in brackets; port 1 to 65535). ERR_ARG. */
MUST_USE err_code eng_bootstrap_check(const char *text, err *e);

/* The connections of one rank. */
typedef struct eng_peers eng_peers;

/* Rank 0 of n_ranks: serves bytes of blob to the others. Another rank: fills blob, trying again until rank 0 is there. All
 * within deadline_ns. A peer that says another n_ranks, or a rank that was there before, is turned away: its open fails.
 * *out is NULL on error. ERR_COMM: time is up (rank 0 says how many ranks came), or turned away; ERR_SYSTEM: the address
 * cannot be used. */
MUST_USE err_code eng_peers_open(const char *address, int32_t rank, int32_t n_ranks, void *blob, size_t bytes,
                                 uint64_t deadline_ns, eng_peers **out, err *e);
/* ERR_COMM when a peer has said that it failed (with its words) or is gone without a word. Does not wait. NULL: ERR_OK. */
MUST_USE err_code eng_peers_check(eng_peers *p, err *e);
/* Says that this rank failed, and why; once. NULL is a no-op. */
void eng_peers_tell(eng_peers *p, const char *why);
/* Says goodbye unless it has told a failure. NULL is a no-op. */
void eng_peers_close(eng_peers *p);

#endif
