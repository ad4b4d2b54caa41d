/* Ctrl-C and SIGTERM for work that can stop between two of its parts and report what it has.
 *
 * After interrupt_catch the first of each signal only leaves a mark, which the loops look at; a second one ends the process
 * as usual. Process-wide, as signals are; a command that does not catch is ended at once, and no loop sees a mark. */
#ifndef BASE_INTERRUPT_H
#define BASE_INTERRUPT_H

#include <stdbool.h>

/* Takes the mark away and arms both signals anew; returns at once. One that is ignored (nohup) stays ignored. */
void interrupt_catch(void);
/* Whether one has come since. Safe on any thread. */
bool interrupt_seen(void);

#endif
