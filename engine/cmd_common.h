/* What the commands of this folder share. */
#ifndef ENGINE_CMD_COMMON_H
#define ENGINE_CMD_COMMON_H

#include "base/cli.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum { CMD_SCHEMA = 1 }; /* "schema" of every --json object */

/* --threads for work outside an engine. */
static inline void cmd_use_threads(const cli_common *c)
{
#ifdef _OPENMP
    if (c->threads > 0) omp_set_num_threads((int)c->threads);
#else
    (void)c;
#endif
}

#endif
