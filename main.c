/* sparktape: the dispatch table. Every command is a thin shell over its folder's library. */
#include "capture/commands.h"
#include "engine/commands.h"
#include "formats/commands.h"
#include "replay/commands.h"
#include "serve/commands.h"
#include "tui/commands.h"

#include <signal.h>
#include <string.h>

static const cli_command *const COMMANDS[] = {
    &CMD_SYNTH, &CMD_QUANTIZE, &CMD_SCRIPT,
    &CMD_MANIFEST, &CMD_VERIFY, &CMD_IDENTITY, &CMD_WEIGHTS, &CMD_PLAN, &CMD_ARMS, &CMD_BENCH, &CMD_AB,
    &CMD_RECORD, &CMD_REPLAY, &CMD_DIFF, &CMD_PARITY, &CMD_CERTIFY, &CMD_INJECT, &CMD_SCORECARD, &CMD_BROWSE,
    &CMD_SERVE, &CMD_DRIVE, &CMD_STATUS,
    &CMD_CLASSIFY, &CMD_ACCEPT, &CMD_ATTRIBUTE, &CMD_REDUCE, &CMD_REPORT,
    &CMD_INFO, &CMD_LS, &CMD_SHOW, &CMD_EXPORT, &CMD_IMPORT, &CMD_DOCTOR, &CMD_RECOVER,
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof COMMANDS[0] };

static void usage(FILE *out)
{
    fprintf(out, "usage: sparktape COMMAND ...\nrecord, replay and compare the DSpark draft engine, value by value\n\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-10s %s\n", COMMANDS[i]->name, COMMANDS[i]->summary);
    fprintf(out, "\nsparktape help COMMAND says more. "
                 "Exit: 0 same or done, 1 different, 2 usage, 3 bad input, 4 refused, 5 system.\n");
}

static int run(const cli_command *c, int argc, char **argv)
{
    err e = { 0 };
    int status = 0;
    err_code rc = c->run(c, argc, argv, &status, &e);
    if (rc == ERR_OK && (fflush(stdout) != 0 || ferror(stdout)))
        rc = err_set(&e, ERR_IO, "standard output cannot be written");
    if (rc == ERR_OK) return status;
    fflush(stdout);
    fprintf(stderr, "sparktape %s: %s\n", c->name, e.msg[0] ? e.msg : err_text(rc));
    return err_exit_status(rc);
}

int main(int argc, char **argv)
{
    signal(SIGUSR1, SIG_IGN); /* asks a flight recorder; where there is none, it asks nobody */
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit is an error of the write, not the end */
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    const bool help = strcmp(argv[1], "help") == 0;
    if ((help && argc == 2) || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("sparktape %s\n", SPARKTAPE_VERSION);
        return 0;
    }
    char option[] = "--help", *as_option[] = { option };
    const char *name = argv[help ? 2 : 1];
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, COMMANDS[i]->name) == 0)
            return help ? run(COMMANDS[i], 1, as_option) : run(COMMANDS[i], argc - 2, argv + 2);
    fprintf(stderr, "sparktape: found command '%s', wanted one of those that sparktape --help lists\n", name);
    return 2;
}
