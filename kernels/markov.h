/* The Markov term of one drafted position, for all batch entries on one rank, and the choice that follows.
 *
 *   krn_markov_step    biased[b][i] = logits[b][i] + head . embed[previous token of entry b], and the best of each part of
 *                      this rank's rows; the previous token is the best of all parts of all ranks at i - 1, which it also
 *                      writes to drafts[b][i - 1]   (then the ranks exchange their bests)
 *   krn_markov_pick    the best of all ranks becomes drafts[b][i]: after the last position, which no step follows
 *   krn_markov_terms   the terms head . embed[token] of some tokens, for a table that spares their product
 *
 * Table     NULL: every term is computed (the factorised arm). Else a token with a row of the table takes its term from
 *           there, another one is computed: hot rows (f32), which change no bit, and the control's bias cache (bf16)
 *
 * A position needs the token of the one before it, so a draft runs n_out steps in a row, and one pick. Tokens stay on the
 * device: nothing comes back to the host in between.
 *
 * Shapes    logits [batch * block, n] f32, row b * block + i; embed [vocab, markov_rank] bf16, whole; head [n, markov_rank]
 *           bf16, this rank's rows, whose first has the id first_id; anchor [batch]; drafts [batch, n_out];
 *           biased [batch, n_out, n] f32: only position i is written; best [batch, KRN_MARKOV_PARTS]: which rows are in
 *           which part follows from n; before [n_ranks, batch, KRN_MARKOV_PARTS]: every rank's best of position i - 1, not
 *           read where i is 0. before and best are different memory
 *           1 <= batch <= KRN_MARKOV_BATCH_MAX, 1 <= markov_rank <= KRN_MARKOV_RANK_MAX, 1 <= n_out <= block,
 *           0 <= i < n_out, vocab >= 1, n >= 0 (0: a rank without vocabulary rows; logits, head and biased may be NULL
 *           then). A part without rows is {NaN, first_id}. The twin has one part: best [batch]
 * Previous  i == 0: anchor[b], else the best of before (the twin: drafts[b][i - 1]). An id outside [0, vocab) is taken as 0
 * Rounding  R1 m = sum of head[v][k] * embed[previous][k]: f32, in Order; the twin's F64: double, rounded to f32 once
 *           R2 biased = f32(logits + m). A NaN is the quiet NaN 0x7fc00000, whatever its operands were
 *           bf16 tables, the control's policy: R1 rounds on to bf16, in the table or not, and so does R2, into an f32
 * Order     twin, blocked: lanes16 over markov_rank (kernels.h).
 *           CUDA: step s is the elements [32 s, 32 s + 32), past the end zeros, cut into four quarters. An mma m16n8k16
 *           (f32 accumulation in the order of the hardware) adds the first 4 of every quarter, another one the last 4;
 *           steps ascending, from +0. Neither batch nor alignment changes that.
 *           The choice has the order of kernels/argmax.h: largest, lowest id among equals, NaN last
 * Match     CUDA: biased inside Bound; the best of all parts, given biased, bit-equal to krn_argmax_ref's
 *           A step with an f32 table has the bits of one without; terms have the bits of R1 in any step
 * Bound     6 * 2^-24 * sqrt(markov_rank) * sum |head * embed| on m; R2 follows
 * Rows      biased[b][i][v] depends on logits[b][i][v], head[v] and embed[previous token of b] alone
 * Aliasing  no overlap
 * Graph     each launcher: one launch on stream, no sync, no allocation, no host read; dimensions depend on shapes alone.
 *           All pointers are device memory. ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch
 * Cost      step: the head is read once for all entries, 16 bytes a load where rows are 16-byte aligned. Parts are joined
 *           by the step that follows, in every block: there it costs nothing, as the first rows are still on their way */
#ifndef KERNELS_MARKOV_H
#define KERNELS_MARKOV_H

#include "kernels/bound.h"
#include "kernels/argmax.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KRN_MARKOV_PARTS = 132, /* blocks of a step's launch: an H200's multiprocessors, each of which one fills */
    KRN_MARKOV_BATCH_MAX = 4,
    KRN_MARKOV_RANK_MAX = 2048, /* four embeddings of it fill 16 KiB of shared memory */
};

/* Terms of some tokens, kept ready: borrowed. */
typedef struct krn_markov_table {
    bool bf16;          /* the control's policy, for terms in the table and others; what term holds */
    const int32_t *row; /* [vocab] a token's row of term, -1: none */
    const void *term;   /* [rows, n] f32 or bf16 */
} krn_markov_table;

MUST_USE err_code krn_markov_step(const float *logits, const bf16 *embed, const bf16 *head, int32_t vocab,
                                  int32_t markov_rank, int32_t n, int32_t first_id, int32_t batch, int32_t block,
                                  int32_t n_out, int32_t i, const int32_t *anchor, const krn_best *before,
                                  int32_t n_ranks, const krn_markov_table *table, int32_t *drafts, float *biased,
                                  krn_best *best, krn_stream stream, err *e);
/* tokens [count], device memory; term [count, n], f32 or bf16 as round_bf16 says. A launch for every four tokens. */
MUST_USE err_code krn_markov_terms(const bf16 *embed, const bf16 *head, int32_t vocab, int32_t markov_rank, int32_t n,
                                   const int32_t *tokens, int32_t count, bool round_bf16, void *term, krn_stream stream,
                                   err *e);
/* best [n_ranks, batch, KRN_MARKOV_PARTS]. */
MUST_USE err_code krn_markov_pick(const krn_best *best, int32_t n_ranks, int32_t batch, int32_t n_out, int32_t i,
                                  int32_t *drafts, krn_stream stream, err *e);

/* The twins; shapes as above, but one part a rank, unchecked. The step reads previous tokens from drafts, which may be
 * given (forced tokens) while pick writes another array. */
void krn_markov_step_ref(const float *logits, const bf16 *embed, const bf16 *head, int32_t vocab, int32_t markov_rank,
                         int32_t n, int32_t first_id, int32_t batch, int32_t block, int32_t n_out, int32_t i,
                         const int32_t *anchor, const int32_t *drafts, const krn_markov_table *table, krn_acc acc,
                         float *biased, krn_best *best);
void krn_markov_terms_ref(const bf16 *embed, const bf16 *head, int32_t vocab, int32_t markov_rank, int32_t n,
                          const int32_t *tokens, int32_t count, bool round_bf16, krn_acc acc, void *term);
void krn_markov_pick_ref(const krn_best *best, int32_t n_ranks, int32_t batch, int32_t n_out, int32_t i, int32_t *drafts);

/* krn_markov_bound - one element of biased from a bounded logit and R1's m, bounded by krn_linear_bound: Bound. round_bf16:
 * the control's policy. */
krn_span krn_markov_bound(krn_span logit, krn_span term, bool round_bf16);

#ifdef __cplusplus
}
#endif

#endif
