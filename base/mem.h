/* Memory and small byte helpers shared by all folders. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Zeroed array of count * elem_bytes, checked against overflow. NULL when that fails or count is 0 and
 * malloc says so; callers report ERR_NOMEM. Free with free(). */
void *mem_alloc(size_t count, size_t elem_bytes) MUST_USE;
/* As mem_alloc, aligned to 64 bytes (a cache line, an AVX-512 register). Free with free(). */
void *mem_alloc_aligned(size_t count, size_t elem_bytes) MUST_USE;
/* Grows *array (element size elem_bytes) to hold at least want elements; *cap is updated. false: no memory,
 * and nothing changed. */
bool mem_grow(void **array, size_t *cap, size_t want, size_t elem_bytes) MUST_USE;
char *mem_strdup(const char *s) MUST_USE; /* NULL: no memory */

/* *out = a * b or a + b; false on overflow. */
static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }

/* Little-endian bytes, whatever the host is. */
static inline void put_u16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)v; p[1] = (uint8_t)(v >> 8); }
static inline void put_u32(uint8_t *p, uint32_t v) { put_u16(p, (uint16_t)v); put_u16(p + 2, (uint16_t)(v >> 16)); }
static inline void put_u64(uint8_t *p, uint64_t v) { put_u32(p, (uint32_t)v); put_u32(p + 4, (uint32_t)(v >> 32)); }
static inline uint16_t get_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t get_u32(const uint8_t *p) { return get_u16(p) | (uint32_t)get_u16(p + 2) << 16; }
static inline uint64_t get_u64(const uint8_t *p) { return get_u32(p) | (uint64_t)get_u32(p + 4) << 32; }

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
