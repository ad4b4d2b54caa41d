/* Commands of this folder, for main's table. */
#ifndef CAPTURE_COMMANDS_H
#define CAPTURE_COMMANDS_H

#include "base/cli.h"

extern const cli_command CMD_RECORD, CMD_SHOW, CMD_EXPORT, CMD_IMPORT;

#endif
