/* Value's lower part: histograms, profiles, or the QDQ block of the element under the cursor. */
#ifndef TUI_VALUE_PANEL_H
#define TUI_VALUE_PANEL_H

#include "tui/app.h"
#include "tui/loaded.h"

typedef enum tui_panel { TUI_PANEL_NONE, TUI_PANEL_HISTOGRAM, TUI_PANEL_PROFILE, TUI_PANEL_BLOCK, TUI_PANELS } tui_panel;

/* i: flat index of the element under the cursor. */
void tui_value_panel(tui_app *app, const tui_loaded *d, tui_panel panel, int64_t i, tui_rect r);

#endif
