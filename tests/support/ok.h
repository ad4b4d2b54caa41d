/* cmocka, with what it wants included first, and the two ways that a call with an err as its last argument may end. The
 * call names that argument e. */
#ifndef TESTS_SUPPORT_OK_H
#define TESTS_SUPPORT_OK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

#define OK(call)                                                                         \
    do {                                                                                 \
        err e_ = { 0 }, *e = &e_;                                                        \
        if ((call) != ERR_OK) fail_msg("%s: %s", #call, e_.msg);                         \
    } while (0)

/* The call fails with code, and its message holds text. */
#define REFUSED(call, want_code, text)                                                   \
    do {                                                                                 \
        err e_ = { 0 }, *e = &e_;                                                        \
        err_code got_ = (call);                                                          \
        if (got_ != (want_code)) fail_msg("%s: %s: %s", #call, err_name(got_), e_.msg);  \
        if (!strstr(e_.msg, text)) fail_msg("%s: '%s' lacks '%s'", #call, e_.msg, text); \
    } while (0)

#endif
