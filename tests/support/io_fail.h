/* Makes the n-th call fail that asks the disk for something: a file or folder to be made, bytes to be taken, synced or
 * closed, a name to be given. The test is linked with IO_FAIL_WRAP of tests/CMakeLists.txt. Reading and removing never
 * fail. One caller at a time arms it; the calls may come from any thread. */
#ifndef TESTS_SUPPORT_IO_FAIL_H
#define TESTS_SUPPORT_IO_FAIL_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int __real_open(const char *path, int flags, ...);
ssize_t __real_write(int fd, const void *data, size_t bytes);
int __real_rename(const char *from, const char *to);
int __real_mkdir(const char *path, mode_t mode);
FILE *__real_fopen(const char *path, const char *mode);
size_t __real_fwrite(const void *data, size_t each, size_t n, FILE *f);
int __real_fclose(FILE *f);

int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_mkdir(const char *path, mode_t mode);
FILE *__wrap_fopen(const char *path, const char *mode);
size_t __wrap_fwrite(const void *data, size_t each, size_t n, FILE *f);
int __wrap_fclose(FILE *f);

static _Atomic long io_left = -1; /* calls until one fails; -1: none fails */
static atomic_bool io_hit, io_persistent;

static bool io_fails(void)
{
    if (io_left < 0) return false;
    if (io_left > 0 && io_left-- > 0) return false;
    if (!io_persistent) io_left = -1;
    io_hit = true;
    errno = ENOSPC;
    return true;
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return flags & O_CREAT && io_fails() ? -1 : __real_open(path, flags, mode);
}
/* Half of the bytes are taken first, as by a disk that becomes full. */
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    if (fd <= STDERR_FILENO || !io_fails()) return __real_write(fd, data, bytes);
    (void)!__real_write(fd, data, bytes / 2);
    errno = ENOSPC;
    return -1;
}
/* No test cuts the power: syncing would only cost time. */
int __wrap_fsync(int fd) { (void)fd; return io_fails() ? -1 : 0; }
int __wrap_rename(const char *from, const char *to) { return io_fails() ? -1 : __real_rename(from, to); }
int __wrap_mkdir(const char *path, mode_t mode) { return io_fails() ? -1 : __real_mkdir(path, mode); }
FILE *__wrap_fopen(const char *path, const char *mode)
{
    return strchr(mode, 'w') && io_fails() ? NULL : __real_fopen(path, mode);
}
size_t __wrap_fwrite(const void *data, size_t each, size_t n, FILE *f)
{
    return f != stdout && f != stderr && io_fails() ? 0 : __real_fwrite(data, each, n, f);
}
int __wrap_fclose(FILE *f)
{
    const int rc = __real_fclose(f);
    return io_fails() ? EOF : rc;
}

/* The n-th such call from now fails, and when persistent all after it. */
static inline void io_fail_at(long n, bool persistent)
{
    io_persistent = persistent;
    io_hit = false;
    io_left = n;
}
/* Ends it; true when a call was made to fail. */
static inline bool io_fail_end(void)
{
    io_left = -1;
    return io_hit;
}

#endif
