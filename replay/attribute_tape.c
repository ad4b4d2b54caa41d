#include "replay/attribute_tape.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "capture/rounds.h"
#include "replay/forced.h"

struct rpl_deviations {
    rpl_deviation *one;
    size_t n, capacity;
    int64_t n_skipped, n_compared;
    bool damaged;
};

/* A tape under comparison. */
typedef struct job {
    rpl_deviations *d;
    const rpl_mix *m;
    eng_config config;
    int32_t slots[ENG_BATCH_MAX], batch; /* of the round's draft */
    bf16 *window[ENG_BATCH_MAX][ENG_STAGES_MAX]; /* the recorded one, where it is not what the inserts brought */
    int64_t window_bytes[ENG_BATCH_MAX][ENG_STAGES_MAX];
} job;

/* ---- elements ---- */

static uint32_t bits_of(fmt_dtype dtype, const void *data, int64_t i)
{
    if (fmt_dtype_bytes(dtype) == 2) return ((const uint16_t *)data)[i];
    return ((const uint32_t *)data)[i];
}

static void set_bits(fmt_dtype dtype, void *data, int64_t i, uint32_t bits)
{
    if (fmt_dtype_bytes(dtype) == 2) ((uint16_t *)data)[i] = (uint16_t)bits;
    else ((uint32_t *)data)[i] = bits;
}

/* The reference's number now, and what the record was off from the reference's then. */
static uint32_t shifted(fmt_dtype dtype, uint32_t now, uint32_t from, uint32_t to)
{
    if (dtype == FMT_DTYPE_I32) return now;
    int shift = dtype == FMT_DTYPE_BF16 ? 16 : 0;
    float a = f32_from_bits(from << shift), b = f32_from_bits(to << shift), x = f32_from_bits(now << shift);
    float y = x + (b - a);
    if (!isfinite(a) || !isfinite(b) || !isfinite(y)) return to;
    return dtype == FMT_DTYPE_BF16 ? bf16_from_f32(y) : f32_bits(y);
}

void rpl_deviation_apply(const rpl_deviation *d, fmt_dtype dtype, void *data, int64_t first, int64_t n)
{
    int32_t k = 0, end = d->n;
    while (k < end) { /* the first one in [first, first + n) */
        int32_t middle = k + (end - k) / 2;
        if (d->at[middle] < first) k = middle + 1;
        else end = middle;
    }
    for (; k < d->n && d->at[k] < first + n; k++) {
        int64_t i = d->at[k] - first;
        uint32_t now = bits_of(dtype, data, i);
        set_bits(dtype, data, i, now == d->from[k] ? d->to[k] : shifted(dtype, now, d->from[k], d->to[k]));
    }
}

/* ---- a value ---- */

static err_code add(job *j, const rpl_forced_value *v, int32_t unit, const void *computed, err *e)
{
    rpl_deviations *d = j->d;
    const fmt_dtype dtype = v->recorded.dtype;
    const int64_t n = fmt_tensor_elems(&v->recorded);
    int64_t count = 0;
    if (n > UINT32_MAX || fmt_dtype_bytes(dtype) > 4 || fmt_dtype_bytes(dtype) < 2)
        return err_set(e, ERR_INPUT, "round %d %s: found %lld elements of %s, which cannot be compared", v->round, v->name,
                       (long long)n, fmt_dtype_name(dtype));
    for (int64_t i = 0; i < n; i++) count += bits_of(dtype, computed, i) != bits_of(dtype, v->recorded.data, i);
    if (count == 0) return ERR_OK;
    void *array = d->one;
    uint32_t *room = mem_alloc((size_t)count, 3 * sizeof *room);
    if (!room || !mem_grow(&array, &d->capacity, d->n + 1, sizeof *d->one)) {
        free(room);
        return err_set(e, ERR_NOMEM, "attribute: no memory for %lld elements of %s", (long long)count, v->name);
    }
    d->one = array;
    rpl_deviation *to = &d->one[d->n++];
    *to = (rpl_deviation){ .round = v->round, .slot = v->slot, .unit = unit, .value = v->value, .n = (int32_t)count,
                           .at = room, .from = room + count, .to = room + 2 * count };
    for (int64_t i = 0, k = 0; i < n; i++) {
        uint32_t a = bits_of(dtype, computed, i), b = bits_of(dtype, v->recorded.data, i);
        if (a == b) continue;
        to->at[k] = (uint32_t)i;
        to->from[k] = a;
        to->to[k++] = b;
    }
    return ERR_OK;
}

/* A recorded window other than the one of the inserts: attention is to be compared on it. */
static err_code keep_window(job *j, const rpl_forced_value *v, int32_t stage, err *e)
{
    for (int32_t b = 0; b < j->batch; b++) {
        if (j->slots[b] != v->slot) continue;
        int64_t bytes = (int64_t)fmt_tensor_bytes(&v->recorded);
        free(j->window[b][stage]);
        j->window[b][stage] = mem_alloc((size_t)bytes, 1);
        if (!j->window[b][stage]) return err_set(e, ERR_NOMEM, "attribute: no memory for a window");
        memcpy(j->window[b][stage], v->recorded.data, (size_t)bytes);
        j->window_bytes[b][stage] = bytes;
    }
    return ERR_OK;
}

/* Runs a group with attention again on the recorded windows, if one of them is kept. */
static err_code on_recorded_windows(const job *j, const rpl_forced_value *v, err *e)
{
    bool any = false;
    for (int32_t k = 0; k < v->group->n_ops; k++) {
        const eng_op *op = &v->program->op[v->group->op[k]];
        for (int32_t b = 0; b < j->batch && op->kind == ENG_OP_ATTENTION; b++) {
            if (!j->window[b][op->stage]) continue;
            memcpy(eng_bench_ring(v->bench, b, op->stage), j->window[b][op->stage], (size_t)j->window_bytes[b][op->stage]);
            any = true;
        }
    }
    for (int32_t k = 0; k < v->group->n_ops && any; k++)
        TRY(eng_bench_run(v->bench, v->group->op[k], v->group->op[k], e));
    return ERR_OK;
}

static err_code compare(void *ctx, const rpl_forced_value *v, err *e)
{
    job *j = ctx;
    int32_t unit = rpl_mix_unit_of(j->m, v->name);
    if (unit < 0) return ERR_OK;
    j->d->n_compared++;
    if (!v->bench) {
        size_t before = j->d->n;
        TRY(add(j, v, unit, v->computed.data, e));
        return j->d->n > before ? keep_window(j, v, rpl_mix_unit(j->m, unit)->stage, e) : ERR_OK;
    }
    TRY(on_recorded_windows(j, v, e));
    return add(j, v, unit, v->computed.data, e); /* which lies in the bench */
}

/* ---- the tape ---- */

/* Where the slots of a round's draft stand in its batch. */
static err_code find_slots(job *j, const fmt_tape *t, int32_t round, cap_value *v, err *e)
{
    const fmt_tape_key key = { round, FMT_TAPE_NO_SLOT, FMT_TAPE_NO_RANK, "draft.slots" };
    fmt_tape_key any = key;
    j->batch = 0;
    int64_t at = fmt_tape_find(t, &any);
    for (any.rank = 0; at < 0 && any.rank < ENG_RANKS_MAX; any.rank++) at = fmt_tape_find(t, &any);
    if (at < 0) return ERR_OK;
    TRY(cap_joined_get(t, &key, v, e));
    int64_t n = fmt_tensor_elems(&v->tensor);
    if (v->tensor.dtype != FMT_DTYPE_I32 || n > ENG_BATCH_MAX) return ERR_OK; /* the forced run says what is wrong */
    memcpy(j->slots, v->tensor.data, (size_t)n * sizeof *j->slots);
    j->batch = (int32_t)n;
    return ERR_OK;
}

static void forget_windows(job *j)
{
    for (int32_t b = 0; b < ENG_BATCH_MAX; b++)
        for (int32_t k = 0; k < ENG_STAGES_MAX; k++) {
            free(j->window[b][k]);
            j->window[b][k] = NULL;
        }
}

static void forget_all(rpl_deviations *d)
{
    for (size_t i = 0; i < d->n; i++) free(d->one[i].at);
    free(d->one);
    *d = (rpl_deviations){ 0 };
}

static err_code make(job *j, const fmt_tape *t, rpl_forced *f, int32_t last, progress *p, bool *stopped, err *e)
{
    cap_value slots = { 0 };
    err_code rc = ERR_OK;
    for (int32_t i = 0; i < rpl_forced_rounds(f) && rpl_forced_round_number(f, i) <= last && rc == ERR_OK; i++) {
        int32_t skipped = 0;
        if ((*stopped = interrupt_seen())) break;
        forget_windows(j);
        rc = find_slots(j, t, rpl_forced_round_number(f, i), &slots, e);
        if (rc == ERR_OK) rc = rpl_forced_round(f, i, compare, j, &skipped, e);
        j->d->n_skipped += skipped;
        progress_add(p, 1);
    }
    forget_windows(j);
    cap_value_fini(&slots);
    return rc;
}

err_code rpl_deviations_make(const fmt_tape *t, const eng_weights *w, const eng_options *o, const rpl_mix *m, int32_t last,
                             bool quiet, rpl_deviations **out, bool *stopped, err *e)
{
    rpl_forced *f;
    progress p;
    bool damaged;
    *out = NULL;
    *stopped = false;
    job j = { .m = m, .config = *eng_weights_config(w), .d = mem_alloc(1, sizeof *j.d) };
    if (!j.d) return err_set(e, ERR_NOMEM, "attribute: no memory");
    err_code rc = rpl_forced_open(t, w, o, &f, e);
    if (rc == ERR_OK) {
        progress_begin(&p, "comparing ops with the tape", (uint64_t)rpl_forced_rounds(f), quiet);
        rc = make(&j, t, f, last, &p, stopped, e);
        if (rc == ERR_FORMAT && (rc = rpl_forced_leave_damaged(f, &damaged, e)) == ERR_OK) {
            forget_all(j.d);
            rc = make(&j, t, f, last, &p, stopped, e);
            j.d->damaged = damaged;
        }
        progress_end(&p);
        rpl_forced_close(f);
    }
    if (rc == ERR_OK && !*stopped) *out = j.d;
    else rpl_deviations_free(j.d);
    return rc;
}

void rpl_deviations_free(rpl_deviations *d)
{
    if (!d) return;
    forget_all(d);
    free(d);
}

const rpl_deviation *rpl_deviations_find(const rpl_deviations *d, int32_t round, int32_t slot, int32_t unit, int32_t value)
{
    size_t low = 0, high = d->n;
    while (low < high) { /* rounds ascend */
        size_t middle = low + (high - low) / 2;
        if (d->one[middle].round < round) low = middle + 1;
        else high = middle;
    }
    for (; low < d->n && d->one[low].round == round; low++) {
        const rpl_deviation *one = &d->one[low];
        if (one->slot == slot && one->unit == unit && one->value == value) return one;
    }
    return NULL;
}

int64_t rpl_deviations_of_unit(const rpl_deviations *d, int32_t unit)
{
    int64_t n = 0;
    for (size_t i = 0; i < d->n; i++) n += d->one[i].unit == unit ? d->one[i].n : 0;
    return n;
}

int64_t rpl_deviations_skipped(const rpl_deviations *d) { return d->n_skipped; }
int64_t rpl_deviations_compared(const rpl_deviations *d) { return d->n_compared; }
bool rpl_deviations_damaged(const rpl_deviations *d) { return d->damaged; }
