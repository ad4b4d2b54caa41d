#include "tui/text.h"

#include "base/mem.h"

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

void tui_text_fini(tui_text *t)
{
    free(t->text);
    *t = (tui_text){ 0 };
}
