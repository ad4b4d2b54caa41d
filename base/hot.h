/* The step's promise: nothing allocates between hot_begin and hot_end.
 *
 * Test builds wrap malloc and friends (tests/support/alloc_guard.c) and count every call made by a thread that is
 * inside a hot section; release builds pay one thread-local increment. Sections nest. */
#ifndef BASE_HOT_H
#define BASE_HOT_H

extern _Thread_local int hot_depth;

static inline void hot_begin(void) { hot_depth++; }
static inline void hot_end(void) { hot_depth--; }

#endif
