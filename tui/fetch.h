/* Small values read off the drawing thread: a screen lists what it wants, and draws what has come. */
#ifndef TUI_FETCH_H
#define TUI_FETCH_H

#include "tui/app.h"
#include "tui/work.h"

typedef struct tui_fetch_item {
    const fmt_tape *tape;
    int32_t round, slot;
    char name[FMT_TAPE_NAME_BYTES];
    cap_value value;
    bool there;
} tui_fetch_item;

typedef struct tui_fetch {
    tui_work *work;
    tui_fetch_item *item;
    int32_t n;
    size_t capacity;
    atomic_int n_ready; /* in order: of those before it the value is there, or will never be */
} tui_fetch;

/* Zero before use. Ends what is going on and forgets all items. */
void tui_fetch_clear(tui_fetch *f);
/* Its index; -1: no memory. */
int32_t tui_fetch_add(tui_fetch *f, const fmt_tape *tape, int32_t round, int32_t slot, const char *name);
void tui_fetch_start(tui_app *app, tui_fetch *f);
/* Ranks joined; valid until clear. NULL: not there, or not yet, or another dtype or number of dimensions. */
const fmt_tensor *tui_fetch_get(const tui_fetch *f, int32_t i, fmt_dtype dtype, int32_t ndim);
bool tui_fetch_ready(const tui_fetch *f, int32_t i);
void tui_fetch_fini(tui_fetch *f);

#endif
