#include "base/utf8.h"

#include <string.h>

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

void utf8_defuse(char *s, size_t n, const char *keep)
{
    for (size_t i = 0, step; i < n; i += step) {
        const unsigned char *u = (const unsigned char *)s + i;
        step = utf8_bytes(s + i);
        const bool low = u[0] < 0x20 || u[0] == 0x7f, high = step == 2 && u[0] == 0xc2 && u[1] < 0xa0;
        if (low && strchr(keep, u[0])) continue; /* keep's own zero is one of them: terminals pass over it */
        if (step == 0) step = 1;
        else if (!low && !high) continue;
        memset(s + i, '?', step);
    }
}
