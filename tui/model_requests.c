/* The lists of a model: its requests, and the values of their rounds. */
#include "tui/model_state.h"

#include "base/mem.h"

#include <math.h>

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

err_code tui_model_list(tui_model *m, err *e)
{
    seen_slot *slots = NULL;
    size_t slots_capacity = 0;
    err_code rc = ERR_OK;
    for (int32_t i = 0; rc == ERR_OK && i < tui_model_rounds(m); i++) {
        rc = add_round(m, i, &slots, &slots_capacity, e);
        m->first_request[i + 1] = (int32_t)m->n_requests;
    }
    free(slots);
    return rc;
}

int32_t tui_model_requests(const tui_model *m) { return (int32_t)m->n_requests; }

const tui_request *tui_model_request(tui_model *m, int32_t i)
{
    tui_request *r = &m->request[i];
    if (r->verdict != TUI_VERDICT_PENDING) return r;
    pthread_mutex_lock(&m->lock);
    if (m->compared[r->round_index]) {
        const tui_summary *s = &m->summary[i];
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
