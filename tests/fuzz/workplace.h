/* A folder for a target whose code under test writes files: in memory, made at the first input, removed at the end. */
#ifndef TESTS_FUZZ_WORKPLACE_H
#define TESTS_FUZZ_WORKPLACE_H

#include <ftw.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"

static char workplace_path[] = "/dev/shm/sparktape-fuzz-XXXXXX";

static inline int workplace_remove_one(const char *path, const struct stat *s, int type, struct FTW *at)
{
    (void)s, (void)type, (void)at;
    return remove(path);
}

static inline void workplace_remove(void) { (void)nftw(workplace_path, workplace_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/* Makes it and goes there; what a checkpoint's open remembers stays in it too. */
static inline void workplace_enter(void)
{
    CHECK(mkdtemp(workplace_path) && chdir(workplace_path) == 0);
    CHECK(setenv("XDG_CACHE_HOME", workplace_path, 1) == 0 && atexit(workplace_remove) == 0);
}

#endif
