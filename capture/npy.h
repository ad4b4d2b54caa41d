/* NumPy's files, written by hand: .npy arrays, and .npz (a zip of them, stored).
 *
 * NumPy has no bf16, e4m3, e5m2 or e8m0: they are written as their bits, '<u2' and '|u1'. */
#ifndef CAPTURE_NPY_H
#define CAPTURE_NPY_H

#include "base/outfile.h"
#include "formats/dtype.h"

enum { CAP_NPY_HEADER = 512 };
/* The bytes before the array of a version 1.0 .npy file, a multiple of 64. Returns how many. */
size_t cap_npy_header(const fmt_tensor *t, uint8_t out[CAP_NPY_HEADER]);

/* A zip archive going to an outfile: members stored, sizes and offsets in zip64 form throughout, no time stamps, so that
 * the same values give the same bytes. */
typedef struct cap_zip cap_zip;
/* f is borrowed; the archive starts at its current end, which must be 0. ERR_NOMEM. */
MUST_USE err_code cap_zip_open(outfile *f, cap_zip **out, err *e);
/* One member: head, then body. ERR_NOMEM. Write failures stay in f. */
MUST_USE err_code cap_zip_put(cap_zip *z, const char *name, const void *head, size_t head_bytes, const void *body,
                              size_t body_bytes, err *e);
/* Writes the directory and frees z. f is the caller's to commit. */
void cap_zip_close(cap_zip *z);
/* Frees z; NULL is a no-op. */
void cap_zip_free(cap_zip *z);

#endif
