/* The router's cut: by how much the last expert chosen beat the best one left out. */
#ifndef TUI_CUT_H
#define TUI_CUT_H

#include "tui/app.h"

/* Score of the last of the k chosen experts less that of the best other one, bias [n] added when it is not NULL. scores
 * [n]. NaN: all are chosen, or an id is outside. *next: the best other one, -1: none. */
double tui_cut_margin(const int32_t *ids, int64_t k, const float *scores, const float *bias, int64_t n, int32_t *next);
/* The same for a row of "s{k}.ffn.ids" of a side, read at once: two small values. false: no scores. */
bool tui_cut_of_row(tui_app *app, int side, const cap_name *ids, int64_t row, double *margin);

#endif
