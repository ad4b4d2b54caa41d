/* Makes the n-th allocation fail, in the code under test and in jansson. The test is linked with ALLOC_FAIL_WRAP of
 * tests/CMakeLists.txt and calls alloc_fail_init first. One caller at a time arms it; allocations may come from any
 * thread. */
#ifndef TESTS_FORMATS_ALLOC_FAIL_H
#define TESTS_FORMATS_ALLOC_FAIL_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

static _Atomic long alloc_left = -1; /* allocations until one fails; -1: none fails */
static atomic_bool alloc_hit, alloc_persistent;

static bool alloc_fails(void)
{
    if (alloc_left < 0) return false;
    if (alloc_left > 0 && alloc_left-- > 0) return false;
    if (!alloc_persistent) alloc_left = -1;
    alloc_hit = true;
    return true;
}
void *__wrap_malloc(size_t n) { return alloc_fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t m) { return alloc_fails() ? NULL : __real_calloc(n, m); }
void *__wrap_realloc(void *p, size_t n) { return alloc_fails() ? NULL : __real_realloc(p, n); }
void *__wrap_aligned_alloc(size_t align, size_t n) { return alloc_fails() ? NULL : __real_aligned_alloc(align, n); }

static inline void alloc_fail_init(void) { json_set_alloc_funcs(__wrap_malloc, free); }

/* The n-th allocation from now fails, and when persistent all after it. */
static void alloc_fail_at(long n, bool persistent)
{
    alloc_persistent = persistent;
    alloc_hit = false;
    alloc_left = n;
}
/* Ends it; true when an allocation was made to fail. */
static bool alloc_fail_end(void)
{
    alloc_left = -1;
    return alloc_hit;
}

#endif
