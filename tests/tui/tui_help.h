/* Small tapes of the same three rounds, with or without a planted difference, and screens as text. */
#ifndef TESTS_TUI_TUI_HELP_H
#define TESTS_TUI_TUI_HELP_H

#include "tests/support/ok.h"

#include "base/mem.h"
#include "engine/config.h"
#include "formats/number.h"
#include "tui/app.h"
#include "tui/follow.h"

#include <unistd.h>

/* Runs every test of a group in a folder of its own. */
static inline int enter_folder(void **state)
{
    static char folder[] = "tui-test-XXXXXX";
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

/* ---- tapes ---- */

enum { ROUNDS = 3, SLOTS = 2, BLOCK = 5, DIM = 96, N_OUT = 4, EXPERTS = 16, ACTIVE = 3, TOP = 8, HEADS = 3 };

typedef struct plant { bool on; int32_t round; } plant; /* round of the planted difference */

static inline uint32_t noise(uint32_t seed, uint32_t i)
{
    uint32_t x = seed * 0x9e3779b9u + i * 0x85ebca6bu + 1;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static inline void put_value(fmt_tape_writer *w, int32_t round, int32_t slot, const char *name, fmt_dtype d,
                             const void *data, int32_t ndim, int64_t rows, int64_t cols)
{
    fmt_tensor t = fmt_tensor_make(d, data, ndim, (const int64_t[]){ rows, cols });
    fmt_tape_key key = { round, slot, 0, name };
    OK(fmt_tape_put(w, &key, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
}

/* bf16 rows of noise between -8 and 8; n_changed elements, spread from the end of row 3, are an ULP up. */
static inline void put_rows(fmt_tape_writer *w, int32_t round, int32_t slot, const char *name, int64_t rows, int n_changed)
{
    bf16 v[BLOCK * SLOTS * DIM];
    uint32_t seed = (uint32_t)(round * 7 + slot) + name[strlen(name) - 1] + (uint32_t)strlen(name);
    for (int64_t i = 0; i < rows * DIM; i++) v[i] = bf16_from_f32((float)noise(seed, (uint32_t)i) / 0x1p28f - 8);
    for (int i = 0; i < n_changed; i++) v[3 * DIM + DIM - 1 + 40 * i] += (bf16)(1 + i);
    put_value(w, round, slot, name, FMT_DTYPE_BF16, v, 2, rows, DIM);
}

/* Rows of heads that QDQ has been through: code times 2^-5. */
static inline void put_qdq(fmt_tape_writer *w, int32_t round, const char *name, bool changed)
{
    bf16 v[BLOCK * SLOTS * HEADS * 32];
    for (int i = 0; i < BLOCK * SLOTS * HEADS * 32; i++)
        v[i] = fmt_qdq_decode((uint8_t)(noise(9, (uint32_t)i) % 0x7f), 122);
    if (changed) v[40] = fmt_qdq_decode(0x55, 122);
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, v, 3, (const int64_t[]){ BLOCK * SLOTS, HEADS, 32 });
    fmt_tape_key key = { round, -1, 0, name };
    OK(fmt_tape_put(w, &key, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
}

/* Scores, the three best, and their weights; changed: two experts of row 6 change places by a hair. */
static inline void put_routing(fmt_tape_writer *w, int32_t round, bool changed)
{
    float scores[BLOCK * SLOTS * EXPERTS], weights[BLOCK * SLOTS * ACTIVE];
    int32_t ids[BLOCK * SLOTS * ACTIVE];
    for (int r = 0; r < BLOCK * SLOTS; r++) {
        float *s = scores + r * EXPERTS;
        for (int i = 0; i < EXPERTS; i++)
            s[i] = (float)(noise(11, (uint32_t)(round * 1000 + r * EXPERTS + i)) >> 8) / 0x1p24f;
        if (r == 6) s[2] = 0.98f, s[5] = 0.97f, s[12] = changed ? 0.9701f : 0.9699f;
        for (int k = 0; k < ACTIVE; k++) {
            int best = -1;
            for (int i = 0; i < EXPERTS; i++) {
                bool taken = false;
                for (int j = 0; j < k; j++) taken = taken || ids[r * ACTIVE + j] == i;
                if (!taken && (best < 0 || s[i] > s[best])) best = i;
            }
            ids[r * ACTIVE + k] = best;
            weights[r * ACTIVE + k] = s[best] / 2;
        }
    }
    put_value(w, round, -1, "s0.ffn.scores", FMT_DTYPE_F32, scores, 2, BLOCK * SLOTS, EXPERTS);
    put_value(w, round, -1, "s0.ffn.ids", FMT_DTYPE_I32, ids, 2, BLOCK * SLOTS, ACTIVE);
    put_value(w, round, -1, "s0.ffn.weights", FMT_DTYPE_F32, weights, 2, BLOCK * SLOTS, ACTIVE);
}

static inline void put_top(fmt_tape_writer *w, int32_t round, const int32_t *drafts)
{
    float logits[BLOCK * SLOTS * TOP], biased[SLOTS * N_OUT * TOP];
    int32_t ids[BLOCK * SLOTS * TOP], biased_ids[SLOTS * N_OUT * TOP];
    for (int r = 0; r < BLOCK * SLOTS; r++)
        for (int k = 0; k < TOP; k++) {
            ids[r * TOP + k] = k == 0 && r % BLOCK < N_OUT ? drafts[r / BLOCK * N_OUT + r % BLOCK] : 900 - 7 * k;
            logits[r * TOP + k] = 12 - (float)k / 2 - (float)r / 16;
        }
    for (int r = 0; r < SLOTS * N_OUT; r++)
        for (int k = 0; k < TOP; k++) {
            biased_ids[r * TOP + k] = k == 0 ? drafts[r] : 900 - 7 * k;
            biased[r * TOP + k] = 13 - (float)k / 2 - (float)r / 16;
        }
    const int64_t shape[] = { SLOTS, N_OUT, TOP };
    fmt_tensor t[2] = { fmt_tensor_make(FMT_DTYPE_F32, biased, 3, shape),
                        fmt_tensor_make(FMT_DTYPE_I32, biased_ids, 3, shape) };
    fmt_tape_key key[2] = { { round, -1, 0, "head.biased.top" }, { round, -1, 0, "head.biased.top_ids" } };
    put_value(w, round, -1, "head.logits.top", FMT_DTYPE_F32, logits, 2, BLOCK * SLOTS, TOP);
    put_value(w, round, -1, "head.logits.top_ids", FMT_DTYPE_I32, ids, 2, BLOCK * SLOTS, TOP);
    for (int i = 0; i < 2; i++) OK(fmt_tape_put(w, &key[i], &t[i], FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
}

static inline void put_round(fmt_tape_writer *w, int32_t round, bool planted)
{
    int32_t pos[2] = { round * 2, round * 2 + 1 }, slots[SLOTS] = { 0, 3 }, last[SLOTS] = { pos[1], pos[1] }, n_out = N_OUT;
    int32_t ids[BLOCK * SLOTS], drafts[SLOTS * N_OUT], anchor[SLOTS] = { 17 + round, 22 + round };
    float confidence[SLOTS * N_OUT];
    for (int i = 0; i < BLOCK * SLOTS; i++) ids[i] = i % BLOCK ? 900 : 17 + i;
    for (int i = 0; i < SLOTS * N_OUT; i++) {
        drafts[i] = (int32_t)(noise(5, (uint32_t)(round * 8 + i)) % 1000);
        confidence[i] = (float)i / 4 - 1;
    }
    drafts[1] = 18 + round; /* which the target takes: the next round's anchor */
    if (planted) drafts[2] += 1, confidence[2] = NAN;
    for (int s = 0; s < SLOTS; s++) {
        put_value(w, round, slots[s], "pos", FMT_DTYPE_I32, pos, 1, 2, 1);
        put_rows(w, round, slots[s], "main_x", 2, 0);
        put_rows(w, round, slots[s], "s0.main_kv", 2, 0);
    }
    put_value(w, round, -1, "draft.slots", FMT_DTYPE_I32, slots, 1, SLOTS, 1);
    put_value(w, round, -1, "draft.anchor", FMT_DTYPE_I32, anchor, 1, SLOTS, 1);
    put_value(w, round, -1, "draft.pos", FMT_DTYPE_I32, last, 1, SLOTS, 1);
    put_value(w, round, -1, "draft.n_out", FMT_DTYPE_I32, &n_out, 1, 1, 1);
    for (int s = 0; s < SLOTS; s++) put_rows(w, round, slots[s], "s0.window", 2, 0);
    put_value(w, round, -1, "ids", FMT_DTYPE_I32, ids, 1, BLOCK * SLOTS, 1);
    put_value(w, round, -1, "block_pos", FMT_DTYPE_I32, ids, 1, BLOCK * SLOTS, 1);
    put_rows(w, round, -1, "x0", BLOCK * SLOTS, 0);
    put_qdq(w, round, "s0.attn.o_qdq", planted && round == 2);
    put_rows(w, round, -1, "s0.attn_out", BLOCK * SLOTS, planted ? 3 : 0);
    put_rows(w, round, -1, "s0.attn.stream", BLOCK * SLOTS, planted ? 5 : 0);
    put_routing(w, round, planted);
    put_rows(w, round, -1, "s0.ffn_out", BLOCK * SLOTS, planted ? 8 : 0);
    put_rows(w, round, -1, "s0.out", BLOCK * SLOTS, planted ? 12 : 0);
    put_top(w, round, drafts);
    put_value(w, round, -1, "drafts", FMT_DTYPE_I32, drafts, 2, SLOTS, N_OUT);
    put_value(w, round, -1, "confidence", FMT_DTYPE_F32, confidence, 2, SLOTS, N_OUT);
}

static inline fmt_tape *make_tape(const char *path, const char *arm, plant p)
{
    eng_config c;
    fmt_tape *t;
    fmt_tape_writer *w;
    assert_true(eng_config_preset("tiny", &c));
    json_t *head = json_pack("{s:s, s:s, s:{s:{s:s}, s:s, s:i, s:s}, s:o}", "format", "sparktape", "level", "v1",
                             "identity", "arm", "name", arm, "acc", "blocked", "tp", 1, "combine", "exact", "config",
                             eng_config_json(&c));
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    for (int32_t r = 0; r < ROUNDS; r++) put_round(w, r, p.on && r == p.round);
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open(path, &t, e));
    return t;
}

/* ---- screens ---- */

/* An app on n tapes, all compared; shared arms are compared once for many apps. */
typedef struct stage { tui_arms own, *arms; tui_app app; } stage;

static inline void stage_open_on(stage *s, tui_arms *arms, int32_t width, int32_t height, bool ascii)
{
    const tui_tools tools = { .ascii = ascii };
    s->arms = arms;
    OK(tui_app_init(&s->app, arms, &tools, width, height, e));
    tui_app_draw(&s->app);
}

static inline void stage_open(stage *s, const fmt_tape *const *tapes, int n, int32_t width, int32_t height, bool ascii)
{
    OK(tui_arms_init(&s->own, tapes, n, e));
    OK(tui_arms_start(&s->own, false, e));
    stage_open_on(s, &s->own, width, height, ascii);
}

static inline void stage_close(stage *s)
{
    tui_app_fini(&s->app);
    if (s->arms == &s->own) tui_arms_fini(&s->own);
}

/* Plays keys as a key file has them. */
static inline void stage_play(stage *s, const char *keys)
{
    int32_t *key;
    size_t n;
    OK(tui_keys_parse(keys, strlen(keys), "test", &key, &n, e));
    for (size_t i = 0; i < n && tui_app_key(&s->app, key[i]); i++) tui_app_draw(&s->app);
    free(key);
}

/* The screen as text; the caller frees it. */
static inline char *stage_text(stage *s)
{
    char *text = tui_canvas_text(tui_app_draw(&s->app));
    assert_non_null(text);
    return text;
}

static inline char *screen_of_arms(const fmt_tape *const *tapes, int n, const char *keys, int32_t width, int32_t height,
                                   bool ascii)
{
    stage s;
    stage_open(&s, tapes, n, width, height, ascii);
    stage_play(&s, keys);
    char *text = stage_text(&s);
    stage_close(&s);
    return text;
}

/* b NULL: one tape alone. */
static inline char *screen_of(const fmt_tape *a, const fmt_tape *b, const char *keys, int32_t width, int32_t height,
                              bool ascii)
{
    const fmt_tape *tapes[] = { a, b };
    return screen_of_arms(tapes, b ? 2 : 1, keys, width, height, ascii);
}

#endif
