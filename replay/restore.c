#include "replay/restore.h"

#include "base/mem.h"
#include "capture/joined.h"

enum { UNWRITTEN = 0x7fff /* a NaN */ };

struct rpl_restore {
    const fmt_tape *tape;
    cap_rounds *rounds;
    eng_engine *engine;
    rpl_replay_report *report;
    bf16 *rows;          /* [n_stages, window, head_dim] */
    const bf16 **window; /* [n_stages] into rows */
    cap_value before;    /* a window of an earlier round */
};

/* ---- the report ---- */

void rpl_replay_report_fini(rpl_replay_report *r)
{
    free(r->left_out);
    free(r->contradiction);
    *r = (rpl_replay_report){ 0 };
}

const char *rpl_left_out_text(const rpl_left_out *l, char *buf, size_t buf_bytes)
{
    snprintf(buf, buf_bytes,
             "round %d slot %d: its draft cannot be replayed: found no rows of positions %d to %d, wanted them or %s "
             "(level v1 or deep)", l->round, l->slot, l->from, l->to, l->wanted);
    return buf;
}

const char *rpl_contradiction_text(const rpl_contradiction *c, char *buf, size_t buf_bytes)
{
    snprintf(buf, buf_bytes,
             "round %d slot %d: %s row %d (position %d) is not what round %d has of it; %d of the %d rows of both differ",
             c->round, c->slot, c->window, c->row, c->position, c->before, c->n_rows, c->n_shared);
    return buf;
}

static err_code add_left_out(rpl_restore *s, int32_t round, const cap_start *start, err *e)
{
    rpl_replay_report *r = s->report;
    void *array = r->left_out;
    if (!mem_grow(&array, &r->left_out_capacity, r->n_left_out + 1, sizeof *r->left_out))
        return err_set(e, ERR_NOMEM, "replay: no memory for round %d", round);
    r->left_out = array;
    rpl_left_out *to = &r->left_out[r->n_left_out++];
    *to = (rpl_left_out){ .round = round, .slot = start->slot, .from = start->from, .to = start->to };
    memcpy(to->wanted, start->lacks, sizeof to->wanted);
    return ERR_OK;
}

static err_code add_contradiction(rpl_restore *s, const rpl_contradiction *found, err *e)
{
    rpl_replay_report *r = s->report;
    void *array = r->contradiction;
    if (!mem_grow(&array, &r->contradictions_capacity, r->n_contradictions + 1, sizeof *r->contradiction))
        return err_set(e, ERR_NOMEM, "replay: no memory for round %d", found->round);
    r->contradiction = array;
    r->contradiction[r->n_contradictions++] = *found;
    return ERR_OK;
}

/* ---- windows ---- */

static int32_t at_least(int32_t a, int32_t b) { return a > b ? a : b; }
static int32_t at_most(int32_t a, int32_t b) { return a < b ? a : b; }

/* The window of a stage as the request's last draft on the tape saw it. false: not there, or of no use. */
static bool read_before(rpl_restore *s, const cap_start *start, const char *name)
{
    const eng_config *c = eng_config_of(s->engine);
    const fmt_tape_key key = { start->before, start->slot, 0, name };
    if (start->before < 0 || cap_joined_get(s->tape, &key, &s->before, NULL) != ERR_OK) return false;
    const fmt_tensor *t = &s->before.tensor;
    return t->dtype == FMT_DTYPE_BF16 && t->ndim == 2 && t->shape[1] == c->head_dim &&
           t->shape[0] == at_most(c->window, start->before_pos + 1);
}

/* Rows that are about to be believed, against those that an earlier round has of the same positions. */
static err_code check_windows(rpl_restore *s, int32_t round, const cap_start *start, err *e)
{
    const eng_config *c = eng_config_of(s->engine);
    int32_t first = at_least(start->from, start->before_pos - c->window + 1), last = at_most(start->to, start->before_pos);
    for (int32_t k = 0; k < c->n_stages; k++) {
        rpl_contradiction found = { .round = round, .before = start->before, .slot = start->slot };
        snprintf(found.window, sizeof found.window, "s%d.window", k);
        if (!read_before(s, start, found.window)) continue;
        const bf16 *now = start->window[k], *before = s->before.tensor.data;
        for (int32_t p = first; p <= last; p++) {
            size_t at = (size_t)(p % c->window) * (size_t)c->head_dim;
            found.n_shared++;
            if (memcmp(now + at, before + at, (size_t)c->head_dim * sizeof *now) == 0) continue;
            if (found.n_rows++) continue;
            found.position = p;
            found.row = p % c->window;
        }
        if (found.n_rows) TRY(add_contradiction(s, &found, e));
    }
    return ERR_OK;
}

/* The slot's rows before the round: recorded ones from start->from to start->to, after these what it has already. */
static err_code restore(rpl_restore *s, const cap_start *start, int32_t slot, err *e)
{
    const eng_config *c = eng_config_of(s->engine);
    size_t width = (size_t)c->head_dim, stage_elems = (size_t)c->window * width;
    for (size_t i = 0; i < (size_t)c->n_stages * stage_elems; i++) s->rows[i] = UNWRITTEN;
    for (int32_t k = 0; k < c->n_stages; k++) {
        fmt_tensor have = { 0 };
        bf16 *to = s->rows + (size_t)k * stage_elems;
        if (start->to < start->last) TRY(eng_window(s->engine, slot, k, &have, e));
        for (int32_t p = start->from; p <= start->last; p++) {
            const bf16 *from = p <= start->to ? start->window[k] : have.data;
            size_t at = (size_t)(p % c->window) * width;
            memcpy(to + at, from + at, width * sizeof *to);
        }
    }
    s->report->windows_restored++;
    return eng_restore(s->engine, slot, start->last, s->window, e);
}

err_code rpl_restore_round(rpl_restore *s, int32_t i, int32_t round, err *e)
{
    const cap_start *start;
    int32_t n;
    bool left_out = false;
    TRY(cap_rounds_starts(s->rounds, i, &start, &n, e));
    for (int32_t k = 0; k < n; k++) {
        int32_t slot = cap_rounds_dense(s->rounds, start[k].slot);
        if (start[k].window) {
            TRY(check_windows(s, round, &start[k], e));
            TRY(restore(s, &start[k], slot, e));
            continue;
        }
        if (start[k].anew) eng_release(s->engine, slot);
        if (!start[k].lacks[0]) continue;
        TRY(add_left_out(s, round, &start[k], e));
        left_out = true;
    }
    s->report->rounds++;
    s->report->rounds_left_out += left_out;
    return ERR_OK;
}

err_code rpl_restore_open(const fmt_tape *t, cap_rounds *rounds, eng_engine *g, rpl_replay_report *report,
                          rpl_restore **out, err *e)
{
    const eng_config *c = eng_config_of(g);
    size_t stages = (size_t)c->n_stages, stage_elems = (size_t)c->window * (size_t)c->head_dim;
    rpl_restore *s = mem_alloc(1, sizeof *s);
    *out = s;
    if (!s) return err_set(e, ERR_NOMEM, "replay: no memory for windows");
    *s = (rpl_restore){ .tape = t, .rounds = rounds, .engine = g, .report = report };
    s->rows = mem_alloc(stages * stage_elems, sizeof *s->rows);
    s->window = mem_alloc(stages, sizeof *s->window);
    if (!s->rows || !s->window) {
        rpl_restore_close(s);
        *out = NULL;
        return err_set(e, ERR_NOMEM, "replay: no memory for windows");
    }
    for (size_t k = 0; k < stages; k++) s->window[k] = s->rows + k * stage_elems;
    return ERR_OK;
}

void rpl_restore_close(rpl_restore *s)
{
    if (!s) return;
    free(s->rows);
    free(s->window);
    cap_value_fini(&s->before);
    free(s);
}
