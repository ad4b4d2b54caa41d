#include "replay/trace.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "engine/fault.h"
#include "engine/poison.h"
#include "engine/shots.h"
#include "kernels/reduce.h"

struct rpl_runner {
    const rpl_layout *layout;
    rpl_feed *feed;
    eng_engine *engine;
    eng_shots *shots;          /* NULL: chains alone */
    rpl_replay_report report;  /* of the restored windows; what it says is said by `replay` */
    bool quiet;
    int32_t done;              /* rounds of the last run */
    uint8_t *whole;            /* a value joined from its ranks' parts */
    size_t whole_capacity;
    int32_t *value[2];         /* by step: [n] program value of each row that a step has, in the layout's order */
};

/* ---- one value of a shot ---- */

static err_code make_room(rpl_runner *r, uint64_t bytes, err *e)
{
    if (bytes <= r->whole_capacity) return ERR_OK;
    free(r->whole);
    r->whole_capacity = 0;
    r->whole = mem_alloc_aligned((size_t)bytes, 1);
    if (!r->whole) return err_set(e, ERR_NOMEM, "no memory for a value of %llu bytes", (unsigned long long)bytes);
    r->whole_capacity = (size_t)bytes;
    return ERR_OK;
}

static err_code add_partials(rpl_runner *r, const fmt_tensor *part, int32_t n, uint64_t *hash, err *e)
{
    uint64_t bytes = fmt_tensor_bytes(&part[0]);
    TRY(make_room(r, bytes, e));
    memcpy(r->whole, part[0].data, (size_t)bytes);
    for (int32_t rank = 1; rank < n; rank++) {
        const float *pair[2] = { (const float *)r->whole, part[rank].data };
        krn_sum_ranks_ref(pair, 2, 0, fmt_tensor_elems(&part[0]), (float *)r->whole);
    }
    *hash = fmt_hash64(r->whole, (size_t)bytes);
    return ERR_OK;
}

static err_code join_shards(rpl_runner *r, const fmt_tensor *part, int32_t n, int32_t axis, uint64_t *hash, err *e)
{
    uint64_t bytes = 0, row = 0;
    int64_t outer = 1;
    for (int32_t d = 0; d < axis; d++) outer *= part[0].shape[d];
    for (int32_t rank = 0; rank < n; rank++) bytes += fmt_tensor_bytes(&part[rank]);
    TRY(make_room(r, bytes, e));
    row = outer ? bytes / (uint64_t)outer : 0;
    size_t at = 0;
    for (int32_t rank = 0; rank < n; rank++) {
        size_t mine = outer ? (size_t)(fmt_tensor_bytes(&part[rank]) / (uint64_t)outer) : 0;
        for (int64_t o = 0; o < outer; o++)
            memcpy(r->whole + (size_t)o * row + at, (const uint8_t *)part[rank].data + (size_t)o * mine, mine);
        at += mine;
    }
    *hash = fmt_hash64(r->whole, (size_t)bytes);
    return ERR_OK;
}

static err_code hash_value(rpl_runner *r, const eng_shot *shot, const eng_program *p, int32_t v, int32_t b, uint64_t *hash,
                           int8_t *other, err *e)
{
    const eng_value *value = &p->value[v];
    int32_t n = value->state ? 1 : eng_options_of(r->engine)->n_ranks; /* of a window the shot has rank 0's copy */
    fmt_tensor part[ENG_RANKS_MAX];
    for (int32_t rank = 0; rank < n; rank++) eng_shot_tensor(shot, rank, v, b, &part[rank]);
    *other = 0;
    if (n > 1 && value->place == FMT_PLACE_PARTIAL) return add_partials(r, part, n, hash, e);
    if (n > 1 && value->place == FMT_PLACE_SHARDED) return join_shards(r, part, n, value->axis, hash, e);
    *hash = fmt_hash64(part[0].data, fmt_tensor_bytes(&part[0]));
    for (int32_t rank = n - 1; rank > 0; rank--)
        if (memcmp(part[rank].data, part[0].data, fmt_tensor_bytes(&part[0])) != 0) *other = (int8_t)rank;
    return ERR_OK;
}

/* Rows [*at ...) that the step of the shot made. batch: of a draft, 0 of an insert. */
static err_code look(rpl_runner *r, eng_shot *shot, int32_t batch, int64_t *at, rpl_trace *t, err *e)
{
    const eng_program *p = eng_program_of(r->engine, batch ? ENG_STEP_DRAFT : ENG_STEP_INSERT);
    TRY(eng_shot_wait(shot, e));
    for (int32_t b = 0; b < batch; b++) /* windows come first */
        for (int32_t v = 0; v < p->n_values; v++)
            if (p->value[v].state) {
                TRY(hash_value(r, shot, p, v, b, &t->hash[*at], &t->rank[*at], e));
                ++*at;
            }
    const int32_t *value = r->value[p->step];
    for (int32_t k = 0; value[k] >= 0; k++, ++*at)
        if (eng_shot_has(shot, value[k])) TRY(hash_value(r, shot, p, value[k], 0, &t->hash[*at], &t->rank[*at], e));
        else t->rank[*at] = RPL_TRACE_ABSENT;
    return ERR_OK;
}

/* ---- steps ---- */

static err_code run_inserts(rpl_runner *r, const rpl_fed *f, int64_t *at, rpl_trace *t, err *e)
{
    for (int32_t k = 0; k < f->in.n_inserts; k++) {
        const eng_insert_event *in = &f->in.inserts[k];
        eng_shot *shot = t ? eng_shots_take(r->shots) : NULL;
        const eng_tap tap = { .shot = shot };
        int32_t slot = f->slots_of_inserts[k];
        err_code rc = f->main_x[k]
                          ? eng_insert_main_x(r->engine, slot, f->main_x[k], in->pos, in->rows, shot ? &tap : NULL, e)
                          : eng_insert(r->engine, slot, in->taps, in->pos, in->rows, shot ? &tap : NULL, e);
        if (rc == ERR_OK && shot) rc = look(r, shot, 0, at, t, e);
        if (shot) eng_shot_free(shot);
        if (rc != ERR_OK) return err_wrap(e, "round %d slot %d", f->in.round, in->slot);
    }
    return ERR_OK;
}

static err_code run_draft(rpl_runner *r, int32_t i, const rpl_fed *f, int64_t *at, rpl_trace *t, rpl_chain *chain, err *e)
{
    int32_t drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    eng_shot *shot = t ? eng_shots_take(r->shots) : NULL;
    const eng_tap tap = { .shot = shot };
    size_t bytes = (size_t)f->in.batch * (size_t)f->in.n_out * sizeof *drafts;
    err_code rc = eng_draft(r->engine, f->in.batch, f->slots_of_draft, f->in.anchors, f->in.pos, f->in.n_out, drafts,
                            confidence, shot ? &tap : NULL, e);
    if (rc == ERR_OK && shot) rc = look(r, shot, f->in.batch, at, t, e);
    if (shot) eng_shot_free(shot);
    if (rc != ERR_OK) return err_wrap(e, "round %d draft", f->in.round);
    if (chain) rpl_chain_outputs(chain, i, fmt_hash64(drafts, bytes), fmt_hash64(confidence, bytes));
    return ERR_OK;
}

static err_code run_round(rpl_runner *r, rpl_restore *restore, int32_t i, rpl_trace *trace, rpl_chain *chain, err *e)
{
    rpl_fed f;
    int64_t at, n;
    eng_fault *fault = eng_options_of(r->engine)->fault;
    rpl_layout_span(r->layout, i, &at, &n);
    int64_t end = at + n;
    if (n == 0) trace = NULL;
    TRY(rpl_feed_round(r->feed, i, &f, e));
    TRY(rpl_restore_round(restore, i, f.in.round, e));
    if (fault) fault->armed = fault->round < 0 || fault->round == f.in.round;
    TRY(run_inserts(r, &f, &at, trace, e));
    if (chain) TRY(rpl_chain_state(chain, i, r->engine, f.slots_of_inserts, f.in.n_inserts, e));
    bool drafts = f.in.batch > 0 && (trace || chain);
    if (drafts) TRY(run_draft(r, i, &f, &at, trace, chain, e));
    else if (chain) rpl_chain_outputs(chain, i, 0, 0);
    CHECK(!trace || at == end); /* the layout was made of the same rounds */
    return ERR_OK;
}

err_code rpl_runner_run(rpl_runner *r, rpl_trace *trace, rpl_chain *chain, err *e)
{
    progress p;
    rpl_restore *restore = NULL;
    int32_t n = rpl_feed_count(r->feed);
    CHECK(!trace || r->shots);
    for (int32_t s = 0; s < rpl_feed_slots(r->feed); s++) eng_release(r->engine, s);
    rpl_replay_report_fini(&r->report);
    err_code rc = rpl_feed_restore(r->feed, r->engine, &r->report, &restore, e);
    progress_begin(&p, "running", (uint64_t)n, r->quiet);
    if (trace) memset(trace->rank, RPL_TRACE_ABSENT, (size_t)trace->n);
    for (r->done = 0; r->done < n && rc == ERR_OK && !interrupt_seen(); r->done++, progress_add(&p, 1))
        rc = run_round(r, restore, r->done, trace, chain, e);
    progress_end(&p);
    rpl_restore_close(restore);
    return rc;
}

int32_t rpl_runner_done(const rpl_runner *r) { return r->done; }

/* ---- open ---- */

/* Which program values stand behind the layout's rows of a step: the same names in every arm, whatever lies between. */
static err_code list_values(rpl_runner *r, eng_step_kind step, uint8_t *keep, err *e)
{
    const eng_program *p = eng_program_of(r->engine, step);
    int32_t n = 0;
    r->value[step] = mem_alloc((size_t)p->n_values + 1, sizeof *r->value[step]);
    if (!r->value[step]) return err_set(e, ERR_NOMEM, "no memory for %d values", p->n_values);
    for (int32_t v = 0; v < p->n_values; v++) {
        const eng_value *value = &p->value[v];
        bool made = !value->state && value->producer >= 0 && value->level <= ENG_LEVEL_DEEP;
        if (made) r->value[step][n++] = v;
        if (made || (value->state && step == ENG_STEP_DRAFT)) keep[v] = ENG_KEEP_TENSOR;
    }
    r->value[step][n] = -1;
    return ERR_OK;
}

static err_code open_shots(rpl_runner *r, err *e)
{
    uint8_t *keep[2] = { NULL, NULL };
    err_code rc = ERR_OK;
    for (int k = 0; k < 2 && rc == ERR_OK; k++) {
        keep[k] = mem_alloc((size_t)eng_program_of(r->engine, (eng_step_kind)k)->n_values, 1);
        rc = keep[k] ? list_values(r, (eng_step_kind)k, keep[k], e) : err_set(e, ERR_NOMEM, "no memory for a choice");
    }
    const uint8_t *const kept[2] = { keep[0], keep[1] };
    if (rc == ERR_OK) rc = eng_shots_open(r->engine, kept, 1, 0, rpl_layout_insert_rows(r->layout), &r->shots, e);
    free(keep[0]);
    free(keep[1]);
    return rc;
}

err_code rpl_runner_open(const fmt_tape *t, const eng_weights *w, const rpl_layout *l, const eng_options *o, bool looks,
                         bool quiet, rpl_runner **out, err *e)
{
    *out = NULL;
    rpl_runner *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(e, ERR_NOMEM, "no memory for a run");
    *r = (rpl_runner){ .layout = l, .quiet = quiet };
    err_code rc = rpl_feed_open(t, eng_weights_config(w), RPL_WINDOWS_AUTO, NULL, &r->feed, e);
    if (rc == ERR_OK)
        rc = eng_open(w, o, rpl_feed_slots(r->feed), looks ? ENG_LEVEL_DEEP : ENG_LEVEL_IO, quiet, &r->engine, e);
    if (rc == ERR_OK && looks) rc = open_shots(r, e);
    if (rc == ERR_OK) *out = r;
    else rpl_runner_close(r);
    return rc;
}

void rpl_runner_close(rpl_runner *r)
{
    if (!r) return;
    eng_shots_close(r->shots);
    eng_close(r->engine);
    rpl_feed_close(r->feed);
    rpl_replay_report_fini(&r->report);
    free(r->value[0]);
    free(r->value[1]);
    free(r->whole);
    free(r);
}

/* ---- poison ---- */

err_code rpl_trace_poisoned(const fmt_tape *t, const eng_weights *w, const rpl_layout *l, const eng_options *o,
                            const rpl_trace *clean, const uint8_t *skip, bool quiet, rpl_poisoned *out, err *e)
{
    rpl_trace with;
    *out = (rpl_poisoned){ .first = -1, .row = out->row };
    err_code rc = rpl_trace_init(&with, l, e);
    for (int32_t pattern = 1; pattern <= ENG_POISONS && rc == ERR_OK; pattern++) {
        eng_options poisoned = *o;
        rpl_runner *r = NULL;
        poisoned.poison = pattern;
        rc = rpl_runner_open(t, w, l, &poisoned, true, quiet, &r, e);
        if (rc == ERR_OK) rc = rpl_runner_run(r, &with, NULL, e);
        rpl_runner_close(r);
        if (interrupt_seen()) { /* cut short: what it lacks is no finding, and half of the patterns prove little */
            if (out->row) memset(out->row, 0, (size_t)with.n);
            *out = (rpl_poisoned){ .first = -1, .row = out->row };
        }
        for (int64_t i = 0; i < with.n && rc == ERR_OK && !interrupt_seen(); i++) {
            if ((skip && skip[i]) || clean->rank[i] < 0 || with.hash[i] == clean->hash[i]) continue;
            out->n++;
            if (out->first < 0 || i < out->first) out->first = i;
            if (out->row) out->row[i] = 1;
        }
    }
    rpl_trace_fini(&with);
    return rc;
}
