/* Makes the n-th allocation fail, in the code under test and in jansson. The test is linked with
 * --wrap=malloc,--wrap=calloc,--wrap=realloc and calls alloc_fail_init first. */
#ifndef TESTS_FORMATS_ALLOC_FAIL_H
#define TESTS_FORMATS_ALLOC_FAIL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);

static long alloc_left = -1; /* allocations until one fails; -1: none fails */
static bool alloc_hit, alloc_persistent;

static bool alloc_fails(void)
{
    if (alloc_left < 0) return false;
    if (alloc_left > 0) { alloc_left--; return false; }
    if (!alloc_persistent) alloc_left = -1;
    alloc_hit = true;
    return true;
}
void *__wrap_malloc(size_t n) { return alloc_fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t m) { return alloc_fails() ? NULL : __real_calloc(n, m); }
void *__wrap_realloc(void *p, size_t n) { return alloc_fails() ? NULL : __real_realloc(p, n); }

static void alloc_fail_init(void) { json_set_alloc_funcs(__wrap_malloc, free); }

/* The n-th allocation from now fails, and when persistent all after it. */
static void alloc_fail_at(long n, bool persistent)
{
    alloc_left = n;
    alloc_persistent = persistent;
    alloc_hit = false;
}
/* Ends it; true when an allocation was made to fail. */
static bool alloc_fail_end(void)
{
    alloc_left = -1;
    return alloc_hit;
}

#endif
