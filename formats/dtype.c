#include "formats/dtype.h"

#include <inttypes.h>
#include <string.h>

#define X(name, text, bytes, is_float) { text, bytes },
static const struct { const char *name; uint32_t bytes; } DTYPES[FMT_DTYPE_COUNT] = { FMT_DTYPE_LIST(X) };
#undef X

uint32_t fmt_dtype_bytes(fmt_dtype d) { return d < FMT_DTYPE_COUNT ? DTYPES[d].bytes : 0; }
const char *fmt_dtype_name(fmt_dtype d) { return d < FMT_DTYPE_COUNT ? DTYPES[d].name : "?"; }

bool fmt_dtype_parse(const char *text, fmt_dtype *out)
{
    for (int d = 0; d < FMT_DTYPE_COUNT; d++)
        if (strcmp(text, DTYPES[d].name) == 0) {
            *out = (fmt_dtype)d;
            return true;
        }
    return false;
}

int64_t fmt_tensor_elems(const fmt_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++) n *= t->shape[d];
    return n;
}

uint64_t fmt_tensor_bytes(const fmt_tensor *t) { return (uint64_t)fmt_tensor_elems(t) * fmt_dtype_bytes(t->dtype); }

const char *fmt_tensor_text(const fmt_tensor *t, char *buf, size_t buf_bytes)
{
    size_t used = 0;
    int n = snprintf(buf, buf_bytes, "%s [", fmt_dtype_name(t->dtype));
    for (int d = 0; n > 0 && (used += (size_t)n) < buf_bytes && d < t->ndim; d++)
        n = snprintf(buf + used, buf_bytes - used, "%s%" PRId64, d ? ", " : "", t->shape[d]);
    if (used < buf_bytes) snprintf(buf + used, buf_bytes - used, "]");
    return buf;
}

fmt_tensor fmt_tensor_make(fmt_dtype d, const void *data, int32_t ndim, const int64_t *shape)
{
    CHECK(ndim >= 0 && ndim <= FMT_DIMS_MAX);
    fmt_tensor t = { .dtype = d, .ndim = ndim, .data = data };
    for (int i = 0; i < FMT_DIMS_MAX; i++) t.shape[i] = i < ndim ? shape[i] : 1;
    return t;
}
