/* Commands of the binary on what the cursor is on, their output in the pager.
 *
 * In a typed line %a and %b are the tapes of sides A and B, %t the suspect of them (tui_suspect), %m the checkpoint, %r
 * the round, %s the slot, %v the value, %y the reference. A command that is typed without its first argument gets what it
 * needs: "show" shows the reference, "diff" compares A and B, "certify" judges this round of %t. */
#ifndef TUI_COMMAND_H
#define TUI_COMMAND_H

#include "tui/app.h"

/* "q", "help", a reference, or a command with its arguments. */
void tui_command_line(tui_app *app, const char *line);
/* The attribution of what differs to this op, as the command "attribute" has it of the suspect. */
void tui_attribute(tui_app *app);

/* ---- a running command, for the pager ---- */
typedef struct tui_command tui_command;

/* One runs at a time. argv ends with NULL; copied. Its standard output and error come together, its input is empty.
 * ERR_SYSTEM, ERR_NOMEM. */
MUST_USE err_code tui_command_run(const char *program, const char *const *argv, bool threaded, tui_command **out, err *e);
/* Moves what it has said since to the end of text. */
void tui_command_take(tui_command *c, tui_text *text);
bool tui_command_done(tui_command *c, int *exit_status); /* status: -1 when it was stopped or never ran */
void tui_command_stop(tui_command *c);                   /* if it runs; it will be done soon */
void tui_command_end(tui_command *c);                    /* stops it and waits; NULL is a no-op */
void tui_command_abandon(void); /* tells whichever runs to stop. Safe in a signal handler, for the end of the process */

/* The pager shows it under its words, argv as above without the program, and the letters of the sides that it is about,
 * "" for none; c is the pager's from here on. */
void tui_pager_show(tui_app *app, const char *about, const char *const *argv, tui_command *c);
void tui_pager_stop(tui_app *app); /* the command, if it still runs; what it said stays */

#endif
