/* Tapes for the tests: values that hit every transform, from a fixed seed. */
#ifndef TESTS_FORMATS_TAPE_CASES_H
#define TESTS_FORMATS_TAPE_CASES_H

#include "tests/support/ok.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "formats/number.h"
#include "formats/tape_reader.h"
#include "kernels/digest.h"

static inline uint64_t case_word(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u + 1;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Roughly normal, scale about 1. */
static inline float case_float(uint64_t seed, uint64_t i)
{
    uint64_t w = case_word(seed, i);
    float sum = 0;
    for (int k = 0; k < 4; k++) sum += (float)(w >> 16 * k & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7f;
}

typedef enum case_kind { CASE_NOISE, CASE_QDQ, CASE_ZERO, CASE_SPECIAL } case_kind;

/* elems values of dtype d; NOISE: normal floats or small integers; QDQ: what act_qdq makes of them; SPECIAL: any bits. */
static inline void *case_data(fmt_dtype d, uint64_t elems, case_kind kind, uint64_t seed)
{
    uint32_t size = fmt_dtype_bytes(d);
    uint8_t *p = calloc(elems + 1, size);
    for (uint64_t i = 0; i < elems && kind != CASE_ZERO; i++) {
        uint64_t w = case_word(seed, i);
        if (kind != CASE_SPECIAL && d == FMT_DTYPE_F32) { float f = case_float(seed, i); memcpy(p + 4 * i, &f,
                                                                                                4); continue; }
        if (kind != CASE_SPECIAL && d == FMT_DTYPE_BF16) { put_u16(p + 2 * i, bf16_from_f32(case_float(seed,
                                                                                                       i))); continue; }
        if (kind != CASE_SPECIAL) w &= 0xff;
        memcpy(p + size * i, &w, size);
    }
    for (uint64_t g = 0; kind == CASE_QDQ && g < elems / 32; g++) {
        bf16 x[32];
        uint8_t codes[32], scale;
        float scaled = ldexpf(1, (int)(g % 40) - 20);
        for (int i = 0; i < 32; i++) x[i] = bf16_from_f32(case_float(seed, 32 * g + (uint64_t)i) * scaled);
        fmt_qdq_encode(x, codes, &scale);
        for (int i = 0; i < 32; i++) put_u16(p + 64 * g + 2 * i, fmt_qdq_decode(codes[i], scale));
    }
    return p;
}

/* A folder of the test's own, removed by case_folder_remove. */
static inline char *case_folder(char buf[64])
{
    strcpy(buf, "tape-test-XXXXXX");
    assert_non_null(mkdtemp(buf));
    return buf;
}

static inline void case_folder_remove(const char *folder)
{
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    assert_int_equal(system(line), 0);
}

static inline char *case_path(const char *folder, const char *name, char buf[128])
{
    snprintf(buf, 128, "%s/%s", folder, name);
    return buf;
}

static inline json_t *case_head(void) { return json_pack("{s:s, s:{s:s}}", "format", "sparktape", "identity", "arm",
                                                         "mirror"); }

enum {
    CASE_RECORDS = 10, /* per round of case_write */
    CASE_ELEMS = 128, /* of its float values: few, since tests damage every byte */
};

/* The digest of a tensor with these row digests. */
static inline fmt_digest case_digest(const uint64_t *row, uint64_t n_rows)
{
    uint64_t sum = n_rows * KRN_DIGEST_P1;
    for (uint64_t r = 0; r < n_rows; r++) sum += krn_digest_mix(row[r] + (r + 1) * KRN_DIGEST_P1);
    return (fmt_digest){ krn_digest_mix(sum), row, n_rows };
}

/* A small tape with every tier and transform: n_rounds rounds of values on 2 ranks, each round flushed. */
static inline fmt_tape_writer *case_write(const char *path, int n_rounds, uint64_t seed)
{
    fmt_tape_writer *w;
    json_t *head = case_head();
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    for (int r = 0; r < n_rounds; r++) {
        uint64_t s = seed + 100 * (uint64_t)r;
        int64_t shape[2] = { 4, CASE_ELEMS / 4 };
        uint8_t *qdq = case_data(FMT_DTYPE_BF16, CASE_ELEMS, CASE_QDQ, s);
        uint8_t *noise = case_data(FMT_DTYPE_BF16, CASE_ELEMS, CASE_NOISE, s + 1);
        uint8_t *other = case_data(FMT_DTYPE_BF16, CASE_ELEMS, CASE_NOISE, s + 1);
        uint8_t *f32 = case_data(FMT_DTYPE_F32, CASE_ELEMS, CASE_NOISE, s + 2);
        uint8_t *ids = case_data(FMT_DTYPE_I32, 20, CASE_NOISE, s + 3);
        other[40] ^= 1;
        fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, qdq, 2, shape);
        fmt_tape_key key = { r, 0, 0, "s0.main_kv" };
        OK(fmt_tape_put(w, &key, &t, FMT_PLACE_REPLICATED, 0, 2, FMT_TIER_TENSOR, e));
        key = (fmt_tape_key){ r, FMT_TAPE_NO_SLOT, 0, "s0.attn_out" };
        OK(fmt_tape_put_ranks(w, &key, &t, (const void *const[]){ noise, noise }, FMT_PLACE_REPLICATED, 0, 2,
                              FMT_TIER_TENSOR, e));
        key.name = "s1.attn_out"; /* differs a little between the ranks */
        OK(fmt_tape_put_ranks(w, &key, &t, (const void *const[]){ noise, other }, FMT_PLACE_PARTIAL, 0, 2, FMT_TIER_TENSOR,
                              e));
        t = fmt_tensor_make(FMT_DTYPE_F32, f32, 2, shape);
        key = (fmt_tape_key){ r, FMT_TAPE_NO_SLOT, 1, "head.logits" };
        OK(fmt_tape_put(w, &key, &t, FMT_PLACE_SHARDED, 1, 2, FMT_TIER_TENSOR, e));
        OK(fmt_tape_put(w, &(fmt_tape_key){ r, 1, 0, "x.stats" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_STATS, e));
        OK(fmt_tape_put(w, &(fmt_tape_key){ r, 1, 0, "x.hash" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_HASH, e));
        json_t *event = json_pack("{s:s, s:i}", "event", "drop", "n", r);
        OK(fmt_tape_put_event(w, r, event, e));
        json_decref(event);
        t = fmt_tensor_make(FMT_DTYPE_I32, ids, 2, (int64_t[]){ 4, 5 });
        OK(fmt_tape_put(w, &(fmt_tape_key){ r, FMT_TAPE_NO_SLOT, FMT_TAPE_NO_RANK, "drafts" }, &t, FMT_PLACE_REPLICATED, 0,
                        1,
                        FMT_TIER_TENSOR, e));
        t = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, shape);
        fmt_digest digest = case_digest((const uint64_t *)(const void *)noise, 4); /* any numbers will do */
        OK(fmt_tape_put_digest(w, &(fmt_tape_key){ r, 1, 0, "x.digest" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_HASH,
                               &digest, NULL, e));
        OK(fmt_tape_flush(w, e));
        free(qdq); free(noise); free(other); free(f32); free(ids);
    }
    return w;
}

static inline void case_finish(fmt_tape_writer *w)
{
    json_t *summary = json_pack("{s:i, s:{s:i, s:i, s:[]}}", "dropped", 0, "taps", "armed", 3, "fired", 3, "never");
    OK(fmt_tape_finish(w, summary, e));
    json_decref(summary);
}

static inline uint8_t *case_read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*bytes + 1);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    fclose(f);
    return data;
}

static inline void case_write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

#endif
