/* What one rank of one arm computes with on a CUDA device: dense copies of the rank's slices, in one allocation. EXL3 lies
 * in the layout of kernels/exl3.h, whole blocks of 128 wherever the rank is cut.
 *
 * The checkpoint's mapped bytes are gathered (or decoded, for expanded parts) into one pinned buffer while another is being
 * copied, so the device never holds more than the weights themselves.
 *
 * Experts of a kx arm are copied to a buffer on the device and re-laid from there (kernels/experts_kx.h), some at a time,
 * while the next are gathered. That runs at the speed of the device's memory, many times the bus's, so no file keeps them
 * re-laid: reading it would be the same work as reading the checkpoint. (Two threads of a CPU re-lay 0.8 GB/s.) Until all
 * is loaded the device holds these two buffers besides. Built only with CUDA. */
#ifndef ENGINE_DEVICE_WEIGHTS_H
#define ENGINE_DEVICE_WEIGHTS_H

#include "engine/weights.h"
#include "kernels/exl3.h"
#include "kernels/experts_kx.h"

typedef struct eng_device_weights eng_device_weights;

/* Loads onto the calling thread's device what an arm with these representations computes with; w may be closed afterwards.
 * kx: of a kx arm, whose experts are FP4. *out is NULL on error.
 * ERR_ARG: n_ranks does not cut the config. ERR_IDENTITY: as eng_weights_need. ERR_INPUT: names experts
 * in EXL3 that one kernel cannot run: bits or codebooks that differ within a stage, a rank's part that is no whole blocks.
 * ERR_NOMEM: says how many bytes of device memory are wanted and free, before anything is read.
 * ERR_INPUT: names an FP4 or FP8 tensor with a value that bf16 cannot hold. Packed ones are refused too: the kernels decode
 * to bf16. ERR_DEVICE. */
MUST_USE err_code eng_device_weights_open(const eng_weights *w, int32_t rank, int32_t n_ranks, const eng_reps *reps,
                                          bool kx, bool quiet, eng_device_weights **out, err *e);
void eng_device_weights_close(eng_device_weights *d); /* NULL is a no-op */

/* Everything but routed experts. data and scale are device memory, 256-byte aligned, rows without padding (every k is a
 * multiple of 32, but for vectors, the Markov tables and the confidence row). gate.bias_vl, which is never read, has no
 * data. stage is looked at only where the kind has stages. Valid until close. */
const krn_weight *eng_device_weight(const eng_device_weights *d, eng_wid id, int32_t stage);
/* A stage's routed experts. w13: an expert's rows of w1, then its rows of w3, data [E][2 * inter_r][dim]; w2: data
 * [E][dim][inter_r]; scales [E][n][k / 32]. Valid until close. */
const krn_expert_bank *eng_device_experts(const eng_device_weights *d, int32_t stage, bool w2);
/* The same where the experts are EXL3, else NULL. */
const krn_exl3_bank *eng_device_experts_exl3(const eng_device_weights *d, int32_t stage, bool w2);
/* The same of a kx arm, else NULL. */
const krn_kx_bank *eng_device_experts_kx(const eng_device_weights *d, int32_t stage, bool w2);
/* Device memory of a part, with scales, factors and what a layout pads. */
uint64_t eng_device_weights_bytes(const eng_device_weights *d, eng_part part);

#endif
