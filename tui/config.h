/* The user's settings: $XDG_CONFIG_HOME/sparktape/config, else ~/.config/sparktape/config. A line each, '#' comments:
 *
 *   bind ACTION KEY...     these keys instead of the action's own; actions as browse --list-keys prints them, keys as
 *                          a file of keys has them
 *   set mouse on|off       clicks and the wheel (off: the terminal keeps them, to select text with)
 *   set ascii on|off       ASCII only, whatever the locale says
 *   set color on|off       off: bold and reverse only */
#ifndef TUI_CONFIG_H
#define TUI_CONFIG_H

#include "base/err.h"

#include <stddef.h>

typedef struct tui_config { bool mouse, ascii, no_color; } tui_config;

/* Reads the file if there is one; bindings go to the table of keys.h. path NULL: the user's. ERR_INPUT names file, line and
 * word; a path that is given must exist. ERR_IO. */
MUST_USE err_code tui_config_read(const char *path, tui_config *out, err *e);
/* The same from memory. */
MUST_USE err_code tui_config_parse(const char *text, size_t bytes, const char *where, tui_config *out, err *e);

#endif
