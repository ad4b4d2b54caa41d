/* What a result is about, said by all analyses in the same JSON, so that a report can tell parts of one thing from two
 * things: the tapes, by content and not by name, what ran when they were recorded, and what analysed them. */
#ifndef REPLAY_SOURCE_H
#define REPLAY_SOURCE_H

#include "formats/tape.h"

/* Appends t to "source", a list made when there is none: {"tape": path, "content": hash of all its records, "run":
 * "native-packed, cpu, eager, blocked, exact, tp 2", "checkpoint": sha256, "build": of the recorder}; what the head does
 * not say is "". Sets "by", the build that analyses. Takes and returns j; NULL is passed on, and returned, with j released,
 * when there is no memory. */
json_t *rpl_source_json(json_t *j, const fmt_tape *t);
/* Sets "options": those that narrow what was looked at; NULL ones are not said. As above. */
json_t *rpl_options_json(json_t *j, const char *rounds, const char *tap);

#endif
