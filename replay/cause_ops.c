/* Guesses about what one op computes: its position, its groups of 32, its window, the roundings inside it. */
#include "replay/cause_trial.h"

#include "base/mem.h"
#include "capture/joined.h"
#include "kernels/attention.h"
#include "kernels/combine.h"

#include <math.h>

/* ---- positions ---- */

static void add(rpl_view v, int32_t n)
{
    for (int64_t i = 0; i < v.rows * v.cols; i++) ((int32_t *)(void *)v.data)[i] += n;
}

static err_code guess_position(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    if (op->kind != ENG_OP_ROPE && op->kind != ENG_OP_ROPE_INV && op->kind != ENG_OP_BLOCK_IDS) return ERR_OK;
    for (int32_t off = -1; off <= 1; off += 2) {
        add(rpl_view_of(t, op->in[1]), off);
        TRY(rpl_trial_run_op(t, k, ENG_CAUSE_POSITION, e, "%s at position %+d", op->name, off));
    }
    return ERR_OK;
}

/* The token before each position is the one before that. */
static err_code guess_markov(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    const int32_t *forced = eng_bench_forced_drafts(t->v->bench);
    if (op->kind != ENG_OP_MARKOV) return ERR_OK;
    rpl_view drafts = rpl_view_of(t, op->out[1]), anchor = rpl_view_of(t, op->in[1]);
    const size_t n = (size_t)(drafts.rows * drafts.cols);
    int32_t *token = mem_alloc(n + 1, sizeof *token), *keep = mem_alloc(n + 1, sizeof *keep);
    if (!token || !keep) {
        free(token);
        free(keep);
        return err_set(e, ERR_NOMEM, "cause: no memory");
    }
    if (forced) memcpy(keep, forced, n * sizeof *keep);
    const int32_t *from = forced ? keep : (const int32_t *)(const void *)drafts.data;
    for (int64_t b = 0; b < drafts.rows; b++)
        for (int64_t i = 0; i < drafts.cols; i++)
            token[b * drafts.cols + i] = i ? from[b * drafts.cols + i - 1] : ((const int32_t *)(void *)anchor.data)[b];
    eng_bench_force_drafts(t->v->bench, token);
    err_code rc = rpl_trial_run_op(t, k, ENG_CAUSE_POSITION, e, "%s follows the token two positions before", op->name);
    eng_bench_force_drafts(t->v->bench, forced ? keep : NULL);
    free(token);
    free(keep);
    return rc;
}

static err_code guess_confidence(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    const int32_t *forced = eng_bench_forced_drafts(t->v->bench);
    if (op->kind != ENG_OP_CONFIDENCE) return ERR_OK;
    rpl_view x = rpl_view_of(t, op->in[0]), drafts = rpl_view_of(t, op->in[2]);
    const size_t n = (size_t)(drafts.rows * drafts.cols);
    for (int back = 0; back < 2; back++) {
        memmove(x.data + (back ? x.row : 0), x.data + (back ? 0 : x.row), (size_t)(x.rows - 1) * x.row);
        TRY(rpl_trial_run_op(t, k, ENG_CAUSE_POSITION, e, "%s reads the hidden row of position %+d", op->name,
                             back ? -1 : 1));
    }
    int32_t *keep = mem_alloc(n + 1, sizeof *keep), *token = mem_alloc(n + 1, sizeof *token);
    err_code rc = keep && token ? ERR_OK : err_set(e, ERR_NOMEM, "cause: no memory");
    if (rc == ERR_OK) {
        memcpy(keep, forced ? (const void *)forced : drafts.data, n * sizeof *keep);
        for (size_t i = 0; i < n; i++) token[i] = keep[i + 1 < n ? i + 1 : i];
        memcpy(drafts.data, token, n * sizeof *token);
        if (forced) eng_bench_force_drafts(t->v->bench, token);
        rc = rpl_trial_run_op(t, k, ENG_CAUSE_POSITION, e, "%s reads each position's own token", op->name);
        if (forced) eng_bench_force_drafts(t->v->bench, keep);
    }
    free(keep);
    free(token);
    return rc;
}

/* ---- groups of 32 ---- */

typedef enum qdq_guess {
    QDQ_NONE, QDQ_LOW, QDQ_HIGH, QDQ_PAIR, QDQ_LATE, QDQ_NEXT, QDQ_BEFORE, QDQ_FIXED, QDQ_GUESSES
} qdq_guess;

static float largest(const bf16 *x, int64_t n)
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++) amax = fmaxf(amax, fabsf(f32_from_bf16(x[i])));
    return amax;
}

/* A row with its scales made as guessed; shares: how many ranks cut its columns. fixed: no scale below it. */
static void qdq_row(const bf16 *x, bf16 *y, int64_t cols, int64_t shares, qdq_guess how, uint8_t fixed)
{
    const int64_t share = cols / shares;
    for (int64_t c = 0; c < cols; c += FMT_QDQ_GROUP) {
        const bf16 *part = x + c / share * share;
        int64_t in = c % share, from = in, n = FMT_QDQ_GROUP;
        if (how == QDQ_PAIR) {
            from = in / 64 * 64;
            n = from + 64 <= share ? 64 : share - from;
        }
        if (how == QDQ_NEXT) from = (in + FMT_QDQ_GROUP) % share;
        if (how == QDQ_BEFORE) from = (in + share - FMT_QDQ_GROUP) % share;
        float amax = largest(part + from, n);
        uint8_t byte = fmt_qdq_scale(amax);
        if (how == QDQ_LOW && byte > 0) byte--;
        if (how == QDQ_HIGH && byte < 254) byte++;
        if (how == QDQ_FIXED && byte < fixed) byte = fixed;
        float scale = f32_from_e8m0(byte), by = how == QDQ_LATE ? fmaxf(amax, 1e-4f) * (1.0f / 448) : scale;
        for (int64_t i = c; i < c + FMT_QDQ_GROUP; i++)
            y[i] = bf16_from_f32(FMT_E4M3_VALUE[e4m3_from_f32(fminf(fmaxf(f32_from_bf16(x[i]) / by, -448), 448))] * scale);
    }
}

static err_code try_qdq(rpl_trial *t, int32_t k, int64_t shares, qdq_guess how, uint8_t fixed, err *e)
{
    static const struct { eng_cause cause; const char *text; } SAYS[QDQ_GUESSES] = {
        [QDQ_NONE] = { ENG_CAUSE_ROUNDING_MISSING, "not quantised" },
        [QDQ_LOW] = { ENG_CAUSE_SCALE_BYTE, "scales one too small" },
        [QDQ_HIGH] = { ENG_CAUSE_SCALE_BYTE, "scales one too large" },
        [QDQ_PAIR] = { ENG_CAUSE_SCALE_BYTE, "64 elements share a scale" },
        [QDQ_LATE] = { ENG_CAUSE_SCALE_BYTE, "codes made before the scale is a power of two" },
        [QDQ_NEXT] = { ENG_CAUSE_SCALE_ORDER, "each group has the next one's scale" },
        [QDQ_BEFORE] = { ENG_CAUSE_SCALE_ORDER, "each group has the scale of the one before" },
        [QDQ_FIXED] = { ENG_CAUSE_PADDING_LEAK, "scales as if something larger were in the group" },
    };
    const eng_op *op = rpl_trial_op(t, k);
    rpl_view in = rpl_view_of(t, op->in[0]), out = rpl_view_of(t, op->out[0]);
    if (out.cols % (shares * FMT_QDQ_GROUP) != 0) return ERR_OK;
    for (int64_t r = 0; r < out.rows; r++) {
        const bf16 *x = (const bf16 *)(void *)rpl_view_row(&in, r);
        bf16 *y = (bf16 *)(void *)rpl_view_row(&out, r);
        if (how == QDQ_NONE) memcpy(y, x, out.row);
        else qdq_row(x, y, out.cols, shares, how, fixed);
    }
    if (how == QDQ_FIXED)
        return rpl_trial_run(t, k + 1, SAYS[how].cause, e, "%s, %s: 2^%d", t->v->program->value[op->out[0]].name,
                             SAYS[how].text, fixed - FMT_E8M0_BIAS);
    return rpl_trial_run(t, k + 1, SAYS[how].cause, e, "%s, %s", t->v->program->value[op->out[0]].name, SAYS[how].text);
}

static err_code guess_qdq(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    if (op->kind != ENG_OP_ACT_QDQ) return ERR_OK;
    for (int how = 0; how < QDQ_FIXED; how++) {
        TRY(try_qdq(t, k, 1, (qdq_guess)how, 0, e));
        if (t->x->n_ranks > 1 && (how == QDQ_NEXT || how == QDQ_BEFORE || how == QDQ_PAIR))
            TRY(try_qdq(t, k, t->x->n_ranks, (qdq_guess)how, 0, e));
    }
    return ERR_OK;
}

err_code rpl_guess_padding(rpl_trial *t, err *e)
{
    for (int32_t k = t->v->group->n_ops - 1; k >= 0 && !rpl_trial_done(t); k--) {
        const eng_op *op = rpl_trial_op(t, k);
        if (op->kind != ENG_OP_ACT_QDQ) continue;
        rpl_view in = rpl_view_of(t, op->in[0]);
        int top = fmt_qdq_scale(largest((const bf16 *)(void *)in.data, in.rows * in.cols));
        for (int more = 0; more <= 20 && top + more < FMT_E8M0_NAN; more++)
            TRY(try_qdq(t, k, 1, QDQ_FIXED, (uint8_t)(top + more), e));
    }
    return ERR_OK;
}

/* ---- attention ---- */

static int32_t ring_rows(const rpl_trial *t, const eng_op *op, int32_t b)
{
    int32_t last = ((const int32_t *)(void *)rpl_view_of(t, op->in[2]).data)[b], window = t->v->program->config.window;
    return last + 1 < window ? last + 1 : window;
}

/* Entry b on n rows of another ring. */
static void attend(const rpl_trial *t, const eng_op *op, int32_t b, const bf16 *ring, int32_t n)
{
    const eng_config *c = &t->v->program->config;
    const krn_weight *sink = eng_bench_weight(t->v->bench, op->weight[0], op->stage, -1);
    const int64_t q = (int64_t)b * c->block * c->n_heads * c->head_dim;
    krn_attention_ref((const bf16 *)(void *)rpl_view_of(t, op->in[0]).data + q, ring, n,
                      (const bf16 *)(void *)rpl_view_of(t, op->in[1]).data + (int64_t)b * c->block * c->head_dim, c->block,
                      sink->data, (float)pow((double)c->head_dim, -0.5), c->n_heads, c->head_dim,
                      (bf16 *)(void *)rpl_view_of(t, op->out[0]).data + q, KRN_ACC_F64);
}

/* Entry b's slot had another window in the last round before this one that recorded it; false: none. */
static bool window_before(const rpl_trial *t, const eng_op *op, int32_t b, bf16 *ring)
{
    cap_value slots = { 0 }, window = { 0 };
    err ignored = { 0 };
    char name[RPL_NAME_BYTES];
    fmt_tape_record r;
    bool found = false;
    const fmt_tape_key key = { t->v->round, FMT_TAPE_NO_SLOT, 0, "draft.slots" };
    snprintf(name, sizeof name, "s%d.window", op->stage);
    if (cap_joined_get(t->x->tape, &key, &slots, &ignored) == ERR_OK && b < slots.tensor.shape[0])
        for (size_t i = fmt_tape_count(t->x->tape); i-- > 0 && !found;) {
            fmt_tape_at(t->x->tape, i, &r);
            if (r.key.round >= t->v->round || r.key.slot != ((const int32_t *)slots.tensor.data)[b] ||
                strcmp(r.key.name, name) != 0)
                continue;
            const fmt_tape_key at = { r.key.round, r.key.slot, 0, name };
            if (cap_joined_get(t->x->tape, &at, &window, &ignored) != ERR_OK) break;
            memcpy(ring, window.tensor.data, (size_t)fmt_tensor_bytes(&window.tensor));
            found = true;
        }
    cap_value_fini(&slots);
    cap_value_fini(&window);
    return found;
}

err_code rpl_trial_attend_before(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    const eng_config *c = &t->v->program->config;
    bf16 *ring = mem_alloc((size_t)c->window * (size_t)c->head_dim, sizeof *ring);
    if (!ring) return err_set(e, ERR_NOMEM, "cause: no memory");
    for (int32_t b = 0; b < t->batch; b++)
        if (window_before(t, op, b, ring)) attend(t, op, b, ring, ring_rows(t, op, b));
    free(ring);
    return ERR_OK;
}

/* One head of one row, the probabilities as they are and not as bf16. */
static void attend_unrounded(const bf16 *q, const bf16 *const *key, int32_t n, float sink, float scale, int32_t hd,
                             bf16 *out)
{
    double most = sink, sum = 1, o[KRN_ATTENTION_HEAD_DIM_MAX] = { 0 };
    for (int32_t j = 0; j < n; j++) {
        double score = 0;
        for (int32_t d = 0; d < hd; d++) score += (double)f32_from_bf16(q[d]) * f32_from_bf16(key[j][d]);
        score *= scale;
        double by = exp(fmin(most - score, 0)), p = exp(fmin(score - most, 0));
        most = fmax(most, score);
        sum = sum * by + p;
        for (int32_t d = 0; d < hd; d++) o[d] = o[d] * by + p * f32_from_bf16(key[j][d]);
    }
    for (int32_t d = 0; d < hd; d++) out[d] = bf16_from_f32((float)(o[d] / sum));
}

static err_code guess_unrounded(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    const eng_config *c = &t->v->program->config;
    const int32_t hd = c->head_dim, block = c->block;
    const float *sink = eng_bench_weight(t->v->bench, op->weight[0], op->stage, -1)->data;
    const bf16 *q = (const bf16 *)(void *)rpl_view_of(t, op->in[0]).data;
    const bf16 *own = (const bf16 *)(void *)rpl_view_of(t, op->in[1]).data;
    bf16 *out = (bf16 *)(void *)rpl_view_of(t, op->out[0]).data;
    const bf16 **key = mem_alloc((size_t)(c->window + block), sizeof *key);
    if (!key) return err_set(e, ERR_NOMEM, "cause: no memory");
    for (int32_t b = 0; b < t->batch; b++) {
        int32_t n = ring_rows(t, op, b);
        for (int32_t j = 0; j < n + block; j++)
            key[j] = j < n ? eng_bench_ring(t->v->bench, b, op->stage) + (int64_t)j * hd
                           : own + ((int64_t)b * block + j - n) * hd;
        for (int64_t i = (int64_t)b * block * c->n_heads; i < (int64_t)(b + 1) * block * c->n_heads; i++)
            attend_unrounded(q + i * hd, key, n + block, sink[i % c->n_heads], (float)pow(hd, -0.5), hd, out + i * hd);
    }
    free(key);
    return rpl_trial_run(t, k + 1, ENG_CAUSE_ROUNDING_MISSING, e, "%s, probabilities not rounded to bf16", op->name);
}

typedef enum ring_guess { RING_NEWEST, RING_OTHER, RING_BEFORE, RING_PADDED, RING_GUESSES } ring_guess;

static err_code guess_attention(rpl_trial *t, int32_t k, err *e)
{
    static const struct { eng_cause cause; const char *text; } SAYS[RING_GUESSES] = {
        [RING_NEWEST] = { ENG_CAUSE_STALE, "without the window's newest row" },
        [RING_OTHER] = { ENG_CAUSE_SLOT_SWAP, "with the windows of other slots" },
        [RING_BEFORE] = { ENG_CAUSE_STALE, "with the windows of an earlier round" },
        [RING_PADDED] = { ENG_CAUSE_PADDING_LEAK, "with rows of zeros as keys" },
    };
    const eng_op *op = rpl_trial_op(t, k);
    const eng_config *c = &t->v->program->config;
    const int64_t hd = c->head_dim;
    if (op->kind != ENG_OP_ATTENTION) return ERR_OK;
    bf16 *ring = mem_alloc((size_t)((c->window + 2 * KRN_ATTENTION_KEYS) * hd), sizeof *ring);
    if (!ring) return err_set(e, ERR_NOMEM, "cause: no memory");
    err_code rc = ERR_OK;
    for (int how = 0; how < RING_GUESSES && rc == ERR_OK; how++) {
        bool any = false;
        for (int32_t b = 0; b < t->batch; b++) {
            int32_t n = ring_rows(t, op, b), last = ((const int32_t *)(void *)rpl_view_of(t, op->in[2]).data)[b];
            int32_t other = how == RING_OTHER ? (b + 1) % t->batch : b;
            memset(ring, 0, (size_t)((c->window + 2 * KRN_ATTENTION_KEYS) * hd) * sizeof *ring);
            memcpy(ring, eng_bench_ring(t->v->bench, other, op->stage), (size_t)(c->window * hd) * sizeof *ring);
            if (how == RING_OTHER && other == b) continue;
            if (how == RING_NEWEST) {
                int64_t out = last % c->window;
                memmove(ring + out * hd, ring + (out + 1) * hd, (size_t)((n - 1 - out) * hd) * sizeof *ring);
                n--;
            } else if (how == RING_BEFORE) {
                memset(ring, 0, (size_t)(c->window * hd) * sizeof *ring);
                if (!window_before(t, op, b, ring)) continue;
            } else if (how == RING_PADDED) {
                int32_t keys = n + c->block;
                memset(ring + n * hd, 0, (size_t)((c->window - n) * hd) * sizeof *ring);
                n += (keys / KRN_ATTENTION_KEYS + 1) * KRN_ATTENTION_KEYS - keys;
            }
            attend(t, op, b, ring, n);
            any = true;
        }
        if (any) rc = rpl_trial_run(t, k + 1, SAYS[how].cause, e, "%s %s", op->name, SAYS[how].text);
    }
    free(ring);
    return rc;
}

/* ---- combine ---- */

static err_code guess_combine(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    if (op->kind != ENG_OP_COMBINE_EXACT && op->kind != ENG_OP_COMBINE_FUSED) return ERR_OK;
    rpl_view ids = rpl_view_of(t, op->in[1]), y = rpl_view_of(t, op->out[0]);
    int32_t *id = (int32_t *)(void *)ids.data;
    for (int64_t i = 0; i < ids.rows * ids.cols; i++) id[i] = -id[i];
    TRY(rpl_trial_run_op(t, k, ENG_CAUSE_ORDER, e, "%s adds experts in descending order", op->name));
    if (op->kind != ENG_OP_COMBINE_EXACT) return ERR_OK;
    float *wide = mem_alloc((size_t)(y.rows * y.cols) + 1, sizeof *wide);
    if (!wide) return err_set(e, ERR_NOMEM, "cause: no memory");
    krn_combine_fused_ref((const float *)(void *)rpl_view_of(t, op->in[0]).data, id,
                          (const float *)(void *)rpl_view_of(t, op->in[2]).data, wide, (int32_t)y.rows, (int32_t)ids.cols,
                          (int32_t)y.cols);
    krn_round_bf16_ref(wide, (bf16 *)(void *)y.data, y.rows * y.cols);
    free(wide);
    return rpl_trial_run(t, k + 1, ENG_CAUSE_ROUNDING_MISSING, e, "%s adds what is not rounded to bf16", op->name);
}

err_code rpl_guess_ops(rpl_trial *t, err *e)
{
    for (int32_t k = t->v->group->n_ops - 1; k >= 0 && !rpl_trial_done(t); k--) {
        TRY(guess_position(t, k, e));
        TRY(guess_markov(t, k, e));
        TRY(guess_confidence(t, k, e));
        TRY(guess_qdq(t, k, e));
        TRY(guess_attention(t, k, e));
        if (rpl_trial_op(t, k)->kind == ENG_OP_ATTENTION) TRY(guess_unrounded(t, k, e));
        TRY(guess_combine(t, k, e));
    }
    return ERR_OK;
}
