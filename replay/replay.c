#include "replay/replay.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/device.h"
#include "replay/value.h"

/* A string of the head's identity; NULL when absent or "unknown" (an import). */
static const char *identity_word(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s && strcmp(s, "unknown") != 0 ? s : NULL;
}

void rpl_replay_words(const fmt_tape *t, eng_option_words *words)
{
    const json_t *identity = json_object_get(fmt_tape_head(t), "identity");
    const char *arm_name = identity_word(json_object_get(identity, "arm"), "name");
    bool same_arm = !words->arm || (arm_name && strcmp(words->arm, arm_name) == 0);
    if (!words->arm) words->arm = arm_name;
    if (!words->mode) words->mode = identity_word(identity, "mode");
    if (!words->combine) words->combine = identity_word(identity, "combine");
    if (!words->acc && same_arm) words->acc = identity_word(identity, "acc");
    const eng_arm *arm = words->arm ? eng_arm_find(words->arm) : NULL;
    if (!words->backend) { /* a tape of a card that is not here, or an arm that no card runs, is replayed by the CPU */
        words->backend = identity_word(identity, "backend");
        bool cuda = words->backend && strcmp(words->backend, eng_backend_name(ENG_BACKEND_CUDA)) == 0;
        if (cuda && (!eng_device_present() || (arm && arm->unsharded))) words->backend = eng_backend_name(ENG_BACKEND_CPU);
        else if (cuda && !words->comm) words->comm = identity_word(identity, "comm");
    }
    if (!words->tp && !(arm && arm->unsharded)) words->tp = json_integer_value(json_object_get(identity, "tp"));
}

eng_level rpl_replay_level(const fmt_tape *t)
{
    const char *text = json_string_value(json_object_get(fmt_tape_head(t), "level"));
    eng_level level;
    return text && eng_level_parse(text, &level) && level != ENG_LEVEL_OFF ? level : ENG_LEVEL_DEEP;
}

/* A replay under way. */
typedef struct job {
    const fmt_tape *tape;
    const rpl_replay_options *options;
    cap_rounds *rounds;
    eng_engine *engine;
    cap_recorder *recorder;
    int32_t *slots;      /* engine slots of the round's inserts, then of its draft */
    const bf16 **main_x; /* per insert, NULL: from taps */
    size_t slots_capacity, main_x_capacity;
} job;

/* Engine slots and the source of each insert's rows. */
static err_code prepare_round(job *j, const eng_round *r, const bf16 *const *recorded_main_x, err *e)
{
    size_t n_inserts = (size_t)r->n_inserts;
    void *slots = j->slots, *main_x = j->main_x;
    bool fine = mem_grow(&slots, &j->slots_capacity, n_inserts + (size_t)r->batch + 1, sizeof *j->slots);
    j->slots = slots;
    fine = mem_grow(&main_x, &j->main_x_capacity, n_inserts + 1, sizeof *j->main_x) && fine;
    j->main_x = main_x;
    if (!fine) return err_set(e, ERR_NOMEM, "replay: no memory for round %d", r->round);
    for (int32_t i = 0; i < r->n_inserts; i++) {
        const eng_insert_event *in = &r->inserts[i];
        rpl_windows w = j->options->windows;
        if (w == RPL_WINDOWS_AUTO) w = in->taps ? RPL_WINDOWS_B : RPL_WINDOWS_A;
        if (w == RPL_WINDOWS_A ? !recorded_main_x[i] : !in->taps)
            return err_set(e, ERR_INPUT, "%s: round %d slot %d: found no %s, wanted by --windows %s",
                           fmt_tape_path(j->tape), r->round, in->slot, w == RPL_WINDOWS_A ? "main_x" : "taps",
                           w == RPL_WINDOWS_A ? "A" : "B");
        j->slots[i] = cap_rounds_dense(j->rounds, in->slot);
        j->main_x[i] = w == RPL_WINDOWS_A ? recorded_main_x[i] : NULL;
    }
    for (int32_t b = 0; b < r->batch; b++) j->slots[r->n_inserts + b] = cap_rounds_dense(j->rounds, r->slots[b]);
    return ERR_OK;
}

static err_code run_rounds(job *j, err *e)
{
    progress p;
    err_code rc = ERR_OK;
    int32_t n = cap_rounds_count(j->rounds);
    progress_begin(&p, "replaying", (uint64_t)n, j->options->quiet);
    for (int32_t i = 0; rc == ERR_OK && i < n; i++) {
        eng_round r;
        const bf16 *const *main_x;
        rc = cap_rounds_at(j->rounds, i, &r, &main_x, e);
        if (rc == ERR_OK) rc = prepare_round(j, &r, main_x, e);
        if (rc == ERR_OK) rc = cap_recorder_round(j->recorder, &r, j->slots, j->slots + r.n_inserts, j->main_x, e);
        progress_add(&p, 1);
    }
    progress_end(&p);
    return rc;
}

err_code rpl_replay_run(const fmt_tape *t, const eng_weights *w, const rpl_replay_options *o, const json_t *identity,
                        const char *path, err *e)
{
    job j = { .tape = t, .options = o };
    const cap_options capture = { .level = o->level };
    err_code rc = cap_rounds_open(t, eng_weights_config(w), &j.rounds, e);
    if (rc == ERR_OK)
        rc = eng_open(w, &o->run, cap_rounds_slots(j.rounds), cap_retain_level(&capture), o->quiet, &j.engine, e);
    if (rc == ERR_OK) rc = cap_recorder_open(j.engine, path, identity, &capture, &j.recorder, e);
    if (rc == ERR_OK) rc = run_rounds(&j, e);
    if (rc == ERR_OK) {
        cap_recorder *recorder = j.recorder;
        j.recorder = NULL;
        rc = cap_recorder_finish(recorder, e);
    }
    cap_recorder_discard(j.recorder);
    eng_close(j.engine);
    cap_rounds_close(j.rounds);
    free(j.slots);
    free(j.main_x);
    return rc;
}

bool rpl_replay_same(const fmt_tape *a, const fmt_tape *b, char what[192])
{
    size_t n_a = fmt_tape_count(a), n_b = fmt_tape_count(b), n = n_a < n_b ? n_a : n_b;
    for (size_t i = 0; i < n; i++) {
        fmt_tape_record x, y;
        fmt_tape_at(a, i, &x);
        fmt_tape_at(b, i, &y);
        bool key = x.key.round == y.key.round && x.key.slot == y.key.slot && x.key.rank == y.key.rank &&
                   strcmp(x.key.name, y.key.name) == 0;
        bool bits = x.hash == y.hash && x.has_digest == y.has_digest && x.digest == y.digest;
        if (key && bits && x.tensor.dtype == y.tensor.dtype && rpl_same_shape(&x.tensor, &y.tensor)) continue;
        snprintf(what, 192, "round %d %s rank %d", x.key.round, x.key.name, x.key.rank);
        return false;
    }
    if (n_a == n_b) return true;
    snprintf(what, 192, "%zu records against %zu", n_a, n_b);
    return false;
}
