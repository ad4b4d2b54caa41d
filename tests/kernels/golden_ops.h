/* Made by golden_ops.py. FNV-1a of the result's bytes, F64 mode; the inputs stand in the tests. */
#ifndef TESTS_KERNELS_GOLDEN_OPS_H
#define TESTS_KERNELS_GOLDEN_OPS_H

#define GOLDEN_ACT_QDQ         0xbdd263b48ee60ab4u
#define GOLDEN_RMSNORM         0xf28ed764c0f2399bu
#define GOLDEN_ROPE            0x0ce94809eed39b36u
#define GOLDEN_ROPE_INVERSE    0x2ce258f687a20eeeu
#define GOLDEN_MHC_PRE         0xd1f04107b68e31c4u
#define GOLDEN_MHC_POST        0xf125dfeedfb450a9u
#define GOLDEN_MHC_COMB        0xcf03cde6abf6f490u
#define GOLDEN_MHC_COLLAPSE    0x1fad166c6829abd4u
#define GOLDEN_MHC_EXPAND      0x842642e9d546e1f3u
#define GOLDEN_ATTENTION       0x570bb99eb45cf6b3u
#define GOLDEN_GATE_SCORES     0x72e70cdf682df99au
#define GOLDEN_GATE_IDS        0x694c3af64cb579e2u
#define GOLDEN_GATE_WEIGHTS    0x402f27bc43b19cc1u
#define GOLDEN_SWIGLU          0xc2f39447d7f17077u
#define GOLDEN_CONFIDENCE      0x95f1b45eb712d371u

#endif
