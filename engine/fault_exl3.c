/* Kinds of fault in how an EXL3 weight is read. */
#include "engine/fault_run.h"

#include "base/mem.h"
#include "engine/misread.h"

/* The products of the op's first weight again, with the weight as it is read. */
static err_code misread(eng_fault_run *f, eng_step *s, const eng_op *op, eng_misread m, int64_t which)
{
    const krn_weight *w = eng_fault_weight(f, s, op);
    const krn_weight wrong = eng_misread_make(m, w, which, f->data);
    const krn_out kind = s->program->value[op->out[0]].dtype == FMT_DTYPE_F32 ? KRN_OUT_F32 : KRN_OUT_BF16;
    const int32_t rows = (int32_t)s->x.n[ENG_DIM_ROWS], k = s->program->config.n_active;
    const int32_t expert = eng_fault_expert(f, s, op);
    const bf16 *x = s->value[op->in[0]];
    uint8_t *y = s->value[op->out[0]];
    if (expert < 0) {
        krn_linear_ref(x, w->k, rows, &wrong, eng_step_acc(s, op), kind, y, w->n);
        return ERR_OK;
    }
    const int32_t *ids = s->value[op->in[1]];
    for (int32_t i = 0; i < rows * k; i++)
        if (ids[i] == expert)
            krn_linear_ref(x + (int64_t)(op->kind == ENG_OP_EXPERTS_DOWN ? i : i / k) * w->k, w->k, 1, &wrong,
                           eng_step_acc(s, op), kind, y + (int64_t)i * w->n * (kind == KRN_OUT_F32 ? 4 : 2), w->n);
    return ERR_OK;
}

static err_code flipped_bit(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return misread(f, s, op, ENG_MISREAD_BIT, eng_fault_pick(f, op, eng_misread_bits(eng_fault_weight(f, s, op))));
}
static err_code codebook(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return misread(f, s, op, ENG_MISREAD_CODEBOOK, eng_fault_pick(f, op, 2));
}

/* A rank's slice, of those that begin after the first block. */
static err_code slice(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const eng_range cut = eng_cut_range(&s->program->config, op->weight[0], s->rank, s->n_ranks);
    (void)e;
    if (cut.first < FMT_EXL3_BLOCK) return ERR_OK;
    return misread(f, s, op, ENG_MISREAD_BLOCK, eng_wkind_of(op->weight[0])->cut == ENG_CUT_COLS);
}

#define MISREAD(name, what)                                                                    \
    static err_code name(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)              \
    {                                                                                          \
        (void)e;                                                                               \
        return misread(f, s, op, ENG_MISREAD_##what, 0);                                       \
    }
MISREAD(suh_missing, SUH_MISSING)
MISREAD(suh_sign, SUH_SIGN)
MISREAD(svh_next, SVH_NEXT)
MISREAD(words, WORDS)
MISREAD(strips, STRIPS)
MISREAD(by_rows, ROWS)
MISREAD(hadamard_in, HADAMARD_IN)
MISREAD(hadamard_out, HADAMARD_OUT)
#undef MISREAD

/* ---- the table ---- */

#define PRODUCTS (ENG_FAULT_OP(LINEAR) | ENG_FAULT_OP(EXPERTS_UP) | ENG_FAULT_OP(EXPERTS_DOWN))
#define EXL3(name, summary, needs, cause, plant) \
    { name, summary, PRODUCTS, ENG_NEED_EXL3 | (needs), ENG_CAUSE_##cause, true, plant }

static const eng_fault_kind KINDS[] = {
    EXL3("exl3-bit", "one bit of an EXL3 tile is flipped: up to 16 / K weights are others", 0, FUNCTION, flipped_bit),
    EXL3("exl3-codebook", "EXL3 states are decoded with another codebook", 0, MISREAD, codebook),
    EXL3("exl3-suh-missing", "suh is not applied", 0, MISREAD, suh_missing),
    EXL3("exl3-suh-sign", "suh is applied without its signs", 0, MISREAD, suh_sign),
    EXL3("exl3-svh-shift", "every block of 128 outputs has the svh of the next one", ENG_NEED_TWO_BLOCKS, MISREAD,
         svh_next),
    EXL3("exl3-word-order", "the two 16-bit words of every pair of a tile change places", 0, MISREAD, words),
    EXL3("exl3-tile-rows", "the weights of a tile are taken as 16 rows of 16", 0, MISREAD, by_rows),
    EXL3("exl3-tile-swap", "tiles of two neighbouring rows of tiles change places", 0, MISREAD, strips),
    EXL3("exl3-no-hadamard-in", "the inputs are not transformed", 0, MISREAD, hadamard_in),
    EXL3("exl3-no-hadamard-out", "the outputs are not transformed", 0, MISREAD, hadamard_out),
    EXL3("exl3-slice", "a rank's slice begins one block too early", ENG_ONE_RANK | ENG_NEED_LATE_SLICE, MISREAD, slice),
};

const eng_fault_table ENG_FAULTS_EXL3 = { KINDS, COUNT_OF(KINDS) };
