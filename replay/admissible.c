#include "replay/admissible.h"

#include "base/mem.h"
#include "kernels/argmax.h"
#include "replay/judge_chain.h"
#include "replay/judge_group.h"
#include "replay/metrics.h"

enum { GROUP = FMT_QDQ_GROUP };

/* A recorded value that a later one of its group is judged from: chosen ids, biased logits. */
typedef struct kept_value {
    const eng_program *program;
    int32_t round, slot, value; /* value -1: nothing */
    void *data;
    size_t capacity;
} kept_value;

struct rpl_judge {
    rpl_chain *chain;
    const eng_config *config;
    uint8_t *need;
    size_t need_capacity;
    kept_value kept;
};

static const struct { const char *name, *formula; krn_rule rule; } BOUND[RPL_BOUNDS] = {
    [RPL_BOUND_DEFAULT] = { "default", "6 * 2^-24 * sqrt(n) * A", KRN_RULE_PARITY },
    [RPL_BOUND_WORST] = { "worst", "n * 2^-24 * A", KRN_RULE_WORST },
    [RPL_BOUND_SHARP] = { "sharp", "6 * 2^-24 * sqrt(n) * (sqrt(sum p^2) + |S|)", KRN_RULE_SHARP },
};

const char *rpl_bound_name(rpl_bound b) { return BOUND[b].name; }
const char *rpl_bound_formula(rpl_bound b) { return BOUND[b].formula; }

err_code rpl_bound_parse(const char *word, rpl_bound *out, err *e)
{
    *out = RPL_BOUND_DEFAULT;
    for (int b = 0; b < RPL_BOUNDS; b++) {
        if (word && strcmp(word, BOUND[b].name) != 0) continue;
        *out = (rpl_bound)b;
        return ERR_OK;
    }
    return err_set(e, ERR_ARG, "--bound: found '%s', wanted default, worst or sharp", word);
}

err_code rpl_judge_open(const eng_weights *w, rpl_bound bound, rpl_judge **out, err *e)
{
    *out = NULL;
    rpl_judge *j = mem_alloc(1, sizeof *j);
    if (!j) return err_set(e, ERR_NOMEM, "judge: no memory");
    j->config = eng_weights_config(w);
    j->kept.value = -1;
    err_code rc = rpl_chain_open(w, BOUND[bound].rule, &j->chain, e);
    if (rc != ERR_OK) {
        rpl_judge_close(j);
        return rc;
    }
    *out = j;
    return ERR_OK;
}

void rpl_judge_close(rpl_judge *j)
{
    if (!j) return;
    rpl_chain_close(j->chain);
    free(j->need);
    free(j->kept.data);
    free(j);
}

/* ---- the sibling that a choice is made from ---- */

static eng_kind kind_of(const rpl_forced_value *v) { return v->group ? v->group->kind : ENG_OP_RING_WRITE; }
static const eng_op *last_op(const rpl_forced_value *v) { return &v->program->op[v->group->op[v->group->n_ops - 1]]; }
static bool is_tokens(const rpl_forced_value *v) { return kind_of(v) == ENG_OP_MARKOV && v->value == last_op(v)->out[1]; }

/* Keeps the recorded ids and biased logits, the first outputs of their ops, for the second ones. */
static err_code keep(rpl_judge *j, const rpl_forced_value *v, err *e)
{
    if ((kind_of(v) != ENG_OP_TOPK && kind_of(v) != ENG_OP_MARKOV) || v->value != last_op(v)->out[0]) return ERR_OK;
    const size_t bytes = (size_t)fmt_tensor_bytes(&v->recorded);
    j->kept.value = -1;
    if (!mem_grow(&j->kept.data, &j->kept.capacity, bytes, 1)) return err_set(e, ERR_NOMEM, "judge: no memory");
    memcpy(j->kept.data, v->recorded.data, bytes);
    j->kept.program = v->program;
    j->kept.round = v->round;
    j->kept.slot = v->slot;
    j->kept.value = v->value;
    return ERR_OK;
}

/* The kept value, if it is the first output of v's op in v's round; else NULL. */
static const void *kept_for(const rpl_judge *j, const rpl_forced_value *v)
{
    const kept_value *k = &j->kept;
    bool same = v->group && k->value == last_op(v)->out[0] && k->program == v->program && k->round == v->round &&
                k->slot == v->slot && k->value != v->value;
    return same ? k->data : NULL;
}

/* ---- one element ---- */

/* Where an element may lie, and how far it is from there. */
typedef struct place {
    krn_span span;
    double distance;
} place;

/* What the elements of a value are judged by. */
typedef struct basis {
    const rpl_forced_value *v;
    rpl_sight sight;
    const krn_span *span;     /* SPAN, CODES; of tokens [rows, vocab] */
    const float *biased;      /* of tokens: the recorded scores [rows, vocab], NULL: the spans tell */
    int64_t vocab;
} basis;

static krn_span preimage(fmt_dtype dtype, const void *data, int64_t i)
{
    if (dtype == FMT_DTYPE_BF16) return krn_preimage_bf16(((const bf16 *)data)[i]);
    return krn_span_point(rpl_element(dtype, data, i)); /* an f32 sum's own rounding is part of its bound */
}

/* A token: its score's margin to the best one, in bounds of the two. */
static place token_place(const basis *b, int32_t id, int64_t row)
{
    const krn_span *s = b->span + row * b->vocab;
    int64_t best = 0;
    for (int64_t i = 1; i < b->vocab; i++)
        if (krn_span_middle(s[i]) > krn_span_middle(s[best])) best = i;
    place p = { s[best], (double)INFINITY };
    if (id < 0 || id >= b->vocab) return p;
    double margin = krn_span_middle(s[best]) - krn_span_middle(s[id]);
    p.distance = margin > 0 ? margin / (krn_span_half(s[best]) + krn_span_half(s[id])) : margin <= 0 ? 0 : NAN;
    return p;
}

/* Element i if its value were element 0 of got. scale: of its group, CODES only. */
static place place_of(const basis *b, const void *got, int64_t i, double scale)
{
    const fmt_dtype dtype = b->v->recorded.dtype;
    if (b->sight == RPL_SIGHT_KNOWN)
        return (place){ krn_span_point(rpl_element(b->v->computed.dtype, b->v->computed.data, i)), (double)INFINITY };
    if (is_tokens(b->v)) return token_place(b, *(const int32_t *)got, i);
    place p = { .span = b->span[i] };
    if (b->sight == RPL_SIGHT_CODES) p.distance = rpl_group_distance(*(const bf16 *)got, p.span, scale);
    else p.distance = krn_span_distance(p.span, preimage(dtype, got, 0));
    return p;
}

static const void *element_at(const fmt_tensor *t, int64_t i)
{
    return (const uint8_t *)t->data + i * fmt_dtype_bytes(t->dtype);
}

static bool is_nan(const fmt_tensor *t, int64_t i) { return isnan(rpl_element(t->dtype, t->data, i)); }

static void add(rpl_verdict *out, uint8_t *classes, rpl_element_class cls, int64_t i)
{
    out->n_equal += cls == RPL_EQUAL;
    out->n_flip += cls == RPL_FLIP;
    out->n_illegal += cls == RPL_ILLEGAL;
    out->n_unjudged += cls == RPL_UNJUDGED;
    if (classes) classes[i] = (uint8_t)cls;
}

static void add_illegal(rpl_verdict *out, uint8_t *classes, const basis *b, place p, int64_t i)
{
    const double ratio = p.distance <= 1 || isnan(p.distance) ? (double)INFINITY : p.distance;
    if (out->first < 0) out->first = i;
    if (out->worst < 0 || ratio > out->ratio) {
        out->worst = i;
        out->got = rpl_element(b->v->recorded.dtype, b->v->recorded.data, i);
        out->exact = krn_span_middle(p.span);
        out->bound = krn_span_half(p.span);
        out->ratio = ratio;
    }
    add(out, classes, RPL_ILLEGAL, i);
}

/* An element whose bits differ. */
static void judge_element(const basis *b, int64_t i, double scale, rpl_verdict *out, uint8_t *classes)
{
    const rpl_forced_value *v = b->v;
    if (b->sight == RPL_SIGHT_NONE) {
        add(out, classes, RPL_UNJUDGED, i);
        return;
    }
    place p = place_of(b, element_at(&v->recorded, i), i, scale);
    /* Both are NaN: which operand's payload survives is nobody's order of sums. */
    if (b->sight == RPL_SIGHT_SPAN && is_nan(&v->recorded, i) && is_nan(&v->computed, i)) p.distance = 0;
    if (!(p.distance <= 1)) {
        add_illegal(out, classes, b, p, i);
        return;
    }
    if (p.distance > out->flip_distance) out->flip_distance = p.distance;
    add(out, classes, RPL_FLIP, i);
}

/* ---- a value ---- */

/* need = 1 where bits differ (all: everywhere). Returns how many. */
static int64_t mark(const rpl_forced_value *v, bool all, uint8_t *need, int64_t n)
{
    const uint32_t bytes = fmt_dtype_bytes(v->recorded.dtype);
    int64_t count = 0;
    if (all) memset(need, 1, (size_t)n);
    else if (memcmp(v->computed.data, v->recorded.data, (size_t)n * bytes) == 0) return 0; /* need is not looked at then */
    else if (bytes == 2) {
        const uint16_t *a = v->computed.data, *b = v->recorded.data;
        for (int64_t i = 0; i < n; i++) count += need[i] = a[i] != b[i];
    } else {
        const uint32_t *a = v->computed.data, *b = v->recorded.data;
        for (int64_t i = 0; i < n; i++) count += need[i] = a[i] != b[i];
    }
    return all ? n : count;
}

/* Tokens against the recorded scores that they were chosen from: no sums, no bound. */
static void judge_tokens(const basis *b, rpl_verdict *out, uint8_t *classes)
{
    const int32_t *got = b->v->recorded.data;
    for (int64_t i = 0; i < out->n; i++) {
        krn_best best = krn_argmax_ref(b->biased + i * b->vocab, b->vocab, 0);
        if (got[i] == best.id) add(out, classes, RPL_EQUAL, i);
        else add_illegal(out, classes, b, (place){ krn_span_point((double)best.id), (double)INFINITY }, i);
    }
}

/* Elements with need set; n_flips more differ and are flips. */
static void judge_differing(const basis *b, const uint8_t *need, int64_t n_flips, rpl_verdict *out, uint8_t *classes)
{
    const rpl_forced_value *v = b->v;
    rpl_group_scale s = { 0 };
    int64_t group = -1, n_judged = n_flips; /* group: the one that s is of */
    out->n_flip += n_flips;
    if (classes) memset(classes, RPL_EQUAL, (size_t)out->n);
    for (const uint8_t *at = need; (at = memchr(at, 1, (size_t)(need + out->n - at))) != NULL; at++, n_judged++) {
        const int64_t i = at - need;
        if (b->sight == RPL_SIGHT_CODES && i / GROUP != group) {
            group = i / GROUP;
            s = rpl_group_scale_of(element_at(&v->recorded, group * GROUP), b->span + group * GROUP);
            out->n_events += s.stepped;
        }
        judge_element(b, i, s.scale, out, classes);
    }
    out->n_equal += out->n - n_judged;
}

/* What v is judged by, and in j->need the elements that have to be. *n_marked: how many were, before those that are flips
 * beyond doubt were taken out; n_flips NULL: none is. */
static err_code basis_of(rpl_judge *j, const rpl_forced_value *v, bool all, basis *out, int64_t *n_marked, int64_t *n_flips,
                         err *e)
{
    const int64_t n = fmt_tensor_elems(&v->recorded);
    void *array = j->need;
    *out = (basis){ .v = v, .vocab = j->config->vocab };
    if (!mem_grow(&array, &j->need_capacity, (size_t)n, 1)) return err_set(e, ERR_NOMEM, "judge: no memory");
    j->need = array;
    *n_marked = mark(v, all, j->need, n);
    if (is_tokens(v)) out->biased = kept_for(j, v);
    TRY(rpl_chain_start(j->chain, v, &out->sight, e));
    if (*n_marked == 0 || out->biased || out->sight == RPL_SIGHT_KNOWN || out->sight == RPL_SIGHT_NONE) return ERR_OK;
    if (n_flips) TRY(rpl_chain_screen(j->chain, j->need, n_flips, e));
    return rpl_chain_spans(j->chain, j->need, kept_for(j, v), &out->span, e);
}

err_code rpl_judge_value(rpl_judge *j, const rpl_forced_value *v, rpl_verdict *out, uint8_t *classes, err *e)
{
    basis b;
    int64_t n_marked, n_flips = 0;
    *out = (rpl_verdict){ .n = fmt_tensor_elems(&v->recorded), .first = -1, .worst = -1 };
    TRY(keep(j, v, e));
    TRY(basis_of(j, v, false, &b, &n_marked, classes ? NULL : &n_flips, e));
    if (b.biased) {
        judge_tokens(&b, out, classes);
    } else if (n_marked == 0) {
        out->n_equal = out->n;
        if (classes) memset(classes, RPL_EQUAL, (size_t)out->n);
    } else {
        judge_differing(&b, j->need, n_flips, out, classes);
    }
    return ERR_OK;
}

/* ---- sharpness ---- */

/* The number `ulps` places above (or below) element i in the dtype's order, written to out. false: there is none. */
static bool neighbour(const fmt_tensor *t, int64_t i, int ulps, uint32_t *out)
{
    uint32_t bits = (uint32_t)rpl_element_bits(t->dtype, t->data, i);
    if (t->dtype == FMT_DTYPE_I32) {
        *out = bits + (uint32_t)ulps;
        return true;
    }
    const int shift = t->dtype == FMT_DTYPE_F32 ? 0 : 16;
    bits <<= shift;
    /* Sign and magnitude as one scale: -0 and +0 at 0. */
    int64_t at = bits >> 31 ? -(int64_t)(bits & 0x7fffffff) : (int64_t)bits;
    at += (int64_t)ulps * (1 << 16);
    int64_t size = at < 0 ? -at : at;
    if (size >= 0x7f800000) return false;
    bits = (uint32_t)size | (at < 0 ? 0x80000000u : 0);
    if (shift) {
        bf16 half = (bf16)(bits >> 16);
        memcpy(out, &half, sizeof half);
    } else {
        *out = bits;
    }
    return true;
}

err_code rpl_judge_sharpness(rpl_judge *j, const rpl_forced_value *v, int ulps, int64_t *admitted, int64_t *tried, err *e)
{
    basis b;
    int64_t n_marked;
    rpl_group_scale s = { 0 };
    *admitted = *tried = 0;
    TRY(basis_of(j, v, true, &b, &n_marked, NULL, e));
    if (b.sight == RPL_SIGHT_NONE) return ERR_OK;
    for (int64_t i = 0; i < n_marked; i++) {
        if (b.sight == RPL_SIGHT_CODES && i % GROUP == 0) s = rpl_group_scale_of(element_at(&v->recorded, i), b.span + i);
        for (int side = -1; side <= 1; side += 2) {
            uint32_t other = 0;
            if (!neighbour(&v->recorded, i, side * ulps, &other)) continue;
            ++*tried;
            *admitted += !b.biased && place_of(&b, &other, i, s.scale).distance <= 1;
        }
    }
    return ERR_OK;
}
