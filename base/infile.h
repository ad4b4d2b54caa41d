/* Opening a regular file for reading. A pipe of that name does not hang the open, a device is not read without end. */
#ifndef BASE_INFILE_H
#define BASE_INFILE_H

#include "base/err.h"

/* *fd: the caller's to close; -1 on error. *bytes (NULL allowed): its size. what begins the message: the path, as a rule
 * (NULL: nothing); wanted ends it: "a tape". ERR_INPUT: not there, or no regular file; ERR_IO. errno says why, 0 for no
 * regular file. */
MUST_USE err_code infile_open(const char *path, const char *what, const char *wanted, int *fd, uint64_t *bytes, err *e);

#endif
