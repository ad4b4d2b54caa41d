#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "engine/identity.h"
#include "replay/commands.h"
#include "replay/diff_report.h"
#include "replay/forced.h"
#include "replay/replay.h"

#include <ctype.h>
#include <limits.h>
#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct words {
    const char *tap, *model, *rounds;
    bool forced, all;
} words;

static const cli_option OPTIONS[] = {
    { "--tap", "PATTERN", "only values whose name matches (* and ?, commas between patterns)", CLI_STR,
      offsetof(words, tap) },
    { "--rounds", "LIST", "only these rounds: 3,7-9", CLI_STR, offsetof(words, rounds) },
    { "--forced", NULL, "run A's arm on the inputs of every op as B recorded them, and compare with B's outputs",
      CLI_FLAG, offsetof(words, forced) },
    { "--model", "MODEL", "the checkpoint that --forced runs", CLI_IN, offsetof(words, model) },
    { "--all", NULL, "every difference, not the first ones of each kind", CLI_FLAG, offsetof(words, all) },
};

/* One "N" or "N-M" at *p; *p moves past it and a comma. */
static bool take_range(const char **p, int64_t *lo, int64_t *hi)
{
    char *end;
    if (!isdigit((unsigned char)**p)) return false;
    *lo = *hi = strtoll(*p, &end, 10);
    if (*end == '-') {
        if (!isdigit((unsigned char)end[1])) return false;
        *hi = strtoll(end + 1, &end, 10);
    }
    if (*end == ',') {
        if (!end[1]) return false;
        end++;
    } else if (*end) return false;
    *p = end;
    return *lo <= *hi && *hi <= INT32_MAX;
}

static err_code check_rounds(const char *list, err *e)
{
    int64_t lo, hi;
    const char *p = list;
    if (!p) return ERR_OK;
    do
        if (!take_range(&p, &lo, &hi))
            return err_set(e, ERR_ARG, "--rounds: found '%s', wanted rounds such as 3,7-9", list);
    while (*p);
    return ERR_OK;
}

static bool wanted_round(const char *list, int32_t round)
{
    int64_t lo, hi;
    const char *p = list;
    if (!p) return true;
    while (*p && take_range(&p, &lo, &hi))
        if (round >= lo && round <= hi) return true;
    return false;
}

/* Everything a diff holds open. */
typedef struct session {
    rpl_diff d;
    fmt_tape *a, *b;
    rpl_compare *compare;
    rpl_forced *forced;
    eng_weights *weights;
} session;

static err_code compare_rounds(session *s, const words *w, bool quiet, err *e)
{
    int32_t n = s->forced ? rpl_forced_rounds(s->forced) : rpl_compare_rounds(s->compare);
    progress p;
    err_code rc = ERR_OK;
    s->d.round = mem_alloc((size_t)n, sizeof *s->d.round);
    if (!s->d.round) return err_set(e, ERR_NOMEM, "diff: no memory for %d rounds", n);
    progress_begin(&p, "comparing", (uint64_t)n, quiet);
    for (int32_t i = 0; rc == ERR_OK && i < n; i++) {
        int32_t number = s->forced ? rpl_forced_round_number(s->forced, i) : rpl_compare_round_number(s->compare, i);
        bool wanted = wanted_round(w->rounds, number);
        s->d.n_rounds_wanted += wanted;
        s->d.interrupted = s->d.interrupted || interrupt_seen();
        if (wanted && !s->d.interrupted) {
            const rpl_round **to = &s->d.round[s->d.n_rounds];
            rc = s->forced ? rpl_forced_compare(s->forced, i, w->tap, to, e) : rpl_compare_round(s->compare, i, to, e);
            s->d.n_rounds += rc == ERR_OK;
        }
        progress_add(&p, 1);
    }
    progress_end(&p);
    return rc;
}

/* Ops can be run on tensors only. ERR_INPUT: t has none. */
static err_code wants_tensors(const fmt_tape *t, bool quiet, err *e)
{
    size_t n = fmt_tape_count(t), n_tensors = 0;
    for (size_t i = 0; i < n; i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        n_tensors += r.tier == FMT_TIER_TENSOR;
    }
    if (n && n_tensors == 0)
        return err_set(e, ERR_INPUT, "--forced: %s holds statistics, hashes or digests only, wanted the tensors that ops "
                       "read and write", fmt_tape_path(t));
    if (n_tensors < n && !quiet)
        fprintf(stderr, "--forced: %zu of %zu records of %s hold no tensor and are not compared\n", n - n_tensors, n,
                fmt_tape_path(t));
    return ERR_OK;
}

/* --forced: A's arm and A's checkpoint, on what B captured. */
static err_code open_forced(session *s, const words *w, const cli_common *common, err *e)
{
    const json_t *identity = json_object_get(fmt_tape_head(s->a), "identity");
    const char *model = w->model ? w->model : json_string_value(json_object_get(identity, "folder"));
    eng_option_words arm = { 0 };
    eng_options options;
    TRY(wants_tensors(s->b, common->quiet, e));
    if (!model) return err_set(e, ERR_ARG, "--forced: the tape names no checkpoint folder, wanted --model MODEL");
    rpl_replay_words(s->a, &arm);
    if (!arm.arm && !common->quiet)
        fprintf(stderr, "%s names no arm: its ops are taken as native-packed, one rank\n", fmt_tape_path(s->a));
    TRY(eng_options_parse(&arm, common->threads, &options, e));
    TRY(eng_weights_open(model, common->quiet, &s->weights, e));
    TRY(eng_identity_check(identity, s->weights, e));
    return rpl_forced_open(s->b, s->weights, &options, &s->forced, e);
}

static err_code diff(session *s, const cli_args *args, const words *w, const cli_common *common, int *exit_status, err *e)
{
    TRY(check_rounds(w->rounds, e));
    if (w->model && !w->forced) return err_set(e, ERR_ARG, "--model: is for --forced only");
#ifdef _OPENMP
    if (common->threads > 0) omp_set_num_threads((int)common->threads);
#endif
    TRY(fmt_tape_open(args->item[0], &s->a, e));
    TRY(fmt_tape_open(args->item[1], &s->b, e));
    s->d.a = s->a, s->d.b = s->b;
    s->d.tap = w->tap, s->d.rounds = w->rounds;
    s->d.forced = w->forced, s->d.all = w->all, s->d.json = common->json;
    if (w->forced) TRY(open_forced(s, w, common, e));
    else TRY(rpl_compare_open(s->a, s->b, NULL, w->tap, &s->compare, e));
    interrupt_catch();
    TRY(compare_rounds(s, w, common->quiet, e));
    s->d.damaged = rpl_tape_damaged(s->a) || rpl_tape_damaged(s->b);
    int64_t n_values = 0;
    for (int32_t i = 0; i < s->d.n_rounds; i++) n_values += s->d.round[i]->n_values;
    if (w->rounds && s->d.n_rounds_wanted == 0)
        return err_set(e, ERR_ARG, "--rounds %s: neither tape has such a round", w->rounds);
    if (w->tap && n_values == 0 && !s->d.interrupted)
        return err_set(e, ERR_ARG, "--tap %s: neither tape has such a value", w->tap);
    s->d.identity = rpl_identity_diff(json_object_get(fmt_tape_head(s->a), "identity"),
                                      json_object_get(fmt_tape_head(s->b), "identity"));
    if (!s->d.identity) return err_set(e, ERR_NOMEM, "diff: no memory for the identities");
    rpl_diff_sum(&s->d);
    *exit_status = rpl_coverage_exit(rpl_diff_verdict(&s->d));
    return rpl_diff_print(&s->d, e);
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { 0 };
    cli_common common;
    cli_args args;
    session s = { 0 };
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    err_code rc = diff(&s, &args, &w, &common, exit_status, e);
    rpl_lines_free(s.d.identity);
    free(s.d.round);
    rpl_forced_close(s.forced);
    rpl_compare_close(s.compare);
    eng_weights_close(s.weights);
    fmt_tape_close(s.a);
    fmt_tape_close(s.b);
    return rc;
}

const cli_command CMD_DIFF = { "diff", "A B", "compares two tapes value by value, origins first", OPTIONS,
                               (int)COUNT_OF(OPTIONS), run };
