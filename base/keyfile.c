#include "base/keyfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

err_code keyfile_open(const char *path, const char *what, int *fd, err *e)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int why = *fd < 0 || fstat(*fd, &st) != 0 ? errno : 0;
    err_code rc = ERR_OK;
    if (why) rc = err_set(e, ERR_INPUT, "%s: cannot read the key: %s", what, strerror(why));
    else if (!S_ISREG(st.st_mode)) rc = err_set(e, ERR_INPUT, "%s: found no regular file, wanted a key file", what);
    else if (st.st_mode & 077)
        rc = err_set(e, ERR_INPUT, "%s: found mode %04o, wanted 0600: only its owner may read a key", what,
                     (unsigned int)(st.st_mode & 07777));
    if (rc == ERR_OK) return rc;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    errno = why;
    return rc;
}
