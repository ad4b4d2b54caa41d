/* Any bytes as a file of recorded keys, played on a pair of small tapes: every screen is drawn after every key, at a size
 * that the first two bytes choose. */
#include "tests/tui/tui_help.h"

#include "workplace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KEYS_MAX = 64 }; /* each is a screen drawn */

static tui_arms arms;

static void set_up(void)
{
    static const fmt_tape *tapes[2];
    err e = { 0 };
    workplace_enter();
    tapes[0] = make_tape("left.tape", "native-packed", (plant){ 0 });
    tapes[1] = make_tape("right.tape", "mirror", (plant){ true, 1 });
    CHECK(tui_arms_init(&arms, tapes, 2, &e) == ERR_OK && tui_arms_start(&arms, false, &e) == ERR_OK);
}

/* Any file name may have been typed. */
static bool would_export(const tui_app *app, int32_t key)
{
    return app->ask && app->asked_by == TUI_DO_EXPORT && key == TUI_KEY_ENTER;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_set_up;
    int32_t *keys = NULL;
    size_t n = 0;
    tui_app app;
    const tui_tools tools = { .ascii = size > 0 && data[0] % 2 };
    err e = { 0 };
    if (!is_set_up) set_up();
    is_set_up = true;
    if (size < 2) return 0;
    if (tui_keys_parse((const char *)data + 2, size - 2, "keys", &keys, &n, &e) != ERR_OK) {
        CHECK(e.code == ERR_INPUT && e.msg[0] && !strchr(e.msg, '\n') && !keys);
        return 0;
    }
    arms.paused = false;
    CHECK(tui_app_init(&app, &arms, &tools, data[0] + 1, data[1] % 80 + 1, &e) == ERR_OK);
    tui_app_draw(&app);
    for (size_t i = 0; i < n && i < KEYS_MAX; i++) {
        if (would_export(&app, keys[i])) continue;
        if (!tui_app_key(&app, keys[i])) break;
        tui_app_draw(&app);
    }
    char *text = tui_canvas_text(tui_app_draw(&app));
    CHECK(text);
    free(text);
    tui_app_fini(&app);
    free(keys);
    return 0;
}
