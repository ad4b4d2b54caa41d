/* A folder of its own for a test executable: made under the current one, entered, and removed at the end. */
#ifndef TESTS_ENGINE_SCRATCH_H
#define TESTS_ENGINE_SCRATCH_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char scratch_path[4096];

static inline int scratch_make(void **state)
{
    (void)state;
    char name[] = "scratch-XXXXXX";
    if (!mkdtemp(name) || !realpath(name, scratch_path) || chdir(scratch_path) != 0) return -1;
    return setenv("XDG_CACHE_HOME", scratch_path, 1); /* what an open remembers stays in here */
}

static inline int scratch_remove_one(const char *path, const struct stat *s, int type, struct FTW *at)
{
    (void)s, (void)type, (void)at;
    return remove(path);
}

static inline int scratch_remove(void **state)
{
    (void)state;
    if (chdir("..") != 0) return -1;
    return nftw(scratch_path, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A whole file, malloc'd. */
static inline uint8_t *scratch_read(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    fclose(f);
    return data;
}

static inline void scratch_write(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

#endif
