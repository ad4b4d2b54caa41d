/* Guesses about how a weight was read: its codes, its scales, their order. Each runs the op with a changed copy. */
#include "replay/cause_trial.h"

#include "base/mem.h"

#include <math.h>

enum { BLOCKS_MAX = 512 /* of one weight that are tried alone, a run of the op each */, NONE = -1 };

/* A dense copy of a weight in the place of the bench's view, and the view that stood there. */
typedef struct copy {
    krn_weight *view, true_view;
    uint8_t *data, *scale;
    int64_t row_bytes, scale_rows, groups; /* of the copy: groups of 32 a row */
} copy;

static int64_t bytes_of_row(const krn_weight *w)
{
    switch (w->format) {
    case KRN_W_FP8: return w->k;
    case KRN_W_FP4: return w->k / 2;
    case KRN_W_BF16: return (int64_t)w->k * (int64_t)sizeof(bf16);
    case KRN_W_F32:
    case KRN_W_EXL3: break;
    }
    return (int64_t)w->k * (int64_t)sizeof(float);
}

static void refill(copy *c)
{
    const krn_weight *w = &c->true_view;
    for (int64_t n = 0; n < w->n; n++)
        memcpy(c->data + n * c->row_bytes, (const uint8_t *)w->data + n * w->row_bytes, (size_t)c->row_bytes);
    for (int64_t n = 0; n < c->scale_rows; n++)
        memcpy(c->scale + n * c->groups, w->scale + n * w->scale_row_bytes, (size_t)c->groups);
}

static bool take(copy *c, krn_weight *view)
{
    c->view = view;
    c->true_view = *view;
    c->row_bytes = bytes_of_row(view);
    c->groups = view->k / FMT_QDQ_GROUP;
    c->scale_rows = view->format == KRN_W_FP8 ? (view->n + 31) / 32 : view->format == KRN_W_FP4 ? view->n : 0;
    c->data = mem_alloc((size_t)(view->n * c->row_bytes) + 1, 1);
    c->scale = mem_alloc((size_t)(c->scale_rows * c->groups) + 1, 1);
    if (!c->data || !c->scale) return false;
    refill(c);
    *view = (krn_weight){ .format = view->format, .n = view->n, .k = view->k, .data = c->data, .row_bytes = c->row_bytes,
                          .scale = c->scale, .scale_row_bytes = c->groups };
    return true;
}

static void put_back(copy *c)
{
    *c->view = c->true_view;
    free(c->data);
    free(c->scale);
}

/* Scales as each rank holds them, its part of the rows or of the columns: every one is another one of the part. */
static void move_scales(copy *c, int64_t shares, eng_cut cut, bool transposed)
{
    const int64_t rows = c->scale_rows / (cut == ENG_CUT_ROWS ? shares : 1);
    const int64_t cols = c->groups / (cut == ENG_CUT_COLS ? shares : 1), n = rows * cols;
    for (int64_t s = 0; s < shares; s++) {
        const int64_t row0 = cut == ENG_CUT_ROWS ? s * rows : 0, col0 = cut == ENG_CUT_COLS ? s * cols : 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t from = transposed ? i % rows * cols + i / rows : i + 1 < n ? i + 1 : i;
            c->scale[(row0 + i / cols) * c->groups + col0 + i % cols] =
                c->true_view.scale[(row0 + from / cols) * c->true_view.scale_row_bytes + col0 + from % cols];
        }
    }
}

static void shift_rows(copy *c, int64_t shares)
{
    int64_t n = c->view->n / shares;
    for (int64_t s = 0; s < shares; s++) {
        uint8_t *at = c->data + s * n * c->row_bytes, *scale = c->scale + s * n * c->groups;
        memmove(at, at + c->row_bytes, (size_t)((n - 1) * c->row_bytes));
        if (c->view->format == KRN_W_FP4) memmove(scale, scale + c->groups, (size_t)((n - 1) * c->groups));
    }
}

/* Which rows of the scales stand for columns that are wrong, of a value that has the op's columns: [scale_rows] malloc'd,
 * all of them where columns do not tell. NULL: no memory. */
static bool *suspect_rows(const rpl_trial *t, int32_t k, const copy *c, int32_t expert)
{
    const eng_op *op = rpl_trial_op(t, k);
    const int64_t n = c->view->n, per_row = c->view->format == KRN_W_FP8 ? 32 : 1;
    const bool told = rpl_view_of(t, op->out[0]).cols == t->cols && t->cols % n == 0;
    const int32_t *ids = expert == NONE ? NULL : (const int32_t *)(void *)rpl_view_of(t, op->in[1]).data;
    bool *row = mem_alloc((size_t)c->scale_rows + 1, sizeof *row);
    for (int64_t i = 0; row && i < c->scale_rows; i++) row[i] = !told;
    for (int64_t i = 0; row && told && i < t->n; i++) {
        int64_t r = i / t->cols, column = i % t->cols;
        if (t->classes[i] != RPL_ILLEGAL || (ids && ids[r * (t->cols / n) + column / n] != expert)) continue;
        row[column % n / per_row] = true;
    }
    return row;
}

/* Each block's scale alone. With several ranks each has its own block: blocks are added while that explains more. */
static err_code try_blocks(rpl_trial *t, int32_t k, copy *c, const bool *suspect, err *e)
{
    static const struct { int add, set; eng_cause cause; const char *text; } HOW[] = {
        { 1, 0, ENG_CAUSE_SCALE_BYTE, "one too large" }, { -1, 0, ENG_CAUSE_SCALE_BYTE, "one too small" },
        { 0, 0, ENG_CAUSE_E8M0_EDGE, "0" }, { 0, 255, ENG_CAUSE_E8M0_EDGE, "255, NaN" },
    };
    const eng_op *op = rpl_trial_op(t, k);
    const int64_t n = c->scale_rows * c->groups;
    for (size_t h = 0; h < COUNT_OF(HOW) && !rpl_trial_done(t); h++) {
        for (int32_t found = 0; found < t->x->n_ranks; found++) {
            int64_t best = -1;
            for (int64_t i = 0; i < n && !rpl_trial_done(t); i++) {
                if (!suspect[i / c->groups]) continue;
                uint8_t was = c->scale[i];
                double before = t->best->share;
                c->scale[i] = (uint8_t)(HOW[h].add ? was + HOW[h].add : HOW[h].set);
                TRY(rpl_trial_run_op(t, k, HOW[h].cause, e, "the scale of %s rows %lld, columns %lld is %s", op->name,
                                  (long long)(i / c->groups * (c->view->format == KRN_W_FP8 ? 32 : 1)),
                                  (long long)(i % c->groups * 32), HOW[h].text));
                c->scale[i] = was;
                if (t->best->share > before) best = i;
            }
            if (best < 0) break;
            c->scale[best] = (uint8_t)(HOW[h].add ? c->scale[best] + HOW[h].add : HOW[h].set);
        }
        refill(c);
    }
    return ERR_OK;
}

static err_code guess_blocks(rpl_trial *t, int32_t k, copy *c, int32_t expert, err *e)
{
    bool *suspect = suspect_rows(t, k, c, expert);
    int64_t n = 0;
    if (!suspect) return err_set(e, ERR_NOMEM, "cause: no memory");
    for (int64_t i = 0; i < c->scale_rows; i++) n += suspect[i] ? c->groups : 0;
    err_code rc = n <= BLOCKS_MAX ? try_blocks(t, k, c, suspect, e) : ERR_OK;
    free(suspect);
    return rc;
}

static err_code guess_weight(rpl_trial *t, int32_t k, krn_weight *view, int32_t expert, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    const eng_cut cut = eng_wkind_of(op->weight[0])->cut;
    const bool quantised = view->format == KRN_W_FP8 || view->format == KRN_W_FP4;
    copy c = { 0 };
    if (view->format == KRN_W_EXL3) return rpl_guess_exl3(t, k, expert, e); /* rows and scales of other kinds */
    err_code rc = take(&c, view) ? ERR_OK : err_set(e, ERR_NOMEM, "cause: no memory");
    char of[24] = "";
    if (expert != NONE) snprintf(of, sizeof of, " of expert %d", expert);
    for (int64_t shares = 1; shares <= t->x->n_ranks && rc == ERR_OK; shares += t->x->n_ranks > 1 ? t->x->n_ranks - 1 : 1) {
        if (shares > 1 && cut != ENG_CUT_ROWS && cut != ENG_CUT_COLS) break;
        if (quantised && (cut == ENG_CUT_COLS ? c.groups : c.scale_rows) % shares == 0) {
            move_scales(&c, shares, cut, false);
            rc = rpl_trial_run_op(t, k, ENG_CAUSE_SCALE_ORDER, e, "%s%s, each block has the next one's scale", op->name,
                                  of);
            refill(&c);
            move_scales(&c, shares, cut, true);
            if (rc == ERR_OK)
                rc = rpl_trial_run_op(t, k, ENG_CAUSE_SCALE_ORDER, e, "%s%s, scales read by columns", op->name, of);
            refill(&c);
        }
        if (rc == ERR_OK && view->n % shares == 0 && (shares == 1 || cut == ENG_CUT_ROWS)) {
            shift_rows(&c, shares);
            rc = rpl_trial_run_op(t, k, ENG_CAUSE_PERMUTATION, e, "%s%s, each row is the next one", op->name, of);
            refill(&c);
        }
    }
    if (rc == ERR_OK && quantised) {
        memset(c.scale, FMT_E8M0_BIAS, (size_t)(c.scale_rows * c.groups));
        rc = rpl_trial_run_op(t, k, ENG_CAUSE_SCALE_BYTE, e, "%s%s, all scales are 1", op->name, of);
        refill(&c);
    }
    if (rc == ERR_OK && view->format == KRN_W_FP4) {
        for (int64_t i = 0; i < view->n * c.row_bytes; i++) c.data[i] = (uint8_t)(c.data[i] << 4 | c.data[i] >> 4);
        rc = rpl_trial_run_op(t, k, ENG_CAUSE_NIBBLE_ORDER, e, "%s%s, the codes of each byte", op->name, of);
        refill(&c);
    }
    if (rc == ERR_OK && quantised && !rpl_trial_done(t)) rc = guess_blocks(t, k, &c, expert, e);
    if (c.view) put_back(&c);
    return rc;
}

/* Experts of the wrong rows, each once; a mistake of all of them is not tried. */
static err_code guess_experts(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    rpl_view ids = rpl_view_of(t, op->in[1]);
    int32_t tried[64], n = 0;
    for (int64_t r = 0; r < ids.rows; r++)
        for (int64_t j = 0; j < ids.cols && ids.rows == t->rows && t->bad[r] && !rpl_trial_done(t); j++) {
            int32_t id = ((const int32_t *)(void *)rpl_view_of(t, op->in[1]).data)[r * ids.cols + j];
            bool again = n == (int32_t)COUNT_OF(tried);
            for (int32_t i = 0; i < n; i++) again = again || tried[i] == id;
            if (again) continue;
            tried[n++] = id;
            TRY(guess_weight(t, k, eng_bench_weight(t->v->bench, op->weight[0], op->stage, id), id, e));
        }
    return ERR_OK;
}

err_code rpl_guess_weights(rpl_trial *t, err *e)
{
    for (int32_t k = t->v->group->n_ops - 1; k >= 0 && !rpl_trial_done(t); k--) {
        const eng_op *op = rpl_trial_op(t, k);
        if (op->kind == ENG_OP_EXPERTS_UP || op->kind == ENG_OP_EXPERTS_DOWN) TRY(guess_experts(t, k, e));
        else if (op->kind == ENG_OP_LINEAR || op->kind == ENG_OP_WO_A)
            TRY(guess_weight(t, k, eng_bench_weight(t->v->bench, op->weight[0], op->stage, NONE), NONE, e));
    }
    return ERR_OK;
}
