/* Opening a file that holds a secret, as ssh does: nothing but a regular file that no one else can read. */
#ifndef BASE_KEYFILE_H
#define BASE_KEYFILE_H

#include "base/err.h"

/* *fd: the file, for reading, the caller's to close; -1 on error. Never waits, as for the writer of a pipe. what: begins
 * the message, "--redact a.key". ERR_INPUT: not to be opened (errno says why; ENOENT: not there), no regular file, or its
 * mode lets others in. */
MUST_USE err_code keyfile_open(const char *path, const char *what, int *fd, err *e);

#endif
