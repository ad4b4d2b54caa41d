/* big_tape OUT ROUNDS ROWS COLS [SEED]: writes a long tape quickly. Every round has the values of a draft step of two slots
 * with the official names and small shapes, and two values of ROWS x COLS: head.logits, and s0.attn.stream in BF16. With a
 * SEED of 1 and more every 97th round differs from seed 0 in one element of s0.attn_out and what follows. */
#include "base/mem.h"
#include "engine/config.h"
#include "formats/number.h"
#include "formats/tape.h"

#include <stdlib.h>

enum { SLOTS = 2, BLOCK = 5, DIM = 32, N_OUT = 4, EXPERTS = 3, TOP = 64, STAGES = 3 };

typedef struct big { fmt_tape_writer *w; int32_t round; int64_t rows, cols; bool odd; float *wide; bf16 *stream; } big;

static err_code put(const big *b, int32_t slot, const char *name, fmt_dtype d, const void *data, int32_t ndim,
                    const int64_t *shape, err *e)
{
    fmt_tensor t = fmt_tensor_make(d, data, ndim, shape);
    const fmt_tape_key key = { b->round, slot, 0, name };
    return fmt_tape_put(b->w, &key, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e);
}

static err_code put_rows(const big *b, int32_t slot, const char *name, int64_t rows, bool wrong, err *e)
{
    bf16 v[SLOTS * BLOCK * DIM];
    for (int64_t i = 0; i < rows * DIM; i++) v[i] = (bf16)(0x3f00 + (i * 37 + b->round) % 256);
    if (wrong) v[DIM + 3]++;
    return put(b, slot, name, FMT_DTYPE_BF16, v, 2, (const int64_t[]){ rows, DIM }, e);
}

static err_code put_stage(const big *b, int k, err *e)
{
    static const char *const NAMES[] = { "attn.norm", "attn.qr", "attn.kv", "attn.wo_a", "attn_out", "ffn.norm", "ffn_out",
                                         "out" };
    char name[32];
    int32_t ids[SLOTS * BLOCK * EXPERTS];
    float weights[SLOTS * BLOCK * EXPERTS];
    for (int i = 0; i < SLOTS * BLOCK * EXPERTS; i++) {
        ids[i] = (i * 7 + b->round + k) % 16;
        weights[i] = 0.5f;
    }
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        snprintf(name, sizeof name, "s%d.%s", k, NAMES[i]);
        TRY(put_rows(b, -1, name, SLOTS * BLOCK, b->odd && (k > 0 || i >= 4), e));
    }
    snprintf(name, sizeof name, "s%d.ffn.ids", k);
    TRY(put(b, -1, name, FMT_DTYPE_I32, ids, 2, (const int64_t[]){ SLOTS * BLOCK, EXPERTS }, e));
    snprintf(name, sizeof name, "s%d.ffn.weights", k);
    return put(b, -1, name, FMT_DTYPE_F32, weights, 2, (const int64_t[]){ SLOTS * BLOCK, EXPERTS }, e);
}

static err_code put_round(const big *b, err *e)
{
    const int64_t two[] = { 2 }, one[] = { 1 }, block[] = { SLOTS * BLOCK }, out[] = { SLOTS, N_OUT };
    const int64_t top[] = { SLOTS * BLOCK, TOP }, wide[] = { b->rows, b->cols };
    int32_t pos[2] = { 2 * b->round, 2 * b->round + 1 }, slots[SLOTS] = { 0, 1 }, n_out = N_OUT, ids[SLOTS * BLOCK * TOP];
    float confidence[SLOTS * N_OUT] = { 0 }, logits[SLOTS * BLOCK * TOP];
    for (int i = 0; i < SLOTS * BLOCK * TOP; i++) {
        ids[i] = (b->round * 31 + i) % 1000;
        logits[i] = (float)(TOP - i % TOP);
    }
    for (int32_t s = 0; s < SLOTS; s++) {
        TRY(put(b, s, "pos", FMT_DTYPE_I32, pos, 1, two, e));
        TRY(put_rows(b, s, "main_x", 2, false, e));
        for (int k = 0; k < STAGES; k++) {
            char name[32];
            snprintf(name, sizeof name, "s%d.main_kv", k);
            TRY(put_rows(b, s, name, 2, false, e));
        }
    }
    TRY(put(b, -1, "draft.slots", FMT_DTYPE_I32, slots, 1, two, e));
    TRY(put(b, -1, "draft.anchor", FMT_DTYPE_I32, ids, 1, two, e));
    TRY(put(b, -1, "draft.pos", FMT_DTYPE_I32, pos, 1, two, e));
    TRY(put(b, -1, "draft.n_out", FMT_DTYPE_I32, &n_out, 1, one, e));
    TRY(put(b, -1, "ids", FMT_DTYPE_I32, ids, 1, block, e));
    for (int k = 0; k < STAGES; k++) TRY(put_stage(b, k, e));
    if (b->cols) {
        TRY(put(b, -1, "s0.attn.stream", FMT_DTYPE_BF16, b->stream, 2, wide, e));
        TRY(put(b, -1, "head.logits", FMT_DTYPE_F32, b->wide, 2, wide, e));
    }
    TRY(put(b, -1, "head.logits.top", FMT_DTYPE_F32, logits, 2, top, e));
    TRY(put(b, -1, "head.logits.top_ids", FMT_DTYPE_I32, ids, 2, top, e));
    TRY(put(b, -1, "drafts", FMT_DTYPE_I32, ids, 2, out, e));
    return put(b, -1, "confidence", FMT_DTYPE_F32, confidence, 2, out, e);
}

static err_code write_tape(const char *path, int32_t rounds, big *b, bool other, err *e)
{
    eng_config c;
    if (!eng_config_preset("tiny", &c)) return err_set(e, ERR_ARG, "no preset tiny");
    json_t *head = json_pack("{s:s, s:s, s:{s:{s:s}, s:s, s:i, s:s}, s:o}", "format", "sparktape", "level", "deep",
                             "identity", "arm", "name", other ? "mirror" : "native-packed", "acc", "blocked", "tp", 1,
                             "combine", "exact", "config", eng_config_json(&c));
    err_code rc = fmt_tape_create(path, head, &b->w, e);
    json_decref(head);
    for (b->round = 0; rc == ERR_OK && b->round < rounds; b->round++) {
        b->odd = other && b->round % 97 == 96;
        rc = put_round(b, e);
    }
    return rc == ERR_OK ? fmt_tape_finish(b->w, NULL, e) : rc;
}

int main(int argc, char **argv)
{
    err e = { 0 };
    if (argc < 5) {
        fprintf(stderr, "usage: big_tape OUT ROUNDS ROWS COLS [SEED]\n");
        return 2;
    }
    big b = { .rows = atoll(argv[3]), .cols = atoll(argv[4]) };
    size_t n = (size_t)(b.rows * b.cols);
    b.wide = mem_alloc(n + 1, sizeof *b.wide);
    b.stream = mem_alloc(n + 1, sizeof *b.stream);
    if (!b.wide || !b.stream) return 5;
    for (size_t i = 0; i < n; i++) {
        uint32_t x = (uint32_t)i * 0x9e3779b9u;
        x = (x ^ x >> 15) * 0x85ebca6bu;
        b.wide[i] = (float)(x >> 8) / 0x1p20f;
        b.stream[i] = bf16_from_f32(b.wide[i]);
    }
    err_code rc = write_tape(argv[1], atoi(argv[2]), &b, argc > 5 && atoi(argv[5]) > 0, &e);
    if (rc != ERR_OK) fprintf(stderr, "big_tape: %s\n", e.msg);
    free(b.wide);
    free(b.stream);
    return rc == ERR_OK ? 0 : 1;
}
