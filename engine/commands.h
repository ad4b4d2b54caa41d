/* Commands of this folder, for main's table. */
#ifndef ENGINE_COMMANDS_H
#define ENGINE_COMMANDS_H

#include "base/cli.h"

extern const cli_command CMD_SYNTH, CMD_QUANTIZE, CMD_SCRIPT, CMD_MANIFEST, CMD_VERIFY, CMD_IDENTITY, CMD_WEIGHTS,
                         CMD_PLAN, CMD_ARMS, CMD_BENCH, CMD_AB,
                         CMD_DOCTOR;

#endif
