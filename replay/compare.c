#include "replay/compare.h"

#include "base/cli.h"
#include "base/mem.h"
#include "capture/redact.h"
#include "engine/identity.h"
#include "replay/value.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { N_STEPS = 2, A = 0, B = 1, THREADS_MAX = 8 }; /* more would wait for the chunks that a tape keeps decoded */

/* A value of each side, as one thread reads them; storage is kept from value to value. */
typedef struct sides { cap_value side[2]; } sides;

static int threads_max(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

static int thread_number(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* A compared round with what it owns. */
typedef struct round_result {
    rpl_round round;
    rpl_value *value;
    rpl_draft *draft;
    bool done;
} round_result;

struct rpl_compare {
    const fmt_tape *tape[2];
    cap_names *names[2];
    rpl_ordered *ordered;
    char *taps;
    bool other_ids; /* the tapes name tokens differently: one is redacted, or both with other keys */
    bool has_program;
    eng_program *program[N_STEPS];
    rpl_fold *fold[N_STEPS];
    round_result *result; /* [rounds] */
    cap_value *buffer; /* [2], of threads[0]: what is not done by values in parallel uses it */
    sides *threads;    /* [n_threads] */
    int n_threads;
};

/* ---- where a value stands in the program ---- */

/* Value of a program behind a tape's name: "head.logits.top" and "head.logits.top_ids" are views of head.logits. */
static int32_t find_value(const eng_program *p, const char *name)
{
    char base[FMT_TAPE_NAME_BYTES];
    snprintf(base, sizeof base, "%s", name);
    char *top = strstr(base, ".top");
    if (top && (top[4] == 0 || strcmp(top, ".top_ids") == 0)) *top = 0;
    return eng_program_find_value(p, base);
}

static bool is_draft(const cap_name *n) { return n->slot == FMT_TAPE_NO_SLOT; }

static bool is_window(const char *name)
{
    size_t n = strlen(name);
    return name[0] == 's' && n > 7 && strcmp(name + n - 7, ".window") == 0;
}

/* Where a name stands in seen, or would. A tape keeps one pointer for a name; what has no room is looked at again. */
enum { SEEN = 1024 };
static const char **seen_at(const char *seen[SEEN], const char *name)
{
    size_t home = (uintptr_t)name / 16;
    for (size_t i = home; i < home + 16; i++)
        if (!seen[i % SEEN] || seen[i % SEEN] == name) return &seen[i % SEEN];
    return &seen[home % SEEN];
}

/* Folds a step's program at the values that both tapes hold anywhere. */
static err_code fold_step(rpl_compare *c, eng_step_kind step, err *e)
{
    const eng_program *p = c->program[step];
    bool *recorded = mem_alloc((size_t)p->n_values, sizeof *recorded),
         *wanted = mem_alloc((size_t)p->n_values, sizeof *wanted);
    const char *seen[SEEN] = { 0 };
    err_code rc = recorded && wanted ? ERR_OK : err_set(e, ERR_NOMEM, "comparison: no memory");
    for (size_t i = 0; rc == ERR_OK && i < cap_names_count(c->names[A]); i++) {
        const cap_name *n = cap_names_at(c->names[A], i);
        const char **known = seen_at(seen, n->name);
        if (*known == n->name || is_draft(n) != (step == ENG_STEP_DRAFT)) continue;
        if (cap_names_find(c->names[B], n->round, n->slot, n->name) < 0) continue;
        *known = n->name;
        int32_t whole = eng_program_find_value(p, n->name), view = find_value(p, n->name);
        if (whole >= 0) recorded[whole] = true;
        if (view >= 0) wanted[view] = true;
    }
    if (rc == ERR_OK) rc = rpl_fold_make(p, recorded, wanted, &c->fold[step], e);
    free(recorded);
    free(wanted);
    return rc;
}

/* ---- equal or not, without metrics ---- */

/* One side's ranks hold different copies of a replicated value, the other side's do not (0: they agree). */
static bool copies_differ(int32_t rank_a, int32_t rank_b) { return (rank_a != 0) != (rank_b != 0); }

/* First rank whose copy differs from `first`, the first record of its key, 0: none. */
static int32_t other_copy(const fmt_tape *t, const fmt_tape_record *first)
{
    fmt_tape_key key = first->key;
    for (key.rank++; key.rank < first->n_ranks && key.rank < ENG_RANKS_MAX; key.rank++) {
        fmt_tape_record r;
        int64_t i = fmt_tape_find(t, &key);
        if (i < 0) continue;
        fmt_tape_at(t, (size_t)i, &r);
        if (r.tier == first->tier && r.hash != first->hash) return key.rank; /* a cheaper one cannot tell */
    }
    return 0;
}

/* 1 same bits, on every rank, 0 different, -1 not known (missing on a side, or unreadable). What the round's table holds
 * is taken from there; else hashes of the records decide, and whole values where ranks are cut differently. */
static int same_bits(rpl_compare *c, const round_result *r, int32_t round, int32_t slot, const char *name)
{
    for (int32_t i = 0; r && i < r->round.n_values; i++) {
        const rpl_value *v = &r->value[i];
        if (v->slot != slot || strcmp(v->name, name) != 0) continue;
        if (v->state == RPL_STATE_COMPARED || v->state == RPL_STATE_BY_HASH)
            return v->m.n_equal == v->m.n && !copies_differ(v->ranks_differ_a, v->ranks_differ_b);
        return v->state == RPL_STATE_DTYPE || v->state == RPL_STATE_SHAPE ? 0 : -1;
    }
    int64_t at[2];
    fmt_tape_record rec[2];
    for (int s = A; s <= B; s++) {
        at[s] = cap_names_find(c->names[s], round, slot, name);
        if (at[s] < 0) return -1;
        fmt_tape_at(c->tape[s], cap_names_at(c->names[s], (size_t)at[s])->first_record, &rec[s]);
    }
    if (rec[A].has_digest || rec[B].has_digest) {
        rpl_value v = { .name = name, .slot = slot };
        rpl_value_by_digest(&v, round, c->tape, rec, c->buffer);
        return v.state == RPL_STATE_BY_HASH ? v.m.n_equal == v.m.n
               : v.state == RPL_STATE_DTYPE || v.state == RPL_STATE_SHAPE ? 0 : -1;
    }
    if (rec[A].place == FMT_PLACE_REPLICATED && rec[B].place == FMT_PLACE_REPLICATED)
        return rec[A].hash == rec[B].hash && rec[A].tensor.dtype == rec[B].tensor.dtype &&
               rpl_same_shape(&rec[A].tensor, &rec[B].tensor) &&
               !copies_differ(other_copy(c->tape[A], &rec[A]), other_copy(c->tape[B], &rec[B]));
    const fmt_tape_key key = { round, slot, 0, name };
    for (int s = A; s <= B; s++)
        if (cap_joined_get(c->tape[s], &key, &c->buffer[s], NULL) != ERR_OK) return -1;
    const fmt_tensor *a = &c->buffer[A].tensor, *b = &c->buffer[B].tensor;
    return a->dtype == b->dtype && rpl_same_shape(a, b) && memcmp(a->data, b->data, fmt_tensor_bytes(a)) == 0;
}

static bool same_record(const fmt_tape_record *a, const fmt_tape_record *b)
{
    return a->hash == b->hash && a->tensor.dtype == b->tensor.dtype && rpl_same_shape(&a->tensor, &b->tensor);
}

/* By the records' hashes alone: 1 same, 0 different, -1 they cannot tell, because shards or partials of other rank counts
 * hash other bytes. A replicated value is the same on every rank: any one of them stands for it. rec: a record of each
 * side. */
static int same_hashes(const rpl_compare *c, int32_t round, int32_t slot, const char *name, fmt_tape_record rec[2])
{
    for (int s = A; s <= B; s++) {
        int64_t at = cap_names_find(c->names[s], round, slot, name);
        if (at < 0) return -1;
        const uint32_t first = cap_names_at(c->names[s], (size_t)at)->first_record;
        fmt_tape_at(c->tape[s], first, &rec[s]);
        if (slot != FMT_TAPE_NO_SLOT && fmt_tape_again(c->tape[s], first) >= 0) return -1; /* only of one insert's rows */
    }
    if (rec[A].place == FMT_PLACE_REPLICATED && rec[B].place == FMT_PLACE_REPLICATED) return same_record(&rec[A], &rec[B]);
    if (rec[A].place != rec[B].place || rec[A].axis != rec[B].axis || rec[A].n_ranks != rec[B].n_ranks) return -1;
    int same = 1;
    for (int32_t rank = 0; rank < rec[A].n_ranks; rank++) {
        const fmt_tape_key key = { round, slot, rank, name };
        int64_t i = fmt_tape_find(c->tape[A], &key), j = fmt_tape_find(c->tape[B], &key);
        if (i < 0 || j < 0) return -1;
        fmt_tape_at(c->tape[A], (size_t)i, &rec[A]);
        fmt_tape_at(c->tape[B], (size_t)j, &rec[B]);
        if (!same_record(&rec[A], &rec[B])) same = 0;
    }
    return same;
}

/* ---- placing a difference ---- */

/* A window was written by this and the earlier rounds' main_kv rows of its slot: all that the ring can still hold are
 * compared. */
static rpl_class place_window(rpl_compare *c, const round_result *r, int32_t round_index, const rpl_value *v)
{
    char rows_name[FMT_TAPE_NAME_BYTES];
    snprintf(rows_name, sizeof rows_name, "%.*s.main_kv", (int)(strlen(v->name) - 7), v->name);
    int64_t window = c->program[ENG_STEP_DRAFT]->config.window, rows = 0;
    for (int32_t i = round_index; i >= 0 && rows < window; i--) {
        int32_t round = rpl_ordered_number(c->ordered, i);
        int64_t at = cap_names_find(c->names[B], round, v->slot, rows_name);
        if (at < 0) at = cap_names_find(c->names[A], round, v->slot, rows_name);
        if (at < 0) continue;
        int same = same_bits(c, i == round_index ? r : NULL, round, v->slot, rows_name);
        if (same <= 0) return same == 0 ? RPL_CLASS_INHERITED : RPL_CLASS_UNPLACED;
        fmt_tape_record rec;
        fmt_tape_at(c->tape[B], cap_names_at(c->names[B], (size_t)at)->first_record, &rec);
        rows += rec.tensor.shape[0];
    }
    return rows > 0 ? RPL_CLASS_ORIGIN : RPL_CLASS_UNPLACED;
}

/* 1 same, 0 different, -1 not known: input value `in` of the step that wrote v. A window stands for those of every slot
 * of the step. */
static int same_input(rpl_compare *c, const round_result *r, const eng_program *p, int32_t in, const rpl_value *v)
{
    const char *name = p->value[in].name;
    if (!p->value[in].state) return same_bits(c, r, r->round.round, v->draft ? FMT_TAPE_NO_SLOT : v->slot, name);
    int same = -1;
    for (int32_t i = 0; i < r->round.n_values; i++) {
        const rpl_value *w = &r->value[i];
        if (strcmp(w->name, name) != 0) continue;
        same = same_bits(c, r, r->round.round, w->slot, name);
        if (same <= 0) return same;
    }
    return same;
}

static rpl_class place(rpl_compare *c, const round_result *r, int32_t round_index, const rpl_value *v)
{
    if (!c->has_program) return RPL_CLASS_UNPLACED;
    if (is_window(v->name)) return place_window(c, r, round_index, v);
    if (strncmp(v->name, "draft.", 6) == 0) return RPL_CLASS_INPUT;
    eng_step_kind step = v->draft ? ENG_STEP_DRAFT : ENG_STEP_INSERT;
    const eng_program *p = c->program[step];
    int32_t value = find_value(p, v->name);
    if (value < 0) return RPL_CLASS_UNPLACED;
    if (p->value[value].producer < 0) return RPL_CLASS_INPUT;
    int32_t g = rpl_fold_of_value(c->fold[step], value);
    if (g < 0) return RPL_CLASS_UNPLACED;
    const rpl_group *group = rpl_fold_at(c->fold[step], g);
    bool known = group->complete;
    for (int32_t k = 0; k < group->n_in; k++) {
        int same = same_input(c, r, p, group->in[k], v);
        if (same == 0) return RPL_CLASS_INHERITED;
        known = known && same > 0;
    }
    return known ? RPL_CLASS_ORIGIN : RPL_CLASS_UNPLACED;
}

/* ---- one value ---- */

/* Who makes v: its op, and the kinds of the chain that lies between it and the recorded values before it. */
static void name_op(const rpl_compare *c, rpl_value *v)
{
    if (!c->has_program) return;
    eng_step_kind step = v->draft ? ENG_STEP_DRAFT : ENG_STEP_INSERT;
    const eng_program *p = c->program[step];
    int32_t value = find_value(p, v->name), g = value >= 0 ? rpl_fold_of_value(c->fold[step], value) : -1;
    if (value < 0 || p->value[value].producer < 0) return;
    v->op = p->op[p->value[value].producer].name;
    if (g >= 0) rpl_group_text(p, rpl_fold_at(c->fold[step], g), v->ops);
}

/* A side kept statistics or a hash only, and none a digest. */
static void compare_by_hash(const rpl_compare *c, int32_t round, rpl_value *v)
{
    fmt_tape_record rec[2];
    int same = same_hashes(c, round, v->slot, v->name, rec);
    v->state = same < 0 ? RPL_STATE_UNKNOWN : RPL_STATE_BY_HASH;
    if (same < 0) return;
    v->a = rec[A].tensor, v->b = rec[B].tensor;
    v->m = (rpl_metrics){ .n = fmt_tensor_elems(&v->a), .first = -1, .worst = -1 };
    v->m.n_equal = same ? v->m.n : 0;
    v->cls = same ? RPL_CLASS_EQUAL : RPL_CLASS_UNPLACED;
}

static int32_t vocab_of(const rpl_compare *c) { return c->has_program ? c->program[0]->config.vocab : 0; }

/* Reads only what no comparison changes, so that values can be compared in parallel. */
static void compare_value(const rpl_compare *c, cap_value buffer[2], int32_t round, rpl_value *v)
{
    if (c->other_ids && cap_redact_tells_ids(v->name)) {
        v->state = RPL_STATE_REDACTED;
        return;
    }
    if (rpl_value_same(v, round, c->tape[A], c->tape[B], vocab_of(c))) return;
    fmt_tape_record rec[2];
    bool there[2], payload = true;
    for (int s = A; s <= B; s++) {
        int64_t at = cap_names_find(c->names[s], round, v->slot, v->name);
        there[s] = at >= 0;
        if (!there[s]) continue;
        fmt_tape_at(c->tape[s], cap_names_at(c->names[s], (size_t)at)->first_record, &rec[s]);
        *(s == A ? &v->a : &v->b) = rec[s].tensor;
        payload = payload && rec[s].tier == FMT_TIER_TENSOR;
    }
    if (!there[A] || !there[B]) {
        v->state = there[A] ? RPL_STATE_ONLY_A : RPL_STATE_ONLY_B;
        if (cap_redact_withholds(c->tape[there[A] ? B : A], v->name)) v->state = RPL_STATE_REDACTED;
        return;
    }
    if (rec[A].has_digest || rec[B].has_digest) {
        rpl_value_by_digest(v, round, c->tape, rec, buffer);
        return;
    }
    if (!payload) {
        compare_by_hash(c, round, v);
        return;
    }
    const fmt_tape_key key = { round, v->slot, 0, v->name };
    for (int s = A; s <= B; s++) {
        err e = { 0 };
        if (cap_joined_get(c->tape[s], &key, &buffer[s], &e) != ERR_OK) {
            v->state = RPL_STATE_UNREADABLE;
            snprintf(v->why, sizeof v->why, "%.*s", (int)sizeof v->why - 1, e.msg);
            return;
        }
    }
    v->ranks_differ_a = buffer[A].ranks_differ;
    v->ranks_differ_b = buffer[B].ranks_differ;
    if (v->ranks_differ_a || v->ranks_differ_b) v->m.findings |= RPL_FIND_RANKS_DIFFER;
    rpl_value_compare(v, &buffer[A].tensor, &buffer[B].tensor, vocab_of(c));
    if (v->state != RPL_STATE_COMPARED || !copies_differ(v->ranks_differ_a, v->ranks_differ_b)) return;
    if (v->cls == RPL_CLASS_EQUAL) v->cls = RPL_CLASS_UNPLACED; /* what was compared is the lowest rank's copy */
    snprintf(v->why, sizeof v->why, "rank %d's copy differs in %c", v->ranks_differ_a + v->ranks_differ_b,
             v->ranks_differ_a ? 'A' : 'B');
}

/* ---- drafted tokens ---- */

static const int32_t *get_i32(rpl_compare *c, int side, int32_t round, const char *name, int32_t ndim, fmt_tensor *t)
{
    const fmt_tape_key key = { round, FMT_TAPE_NO_SLOT, 0, name };
    if (cap_joined_get(c->tape[side], &key, &c->buffer[side], NULL) != ERR_OK) return NULL;
    *t = c->buffer[side].tensor;
    return t->dtype == FMT_DTYPE_I32 && t->ndim == ndim ? t->data : NULL;
}

static float find_token(const float *values, const int32_t *ids, int64_t n, int32_t token)
{
    if (!ids) return token >= 0 && token < n ? values[token] : NAN;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == token) return values[i];
    return NAN;
}

/* Margins of side B at one drafted position, from the whole head.biased or its top entries. */
static void explain_draft(rpl_compare *c, int32_t round, rpl_draft *d)
{
    fmt_tensor ids;
    fmt_tape_key key = { round, FMT_TAPE_NO_SLOT, 0, "head.biased" };
    const int32_t *top_ids = NULL;
    cap_value *values = &c->buffer[B];
    if (cap_joined_get(c->tape[B], &key, values, NULL) != ERR_OK) {
        key.name = "head.biased.top_ids"; /* read into A's buffer: both are needed at once */
        if (cap_joined_get(c->tape[B], &key, &c->buffer[A], NULL) != ERR_OK) return;
        ids = c->buffer[A].tensor;
        key.name = "head.biased.top";
        if (cap_joined_get(c->tape[B], &key, values, NULL) != ERR_OK) return;
        if (ids.dtype != FMT_DTYPE_I32 || !rpl_same_shape(&ids, &values->tensor)) return;
        top_ids = ids.data;
    }
    const fmt_tensor *t = &values->tensor;
    if (t->dtype != FMT_DTYPE_F32 || t->ndim != 3 || d->entry >= t->shape[0] || d->n_same >= t->shape[1]) return;
    int64_t n = t->shape[2], at = ((int64_t)d->entry * t->shape[1] + d->n_same) * n;
    rpl_logits_row row;
    rpl_logits_row_of((const float *)t->data + at, (const float *)t->data + at, n, &row);
    if (row.argmax_b < 0) return;
    const float *v = (const float *)t->data + at;
    d->margin_b = row.margin_b;
    d->gap_b = (double)v[row.argmax_b] - (double)find_token(v, top_ids ? top_ids + at : NULL, n, d->token_a);
}

static err_code compare_drafts(rpl_compare *c, round_result *r, err *e)
{
    int32_t round = r->round.round;
    if (c->other_ids) return ERR_OK;
    fmt_tensor ta = { 0 }, tb = { 0 }, ts = { 0 }, tp = { 0 };
    const int32_t *a = get_i32(c, A, round, "drafts", 2, &ta), *b = get_i32(c, B, round, "drafts", 2, &tb);
    if (!a || !b) return ERR_OK;
    int64_t batch = ta.shape[0] < tb.shape[0] ? ta.shape[0] : tb.shape[0];
    r->draft = mem_alloc((size_t)batch, sizeof *r->draft);
    if (!r->draft) return err_set(e, ERR_NOMEM, "comparison: no memory");
    for (int32_t i = 0; i < batch; i++) {
        int64_t na = ta.shape[1], nb = tb.shape[1];
        rpl_draft *d = &r->draft[r->round.n_drafts++];
        *d = (rpl_draft){ .slot = FMT_TAPE_NO_SLOT, .entry = i, .position = -1, .n_out = (int32_t)(na < nb ? na : nb),
                          .token_a = -1, .token_b = -1, .margin_b = (double)NAN, .gap_b = (double)NAN };
        while (d->n_same < d->n_out && a[i * na + d->n_same] == b[i * nb + d->n_same]) d->n_same++;
        d->exact = d->n_same == d->n_out && na == nb;
        if (d->n_same < d->n_out) {
            d->token_a = a[i * na + d->n_same];
            d->token_b = b[i * nb + d->n_same];
        }
    }
    const int32_t *slots = get_i32(c, B, round, "draft.slots", 1, &ts);
    for (int32_t i = 0; slots && i < batch && i < ts.shape[0]; i++) r->draft[i].slot = slots[i];
    const int32_t *pos = get_i32(c, B, round, "draft.pos", 1, &tp);
    for (int32_t i = 0; pos && i < batch && i < tp.shape[0]; i++) r->draft[i].position = pos[i];
    for (int32_t i = 0; i < batch; i++)
        if (r->draft[i].token_b >= 0) explain_draft(c, round, &r->draft[i]);
    return ERR_OK;
}

/* ---- rounds ---- */

static err_code compare_round(rpl_compare *c, int32_t i, round_result *r, err *e)
{
    int32_t n;
    const cap_name *name = rpl_ordered_at(c->ordered, i, &n);
    r->value = mem_alloc((size_t)n, sizeof *r->value);
    if (!r->value) return err_set(e, ERR_NOMEM, "comparison: no memory for %d values", n);
    r->round = (rpl_round){ .round = rpl_ordered_number(c->ordered, i), .first_origin = -1 };
    for (int32_t k = 0; k < n; k++) {
        if (c->taps && !cli_match(c->taps, name[k].name)) continue;
        rpl_value *v = &r->value[r->round.n_values++];
        *v = (rpl_value){ .name = name[k].name, .slot = name[k].slot, .draft = is_draft(&name[k]), .cls = RPL_CLASS_NONE };
        v->a.ndim = v->b.ndim = -1;
        name_op(c, v);
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(c->n_threads)
    for (int32_t k = 0; k < r->round.n_values; k++)
        compare_value(c, c->threads[thread_number()].side, r->round.round, &r->value[k]);
    for (int32_t k = 0; k < r->round.n_values; k++) {
        rpl_value *v = &r->value[k];
        if (v->cls == RPL_CLASS_UNPLACED) v->cls = place(c, r, i, v);
        if (v->cls == RPL_CLASS_ORIGIN && r->round.first_origin < 0) r->round.first_origin = k;
        rpl_round_count(&r->round, v);
    }
    TRY(compare_drafts(c, r, e));
    r->round.value = r->value;
    r->round.draft = r->draft;
    return ERR_OK;
}

err_code rpl_compare_round(rpl_compare *c, int32_t i, const rpl_round **out, err *e)
{
    round_result *r = &c->result[i];
    if (!r->done) {
        err_code rc = compare_round(c, i, r, e);
        if (rc != ERR_OK) {
            rpl_compare_forget(c, i);
            return rc;
        }
        r->done = true;
    }
    *out = &r->round;
    return ERR_OK;
}

void rpl_compare_forget(rpl_compare *c, int32_t i)
{
    free(c->result[i].value);
    free(c->result[i].draft);
    c->result[i] = (round_result){ 0 };
}

uint64_t rpl_round_bytes(const rpl_round *r)
{
    return (uint64_t)r->n_values * sizeof *r->value + (uint64_t)r->n_drafts * sizeof *r->draft;
}

/* ---- open and close ---- */

static bool config_of(const fmt_tape *t, eng_config *out)
{
    const json_t *config = json_object_get(fmt_tape_head(t), "config");
    return config && eng_config_parse(config, "tape head", out, NULL) == ERR_OK;
}

static err_code open_compare(rpl_compare *c, const eng_config *config, const char *taps, err *e)
{
    for (int s = A; s <= B; s++) TRY(cap_names_make(c->tape[s], &c->names[s], e));
    TRY(rpl_ordered_make(c->names[A], c->names[B], &c->ordered, e));
    c->result = mem_alloc((size_t)rpl_ordered_rounds(c->ordered), sizeof *c->result);
    c->n_threads = threads_max() < THREADS_MAX ? threads_max() : THREADS_MAX;
    c->threads = mem_alloc((size_t)c->n_threads, sizeof *c->threads);
    if (taps) c->taps = mem_strdup(taps);
    c->other_ids = !cap_redact_same_key(c->tape[A], c->tape[B]);
    if (!c->result || !c->threads || (taps && !c->taps)) return err_set(e, ERR_NOMEM, "comparison: no memory");
    c->buffer = c->threads[0].side;
    eng_config own;
    if (!config && (config_of(c->tape[B], &own) || config_of(c->tape[A], &own))) config = &own;
    if (!config) return ERR_OK;
    const eng_reps reps = eng_identity_reps(json_object_get(fmt_tape_head(c->tape[B]), "identity"));
    for (int step = 0; step < N_STEPS; step++) {
        TRY(eng_program_make(config, (eng_step_kind)step, 1, ENG_COMBINE_EXACT, &reps, &c->program[step], e));
        TRY(fold_step(c, (eng_step_kind)step, e));
    }
    c->has_program = true;
    return ERR_OK;
}

err_code rpl_compare_open(const fmt_tape *a, const fmt_tape *b, const eng_config *config, const char *taps,
                          rpl_compare **out, err *e)
{
    *out = NULL;
    rpl_compare *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "comparison: no memory");
    c->tape[A] = a;
    c->tape[B] = b;
    err_code rc = open_compare(c, config, taps, e);
    if (rc != ERR_OK) {
        rpl_compare_close(c);
        return rc;
    }
    *out = c;
    return ERR_OK;
}

void rpl_compare_close(rpl_compare *c)
{
    if (!c) return;
    for (int32_t i = 0; c->result && i < rpl_ordered_rounds(c->ordered); i++) rpl_compare_forget(c, i);
    for (int s = A; s <= B; s++) {
        cap_names_free(c->names[s]);
        for (int t = 0; c->threads && t < c->n_threads; t++) cap_value_fini(&c->threads[t].side[s]);
    }
    free(c->threads);
    for (int step = 0; step < N_STEPS; step++) {
        rpl_fold_free(c->fold[step]);
        eng_program_free(c->program[step]);
    }
    rpl_ordered_free(c->ordered);
    free(c->result);
    free(c->taps);
    free(c);
}

int32_t rpl_compare_rounds(const rpl_compare *c) { return rpl_ordered_rounds(c->ordered); }
int32_t rpl_compare_round_number(const rpl_compare *c, int32_t i) { return rpl_ordered_number(c->ordered, i); }
bool rpl_compare_done(const rpl_compare *c, int32_t i) { return c->result[i].done; }

const cap_names *rpl_compare_names(const rpl_compare *c, int side) { return c->names[side]; }
const rpl_ordered *rpl_compare_ordered(const rpl_compare *c) { return c->ordered; }

const eng_program *rpl_compare_program(const rpl_compare *c, eng_step_kind step)
{
    return c->has_program ? c->program[step] : NULL;
}
