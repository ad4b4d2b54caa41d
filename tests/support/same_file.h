/* Files and folders that are the same, byte for byte. */
#ifndef TESTS_SUPPORT_SAME_FILE_H
#define TESTS_SUPPORT_SAME_FILE_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/ok.h"

enum { SAME_FILE_MAX = 1 << 20 };

/* The names in a folder, sorted, a line each; malloc'd. NULL: there is no such folder. */
static inline char *names_in(const char *folder)
{
    struct dirent **entry;
    const int n = scandir(folder, &entry, NULL, alphasort);
    if (n < 0) return NULL;
    char *all = calloc(1, 4096);
    for (int i = 0; i < n; i++) {
        if (entry[i]->d_name[0] != '.') strcat(strcat(all, entry[i]->d_name), "\n");
        free(entry[i]);
    }
    free(entry);
    return all;
}

static inline uint8_t *bytes_of(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(SAME_FILE_MAX);
    assert_non_null(f);
    *n = fread(data, 1, SAME_FILE_MAX, f);
    fclose(f);
    return data;
}

static inline bool same_file(const char *a, const char *b)
{
    size_t n, m;
    uint8_t *x = bytes_of(a, &n), *y = bytes_of(b, &m);
    const bool same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

static inline bool same_folder(const char *a, const char *b)
{
    char *x = names_in(a), *y = names_in(b), path_a[256], path_b[256];
    bool same = x && y && strcmp(x, y) == 0;
    char *rest = x;
    for (const char *name; same && (name = strsep(&rest, "\n")) && *name;) {
        snprintf(path_a, sizeof path_a, "%s/%s", a, name);
        snprintf(path_b, sizeof path_b, "%s/%s", b, name);
        same = same_file(path_a, path_b);
    }
    free(x);
    free(y);
    return same;
}

#endif
