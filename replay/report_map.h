/* Which pictures a report shows. Private to report*.c. */
#ifndef REPLAY_REPORT_MAP_H
#define REPLAY_REPORT_MAP_H

#include "replay/report.h"

/* Over several results: the certificates side by side, values by tapes. Nothing with fewer than two. */
void rpl_map_all(const rpl_report *r, FILE *out);
/* Of one result: certify values and where illegal elements lie; parity values by ways to run; classify gates; accept
 * positions by runs; scorecard kinds by kinds of op, and stages by arms. */
void rpl_map_result(const rpl_result *x, FILE *out);

/* ---- between report_map.c and report_map_certify.c ---- */
void rpl_map_certificate(const rpl_result *x, FILE *out);
/* Text member of item i; "" it has none. */
const char *rpl_text_at(const json_t *list, int i, const char *key);
/* Place of text in labels [RPL_LABELS_MAX] of so many bytes, of which n are there; made when it is new. -1: no room. */
enum { RPL_LABELS_MAX = 128 };
int rpl_label_at(char *labels, size_t bytes, int *n, const char *text);

#endif
