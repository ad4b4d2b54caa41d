/* The commands of this folder: tapes looked into, examined, repaired. */
#ifndef FORMATS_COMMANDS_H
#define FORMATS_COMMANDS_H

#include "base/cli.h"

#include <stdint.h>

extern const cli_command CMD_INFO, CMD_LS, CMD_RECOVER;

/* doctor TAPE: prints every damage; *exit_status 1 when there is any. */
MUST_USE err_code fmt_doctor(const char *path, bool json, int *exit_status, err *e);

/* "12.3 MB" (powers of 1000, four digits) into buf; returns buf. */
const char *fmt_bytes_text(uint64_t bytes, char *buf, size_t buf_bytes);

#endif
