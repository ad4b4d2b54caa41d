/* What the commands of this folder share. */
#ifndef ENGINE_CMD_COMMON_H
#define ENGINE_CMD_COMMON_H

#include "base/cli.h"
#include "formats/json.h"

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

/* What a command says that wrote tensors to a file. */
static inline err_code cmd_print_written(const char *path, size_t tensors, uint64_t bytes, bool json, err *e)
{
    if (!json) {
        printf("%s: %zu tensors, %.1f MiB\n", path, tensors, (double)bytes / 0x1p20);
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i, s:s, s:I, s:I}", "schema", CMD_SCHEMA, "path", path, "tensors", (json_int_t)tensors,
                          "bytes", (json_int_t)bytes);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

#endif
