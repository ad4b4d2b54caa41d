/* The machine: processors to use, memory. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

/* The end of a target attribute that wants vectors of 512 bits used. clang has no such preference, and would leave out the
 * whole attribute for it. */
#if defined(__clang__)
#define CPU_PREFER_512 ""
#else
#define CPU_PREFER_512 ",prefer-vector-width=512"
#endif

int cpu_count(void);               /* processors this process may run on, at least 1 */
uint64_t cpu_memory_free_bytes(void); /* MemAvailable; 0 when unknown */
bool cpu_has_avx2(void);           /* AVX2 and FMA and F16C */
bool cpu_has_avx512(void);         /* AVX-512 F, BW, VL, DQ */
bool cpu_has_sse42(void);
const char *cpu_name(void);        /* "Intel(R) Xeon(R) ..."; static */

#endif
