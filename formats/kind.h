/* What a file that a user named is, for messages about one that is not what was wanted. */
#ifndef FORMATS_KIND_H
#define FORMATS_KIND_H

#include "base/err.h"

/* By how it begins (n bytes, as many as there are up to 16): "a tape", "a safetensors file", "JSON text", "a file of
 * another kind". A tape whose first bytes are damaged is not known. */
const char *fmt_kind_of_bytes(const uint8_t *head, uint64_t n);
/* The same of a path; "nothing of that name", "a folder", or "something" that cannot be read. */
const char *fmt_kind_of(const char *path);

#endif
