#include "tui/config.h"

#include "base/mem.h"
#include "tui/keys.h"

#include <errno.h>

enum { LINE_BYTES = 512, FILE_MAX = 1 << 20 };

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
    if (strncmp(p, "bind ", 5) == 0) return bind(p + 5 + strspn(p + 5, " \t"), where, e);
    if (sscanf(p, "set %511s %511s %c", name, value, &rest) == 2) return set(name, value, c, e);
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
        if (n >= sizeof line) return err_set(e, ERR_INPUT, "%s: line %d: found %zu bytes, wanted fewer", where, number, n);
        err_code rc = parse_line(line, where, out, &why);
        if (rc != ERR_OK) return err_set(e, rc == ERR_ARG ? ERR_INPUT : rc, "%s: line %d: %s", where, number, why.msg);
        i += n + 1;
    }
    return ERR_OK;
}

err_code tui_config_read(const char *path, tui_config *out, err *e)
{
    char own[1024];
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    bool has_base = base && base[0] == '/';
    if (!path && !has_base && !(home && home[0])) return ERR_OK;
    if (!path) snprintf(own, sizeof own, "%s%s/sparktape/config", has_base ? base : home, has_base ? "" : "/.config");
    const char *name = path ? path : own;
    FILE *f = fopen(name, "rb");
    if (!f && !path && (errno == ENOENT || errno == ENOTDIR || errno == EACCES)) return ERR_OK;
    if (!f) return err_set(e, ERR_INPUT, "%s: cannot be opened: %s", name, strerror(errno));
    char *text = mem_alloc(FILE_MAX, 1);
    size_t n = text ? fread(text, 1, FILE_MAX, f) : 0;
    err_code rc = ERR_OK;
    if (!text) rc = err_set(e, ERR_NOMEM, "%s: no memory", name);
    else if (ferror(f)) rc = err_set(e, ERR_INPUT, "%s: cannot be read: %s", name, strerror(errno));
    else if (n == FILE_MAX) rc = err_set(e, ERR_INPUT, "%s: found %d bytes and more, wanted fewer", name, (int)FILE_MAX);
    fclose(f);
    if (rc == ERR_OK) rc = tui_config_parse(text, n, name, out, e);
    free(text);
    return rc;
}
