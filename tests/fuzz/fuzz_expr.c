/* Any text as a filter expression of the browser: refused with one line, or asked of lines of every kind; what it was read
 * from reads as the same one again. */
#include "tui/expr.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const tui_expr_field FIELDS[] = { { "excess", false }, { "stage", false }, { "name", true }, { "verdict", true } };
enum { N_FIELDS = 4, N_LINES = 4 };

static tui_field get(void *line, int field)
{
    static const tui_field LINES[N_LINES][N_FIELDS] = {
        { { 4.5, NULL }, { 0, NULL }, { 0, "s0.attn_out" }, { 0, "origin" } },
        { { NAN, NULL }, { -1, NULL }, { 0, "" }, { 0, "a (b)" } },
        { { INFINITY, NULL }, { 1e300, NULL }, { 0, "\xc3\xa9\xff" }, { 0, "=" } },
        { { -0.0, NULL }, { NAN, NULL }, { NAN, NULL }, { 7, NULL } }, /* a text's field may have none */
    };
    CHECK(field >= 0 && field < N_FIELDS);
    return LINES[*(int *)line][field];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tui_expr x, again;
    err e = { 0 };
    char *text = malloc(size + 1);
    CHECK(text);
    memcpy(text, data, size);
    text[size] = 0;
    if (tui_expr_parse(text, FIELDS, N_FIELDS, &x, &e) != ERR_OK) {
        CHECK(e.code == ERR_ARG && e.msg[0] && !strchr(e.msg, '\n') && x.n == 0);
    } else {
        CHECK(x.n >= 0 && x.n <= TUI_EXPR_NODES);
        const bool whole = strlen(text) < sizeof x.source; /* a longer one is shown cut */
        if (whole) CHECK(tui_expr_parse(x.source, FIELDS, N_FIELDS, &again, &e) == ERR_OK && again.n == x.n);
        for (int line = 0; line < N_LINES; line++) {
            const bool passes = tui_expr_passes(&x, get, &line);
            CHECK(x.n > 0 || passes);
            if (whole) CHECK(tui_expr_passes(&again, get, &line) == passes);
        }
    }
    free(text);
    return 0;
}
