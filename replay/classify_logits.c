/* Own-logit, KL and tokens: what the dump's logits say of its drafts, and how far they are from the reference's. */
#include "replay/classify_in.h"

#include <math.h>

#include "kernels/argmax.h"

/* The logits of one drafted position as the tape has them. */
typedef struct recorded_row {
    const float *value;   /* [n]; NULL: not recorded */
    const int32_t *ids;   /* [n] of a list of the largest, best first; NULL: the whole vocabulary */
    int64_t n;
} recorded_row;

/* Row `row` of a value with `n` rows in front of its last dimension, or of its list of the largest entries. */
static recorded_row row_of(const rpl_classify *c, int whole, int top, int top_ids, int64_t row)
{
    const rpl_loaded *l = &c->logits[whole], *t = &c->logits[top], *ids = &c->logits[top_ids];
    if (l->there) return (recorded_row){ (const float *)l->v.tensor.data + row * c->config.vocab, NULL, c->config.vocab };
    if (!t->there || !ids->there) return (recorded_row){ 0 };
    int64_t n = t->v.tensor.shape[t->v.tensor.ndim - 1];
    return (recorded_row){ (const float *)t->v.tensor.data + row * n, (const int32_t *)ids->v.tensor.data + row * n, n };
}

static recorded_row logits_row(const rpl_classify *c, int32_t b, int32_t i)
{
    return row_of(c, RPL_LOADED_LOGITS, RPL_LOADED_LOGITS_TOP, RPL_LOADED_LOGITS_IDS, (int64_t)b * c->config.block + i);
}

static recorded_row biased_row(const rpl_classify *c, int32_t b, int32_t i)
{
    return row_of(c, RPL_LOADED_BIASED, RPL_LOADED_BIASED_TOP, RPL_LOADED_BIASED_IDS, (int64_t)b * c->n_out + i);
}

static bool is_token(const rpl_classify *c, int32_t id) { return id >= 0 && id < c->config.vocab; }

/* ---- the Markov term ---- */

static const bf16 *embedding_before(const rpl_classify *c, const rpl_entry *n, int32_t i)
{
    const krn_weight embed = eng_weights_view(c->weights, ENG_W_MARKOV_EMBED, -1, -1);
    int32_t id = i == 0 ? c->anchors[n->b] : n->drafts[i - 1];
    return (const bf16 *)embed.data + (int64_t)(is_token(c, id) ? id : 0) * c->config.markov_rank;
}

/* The control rounds the term and its sum with the logit to bf16 (ENG_MARKOV_CACHE); other runs keep both in f32. */
static float rounded(const rpl_classify *c, float x)
{
    return c->mirror64_options.reps.markov == ENG_MARKOV_CACHE ? f32_from_bf16(bf16_from_f32(x)) : x;
}
static float biased(const rpl_classify *c, float logit, int32_t id) { return rounded(c, logit + rounded(c, c->term[id])); }

/* c->term [vocab] of position i, in float64 sums, before it is rounded. */
static void make_term(rpl_classify *c, const rpl_entry *n, int32_t i)
{
    const krn_weight head = eng_weights_view(c->weights, ENG_W_MARKOV_HEAD, -1, -1);
    krn_linear_ref(embedding_before(c, n, i), c->config.markov_rank, 1, &head, KRN_ACC_F64, KRN_OUT_F32, c->term,
                   c->config.vocab);
}

/* Where an order of f32 sums may bring logit + term of a token: kernels/markov.h's bound around the float64 sum, and half
 * an ulp of the last addition on each side; from there both ends are rounded as the run rounds. */
typedef struct span { double lo, hi; } span;
static span span_of(const rpl_classify *c, const rpl_entry *n, int32_t i, int32_t id, double logit)
{
    const krn_weight head = eng_weights_view(c->weights, ENG_W_MARKOV_HEAD, -1, -1);
    const bf16 *e = embedding_before(c, n, i), *h = (const bf16 *)head.data + (int64_t)id * c->config.markov_rank;
    double sum = 0;
    for (int32_t k = 0; k < c->config.markov_rank; k++)
        sum += fabs((double)f32_from_bf16(e[k]) * (double)f32_from_bf16(h[k]));
    const double term = (double)c->term[id], slack = 6 * 0x1p-24 * sqrt((double)c->config.markov_rank) * sum;
    const double lo = logit + (double)rounded(c, (float)(term - slack));
    const double hi = logit + (double)rounded(c, (float)(term + slack));
    return (span){ (double)rounded(c, (float)(lo - 0x1p-23 * fabs(lo))),
                   (double)rounded(c, (float)(hi + 0x1p-23 * fabs(hi))) };
}

/* ---- own-logit ---- */

typedef enum own { OWN_UNKNOWN, OWN_RIGHT, OWN_WRONG } own;

/* The best token of logits + term among the recorded logits. */
static int32_t best_of(const rpl_classify *c, const recorded_row *l, double *logit)
{
    int32_t best = -1;
    float best_sum = NAN;
    for (int64_t k = 0; k < l->n; k++) {
        int32_t id = l->ids ? l->ids[k] : (int32_t)k;
        if (!is_token(c, id)) continue;
        float sum = biased(c, l->value[k], id);
        if (best >= 0 && !krn_value_before(sum, best_sum) && !(sum >= best_sum && sum <= best_sum && id < best)) continue;
        best = id;
        best_sum = sum;
        *logit = (double)l->value[k];
    }
    return best;
}

/* Is draft what logits + term would choose? *better: what they would. A token outside the list has at most the list's last
 * logit: when that does not rule it out, its own sum is not known. */
static own judge_by_logits(const rpl_classify *c, const rpl_entry *n, int32_t i, const recorded_row *l, int32_t *better)
{
    double best_logit = 0, logit = 0;
    bool listed = !l->ids;
    int32_t draft = n->drafts[i], best = best_of(c, l, &best_logit);
    *better = best;
    if (best < 0) return OWN_WRONG;
    if (best == draft) return OWN_RIGHT;
    for (int64_t k = 0; l->ids && k < l->n; k++)
        if (l->ids[k] == draft) {
            logit = (double)l->value[k];
            listed = true;
        }
    if (!l->ids) logit = (double)l->value[draft];
    if (!listed) logit = (double)l->value[l->n - 1];
    bool near = span_of(c, n, i, draft, logit).hi >= span_of(c, n, i, best, best_logit).lo;
    return !near ? OWN_WRONG : listed ? OWN_RIGHT : OWN_UNKNOWN;
}

/* The recorded biased logits themselves: no arithmetic, no slack. */
static own judge_by_biased(const recorded_row *r, int32_t draft, int32_t *better)
{
    if (!r->value) return OWN_UNKNOWN;
    *better = r->ids ? r->ids[0] : krn_argmax_ref(r->value, r->n, 0).id;
    return *better == draft ? OWN_RIGHT : OWN_WRONG;
}

err_code rpl_classify_own(rpl_classify *c, const rpl_entry *n, err *e)
{
    for (int32_t i = 0; i < c->n_out; i++) {
        recorded_row l = logits_row(c, n->b, i), r = biased_row(c, n->b, i);
        int32_t draft = n->drafts[i], better = -1;
        own verdict = is_token(c, draft) ? judge_by_biased(&r, draft, &better) : OWN_WRONG;
        if (verdict != OWN_WRONG && l.value) {
            make_term(c, n, i);
            own by_logits = judge_by_logits(c, n, i, &l, &better);
            if (by_logits != OWN_UNKNOWN) verdict = by_logits;
        }
        n->key->n_own += verdict != OWN_UNKNOWN;
        if (verdict != OWN_WRONG) continue;
        rpl_flag f = { .round = n->key->round, .slot = n->key->slot, .kind = RPL_FLAG_OWN_LOGIT, .value = "drafts",
                       .position = i, .row = draft, .n = 1, .got = draft, .wanted = better };
        TRY(rpl_classify_flag(c, &f, e));
    }
    return ERR_OK;
}

/* ---- KL and tokens ---- */

/* KL(mirror64 || worker, mirror, control) of position i over the recorded logits, added to the key. Of the biased logits,
 * made of the base ones where these are recorded: then one wrong token does not count again at the positions after it. */
static void add_kl(rpl_classify *c, const rpl_entry *n, int32_t i, const float *const made[3])
{
    recorded_row r = logits_row(c, n->b, i);
    bool sum = r.value != NULL;
    if (!sum) r = biased_row(c, n->b, i);
    if (!r.value) return;
    if (sum) make_term(c, n, i);
    float **to = c->gathered;
    for (int64_t k = 0; k < r.n; k++) {
        int32_t id = r.ids ? r.ids[k] : (int32_t)k;
        if (!is_token(c, id)) return; /* own-logit has flagged it, or will not have found it */
        to[0][k] = sum ? biased(c, r.value[k], id) : r.value[k];
        for (int s = 0; s < 3; s++) to[s + 1][k] = made[s] ? made[s][id] : 0;
    }
    rpl_logits_row row;
    rpl_logits_row_of(to[0], to[1], r.n, &row);
    n->key->worker.kl += row.kl;
    rpl_logits_row_of(to[2], to[1], r.n, &row);
    n->key->band += row.kl;
    if (made[2]) {
        rpl_logits_row_of(to[3], to[1], r.n, &row);
        n->key->control.kl += row.kl;
    }
    double mean = 0, square = 0; /* of mirror64's logits: half a bf16 ulp in one element of head.norm moves them so far */
    for (int64_t k = 0; k < r.n; k++) mean += (double)to[1][k] / (double)r.n;
    for (int64_t k = 0; k < r.n; k++) square += ((double)to[1][k] - mean) * ((double)to[1][k] - mean) / (double)r.n;
    n->key->band_floor += 0.5 * square * 0x1p-18 / (double)c->config.dim;
    n->key->n_kl++;
    n->key->kl_top = n->key->kl_top || r.ids;
}

/* Compares a choice with the mirror's; whether a difference is explained is known when all keys are. */
static err_code add_token(rpl_classify *c, const rpl_entry *n, int32_t i, int32_t token, bool control,
                          const float *mirror64, int32_t mirror, double noise, err *e)
{
    rpl_side *s = control ? &n->key->control : &n->key->worker;
    if (token == mirror) {
        s->n_equal++;
        return ERR_OK;
    }
    float best = mirror64[krn_argmax_ref(mirror64, c->config.vocab, 0).id];
    double margin = is_token(c, token) ? (double)best - (double)mirror64[token] : (double)INFINITY;
    rpl_token t = { .round = n->key->round, .slot = n->key->slot, .i = i, .control = control, .token = token,
                    .mirror = mirror, .margin = margin, .noise = noise };
    return rpl_classify_token(c, &t, e);
}

static double largest_distance(const float *a, const float *b, int64_t n)
{
    double largest = 0;
    for (int64_t k = 0; k < n; k++) {
        double d = fabs((double)a[k] - (double)b[k]);
        if (d > largest) largest = d;
    }
    return largest;
}

err_code rpl_classify_logits(rpl_classify *c, const rpl_entry *n, err *e)
{
    const int64_t vocab = c->config.vocab;
    const float *all64 = rpl_rerun_value(c->mirror64, "head.biased"), *all = rpl_rerun_value(c->mirror, "head.biased");
    const float *controls = c->control ? rpl_rerun_value(c->control, "head.biased") : NULL;
    for (int32_t i = 0; i < c->n_out; i++) {
        const float *made[3] = { all64 + i * vocab, all + i * vocab, controls ? controls + i * vocab : NULL };
        double noise = largest_distance(made[1], made[0], vocab);
        int32_t mirror = krn_argmax_ref(made[1], vocab, 0).id;
        if (noise > n->key->noise) n->key->noise = noise;
        add_kl(c, n, i, made);
        TRY(add_token(c, n, i, n->drafts[i], false, made[0], mirror, noise, e));
        if (made[2])
            TRY(add_token(c, n, i, krn_argmax_ref(made[2], vocab, 0).id, true, made[0], mirror, noise, e));
    }
    return ERR_OK;
}
