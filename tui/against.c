#include "tui/against.h"

#include "base/mem.h"
#include "engine/identity.h"
#include "replay/replay.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

/* ---- while the file has a name ---- */

/* For the handler, which can take nothing else with it: one replay at a time. */
static struct { char folder[512], tape[600], part[608]; } named;
static const int ENDING[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM };
static struct sigaction saved_action[COUNT_OF(ENDING)];

static void remove_names(void)
{
    unlink(named.part);
    unlink(named.tape);
    rmdir(named.folder);
}

static void on_ending(int number)
{
    remove_names();
    for (size_t i = 0; i < COUNT_OF(ENDING); i++)
        if (ENDING[i] == number) sigaction(number, &saved_action[i], NULL);
    raise(number); /* does, when this returns, what it would have done */
}

static err_code make_names(const char *arm, err *e)
{
    const char *base = getenv("TMPDIR");
    struct sigaction action = { .sa_handler = on_ending };
    snprintf(named.folder, sizeof named.folder, "%s/sparktape-XXXXXX",
             base && base[0] && strlen(base) < 400 ? base : "/tmp");
    if (!mkdtemp(named.folder))
        return err_set(e, ERR_SYSTEM, "%s: a temporary folder cannot be made: %s", named.folder, strerror(errno));
    snprintf(named.tape, sizeof named.tape, "%s/%.64s.tape", named.folder, strchr(arm, '/') ? "against" : arm);
    snprintf(named.part, sizeof named.part, "%s.part", named.tape);
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < COUNT_OF(ENDING); i++) {
        sigaction(ENDING[i], NULL, &saved_action[i]);
        if (saved_action[i].sa_handler != SIG_IGN) sigaction(ENDING[i], &action, NULL);
    }
    return ERR_OK;
}

/* What is open stays readable. */
static void drop_names(void)
{
    remove_names();
    for (size_t i = 0; i < COUNT_OF(ENDING); i++) sigaction(ENDING[i], &saved_action[i], NULL);
}

/* ---- the replay ---- */

static err_code replay(const fmt_tape *t, const char *arm, const char *checkpoint, int64_t n_threads, bool quiet, err *e)
{
    eng_option_words run = { .arm = arm };
    rpl_replay_options o = { .level = rpl_replay_level(t), .quiet = quiet };
    eng_weights *weights = NULL;
    json_t *identity = NULL;
    rpl_replay_words(t, &run);
    err_code rc = eng_options_parse(&run, n_threads, &o.run, e);
    if (rc != ERR_OK) cli_say_as(e, "--arm", "--against");
    if (rc == ERR_OK) rc = eng_weights_open(checkpoint, quiet, &weights, e);
    if (rc == ERR_OK) rc = eng_identity_check(json_object_get(fmt_tape_head(t), "identity"), weights, e);
    if (rc == ERR_OK) identity = eng_identity(weights, &o.run);
    if (rc == ERR_OK && !identity) rc = err_set(e, ERR_NOMEM, "no memory for the identity");
    if (rc == ERR_OK) rc = rpl_replay_run(t, weights, &o, identity, named.tape, e);
    json_decref(identity);
    eng_weights_close(weights);
    return rc;
}

err_code tui_against_open(const fmt_tape *t, const char *arm, const char *checkpoint, int64_t n_threads, bool quiet,
                          fmt_tape **out, err *e)
{
    *out = NULL;
    TRY(make_names(arm, e));
    err_code rc = replay(t, arm, checkpoint, n_threads, quiet, e);
    if (rc == ERR_OK) rc = fmt_tape_open(named.tape, out, e);
    drop_names();
    return rc;
}
