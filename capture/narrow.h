/* A tensor of another engine in the dtype that docs/values.md gives its name, when no value changes by it: numpy has no
 * bf16, and hooks often hand out f32 or i64. */
#ifndef CAPTURE_NARROW_H
#define CAPTURE_NARROW_H

#include "formats/dtype.h"

/* The dtype of a value by name. false: not a name of docs/values.md. */
bool cap_name_dtype(const char *name, fmt_dtype *out);
/* Writes t's elements to dst (room for as many of dtype `to`). Returns how many elements `to` cannot hold exactly (dst is
 * then of no use; NaN counts as exact), or -1 when there is no such conversion: floats among F64, F32, F16, BF16; I64 to
 * I32. */
int64_t cap_narrow(const fmt_tensor *t, fmt_dtype to, void *dst);

#endif
