/* The browser without a terminal: a stack of screens, a place that they share, keys in and a canvas out. */
#ifndef TUI_APP_H
#define TUI_APP_H

#include "tui/canvas.h"
#include "tui/keys.h"
#include "tui/model.h"
#include "tui/table.h"

typedef enum tui_kind { TUI_STAY, TUI_ROUNDS, TUI_PROGRAM, TUI_VALUE, TUI_KINDS } tui_kind;

/* What the screens are about; each moves it and reads it when it comes to the front. */
typedef struct tui_place {
    int32_t request; /* index in the model, 0 when there is none */
    int32_t value;   /* index among the values of the request's round, -1: none chosen */
    int64_t element; /* flat index in the value, -1: none chosen */
} tui_place;

typedef struct tui_app {
    tui_model *model;
    tui_place at;
    char message[512];   /* shown in the last line until the next key */
    int32_t page;        /* lines of the list last drawn: what a page is */
    /* Private to app.c. */
    tui_canvas canvas;
    void *state[TUI_KINDS];
    tui_kind stack[TUI_KINDS];
    int32_t depth;
    bool help, quit;
    const char *ask;      /* label of the line being typed; NULL: none */
    tui_action asked_by;
    char typed[128];
} tui_app;

/* What a screen wants after an action. All zero: to be drawn again. */
typedef struct tui_reaction {
    tui_kind open;   /* put this screen on top */
    const char *ask; /* read a line with this label; it comes back through text() with the same action */
} tui_reaction;

/* A screen. Its state is made zero and lives as long as the app. It draws only when asked, inside body: the lines between
 * the title and the keys. */
typedef struct tui_screen {
    const char *title;
    uint32_t bit;       /* TUI_ON_*: which lines of the key table are its own */
    size_t state_bytes;
    void (*enter)(tui_app *app, void *state);                 /* to the front, or app->at moved: follow it */
    void (*draw)(tui_app *app, void *state, tui_rect body);
    tui_reaction (*act)(tui_app *app, void *state, tui_action action);
    void (*text)(tui_app *app, void *state, tui_action action, const char *text); /* NULL: never asks */
    void (*fini)(void *state);                                /* NULL: owns nothing */
} tui_screen;
extern const tui_screen TUI_SCREEN_ROUNDS, TUI_SCREEN_PROGRAM, TUI_SCREEN_VALUE;

/* model is borrowed. The app shows Rounds, width x height. ERR_NOMEM. */
MUST_USE err_code tui_app_init(tui_app *app, tui_model *model, int32_t width, int32_t height, bool ascii, err *e);
void tui_app_fini(tui_app *app);
/* Goes to "[TAPE:]ROUND[/SLOT[/VALUE[INDEX]]]", SLOT '-' for none; screens below it are one key back. ERR_ARG: not such a
 * reference. ERR_INPUT: not on the tape. */
MUST_USE err_code tui_app_go(tui_app *app, const char *reference, err *e);
MUST_USE err_code tui_app_resize(tui_app *app, int32_t width, int32_t height, err *e);
/* One key. Nothing is drawn. false: the user has quit. */
bool tui_app_key(tui_app *app, int32_t key);
/* Draws; the canvas is valid until the next call. */
const tui_canvas *tui_app_draw(tui_app *app);

/* ---- for screens ---- */
void tui_say(tui_app *app, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The request at app->at; NULL: the tapes have none. */
const tui_request *tui_at_request(tui_app *app);
/* The value at app->at; NULL: none chosen. */
const cap_name *tui_at_value(tui_app *app);
const rpl_value *tui_at_result(tui_app *app); /* NULL: not compared */
/* "a.tape:3/-/s0.attn_out[2, 17]": what show and --at take. */
void tui_reference(tui_app *app, char *buf, size_t bytes);

#endif
