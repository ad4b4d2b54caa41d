/* An input as a file that can be opened by its path. */
#ifndef TESTS_FUZZ_MEMFILE_H
#define TESTS_FUZZ_MEMFILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"

enum { MEMFILE_PATH = 64 };

/* Its descriptor: close it when path is not needed any more. */
static inline int memfile(const uint8_t *data, size_t size, char path[MEMFILE_PATH])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, MEMFILE_PATH, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
