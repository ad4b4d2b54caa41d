/* The engine: an arm of the model, ready to run, with the window state of its slots.
 *
 * On the CPU ranks are threads: each runs the same program over its share of the weights and meets the others in the
 * all_reduce and token ops, which sum in rank order. On CUDA a thread drives each device (engine/device.h). One caller at a
 * time; taps are called on the ranks' threads. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/program.h"
#include "engine/tap.h"
#include "engine/weights.h"

enum { ENG_BATCH_MAX = 4, ENG_INSERT_ROWS_MAX = 128 /* larger inserts run in buckets of this many rows */ };

typedef struct eng_engine eng_engine;

/* Opens an arm over w (borrowed until close). n_slots: how many requests may hold a window. retain: in graph mode, the
 * level up to which values are kept until the step ends; eager shows every value. ERR_ARG (rank count), ERR_IDENTITY (w
 * lacks a form of a weight that the arm needs), ERR_NOMEM. */
MUST_USE err_code eng_open(const eng_weights *w, const eng_options *o, int32_t n_slots, eng_level retain, bool quiet,
                           eng_engine **out, err *e);
void eng_close(eng_engine *g); /* NULL is a no-op */
/* Makes ready what drafts of up to batch slots (0..ENG_BATCH_MAX) and inserts of up to rows rows (0..ENG_INSERT_ROWS_MAX)
 * need: on CUDA their graphs, on the CPU nothing. What is ready stays as it is, so a later call with more prepares only the
 * difference; eng_open has prepared everything unless o->lazy. No slot changes. *n_new (may be NULL): graphs that are new.
 * ERR_ARG, ERR_DEVICE, ERR_COMM. */
MUST_USE err_code eng_prewarm(eng_engine *g, int32_t batch, int32_t rows, int32_t *n_new, err *e);

const eng_config *eng_config_of(const eng_engine *g);
const eng_options *eng_options_of(const eng_engine *g);
const eng_program *eng_program_of(const eng_engine *g, eng_step_kind step);
eng_level eng_retain_of(const eng_engine *g);

/* Inserts P rows into a slot's windows: taps [P, n_taps * dim] bf16, pos [P] ascending without gap. tap may be NULL.
 * ERR_INPUT when pos does not follow the slot's last position, or a tap value is not finite; the slot is then unchanged. On
 * CUDA, unless tensor() is to be called, the rows may still be under way on return; what a device says against them fails
 * the next step. */
MUST_USE err_code eng_insert(eng_engine *g, int32_t slot, const bf16 *taps, const int32_t *pos, int32_t rows,
                             const eng_tap *tap, err *e);
/* The same from main_x [P, dim] (windows A): main_proj and main_norm are not run. */
MUST_USE err_code eng_insert_main_x(eng_engine *g, int32_t slot, const bf16 *main_x, const int32_t *pos, int32_t rows,
                                    const eng_tap *tap, err *e);
/* One draft step of B slots, each once. drafts [B, n_out], confidence [B, n_out].
 * ERR_INPUT: a slot that lacks rows max(0, p-W+1) .. p, n_out outside 1..block, an anchor outside the vocabulary. */
MUST_USE err_code eng_draft(eng_engine *g, int32_t batch, const int32_t *slots, const int32_t *anchors, const int32_t *pos,
                            int32_t n_out, int32_t *drafts, float *confidence, const eng_tap *tap, err *e);
/* Forgets a slot's window and positions. What a device says against it fails the next step. */
void eng_release(eng_engine *g, int32_t slot);
/* Rows 0 .. min(W, p+1)-1 of a slot's ring in physical order, rank 0's copy: data valid until the next call. ERR_DEVICE. */
MUST_USE err_code eng_window(eng_engine *g, int32_t slot, int32_t stage, fmt_tensor *out, err *e);
/* Puts recorded windows in place of a slot's: window[stage] [min(W, last+1), head_dim], as eng_window shows them. The slot
 * then stands at position last with every row that a draft there needs. ERR_INPUT (slot, last < 0; nothing changed),
 * ERR_DEVICE. */
MUST_USE err_code eng_restore(eng_engine *g, int32_t slot, int32_t last, const bf16 *const *window, err *e);
int32_t eng_slot_last(const eng_engine *g, int32_t slot); /* last inserted position, -1: none */

/* The device of worker i, for what only the CUDA backend has (counts, times); NULL on the CPU. */
struct eng_device *eng_device_of(eng_engine *g, int32_t i);

/* Bytes the engine owns beyond the mapped weights: values, rings, decoded copies; on CUDA all device memory. */
uint64_t eng_owned_bytes(const eng_engine *g);

/* ---- one op alone (forced comparison, certificate, reducer) ---- */
/* A bench of values for one program, whole values on one rank: the caller sets recorded inputs, runs ops [first, last],
 * reads the outputs. With o->n_ranks above 1 the sums that ranks cut between them are made per rank and added as the
 * ranks do; only the fused combine, which adds before the ranks meet, starts from whole values all the same. extents as
 * for the step; for attention the slots' rings are set with eng_bench_ring. */
typedef struct eng_bench eng_bench;
MUST_USE err_code eng_bench_open(const eng_weights *w, const eng_options *o, eng_step_kind step, int32_t rows,
                                 int32_t batch, int32_t n_out, eng_bench **out, err *e);
void eng_bench_close(eng_bench *b);
const eng_program *eng_bench_program(const eng_bench *b);
int32_t eng_bench_ranks(const eng_bench *b); /* o->n_ranks at open */
/* The buffer of a value, whole shape; written to set an input, read to get an output. */
void *eng_bench_value(eng_bench *b, int32_t value);
/* Ring of batch entry i and stage (draft), or of the one slot (insert, i = 0): [window, head_dim] bf16, zero at open. */
bf16 *eng_bench_ring(eng_bench *b, int32_t i, int32_t stage);
/* The step's own inputs: insert pos [rows] (anchors NULL); draft: the slots' last positions [batch] and anchors [batch].
 * Fills the values "pos", or "draft.pos" and "draft.anchor". */
void eng_bench_positions(eng_bench *b, const int32_t *pos, const int32_t *anchors);
/* Teacher forcing of the Markov op: the token before position i is drafts[b][i-1] as given ([batch, n_out], copied), not
 * its own choice. NULL: free-running again. */
void eng_bench_force_drafts(eng_bench *b, const int32_t *drafts);
/* Those tokens [batch, n_out], as later ops take them; NULL: the bench's own. */
const int32_t *eng_bench_forced_drafts(const eng_bench *b);
/* The bench's view of a weight (NULL: the model has none), to try another in its place: the caller puts back what stood
 * there. expert: -1 unless the weight is an expert's. */
struct krn_weight *eng_bench_weight(eng_bench *b, eng_wid id, int32_t stage, int32_t expert);
/* Of its whole step. */
const eng_extents *eng_bench_extents(const eng_bench *b);
/* Later runs are of so many rows, slots and tokens: 1 or more, and no more than at open. Values then lie dense in the same
 * buffers, by the new shapes. */
void eng_bench_resize(eng_bench *b, int32_t rows, int32_t batch, int32_t n_out);
MUST_USE err_code eng_bench_run(eng_bench *b, int32_t first_op, int32_t last_op, err *e);

#endif
