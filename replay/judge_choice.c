#include "replay/judge_choice.h"

#include "base/mem.h"
#include "formats/exl3.h"

enum { GROUP = FMT_QDQ_GROUP };

/* One element with another value: what it changes in its group's QDQ, and in the sums. */
typedef struct choice {
    int32_t first;       /* column of the group */
    float change[GROUP];
    double *moves;       /* [n] */
} choice;

typedef struct choices { choice *at; size_t n, capacity; } choices;

static void qdq(const bf16 x[GROUP], float out[GROUP])
{
    uint8_t codes[GROUP], scale;
    fmt_qdq_encode(x, codes, &scale);
    for (int i = 0; i < GROUP; i++) out[i] = f32_from_bf16(fmt_qdq_decode(codes[i], scale));
}

/* Adds the choice that element i of the group is v, unless its QDQ is the same. false: no memory. */
static bool add_choice(choices *c, const bf16 *group, int32_t first, int32_t i, double v)
{
    bf16 other[GROUP];
    float before[GROUP], after[GROUP];
    memcpy(other, group, sizeof other);
    other[i] = bf16_from_f32((float)v);
    qdq(group, before);
    qdq(other, after);
    if (memcmp(before, after, sizeof before) == 0) return true;
    void *array = c->at;
    if (!mem_grow(&array, &c->capacity, c->n + 1, sizeof *c->at)) return false;
    c->at = array;
    choice *to = &c->at[c->n++];
    to->first = first;
    for (int k = 0; k < GROUP; k++) to->change[k] = after[k] - before[k];
    return true;
}

static bool find_choices(choices *c, const krn_span *x, const bf16 *mid, int32_t k)
{
    for (int32_t i = 0; i < k; i++) {
        const int32_t first = i / GROUP * GROUP;
        const double own = (double)f32_from_bf16(mid[i]);
        if (x[i].lo != own && !add_choice(c, mid + first, first, i - first, x[i].lo)) return false;
        if (x[i].hi != own && !add_choice(c, mid + first, first, i - first, x[i].hi)) return false;
    }
    return true;
}

/* moves of every choice: [c->n, w->n] into all, one decoded row at a time. */
static void find_moves(choices *c, const krn_weight *w, float *row, double *all)
{
    for (size_t j = 0; j < c->n; j++) c->at[j].moves = all + j * (size_t)w->n;
    for (int32_t n = 0; n < w->n; n++) {
        krn_weight_decode_f32(w, n, 1, row);
        for (size_t j = 0; j < c->n; j++) {
            double sum = 0;
            for (int i = 0; i < GROUP; i++) sum += (double)c->at[j].change[i] * (double)row[c->at[j].first + i];
            c->at[j].moves[n] = sum;
        }
    }
}

/* sum |got - y - moves|, each term at most cap: one wild element does not drown the rest. moves NULL: none. */
static double miss(const float *got, const krn_span *y, const double *moves, int32_t n, double cap)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double term = fabs((double)got[i] - krn_span_middle(y[i]) - (moves ? moves[i] : 0));
        sum += term < cap ? term : cap; /* NaN: cap */
    }
    return sum;
}

static void toggle(const choices *c, const float *got, krn_span *y, int32_t n)
{
    double cap = 0;
    for (int32_t i = 0; i < n; i++) cap = fmax(cap, krn_span_largest(y[i]));
    double now = miss(got, y, NULL, n, cap);
    for (;;) {
        const choice *best = NULL;
        for (size_t j = 0; j < c->n; j++) {
            double then = miss(got, y, c->at[j].moves, n, cap);
            if (then < now * (1 - 1e-9)) now = then, best = &c->at[j]; /* less by more than the rounding of these sums */
        }
        if (!best) return;
        for (int32_t i = 0; i < n; i++) {
            y[i].lo += best->moves[i];
            y[i].hi += best->moves[i];
            best->moves[i] *= -1; /* the next toggle gives it back */
        }
    }
}

err_code rpl_choice_explain(const krn_span *x, const bf16 *mid, const krn_weight *w, const float *got, krn_span *y, err *e)
{
    choices c = { 0 };
    float *row = NULL;
    double *all = NULL;
    err_code rc = ERR_OK;
    bool fine = find_choices(&c, x, mid, w->k);
    if (fine && c.n > 0) {
        row = mem_alloc((size_t)w->k, sizeof *row);
        all = mem_alloc(c.n, (size_t)w->n * sizeof *all);
        fine = row && all;
        if (fine) {
            find_moves(&c, w, row, all);
            toggle(&c, got, y, w->n);
        }
    }
    if (!fine) rc = err_set(e, ERR_NOMEM, "judge: no memory for %zu choices", c.n);
    free(c.at);
    free(row);
    free(all);
    return rc;
}

/* ---- EXL3 ---- */

/* Element i of the row with another value, and what that does to the sums. */
typedef struct swap { int32_t i; bf16 other; double *moves; /* [n] */ } swap;
/* Inputs [k0, k0 + k) that become fp16 together: a block of a part. */
typedef struct block { int32_t k0, k; size_t first, n; /* its swaps */ } block;

typedef struct exl3_row {
    const krn_weight *w;
    bf16 *x;                /* [w->k] as chosen so far */
    swap *at;
    block *block;
    size_t n, n_blocks;
} exl3_row;

/* Of one element: a product of two that may each have been the next number is one of a few. */
enum { SWAPS_MAX = 8 };

/* The next larger bf16 number after one. */
static float next_bf16(float v)
{
    const bf16 b = bf16_from_f32(v);
    if ((b & 0x7fff) == 0) return f32_from_bf16(1);
    return f32_from_bf16((bf16)(b & 0x8000 ? b - 1 : b + 1));
}

/* Lists the blocks, and the swaps of each. at and block have room for all. */
static void find_swaps(exl3_row *r, const krn_span *x, const int32_t *cut, int32_t n_parts)
{
    for (int32_t p = 0; p < n_parts; p++)
        for (int32_t k0 = cut[p], k; k0 < cut[p + 1]; k0 += k) {
            const int32_t edge = FMT_EXL3_BLOCK - (r->w->exl3.k0 + k0) % FMT_EXL3_BLOCK;
            k = cut[p + 1] - k0 < edge ? cut[p + 1] - k0 : edge;
            block *b = &r->block[r->n_blocks];
            *b = (block){ .k0 = k0, .k = k, .first = r->n };
            for (int32_t i = k0; i < k0 + k; i++) {
                float v = (float)x[i].lo;
                for (int s = 0; s < SWAPS_MAX && (double)v <= x[i].hi; s++, v = next_bf16(v))
                    if (v != f32_from_bf16(r->x[i])) r->at[r->n++] = (swap){ .i = i, .other = bf16_from_f32(v) };
            }
            b->n = r->n - b->first;
            if (b->n) r->n_blocks++;
        }
}

/* Moves of every swap of a block, from its sums before and after. */
static err_code find_block_moves(exl3_row *r, const block *b, err *e)
{
    const int32_t n = r->w->n;
    const krn_weight part = krn_weight_slice(r->w, 0, n, b->k0, b->k);
    krn_linear_bound_job *jobs = mem_alloc(b->n + 1, sizeof *jobs);
    bf16 *rows = mem_alloc((b->n + 1) * (size_t)b->k, sizeof *rows);
    krn_span *sums = mem_alloc((b->n + 1) * (size_t)n, sizeof *sums);
    err_code rc = jobs && rows && sums ? ERR_OK : err_set(e, ERR_NOMEM, "judge: no memory for %zu choices", b->n);
    for (size_t j = 0; j <= b->n && rc == ERR_OK; j++) {
        bf16 *row = rows + j * (size_t)b->k;
        memcpy(row, r->x + b->k0, (size_t)b->k * sizeof *row);
        if (j > 0) row[r->at[b->first + j - 1].i - b->k0] = r->at[b->first + j - 1].other;
        jobs[j] = (krn_linear_bound_job){ &part, row, NULL, sums + j * (size_t)n };
    }
    if (rc == ERR_OK) {
        krn_linear_bound(jobs, (int32_t)b->n + 1, KRN_RULE_PARITY);
        for (size_t j = 1; j <= b->n; j++)
            for (int32_t i = 0; i < n; i++)
                r->at[b->first + j - 1].moves[i] = krn_span_middle(jobs[j].y[i]) - krn_span_middle(sums[i]);
    }
    free(jobs);
    free(rows);
    free(sums);
    return rc;
}

static void add_moves(krn_span *y, const double *moves, int32_t n)
{
    for (int32_t i = 0; i < n; i++) y[i] = (krn_span){ y[i].lo + moves[i], y[i].hi + moves[i] };
}

/* Puts a swap's value into the row; the next time it gives the other back. */
static void swap_value(exl3_row *r, swap *s)
{
    const bf16 own = r->x[s->i];
    r->x[s->i] = s->other;
    s->other = own;
}

/* The swap of [first, first + n) that lessens `now` most, which becomes what is left then; r->n: none does. */
static size_t best_swap(const exl3_row *r, size_t first, size_t n, const float *got, const krn_span *y, double cap,
                        double *now)
{
    size_t best = r->n;
    for (size_t j = first; j < first + n; j++) {
        const double then = miss(got, y, r->at[j].moves, r->w->n, cap);
        if (then < *now * (1 - 1e-9)) *now = then, best = j;
    }
    return best;
}

/* Two swaps of a block at a time: what one does to the fp16 of a block may hide what the other explains. *found: there were
 * two that lessen `now`, and they are made. trial [n] is scratch. */
static err_code swap_two(exl3_row *r, const block *b, const float *got, krn_span *y, krn_span *trial, double cap,
                         double *now, bool *found, err *e)
{
    for (size_t j = b->first; j < b->first + b->n; j++) {
        memcpy(trial, y, (size_t)r->w->n * sizeof *trial);
        add_moves(trial, r->at[j].moves, r->w->n);
        swap_value(r, &r->at[j]);
        TRY(find_block_moves(r, b, e));
        size_t other = best_swap(r, b->first, b->n, got, trial, cap, now);
        *found = other < r->n;
        if (*found) {
            memcpy(y, trial, (size_t)r->w->n * sizeof *y);
            add_moves(y, r->at[other].moves, r->w->n);
            swap_value(r, &r->at[other]);
        } else swap_value(r, &r->at[j]);
        TRY(find_block_moves(r, b, e));
        if (*found) return ERR_OK;
    }
    return ERR_OK;
}

static err_code swap_all(exl3_row *r, const float *got, krn_span *y, krn_span *trial, err *e)
{
    const int32_t n = r->w->n;
    double cap = 0;
    for (size_t b = 0; b < r->n_blocks; b++) TRY(find_block_moves(r, &r->block[b], e));
    for (int32_t i = 0; i < n; i++) cap = fmax(cap, krn_span_largest(y[i]));
    const double start = miss(got, y, NULL, n, cap);
    for (double now = start;;) {
        const size_t best = best_swap(r, 0, r->n, got, y, cap, &now);
        size_t b = 0;
        if (best < r->n) {
            while (r->block[b].first + r->block[b].n <= best) b++;
            add_moves(y, r->at[best].moves, n);
            swap_value(r, &r->at[best]);
            TRY(find_block_moves(r, &r->block[b], e));
            continue;
        }
        bool found = false, outside = false;
        for (int32_t i = 0; i < n; i++) outside = outside || !((double)got[i] >= y[i].lo && (double)got[i] <= y[i].hi);
        /* Looking at pairs takes long, and is for a row of which something was explained. */
        for (; outside && now < start / 2 && b < r->n_blocks && !found; b++)
            TRY(swap_two(r, &r->block[b], got, y, trial, cap, &now, &found, e));
        if (!found) return ERR_OK;
    }
}

err_code rpl_choice_explain_exl3(const krn_span *x, const bf16 *mid, const krn_weight *w, const int32_t *cut,
                                 int32_t n_parts, const float *got, krn_span *y, err *e)
{
    const size_t k = (size_t)w->k;
    exl3_row r = { .w = w, .x = mem_alloc(k, sizeof *r.x), .at = mem_alloc(SWAPS_MAX * k, sizeof *r.at),
                   .block = mem_alloc(k, sizeof *r.block) };
    double *moves = NULL;
    krn_span *trial = mem_alloc((size_t)w->n, sizeof *trial);
    err_code rc = r.x && r.at && r.block && trial ? ERR_OK : err_set(e, ERR_NOMEM, "judge: no memory for choices");
    if (rc == ERR_OK) {
        memcpy(r.x, mid, k * sizeof *r.x);
        find_swaps(&r, x, cut, n_parts);
        moves = mem_alloc(r.n + 1, (size_t)w->n * sizeof *moves);
        if (!moves) rc = err_set(e, ERR_NOMEM, "judge: no memory for %zu choices", r.n);
    }
    for (size_t j = 0; j < r.n && rc == ERR_OK; j++) r.at[j].moves = moves + j * (size_t)w->n;
    if (rc == ERR_OK) rc = swap_all(&r, got, y, trial, e);
    free(r.x);
    free(r.at);
    free(r.block);
    free(trial);
    free(moves);
    return rc;
}
