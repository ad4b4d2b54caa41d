#include "base/clock.h"
#include "base/mem.h"
#include "engine/ab_report.h"
#include "engine/cmd_common.h"
#include "engine/commands.h"
#include "engine/device.h"

enum { LIST_MAX = 16, SEEDS_MAX = 1000000, ITERATIONS_MAX = 100000 };

typedef struct ab_words {
    int64_t seeds, seed, iterations;
    bool list, cpu;
} ab_words;

static const cli_option OPTIONS[] = {
    { "--list", NULL, "the pairs there are, and nothing else", CLI_FLAG, offsetof(ab_words, list) },
    { "--cpu", NULL, "the CPU twins, also where there is a CUDA device", CLI_FLAG, offsetof(ab_words, cpu) },
    { "--seeds", "N", "ordinary inputs of each shape and T that are compared; of each adversarial kind 1 + N / 10 "
      "(default: 20)", CLI_COUNT, offsetof(ab_words, seeds) },
    { "--seed", "S", "the first of the seeds (default: 1)", CLI_COUNT, offsetof(ab_words, seed) },
    { "--iterations", "N", "pairs of runs that are timed, base and new in turn (default: 128)", CLI_COUNT,
      offsetof(ab_words, iterations) },
};

typedef struct ab_run {
    ab_device *device;
    ab_settings settings;
    int32_t T[LIST_MAX], n_T;
    uint64_t first_seed;
    int32_t seeds;
    bool json, quiet;
    ab_totals totals;
} ab_run;

/* ---- one pair ---- */

static int32_t seeds_of(const ab_run *r, const ab_pair *p, int kind)
{
    const int32_t n = p->seeds_max && r->seeds > p->seeds_max ? p->seeds_max : r->seeds;
    if (kind == AB_PLAIN) return n;
    return p->kinds >> kind & 1 ? 1 + n / 10 : 0;
}

/* Stops at the first broken promise of a T. */
static err_code compare(ab_run *r, const ab_pair *p, ab_case *c, const int32_t *dim, ab_row *row, err *e)
{
    for (int kind = 0; kind < AB_KINDS; kind++) {
        for (int32_t i = 0; i < seeds_of(r, p, kind); i++) {
            ab_finding f;
            if (row->broken_dim) return ERR_OK;
            TRY(ab_case_compare(c, (ab_kind)kind, r->first_seed + (uint64_t)i, &f, e));
            row->compared++;
            row->n_equal += f.n_equal;
            row->n_all += f.n_all;
            if (f.fault == AB_EQUAL) continue;
            row->finding = f;
            row->broken_dim = dim;
        }
    }
    return ERR_OK;
}

/* On ordinary inputs. A promise that another shape breaks later takes the time away again. */
static err_code time_row(ab_run *r, const ab_pair *p, ab_case *c, const int32_t *dim, ab_row *row, err *e)
{
    ab_finding f;
    p->bytes(dim, row->T, row->bytes);
    if (row->broken_dim) return ERR_OK;
    TRY(ab_case_compare(c, AB_PLAIN, r->first_seed, &f, e)); /* leaves its inputs */
    TRY(ab_case_time(c, true, &r->settings, &row->units, e));
    row->timed = true;
    r->settings.settle_s = r->device->on_card ? 0.05 : 0.01; /* the first row has brought the clocks up */
    return r->device->on_card ? ab_case_time(c, false, &r->settings, &row->once, e) : ERR_OK;
}

static err_code run_shape(ab_run *r, const ab_pair *p, int32_t shape, bool timed, ab_row *rows, int32_t n, err *e)
{
    const int32_t *dim = p->shape[shape];
    int32_t t_top = 1;
    ab_case *c;
    for (int32_t i = 0; i < n; i++)
        if (rows[i].T > t_top) t_top = rows[i].T;
    TRY(ab_case_open(p, dim, t_top, r->device, &c, e));
    err_code rc = ERR_OK;
    for (int32_t i = 0; i < n && rc == ERR_OK; i++) {
        ab_case_resize(c, rows[i].T);
        rc = compare(r, p, c, dim, &rows[i], e);
        if (rc == ERR_OK && timed) rc = time_row(r, p, c, dim, &rows[i], e);
        if (rows[i].broken_dim) rows[i].timed = false;
    }
    ab_case_close(c);
    return rc;
}

static err_code run_pair(ab_run *r, const ab_pair *p, err *e)
{
    const int32_t first = r->device->on_card ? 0 : p->cpu_first;
    ab_row rows[LIST_MAX] = { 0 };
    progress bar;
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_T; i++)
        if (r->T[i] <= p->t_max) rows[n++].T = r->T[i];
    if (n == 0) return ERR_OK;
    progress_begin(&bar, p->name[AB_NEW], (uint64_t)(p->n_shapes - first), r->quiet);
    err_code rc = ERR_OK;
    for (int32_t i = first; i < p->n_shapes && rc == ERR_OK; i++) {
        rc = run_shape(r, p, i, i == first, rows, n, e);
        progress_add(&bar, 1);
    }
    progress_end(&bar);
    if (rc != ERR_OK) return err_wrap(e, "%s", p->name[AB_NEW]);
    TRY(ab_print_pair(p, p->shape[first], r->device, rows, n, r->json, &r->totals, e));
    fflush(stdout); /* a long run shows what it has */
    return ERR_OK;
}

/* ---- the command ---- */

/* Which pair, NULL for all, and which T. */
static err_code parse_args(const cli_args *args, ab_run *r, const ab_pair **pair, err *e)
{
    static const int32_t USUAL[] = { 1, 2, 3, 4, 8 };
    *pair = NULL;
    if (args->count == 1) return err_set(e, ERR_ARG, "found '%.64s' alone, wanted BASE and NEW, see sparktape ab --list",
                                         args->item[0]);
    if (args->count >= 2) TRY(ab_pair_find(args->item[0], args->item[1], pair, e));
    for (int i = 2; i < args->count; i++) {
        int64_t T;
        if (r->n_T == LIST_MAX) return err_set(e, ERR_ARG, "T: found more than %d", LIST_MAX);
        TRY(cli_int(args->item[i], "T", 1, (*pair)->t_max, &T, e));
        r->T[r->n_T++] = (int32_t)T;
    }
    for (size_t i = 0; r->n_T == 0 && i < COUNT_OF(USUAL); i++) r->T[i] = USUAL[i];
    if (r->n_T == 0) r->n_T = COUNT_OF(USUAL);
    return ERR_OK;
}

static err_code run_all(ab_run *r, const ab_pair *pair, err *e)
{
    ab_state state;
    ab_state_read(&state);
    TRY(ab_print_device(r->device, &state, r->json, e));
    if (pair) TRY(run_pair(r, pair, e));
    for (int32_t i = 0; !pair && i < ab_pair_count(); i++) TRY(run_pair(r, ab_pair_at(i), e));
    ab_state_read(&state);
    return ab_print_end(&r->totals, &state, r->json, e);
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    ab_words words = { .seeds = 20, .seed = 1, .iterations = 128 };
    cli_common common;
    cli_args args;
    const ab_pair *pair;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    ab_run r = { .first_seed = (uint64_t)words.seed, .json = common.json, .quiet = common.quiet };
    TRY(parse_args(&args, &r, &pair, e));
    if (words.list) return ab_print_list(common.json, e);
    if (words.seeds > SEEDS_MAX)
        return err_set(e, ERR_ARG, "--seeds: found %lld, wanted at most %d", (long long)words.seeds, SEEDS_MAX);
    if (words.iterations > ITERATIONS_MAX)
        return err_set(e, ERR_ARG, "--iterations: found %lld, wanted at most %d", (long long)words.iterations,
                       ITERATIONS_MAX);
    r.seeds = (int32_t)words.seeds;
    r.settings = (ab_settings){ .iterations = (int32_t)words.iterations, .settle_s = 0.5 };
    cmd_use_threads(&common);

    ab_device cpu, *card = NULL;
    const bool on_card = !words.cpu && eng_device_present();
    if (on_card) TRY(ab_card_open(&card, e));
    else {
        if (!words.cpu && !common.quiet)
            fprintf(stderr, "sparktape ab: found no CUDA device: these are the CPU twins (--cpu asks for them)\n");
        TRY(ab_cpu_open(&cpu, e));
        r.settings.budget_s = 0.1; /* twins take up to milliseconds */
    }
    r.device = on_card ? card : &cpu;
    err_code rc = run_all(&r, pair, e);
    ab_card_close(card);
    *exit_status = r.totals.broken > 0;
    return rc;
}

const cli_command CMD_AB = { "ab", "[BASE] [NEW] [T..]",
                             "two ways to one result, compared bit for bit, timed in turn; T tokens (default: 1 2 3 4 8)",
                             OPTIONS, sizeof OPTIONS / sizeof *OPTIONS, run };
