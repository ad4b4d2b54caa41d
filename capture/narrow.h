/* A tensor of another engine in the dtype that docs/values.md gives its name, when no value changes by it: numpy has no
 * bf16, and hooks often hand out f32 or i64. */
#ifndef CAPTURE_NARROW_H
#define CAPTURE_NARROW_H

#include "formats/tape.h"

/* The dtype of a value by name. false: not a name of docs/values.md. */
bool cap_name_dtype(const char *name, fmt_dtype *out);
/* Writes t's elements to dst (room for as many of dtype `to`). Returns how many elements `to` cannot hold exactly (dst is
 * then of no use; NaN counts as exact), or -1 when there is no such conversion: floats among F64, F32, F16, BF16; I64 to
 * I32. */
int64_t cap_narrow(const fmt_tensor *t, fmt_dtype to, void *dst);

/* How a value of another engine got onto a tape: as it was given; in the dtype of its name; as it was given, though its
 * name has another dtype, which would lose something. */
typedef enum cap_as { CAP_AS_GIVEN, CAP_AS_NAMED, CAP_AS_OTHER } cap_as;
/* Puts it, joined and of no rank, in the dtype that its name has where that loses nothing, else as it is. Errors of
 * fmt_tape_put; ERR_NOMEM. */
MUST_USE err_code cap_put_named(fmt_tape_writer *w, const fmt_tape_key *key, const fmt_tensor *given, cap_as *as, err *e);

#endif
