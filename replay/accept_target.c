/* What a tape tells of the target: which tokens are its own, how probable it found a draft; and the sums that follow. */
#include "replay/accept.h"

#include <math.h>

#include "base/mem.h"
#include "capture/joined.h"

/* ---- blocks ---- */

/* A slot between two drafts. */
typedef struct follow {
    int32_t slot, block;      /* its last draft, -1: none */
    int32_t n_inserts, first, last; /* since then; positions of the only one */
} follow;

typedef struct follows { follow *item; size_t n, capacity; } follows;

static follow *follow_of(follows *f, int32_t slot)
{
    void *array = f->item;
    for (size_t i = 0; i < f->n; i++)
        if (f->item[i].slot == slot) return &f->item[i];
    if (!mem_grow(&array, &f->capacity, f->n + 1, sizeof *f->item)) return NULL;
    f->item = array;
    f->item[f->n] = (follow){ .slot = slot, .block = -1 };
    return &f->item[f->n++];
}

static err_code no_memory(int32_t round, err *e) { return err_set(e, ERR_NOMEM, "accept: no memory for round %d", round); }

/* The recorded drafts of a round into its blocks, the last ones of a. */
static err_code read_drafts(const fmt_tape *t, const eng_round *r, cap_value *v, rpl_acceptance *a, err *e)
{
    rpl_block *b = a->block + a->n_blocks - (size_t)r->batch;
    const fmt_tape_key key = { r->round, FMT_TAPE_NO_SLOT, 0, "drafts" };
    err_code rc = cap_joined_get(t, &key, v, e);
    if (rc == ERR_INPUT) return ERR_OK; /* not recorded */
    TRY(rc);
    const fmt_tensor *x = &v->tensor;
    if (x->dtype != FMT_DTYPE_I32 || x->ndim != 2 || x->shape[0] != r->batch || x->shape[1] != r->n_out) {
        char found[96];
        return err_set(e, ERR_INPUT, "%s: round %d drafts: found %s, wanted I32 [%d, %d]", fmt_tape_path(t), r->round,
                       fmt_tensor_text(x, found, sizeof found), r->batch, r->n_out);
    }
    for (int32_t i = 0; i < r->batch; i++) {
        memcpy(b[i].drafts, (const int32_t *)x->data + (ptrdiff_t)i * r->n_out, (size_t)r->n_out * sizeof(int32_t));
        b[i].has_drafts = true;
    }
    return ERR_OK;
}

/* The slot's next draft: does it say what the target did with the last one? */
static void close_block(rpl_acceptance *a, const follow *f, const rpl_block *next, int32_t index)
{
    if (f->block < 0) return;
    rpl_block *b = &a->block[f->block];
    int32_t taken = next->pos - b->pos - 1;
    if (f->n_inserts != 1 || f->first != b->pos + 1 || f->last != next->pos || taken < 0 || taken > b->n_out) return;
    b->taken = taken;
    b->next = index;
}

static err_code add_blocks(const eng_round *r, bool mine, follows *f, rpl_acceptance *a, err *e)
{
    void *array = a->block;
    if (!mem_grow(&array, &a->capacity, a->n_blocks + (size_t)r->batch, sizeof *a->block)) return no_memory(r->round, e);
    a->block = array;
    for (int32_t i = 0; i < r->batch; i++) {
        int32_t index = (int32_t)a->n_blocks++;
        follow *s = follow_of(f, r->slots[i]);
        if (!s) return no_memory(r->round, e);
        a->block[index] = (rpl_block){ .round = r->round, .slot = r->slots[i], .pos = r->pos[i], .anchor = r->anchors[i],
                                       .n_out = r->n_out, .mine = mine, .taken = -1, .next = -1 };
        close_block(a, s, &a->block[index], index);
        *s = (follow){ .slot = s->slot, .block = index };
    }
    return ERR_OK;
}

/* Tokens of the target from the last block to the first: a later one tells the rest of an earlier one. */
static void find_tokens(rpl_acceptance *a)
{
    for (size_t i = a->n_blocks; i-- > 0;) {
        rpl_block *b = &a->block[i];
        int32_t known[ENG_BLOCK_MAX * 2 + 1], n = 0;
        if (b->next >= 0 && (b->has_drafts || b->taken == 0)) {
            const rpl_block *next = &a->block[b->next];
            for (; n < b->taken; n++) known[n] = b->drafts[n];
            known[n++] = next->anchor;
            for (int32_t k = 0; k < next->n_target; k++) known[n++] = next->target[k];
            a->n_short += b->has_drafts && b->taken < b->n_out && b->drafts[b->taken] == next->anchor;
        }
        /* All that is known is kept, as it may be more than this block's own: an earlier one may have offered more. */
        b->n_target = n < ENG_BLOCK_MAX ? n : ENG_BLOCK_MAX;
        memcpy(b->target, known, (size_t)b->n_target * sizeof *known);
    }
    for (size_t i = 0; i < a->n_blocks; i++) {
        rpl_block *b = &a->block[i];
        if (b->n_target > b->n_out) b->n_target = b->n_out;
        b->determined = b->has_drafts && b->n_target == b->n_out;
        a->n_mine += b->mine;
        a->n_determined += b->mine && b->determined;
    }
}

err_code rpl_accept_blocks(const fmt_tape *t, cap_rounds *rounds, const rpl_accept_options *o, rpl_acceptance *a,
                           bool *all_taps, bool *all_main_x, err *e)
{
    follows f = { 0 };
    cap_value v = { 0 };
    err_code rc = ERR_OK;
    *all_taps = *all_main_x = true;
    for (int32_t i = 0; rc == ERR_OK && i < cap_rounds_count(rounds); i++) {
        eng_round r;
        const bf16 *const *main_x;
        bool mine = i % o->n_shards == o->shard - 1;
        a->n_rounds_all++;
        a->n_rounds_wanted += mine;
        rc = cap_rounds_at(rounds, i, &r, &main_x, e);
        for (int32_t k = 0; rc == ERR_OK && k < r.n_inserts; k++) {
            const eng_insert_event *in = &r.inserts[k];
            follow *s = follow_of(&f, in->slot);
            if (!s) rc = no_memory(r.round, e);
            else {
                s->n_inserts++;
                s->first = in->pos[0];
                s->last = in->pos[in->rows - 1];
            }
            *all_taps = *all_taps && in->taps;
            *all_main_x = *all_main_x && main_x[k];
        }
        if (rc == ERR_OK && r.batch) rc = add_blocks(&r, mine, &f, a, e);
        if (rc == ERR_OK && r.batch) rc = read_drafts(t, &r, &v, a, e);
    }
    free(f.item);
    cap_value_fini(&v);
    if (rc == ERR_OK) find_tokens(a);
    return rc;
}

/* ---- probabilities ---- */

int32_t rpl_accept_leading(const rpl_block *b, const int32_t *drafts)
{
    int32_t n = 0;
    while (n < b->n_target && drafts[n] == b->target[n]) n++;
    return n;
}

/* softmax(logits)[token]. */
static double probability(const float *logits, int32_t vocab, int32_t token)
{
    double largest = -(double)INFINITY, sum = 0;
    for (int32_t v = 0; v < vocab; v++)
        if ((double)logits[v] > largest) largest = (double)logits[v];
    for (int32_t v = 0; v < vocab; v++) sum += exp((double)logits[v] - largest);
    return token >= 0 && token < vocab ? exp((double)logits[token] - largest) / sum : 0;
}

/* The target's logits after position pos of a slot: every block that offers the token after it. */
static void add_row(rpl_acceptance *a, int32_t slot, int32_t pos, const float *logits, int32_t vocab)
{
    for (size_t k = 0; k < a->n_blocks; k++) {
        rpl_block *b = &a->block[k];
        int32_t i = pos - b->pos - 1;
        if (b->slot != slot || i < 0 || i >= b->n_out || !b->determined) continue;
        b->n_logits++;
        for (int32_t r = 0; r < a->n_runs; r++) {
            rpl_accept_run *run = &a->run[r];
            const int32_t *drafts = run->drafts + k * ENG_BLOCK_MAX;
            if (!run->missing[0] && rpl_accept_leading(b, drafts) >= i) run->p[k] += probability(logits, vocab, drafts[i]);
        }
    }
}

static err_code read_logits(const fmt_tape *t, const eng_config *c, const fmt_tape_key *key, cap_value v[2],
                            rpl_acceptance *a, err *e)
{
    const fmt_tape_key pos = { key->round, key->slot, 0, "pos" };
    TRY(cap_joined_get(t, key, &v[0], e));
    TRY(cap_joined_get(t, &pos, &v[1], e));
    const fmt_tensor *x = &v[0].tensor, *at = &v[1].tensor;
    bool rows = at->dtype == FMT_DTYPE_I32 && at->ndim == 1 && at->shape[0] == x->shape[0];
    if (!rows || x->dtype != FMT_DTYPE_F32 || x->ndim != 2 || x->shape[1] != c->vocab) {
        char found[96];
        return err_set(e, ERR_INPUT, "%s: round %d slot %d target.logits: found %s, wanted F32 [rows of pos, %d]",
                       fmt_tape_path(t), key->round, key->slot, fmt_tensor_text(x, found, sizeof found), c->vocab);
    }
    for (int64_t r = 0; r < x->shape[0]; r++)
        add_row(a, key->slot, ((const int32_t *)at->data)[r], (const float *)x->data + r * c->vocab, c->vocab);
    a->n_target_logits += x->shape[0];
    return ERR_OK;
}

err_code rpl_accept_probabilities(const fmt_tape *t, const eng_config *c, rpl_acceptance *a, err *e)
{
    cap_value v[2] = { { { 0 } } };
    err_code rc = ERR_OK;
    for (size_t i = 0; rc == ERR_OK && i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        if (r.key.slot == FMT_TAPE_NO_SLOT || strcmp(r.key.name, "target.logits") != 0) continue;
        if (fmt_tape_find(t, &r.key) == (int64_t)i) rc = read_logits(t, c, &r.key, v, a, e);
    }
    for (int k = 0; k < 2; k++) cap_value_fini(&v[k]);
    for (size_t k = 0; k < a->n_blocks; k++)
        for (int32_t r = 0; r < a->n_runs; r++)
            if (a->block[k].n_logits != a->block[k].n_out) a->run[r].p[k] = NAN;
    return rc;
}

/* ---- sums ---- */

void rpl_moments_add(rpl_moments *m, double v)
{
    if (isnan(v)) return;
    m->n++;
    m->sum += v;
    m->squares += v * v;
}

rpl_mean rpl_moments_mean(const rpl_moments *m)
{
    rpl_mean r = { m->n, m->n ? m->sum / (double)m->n : NAN, NAN };
    if (m->n < 2) return r;
    double variance = (m->squares - m->sum * r.mean) / (double)(m->n - 1);
    r.error = sqrt(variance > 0 ? variance / (double)m->n : 0);
    return r;
}

/* The control's run in the same windows; NULL: it is this one, or did not run. */
static const rpl_accept_run *control_of(const rpl_acceptance *a, const rpl_accept_run *run)
{
    const rpl_accept_run *c = &a->run[1 + 2 * a->control + (run->windows == 'B')];
    return run->windows && c != run && !c->missing[0] ? c : NULL;
}

static void sum_run(const rpl_acceptance *a, rpl_accept_run *run)
{
    rpl_moments accepted = { 0 }, p = { 0 }, versus = { 0 }, p_versus = { 0 };
    const rpl_accept_run *control = control_of(a, run);
    for (size_t k = 0; k < run->n_reached; k++) {
        const rpl_block *b = &a->block[k];
        const int32_t *drafts = run->drafts + k * ENG_BLOCK_MAX;
        if (!b->mine || !b->has_drafts) continue;
        int32_t same = 0;
        for (int32_t i = 0; i < b->n_out; i++) same += drafts[i] == b->drafts[i];
        run->n_blocks++;
        run->n_exact += same == b->n_out;
        run->n_tokens += b->n_out;
        run->n_tokens_equal += same;
        if (!b->determined) continue;
        int32_t n = rpl_accept_leading(b, drafts);
        rpl_moments_add(&accepted, n);
        rpl_moments_add(&p, run->p[k]);
        if (!control || k >= control->n_reached) continue;
        rpl_moments_add(&versus, n - rpl_accept_leading(b, control->drafts + k * ENG_BLOCK_MAX));
        rpl_moments_add(&p_versus, run->p[k] - control->p[k]);
    }
    run->accepted = rpl_moments_mean(&accepted);
    run->p_target = rpl_moments_mean(&p);
    run->versus = rpl_moments_mean(&versus);
    run->p_versus = rpl_moments_mean(&p_versus);
}

void rpl_accept_sum(rpl_acceptance *a)
{
    for (int32_t r = 0; r < a->n_runs; r++)
        if (!a->run[r].missing[0]) sum_run(a, &a->run[r]);
}
