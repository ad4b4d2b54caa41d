/* The draft step: one block [anchor, noise ...] per slot through all stages, head and Markov loop.
 *
 * This is the one definition of the model. It reads top to bottom as docs/model.md does; names are those of
 * docs/values.md. */
#include "engine/program_build.h"

typedef struct eng_mix { int32_t pre, post, comb; } eng_mix; /* mHC coefficients of one sub-block */

static const eng_form STREAM = { FMT_DTYPE_BF16, 3, { ENG_DIM_ROWS, ENG_DIM_HC, ENG_DIM_DIM } };
static const eng_form ROW = { FMT_DTYPE_BF16, 2, { ENG_DIM_ROWS, ENG_DIM_DIM } };
static const eng_form SUM = { FMT_DTYPE_F32, 2, { ENG_DIM_ROWS, ENG_DIM_DIM } };
static const eng_form HEADS = { FMT_DTYPE_BF16, 3, { ENG_DIM_ROWS, ENG_DIM_H, ENG_DIM_HD } };
static const eng_form GROUPS = { FMT_DTYPE_BF16, 2, { ENG_DIM_ROWS, ENG_DIM_GO } };
static const eng_form EXPERT_ROWS = { FMT_DTYPE_BF16, 3, { ENG_DIM_ROWS, ENG_DIM_K, ENG_DIM_I } };
static const eng_form INTER = { FMT_DTYPE_BF16, 2, { ENG_DIM_ROWS, ENG_DIM_I } };

static int32_t hidden(eng_builder *b, const char *name, eng_form form)
{
    return eng_build_value(b, name, form, ENG_LEVEL_HIDDEN);
}

/* The 24 mixes of the stream x: `post` and `comb` serve this sub-block's expand, `pre` the next collapse. */
static eng_mix mixes(eng_builder *b, int32_t x, const char *const name[4], eng_wid fn, eng_wid base, eng_wid scale)
{
    int32_t dots = hidden(b, name[0], ENG_FORM(F32, 2, ENG_DIM_ROWS, ENG_DIM_MIX));
    eng_mix m = {
        .pre = eng_build_value(b, name[1], ENG_FORM(F32, 2, ENG_DIM_ROWS, ENG_DIM_HC), ENG_LEVEL_DEEP),
        .post = eng_build_value(b, name[2], ENG_FORM(F32, 2, ENG_DIM_ROWS, ENG_DIM_HC), ENG_LEVEL_DEEP),
        .comb = eng_build_value(b, name[3], ENG_FORM(F32, 3, ENG_DIM_ROWS, ENG_DIM_HC, ENG_DIM_HC), ENG_LEVEL_DEEP),
    };
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(x), ENG_REFS(dots), ENG_REFS(fn));
    eng_build_op(b, ENG_OP_MIXES, ENG_REFS(x, dots), ENG_REFS(m.pre, m.post, m.comb), ENG_REFS(base, scale));
    return m;
}

static const char *const ATTN_MIX[4] = { "attn.mix_dots~", "attn.mix_pre", "attn.mix_post", "attn.mix_comb" };
static const char *const FFN_MIX[4] = { "ffn.mix_dots~", "ffn.mix_pre", "ffn.mix_post", "ffn.mix_comb" };

/* Attention sub-block on the normed input; returns attn_out. */
static int32_t attention(eng_builder *b, int32_t norm, int32_t pos, int32_t last_pos)
{
    const eng_form q_form = ENG_FORM(BF16, 2, ENG_DIM_ROWS, ENG_DIM_Q);
    int32_t x_q = eng_build_operand(b, norm, "attn.norm.qdq~", ENG_W_WQ_A); /* one QDQ serves wq_a and wkv */

    int32_t wq_a = hidden(b, "attn.wq_a~", q_form);
    int32_t qr = eng_build_value(b, "attn.qr", q_form, ENG_LEVEL_DEEP);
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(x_q), ENG_REFS(wq_a), ENG_REFS(ENG_W_WQ_A));
    eng_build_op(b, ENG_OP_RMSNORM, ENG_REFS(wq_a), ENG_REFS(qr), ENG_REFS(ENG_W_Q_NORM));
    int32_t qr_q = eng_build_operand(b, qr, "attn.qr.qdq~", ENG_W_WQ_B);
    int32_t wq_b = eng_build_sharded(b, "attn.wq_b~", HEADS, 1, ENG_LEVEL_HIDDEN);
    int32_t q = eng_build_sharded(b, "attn.q", HEADS, 1, ENG_LEVEL_DEEP);
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(qr_q), ENG_REFS(wq_b), ENG_REFS(ENG_W_WQ_B));
    eng_build_op(b, ENG_OP_ROPE, ENG_REFS(wq_b, pos), ENG_REFS(q), ENG_NONE);

    int32_t kv = eng_build_value(b, "attn.kv", ENG_FORM(BF16, 2, ENG_DIM_ROWS, ENG_DIM_HD), ENG_LEVEL_DEEP);
    eng_build_latent(b, x_q, pos, kv);

    int32_t window = eng_build_value(b, "window", ENG_FORM(BF16, 3, ENG_DIM_B, ENG_DIM_W, ENG_DIM_HD), ENG_LEVEL_V1);
    if (!b->no_memory) b->p->value[window].state = true;
    int32_t attended = eng_build_sharded(b, "attn.attend~", HEADS, 1, ENG_LEVEL_HIDDEN);
    int32_t o = eng_build_sharded(b, "attn.o", HEADS, 1, ENG_LEVEL_DEEP);
    int32_t o_qdq = eng_build_sharded(b, "attn.o_qdq", HEADS, 1, ENG_LEVEL_DEEP);
    eng_build_op(b, ENG_OP_ATTENTION, ENG_REFS(q, kv, last_pos, window), ENG_REFS(attended), ENG_REFS(ENG_W_SINK));
    eng_build_op(b, ENG_OP_ROPE_INV, ENG_REFS(attended, pos), ENG_REFS(o), ENG_NONE);
    eng_build_op(b, ENG_OP_ACT_QDQ, ENG_REFS(o), ENG_REFS(o_qdq), ENG_NONE);

    int32_t wo_a = eng_build_sharded(b, "attn.wo_a", GROUPS, 1, ENG_LEVEL_DEEP);
    eng_build_op(b, ENG_OP_WO_A, ENG_REFS(o_qdq), ENG_REFS(wo_a), ENG_REFS(ENG_W_WO_A));
    int32_t wo_a_q = eng_build_operand(b, wo_a, "attn.wo_a.qdq~", ENG_W_WO_B);
    int32_t wo_b = eng_build_partial(b, "attn.wo_b~", SUM, ENG_LEVEL_HIDDEN);
    int32_t out = eng_build_value(b, "attn_out", ROW, ENG_LEVEL_V1);
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(wo_a_q), ENG_REFS(wo_b), ENG_REFS(ENG_W_WO_B));
    eng_build_op(b, ENG_OP_ROUND, ENG_REFS(eng_build_all_reduce(b, wo_b, "attn.wo_b_sum~")), ENG_REFS(out), ENG_NONE);
    return out;
}

/* Shared expert up to its w2 sum. x_q is the operand of its w1 and w3. */
static int32_t shared_expert(eng_builder *b, int32_t x_q)
{
    int32_t gate = eng_build_sharded(b, "ffn.shared_gate~", INTER, 1, ENG_LEVEL_HIDDEN);
    int32_t up = eng_build_sharded(b, "ffn.shared_up~", INTER, 1, ENG_LEVEL_HIDDEN);
    int32_t h = eng_build_sharded(b, "ffn.shared_h~", INTER, 1, ENG_LEVEL_HIDDEN);
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(x_q), ENG_REFS(gate), ENG_REFS(ENG_W_SHARED_W1));
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(x_q), ENG_REFS(up), ENG_REFS(ENG_W_SHARED_W3));
    eng_build_op(b, ENG_OP_SWIGLU, ENG_REFS(gate, up), ENG_REFS(h), ENG_NONE);
    int32_t h_q = eng_build_operand(b, h, "ffn.shared_h.qdq~", ENG_W_SHARED_W2);
    int32_t out = eng_build_partial(b, "ffn.shared", SUM, ENG_LEVEL_DEEP);
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(h_q), ENG_REFS(out), ENG_REFS(ENG_W_SHARED_W2));
    return out;
}

/* Mixture of experts on the normed input; returns ffn_out. */
static int32_t moe(eng_builder *b, int32_t norm)
{
    const eng_form scores_form = ENG_FORM(F32, 2, ENG_DIM_ROWS, ENG_DIM_E);
    int32_t logits = hidden(b, "ffn.gate_logits~", scores_form);
    int32_t scores = eng_build_value(b, "ffn.scores", scores_form, ENG_LEVEL_V1);
    int32_t ids = eng_build_value(b, "ffn.ids", ENG_FORM(I32, 2, ENG_DIM_ROWS, ENG_DIM_K), ENG_LEVEL_V1);
    int32_t weights = eng_build_value(b, "ffn.weights", ENG_FORM(F32, 2, ENG_DIM_ROWS, ENG_DIM_K), ENG_LEVEL_V1);
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(norm), ENG_REFS(logits), ENG_REFS(ENG_W_GATE));
    eng_build_op(b, ENG_OP_GATE_SCORES, ENG_REFS(logits), ENG_REFS(scores), ENG_NONE);
    eng_build_op(b, ENG_OP_TOPK, ENG_REFS(scores), ENG_REFS(ids, weights), ENG_REFS(ENG_W_GATE_BIAS));

    const bool experts_exl3 = eng_reps_exl3(&b->p->reps, ENG_W_EXPERT_W1);
    const bool shared_exl3 = eng_reps_exl3(&b->p->reps, ENG_W_SHARED_W1);
    /* One QDQ serves all experts and the shared one, or those of them that are not EXL3. */
    int32_t x_q = eng_build_operand(b, norm, "ffn.norm.qdq~", experts_exl3 ? ENG_W_SHARED_W1 : ENG_W_EXPERT_W1);
    int32_t gate = eng_build_sharded(b, "ffn.gate", EXPERT_ROWS, 2, ENG_LEVEL_DEEP);
    int32_t up = eng_build_sharded(b, "ffn.up", EXPERT_ROWS, 2, ENG_LEVEL_DEEP);
    int32_t h = eng_build_sharded(b, "ffn.h", EXPERT_ROWS, 2, ENG_LEVEL_DEEP);
    eng_build_op(b, ENG_OP_EXPERTS_UP, ENG_REFS(experts_exl3 ? norm : x_q, ids), ENG_REFS(gate, up),
                 ENG_REFS(ENG_W_EXPERT_W1, ENG_W_EXPERT_W3));
    eng_build_op(b, ENG_OP_SWIGLU, ENG_REFS(gate, up, weights), ENG_REFS(h), ENG_NONE);
    int32_t h_q = eng_build_operand(b, h, "ffn.h.qdq~", ENG_W_EXPERT_W2);
    int32_t slot = eng_build_partial(b, "ffn.slot", ENG_FORM(F32, 3, ENG_DIM_ROWS, ENG_DIM_K, ENG_DIM_DIM), ENG_LEVEL_DEEP);
    eng_build_op(b, ENG_OP_EXPERTS_DOWN, ENG_REFS(h_q, ids), ENG_REFS(slot), ENG_REFS(ENG_W_EXPERT_W2));
    int32_t shared = shared_expert(b, shared_exl3 ? norm : x_q);

    int32_t out = eng_build_value(b, "ffn_out", ROW, ENG_LEVEL_V1);
    if (b->p->combine == ENG_COMBINE_EXACT) { /* reduce every partial, then round each and add by ascending id */
        int32_t slot_sum = eng_build_all_reduce(b, slot, "ffn.slot_sum~");
        int32_t shared_sum = eng_build_all_reduce(b, shared, "ffn.shared_sum~");
        eng_build_op(b, ENG_OP_COMBINE_EXACT, ENG_REFS(slot_sum, ids, shared_sum), ENG_REFS(out), ENG_NONE);
    } else { /* sum on the rank in f32, reduce once, round once */
        int32_t sum = eng_build_partial(b, "ffn.sum~", SUM, ENG_LEVEL_HIDDEN);
        eng_build_op(b, ENG_OP_COMBINE_FUSED, ENG_REFS(slot, ids, shared), ENG_REFS(sum), ENG_NONE);
        eng_build_op(b, ENG_OP_ROUND, ENG_REFS(eng_build_all_reduce(b, sum, "ffn.sum_all~")), ENG_REFS(out), ENG_NONE);
    }
    return out;
}

/* Collapses the stream with the pre-mix handed in, norms it, and leaves both values. */
static int32_t collapse_norm(eng_builder *b, int32_t x, int32_t pre, const char *collapse_name, const char *norm_name,
                             eng_wid norm_weight, eng_level level, int32_t *collapsed)
{
    *collapsed = eng_build_value(b, collapse_name, ROW, level);
    int32_t norm = eng_build_value(b, norm_name, ROW, level);
    eng_build_op(b, ENG_OP_COLLAPSE, ENG_REFS(x, pre), ENG_REFS(*collapsed), ENG_NONE);
    eng_build_op(b, ENG_OP_RMSNORM, ENG_REFS(*collapsed), ENG_REFS(norm), ENG_REFS(norm_weight));
    return norm;
}

void eng_build_draft(eng_builder *b)
{
    const eng_form per_slot = ENG_FORM(I32, 1, ENG_DIM_B), per_row = ENG_FORM(I32, 1, ENG_DIM_ROWS);
    int32_t anchor = eng_build_value(b, "draft.anchor", per_slot, ENG_LEVEL_IO);
    int32_t last_pos = eng_build_value(b, "draft.pos", per_slot, ENG_LEVEL_IO);
    int32_t ids = eng_build_value(b, "ids", per_row, ENG_LEVEL_V1);
    int32_t pos = eng_build_value(b, "block_pos", per_row, ENG_LEVEL_V1);
    int32_t x = eng_build_value(b, "x0", STREAM, ENG_LEVEL_DEEP);
    int32_t pre = hidden(b, "pre0~", ENG_FORM(F32, 2, ENG_DIM_ROWS, ENG_DIM_HC));
    eng_build_op(b, ENG_OP_BLOCK_IDS, ENG_REFS(anchor, last_pos), ENG_REFS(ids, pos), ENG_NONE);
    eng_build_op(b, ENG_OP_EMBED, ENG_REFS(ids), ENG_REFS(x), ENG_REFS(ENG_W_EMBED));
    eng_build_op(b, ENG_OP_FIRST_PRE, ENG_NONE, ENG_REFS(pre), ENG_NONE);

    int32_t collapsed;
    for (b->stage = 0; b->stage < b->p->config.n_stages; b->stage++) {
        eng_mix attn = mixes(b, x, ATTN_MIX, ENG_W_HC_ATTN_FN, ENG_W_HC_ATTN_BASE, ENG_W_HC_ATTN_SCALE);
        int32_t norm = collapse_norm(b, x, pre, "attn.collapse", "attn.norm", ENG_W_ATTN_NORM, ENG_LEVEL_DEEP, &collapsed);
        int32_t attn_out = attention(b, norm, pos, last_pos);
        int32_t stream = eng_build_value(b, "attn.stream", STREAM, ENG_LEVEL_DEEP);
        eng_build_op(b, ENG_OP_EXPAND, ENG_REFS(attn_out, x, attn.post, attn.comb), ENG_REFS(stream), ENG_NONE);

        eng_mix ffn = mixes(b, stream, FFN_MIX, ENG_W_HC_FFN_FN, ENG_W_HC_FFN_BASE, ENG_W_HC_FFN_SCALE);
        norm = collapse_norm(b, stream, attn.pre, "ffn.collapse", "ffn.norm", ENG_W_FFN_NORM, ENG_LEVEL_DEEP, &collapsed);
        int32_t ffn_out = moe(b, norm);
        x = eng_build_value(b, "out", STREAM, ENG_LEVEL_V1);
        eng_build_op(b, ENG_OP_EXPAND, ENG_REFS(ffn_out, stream, ffn.post, ffn.comb), ENG_REFS(x), ENG_NONE);
        pre = ffn.pre;
    }
    b->stage = ENG_NO_STAGE;

    int32_t norm = collapse_norm(b, x, pre, "head.collapse", "head.norm", ENG_W_FINAL_NORM, ENG_LEVEL_V1, &collapsed);
    int32_t logits = eng_build_sharded(b, "head.logits", ENG_FORM(F32, 2, ENG_DIM_ROWS, ENG_DIM_V), 1, ENG_LEVEL_V1);
    int32_t biased = eng_build_sharded(b, "head.biased", ENG_FORM(F32, 3, ENG_DIM_B, ENG_DIM_N_OUT, ENG_DIM_V), 2,
                                       ENG_LEVEL_V1);
    int32_t drafts = eng_build_value(b, "drafts", ENG_FORM(I32, 2, ENG_DIM_B, ENG_DIM_N_OUT), ENG_LEVEL_IO);
    int32_t confidence = eng_build_value(b, "confidence", ENG_FORM(F32, 2, ENG_DIM_B, ENG_DIM_N_OUT), ENG_LEVEL_IO);
    if (b->p->reps.markov == ENG_MARKOV_CACHE) { /* the control's policy: base logits that are bf16 numbers */
        int32_t sum = eng_build_sharded(b, "head.logits_sum~", ENG_FORM(F32, 2, ENG_DIM_ROWS, ENG_DIM_V), 1,
                                        ENG_LEVEL_HIDDEN);
        eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(norm), ENG_REFS(sum), ENG_REFS(ENG_W_HEAD));
        eng_build_op(b, ENG_OP_ROUND, ENG_REFS(sum), ENG_REFS(logits), ENG_NONE);
    } else {
        eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(norm), ENG_REFS(logits), ENG_REFS(ENG_W_HEAD));
    }
    eng_build_op(b, ENG_OP_MARKOV, ENG_REFS(logits, anchor), ENG_REFS(biased, drafts),
                 ENG_REFS(ENG_W_MARKOV_EMBED, ENG_W_MARKOV_HEAD));
    eng_build_op(b, ENG_OP_CONFIDENCE, ENG_REFS(collapsed, anchor, drafts), ENG_REFS(confidence),
                 ENG_REFS(ENG_W_MARKOV_EMBED, ENG_W_CONFIDENCE));
    if (!b->no_memory) b->p->value[logits].top_only = b->p->value[biased].top_only = true;
}
