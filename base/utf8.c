#include "base/utf8.h"

size_t utf8_bytes(const char *s)
{
    const unsigned char *u = (const unsigned char *)s, a = u[0];
    size_t n = a < 0x80 ? 1 : a >= 0xc2 && a < 0xe0 ? 2 : a >= 0xe0 && a < 0xf0 ? 3 : a >= 0xf0 && a < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    bool overlong = (a == 0xe0 && u[1] < 0xa0) || (a == 0xf0 && u[1] < 0x90);
    bool outside = (a == 0xed && u[1] >= 0xa0) || (a == 0xf4 && u[1] >= 0x90); /* surrogates; beyond U+10FFFF */
    return overlong || outside ? 0 : n;
}

bool utf8_valid(const char *s)
{
    for (size_t n; *s; s += n)
        if ((n = utf8_bytes(s)) == 0) return false;
    return true;
}
