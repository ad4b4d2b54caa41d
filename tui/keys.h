/* Keys: one table gives what a key does on which screen, the line of keys at the bottom, the help and the manual.
 *
 * A key is a Unicode code point, or one of TUI_KEY_* for a key that is no character. */
#ifndef TUI_KEYS_H
#define TUI_KEYS_H

#include "base/err.h"

#include <stddef.h>

/* key, its name in key files and in the help */
#define TUI_KEY_LIST(X)                                                                            \
    X(UP, "Up") X(DOWN, "Down") X(LEFT, "Left") X(RIGHT, "Right") X(PGUP, "PgUp") X(PGDN, "PgDn")  \
    X(HOME, "Home") X(END, "End") X(ENTER, "Enter") X(ESC, "Esc") X(TAB, "Tab")                    \
    X(BACKSPACE, "Backspace") X(DELETE, "Delete")                                                  \
    X(F1, "F1") X(F2, "F2") X(F3, "F3") X(F4, "F4") X(F5, "F5") X(F6, "F6") X(F7, "F7")            \
    X(F8, "F8") X(F9, "F9") X(F10, "F10")                                                          \
    X(CLEAR, "Clear")     /* ^U: the line being typed */                                          \
    X(CLICK, "Click")     /* a place on the screen was clicked: see tui_app_click */               \
    X(RESIZE, "Resize")   /* the terminal has another size: no key of the keyboard */
enum { TUI_KEY_NONE = 0, TUI_KEY_SPECIAL = 0x110000 };
#define X(key, name) TUI_KEY_##key,
enum { TUI_KEY_FIRST_ = TUI_KEY_SPECIAL - 1, TUI_KEY_LIST(X) TUI_KEY_END_ };
#undef X

/* Screens as bits, for the table. */
enum {
    TUI_ON_ROUNDS = 1, TUI_ON_PROGRAM = 2, TUI_ON_VALUE = 4, TUI_ON_ROUTING = 8, TUI_ON_TOKENS = 16, TUI_ON_MATRIX = 32,
    TUI_ON_INFO = 64, TUI_ON_PAGER = 128, TUI_ON_ALL = 255,
};

/* What can be asked of a screen or of the whole program; the table in keys.c says which key asks it. */
typedef enum tui_action {
    TUI_DO_NOTHING,
    TUI_DO_UP, TUI_DO_DOWN, TUI_DO_LEFT, TUI_DO_RIGHT, TUI_DO_PAGE_UP, TUI_DO_PAGE_DOWN, TUI_DO_FIRST, TUI_DO_LAST,
    TUI_DO_PAGE_LEFT, TUI_DO_PAGE_RIGHT,
    TUI_DO_OPEN, TUI_DO_BACK, TUI_DO_ESCAPE, TUI_DO_QUIT, TUI_DO_HELP, TUI_DO_GO_ROUNDS, TUI_DO_GO_PROGRAM, TUI_DO_GO_VALUE,
    TUI_DO_GO_ROUTING, TUI_DO_GO_TOKENS, TUI_DO_GO_MATRIX, TUI_DO_GO_INFO,
    TUI_DO_SORT, TUI_DO_SORT_BY, TUI_DO_SORT_TURN, TUI_DO_FILTER, TUI_DO_EXPRESSION, TUI_DO_NEXT_DIFFERENT,
    TUI_DO_PREVIOUS_DIFFERENT, TUI_DO_MARK, TUI_DO_NEXT_MARK, TUI_DO_ORIGIN, TUI_DO_ROUND_BACK, TUI_DO_ROUND_ON,
    TUI_DO_WORST, TUI_DO_GOTO, TUI_DO_BITS, TUI_DO_PANES, TUI_DO_PANEL, TUI_DO_STAGE, TUI_DO_OTHER_ARM, TUI_DO_CERTIFY,
    TUI_DO_ATTRIBUTE, TUI_DO_PAUSE, TUI_DO_FOLLOW, TUI_DO_REFERENCE, TUI_DO_EXPORT, TUI_DO_COMMAND, TUI_DO_MOUSE,
} tui_action;

enum { TUI_BINDING_KEYS = 3 };
typedef struct tui_binding {
    tui_action action;
    uint32_t screens;
    int32_t key[TUI_BINDING_KEYS]; /* 0: none */
    const char *name;   /* for the configuration and the manual: "next-different"; none twice */
    const char *label;  /* one word for the bottom line; NULL: not there */
    const char *help;   /* a line of the help; NULL: its keys stand in the line of the binding before it */
} tui_binding;

size_t tui_bindings(void);
const tui_binding *tui_binding_at(size_t i);
/* What key does on a screen (one bit); NULL: nothing. */
const tui_binding *tui_binding_find(int32_t key, uint32_t screen);
/* "Enter", "F6", "s", "Space" into buf; returns buf. */
const char *tui_key_text(int32_t key, char buf[16]);
/* The keys of binding i and of those that share its line of the help, "PgUp PgDn", in width columns; returns buf. */
const char *tui_binding_keys_text(size_t i, uint32_t screen, int32_t width, char buf[64]);

/* The table is the process's. Gives the binding of this name these keys instead of its own. ERR_ARG: no such name, more
 * than TUI_BINDING_KEYS keys, none for "quit", or another binding of the same screen has one of them. */
MUST_USE err_code tui_binding_set(const char *name, const int32_t *keys, size_t n, err *e);
void tui_bindings_reset(void); /* the keys as they are built in */

/* Reads a file of recorded keys. Words stand between blanks or newlines; '#' as a word's first character starts a comment
 * up to the end of the line. A word is
 *   a key's name     Enter Esc Tab Up Down Left Right PgUp PgDn Home End Space Backspace F1 … F10, in any case of letters
 *   one character    that key ('#' is written "#")
 *   /text or :text   each of its characters, the first one included, as a person would type them
 *   "text"           each character between the quotes, blanks too
 * ERR_INPUT names file, line and the word that is none of these. ERR_IO. *keys is malloc'd. */
MUST_USE err_code tui_keys_read(const char *path, int32_t **keys, size_t *n, err *e);
/* The same from memory; where names it in errors. */
MUST_USE err_code tui_keys_parse(const char *text, size_t bytes, const char *where, int32_t **keys, size_t *n, err *e);

#endif
