/* Command line: one table per command gives parsing, --help and docs.
 *
 * A command owns a struct of its options; the table says where each value goes. Options and arguments may
 * come in any order, "--name VALUE" or "--name=VALUE", "--" ends options. Unknown options, missing values and
 * wrong argument counts are ERR_ARG. Common options (--json --quiet --color --threads --help, which -h is too) are in every
 * table. */
#ifndef BASE_CLI_H
#define BASE_CLI_H

#include "base/err.h"

#include <stddef.h>

typedef enum cli_type {
    CLI_FLAG,  /* bool                      */
    CLI_STR,   /* const char *              */
    CLI_IN,    /* the same: a file or folder that is read; as of every file, given at most once */
    CLI_OUT,   /* the same: a file that is written; refused when it is one of the inputs */
    CLI_NEW,   /* the same, and a file of that name is only replaced with --force, which such a command has */
    CLI_INT,   /* int64_t, decimal          */
    CLI_COUNT, /* the same, 1 or more, so that 0 may stand for "not given" */
    CLI_MULTI, /* cli_list: may be repeated */
} cli_type;

enum { CLI_LIST_MAX = 64 };
typedef struct cli_list { int count; const char *item[CLI_LIST_MAX]; } cli_list;

typedef struct cli_option {
    const char *name;  /* "--arm" or "-o" */
    const char *value; /* "ARM"; NULL for a flag */
    const char *help;
    cli_type type;
    size_t offset; /* into the command's option struct */
} cli_option;

/* Filled by every parse. */
typedef struct cli_common {
    bool json, quiet, help, force;
    const char *color; /* "auto", "always", "never" */
    int64_t threads;   /* 0: all of the machine */
} cli_common;

typedef struct cli_command {
    const char *name;
    const char *args;    /* "MODEL [PATTERN]": upper-case words; [..] optional, ".." after one means many */
    const char *summary; /* one line */
    const cli_option *options;
    int n_options;
    /* Runs the command. argv excludes program and command name. *exit_status is 0, or 1 for "different";
     * errors go out as err_code. Data to stdout, everything else to stderr. */
    err_code (*run)(const struct cli_command *self, int argc, char **argv, int *exit_status, err *e);
} cli_command;

enum { CLI_ARGS_MAX = 64 };
typedef struct cli_args { int count; const char *item[CLI_ARGS_MAX]; } cli_args;

/* Parses argv into opts (the command's struct), common and args. Checks the argument count against self->args, and with
 * --json that every word is UTF-8. With --help nothing else is checked and common->help is set; the caller prints cli_help
 * and returns. */
MUST_USE err_code cli_parse(const cli_command *self, int argc, char **argv, void *opts, cli_common *common,
                            cli_args *args, err *e);
/* ERR_ARG when writing `out` would destroy `in`: the same file, or a file of the checkpoint when `in` is its folder. `what`
 * names the option or argument. Parsing does this for every CLI_OUT and CLI_NEW against all arguments and every CLI_IN. */
MUST_USE err_code cli_keep_off(const char *what, const char *out, const char *in, err *e);
/* ERR_ARG when `out` is a file, or `out`.part one that a killed writer left, that a CLI_NEW would replace without --force;
 * for names that no option gives. */
MUST_USE err_code cli_keep_file(const char *what, const char *out, const cli_common *common, err *e);
/* ERR_ARG: text is no UTF-8; why ends the message. For a command that puts names into JSON without --json too. */
MUST_USE err_code cli_utf8(const char *text, const char *why, err *e);
/* Prints usage and options of one command to stdout. */
void cli_help(const cli_command *self);
/* true when colour may be used on stdout: --color, NO_COLOR, a terminal. */
bool cli_color(const cli_common *common);
/* Parses a whole decimal integer in [lo, hi]; what names the option in the error. */
MUST_USE err_code cli_int(const char *text, const char *what, int64_t lo, int64_t hi, int64_t *out, err *e);
/* An error about option `was` (its message begins so) becomes one about `is`, which is what the user wrote: a command hands
 * its own option's word to a parser that commands share. */
void cli_say_as(err *e, const char *was, const char *is);
/* Glob match with * and ?; a comma separates alternatives ("s0.*,head.logits"). */
bool cli_match(const char *pattern, const char *name);

#endif
