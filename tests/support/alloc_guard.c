#include "tests/support/alloc_guard.h"

#include "base/hot.h"

#include <stddef.h>

_Atomic int64_t alloc_guard_hot_calls, alloc_guard_other_calls;

static void count(void)
{
    if (hot_depth > 0) alloc_guard_hot_calls++;
    else alloc_guard_other_calls++;
}

/* -Wl,--wrap sends every call of malloc to __wrap_malloc and makes the library's own __real_malloc. */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);

void *__wrap_malloc(size_t n) { count(); return __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t each) { count(); return __real_calloc(n, each); }
void *__wrap_realloc(void *p, size_t n) { count(); return __real_realloc(p, n); }
void *__wrap_aligned_alloc(size_t align, size_t n) { count(); return __real_aligned_alloc(align, n); }
void __wrap_free(void *p)
{
    if (p) count();
    __real_free(p);
}
