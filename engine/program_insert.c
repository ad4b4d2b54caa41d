/* The insert step: P accepted positions of one slot become rows of every stage's window.
 *
 *   taps -> main_proj -> main_norm -> main_x -> per stage: wkv, kv_norm, RoPE, QDQ -> main_kv -> ring row p mod W */
#include "engine/program_build.h"

void eng_build_insert(eng_builder *b)
{
    const eng_form wide = ENG_FORM(BF16, 2, ENG_DIM_ROWS, ENG_DIM_TAPS), row = ENG_FORM(BF16, 2, ENG_DIM_ROWS, ENG_DIM_DIM);
    int32_t taps = eng_build_value(b, "taps", wide, ENG_LEVEL_IO);
    int32_t pos = eng_build_value(b, "pos", ENG_FORM(I32, 1, ENG_DIM_ROWS), ENG_LEVEL_IO);

    int32_t taps_q = eng_build_operand(b, taps, "taps.qdq~", ENG_W_MAIN_PROJ);
    int32_t projected = eng_build_value(b, "main_proj~", row, ENG_LEVEL_HIDDEN);
    int32_t main_x = eng_build_value(b, "main_x", row, ENG_LEVEL_V1);
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(taps_q), ENG_REFS(projected), ENG_REFS(ENG_W_MAIN_PROJ));
    eng_build_op(b, ENG_OP_RMSNORM, ENG_REFS(projected), ENG_REFS(main_x), ENG_REFS(ENG_W_MAIN_NORM));
    int32_t main_q = eng_build_operand(b, main_x, "main_x.qdq~", ENG_W_WKV); /* one QDQ serves every stage */

    for (b->stage = 0; b->stage < b->p->config.n_stages; b->stage++) {
        int32_t kv = eng_build_value(b, "main_kv", ENG_FORM(BF16, 2, ENG_DIM_ROWS, ENG_DIM_HD), ENG_LEVEL_V1);
        eng_build_latent(b, main_q, pos, kv);
        int32_t window = eng_build_value(b, "window", ENG_FORM(BF16, 2, ENG_DIM_W, ENG_DIM_HD), ENG_LEVEL_V1);
        if (!b->no_memory) b->p->value[window].state = true;
        eng_build_op(b, ENG_OP_RING_WRITE, ENG_REFS(kv, pos), ENG_REFS(window), ENG_NONE);
    }
}
