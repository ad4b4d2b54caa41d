/* Opening a file that holds a secret, as ssh does: nothing but a regular file that no one else can read. */
#ifndef BASE_KEYFILE_H
#define BASE_KEYFILE_H

#include "base/err.h"

/* As infile_open; what: "--redact a.key". ERR_INPUT also: its mode lets others in. */
MUST_USE err_code keyfile_open(const char *path, const char *what, int *fd, err *e);

#endif
