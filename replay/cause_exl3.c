/* Guesses about how an EXL3 weight was read (engine/misread.h): each makes the op's products again with the weight as it is
 * read with that mistake, rank by rank, as the ranks hold it. */
#include "replay/cause_trial.h"

#include "base/mem.h"
#include "engine/misread.h"
#include "kernels/combine.h"

/* The slices of a weight, one a rank, and what stands in their place. */
typedef struct slices {
    krn_weight whole, slice[ENG_RANKS_MAX], held[ENG_RANKS_MAX];
    eng_range cut[ENG_RANKS_MAX];
    uint8_t *memory; /* [n][bytes] */
    float *part;     /* [rows, outputs] of one rank */
    size_t bytes;
    int32_t n;
    bool along_k;
} slices;

static bool open_slices(slices *w, const rpl_trial *t, const eng_op *op, int32_t expert, int64_t rows)
{
    const eng_config *c = &t->v->program->config;
    const eng_cut cut = eng_wkind_of(op->weight[0])->cut;
    *w = (slices){ .whole = *eng_bench_weight(t->v->bench, op->weight[0], op->stage, expert),
                   .n = cut == ENG_CUT_NONE ? 1 : t->x->n_ranks, .along_k = cut == ENG_CUT_COLS };
    for (int32_t r = 0; r < w->n; r++) {
        const eng_range all_n = { 0, w->whole.n }, all_k = { 0, w->whole.k };
        w->cut[r] = w->n == 1 ? (w->along_k ? all_k : all_n) : eng_cut_range(c, op->weight[0], r, w->n);
        const eng_range n = w->along_k ? all_n : w->cut[r], k = w->along_k ? w->cut[r] : all_k;
        w->slice[r] = krn_weight_slice(&w->whole, n.first, n.count, k.first, k.count);
        const size_t bytes = (eng_misread_bytes(&w->slice[r]) + 63) / 64 * 64;
        if (bytes > w->bytes) w->bytes = bytes;
    }
    w->memory = mem_alloc_aligned(w->bytes, (size_t)w->n);
    w->part = mem_alloc((size_t)(rows * w->whole.n) + 1, sizeof *w->part);
    return w->memory && w->part;
}

static void close_slices(slices *w)
{
    free(w->memory);
    free(w->part);
}

/* y [rows, ldy] from x [rows, K of the whole]. */
static void products(const slices *w, const bf16 *x, int32_t rows, krn_out out, uint8_t *y, int64_t ldy)
{
    const int64_t elem = out == KRN_OUT_F32 ? 4 : 2;
    for (int32_t r = 0; r < w->n; r++) {
        const krn_weight *held = &w->held[r];
        if (!w->along_k)
            krn_linear_ref(x, w->whole.k, rows, held, KRN_ACC_BLOCKED, out, y + w->cut[r].first * elem, ldy);
        else if (r == 0)
            krn_linear_ref(x + w->cut[r].first, w->whole.k, rows, held, KRN_ACC_BLOCKED, out, y, ldy);
        else { /* partial sums are f32 */
            krn_linear_ref(x + w->cut[r].first, w->whole.k, rows, held, KRN_ACC_BLOCKED, KRN_OUT_F32, w->part, w->whole.n);
            for (int32_t i = 0; i < rows; i++) {
                float *row = (float *)(void *)y + i * ldy;
                krn_add_f32_ref(row, w->part + (int64_t)i * w->whole.n, row, w->whole.n);
            }
        }
    }
}

/* Op k's first output in the bench, of the whole op or of one expert's picks. */
static void make_output(const rpl_trial *t, const eng_op *op, const slices *w, int32_t expert)
{
    const rpl_view x = rpl_view_of(t, op->in[0]), y = rpl_view_of(t, op->out[0]);
    const krn_out out = y.dtype == FMT_DTYPE_F32 ? KRN_OUT_F32 : KRN_OUT_BF16;
    if (expert < 0) {
        products(w, (const bf16 *)(void *)x.data, (int32_t)y.rows, out, y.data, y.cols);
        return;
    }
    const rpl_view ids = rpl_view_of(t, op->in[1]);
    for (int64_t i = 0; i < ids.rows * ids.cols; i++)
        if (((const int32_t *)(void *)ids.data)[i] == expert)
            products(w, (const bf16 *)(void *)x.data + (op->kind == ENG_OP_EXPERTS_DOWN ? i : i / ids.cols) * w->whole.k, 1,
                     out, y.data + (size_t)(i * w->whole.n) * y.elem, w->whole.n);
}

/* only: the rank that makes the mistake; -1: all. */
static err_code try_one(rpl_trial *t, int32_t k, slices *w, int32_t expert, eng_misread m, int64_t which, int32_t only,
                        err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    char of[24] = "", rank[24] = "", more[16] = "";
    for (int32_t r = 0; r < w->n; r++) {
        const bool wrong = (only < 0 || only == r) && (m != ENG_MISREAD_BLOCK || w->cut[r].first >= FMT_EXL3_BLOCK);
        w->held[r] = wrong ? eng_misread_make(m, &w->slice[r], which, w->memory + (size_t)r * w->bytes) : w->slice[r];
    }
    make_output(t, op, w, expert);
    if (expert >= 0) snprintf(of, sizeof of, " of expert %d", expert);
    if (only >= 0) snprintf(rank, sizeof rank, " on rank %d", only);
    if (m == ENG_MISREAD_CODEBOOK)
        snprintf(more, sizeof more, ", %s",
                 fmt_exl3_codebook_name((fmt_exl3_codebook)w->held[only < 0 ? 0 : only].exl3.codebook));
    return rpl_trial_run(t, k + 1, ENG_CAUSE_MISREAD, e, "%s%s%s, %s%s", op->name, of, rank, eng_misread_text(m), more);
}

static err_code try_all(rpl_trial *t, int32_t k, slices *w, int32_t expert, err *e)
{
    static const struct { eng_misread m; int64_t which; } HOW[] = {
        { ENG_MISREAD_CODEBOOK, 0 }, { ENG_MISREAD_CODEBOOK, 1 }, { ENG_MISREAD_SUH_MISSING, 0 },
        { ENG_MISREAD_SUH_SIGN, 0 }, { ENG_MISREAD_SVH_NEXT, 0 }, { ENG_MISREAD_WORDS, 0 }, { ENG_MISREAD_STRIPS, 0 },
        { ENG_MISREAD_ROWS, 0 },
        { ENG_MISREAD_HADAMARD_IN, 0 }, { ENG_MISREAD_HADAMARD_OUT, 0 },
    };
    for (int32_t only = -1; only < (w->n > 1 ? w->n : 0); only++) {
        for (size_t i = 0; i < COUNT_OF(HOW) && !rpl_trial_done(t); i++)
            TRY(try_one(t, k, w, expert, HOW[i].m, HOW[i].which, only, e));
        if (w->n > 1 && !rpl_trial_done(t)) TRY(try_one(t, k, w, expert, ENG_MISREAD_BLOCK, w->along_k, only, e));
    }
    return ERR_OK;
}

err_code rpl_guess_exl3(rpl_trial *t, int32_t k, int32_t expert, err *e)
{
    slices w;
    const rpl_view y = rpl_view_of(t, rpl_trial_op(t, k)->out[0]);
    err_code rc = open_slices(&w, t, rpl_trial_op(t, k), expert, y.rows) ? try_all(t, k, &w, expert, e)
                                                                         : err_set(e, ERR_NOMEM, "cause: no memory");
    close_slices(&w);
    return rc;
}
