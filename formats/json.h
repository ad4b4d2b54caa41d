/* JSON in and out (jansson), and the same objects as msgpack (msgpack-c).
 *
 * json_t is the project's one dynamic value: configs, tape heads, manifests, reports. Objects keep key order. */
#ifndef FORMATS_JSON_H
#define FORMATS_JSON_H

#include "base/err.h"

#include <jansson.h>
#include <stddef.h>

/* Reads a whole file. ERR_INPUT: no such file, or not a regular one. ERR_IO. ERR_FORMAT names path, line and column, or
 * the size when it is over max_bytes. Duplicate keys are refused. *out owned by the caller (json_decref). */
MUST_USE err_code fmt_json_read(const char *path, size_t max_bytes, json_t **out, err *e);
/* Writes value, indented, through outfile (whole or not at all). */
MUST_USE err_code fmt_json_write(const char *path, const json_t *value, err *e);
/* One line on out, no spaces, keys in insertion order, newline after. Numbers keep 17 digits; NaN and infinities must be
 * given as strings. ERR_IO. */
MUST_USE err_code fmt_json_print(FILE *out, const json_t *value, err *e);
/* json_dumps, malloc'd, flags and all; NULL: no memory. jansson's own takes no notice when a key finds none, and leaves it
 * out. */
char *fmt_json_dumps(const json_t *value, size_t flags);
/* A float that may be NaN or infinite: a JSON real, or the string "nan", "inf", "-inf". New reference. */
json_t *fmt_json_real(double v);
/* The text under key; "" where j is no object, or has no text there. Borrowed from j. */
const char *fmt_json_text(const json_t *j, const char *key);

/* Add to an array, or set in an object, and take the item. Where *to is NULL, the item is NULL, or memory lacks, *to is
 * released and then NULL: what is built step by step is whole, or NULL at the end, which json_pack passes on. */
void fmt_json_add(json_t **to, json_t *item);
void fmt_json_put(json_t **to, const char *key, json_t *item);

/* msgpack of value: maps keep the key order, integers the smallest form, reals float64. *out is malloc'd.
 * ERR_ARG: deeper than 16. ERR_NOMEM. */
MUST_USE err_code fmt_msgpack_pack(const json_t *value, uint8_t **out, size_t *out_bytes, err *e);
/* The other way. Depth at most 16; ext types, bin, integers over 2^63 - 1, strings that are not UTF-8, duplicate or
 * non-string keys and bytes after the value are refused. NaN and infinities become fmt_json_real's strings, control
 * characters other than newline and tab become '?': a terminal would obey them. The result
 * never takes more than a fixed multiple of bytes. *out is NULL on error. ERR_FORMAT names the byte. */
MUST_USE err_code fmt_msgpack_unpack(const uint8_t *data, size_t bytes, json_t **out, err *e);

#endif
