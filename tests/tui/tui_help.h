/* Two small tapes of the same two rounds, the second with a planted difference, and screens as text. */
#ifndef TESTS_TUI_TUI_HELP_H
#define TESTS_TUI_TUI_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/config.h"
#include "formats/number.h"
#include "tui/app.h"

#include <unistd.h>

#define OK(call)                                                                       \
    do {                                                                               \
        err e_ = { 0 }, *e = &e_;                                                      \
        if ((call) != ERR_OK) fail_msg("%s: %s", #call, e_.msg);                       \
    } while (0)

/* The call fails with code, and its message holds text. */
#define REFUSED(call, want_code, text)                                                   \
    do {                                                                                 \
        err e_ = { 0 }, *e = &e_;                                                        \
        err_code got_ = (call);                                                          \
        if (got_ != (want_code)) fail_msg("%s: %s: %s", #call, err_name(got_), e_.msg);  \
        if (!strstr(e_.msg, text)) fail_msg("%s: '%s' lacks '%s'", #call, e_.msg, text); \
    } while (0)

/* Runs every test of a group in a folder of its own. */
static inline int enter_folder(void **state)
{
    static char folder[] = "tui-test-XXXXXX";
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

/* ---- tapes ---- */

enum { ROUNDS = 3, SLOTS = 2, BLOCK = 5, DIM = 96, N_OUT = 4 };

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

static inline void put_round(fmt_tape_writer *w, int32_t round, bool planted)
{
    int32_t pos[2] = { round * 2, round * 2 + 1 }, slots[SLOTS] = { 0, 3 }, last[SLOTS] = { pos[1], pos[1] }, n_out = N_OUT;
    int32_t ids[BLOCK * SLOTS], drafts[SLOTS * N_OUT];
    float confidence[SLOTS * N_OUT];
    for (int i = 0; i < BLOCK * SLOTS; i++) ids[i] = i % BLOCK ? 900 : 17 + i;
    for (int i = 0; i < SLOTS * N_OUT; i++) {
        drafts[i] = (int32_t)(noise(5, (uint32_t)(round * 8 + i)) % 1000);
        confidence[i] = (float)i / 4 - 1;
    }
    if (planted) drafts[2] += 1, confidence[2] = NAN;
    for (int s = 0; s < SLOTS; s++) {
        put_value(w, round, slots[s], "pos", FMT_DTYPE_I32, pos, 1, 2, 1);
        put_rows(w, round, slots[s], "main_x", 2, 0);
        put_rows(w, round, slots[s], "s0.main_kv", 2, 0);
    }
    put_value(w, round, -1, "draft.slots", FMT_DTYPE_I32, slots, 1, SLOTS, 1);
    put_value(w, round, -1, "draft.anchor", FMT_DTYPE_I32, ids, 1, SLOTS, 1);
    put_value(w, round, -1, "draft.pos", FMT_DTYPE_I32, last, 1, SLOTS, 1);
    put_value(w, round, -1, "draft.n_out", FMT_DTYPE_I32, &n_out, 1, 1, 1);
    for (int s = 0; s < SLOTS; s++) put_rows(w, round, slots[s], "s0.window", 2, 0);
    put_value(w, round, -1, "ids", FMT_DTYPE_I32, ids, 1, BLOCK * SLOTS, 1);
    put_value(w, round, -1, "block_pos", FMT_DTYPE_I32, ids, 1, BLOCK * SLOTS, 1);
    put_rows(w, round, -1, "x0", BLOCK * SLOTS, 0);
    put_rows(w, round, -1, "s0.attn_out", BLOCK * SLOTS, planted ? 3 : 0);
    put_rows(w, round, -1, "s0.attn.stream", BLOCK * SLOTS, planted ? 5 : 0);
    put_rows(w, round, -1, "s0.ffn_out", BLOCK * SLOTS, planted ? 8 : 0);
    put_rows(w, round, -1, "s0.out", BLOCK * SLOTS, planted ? 12 : 0);
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

/* Plays keys (as a key file has them) on a fresh app and returns the screen as text; the caller frees it. */
static inline char *screen_of(const fmt_tape *a, const fmt_tape *b, const char *keys, int32_t width, int32_t height,
                              bool ascii)
{
    tui_model *m;
    tui_app app;
    int32_t *key;
    size_t n;
    OK(tui_keys_parse(keys, strlen(keys), "test", &key, &n, e));
    OK(tui_model_open(a, b, &m, e));
    OK(tui_model_finish(m, e));
    OK(tui_app_init(&app, m, width, height, ascii, e));
    tui_app_draw(&app);
    for (size_t i = 0; i < n && tui_app_key(&app, key[i]); i++) tui_app_draw(&app);
    char *text = tui_canvas_text(tui_app_draw(&app));
    assert_non_null(text);
    tui_app_fini(&app);
    tui_model_close(m);
    free(key);
    return text;
}

#endif
