/* Commands of this folder, for main's table. */
#ifndef TUI_COMMANDS_H
#define TUI_COMMANDS_H

#include "base/cli.h"

extern const cli_command CMD_BROWSE;

#endif
