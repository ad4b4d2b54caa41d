/* A small recorded run, and copies of its tape with one thing changed. */
#ifndef TESTS_REPLAY_REPLAY_HELP_H
#define TESTS_REPLAY_REPLAY_HELP_H

#include "tests/support/ok.h"

#include "base/mem.h"
#include "capture/joined.h"
#include "capture/recorder.h"
#include "engine/identity.h"
#include "engine/synth.h"
#include "engine/traffic.h"
#include "formats/number.h"

#include <unistd.h>

typedef struct shared_things {
    eng_weights *weights;
    eng_script *script;
} shared_things;

/* A synthetic checkpoint and four rounds of two requests, made once per test program in a folder of its own. */
static shared_things shared_run;

static inline eng_options run_options(const char *arm, int64_t tp, const char *mode)
{
    eng_options o;
    OK(eng_options_parse(&(eng_option_words){ .arm = arm, .tp = tp, .mode = mode }, 1, &o, e));
    return o;
}

static int run_setup(void **state)
{
    static char folder[] = "replay-test-XXXXXX";
    eng_config c;
    eng_synth_report synth;
    eng_traffic_report traffic;
    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0) return -1;
    setenv("XDG_CACHE_HOME", "cache", 1);
    assert_true(eng_config_preset("tiny", &c));
    OK(eng_synth_checkpoint("model", &c, 11, true, &synth, e));
    OK(eng_weights_open("model", true, &shared_run.weights, e));
    OK(eng_traffic_write("script.safetensors", &c, 4, 2, 5, true, &traffic, e));
    OK(eng_script_open("script.safetensors", &c, &shared_run.script, e));
    return 0;
}

static int run_teardown(void **state)
{
    (void)state;
    eng_script_close(shared_run.script);
    eng_weights_close(shared_run.weights);
    return 0;
}

/* Records the shared rounds. */
static inline fmt_tape *record(const char *path, const eng_options *o, eng_level level)
{
    const eng_script *s = shared_run.script;
    const cap_options options = { .level = level };
    eng_engine *g;
    cap_recorder *r;
    fmt_tape *t;
    json_t *identity = eng_identity(shared_run.weights, o);
    OK(eng_open(shared_run.weights, o, eng_script_slots(s), cap_retain_level(&options), true, &g, e));
    OK(cap_recorder_open(g, path, identity, &options, &r, e));
    for (int32_t i = 0; i < eng_script_rounds(s); i++) {
        const eng_round *round = eng_script_at(s, i);
        int32_t inserts[8], drafts[ENG_BATCH_MAX];
        assert_true(round->n_inserts <= 8);
        for (int32_t k = 0; k < round->n_inserts; k++) inserts[k] = eng_script_dense(s, round->inserts[k].slot);
        for (int32_t k = 0; k < round->batch; k++) drafts[k] = eng_script_dense(s, round->slots[k]);
        OK(cap_recorder_round(r, round, inserts, drafts, NULL, e));
    }
    OK(cap_recorder_finish(r, e));
    eng_close(g);
    json_decref(identity);
    OK(fmt_tape_open(path, &t, e));
    return t;
}

/* Changes one record's bytes (or its tensor's shape) on the way into a copy. false: leave the record out. */
typedef bool (*edit_fn)(void *ctx, fmt_tape_record *r, uint8_t *data);

static inline fmt_tape *copy_tape(const fmt_tape *t, const char *path, edit_fn edit, void *ctx)
{
    fmt_tape_writer *w;
    fmt_tape *copy;
    OK(fmt_tape_create(path, fmt_tape_head(t), &w, e));
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        uint8_t *data = mem_alloc(r.raw_bytes, 1);
        OK(fmt_tape_get(t, i, data, r.raw_bytes, e));
        if (edit(ctx, &r, data)) {
            r.tensor.data = data;
            OK(fmt_tape_put(w, &r.key, &r.tensor, r.place, r.axis, r.n_ranks, r.tier, e));
        }
        free(data);
    }
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open(path, &copy, e));
    return copy;
}

/* A copy of the file of t with one bit of a byte flipped, in a data chunk: only reading it finds the damage. *n_lost:
 * records that cannot be read. */
static inline fmt_tape *damage_tape(const fmt_tape *t, const char *path, uint64_t at, int64_t *n_lost)
{
    fmt_tape *copy;
    uint64_t bytes = fmt_tape_file_bytes(t);
    uint8_t *data = mem_alloc(bytes, 1);
    FILE *f = fopen(fmt_tape_path(t), "rb");
    assert_true(data && at < bytes && f && fread(data, 1, bytes, f) == bytes);
    fclose(f);
    data[at] ^= 4;
    f = fopen(path, "wb");
    assert_true(f && fwrite(data, 1, bytes, f) == bytes);
    fclose(f);
    free(data);
    OK(fmt_tape_open(path, &copy, e));
    cap_value v = { 0 };
    *n_lost = 0;
    for (size_t i = 0; i < fmt_tape_count(copy); i++) *n_lost += cap_record_get(copy, i, &v, NULL) == ERR_FORMAT;
    cap_value_fini(&v);
    return copy;
}

/* An edit that flips the lowest bit of the first byte of values, named "round/slot/name" (slot -1: none). */
typedef struct flips { const char *at[4]; int n_done; } flips;

static inline bool is_at(const fmt_tape_record *r, const char *at)
{
    char text[FMT_TAPE_NAME_BYTES + 32];
    snprintf(text, sizeof text, "%d/%d/%s", r->key.round, r->key.slot, r->key.name);
    return strcmp(text, at) == 0;
}

static inline bool flip_bits(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    flips *f = ctx;
    for (int i = 0; i < 4 && f->at[i]; i++)
        if (is_at(r, f->at[i])) {
            data[0] ^= 1;
            f->n_done++;
        }
    return true;
}

/* A copy of t in which one value, of a chunk of its own, cannot be read. */
static inline fmt_tape *lose_value(const fmt_tape *t, const char *value)
{
    fmt_tape_writer *w;
    fmt_tape *whole;
    uint64_t from = 0, to = 0;
    int64_t n_lost;
    OK(fmt_tape_create("whole.tape", fmt_tape_head(t), &w, e));
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        cap_value v = { 0 };
        fmt_tape_at(t, i, &r);
        bool this_one = is_at(&r, value);
        OK(cap_record_get(t, i, &v, e));
        if (this_one) {
            OK(fmt_tape_flush(w, e));
            from = fmt_tape_written_bytes(w);
        }
        OK(fmt_tape_put(w, &r.key, &v.tensor, r.place, r.axis, r.n_ranks, r.tier, e));
        if (this_one) {
            OK(fmt_tape_flush(w, e));
            to = fmt_tape_written_bytes(w);
        }
        cap_value_fini(&v);
    }
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open("whole.tape", &whole, e));
    fmt_tape *damaged = damage_tape(whole, "damaged.tape", (from + to) / 2, &n_lost);
    assert_int_equal(n_lost, 1);
    fmt_tape_close(whole);
    return damaged;
}

#endif
