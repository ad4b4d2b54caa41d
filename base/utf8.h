/* UTF-8, which JSON, XML and terminals want. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character at s; 0: none begins there. The byte that ends a text is a character of 1. */
size_t utf8_bytes(const char *s);
bool utf8_valid(const char *s); /* the whole text */

#endif
