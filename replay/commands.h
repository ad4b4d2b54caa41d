/* Commands of this folder, for main's table. */
#ifndef REPLAY_COMMANDS_H
#define REPLAY_COMMANDS_H

#include "base/cli.h"

extern const cli_command CMD_REPLAY, CMD_DIFF;

#endif
