/* The browser without a terminal: a stack of screens, a place that they share, keys in and a canvas out. */
#ifndef TUI_APP_H
#define TUI_APP_H

#include "tui/arms.h"
#include "tui/canvas.h"
#include "tui/judge.h"
#include "tui/keys.h"
#include "tui/table.h"
#include "tui/text.h"

typedef enum tui_kind {
    TUI_STAY, TUI_ROUNDS, TUI_PROGRAM, TUI_VALUE, TUI_ROUTING, TUI_TOKENS, TUI_MATRIX, TUI_INFO, TUI_PAGER, TUI_KINDS,
} tui_kind;

/* What a reference, and what is said of one, has room for: a path, and a place on the tape. */
enum { TUI_REFERENCE_BYTES = 4096 + 512 };

/* What the screens are about; each moves it and reads it when it comes to the front. */
typedef struct tui_place {
    int32_t request; /* index in the model, -1: none is chosen */
    int32_t value;   /* index among the values of the request's round, -1: none chosen */
    int64_t element; /* flat index in the value, -1: none chosen */
} tui_place;

typedef struct tui_marked { int32_t round, slot; } tui_marked;

/* What the app may be given beyond its tapes; all may be zero. Borrowed. */
typedef struct tui_tools {
    const char *checkpoint; /* of the tapes: for certificates and commands */
    const char *program;    /* the binary that ":" runs; NULL: none */
    bool threaded;          /* work runs on threads and screens show it when it is there; false: at once */
    bool ascii;
} tui_tools;

typedef struct tui_app {
    tui_arms *arms;
    int a, b;            /* the arms that are sides A and B of model; b is a for one tape alone */
    tui_model *model;
    tui_place at;
    char message[TUI_REFERENCE_BYTES]; /* shown in the last line until the next key */
    int32_t page;        /* lines of the list last drawn: what a page is */
    tui_list *list;      /* the list last drawn and the line of its first entry, for clicks; NULL: none */
    int32_t list_y;
    tui_tools tools;
    tui_judge *judge;
    uint32_t generation; /* counts up whenever model is another one: indices kept elsewhere are void */
    tui_marked *mark;    /* marked requests */
    size_t n_marks, marks_capacity;
    char gates[64];      /* what classify said last, and of which tape: "B: PASS"; "": it was not asked */
    bool follow;         /* the user wants tapes looked at again while they grow; the owner of the tapes does it */
    bool mouse;          /* the user wants clicks and the wheel */
    char copied[TUI_REFERENCE_BYTES]; /* for the terminal's clipboard; whoever takes it empties it */
    int alone;           /* the arm whose pane has the screen last drawn for itself, -1: none */
    /* Private to app*.c. */
    tui_canvas canvas;
    void *state[TUI_KINDS];
    tui_kind stack[TUI_KINDS];
    int32_t depth;
    int32_t help;        /* page of the help, 0: it is not shown */
    bool quit;
    const char *ask;     /* label of the line being typed; NULL: none */
    tui_action asked_by;
    char typed[256];
    struct tui_export *export;
} tui_app;

/* What a screen wants after an action. All zero: to be drawn again. */
typedef struct tui_reaction {
    tui_kind open;     /* put this screen on top */
    const char *ask;   /* read a line with this label; it comes back through text() with the same action */
    char typed[256];   /* what stands in the line to begin with */
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
    void (*csv)(tui_app *app, void *state, tui_text *out);    /* its table with a line of titles; NULL: none */
    void (*drop)(void *state);  /* tapes and models go away: ends work at them, keeps nothing of them; NULL: has nothing */
    void (*fini)(void *state);  /* NULL: owns nothing */
} tui_screen;
extern const tui_screen TUI_SCREEN_ROUNDS, TUI_SCREEN_PROGRAM, TUI_SCREEN_VALUE, TUI_SCREEN_ROUTING, TUI_SCREEN_TOKENS,
    TUI_SCREEN_MATRIX, TUI_SCREEN_INFO, TUI_SCREEN_PAGER;

/* arms is borrowed, and started. The app shows Rounds, width x height. ERR_NOMEM. */
MUST_USE err_code tui_app_init(tui_app *app, tui_arms *arms, const tui_tools *tools, int32_t width, int32_t height, err *e);
void tui_app_fini(tui_app *app);
/* Ends what must not be left behind, a file being written and a command, but waits for nothing else. */
void tui_app_leave(tui_app *app);
/* Goes to "[TAPE:]ROUND[/SLOT[/VALUE[INDEX]]]", SLOT '-' for none; screens below it are one key back. ERR_ARG: not such a
 * reference. ERR_INPUT: not on the tape. */
MUST_USE err_code tui_app_go(tui_app *app, const char *reference, err *e);
MUST_USE err_code tui_app_resize(tui_app *app, int32_t width, int32_t height, err *e);
/* The same tapes, grown: arms takes the place of the old one, which nothing refers to afterwards. At the end of Rounds the
 * cursor stays at the end. */
void tui_app_replace(tui_app *app, tui_arms *arms);
/* One key. Nothing is drawn. false: the user has quit. */
bool tui_app_key(tui_app *app, int32_t key);
/* A click on line y of the screen: the cursor goes there; twice on the same line opens it. */
void tui_app_click(tui_app *app, int32_t y);
/* Draws; the canvas is valid until the next call. */
const tui_canvas *tui_app_draw(tui_app *app);
/* Something works for the screens: draw again soon. */
bool tui_app_working(tui_app *app);
const tui_screen *tui_app_screen(const tui_app *app); /* on top */
void *tui_app_state(const tui_app *app);

/* ---- for screens ---- */
void tui_say(tui_app *app, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tui_open(tui_app *app, tui_kind kind); /* to the front: down to it where it is open already, else on top */
bool tui_is_threaded(const tui_app *app);
char tui_letter(const tui_app *app, int side); /* 'A' for the first tape */
/* The side that is under suspicion, which judging, attributing and references are about: B, or the one tape alone. */
int tui_suspect(const tui_app *app);
/* The same, unless only A has the value. */
int tui_suspect_having(const tui_app *app, const cap_name *v);
/* The request at app->at; NULL: the tapes have none. */
const tui_request *tui_at_request(tui_app *app);
/* The value at app->at; NULL: none chosen. */
const cap_name *tui_at_value(tui_app *app);
const rpl_value *tui_at_result(tui_app *app); /* NULL: not compared */
/* Chooses a value where none is chosen: the first origin, else the first that the request shows. */
void tui_choose_value(tui_app *app);
/* "a.tape:3/-/s0.attn_out[2, 17]": what show and --at take. */
void tui_reference(tui_app *app, char buf[TUI_REFERENCE_BYTES]);
bool tui_is_marked(const tui_app *app, const tui_request *r);
/* Puts a value of the current round on app->at and opens Value. false: the round has none of this name. */
bool tui_open_value(tui_app *app, int32_t slot, const char *name);
/* Other model, same place. */
void tui_use_pair(tui_app *app, int a, int b);

/* Certificates of this round: of side A, then of B; NULL: not judged. */
const rpl_certificate *tui_certificate(tui_app *app, int side);
/* The origin that the certificate of a side names for a value; NULL: none. *inherited: it only follows. */
const rpl_origin *tui_origin_of(tui_app *app, int side, const cap_name *n, bool *inherited);
/* The same of the suspect, else of the other side; *side: whose it is. */
const rpl_origin *tui_any_origin_of(tui_app *app, const cap_name *n, int *side, bool *inherited);
/* What the suspect's certificate says of a round; NULL: not judged. */
const rpl_certificate *tui_judgement(tui_app *app, const tui_request *r);

/* ---- app_draw.c ---- */
int32_t tui_help_pages(const tui_app *app);

/* ---- app_act.c: what does not depend on the screen; false: not one of these ---- */
bool tui_act(tui_app *app, tui_action action, tui_reaction *r);
/* A line was typed for one of them; false: it was not. */
bool tui_act_text(tui_app *app, tui_action action, const char *text);

#endif
