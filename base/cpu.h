/* The machine: processors to use, memory. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

int cpu_count(void);               /* processors this process may run on, at least 1 */
uint64_t cpu_memory_free_bytes(void); /* MemAvailable; 0 when unknown */
bool cpu_has_avx2(void);           /* AVX2 and FMA and F16C */
bool cpu_has_avx512(void);         /* AVX-512 F, BW, VL, DQ */
bool cpu_has_sse42(void);
const char *cpu_name(void);        /* "Intel(R) Xeon(R) ..."; static */

#endif
