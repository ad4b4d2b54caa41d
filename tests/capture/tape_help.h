/* Small tapes for the tests of capture/. */
#ifndef TESTS_CAPTURE_TAPE_HELP_H
#define TESTS_CAPTURE_TAPE_HELP_H

#include "tests/support/ok.h"

#include "formats/number.h"
#include "formats/tape.h"

#include <stdlib.h>
#include <unistd.h>

/* Runs every test of a group in a folder of its own. */
static inline int enter_folder(void **state)
{
    static char folder[] = "capture-test-XXXXXX";
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static inline fmt_tape_writer *tape_begin(const char *path, const json_t *head)
{
    fmt_tape_writer *w = NULL;
    json_t *plain = json_pack("{s:s, s:s}", "format", "sparktape", "level", "deep");
    OK(fmt_tape_create(path, head ? head : plain, &w, e));
    json_decref(plain);
    return w;
}

static inline void tape_put(fmt_tape_writer *w, int32_t round, int32_t slot, int32_t rank, const char *name,
                            fmt_dtype dtype, const void *data, int32_t ndim, const int64_t *shape)
{
    fmt_tensor t = fmt_tensor_make(dtype, data, ndim, shape);
    fmt_tape_key key = { round, slot, rank, name };
    OK(fmt_tape_put(w, &key, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
}

static inline void tape_put_ints(fmt_tape_writer *w, int32_t round, int32_t slot, const char *name, int64_t n,
                                 const int32_t *v)
{
    tape_put(w, round, slot, 0, name, FMT_DTYPE_I32, v, 1, &n);
}

static inline fmt_tape *tape_end(fmt_tape_writer *w, const char *path)
{
    fmt_tape *t = NULL;
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open(path, &t, e));
    return t;
}

#endif
