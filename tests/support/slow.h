/* Under ASan the engine's steps are ten to thirty times slower: a part of a test's cases has to do there. A build without
 * runs all. */
#ifndef TESTS_SUPPORT_SLOW_H
#define TESTS_SUPPORT_SLOW_H

#ifdef __SANITIZE_ADDRESS__
enum { SLOW = true };
#else
enum { SLOW = false };
#endif

#endif
