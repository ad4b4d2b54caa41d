#include "base/keyfile.h"

#include "base/infile.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

err_code keyfile_open(const char *path, const char *what, int *fd, err *e)
{
    struct stat st;
    TRY(infile_open(path, what, "a key file", fd, NULL, e));
    err_code rc = ERR_OK;
    if (fstat(*fd, &st) != 0) rc = err_set(e, ERR_IO, "%s: %s", what, strerror(errno));
    else if (st.st_mode & 077)
        rc = err_set(e, ERR_INPUT, "%s: found mode %04o, wanted 0600: only its owner may read a key", what,
                     (unsigned int)(st.st_mode & 07777));
    if (rc == ERR_OK) return rc;
    close(*fd);
    *fd = -1;
    errno = 0;
    return rc;
}
