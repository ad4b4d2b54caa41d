/* The capture API: values of another engine, written from within it to a tape that every command of sparktape reads.
 *
 *     sparktape *t = sparktape_create("mine.tape", "my engine 1.2", why, sizeof why);
 *     sparktape_put(t, "round.0.s0.attn_out", "BF16", 3, shape, host_data);      // as often as there are values
 *     if (sparktape_finish(t, why, sizeof why) != 0) fprintf(stderr, "%s\n", why);
 *
 * Link with -lsparktape. Needs no other header, of this project or of CUDA. Data is host memory: copy from a device first,
 * on the stream that made the value, and put it once the copy is done.
 *
 * Names   docs/values.md's, with the round in front: round.R.VALUE of a draft step, round.R.insert.SLOT.VALUE of an insert,
 *         round.R.window.SLOT.sK, round.R.draft.slots | anchor | pos | n_out. Others are kept too, and compared by name.
 * Dtypes  safetensors' words: F32 BF16 F16 F64 I32 I64 I16 I8 U8 BOOL F8_E4M3 F8_E8M0 ... A value that has another dtype in
 *         docs/values.md is stored in that one where no element changes by it (an F32 buffer of bf16 numbers becomes BF16).
 * Rounds  in ascending order; what was put of earlier rounds is safe from a kill of the process.
 * Errors  every call says 0 or -1 and never ends the process; sparktape_error has the words. A value that is refused is not
 *         on the tape, which counts it as dropped, and the others go on; after a failed write (a full disk) all fail.
 * Threads one at a time for a tape.
 * Files   PATH.part, mode 0600, until finish gives it its name. sparktape recover saves what a killed process left. */
#ifndef SPARKTAPE_H
#define SPARKTAPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SPARKTAPE_API __attribute__((visibility("default")))
#else
#define SPARKTAPE_API
#endif

typedef struct sparktape sparktape;

/* engine: what ran, in your words, for the tape's identity; not NULL. Returns NULL when it failed, and why says how (one
 * line, cut to fit; why may be NULL). Replaces PATH.part, and PATH when it is finished. */
SPARKTAPE_API sparktape *sparktape_create(const char *path, const char *engine, char *why, size_t why_bytes);
/* Appends one value of shape[ndim], ndim 0 to 8, row-major, once in its round; data is read during the call. */
SPARKTAPE_API int sparktape_put(sparktape *t, const char *name, const char *dtype, int ndim, const int64_t *shape,
                                const void *data);
/* The last failure; "" while there was none. Valid until the next call with t. */
SPARKTAPE_API const char *sparktape_error(const sparktape *t);
/* Ends the tape and frees t, whatever happens. 0: PATH is there; why says how many values were refused, "" if none was. -1:
 * PATH is as it was before, and PATH.part holds what could be written, unless memory was short. */
SPARKTAPE_API int sparktape_finish(sparktape *t, char *why, size_t why_bytes);
/* Frees t and removes PATH.part. NULL is a no-op. */
SPARKTAPE_API void sparktape_discard(sparktape *t);

#ifdef __cplusplus
}
#endif

#endif
