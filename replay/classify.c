#include "replay/classify_in.h"

#include <math.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "capture/redact.h"
#include "capture/rounds.h"
#include "replay/certify.h"
#include "replay/value.h"

static const char *const FLAGS[] = {
#define X(name, text) text,
    RPL_FLAG_LIST(X)
#undef X
};
const char *rpl_flag_text(rpl_flag_kind k) { return FLAGS[k]; }

/* ---- lists ---- */

err_code rpl_classify_flag(rpl_classify *c, const rpl_flag *f, err *e)
{
    void *array = c->out.flag;
    if (!mem_grow(&array, &c->out.flags_capacity, c->out.n_flags + 1, sizeof *f))
        return err_set(e, ERR_NOMEM, "classify: no memory for round %d", f->round);
    c->out.flag = array;
    c->out.flag[c->out.n_flags] = *f;
    c->out.flag[c->out.n_flags++].tape = c->out.n_tapes;
    return ERR_OK;
}

err_code rpl_classify_token(rpl_classify *c, const rpl_token *t, err *e)
{
    void *array = c->out.token;
    if (!mem_grow(&array, &c->out.tokens_capacity, c->out.n_tokens + 1, sizeof *t))
        return err_set(e, ERR_NOMEM, "classify: no memory for round %d", t->round);
    c->out.token = array;
    c->out.token[c->out.n_tokens] = *t;
    c->out.token[c->out.n_tokens++].tape = c->out.n_tapes;
    return ERR_OK;
}

rpl_slot_seen *rpl_classify_slot(rpl_classify *c, int32_t slot)
{
    void *array = c->slot;
    for (size_t i = 0; i < c->n_slots; i++)
        if (c->slot[i].slot == slot) return &c->slot[i];
    if (!mem_grow(&array, &c->slots_capacity, c->n_slots + 1, sizeof *c->slot)) return NULL;
    c->slot = array;
    c->slot[c->n_slots] = (rpl_slot_seen){ .slot = slot, .last = -1, .round = -1, .drafted = -1 };
    return &c->slot[c->n_slots++];
}

static err_code add_key(rpl_classify *c, const rpl_key *key, rpl_key **out, err *e)
{
    void *array = c->out.key;
    if (!mem_grow(&array, &c->out.keys_capacity, c->out.n_keys + 1, sizeof *key))
        return err_set(e, ERR_NOMEM, "classify: no memory for round %d", key->round);
    c->out.key = array;
    *out = &c->out.key[c->out.n_keys++];
    **out = *key;
    return ERR_OK;
}

/* ---- the round's values ---- */

bool rpl_classify_has(const rpl_classify *c, int32_t round, int32_t slot, const char *name)
{
    int64_t at = cap_names_find(c->names, round, slot, name);
    if (at < 0) return false;
    fmt_tape_record r;
    fmt_tape_at(c->tape, cap_names_at(c->names, (size_t)at)->first_record, &r);
    return r.tier == FMT_TIER_TENSOR;
}

/* Reads a value where the tape has it. A dimension of 0 may have any length from 1 on. ERR_INPUT: another dtype or shape.
 * */
static err_code load(rpl_classify *c, int32_t round, int32_t slot, const char *name, fmt_dtype dtype, int32_t ndim,
                     const int64_t *shape, rpl_loaded *out, err *e)
{
    out->there = rpl_classify_has(c, round, slot, name);
    if (!out->there) return ERR_OK;
    const fmt_tape_key key = { round, slot, 0, name };
    TRY(cap_joined_get(c->tape, &key, &out->v, e));
    fmt_tensor want = fmt_tensor_make(dtype, NULL, ndim, shape);
    const fmt_tensor *t = &out->v.tensor;
    for (int32_t d = 0; d < ndim && d < t->ndim; d++)
        if (want.shape[d] == 0 && t->shape[d] > 0) want.shape[d] = t->shape[d];
    if (t->dtype == dtype && rpl_same_shape(t, &want)) return ERR_OK;
    char found[96], wanted[96];
    return err_set(e, ERR_INPUT, "%s: round %d %s: found %s, wanted %s", fmt_tape_path(c->tape), round, name,
                   fmt_tensor_text(t, found, sizeof found), fmt_tensor_text(&want, wanted, sizeof wanted));
}
#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

static err_code load_ints(rpl_classify *c, int32_t round, const char *name, int64_t n, int32_t *out, err *e)
{
    TRY(load(c, round, FMT_TAPE_NO_SLOT, name, FMT_DTYPE_I32, 1, &n, &c->drafts, e));
    if (!c->drafts.there)
        return err_set(e, ERR_INPUT, "%s: round %d: found no %s, wanted it with draft.slots", fmt_tape_path(c->tape), round,
                       name);
    memcpy(out, c->drafts.v.tensor.data, (size_t)n * sizeof *out);
    return ERR_OK;
}

/* c->batch and the draft's inputs; batch 0: the round has none. The forced run has checked their values, or will. */
static err_code load_inputs(rpl_classify *c, int32_t round, err *e)
{
    c->batch = 0;
    TRY(load(c, round, FMT_TAPE_NO_SLOT, "draft.slots", FMT_DTYPE_I32, 1, SHAPE(0), &c->drafts, e));
    if (!c->drafts.there) return ERR_OK;
    int64_t n = c->drafts.v.tensor.shape[0];
    if (n > ENG_BATCH_MAX)
        return err_set(e, ERR_INPUT, "%s: round %d draft.slots: found %lld slots, wanted 1 to %d", fmt_tape_path(c->tape),
                       round, (long long)n, ENG_BATCH_MAX);
    memcpy(c->slots, c->drafts.v.tensor.data, (size_t)n * sizeof *c->slots);
    TRY(load_ints(c, round, "draft.anchor", n, c->anchors, e));
    TRY(load_ints(c, round, "draft.pos", n, c->pos, e));
    TRY(load_ints(c, round, "draft.n_out", 1, &c->n_out, e));
    bool fits = c->n_out >= 1 && c->n_out <= c->config.block;
    for (int64_t b = 0; b < n; b++)
        fits = fits && c->pos[b] >= 0 && c->anchors[b] >= 0 && c->anchors[b] < c->config.vocab;
    if (!fits)
        return err_set(e, ERR_INPUT, "%s: round %d: n_out, a position or an anchor of the draft is out of its range",
                       fmt_tape_path(c->tape), round);
    c->batch = (int32_t)n;
    return ERR_OK;
}

static err_code load_values(rpl_classify *c, int32_t round, err *e)
{
    const eng_config *g = &c->config;
    const int64_t rows = (int64_t)c->batch * g->block;
    const int32_t none = FMT_TAPE_NO_SLOT;
    rpl_loaded *l = c->logits;
    for (int32_t k = 0; k < g->n_stages; k++) {
        char name[32];
        snprintf(name, sizeof name, "s%d.attn_out", k);
        TRY(load(c, round, none, name, FMT_DTYPE_BF16, 2, SHAPE(rows, g->dim), &c->attn_out[k], e));
    }
    TRY(load(c, round, none, "head.logits", FMT_DTYPE_F32, 2, SHAPE(rows, g->vocab), &l[RPL_LOADED_LOGITS], e));
    TRY(load(c, round, none, "head.logits.top", FMT_DTYPE_F32, 2, SHAPE(rows, 0), &l[RPL_LOADED_LOGITS_TOP], e));
    int64_t n = l[RPL_LOADED_LOGITS_TOP].there ? l[RPL_LOADED_LOGITS_TOP].v.tensor.shape[1] : 0;
    TRY(load(c, round, none, "head.logits.top_ids", FMT_DTYPE_I32, 2, SHAPE(rows, n), &l[RPL_LOADED_LOGITS_IDS], e));
    TRY(load(c, round, none, "head.biased", FMT_DTYPE_F32, 3, SHAPE(c->batch, c->n_out, g->vocab), &l[RPL_LOADED_BIASED],
             e));
    TRY(load(c, round, none, "head.biased.top", FMT_DTYPE_F32, 3, SHAPE(c->batch, c->n_out, 0), &l[RPL_LOADED_BIASED_TOP],
             e));
    n = l[RPL_LOADED_BIASED_TOP].there ? l[RPL_LOADED_BIASED_TOP].v.tensor.shape[2] : 0;
    TRY(load(c, round, none, "head.biased.top_ids", FMT_DTYPE_I32, 3, SHAPE(c->batch, c->n_out, n),
             &l[RPL_LOADED_BIASED_IDS], e));
    return load(c, round, none, "drafts", FMT_DTYPE_I32, 2, SHAPE(c->batch, c->n_out), &c->drafts, e);
}

/* ---- a key ---- */

/* Attention's distances of the rows of entry b. */
static void measure_attention(rpl_classify *c, int32_t b, rpl_key *key)
{
    const int64_t n = (int64_t)c->config.block * c->config.dim;
    const double floor = 0x1p-9 / sqrt((double)n);
    for (int32_t k = 0; k < c->config.n_stages; k++) {
        char name[32];
        rpl_metrics m;
        snprintf(name, sizeof name, "s%d.attn_out", k);
        const bf16 *reference = rpl_rerun_value(c->mirror64, name);
        rpl_metrics_of(FMT_DTYPE_BF16, rpl_rerun_value(c->mirror, name), reference, n, &m);
        double unit = m.rel_l2 > floor ? m.rel_l2 : floor;
        key->mirror_error[k] = m.rel_l2;
        key->worker.error[k] = key->control.error[k] = NAN;
        if (c->attn_out[k].there) {
            rpl_metrics_of(FMT_DTYPE_BF16, (const bf16 *)c->attn_out[k].v.tensor.data + b * n, reference, n, &m);
            bool fine = m.n_nan_a + m.n_inf_a == 0; /* such elements are in no sum of the metrics */
            key->worker.error[k] = fine ? m.rel_l2 : (double)INFINITY;
        }
        if (c->control) {
            rpl_metrics_of(FMT_DTYPE_BF16, rpl_rerun_value(c->control, name), reference, n, &m);
            key->control.error[k] = m.rel_l2;
        }
        key->worker.excess[k] = key->worker.error[k] / unit;
        key->control.excess[k] = key->control.error[k] / unit;
    }
}

/* Runs entry b by the references and measures what the tape has of it. */
static err_code classify_entry(rpl_classify *c, int32_t round, int32_t b, err *e)
{
    const eng_config *g = &c->config;
    const bf16 *window[ENG_STAGES_MAX] = { NULL };
    rpl_key key = { .tape = c->out.n_tapes, .round = round, .slot = c->slots[b], .pos = c->pos[b], .n_out = c->n_out,
                    .rerun = c->drafts.there };
    int64_t rows = c->pos[b] < g->window ? c->pos[b] + 1 : g->window;
    for (int32_t k = 0; k < g->n_stages; k++) {
        char name[32];
        snprintf(name, sizeof name, "s%d.window", k);
        TRY(load(c, round, key.slot, name, FMT_DTYPE_BF16, 2, SHAPE(rows, g->head_dim), &c->window[k], e));
        key.rerun = key.rerun && c->window[k].there;
        window[k] = c->window[k].v.tensor.data;
    }
    rpl_entry n = { .b = b };
    TRY(add_key(c, &key, &n.key, e));
    if (!c->drafts.there) return ERR_OK;
    n.drafts = (const int32_t *)c->drafts.v.tensor.data + (ptrdiff_t)b * c->n_out;
    TRY(rpl_classify_own(c, &n, e));
    if (!key.rerun) return ERR_OK;
    const rpl_rerun_draft draft = { c->anchors[b], c->pos[b], c->n_out, window, n.drafts };
    TRY(rpl_rerun_run(c->mirror, &draft, e));
    TRY(rpl_rerun_run(c->mirror64, &draft, e));
    if (c->control) TRY(rpl_rerun_run(c->control, &draft, e));
    measure_attention(c, b, n.key);
    return rpl_classify_logits(c, &n, e);
}

/* ---- a tape ---- */

static err_code classify_round(rpl_classify *c, int32_t i, int32_t round, err *e)
{
    bool mine = c->rounds_seen++ % c->o.n_shards == c->o.shard - 1;
    c->out.n_rounds_all++;
    c->out.n_rounds_wanted += mine;
    c->out.interrupted = c->out.interrupted || interrupt_seen();
    if (c->out.interrupted) return ERR_OK;
    TRY(rpl_classify_positions(c, round, mine, e));
    TRY(load_inputs(c, round, e));
    if (mine) {
        c->out.n_rounds++;
        TRY(rpl_classify_state(c, i, round, e));
        if (c->batch) TRY(load_values(c, round, e));
        for (int32_t b = 0; b < c->batch; b++) TRY(classify_entry(c, round, b, e));
    }
    rpl_classify_drafted(c, round);
    return ERR_OK;
}

static void close_tape(rpl_classify *c)
{
    rpl_forced_close(c->forced);
    cap_names_free(c->names);
    c->forced = NULL;
    c->names = NULL;
    c->n_slots = 0;
}

err_code rpl_classify_tape(rpl_classify *c, const fmt_tape *t, err *e)
{
    if (cap_redact_key_of(t))
        return err_set(e, ERR_INPUT, "%s: redacted (key %s): its tokens are not the model's, nothing to classify",
                       fmt_tape_path(t), cap_redact_key_of(t));
    c->tape = t;
    c->chosen = cap_rounds_chosen(t);
    eng_options alone = c->mirror64_options;
    alone.combine = rpl_certify_options_of(t).combine; /* what the certificate is of; the references have one order */
    err_code rc = cap_names_make(t, &c->names, e);
    if (rc == ERR_OK) rc = rpl_forced_open(t, c->weights, &alone, &c->forced, e);
    progress p;
    progress_begin(&p, "classifying", rc == ERR_OK ? (uint64_t)rpl_forced_rounds(c->forced) : 0, c->o.quiet);
    for (int32_t i = 0; rc == ERR_OK && i < rpl_forced_rounds(c->forced); i++) {
        rc = classify_round(c, i, rpl_forced_round_number(c->forced, i), e);
        progress_add(&p, 1);
    }
    progress_end(&p);
    close_tape(c);
    c->out.n_tapes++;
    return rc;
}

/* ---- open and close ---- */

static err_code parse_arm(const char *arm, int32_t threads, eng_options *out, err *e)
{
    return eng_options_parse(&(eng_option_words){ .arm = arm }, threads, out, e);
}

static err_code open_all(rpl_classify *c, err *e)
{
    eng_options mirror;
    const rpl_classify_options *o = &c->o;
    TRY(parse_arm("mirror", o->threads, &mirror, e));
    TRY(parse_arm("mirror64", o->threads, &c->mirror64_options, e));
    if (o->own) {
        c->mirror64_options = *o->own;
        mirror.reps = o->own->reps;
        mirror.n_ranks = o->own->n_ranks;
    }
    TRY(rpl_rerun_open(c->weights, &mirror, NULL, 0, &c->mirror, e));
    TRY(rpl_rerun_open(c->weights, &c->mirror64_options, NULL, 0, &c->mirror64, e));
    c->out.has_control = o->control || o->n_substitutes;
    if (c->out.has_control)
        TRY(rpl_rerun_open(c->weights, o->control ? o->control : &mirror, o->substitute, o->n_substitutes, &c->control, e));
    return rpl_judge_open(c->weights, RPL_BOUND_DEFAULT, &c->judge, e);
}

err_code rpl_classify_open(const eng_weights *w, const rpl_classify_options *o, rpl_classify **out, err *e)
{
    *out = NULL;
    rpl_classify *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "classify: no memory");
    *c = (rpl_classify){ .weights = w, .config = *eng_weights_config(w), .o = *o };
    c->out.n_stages = c->config.n_stages;
    bool fine = (c->term = mem_alloc((size_t)c->config.vocab, sizeof *c->term)) != NULL;
    for (size_t i = 0; i < COUNT_OF(c->gathered); i++)
        fine = (c->gathered[i] = mem_alloc((size_t)c->config.vocab, sizeof *c->gathered[i])) && fine;
    err_code rc = fine ? open_all(c, e) : err_set(e, ERR_NOMEM, "classify: no memory");
    if (rc != ERR_OK) {
        rpl_classify_close(c);
        return rc;
    }
    *out = c;
    return ERR_OK;
}

void rpl_classify_close(rpl_classify *c)
{
    if (!c) return;
    close_tape(c);
    rpl_rerun_close(c->mirror);
    rpl_rerun_close(c->mirror64);
    rpl_rerun_close(c->control);
    rpl_judge_close(c->judge);
    for (int i = 0; i < 2; i++) cap_value_fini(&c->scratch[i]);
    for (int k = 0; k < ENG_STAGES_MAX; k++) {
        cap_value_fini(&c->attn_out[k].v);
        cap_value_fini(&c->window[k].v);
    }
    for (int i = 0; i < RPL_LOADED_COUNT; i++) cap_value_fini(&c->logits[i].v);
    cap_value_fini(&c->drafts.v);
    for (size_t i = 0; i < COUNT_OF(c->gathered); i++) free(c->gathered[i]);
    free(c->term);
    free(c->slot);
    free(c->out.key);
    free(c->out.flag);
    free(c->out.token);
    free(c);
}
