/* Errors: one type for the whole project.
 *
 * A function that can fail returns err_code and takes `err *e` last. ERR_OK (0) is the only success
 * value. The function that finds the fault calls err_set once; callers may put context in front with
 * err_wrap. Nobody prints but main. A difference between two runs is a result, never an error. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* name, text, exit status of the process when a command ends with it */
#define ERR_LIST(X)                                      \
    X(OK,       "ok",                              0)    \
    X(ARG,      "bad argument",                    2)    \
    X(FORMAT,   "damaged, or not this format",     3)    \
    X(INPUT,    "input breaks a rule",             3)    \
    X(IDENTITY, "identity differs",                4)    \
    X(IO,       "input/output failed",             5)    \
    X(NOMEM,    "out of memory",                   5)    \
    X(SYSTEM,   "system call failed",              5)    \
    X(COMM,     "collective did not finish",       5)    \
    X(DEVICE,   "device call failed",              5)

#define X(name, text, exit_status) ERR_##name,
typedef enum err_code { ERR_LIST(X) ERR_COUNT } err_code;
#undef X

enum { ERR_MSG_BYTES = 512 };

typedef struct err {
    err_code code;
    char msg[ERR_MSG_BYTES]; /* one line, no newline: what, where, found, wanted */
} err;

#define MUST_USE __attribute__((warn_unused_result))

#ifdef __cplusplus /* the CUDA launchers report through the same type */
extern "C" {
#endif

/* Sets *e (NULL allowed) and returns code. Control characters from input are shown as '?'. */
err_code err_set(err *e, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "context: " in front of e's message; returns e->code. e must hold an error. */
err_code err_wrap(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *err_name(err_code code);   /* "FORMAT" */
const char *err_text(err_code code);   /* "damaged, or not this format" */
int err_exit_status(err_code code);    /* 0, 2, 3, 4 or 5 */

#ifdef __cplusplus
}
#endif

/* Passes an error on where nothing has to be undone. */
#define TRY(call)                            \
    do {                                     \
        err_code rc_ = (call);               \
        if (rc_ != ERR_OK) return rc_;       \
    } while (0)

/* For bugs of ours only, never for input: aborts in every build. */
#define CHECK(cond)                                                                      \
    do {                                                                                 \
        if (!(cond)) {                                                                   \
            fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #cond);     \
            abort();                                                                     \
        }                                                                                \
    } while (0)

#endif
