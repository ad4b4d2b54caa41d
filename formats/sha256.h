/* SHA-256 (libcrypto). */
#ifndef FORMATS_SHA256_H
#define FORMATS_SHA256_H

#include "base/err.h"

#include <stddef.h>

enum { FMT_SHA256_BYTES = 32, FMT_SHA256_HEX = 65 };

typedef struct fmt_sha256 { uint8_t bytes[FMT_SHA256_BYTES]; } fmt_sha256;
typedef struct fmt_sha256_state fmt_sha256_state;

MUST_USE err_code fmt_sha256_open(fmt_sha256_state **out, err *e); /* ERR_NOMEM */
void fmt_sha256_add(fmt_sha256_state *s, const void *data, size_t bytes);
void fmt_sha256_close(fmt_sha256_state *s, fmt_sha256 *out); /* frees s; out may be NULL */
MUST_USE err_code fmt_sha256_of(const void *data, size_t bytes, fmt_sha256 *out, err *e);
void fmt_sha256_hex(const fmt_sha256 *h, char hex[FMT_SHA256_HEX]);

#endif
