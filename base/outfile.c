#include "base/outfile.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUF_BYTES = 1 << 18 };

struct outfile {
    int fd;
    char *path, *part;
    uint64_t bytes;
    size_t used;
    err first; /* sticky */
    uint8_t buf[BUF_BYTES];
};

static void drop(outfile *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    free(f->part);
    free(f);
}

static err_code open_mode(const char *path, mode_t mode, outfile **out, err *e)
{
    *out = NULL;
    struct stat st;
    /* The last step renames over PATH: that must not fail on a folder, nor replace a device such as /dev/null. */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: cannot be created: what has that name is not a file", path);
    outfile *f = mem_alloc(1, sizeof *f);
    if (!f) return err_set(e, ERR_NOMEM, "%s: no memory for the output buffer", path);
    f->fd = -1;
    size_t n = strlen(path);
    f->path = mem_strdup(path);
    f->part = malloc(n + sizeof ".part");
    if (!f->path || !f->part) {
        drop(f);
        return err_set(e, ERR_NOMEM, "%s: no memory for the file name", path);
    }
    memcpy(f->part, path, n);
    memcpy(f->part + n, ".part", sizeof ".part");
    if (unlink(f->part) != 0 && errno != ENOENT) {
        int why = errno;
        drop(f);
        return err_set(e, ERR_IO, "%s.part: cannot be replaced: %s", path, strerror(why));
    }
    f->fd = open(f->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (f->fd < 0) {
        int why = errno;
        drop(f);
        return err_set(e, ERR_IO, "%s: cannot be created: %s", path, strerror(why));
    }
    *out = f;
    return ERR_OK;
}

err_code outfile_open(const char *path, outfile **out, err *e) { return open_mode(path, 0666, out, e); }
err_code outfile_open_private(const char *path, outfile **out, err *e) { return open_mode(path, 0600, out, e); }

static void push(outfile *f, const uint8_t *p, size_t n)
{
    while (n && f->first.code == ERR_OK) {
        ssize_t k = write(f->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            err_set(&f->first, ERR_IO, "%s: write failed at byte %llu: %s", f->path,
                    (unsigned long long)(f->bytes - f->used), k < 0 ? strerror(errno) : "short write");
            return;
        }
        p += k;
        n -= (size_t)k;
    }
}

void outfile_write(outfile *f, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    f->bytes += bytes;
    if (f->used + bytes > BUF_BYTES) {
        push(f, f->buf, f->used);
        f->used = 0;
    }
    if (bytes >= BUF_BYTES) {
        push(f, p, bytes);
        return;
    }
    memcpy(f->buf + f->used, p, bytes);
    f->used += bytes;
}

err_code outfile_flush(outfile *f, err *e)
{
    push(f, f->buf, f->used);
    f->used = 0;
    if (f->first.code != ERR_OK) {
        if (e) *e = f->first;
        return f->first.code;
    }
    return ERR_OK;
}

uint64_t outfile_bytes(const outfile *f) { return f->bytes; }
bool outfile_failed(const outfile *f) { return f->first.code != ERR_OK; }

err_code outfile_commit(outfile *f, err *e)
{
    err_code rc = outfile_flush(f, e);
    bool written = rc == ERR_OK;
    if (rc == ERR_OK && fsync(f->fd) != 0 && errno != EINVAL && errno != EROFS)
        rc = err_set(e, ERR_IO, "%s: cannot be synced: %s", f->path, strerror(errno));
    if (rc == ERR_OK && rename(f->part, f->path) != 0)
        rc = err_set(e, ERR_IO, "%s: cannot be renamed from .part: %s", f->path, strerror(errno));
    if (!written) unlink(f->part);
    drop(f);
    return rc;
}

void outfile_abandon(outfile *f)
{
    if (!f) return;
    unlink(f->part);
    drop(f);
}

void outfile_leave(outfile *f)
{
    if (!f) return;
    push(f, f->buf, f->used);
    drop(f);
}
