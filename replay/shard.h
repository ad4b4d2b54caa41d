/* --shard I/N: the I-th of N parts, from 1. */
#ifndef REPLAY_SHARD_H
#define REPLAY_SHARD_H

#include "base/cli.h"

/* text NULL: 1 of 1. ERR_ARG. */
MUST_USE err_code rpl_shard_parse(const char *text, int32_t *i, int32_t *n, err *e);

#endif
