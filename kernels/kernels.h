/* What all kernels share: vocabulary, the two accumulation modes, threads.
 *
 * Every primitive has a contract header (kernels/OP.h), a CPU twin (kernels/OP_ref.c) and, where CUDA is built, a
 * kernel beside it (kernels/OP.cu). Contracts number the rounding points; twins carry the same numbers.
 *
 * Accumulation modes of the CPU twins:
 *   KRN_ACC_BLOCKED  f32, in the order the contract writes down (the official 32-block order for quantised linears): the
 *                    reference called mirror
 *   KRN_ACC_F64      exact products, f64 sums in the contract's lane order, rounded to f32 once: mirror64
 * Rounding points are the same in both. Transcendental functions are evaluated in double and rounded once in both.
 *
 * Determinism: the bits of a result depend on its inputs and the mode only: not on the instruction set, the thread count,
 * or which other rows are in the call. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/err.h"
#include "formats/number.h"

#include <stddef.h>
#include <stdint.h>

typedef enum krn_acc { KRN_ACC_BLOCKED = 0, KRN_ACC_F64 = 1 } krn_acc;

/* Instruction sets of the inner loops, worst to best. */
typedef enum krn_isa { KRN_ISA_SCALAR = 0, KRN_ISA_AVX2 = 1, KRN_ISA_AVX512 = 2, KRN_ISA_COUNT } krn_isa;
krn_isa krn_isa_best(void);       /* what this machine has */
krn_isa krn_isa_get(void);        /* what is used: best unless set */
void krn_isa_set(krn_isa isa);    /* tests; clipped to best. Not during a step */
const char *krn_isa_name(krn_isa isa);

/* Lanes of the canonical f32/f64 dot product "lanes16": lane i takes elements i, i+16, i+32, ... in order, each
 * acc = acc + x*w (the product rounded to the accumulator's type before the add; it is exact for bf16 x bf16), then a
 * halving tree: lane i += lane i+8, then +4, +2, +1. A short tail leaves the other lanes as they are. */
enum { KRN_LANES = 16 };

static inline float krn_f32_exp(float x) { return (float)exp((double)x); }
static inline float krn_f32_log1p(float x) { return (float)log1p((double)x); }
static inline float krn_f32_rsqrt(float x) { return (float)(1.0 / sqrt((double)x)); }
/* 1 / (1 + exp(-x)), each step rounded to f32. */
static inline float krn_f32_sigmoid(float x) { return 1.0f / (1.0f + krn_f32_exp(-x)); }

#endif
