/* Which pictures a report shows. Private to report*.c. */
#ifndef REPLAY_REPORT_MAP_H
#define REPLAY_REPORT_MAP_H

#include "replay/report.h"

/* Over several results: the certificates side by side, values by tapes. Nothing with fewer than two. */
void rpl_map_all(const rpl_report *r, FILE *out);
/* Of one result: certify values and where illegal elements lie; parity values by ways to run; classify gates; accept
 * positions by runs; scorecard kinds by kinds of op, and stages by arms. */
void rpl_map_result(const rpl_result *x, FILE *out);

#endif
