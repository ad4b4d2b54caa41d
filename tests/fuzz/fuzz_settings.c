/* Any bytes as the browser's configuration file: refused in one line that names file and line, or a table of keys in which
 * no key means two things on a screen and one still quits. */
#include "tui/config.h"
#include "tui/keys.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_keys(void)
{
    bool quits = false;
    for (size_t i = 0; i < tui_bindings(); i++) {
        const tui_binding *b = tui_binding_at(i);
        char text[16];
        for (int k = 0; k < TUI_BINDING_KEYS && b->key[k]; k++) {
            CHECK(tui_key_text(b->key[k], text)[0]);
            quits = quits || b->action == TUI_DO_QUIT;
            for (uint32_t screen = 1; screen <= TUI_ON_ALL; screen *= 2)
                if (b->screens & screen) CHECK(tui_binding_find(b->key[k], screen) == b);
        }
    }
    CHECK(quits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tui_config c = { 0 };
    err e = { 0 };
    char *exact = malloc(size ? size : 1); /* no byte behind the last one */
    CHECK(exact);
    memcpy(exact, data, size);
    tui_bindings_reset();
    if (tui_config_parse(exact, size, "config", &c, &e) != ERR_OK)
        CHECK(e.code == ERR_INPUT && strncmp(e.msg, "config: line ", 13) == 0 && !strchr(e.msg, '\n'));
    check_keys(); /* of a file that is refused the lines before are in force, and what they leave is whole */
    free(exact);
    return 0;
}
