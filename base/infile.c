#include "base/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

err_code infile_open(const char *path, const char *what, const char *wanted, int *fd, uint64_t *bytes, err *e)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe's open would wait for its writer */
    const int why = *fd < 0 || fstat(*fd, &st) != 0 ? errno : 0;
    if (!why && S_ISREG(st.st_mode)) {
        if (bytes) *bytes = (uint64_t)st.st_size;
        return ERR_OK;
    }
    if (*fd >= 0) close(*fd);
    *fd = -1;
    const char *colon = what ? ": " : "";
    const bool absent = why == 0 || why == ENOENT || why == ENOTDIR || why == ELOOP || why == ENAMETOOLONG;
    if (!what) what = "";
    const char *found = !why && S_ISDIR(st.st_mode) ? "a folder" : "no regular file";
    err_code rc = why ? err_set(e, absent ? ERR_INPUT : ERR_IO, "%s%scannot be opened: %s", what, colon, strerror(why))
                      : err_set(e, ERR_INPUT, "%s%sfound %s, wanted %s", what, colon, found, wanted);
    errno = why;
    return rc;
}
