#include "kernels/kernels.h"

#include "base/cpu.h"
#include "kernels/row_loops.h"

#include <stdatomic.h>

/* Atomic because ranks are threads of one process; -1 until the first question or choice. */
static atomic_int isa_used = -1;

krn_isa krn_isa_best(void)
{
    if (cpu_has_avx512()) return KRN_ISA_AVX512;
    if (cpu_has_avx2()) return KRN_ISA_AVX2;
    return KRN_ISA_SCALAR;
}

krn_isa krn_isa_get(void)
{
    int isa = atomic_load_explicit(&isa_used, memory_order_relaxed);
    if (isa >= 0) return (krn_isa)isa;
    krn_isa best = krn_isa_best();
    atomic_store_explicit(&isa_used, (int)best, memory_order_relaxed);
    return best;
}

void krn_isa_set(krn_isa isa)
{
    krn_isa best = krn_isa_best();
    atomic_store_explicit(&isa_used, (int)(isa < best ? isa : best), memory_order_relaxed);
}

const char *krn_isa_name(krn_isa isa)
{
    static const char *const NAMES[KRN_ISA_COUNT] = { "scalar", "avx2", "avx512" };
    return (unsigned int)isa < KRN_ISA_COUNT ? NAMES[isa] : "unknown";
}

const krn_row_loops *krn_row_loops_get(void)
{
#if defined(__x86_64__)
    static const krn_row_loops *const LOOPS[KRN_ISA_COUNT] = { &KRN_ROWS_SCALAR, &KRN_ROWS_AVX2, &KRN_ROWS_AVX512 };
    return LOOPS[krn_isa_get()];
#else
    return &KRN_ROWS_SCALAR;
#endif
}
