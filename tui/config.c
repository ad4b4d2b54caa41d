#include "tui/config.h"

#include "base/mem.h"
#include "tui/keys.h"
#include "tui/text.h"

#include <unistd.h>

enum { LINE_BYTES = 512, FILE_BYTES_MAX = 1 << 20 };

static err_code bind(const char *rest, const char *where, err *e)
{
    char name[64];
    int32_t *keys;
    size_t n, name_bytes = strcspn(rest, " \t");
    snprintf(name, sizeof name, "%.*s", (int)name_bytes, rest);
    const char *words = rest + name_bytes;
    TRY(tui_keys_parse(words, strlen(words), where, &keys, &n, e));
    err_code rc = tui_binding_set(name, keys, n, e);
    free(keys);
    return rc;
}

static err_code set(const char *name, const char *value, tui_config *c, err *e)
{
    const struct { const char *name; bool *on, off; } SETTINGS[] = {
        { "mouse", &c->mouse, false }, { "ascii", &c->ascii, false }, { "color", &c->no_color, true },
    };
    bool on = strcmp(value, "on") == 0;
    if (!on && strcmp(value, "off") != 0) return err_set(e, ERR_INPUT, "set %s: found '%s', wanted on or off", name, value);
    for (size_t i = 0; i < COUNT_OF(SETTINGS); i++)
        if (strcmp(SETTINGS[i].name, name) == 0) {
            *SETTINGS[i].on = on != SETTINGS[i].off;
            return ERR_OK;
        }
    return err_set(e, ERR_INPUT, "set: found '%s', wanted mouse, ascii or color", name);
}

static err_code parse_line(char *line, const char *where, tui_config *c, err *e)
{
    char name[LINE_BYTES], value[LINE_BYTES], rest;
    const char *p = line + strspn(line, " \t\r");
    if (*p == 0 || *p == '#') return ERR_OK;
    if (strncmp(p, "bind", 4) == 0 && (p[4] == ' ' || p[4] == '\t'))
        return bind(p + 4 + strspn(p + 4, " \t"), where, e);
    int n = sscanf(p, "set %511s %511s %c", name, value, &rest);
    if (n == 2 || (n == 3 && rest == '#')) return set(name, value, c, e);
    return err_set(e, ERR_INPUT, "found '%s', wanted bind ACTION KEY... or set NAME on|off", p);
}

err_code tui_config_parse(const char *text, size_t bytes, const char *where, tui_config *out, err *e)
{
    char line[LINE_BYTES];
    int number = 1;
    for (size_t i = 0; i < bytes; number++) {
        size_t n = 0;
        while (i + n < bytes && text[i + n] != '\n') n++;
        err why = { 0 };
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), text + i);
        if (n >= sizeof line)
            return err_set(e, ERR_INPUT, "%s: line %d: found %zu bytes, wanted fewer than %d", where, number, n,
                           (int)LINE_BYTES);
        err_code rc = parse_line(line, where, out, &why);
        if (rc != ERR_OK) return err_set(e, rc == ERR_ARG ? ERR_INPUT : rc, "%s: line %d: %s", where, number, why.msg);
        i += n + 1;
    }
    return ERR_OK;
}

err_code tui_config_read(const char *path, tui_config *out, err *e)
{
    char own[1024];
    tui_text text = { 0 };
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    bool has_base = base && base[0] == '/';
    if (!path && !has_base && !(home && home[0])) return ERR_OK;
    snprintf(own, sizeof own, "%s%s/sparktape/config", has_base ? base : home ? home : "", has_base ? "" : "/.config");
    if (!path && access(own, R_OK) != 0) return ERR_OK;
    const char *name = path ? path : own;
    err_code rc = tui_text_read(&text, name, FILE_BYTES_MAX, e);
    if (rc == ERR_OK) rc = tui_config_parse(text.text, text.n, name, out, e);
    tui_text_fini(&text);
    return rc;
}
