/* Taps: how the engine shows its values to whoever records them. It does not know who that is.
 *
 * tensor() is called on the rank's own thread, in program order, right after the op that made the value (eager) or
 * after the whole step (planned, for retained values). The data is valid during the call only. It must not block on
 * another rank. */
#ifndef ENGINE_TAP_H
#define ENGINE_TAP_H

#include "engine/program.h"

typedef struct eng_site {
    const eng_program *program;
    int32_t value;               /* index into program->value */
    int32_t rank, n_ranks;
    int32_t slot;                /* insert: the request's slot; draft: FMT_TAPE_NO_SLOT */
    int32_t row0, rows_total;    /* an insert of many rows runs in buckets: rows [row0, row0 + shape[0]) of rows_total */
} eng_site;

typedef struct eng_tap {
    void (*tensor)(void *ctx, const eng_site *site, const fmt_tensor *t); /* NULL: nobody is shown anything */
    void *ctx;
    struct eng_shot *shot; /* NULL, or a taken shot that the step fills (engine/shots.h) */
    bool traced;           /* run this step eagerly, whatever the engine's mode: every value is shown */
} eng_tap;

#endif
