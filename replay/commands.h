/* Commands of this folder, for main's table. */
#ifndef REPLAY_COMMANDS_H
#define REPLAY_COMMANDS_H

#include "base/cli.h"

extern const cli_command CMD_REPLAY, CMD_DIFF, CMD_CERTIFY, CMD_INJECT, CMD_SCORECARD, CMD_PARITY;
extern const cli_command CMD_CLASSIFY, CMD_ACCEPT, CMD_ATTRIBUTE, CMD_REDUCE;
extern const cli_command CMD_REPORT;

#endif
