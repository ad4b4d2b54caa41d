/* One small checkpoint and script, and recordings of it. */
#ifndef TESTS_CAPTURE_RECORDER_HELP_H
#define TESTS_CAPTURE_RECORDER_HELP_H

#include "tape_help.h"

#include "base/mem.h"
#include "capture/recorder.h"
#include "engine/identity.h"
#include "engine/synth.h"
#include "engine/traffic.h"

/* Prompts reach 172 rows: more than one bucket of the engine. */
static const eng_config CONFIG = {
    .vocab = 600, .dim = 96, .n_layers = 40, .n_stages = 2, .block = 5, .noise_id = 599, .n_taps = 2,
    .tap_layer = { 37, 38 }, .markov_rank = 8, .n_experts = 4, .n_active = 2, .inter = 64, .n_heads = 4, .head_dim = 32,
    .rope_dim = 16, .q_lora = 64, .o_groups = 2, .o_lora = 32, .window = 64, .hc = 4, .sinkhorn_iters = 20,
    .norm_eps = 1e-20, .hc_eps = 1e-6, .route_scale = 1.5, .swiglu_limit = 10, .rope_theta = 10000,
};
static eng_weights *weights;

static int make_model(void **state)
{
    eng_synth_report synth;
    eng_traffic_report traffic;
    if (enter_folder(state) != 0) return -1;
    setenv("XDG_CACHE_HOME", ".", 1);
    OK(eng_synth_checkpoint("model", &CONFIG, 1, true, &synth, e));
    OK(eng_traffic_write("script.safetensors", &CONFIG, 4, 4, 1, true, &traffic, e));
    OK(eng_weights_open("model", true, &weights, e));
    return 0;
}

static int drop_model(void **state)
{
    (void)state;
    eng_weights_close(weights);
    return 0;
}

static inline eng_options options_of(int tp, const char *mode)
{
    eng_options o;
    const eng_option_words words = { .mode = mode, .tp = tp };
    OK(eng_options_parse(&words, 1, &o, e));
    return o;
}

/* A recording under way. */
typedef struct session {
    eng_script *script;
    eng_engine *engine;
    cap_recorder *recorder;
} session;

static inline session begin(const char *path, int tp, const char *mode, const cap_options *o)
{
    const eng_options run = options_of(tp, mode);
    session s;
    OK(eng_script_open("script.safetensors", &CONFIG, &s.script, e));
    OK(eng_open(weights, &run, eng_script_slots(s.script), cap_retain_level(o), true, &s.engine, e));
    json_t *identity = eng_identity(weights, &run);
    OK(cap_recorder_open(s.engine, path, identity, o, &s.recorder, e));
    json_decref(identity);
    return s;
}

/* Round i of the script; kept: as a recorded one. */
static inline err_code run_round(const session *s, int32_t i, bool kept, err *e)
{
    const eng_round *round = eng_script_at(s->script, i);
    int32_t of_inserts[16], of_draft[16];
    for (int32_t k = 0; k < round->n_inserts; k++) of_inserts[k] = eng_script_dense(s->script, round->inserts[k].slot);
    for (int32_t k = 0; k < round->batch; k++) of_draft[k] = eng_script_dense(s->script, round->slots[k]);
    return kept ? cap_recorder_round(s->recorder, round, of_inserts, of_draft, NULL, e)
                : cap_recorder_skip_round(s->recorder, round, of_inserts, of_draft, NULL, e);
}

static inline void end_session(session *s)
{
    eng_close(s->engine);
    eng_script_close(s->script);
}

static inline fmt_tape *record_script(const char *path, int tp, const char *mode, const cap_options *o)
{
    session s = begin(path, tp, mode, o);
    fmt_tape *t;
    for (int32_t i = 0; i < eng_script_rounds(s.script); i++) OK(run_round(&s, i, true, e));
    OK(cap_recorder_finish(s.recorder, e));
    end_session(&s);
    OK(fmt_tape_open(path, &t, e));
    return t;
}

/* The same with more rounds. */
enum { ROUNDS = 10 };
static inline int make_long_model(void **state)
{
    eng_traffic_report traffic;
    if (make_model(state) != 0) return -1;
    OK(eng_traffic_write("script.safetensors", &CONFIG, ROUNDS, 4, 1, true, &traffic, e));
    return 0;
}

static inline cap_counts counts_of(const session *s)
{
    cap_counts c;
    cap_recorder_counts(s->recorder, &c);
    return c;
}

/* Until the writer is through with n rounds, kept or not. */
static inline void wait_rounds(const session *s, uint64_t n)
{
    for (cap_counts c = counts_of(s); c.rounds + c.dropped < n; c = counts_of(s)) usleep(200);
}

static bf16 ROW[2 * 96] = { 0x3f80, 0x4000 };

/* A round of one step: one row into slot 0, at position `round`. */
static inline err_code short_round(const session *s, int32_t round, err *e)
{
    const eng_insert_event in = { 0, 1, ROW, &round };
    const eng_round at = { .round = round, .n_inserts = 1, .inserts = &in };
    return cap_recorder_round(s->recorder, &at, &(int32_t){ 0 }, NULL, NULL, e);
}

static inline fmt_tape *finish(session *s, const char *path)
{
    fmt_tape *t;
    OK(cap_recorder_finish(s->recorder, e));
    end_session(s);
    OK(fmt_tape_open(path, &t, e));
    assert_true(fmt_tape_finished(t));
    return t;
}

static inline json_int_t number(const fmt_tape *t, const char *key)
{
    const json_t *n = json_object_get(fmt_tape_summary(t), key);
    if (!json_is_integer(n)) fail_msg("the summary lacks %s", key);
    return json_integer_value(n);
}

static inline bool has_round(const fmt_tape *t, int32_t round)
{
    size_t first, n;
    fmt_tape_round_span(t, round, &first, &n);
    return n > 0;
}

#endif
