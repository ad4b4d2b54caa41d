#include "tui/model_state.h"

#include "base/mem.h"
#include "engine/identity.h"

#include <math.h>

enum { KEPT_BYTES = 16 << 20 }; /* of full results: a screen shows one round, of a hundred KB or so */
enum { READ_BYTES = 64 << 20 }; /* of values compared, after which the tapes' mapped pages are given back */

const tui_verdict_look TUI_VERDICT[TUI_VERDICT_COUNT] = {
    [TUI_VERDICT_NONE] = { "-", "not compared", TUI_DIM },
    [TUI_VERDICT_PENDING] = { "\u2026", "pending", TUI_DIM },
    [TUI_VERDICT_EQUAL] = { "=", "equal", TUI_EQUAL },
    [TUI_VERDICT_INHERITED] = { "\u2193", "inherited", TUI_INHERITED },
    [TUI_VERDICT_DIFFERS] = { "\u2260", "differs", TUI_DIFFERS },
    [TUI_VERDICT_INPUT] = { "i", "input", TUI_DIFFERS },
    [TUI_VERDICT_ORIGIN] = { "o", "origin", TUI_ORIGIN },
    [TUI_VERDICT_BROKEN] = { "!", "broken", TUI_WARN },
};

tui_verdict tui_verdict_of(const rpl_value *v)
{
    static const tui_verdict OF_CLASS[RPL_CLASS_COUNT] = {
        [RPL_CLASS_EQUAL] = TUI_VERDICT_EQUAL, [RPL_CLASS_ORIGIN] = TUI_VERDICT_ORIGIN,
        [RPL_CLASS_INHERITED] = TUI_VERDICT_INHERITED, [RPL_CLASS_INPUT] = TUI_VERDICT_INPUT,
        [RPL_CLASS_UNPLACED] = TUI_VERDICT_DIFFERS, [RPL_CLASS_NONE] = TUI_VERDICT_NONE,
    };
    bool broken = v->state == RPL_STATE_DTYPE || v->state == RPL_STATE_SHAPE || v->state == RPL_STATE_UNREADABLE;
    return broken ? TUI_VERDICT_BROKEN : OF_CLASS[v->cls];
}

/* ---- comparing ---- */

/* The round's comparison summed for one request. */
static tui_summary summarise(const tui_request *r, const rpl_round *round)
{
    tui_summary s = { .verdict = TUI_VERDICT_NONE, .first_origin = -1, .worst = -1, .n_same = -1,
                      .worst_rel_l2 = (double)NAN, .kl = (double)NAN };
    for (int32_t i = 0; i < round->n_values; i++) {
        const rpl_value *v = &round->value[i];
        if (v->slot != FMT_TAPE_NO_SLOT && v->slot != r->slot) continue;
        tui_verdict verdict = tui_verdict_of(v);
        if (verdict > s.verdict) s.verdict = verdict;
        if (verdict == TUI_VERDICT_ORIGIN && s.first_origin < 0) s.first_origin = i;
        if (v->state != RPL_STATE_COMPARED) continue;
        if (tui_is_different(verdict) && tui_is_float(v->a.dtype) && !(v->m.rel_l2 <= s.worst_rel_l2)) {
            s.worst_rel_l2 = v->m.rel_l2;
            s.worst = i;
        }
        if (v->has_logits && !(v->logits.kl_max <= s.kl)) s.kl = v->logits.kl_max;
    }
    for (int32_t i = 0; i < round->n_drafts; i++)
        if (round->draft[i].entry == r->entry) {
            s.n_same = round->draft[i].n_same;
            s.drafts_equal = round->draft[i].exact;
        }
    return s;
}

/* Takes in a result and puts the oldest ones aside, but never this one or the one on the screen. Locked. */
static void keep(tui_model *m, int32_t i, const rpl_round *r)
{
    int32_t rounds = tui_model_rounds(m);
    m->result[i] = r;
    m->kept[(m->kept_first + m->n_kept++) % rounds] = i;
    m->kept_bytes += rpl_round_bytes(r);
    for (int32_t n = m->n_kept; n > 0 && m->kept_bytes > KEPT_BYTES; n--) {
        int32_t old = m->kept[m->kept_first];
        m->kept_first = (m->kept_first + 1) % rounds;
        m->n_kept--;
        if (old == i || old == m->shown) {
            m->kept[(m->kept_first + m->n_kept++) % rounds] = old;
            continue;
        }
        m->kept_bytes -= rpl_round_bytes(m->result[old]);
        m->result[old] = NULL;
        rpl_compare_forget(m->compare, old);
    }
    if (m->compared[i]) return;
    for (int32_t k = m->first_request[i]; k < m->first_request[i + 1]; k++) m->summary[k] = summarise(&m->request[k], r);
    m->compared[i] = true;
    atomic_fetch_add(&m->n_done, 1);
}

/* Compares a round with the lock let go. Locked. */
static void compare_one(tui_model *m, int32_t i)
{
    const rpl_round *r;
    pthread_mutex_unlock(&m->lock);
    err_code rc = rpl_compare_round(m->compare, i, &r, NULL);
    m->read_bytes += rc == ERR_OK ? r->n_bytes : 0;
    if (m->read_bytes > READ_BYTES) {
        m->read_bytes = 0;
        for (int side = TUI_A; side < TUI_SIDES; side++) fmt_tape_let_go(m->tape[side]);
    }
    pthread_mutex_lock(&m->lock);
    if (rc == ERR_OK) keep(m, i, r);
    else atomic_store(&m->failed, true);
}

/* The round to compare next: the wanted one, else the first that is left unless it pauses. NO_ROUND: none. Locked. */
static int32_t take_next(tui_model *m)
{
    int32_t i = m->wanted;
    m->wanted = NO_ROUND;
    if (i != NO_ROUND && !m->result[i]) return i;
    while (m->next < tui_model_rounds(m) && m->compared[m->next]) m->next++;
    return m->paused || m->next == tui_model_rounds(m) ? NO_ROUND : m->next;
}

static void *compare_rounds(void *model)
{
    tui_model *m = model;
    pthread_mutex_lock(&m->lock);
    while (!atomic_load(&m->stop) && !atomic_load(&m->failed)) {
        int32_t i = take_next(m);
        if (i != NO_ROUND) compare_one(m, i);
        else pthread_cond_wait(&m->change, &m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

err_code tui_model_start(tui_model *m, err *e)
{
    if (!m->compare || m->started) return ERR_OK;
    int failure = tui_thread_start(&m->thread, compare_rounds, m);
    if (failure) return err_set(e, ERR_SYSTEM, "a thread cannot be started: %s", strerror(failure));
    m->started = true;
    return ERR_OK;
}

err_code tui_model_finish(tui_model *m, err *e)
{
    if (!m->compare) return ERR_OK;
    pthread_mutex_lock(&m->lock);
    for (int32_t i = take_next(m); i != NO_ROUND && !atomic_load(&m->failed); i = take_next(m)) compare_one(m, i);
    pthread_mutex_unlock(&m->lock);
    return atomic_load(&m->failed) ? err_set(e, ERR_NOMEM, "comparison: no memory") : ERR_OK;
}

void tui_model_pause(tui_model *m, bool on)
{
    if (!m->compare) return;
    pthread_mutex_lock(&m->lock);
    m->paused = on;
    pthread_cond_signal(&m->change);
    pthread_mutex_unlock(&m->lock);
}

void tui_model_want(tui_model *m, int32_t round_index)
{
    if (!m->compare) return;
    pthread_mutex_lock(&m->lock);
    m->shown = round_index;
    if (!m->result[round_index]) {
        m->wanted = round_index;
        pthread_cond_signal(&m->change);
    }
    pthread_mutex_unlock(&m->lock);
}

int32_t tui_model_rounds(const tui_model *m) { return rpl_ordered_rounds(m->ordered); }
int32_t tui_model_rounds_done(const tui_model *m) { return atomic_load(&m->n_done); }

bool tui_model_is_working(tui_model *m)
{
    if (!m->started || atomic_load(&m->failed)) return false;
    pthread_mutex_lock(&m->lock);
    bool working = m->wanted != NO_ROUND || (m->shown != NO_ROUND && !m->result[m->shown]) ||
                   (!m->paused && tui_model_rounds_done(m) < tui_model_rounds(m));
    pthread_mutex_unlock(&m->lock);
    return working;
}

const rpl_round *tui_model_result(tui_model *m, int32_t round_index)
{
    if (!m->compare) return NULL;
    tui_model_want(m, round_index);
    pthread_mutex_lock(&m->lock);
    if (!m->started && m->compared[round_index] && !m->result[round_index]) compare_one(m, round_index);
    const rpl_round *r = m->result[round_index];
    pthread_mutex_unlock(&m->lock);
    return r;
}

void tui_model_adopt(tui_model *m, tui_model *old)
{
    int32_t k = 0;
    if (!m->compare || !old->compare) return;
    pthread_mutex_lock(&old->lock);
    pthread_mutex_lock(&m->lock);
    for (int32_t i = 0; i < tui_model_rounds(m); i++) {
        int32_t n, n_old, number = rpl_ordered_number(m->ordered, i);
        while (k < tui_model_rounds(old) && rpl_ordered_number(old->ordered, k) < number) k++;
        if (k == tui_model_rounds(old) || rpl_ordered_number(old->ordered, k) != number || !old->compared[k]) continue;
        tui_model_values(m, i, &n);
        tui_model_values(old, k, &n_old);
        int32_t requests = m->first_request[i + 1] - m->first_request[i];
        if (n != n_old || requests != old->first_request[k + 1] - old->first_request[k]) continue; /* it has grown */
        memcpy(m->summary + m->first_request[i], old->summary + old->first_request[k],
               (size_t)requests * sizeof *m->summary);
        m->compared[i] = true;
        atomic_fetch_add(&m->n_done, 1);
    }
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_unlock(&old->lock);
}

/* ---- open and close ---- */

static const char *word_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "?";
}

void tui_model_identity(const tui_model *m, int side, char *buf, size_t bytes)
{
    const json_t *head = fmt_tape_head(m->tape[side]), *identity = json_object_get(head, "identity");
    const char *arm = word_of(json_object_get(identity, "arm"), "name");
    int tp = (int)json_integer_value(json_object_get(identity, "tp"));
    snprintf(buf, bytes, "%s, %s, tp %d, %s, %s", arm, word_of(identity, "acc"), tp, word_of(identity, "combine"),
             word_of(head, "level"));
}

static err_code open_lone(tui_model *m, err *e)
{
    eng_config config;
    TRY(cap_names_make(m->tape[TUI_A], &m->lone.names, e));
    TRY(rpl_ordered_make(m->lone.names, NULL, &m->lone.ordered, e));
    m->names[TUI_A] = m->lone.names;
    m->ordered = m->lone.ordered;
    const json_t *object = json_object_get(fmt_tape_head(m->tape[TUI_A]), "config");
    if (!object || eng_config_parse(object, "tape head", &config, NULL) != ERR_OK) return ERR_OK;
    const eng_reps reps = eng_identity_reps(json_object_get(fmt_tape_head(m->tape[TUI_A]), "identity"));
    for (int step = 0; step < N_STEPS; step++) {
        TRY(eng_program_make(&config, (eng_step_kind)step, 1, ENG_COMBINE_EXACT, &reps, &m->lone.program[step], e));
        m->program[step] = m->lone.program[step];
    }
    return ERR_OK;
}

static err_code open_pair(tui_model *m, err *e)
{
    TRY(rpl_compare_open(m->tape[TUI_A], m->tape[TUI_B], NULL, NULL, &m->compare, e));
    for (int side = TUI_A; side < TUI_SIDES; side++) m->names[side] = rpl_compare_names(m->compare, side);
    for (int step = 0; step < N_STEPS; step++) m->program[step] = rpl_compare_program(m->compare, (eng_step_kind)step);
    m->ordered = rpl_compare_ordered(m->compare);
    size_t rounds = (size_t)tui_model_rounds(m) + 1;
    m->result = mem_alloc(rounds, sizeof *m->result);
    m->kept = mem_alloc(rounds, sizeof *m->kept);
    m->compared = mem_alloc(rounds, sizeof *m->compared);
    if (!m->result || !m->kept || !m->compared) return err_set(e, ERR_NOMEM, "no memory for %zu rounds", rounds);
    return ERR_OK;
}

static err_code open_model(tui_model *m, err *e)
{
    TRY(m->tape[TUI_B] ? open_pair(m, e) : open_lone(m, e));
    m->first_request = mem_alloc((size_t)tui_model_rounds(m) + 1, sizeof *m->first_request);
    if (!m->first_request) return err_set(e, ERR_NOMEM, "no memory for %d rounds", tui_model_rounds(m));
    TRY(tui_model_list(m, e));
    m->summary = mem_alloc(m->n_requests + 1, sizeof *m->summary);
    return m->summary ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %zu requests", m->n_requests);
}

err_code tui_model_open(const fmt_tape *a, const fmt_tape *b, tui_model **out, err *e)
{
    *out = NULL;
    tui_model *m = mem_alloc(1, sizeof *m);
    if (!m) return err_set(e, ERR_NOMEM, "no memory for the browser");
    m->tape[TUI_A] = a;
    m->tape[TUI_B] = b;
    m->wanted = m->shown = NO_ROUND;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->change, NULL);
    err_code rc = open_model(m, e);
    if (rc != ERR_OK) {
        tui_model_close(m);
        return rc;
    }
    for (int side = TUI_A; side < TUI_SIDES; side++)
        if (m->tape[side]) fmt_tape_let_go(m->tape[side]);
    *out = m;
    return ERR_OK;
}

void tui_model_close(tui_model *m)
{
    if (!m) return;
    atomic_store(&m->stop, true);
    pthread_mutex_lock(&m->lock);
    pthread_cond_signal(&m->change);
    pthread_mutex_unlock(&m->lock);
    if (m->started) pthread_join(m->thread, NULL);
    rpl_compare_close(m->compare);
    cap_names_free(m->lone.names);
    for (int step = 0; step < N_STEPS; step++) eng_program_free(m->lone.program[step]);
    rpl_ordered_free(m->lone.ordered);
    cap_value_fini(&m->buffer);
    free((void *)m->result);
    free(m->kept);
    free(m->compared);
    free(m->summary);
    free(m->first_request);
    pthread_cond_destroy(&m->change);
    pthread_mutex_destroy(&m->lock);
    free(m->request);
    free(m);
}

bool tui_model_is_pair(const tui_model *m) { return m->tape[TUI_B] != NULL; }
const fmt_tape *tui_model_tape(const tui_model *m, int side) { return m->tape[side]; }
