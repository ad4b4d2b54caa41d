#include "tui/text.h"

#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>

void tui_text_add(tui_text *t, const char *bytes, size_t n)
{
    void *array = t->text;
    if (t->failed) return;
    t->failed = !mem_grow(&array, &t->capacity, t->n + n + 1, 1);
    if (t->failed) return;
    t->text = array;
    memcpy(t->text + t->n, bytes, n);
    t->n += n;
    t->text[t->n] = 0;
}

void tui_text_addf(tui_text *t, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    tui_text_add(t, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

void tui_text_csv(tui_text *t, const char *field, bool last)
{
    bool quoted = strpbrk(field, ",\"\n\r") != NULL;
    if (quoted) tui_text_add(t, "\"", 1);
    for (const char *p = field; *p; p++) tui_text_add(t, quoted && *p == '"' ? "\"\"" : p, quoted && *p == '"' ? 2 : 1);
    tui_text_addf(t, "%s%s", quoted ? "\"" : "", last ? "\n" : ",");
}

err_code tui_text_read(tui_text *t, const char *path, size_t max_bytes, err *e)
{
    char buf[4096];
    err_code rc = ERR_OK;
    FILE *f = fopen(path, "rbe");
    if (!f) return err_set(e, ERR_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
    for (size_t n; rc == ERR_OK && (n = fread(buf, 1, sizeof buf, f)) > 0;) {
        tui_text_add(t, buf, n);
        if (t->failed) rc = err_set(e, ERR_NOMEM, "%s: no memory for its text", path);
        else if (t->n > max_bytes)
            rc = err_set(e, ERR_INPUT, "%s: found more than %zu bytes, wanted at most that", path, max_bytes);
    }
    if (rc == ERR_OK && ferror(f))
        rc = err_set(e, errno == EISDIR ? ERR_INPUT : ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    fclose(f);
    return rc;
}

void tui_text_fini(tui_text *t)
{
    free(t->text);
    *t = (tui_text){ 0 };
}
