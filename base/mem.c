#include "base/mem.h"

void *mem_alloc(size_t count, size_t elem_bytes)
{
    return calloc(count ? count : 1, elem_bytes ? elem_bytes : 1);
}

void *mem_alloc_aligned(size_t count, size_t elem_bytes)
{
    uint64_t bytes;
    if (!mul_u64(count, elem_bytes, &bytes) || bytes > SIZE_MAX - 64) return NULL;
    bytes = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, bytes ? bytes : 64);
    if (p) memset(p, 0, bytes ? bytes : 64);
    return p;
}

bool mem_grow(void **array, size_t *cap, size_t want, size_t elem_bytes)
{
    if (want <= *cap) return true;
    size_t next = *cap ? *cap : 16;
    while (next < want) {
        if (next > SIZE_MAX / 2) return false;
        next *= 2;
    }
    uint64_t bytes;
    if (!mul_u64(next, elem_bytes, &bytes) || bytes > SIZE_MAX) return false;
    void *p = realloc(*array, bytes);
    if (!p) return false;
    *array = p;
    *cap = next;
    return true;
}

char *mem_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = malloc(n);
    if (p) memcpy(p, s, n);
    return p;
}
