#include "replay/ddmin.h"

#include "base/mem.h"

/* A search under way. */
typedef struct search {
    const rpl_ddmin_job *job;
    bool *chosen;          /* [n] the smallest set so far */
    bool *trial;           /* [n] */
    int32_t *unit;         /* [n] the units of the level that chosen has, in the order of their first items */
    uint8_t *tried;        /* [n_tried][n] sets, and whether they held */
    uint8_t *held;
    size_t n_tried, tried_capacity, held_capacity;
    bool go_on;
} search;

static size_t items(const search *s) { return (size_t)s->job->n; }

/* ---- tests, each set once ---- */

static err_code remember(search *s, bool holds, err *e)
{
    void *tried = s->tried, *held = s->held;
    bool fine = mem_grow(&tried, &s->tried_capacity, (s->n_tried + 1) * items(s), 1);
    s->tried = tried;
    fine = fine && mem_grow(&held, &s->held_capacity, s->n_tried + 1, 1);
    s->held = held;
    if (!fine) return err_set(e, ERR_NOMEM, "search: no memory for %zu sets", s->n_tried + 1);
    memcpy(s->tried + s->n_tried * items(s), s->trial, items(s));
    s->held[s->n_tried++] = holds;
    return ERR_OK;
}

/* The property of s->trial; false when the search has ended. */
static err_code test(search *s, bool *holds, err *e)
{
    *holds = false;
    for (size_t i = 0; i < s->n_tried; i++)
        if (memcmp(s->tried + i * items(s), s->trial, items(s)) == 0) {
            *holds = s->held[i];
            return ERR_OK;
        }
    TRY(s->job->holds(s->job->ctx, s->trial, holds, &s->go_on, e));
    if (s->go_on) return remember(s, *holds, e);
    *holds = false;
    return ERR_OK;
}

/* ---- units ---- */

/* Lists the units of a level that chosen has. Returns how many. */
static int32_t list_units(search *s, const int32_t *level)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->job->n; i++) {
        int32_t k = 0;
        if (!s->chosen[i]) continue;
        while (k < n && s->unit[k] != level[i]) k++;
        if (k == n) s->unit[n++] = level[i];
    }
    return n;
}

/* s->trial: the chosen items whose unit is listed in [first, end), or is not. */
static void make_trial(search *s, const int32_t *level, int32_t first, int32_t end, bool inside)
{
    for (int32_t i = 0; i < s->job->n; i++) {
        bool in = false;
        for (int32_t k = first; k < end && s->chosen[i]; k++) in = in || s->unit[k] == level[i];
        s->trial[i] = s->chosen[i] && in == inside;
    }
}

/* ---- the search ---- */

/* One pass over the chunks of a partition: each alone (inside), or each left out. *smaller: chosen has become what held. */
static err_code try_chunks(search *s, const int32_t *level, int32_t n_units, int32_t n_chunks, bool inside, bool *smaller,
                           err *e)
{
    *smaller = false;
    for (int32_t c = 0; c < n_chunks && s->go_on; c++) {
        int32_t first = (int32_t)((int64_t)n_units * c / n_chunks), end = (int32_t)((int64_t)n_units * (c + 1) / n_chunks);
        make_trial(s, level, first, end, inside);
        TRY(test(s, smaller, e));
        if (!*smaller) continue;
        memcpy(s->chosen, s->trial, items(s));
        return ERR_OK;
    }
    return ERR_OK;
}

/* ddmin over the units of a level (Zeller and Hildebrandt, 2002). */
static err_code minimise(search *s, const int32_t *level, err *e)
{
    int32_t n_units = list_units(s, level), n_chunks = 2;
    while (n_units > 1 && s->go_on) {
        bool smaller = false;
        TRY(try_chunks(s, level, n_units, n_chunks, true, &smaller, e));
        if (smaller) {
            n_units = list_units(s, level);
            n_chunks = 2;
            continue;
        }
        TRY(try_chunks(s, level, n_units, n_chunks, false, &smaller, e));
        if (!smaller && n_chunks == n_units) return ERR_OK;
        n_chunks = smaller ? n_chunks - 1 : 2 * n_chunks;
        n_units = list_units(s, level);
        if (n_chunks > n_units) n_chunks = n_units;
        if (n_chunks < 2) n_chunks = 2;
    }
    return ERR_OK;
}

err_code rpl_ddmin(const rpl_ddmin_job *job, bool *chosen, bool *minimal, err *e)
{
    search s = { .job = job, .chosen = chosen, .go_on = true };
    *minimal = false;
    s.trial = mem_alloc((size_t)job->n + 1, sizeof *s.trial);
    s.unit = mem_alloc((size_t)job->n + 1, sizeof *s.unit);
    err_code rc = s.trial && s.unit ? ERR_OK : err_set(e, ERR_NOMEM, "search: no memory for %d items", job->n);
    if (rc == ERR_OK) {
        memcpy(s.trial, chosen, items(&s));
        rc = remember(&s, true, e);
    }
    for (int32_t l = 0; l < job->n_levels && rc == ERR_OK && s.go_on; l++) rc = minimise(&s, job->level[l], e);
    *minimal = rc == ERR_OK && s.go_on;
    free(s.trial);
    free(s.unit);
    free(s.tried);
    free(s.held);
    return rc;
}
