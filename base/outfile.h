/* A file that appears under its name only when it is whole.
 *
 * Bytes go to PATH.part, created anew; outfile_commit syncs and renames. A sticky error is kept, so a long
 * writer checks once at the end. */
#ifndef BASE_OUTFILE_H
#define BASE_OUTFILE_H

#include "base/err.h"

#include <stddef.h>

typedef struct outfile outfile;

/* Creates PATH.part (an old one is replaced: it belongs to a writer that died). *out is NULL on error.
 * ERR_IO: cannot be created, or PATH is there and is no regular file. */
MUST_USE err_code outfile_open(const char *path, outfile **out, err *e);
/* The same for what only its owner may read and write: mode 0600, from its first byte on. */
MUST_USE err_code outfile_open_private(const char *path, outfile **out, err *e);
/* Buffered append. After a failure it does nothing; the first failure is reported by commit. */
void outfile_write(outfile *f, const void *data, size_t bytes);
/* Gives all bytes written so far to the kernel, so that a killed process does not lose them. */
MUST_USE err_code outfile_flush(outfile *f, err *e);
uint64_t outfile_bytes(const outfile *f); /* appended so far */
bool outfile_failed(const outfile *f);
/* Flushes, syncs, closes and renames to PATH; frees f whatever happens. On error PATH is untouched; .part is removed
 * when bytes are missing from it, and kept when only the sync or the rename failed. */
MUST_USE err_code outfile_commit(outfile *f, err *e);
/* Closes and removes .part; frees f. NULL is a no-op. */
void outfile_abandon(outfile *f);
/* Closes and leaves .part as it is (a dump that may be recovered); frees f. NULL is a no-op. */
void outfile_leave(outfile *f);

#endif
