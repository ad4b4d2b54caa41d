#include "base/err.h"

#include <stdarg.h>
#include <string.h>

#include "base/utf8.h"

#define X(name, text, exit_status) #name,
static const char *const NAMES[ERR_COUNT] = { ERR_LIST(X) };
#undef X
#define X(name, text, exit_status) text,
static const char *const TEXTS[ERR_COUNT] = { ERR_LIST(X) };
#undef X
#define X(name, text, exit_status) exit_status,
static const int EXITS[ERR_COUNT] = { ERR_LIST(X) };
#undef X

/* Messages quote names out of hostile files; a terminal must not obey them. */
static void defuse(char *s) { utf8_defuse(s, strlen(s), ""); }

err_code err_set(err *e, err_code code, const char *fmt, ...)
{
    if (!e) return code;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    defuse(e->msg);
    return code;
}

err_code err_wrap(err *e, const char *fmt, ...)
{
    char context[ERR_MSG_BYTES], whole[2 * ERR_MSG_BYTES + 2];
    if (!e) return ERR_SYSTEM;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    defuse(context);
    snprintf(whole, sizeof whole, "%s: %s", context, e->msg);
    whole[ERR_MSG_BYTES - 1] = 0;
    memcpy(e->msg, whole, ERR_MSG_BYTES);
    return e->code;
}

const char *err_name(err_code code) { return code < ERR_COUNT ? NAMES[code] : "?"; }
const char *err_text(err_code code) { return code < ERR_COUNT ? TEXTS[code] : "?"; }
int err_exit_status(err_code code) { return code < ERR_COUNT ? EXITS[code] : 5; }
