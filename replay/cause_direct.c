/* Guesses from the tensors alone, without running anything. */
#include "replay/cause_trial.h"

#include "base/mem.h"
#include "capture/joined.h"

#include <math.h>

static double part(int64_t n, int64_t of) { return (double)n / (double)of; }

/* ---- never written ---- */

/* NaN that no arithmetic makes of numbers: its payload was put there. */
static bool is_poison(const fmt_tensor *r, int64_t i)
{
    uint64_t bits = rpl_element_bits(r->dtype, r->data, i);
    return isnan(rpl_element(r->dtype, r->data, i)) && (r->dtype == FMT_DTYPE_BF16 ? bits & 0x3f : bits & 0x3fffff) != 0;
}

static void guess_unwritten(rpl_trial *t)
{
    const fmt_tensor *r = &t->v->recorded;
    int64_t n_poison = 0, n_same = 0, n_zero_row = 0, first = -1, sample = -1;
    for (int64_t i = 0; i < t->n; i++) {
        if (t->classes[i] != RPL_ILLEGAL) continue;
        if (sample < 0) sample = i;
        if (is_poison(r, i)) {
            n_poison++;
            if (first < 0) first = i;
        }
        n_same += rpl_element_bits(r->dtype, r->data, i) == rpl_element_bits(r->dtype, r->data, sample);
    }
    for (int64_t row = 0; row < t->rows; row++) {
        int64_t zero = 0;
        for (int64_t i = row * t->cols; i < (row + 1) * t->cols; i++) zero += rpl_element(r->dtype, r->data, i) == 0;
        n_zero_row += zero == t->cols && t->bad[row] ? zero : 0;
    }
    if (n_poison)
        rpl_trial_offer(t, part(n_poison, t->n_illegal), ENG_CAUSE_UNWRITTEN, "poison %llx at element %lld and "
                        "after", (unsigned long long)rpl_element_bits(r->dtype, r->data, first), (long long)first);
    if (t->cols > 8 && r->dtype != FMT_DTYPE_I32 && n_zero_row >= t->n_illegal)
        rpl_trial_offer(t, 1, ENG_CAUSE_UNWRITTEN, "rows %lld to %lld are 0", (long long)t->first_bad,
                        (long long)t->last_bad);
    else if (n_same > 16 && r->dtype != FMT_DTYPE_I32 && rpl_element(r->dtype, r->data, sample) != 0 &&
             isfinite(rpl_element(r->dtype, r->data, sample)))
        rpl_trial_offer(t, part(n_same, t->n_illegal), ENG_CAUSE_UNWRITTEN, "%llx repeated", (unsigned long long)
                        rpl_element_bits(r->dtype, r->data, sample));
}

/* ---- order of elements ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A row whose elements are the right ones in another order: sorted they agree. */
static err_code guess_sorted(rpl_trial *t, err *e)
{
    const fmt_tensor *r = &t->v->recorded;
    if (t->cols < 2) return ERR_OK;
    double *a = mem_alloc((size_t)t->cols, sizeof *a), *b = mem_alloc((size_t)t->cols, sizeof *b);
    int64_t explained = 0;
    for (int64_t row = 0; a && b && row < t->rows; row++) {
        int64_t illegal = 0, off = 0;
        if (!t->bad[row]) continue;
        for (int64_t i = 0; i < t->cols; i++) {
            a[i] = rpl_element(r->dtype, r->data, row * t->cols + i);
            b[i] = rpl_element(r->dtype, t->computed.data, row * t->cols + i);
            illegal += t->classes[row * t->cols + i] == RPL_ILLEGAL;
        }
        qsort(a, (size_t)t->cols, sizeof *a, by_value);
        qsort(b, (size_t)t->cols, sizeof *b, by_value);
        for (int64_t i = 0; i < t->cols; i++) off += !(fabs(a[i] - b[i]) <= fabs(b[i]) / 4096);
        explained += illegal > 1 && off * 50 <= t->cols ? illegal : 0;
    }
    rpl_trial_offer(t, part(explained, t->n_illegal), ENG_CAUSE_PERMUTATION, "sorted, rows %lld to %lld are right",
                    (long long)t->first_bad, (long long)t->last_bad);
    free(a);
    free(b);
    return a && b ? ERR_OK : err_set(e, ERR_NOMEM, "cause: no memory");
}

/* ---- tokens and positions ---- */

static void guess_ints(rpl_trial *t)
{
    const int32_t *got = t->v->recorded.data, *exact = t->computed.data;
    const char *dot = strrchr(t->v->name, '.');
    if (strcmp(dot ? dot + 1 : t->v->name, "pos") != 0) return;
    for (int32_t off = -1; off <= 1; off += 2) {
        int64_t n = 0;
        for (int64_t i = 0; i < t->n; i++) n += t->classes[i] == RPL_ILLEGAL && got[i] == exact[i] + off;
        rpl_trial_offer(t, part(n, t->n_illegal), ENG_CAUSE_POSITION, "%s is %d off", t->v->name, off);
    }
}

/* Tokens whose logits tie with the best, as they are or in bf16. */
static void guess_ties(rpl_trial *t)
{
    const eng_op *op = rpl_trial_op(t, t->v->group->n_ops - 1);
    if (op->kind != ENG_OP_MARKOV || t->v->value != op->out[1]) return;
    const float *biased = eng_bench_value(t->v->bench, op->out[0]);
    const int32_t *got = t->v->recorded.data, *exact = t->computed.data;
    const int64_t vocab = t->v->program->config.vocab;
    int64_t n_equal = 0, n_bf16 = 0;
    double margin = 0;
    for (int64_t i = 0; i < t->n; i++) {
        if (t->classes[i] != RPL_ILLEGAL || got[i] < 0 || got[i] >= vocab) continue;
        float a = biased[i * vocab + got[i]], b = biased[i * vocab + exact[i]];
        n_equal += a == b;
        n_bf16 += bf16_round(a) == bf16_round(b);
        margin = fmax(margin, (double)b - a);
    }
    rpl_trial_offer(t, part(n_equal, t->n_illegal), ENG_CAUSE_TIE_FLIP, "equal logits, another id");
    rpl_trial_offer(t, part(n_bf16, t->n_illegal), ENG_CAUSE_TIE_FLIP, "logits equal as bf16, margin %.3g", margin);
}

err_code rpl_guess_direct(rpl_trial *t, err *e)
{
    if (t->v->recorded.dtype == FMT_DTYPE_I32) {
        guess_ints(t);
        guess_ties(t);
    } else if (!rpl_trial_is_written(t)) {
        guess_unwritten(t);
    }
    (void)e;
    return ERR_OK;
}

/* ---- rings ---- */

static bool same_row(const fmt_tensor *a, int64_t x, const fmt_tensor *b, int64_t y)
{
    const int64_t cols = a->shape[1];
    for (int64_t i = 0; i < cols; i++) {
        double p = rpl_element(a->dtype, a->data, x * cols + i), q = rpl_element(b->dtype, b->data, y * cols + i);
        if (!(fabs(p - q) <= fabs(q) / 64 + 1e-30) && !(isnan(p) && isnan(q))) return false;
    }
    return true;
}

static bool zero_row(const fmt_tensor *a, int64_t x)
{
    for (int64_t i = x * a->shape[1]; i < (x + 1) * a->shape[1]; i++)
        if (rpl_element(a->dtype, a->data, i) != 0) return false;
    return true;
}

/* The slot's window of the last round that recorded one; data NULL: none. */
static err_code window_before(const rpl_trial *t, cap_value *out, err *e)
{
    fmt_tape_record r;
    for (size_t i = fmt_tape_count(t->x->tape); i-- > 0;) {
        fmt_tape_at(t->x->tape, i, &r);
        if (r.key.round >= t->v->round || r.key.slot != t->v->slot || strcmp(r.key.name, t->v->name) != 0) continue;
        const fmt_tape_key key = { r.key.round, r.key.slot, 0, r.key.name };
        return cap_joined_get(t->x->tape, &key, out, e);
    }
    return ERR_OK;
}

err_code rpl_guess_window(rpl_trial *t, err *e)
{
    const fmt_tensor *got = &t->v->recorded, *right = &t->computed;
    cap_value before = { 0 };
    TRY(window_before(t, &before, e));
    int64_t n_old = 0, n_other = 0, n_shift[3] = { 0 }, n_bad = t->n_bad_rows;
    for (int64_t r = 0; r < t->rows; r++) {
        if (!t->bad[r]) continue;
        bool old = zero_row(got, r) ||
                   (before.tensor.data && r < before.tensor.shape[0] && same_row(got, r, &before.tensor, r));
        n_old += old;
        for (int d = -1; d <= 1; d += 2)
            n_shift[d + 1] += old || same_row(got, r, right, (r + d + t->rows) % t->rows);
        bool other = false;
        for (int64_t x = 0; x < t->rows && !other; x++) other = x != r && same_row(got, r, right, x);
        n_other += other;
    }
    rpl_trial_offer(t, part(n_old, n_bad), ENG_CAUSE_STALE, "rows %lld to %lld of %s are those before the insert",
                    (long long)t->first_bad, (long long)t->last_bad, t->v->name);
    for (int d = -1; d <= 1; d += 2)
        rpl_trial_offer(t, part(n_shift[d + 1], n_bad), ENG_CAUSE_RING_ROTATION, "rows %lld to %lld of %s stand %d "
                        "further", (long long)t->first_bad, (long long)t->last_bad, t->v->name, -d);
    rpl_trial_offer(t, part(n_other, n_bad), ENG_CAUSE_PERMUTATION, "rows %lld to %lld of %s are there in another "
                    "order", (long long)t->first_bad, (long long)t->last_bad, t->v->name);
    cap_value_fini(&before);
    return ERR_OK;
}

/* ---- memory of another value ---- */

static bool holds_row(const fmt_tensor *in, const uint8_t *row, size_t bytes)
{
    return memmem(in->data, (size_t)fmt_tensor_bytes(in), row, bytes) != NULL;
}

/* The wrong rows are rows of another recorded value, of this round or the one before: what their memory held. */
err_code rpl_guess_held(rpl_trial *t, err *e)
{
    const size_t row = (size_t)t->cols * fmt_dtype_bytes(t->v->recorded.dtype);
    bool whole = t->n_bad_rows <= 2; /* most of the row is wrong, and it holds numbers */
    int64_t illegal = 0;
    for (int64_t i = t->last_bad * t->cols; i < (t->last_bad + 1) * t->cols; i++) {
        illegal += t->classes[i] == RPL_ILLEGAL;
        whole = whole && !isnan(rpl_element(t->v->recorded.dtype, t->v->recorded.data, i));
    }
    if (row >= 32 && whole && illegal * 2 > t->cols) {
        cap_value other = { 0 };
        fmt_tape_record r;
        const uint8_t *at = (const uint8_t *)t->v->recorded.data + (size_t)t->last_bad * row;
        for (size_t i = fmt_tape_count(t->x->tape); i-- > 0 && !rpl_trial_done(t);) {
            fmt_tape_at(t->x->tape, i, &r);
            if (r.key.round > t->v->round || r.tier != FMT_TIER_TENSOR || r.raw_bytes < row ||
                strstr(r.key.name, ".window")) /* what the value itself went into */
                continue;
            if (r.key.round < t->v->round - 1) break;
            if (r.key.round == t->v->round && r.key.slot == t->v->slot && strcmp(r.key.name, t->v->name) == 0) continue;
            err_code rc = cap_record_get(t->x->tape, i, &other, e);
            if (rc == ERR_OK && holds_row(&other.tensor, at, row))
                rpl_trial_offer(t, 1.0 / (double)t->n_bad_rows, ENG_CAUSE_STALE, "row %lld holds bits of %s of round %d",
                                (long long)t->last_bad, r.key.name, r.key.round);
            if (rc != ERR_OK) {
                cap_value_fini(&other);
                return rc;
            }
        }
        cap_value_fini(&other);
    }
    return rpl_trial_done(t) ? ERR_OK : guess_sorted(t, e);
}
