/* Element types, and a tensor as bytes with a type and a shape.
 *
 * Names are safetensors' own. FP4 (two E2M1 codes a byte, low nibble first) is stored by the official checkpoint as I8
 * and is not a dtype of its own here. */
#ifndef FORMATS_DTYPE_H
#define FORMATS_DTYPE_H

#include "base/err.h"

/* name, safetensors name, bytes, is a float that can be NaN */
#define FMT_DTYPE_LIST(X)       \
    X(F32,  "F32",     4, 1)    \
    X(BF16, "BF16",    2, 1)    \
    X(I32,  "I32",     4, 0)    \
    X(F8,   "F8_E4M3", 1, 1)    \
    X(E8M0, "F8_E8M0", 1, 1)    \
    X(I8,   "I8",      1, 0)    \
    X(U8,   "U8",      1, 0)    \
    X(I64,  "I64",     8, 0)    \
    X(F16,  "F16",     2, 1)    \
    X(F64,  "F64",     8, 1)    \
    X(I16,  "I16",     2, 0)    \
    X(BOOL, "BOOL",    1, 0)    \
    X(U16,  "U16",     2, 0)    \
    X(U32,  "U32",     4, 0)    \
    X(U64,  "U64",     8, 0)    \
    X(F8_E5M2, "F8_E5M2", 1, 1)

#define X(name, text, bytes, is_float) FMT_DTYPE_##name,
typedef enum fmt_dtype { FMT_DTYPE_LIST(X) FMT_DTYPE_COUNT } fmt_dtype;
#undef X

enum { FMT_DIMS_MAX = 8 };

/* A view: who owns data is said where the view is made. Contiguous, row-major. ndim 0 is a scalar. */
typedef struct fmt_tensor {
    fmt_dtype dtype;
    int32_t ndim;
    int64_t shape[FMT_DIMS_MAX]; /* entries past ndim are 1 */
    const void *data;
} fmt_tensor;

uint32_t fmt_dtype_bytes(fmt_dtype d);
const char *fmt_dtype_name(fmt_dtype d);                     /* "BF16" */
bool fmt_dtype_parse(const char *text, fmt_dtype *out);      /* false: unknown */
int64_t fmt_tensor_elems(const fmt_tensor *t); /* product of the shape; shapes are checked where they are read */
uint64_t fmt_tensor_bytes(const fmt_tensor *t);
/* "BF16 [5, 4, 256]" into buf; returns buf. */
const char *fmt_tensor_text(const fmt_tensor *t, char *buf, size_t buf_bytes);
fmt_tensor fmt_tensor_make(fmt_dtype d, const void *data, int32_t ndim, const int64_t *shape);

#endif
