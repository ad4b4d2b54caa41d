#include "replay/replay.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "engine/device.h"
#include "engine/fault.h"
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
    const char *head = identity_word(json_object_get(identity, "arm"), "head");
    if (!words->head && same_arm && head && strcmp(head, eng_rep_name(ENG_REP_EXL3)) == 0) words->head = "k6";
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

/* A slot of the last wanted round of a lean replay, and the first position that it reads of it. */
typedef struct reach { int32_t slot, from; } reach;

/* A replay under way. */
typedef struct job {
    const rpl_replay_options *options;
    bool lean;
    int32_t end;              /* rounds that are run */
    reach *reach;
    int32_t n_reaches;
    eng_insert_event *insert; /* of a round, those that are wanted */
    int32_t *slot;
    const bf16 **main_x;
    size_t insert_capacity, slot_capacity, main_x_capacity;
    rpl_feed *feed;
    eng_engine *engine;
    cap_recorder *recorder;
    rpl_restore *restore;
} job;

static err_code no_memory(err *e) { return err_set(e, ERR_NOMEM, "replay: no memory for the rows of a round"); }

/* What the last wanted round reads: of each of its slots the window up to its last position. */
static err_code plan_lean(job *j, err *e)
{
    rpl_fed f;
    int32_t window = eng_config_of(j->engine)->window;
    while (j->end > 0 && !j->options->only[j->end - 1]) j->end--;
    if (j->end == 0) return ERR_OK;
    TRY(rpl_feed_round(j->feed, j->end - 1, &f, e));
    j->reach = mem_alloc((size_t)f.in.n_inserts + (size_t)f.in.batch + 1, sizeof *j->reach);
    if (!j->reach) return no_memory(e);
    for (int32_t k = 0; k < f.in.n_inserts; k++)
        j->reach[j->n_reaches++] = (reach){ f.in.inserts[k].slot, f.in.inserts[k].pos[0] - window + 1 };
    for (int32_t b = 0; b < f.in.batch; b++)
        j->reach[j->n_reaches++] = (reach){ f.in.slots[b], f.in.pos[b] - window + 1 };
    return ERR_OK;
}

static bool is_read(const job *j, const eng_insert_event *in)
{
    for (int32_t k = 0; k < j->n_reaches; k++)
        if (j->reach[k].slot == in->slot && in->pos[in->rows - 1] >= j->reach[k].from) return true;
    return false;
}

/* Leaves of a round that is not wanted the inserts that a wanted one reads. */
static err_code thin_out(job *j, rpl_fed *f, err *e)
{
    void *inserts = j->insert, *slots = j->slot, *main_x = j->main_x;
    bool fine = mem_grow(&inserts, &j->insert_capacity, (size_t)f->in.n_inserts + 1, sizeof *j->insert);
    j->insert = inserts;
    fine = mem_grow(&slots, &j->slot_capacity, (size_t)f->in.n_inserts + 1, sizeof *j->slot) && fine;
    j->slot = slots;
    fine = mem_grow(&main_x, &j->main_x_capacity, (size_t)f->in.n_inserts + 1, sizeof *j->main_x) && fine;
    j->main_x = main_x;
    if (!fine) return no_memory(e);
    int32_t n = 0;
    for (int32_t k = 0; k < f->in.n_inserts; k++) {
        if (!is_read(j, &f->in.inserts[k])) continue;
        j->insert[n] = f->in.inserts[k];
        j->slot[n] = f->slots_of_inserts[k];
        j->main_x[n++] = f->main_x[k];
    }
    f->in.inserts = j->insert;
    f->in.n_inserts = n;
    f->in.batch = 0;
    f->slots_of_inserts = j->slot;
    f->main_x = j->main_x;
    return ERR_OK;
}

static err_code run_round(job *j, int32_t i, err *e)
{
    rpl_fed f;
    eng_fault *fault = j->options->run.fault;
    TRY(rpl_feed_round(j->feed, i, &f, e));
    TRY(rpl_restore_round(j->restore, i, f.in.round, e));
    if (fault) fault->armed = fault->round < 0 || fault->round == f.in.round;
    if (j->lean && !j->options->only[i]) TRY(thin_out(j, &f, e));
    if (f.in.n_inserts + f.in.batch == 0) return ERR_OK; /* what was left out is all there was */
    if (j->options->only && !j->options->only[i])
        return cap_recorder_skip_round(j->recorder, &f.in, f.slots_of_inserts, f.slots_of_draft, f.main_x, e);
    return cap_recorder_round(j->recorder, &f.in, f.slots_of_inserts, f.slots_of_draft, f.main_x, e);
}

static err_code run_rounds(job *j, err *e)
{
    progress p;
    err_code rc = ERR_OK;
    progress_begin(&p, "replaying", (uint64_t)j->end, j->options->quiet);
    for (int32_t i = 0; rc == ERR_OK && i < j->end && !interrupt_seen(); i++, progress_add(&p, 1)) rc = run_round(j, i, e);
    progress_end(&p);
    return rc;
}

err_code rpl_replay_run(const fmt_tape *t, const eng_weights *w, const rpl_replay_options *o, const json_t *identity,
                        const char *path, err *e)
{
    job j = { .options = o };
    rpl_replay_report unasked = { 0 }, *report = o->report ? o->report : &unasked;
    const char *chosen = json_string_value(json_object_get(fmt_tape_head(t), "rounds"));
    if (!chosen && (o->only || cap_rounds_chosen(t))) chosen = "all"; /* that t holds: the new tape is as incomplete */
    const cap_options capture = { .level = o->level, .redact = o->redact, .rounds = chosen,
                                  .synthetic = cap_rounds_synthetic(t) };
    err_code rc = rpl_feed_open(t, eng_weights_config(w), o->windows, o->redact, &j.feed, e);
    if (rc == ERR_OK)
        rc = eng_open(w, &o->run, rpl_feed_slots(j.feed), cap_retain_level(&capture), o->quiet, &j.engine, e);
    if (rc == ERR_OK) rc = rpl_feed_restore(j.feed, j.engine, report, &j.restore, e);
    if (rc == ERR_OK) rc = cap_recorder_open(j.engine, path, identity, &capture, &j.recorder, e);
    j.lean = o->lean && o->only && !cap_rounds_chosen(t);
    if (rc == ERR_OK) j.end = rpl_feed_count(j.feed);
    if (rc == ERR_OK && j.lean) rc = plan_lean(&j, e);
    if (rc == ERR_OK) rc = run_rounds(&j, e);
    if (rc == ERR_OK) {
        cap_recorder *recorder = j.recorder;
        j.recorder = NULL;
        rc = cap_recorder_finish(recorder, e);
        if (rc != ERR_OK && e) rc = cap_say_what_is_left(path, e);
    }
    cap_recorder_discard(j.recorder);
    rpl_restore_close(j.restore);
    rpl_replay_report_fini(&unasked);
    eng_close(j.engine);
    rpl_feed_close(j.feed);
    free(j.reach);
    free(j.insert);
    free(j.slot);
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

static bool same_key(const fmt_tape_key *a, const fmt_tape_key *b)
{
    return a->round == b->round && a->slot == b->slot && a->rank == b->rank && strcmp(a->name, b->name) == 0;
}

/* The record of t that comes `nth` (from 0) among those with its key. -1: there are fewer. */
static int64_t find_nth(const fmt_tape *t, const fmt_tape_key *key, int32_t nth)
{
    size_t first, n;
    fmt_tape_round_span(t, key->round, &first, &n);
    for (size_t i = first; i < first + n; i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        if (same_key(&r.key, key) && nth-- == 0) return (int64_t)i;
    }
    return -1;
}

void rpl_replay_repeats(const fmt_tape *a, const fmt_tape *b, rpl_repeats *out)
{
    *out = (rpl_repeats){ 0 };
    for (size_t i = 0; i < fmt_tape_count(a); i++) {
        fmt_tape_record x, y;
        fmt_tape_at(a, i, &x);
        if (x.key.rank > 0 || fmt_tape_find(a, &x.key) == (int64_t)i) continue; /* replicated: rank 0 will do */
        int32_t nth = 1;
        while (find_nth(a, &x.key, nth) != (int64_t)i) nth++;
        int64_t at = find_nth(b, &x.key, nth);
        if (at < 0) continue;
        fmt_tape_at(b, (size_t)at, &y);
        out->n++;
        bool bits = x.hash == y.hash && x.has_digest == y.has_digest && x.digest == y.digest;
        if (bits && x.tensor.dtype == y.tensor.dtype && rpl_same_shape(&x.tensor, &y.tensor)) out->n_equal++;
        else if (!out->first[0])
            snprintf(out->first, sizeof out->first, "round %d slot %d: %s of insert %d", x.key.round, x.key.slot,
                     x.key.name, nth + 1);
    }
}
