/* Commands of this folder, for main's table. */
#ifndef SERVE_COMMANDS_H
#define SERVE_COMMANDS_H

#include "base/cli.h"

extern const cli_command CMD_SERVE, CMD_DRIVE, CMD_STATUS;

#endif
