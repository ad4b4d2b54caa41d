/* Counts allocations made inside a hot section (base/hot.h). A test that links alloc_guard.c and the -Wl,--wrap options of
 * tests/engine/exec.cmake proves that a step allocates nothing. */
#ifndef TESTS_ALLOC_GUARD_H
#define TESTS_ALLOC_GUARD_H

#include <stdint.h>

extern _Atomic int64_t alloc_guard_hot_calls;   /* malloc, calloc, realloc, aligned_alloc, free while hot */
extern _Atomic int64_t alloc_guard_other_calls; /* the same outside: shows that the wrap is in place */

#endif
