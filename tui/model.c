#include "tui/model.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "replay/ordered.h"
#include "tui/work.h"

#include <math.h>

enum { N_STEPS = 2, NO_ROUND = -1 };
enum { KEPT_BYTES = 16 << 20 }; /* of full results: a screen shows one round, of a hundred KB or so */
enum { READ_BYTES = 64 << 20 }; /* of values compared, after which the tapes' mapped pages are given back */

/* What is kept of every compared round for each of its requests. */
typedef struct summary {
    tui_verdict verdict;
    int32_t first_origin, worst, n_same;
    bool drafts_equal;
    double worst_rel_l2, kl;
} summary;

struct tui_model {
    const fmt_tape *tape[TUI_SIDES];
    const cap_names *names[TUI_SIDES];   /* these three are the comparison's, or those of lone */
    const rpl_ordered *ordered;
    const eng_program *program[N_STEPS]; /* NULL: no config in the heads */
    struct { cap_names *names; rpl_ordered *ordered; eng_program *program[N_STEPS]; } lone;
    tui_request *request;
    size_t n_requests, capacity;
    cap_value buffer;
    int32_t *first_request;        /* [rounds + 1] of each round */
    /* Shared with the comparing thread; while that one works, it alone calls compare. */
    rpl_compare *compare;          /* NULL: one tape */
    pthread_t thread;
    bool started;
    atomic_int n_done;
    atomic_bool stop, failed;      /* failed: no memory */
    pthread_mutex_t lock;          /* of all that follows */
    pthread_cond_t change;         /* there may be something to compare, or the thread is to stop */
    bool paused;
    int32_t next;                  /* the rounds before it are compared */
    int32_t wanted, shown;         /* rounds: the next to compare; the one that a screen holds */
    bool *compared;                /* [rounds] its summaries are there */
    summary *summary;              /* [requests] */
    const rpl_round **result;      /* [rounds] NULL: not compared, or not kept */
    int32_t *kept;                 /* [rounds] a ring of the rounds with results, the oldest at kept_first */
    int32_t kept_first, n_kept;
    uint64_t kept_bytes, read_bytes;
};

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
static summary summarise(const tui_request *r, const rpl_round *round)
{
    summary s = { .verdict = TUI_VERDICT_NONE, .first_origin = -1, .worst = -1, .n_same = -1, .worst_rel_l2 = (double)NAN,
                  .kl = (double)NAN };
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

/* ---- requests ---- */

static bool record_of(const tui_model *m, int side, int32_t round, int32_t slot, const char *name, fmt_tape_record *out)
{
    if (!m->tape[side]) return false;
    int64_t at = cap_names_find(m->names[side], round, slot, name);
    if (at < 0) return false;
    fmt_tape_at(m->tape[side], cap_names_at(m->names[side], (size_t)at)->first_record, out);
    return true;
}

static tui_request *add_request(tui_model *m, int32_t round_index, int32_t slot, err *e)
{
    int32_t round = rpl_ordered_number(m->ordered, round_index);
    for (size_t i = m->n_requests; i > 0 && m->request[i - 1].round == round; i--)
        if (m->request[i - 1].slot == slot) return &m->request[i - 1];
    void *array = m->request;
    if (!mem_grow(&array, &m->capacity, m->n_requests + 1, sizeof *m->request)) {
        err_set(e, ERR_NOMEM, "no memory for %zu requests", m->n_requests);
        return NULL;
    }
    m->request = array;
    tui_request *r = &m->request[m->n_requests++];
    *r = (tui_request){ .round_index = round_index, .round = round, .slot = slot, .entry = -1, .n_drafts = { -1, -1 },
                        .verdict = m->compare ? TUI_VERDICT_PENDING : TUI_VERDICT_NONE, .first_origin = -1, .worst = -1,
                        .worst_rel_l2 = (double)NAN, .kl = (double)NAN, .n_same = -1 };
    return r;
}

/* A small I32 vector of the draft step; *n is its length. NULL: absent or not that. Valid until the next call. */
static const int32_t *read_ints(tui_model *m, int side, int32_t round, const char *name, int32_t ndim, fmt_tensor *t)
{
    const fmt_tape_key key = { round, FMT_TAPE_NO_SLOT, 0, name };
    if (!m->tape[side] || cap_joined_get(m->tape[side], &key, &m->buffer, NULL) != ERR_OK) return NULL;
    *t = m->buffer.tensor;
    return t->dtype == FMT_DTYPE_I32 && t->ndim == ndim ? t->data : NULL;
}

typedef struct seen_slot { int32_t slot; size_t first_record; } seen_slot;

/* Which slots the round's step drafted. Usually those whose windows were kept, or those that inserted, in the order
 * written: the hash in the index tells whether that guess is right, and no payload is read. */
static err_code add_drafted(tui_model *m, int32_t round_index, const seen_slot *seen, size_t n_seen, err *e)
{
    int32_t guess[ENG_BATCH_MAX];
    int32_t round = rpl_ordered_number(m->ordered, round_index);
    fmt_tape_record r;
    int side = record_of(m, TUI_A, round, FMT_TAPE_NO_SLOT, "draft.slots", &r) ? TUI_A : TUI_B;
    if (!record_of(m, side, round, FMT_TAPE_NO_SLOT, "draft.slots", &r) || r.tensor.ndim != 1) return ERR_OK;
    enum { BATCH_SHOWN = 1024 }; /* more than any step drafts: a tape that says so is an import gone wrong */
    int64_t batch = r.tensor.shape[0] < BATCH_SHOWN ? r.tensor.shape[0] : BATCH_SHOWN;
    const int32_t *slots = guess;
    for (size_t i = 0; i < n_seen && i < COUNT_OF(guess); i++) guess[i] = seen[i].slot;
    bool fits = n_seen <= COUNT_OF(guess) && r.raw_bytes == n_seen * sizeof *guess;
    if (!fits || fmt_hash64(guess, n_seen * sizeof *guess) != r.hash) {
        fmt_tensor t;
        slots = read_ints(m, side, round, "draft.slots", 1, &t);
        if (!slots) return ERR_OK;
    }
    for (int64_t i = 0; i < batch; i++) {
        tui_request *q = slots[i] >= 0 ? add_request(m, round_index, slots[i], e) : NULL;
        if (slots[i] >= 0 && !q) return ERR_NOMEM;
        if (q) q->entry = (int32_t)i;
    }
    return ERR_OK;
}

static int by_slot(const void *x, const void *y)
{
    const tui_request *a = x, *b = y;
    return a->slot < b->slot ? -1 : a->slot > b->slot;
}

static int by_record(const void *x, const void *y)
{
    const seen_slot *a = x, *b = y;
    return a->first_record < b->first_record ? -1 : a->first_record > b->first_record;
}

/* The distinct slots of a round's values (or of its windows alone) in the order in which they were written, which for
 * windows is that of the draft step. seen: room for n. */
static size_t slots_of(const cap_name *name, int32_t n, bool windows_only, seen_slot *seen)
{
    size_t n_seen = 0;
    for (int32_t i = 0; i < n; i++) {
        if (name[i].slot < 0 || (windows_only && !strstr(name[i].name, ".window"))) continue;
        size_t k = 0;
        while (k < n_seen && seen[k].slot != name[i].slot) k++;
        if (k == n_seen) seen[n_seen++] = (seen_slot){ name[i].slot, name[i].first_record };
        else if (name[i].first_record < seen[k].first_record) seen[k].first_record = name[i].first_record;
    }
    if (n_seen) qsort(seen, n_seen, sizeof *seen, by_record);
    return n_seen;
}

static bool counts_rows(const char *name)
{
    return strcmp(name, "pos") == 0 || strcmp(name, "taps") == 0 || strcmp(name, "main_x") == 0;
}

static err_code add_round(tui_model *m, int32_t i, seen_slot **slots, size_t *capacity, err *e)
{
    int32_t n;
    const cap_name *name = rpl_ordered_at(m->ordered, i, &n);
    size_t first = m->n_requests;
    for (int32_t k = 0; k < n; k++) {
        tui_request *r = name[k].slot >= 0 ? add_request(m, i, name[k].slot, e) : NULL;
        if (name[k].slot >= 0 && !r) return ERR_NOMEM;
        fmt_tape_record rec;
        if (!r || !counts_rows(name[k].name)) continue;
        if (record_of(m, TUI_A, name[k].round, name[k].slot, name[k].name, &rec) ||
            record_of(m, TUI_B, name[k].round, name[k].slot, name[k].name, &rec))
            r->n_rows = rec.tensor.ndim > 0 && rec.tensor.shape[0] <= INT32_MAX ? (int32_t)rec.tensor.shape[0] : 0;
    }
    void *array = *slots;
    if (!mem_grow(&array, capacity, (size_t)n, sizeof **slots)) return err_set(e, ERR_NOMEM, "no memory for %d values", n);
    *slots = array;
    size_t n_slots = slots_of(name, n, true, *slots);
    if (n_slots == 0) n_slots = slots_of(name, n, false, *slots);
    TRY(add_drafted(m, i, *slots, n_slots, e));
    if (m->n_requests == first && !add_request(m, i, FMT_TAPE_NO_SLOT, e)) return ERR_NOMEM;
    qsort(m->request + first, m->n_requests - first, sizeof *m->request, by_slot);
    return ERR_OK;
}

int32_t tui_model_requests(const tui_model *m) { return (int32_t)m->n_requests; }

const tui_request *tui_model_request(tui_model *m, int32_t i)
{
    tui_request *r = &m->request[i];
    if (r->verdict != TUI_VERDICT_PENDING) return r;
    pthread_mutex_lock(&m->lock);
    if (m->compared[r->round_index]) {
        const summary *s = &m->summary[i];
        r->verdict = s->verdict;
        r->first_origin = s->first_origin;
        r->worst = s->worst;
        r->n_same = s->n_same;
        r->drafts_equal = s->drafts_equal;
        r->worst_rel_l2 = s->worst_rel_l2;
        r->kl = s->kl;
    }
    pthread_mutex_unlock(&m->lock);
    return r;
}

void tui_model_read_drafts(tui_model *m, int32_t i)
{
    tui_request *r = &m->request[i];
    for (int side = TUI_A; side < TUI_SIDES; side++) {
        if (r->n_drafts[side] >= 0) continue;
        r->n_drafts[side] = 0;
        fmt_tensor t;
        const int32_t *drafts = r->entry >= 0 ? read_ints(m, side, r->round, "drafts", 2, &t) : NULL;
        if (!drafts || r->entry >= t.shape[0]) continue;
        int64_t n = t.shape[1] < TUI_DRAFTS_MAX ? t.shape[1] : TUI_DRAFTS_MAX;
        memcpy(r->draft[side], drafts + r->entry * t.shape[1], (size_t)n * sizeof *drafts);
        r->n_drafts[side] = (int32_t)n;
    }
}

int32_t tui_model_step(const tui_model *m, int32_t i, int by)
{
    const tui_request *from = &m->request[i];
    for (int32_t k = i + by; k >= 0 && k < tui_model_requests(m); k += by)
        if (m->request[k].round != from->round && m->request[k].slot == from->slot) return k;
    return -1;
}

int32_t tui_model_find_round(const tui_model *m, int32_t round)
{
    int32_t lo = 0, hi = tui_model_rounds(m);
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (rpl_ordered_number(m->ordered, mid) < round) lo = mid + 1;
        else hi = mid;
    }
    return lo < tui_model_rounds(m) && rpl_ordered_number(m->ordered, lo) == round ? lo : -1;
}

int32_t tui_model_first_request(const tui_model *m, int32_t round_index) { return m->first_request[round_index]; }

int32_t tui_model_find_request(const tui_model *m, int32_t round, int32_t slot)
{
    int32_t at = tui_model_find_round(m, round);
    for (int32_t i = at < 0 ? 0 : m->first_request[at]; at >= 0 && i < m->first_request[at + 1]; i++)
        if (slot == FMT_TAPE_NO_SLOT || m->request[i].slot == slot) return i;
    return -1;
}

/* ---- values ---- */

const cap_name *tui_model_values(const tui_model *m, int32_t round_index, int32_t *n)
{
    return rpl_ordered_at(m->ordered, round_index, n);
}

int32_t tui_model_find_value(const tui_model *m, int32_t round_index, int32_t slot, const char *name)
{
    int32_t n;
    const cap_name *v = tui_model_values(m, round_index, &n);
    for (int32_t i = 0; i < n; i++)
        if (v[i].slot == slot && strcmp(v[i].name, name) == 0) return i;
    return -1;
}

bool tui_model_shows(const tui_request *r, const cap_name *n) { return n->slot == FMT_TAPE_NO_SLOT || n->slot == r->slot; }

double tui_stage_of(const char *name)
{
    if (name[0] != 's' || name[1] < '0' || name[1] > '9' || !strchr(name, '.')) return (double)NAN;
    return atoi(name + 1);
}

bool tui_is_float(fmt_dtype d)
{
#define X(name, text, bytes, is_float) [FMT_DTYPE_##name] = is_float,
    static const bool IS_FLOAT[FMT_DTYPE_COUNT] = { FMT_DTYPE_LIST(X) };
#undef X
    return IS_FLOAT[d];
}

const eng_op *tui_model_op(const tui_model *m, const cap_name *n)
{
    const char *window = strstr(n->name, ".window");
    const eng_program *p = m->program[n->slot == FMT_TAPE_NO_SLOT ? ENG_STEP_DRAFT : ENG_STEP_INSERT];
    if (!p) return NULL;
    char name[FMT_TAPE_NAME_BYTES];
    snprintf(name, sizeof name, "%s", n->name);
    char *top = window ? NULL : strstr(name, ".top"); /* "head.logits.top_ids" is a view of head.logits */
    if (top) *top = 0;
    int32_t v = eng_program_find_value(p, name);
    return v >= 0 && p->value[v].producer >= 0 ? &p->op[p->value[v].producer] : NULL;
}

/* Statistics of a cut value: those of its shards together. */
static void add_stats(fmt_stats *sum, double elems, const fmt_stats *s, double more)
{
    sum->min = fmin(sum->min, s->min);
    sum->max = fmax(sum->max, s->max);
    sum->rms = sqrt((sum->rms * sum->rms * elems + s->rms * s->rms * more) / (elems + more));
    sum->n_nan += s->n_nan;
    sum->n_inf += s->n_inf;
    sum->n_zero += s->n_zero;
    sum->n_denormal += s->n_denormal;
}

bool tui_model_facts(const tui_model *m, int side, const cap_name *n, tui_facts *out)
{
    fmt_tape_record r, part;
    if (!record_of(m, side, n->round, n->slot, n->name, &r)) return false;
    *out = (tui_facts){ .tensor = r.tensor, .tier = r.tier, .n_ranks = r.n_ranks, .stats = r.stats,
                        .has_stats = r.tier != FMT_TIER_HASH && (r.place != FMT_PLACE_PARTIAL || r.n_ranks == 1) };
    if (r.place != FMT_PLACE_SHARDED || r.axis < 0 || r.axis >= r.tensor.ndim) return true;
    for (int32_t rank = 1; rank < r.n_ranks; rank++) {
        const fmt_tape_key key = { n->round, n->slot, rank, n->name };
        int64_t i = fmt_tape_find(m->tape[side], &key);
        if (i < 0) continue;
        fmt_tape_at(m->tape[side], (size_t)i, &part);
        add_stats(&out->stats, (double)fmt_tensor_elems(&out->tensor), &part.stats, (double)fmt_tensor_elems(&part.tensor));
        if (part.tensor.ndim == r.tensor.ndim) out->tensor.shape[r.axis] += part.tensor.shape[r.axis];
    }
    return true;
}

bool tui_model_facts_any(const tui_model *m, const cap_name *n, tui_facts *out)
{
    return tui_model_facts(m, TUI_A, n, out) || tui_model_facts(m, TUI_B, n, out);
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
    for (int step = 0; step < N_STEPS; step++) {
        TRY(eng_program_make(&config, (eng_step_kind)step, 1, ENG_COMBINE_EXACT, &m->lone.program[step], e));
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
    seen_slot *slots = NULL;
    size_t slots_capacity = 0;
    TRY(m->tape[TUI_B] ? open_pair(m, e) : open_lone(m, e));
    m->first_request = mem_alloc((size_t)tui_model_rounds(m) + 1, sizeof *m->first_request);
    err_code rc = m->first_request ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %d rounds", tui_model_rounds(m));
    for (int32_t i = 0; rc == ERR_OK && i < tui_model_rounds(m); i++) {
        rc = add_round(m, i, &slots, &slots_capacity, e);
        m->first_request[i + 1] = (int32_t)m->n_requests;
    }
    free(slots);
    m->summary = rc == ERR_OK ? mem_alloc(m->n_requests + 1, sizeof *m->summary) : NULL;
    if (rc == ERR_OK && !m->summary) rc = err_set(e, ERR_NOMEM, "no memory for %zu requests", m->n_requests);
    return rc;
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
