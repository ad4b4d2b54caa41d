#include "replay/shard.h"

#include <string.h>

err_code rpl_shard_parse(const char *text, int32_t *i, int32_t *n, err *e)
{
    int64_t a, b;
    char part[16];
    *i = *n = 1;
    if (!text) return ERR_OK;
    const char *slash = strchr(text, '/');
    size_t length = slash ? (size_t)(slash - text) : sizeof part;
    if (length >= sizeof part) return err_set(e, ERR_ARG, "--shard: found '%s', wanted I/N such as 1/4", text);
    memcpy(part, text, length);
    part[length] = 0;
    TRY(cli_int(slash + 1, "--shard, N", 1, 1 << 20, &b, e));
    TRY(cli_int(part, "--shard, I", 1, b, &a, e));
    *i = (int32_t)a;
    *n = (int32_t)b;
    return ERR_OK;
}
