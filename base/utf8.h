/* UTF-8, which JSON, XML and terminals want. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character at s; 0: none begins there. The byte that ends a text is a character of 1. */
size_t utf8_bytes(const char *s);
bool utf8_valid(const char *s); /* the whole text */
/* Makes n bytes of a stranger's text, with a zero behind them, safe to print: control characters (those below a blank,
 * delete, U+0080 to U+009F), which a terminal obeys, and bytes that are no UTF-8 become '?', a byte for a byte. Zeros stay;
 * keep: what else does, "\n\t" or "". */
void utf8_defuse(char *s, size_t n, const char *keep);

#endif
