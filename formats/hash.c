/* The two checksums of a tape: CRC-32C for chunks (storage errors), a 64-bit hash for values (is it the same tensor).
 *
 * fmt_hash64 is XXH64 with seed 0, as published: every language has it, and this is all of it. Arithmetic is mod 2^64,
 * words are little-endian, n is the length in bytes, mix(v, w) = rotl(v + w * P2, 31) * P1.
 *   1. n < 32: h = P5. Else v0..v3 = P1 + P2, P2, 0, -P1; for each whole 32 bytes vi = mix(vi, word i), i = 0..3;
 *      h = rotl(v0, 1) + rotl(v1, 7) + rotl(v2, 12) + rotl(v3, 18), then for i = 0..3: h = (h ^ mix(0, vi)) * P1 + P4.
 *   2. h += n.
 *   3. Of the bytes left: for each 8 as w: h = rotl(h ^ mix(0, w), 27) * P1 + P4; then, if 4 are left, as a 32-bit w:
 *      h = rotl(h ^ w * P1, 23) * P2 + P3; then for each byte b: h = rotl(h ^ b * P5, 11) * P1.
 *   4. h ^= h >> 33; h *= P2; h ^= h >> 29; h *= P3; h ^= h >> 32.
 * Of nothing: ef46db3751d8e999. Of "abc": 44bc2cf5ad770999.
 *
 * fmt_crc32c is CRC-32C (Castagnoli): reflected, polynomial 0x82f63b78, start and final xor 0xffffffff. Of "123456789":
 * e3069283. crc32c(crc32c(0, a), b) is the checksum of a followed by b. */
#include "formats/tape.h"

#include <pthread.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include "base/cpu.h"
#include "base/mem.h"

static const uint64_t P1 = 0x9e3779b185ebca87u, P2 = 0xc2b2ae3d27d4eb4fu, P3 = 0x165667b19e3779f9u,
                      P4 = 0x85ebca77c2b2ae63u, P5 = 0x27d4eb2f165667c5u;

static inline uint64_t rotl(uint64_t v, int k) { return v << k | v >> (64 - k); }
static inline uint64_t mix(uint64_t v, uint64_t w) { return rotl(v + w * P2, 31) * P1; }

fmt_hash_run fmt_hash_begin(void) { return (fmt_hash_run){ .v = { P1 + P2, P2, 0, 0 - P1 } }; }

void fmt_hash_add(fmt_hash_run *run, const void *data, size_t bytes)
{
    CHECK(bytes % 32 == 0);
    const uint8_t *p = data, *end = p + bytes;
    uint64_t v[4];
    memcpy(v, run->v, sizeof v); /* in registers: p may point at anything, run too */
    for (; p < end; p += 32)
        for (int i = 0; i < 4; i++) v[i] = mix(v[i], get_u64(p + 8 * i));
    memcpy(run->v, v, sizeof v);
    run->bytes += bytes;
}

uint64_t fmt_hash_end(const fmt_hash_run *run, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t left = bytes;
    uint64_t h = P5;
    if (run->bytes) {
        h = rotl(run->v[0], 1) + rotl(run->v[1], 7) + rotl(run->v[2], 12) + rotl(run->v[3], 18);
        for (int i = 0; i < 4; i++) h = (h ^ mix(0, run->v[i])) * P1 + P4;
    }
    h += run->bytes + bytes;
    for (; left >= 8; left -= 8, p += 8) h = rotl(h ^ mix(0, get_u64(p)), 27) * P1 + P4;
    if (left >= 4) {
        h = rotl(h ^ get_u32(p) * P1, 23) * P2 + P3;
        left -= 4;
        p += 4;
    }
    for (; left; left--, p++) h = rotl(h ^ *p * P5, 11) * P1;
    h ^= h >> 33;
    h *= P2;
    h ^= h >> 29;
    h *= P3;
    return h ^ h >> 32;
}

uint64_t fmt_hash64(const void *data, size_t bytes)
{
    fmt_hash_run run = fmt_hash_begin();
    size_t whole = bytes - bytes % 32;
    if (whole) fmt_hash_add(&run, data, whole);
    return fmt_hash_end(&run, whole ? (const uint8_t *)data + whole : data, bytes - whole);
}

/* crc_table[k][b]: what byte b, k bytes before the end of an 8-byte step, adds to the register. */
static uint32_t crc_table[8][256];
static pthread_once_t crc_table_once = PTHREAD_ONCE_INIT;

static void crc_table_fill(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int i = 0; i < 8; i++) c = c >> 1 ^ (c & 1 ? 0x82f63b78 : 0);
        crc_table[0][b] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++)
            crc_table[k][b] = crc_table[k - 1][b] >> 8 ^ crc_table[0][crc_table[k - 1][b] & 255];
}

static uint32_t crc32c_tables(uint32_t c, const uint8_t *p, size_t bytes)
{
    pthread_once(&crc_table_once, crc_table_fill);
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t w = get_u64(p) ^ c;
        c = 0;
        for (int k = 0; k < 8; k++) c ^= crc_table[7 - k][w >> 8 * k & 255];
    }
    for (; bytes; bytes--, p++) c = c >> 8 ^ crc_table[0][(c ^ *p) & 255];
    return c;
}

#if defined(__x86_64__)
/* The crc32 instruction takes three cycles but one can start in each: three runs side by side, joined by what RUN_BYTES of
 * zeros make of a register, which is linear in it: the XOR of what they make of its bytes. */
enum { RUN_BYTES = 1024 };
static uint32_t crc_skip[4][256];
static pthread_once_t crc_skip_once = PTHREAD_ONCE_INIT;

__attribute__((target("sse4.2"))) static void crc_skip_fill(void)
{
    for (int k = 0; k < 4; k++)
        for (uint32_t b = 0; b < 256; b++) {
            uint64_t c = b << 8 * k;
            for (int i = 0; i < RUN_BYTES / 8; i++) c = _mm_crc32_u64(c, 0);
            crc_skip[k][b] = (uint32_t)c;
        }
}

static inline uint64_t skip_run(uint64_t c)
{
    return crc_skip[0][c & 255] ^ crc_skip[1][c >> 8 & 255] ^ crc_skip[2][c >> 16 & 255] ^ crc_skip[3][c >> 24 & 255];
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *p, size_t bytes)
{
    uint64_t c = crc;
    if (bytes >= 3 * RUN_BYTES) pthread_once(&crc_skip_once, crc_skip_fill);
    for (; bytes >= 3 * RUN_BYTES; bytes -= 3 * RUN_BYTES, p += 3 * RUN_BYTES) {
        uint64_t c1 = 0, c2 = 0;
        for (int i = 0; i < RUN_BYTES; i += 8) {
            c = _mm_crc32_u64(c, get_u64(p + i));
            c1 = _mm_crc32_u64(c1, get_u64(p + RUN_BYTES + i));
            c2 = _mm_crc32_u64(c2, get_u64(p + 2 * RUN_BYTES + i));
        }
        c = skip_run(skip_run(c) ^ c1) ^ c2;
    }
    for (; bytes >= 8; bytes -= 8, p += 8) c = _mm_crc32_u64(c, get_u64(p));
    for (; bytes; bytes--, p++) c = _mm_crc32_u8((uint32_t)c, *p);
    return (uint32_t)c;
}
#endif

uint32_t fmt_crc32c(uint32_t crc, const void *data, size_t bytes)
{
#if defined(__x86_64__)
    if (cpu_has_sse42()) return ~crc32c_sse42(~crc, data, bytes);
#endif
    return ~crc32c_tables(~crc, data, bytes);
}
