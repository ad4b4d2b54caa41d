#include "replay/certify_round.h"

#include "base/interrupt.h"
#include "base/mem.h"
#include "capture/redact.h"

#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- what is known of the tape ---- */

static const json_t *identity_of(const fmt_tape *t) { return json_object_get(fmt_tape_head(t), "identity"); }

rpl_certify_options rpl_certify_options_of(const fmt_tape *t)
{
    const char *combine = json_string_value(json_object_get(identity_of(t), "combine"));
    if (!combine) combine = json_string_value(json_object_get(json_object_get(fmt_tape_head(t), "imported"), "combine"));
    int64_t tp = json_integer_value(json_object_get(identity_of(t), "tp"));
    rpl_certify_options o = { .bound = RPL_BOUND_DEFAULT, .combine = ENG_COMBINE_EXACT, .n_ranks = 1 };
    if (combine && strcmp(combine, eng_combine_name(ENG_COMBINE_FUSED)) == 0) o.combine = ENG_COMBINE_FUSED;
    if (tp > 1 && tp <= ENG_RANKS_MAX) o.n_ranks = (int32_t)tp;
    return o;
}

/* Inputs of a round are what was asked, not what an op made. */
static bool is_given(const cap_name *n)
{
    return strncmp(n->name, "draft.", 6) == 0 ||
           (n->slot != FMT_TAPE_NO_SLOT && (strcmp(n->name, "pos") == 0 || strcmp(n->name, "taps") == 0));
}

static bool is_lost(const rpl_certify *c, const cap_name *n)
{
    return rpl_forced_lost(c->forced, n->round, n->slot, n->name);
}

/* ---- ids that are none ---- */

/* An id outside of the model cannot be run on: it is illegal, and what reads it is not judged. *bad: there is one. */
static err_code check_ids(rpl_certify *c, bool *bad, err *e)
{
    cap_value value = { 0 };
    err_code rc = ERR_OK;
    *bad = false;
    for (int32_t k = 0; k < c->n_names && rc == ERR_OK; k++) {
        const cap_name *n = &c->name[k];
        const char *dot = strrchr(n->name, '.');
        bool experts = dot && strcmp(dot, ".ids") == 0;
        int32_t limit = experts ? c->config.n_experts : c->config.vocab;
        if (n->slot != FMT_TAPE_NO_SLOT || (!experts && strcmp(n->name, "ids") != 0 && strcmp(n->name, "drafts") != 0))
            continue;
        int32_t v = eng_program_find_value(c->program[ENG_STEP_DRAFT], n->name);
        fmt_tape_record record;
        fmt_tape_at(c->tape, n->first_record, &record);
        if (v < 0 || record.tier != FMT_TIER_TENSOR || record.tensor.dtype != FMT_DTYPE_I32 || is_lost(c, n) ||
            (cap_redact_key_of(c->tape) && cap_redact_tells_ids(n->name)))
            continue;
        const fmt_tape_key key = { c->round, n->slot, 0, n->name };
        rc = cap_joined_get(c->tape, &key, &value, e);
        if (rc != ERR_OK) break;
        const int32_t *id = value.tensor.data;
        const eng_program *p = c->program[ENG_STEP_DRAFT];
        rpl_verdict found = { .n = fmt_tensor_elems(&value.tensor), .worst = -1, .exact = NAN, .ratio = INFINITY };
        for (int64_t i = 0; i < found.n; i++) {
            if (id[i] >= 0 && id[i] < limit) continue;
            if (found.n_illegal++ > 0) continue;
            found.first = found.worst = i;
            found.got = id[i];
        }
        if (!found.n_illegal) continue;
        *bad = true;
        c->seen[k] = true;
        if (!rpl_certify_wants(c, n->name)) continue;
        c->cursor = k;
        found.n_equal = found.n - found.n_illegal;
        rpl_forced_value as = { .round = c->round, .slot = n->slot, .op = p->op[p->value[v].producer].name, .name = n->name,
                                .value = -1, .recorded = value.tensor };
        rpl_origin o = rpl_origin_of(c, &as, &found);
        rc = rpl_certificate_origin(c->to, &o, e);
        c->to->n_values++;
        c->to->n += found.n_illegal;
        c->to->n_illegal += found.n_illegal;
        rpl_value_sum s = { .order = n->order, .n_values = 1, .n = found.n_illegal, .n_illegal = found.n_illegal };
        rpl_set_name(s.value, as.name);
        rpl_set_name(s.op, as.op);
        if (rc == ERR_OK) rc = rpl_certificate_sum(c->to, &s, e);
    }
    cap_value_fini(&value);
    return rc;
}

/* ---- a round ---- */

static err_code read_ints(const rpl_certify *c, const char *name, int32_t *out, int32_t most, int32_t *n, err *e)
{
    *n = 0;
    int64_t at = cap_names_find(c->names, c->round, FMT_TAPE_NO_SLOT, name);
    if (at < 0 || rpl_forced_lost(c->forced, c->round, FMT_TAPE_NO_SLOT, name)) return ERR_OK;
    cap_value v = { 0 };
    const fmt_tape_key key = { c->round, FMT_TAPE_NO_SLOT, 0, name };
    err_code rc = cap_joined_get(c->tape, &key, &v, e);
    if (rc == ERR_OK && v.tensor.dtype == FMT_DTYPE_I32 && fmt_tensor_elems(&v.tensor) <= most) {
        *n = (int32_t)fmt_tensor_elems(&v.tensor);
        memcpy(out, v.tensor.data, (size_t)*n * sizeof *out);
    }
    cap_value_fini(&v);
    return rc;
}

/* Names what no callback came for. A draft step without its own inputs has not been looked at: that proves nothing (where
 * they are damaged the certificate says so). */
static err_code note_the_rest(rpl_certify *c, bool bad_ids, err *e)
{
    const char *lacks = rpl_forced_draft_lacks(c->forced, c->round);
    bool told = !lacks || rpl_forced_lost(c->forced, c->round, FMT_TAPE_NO_SLOT, lacks);
    char why[RPL_WHY_BYTES];
    for (int32_t k = 0; k < c->n_names; k++) {
        const cap_name *n = &c->name[k];
        c->to->damaged = c->to->damaged || is_lost(c, n);
        if (c->seen[k] || (is_given(n) && !is_lost(c, n)) || !rpl_certify_wants(c, n->name)) continue;
        TRY(rpl_certify_why(c, n, bad_ids, why, e));
        rpl_note note = rpl_note_of(c, n, why);
        TRY(rpl_certificate_note(c->to, false, &note, e));
        if (told || n->slot != FMT_TAPE_NO_SLOT ||
            eng_program_find_value(c->program[ENG_STEP_DRAFT], n->name) < 0)
            continue;
        told = true;
        snprintf(why, sizeof why, "%s is not recorded: nothing of its step can be judged", lacks);
        note = rpl_note_of(c, n, why);
        TRY(rpl_certificate_note(c->to, true, &note, e));
    }
    return ERR_OK;
}

/* A draft reads the windows of its slots and of no others: where a round has windows, they are the slots'. A slot that is
 * another one would leave what it reads unjudged, which is no fault by itself. */
static err_code check_slots(rpl_certify *c, err *e)
{
    const cap_name *slots = NULL;
    bool has[ENG_BATCH_MAX] = { false }, any = false, strange = false;
    for (int32_t k = 0; k < c->n_names; k++) {
        const cap_name *n = &c->name[k];
        if (n->slot == FMT_TAPE_NO_SLOT && strcmp(n->name, "draft.slots") == 0) slots = n;
        if (!rpl_certify_is_window(n)) continue;
        bool drafts = false;
        for (int32_t b = 0; b < c->batch; b++)
            if (c->slots[b] == n->slot && !drafts) has[b] = drafts = true;
        any = true;
        strange = strange || !drafts;
    }
    for (int32_t b = 0; b < c->batch; b++) strange = strange || !has[b];
    if (!slots || !any || !strange || c->batch == 0 || !rpl_certify_wants(c, slots->name)) return ERR_OK;
    rpl_note note = rpl_note_of(c, slots, "names other slots than those whose windows the round has");
    return rpl_certificate_note(c->to, true, &note, e);
}

static err_code begin_round(rpl_certify *c, int32_t i, err *e)
{
    void *seen = c->seen;
    int32_t n_out = 1, n;
    c->index = i;
    c->round = rpl_ordered_number(c->ordered, i);
    c->name = rpl_ordered_at(c->ordered, i, &c->n_names);
    c->cursor = 0;
    c->want_scan = c->want_full = c->stopped = false;
    rpl_place_forget_round(c);
    if (!mem_grow(&seen, &c->seen_capacity, (size_t)c->n_names + 1, sizeof *c->seen))
        return err_set(e, ERR_NOMEM, "certify: no memory");
    c->seen = seen;
    memset(c->seen, 0, (size_t)c->n_names * sizeof *c->seen);
    TRY(read_ints(c, "draft.slots", c->slots, ENG_BATCH_MAX, &c->batch, e));
    TRY(read_ints(c, "draft.n_out", &n_out, 1, &n, e));
    if (c->batch > 0) c->extents[ENG_STEP_DRAFT] = eng_extents_of(&c->config, c->batch * c->config.block, c->batch, n_out);
    return ERR_OK;
}

/* Brings the main_kv rows of the rounds before i into the fixed rings. */
static err_code scan_before(rpl_certify *c, int32_t i, err *e)
{
    err_code rc = ERR_OK;
    c->scanning = true;
    for (; c->rings_at < i && rc == ERR_OK; c->rings_at++) {
        rc = begin_round(c, c->rings_at, e);
        if (rc == ERR_OK) rc = rpl_forced_round(c->forced, c->rings_at, rpl_certify_value, c, NULL, e);
        if (c->stopped) rc = ERR_OK;
        if (rc != ERR_OK) break;
    }
    c->scanning = false;
    return rc;
}

static err_code judge_round(rpl_certify *c, int32_t i, err *e)
{
    bool bad_ids;
    TRY(begin_round(c, i, e));
    TRY(check_ids(c, &bad_ids, e));
    err_code rc = rpl_forced_round(c->forced, i, rpl_certify_value, c, NULL, e);
    if (rc == ERR_INPUT && bad_ids) rc = ERR_OK;
    TRY(rc);
    TRY(check_slots(c, e));
    return note_the_rest(c, bad_ids, e);
}

/* Judges round i into c->to, again with what explains its illegal elements at hand where there are any. */
static err_code judge_explained(rpl_certify *c, int32_t i, err *e)
{
    c->full = false;
    TRY(judge_round(c, i, e));
    while (c->want_full || c->want_scan) {
        c->full = c->full || c->want_full;
        if (c->want_scan) TRY(scan_before(c, i, e));
        rpl_certificate_fini(c->to);
        TRY(judge_round(c, i, e));
    }
    return ERR_OK;
}

/* The same without the values that cannot be read, if that is what ended it. */
static err_code judge_readable(rpl_certify *c, int32_t i, err *e)
{
    bool found;
    err_code rc = judge_explained(c, i, e);
    if (rc != ERR_FORMAT) return rc;
    TRY(rpl_forced_leave_damaged(c->forced, &found, e));
    if (!found) return rc;
    rpl_place_forget_rings(c);
    rpl_certificate_fini(c->to);
    return judge_explained(c, i, e);
}

err_code rpl_certify_round(rpl_certify *c, int32_t i, rpl_certificate *out, err *e)
{
    rpl_certificate one = { 0 };
    if (c->rings_at > i) rpl_place_forget_rings(c);
    c->to = &one;
    err_code rc = judge_readable(c, i, e);
    if (rc == ERR_OK && c->rings_at == i && (!c->o.taps || c->full)) c->rings_at++;
    one.n_rounds = one.n_rounds_wanted = 1;
    if (rc == ERR_OK) rc = rpl_certificate_add(out, &one, e);
    rpl_certificate_fini(&one);
    rpl_place_forget_round(c);
    c->to = NULL;
    return rc;
}

/* ---- open and close ---- */

static err_code open_all(rpl_certify *c, err *e)
{
    eng_options o;
    if (c->o.n_ranks > 1 && eng_cut_check(&c->config, c->o.n_ranks, NULL) != ERR_OK) c->o.n_ranks = 1;
    TRY(rpl_forced_mirror64(c->tape, c->o.n_ranks, c->o.threads, &o, e));
    o.combine = c->o.combine;
    TRY(cap_names_make(c->tape, &c->names, e));
    TRY(rpl_ordered_make(c->names, NULL, &c->ordered, e));
    for (int step = 0; step < 2; step++)
        TRY(eng_program_make(&c->config, (eng_step_kind)step, 1, c->o.combine, &o.reps, &c->program[step], e));
    TRY(rpl_judge_open(c->weights, c->o.bound, &c->judge, e));
    return rpl_forced_open(c->tape, c->weights, &o, &c->forced, e);
}

err_code rpl_certify_open(const fmt_tape *t, const eng_weights *w, const rpl_certify_options *o, rpl_certify **out, err *e)
{
    *out = NULL;
    rpl_certify *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "certify: no memory");
    c->tape = t;
    c->weights = w;
    c->o = *o;
    c->config = *eng_weights_config(w);
    err_code rc = open_all(c, e);
    if (rc != ERR_OK) {
        rpl_certify_close(c);
        return rc;
    }
    *out = c;
    return ERR_OK;
}

void rpl_certify_close(rpl_certify *c)
{
    if (!c) return;
    rpl_place_forget_round(c);
    rpl_place_forget_rings(c);
    rpl_forced_close(c->forced);
    rpl_judge_close(c->judge);
    for (int step = 0; step < 2; step++) eng_program_free(c->program[step]);
    rpl_ordered_free(c->ordered);
    cap_names_free(c->names);
    free(c->wrong);
    free(c->ring);
    free(c->seen);
    free(c->classes);
    free(c->classes_right);
    free(c->right);
    free(c);
}

int32_t rpl_certify_rounds(const rpl_certify *c) { return rpl_ordered_rounds(c->ordered); }

/* ---- a tape ---- */

/* Ops of this width and less leave most threads idle: rounds are then judged side by side, one thread each. */
enum { SMALL_DIM = 1024, LANES_MAX = 16 };

static int lanes_for(const eng_weights *w, const rpl_certify_options *o, int32_t n)
{
    int lanes = 1;
#ifdef _OPENMP
    lanes = o->threads > 0 ? o->threads : omp_get_max_threads();
#else
    (void)o;
#endif
    if (eng_weights_config(w)->dim > SMALL_DIM) lanes = 1;
    if (lanes > LANES_MAX) lanes = LANES_MAX;
    return lanes < n ? lanes : n > 0 ? n : 1;
}

err_code rpl_certify_tape(const fmt_tape *t, const eng_weights *w, const rpl_certify_options *o, const rpl_certify_job *job,
                          rpl_certificate *out, err *e)
{
    const int lanes = lanes_for(w, o, job->n);
    rpl_certificate *round = mem_alloc((size_t)job->n + 1, sizeof *round);
    bool *done = mem_alloc((size_t)job->n + 1, sizeof *done), interrupted = false;
    err_code rc = round && done ? ERR_OK : err_set(e, ERR_NOMEM, "certify: no memory for %d rounds", job->n);
    int32_t next = 0;
    (void)lanes; /* one, without OpenMP */
    if (rc == ERR_OK) {
#pragma omp parallel num_threads(lanes)
        {
            rpl_certify *lane = NULL;
            err mine = { 0 };
            err_code my = rpl_certify_open(t, w, o, &lane, &mine);
            for (;;) {
                int32_t i = job->n;
#pragma omp critical(certify_rounds)
                {
                    if (my != ERR_OK && rc == ERR_OK) {
                        rc = my;
                        *e = mine;
                    }
                    interrupted = interrupted || interrupt_seen();
                    if (rc == ERR_OK && !interrupted && next < job->n) i = next++;
                }
                if (i >= job->n) break;
                my = rpl_certify_round(lane, job->rounds[i], &round[i], &mine);
                done[i] = my == ERR_OK;
#pragma omp critical(certify_step)
                if (job->step) job->step(job->ctx);
            }
            rpl_certify_close(lane);
        }
    }
    for (int32_t i = 0; rc == ERR_OK && i < job->n; i++)
        if (done[i]) rc = rpl_certificate_add(out, &round[i], e);
    for (int32_t i = 0; round && i < job->n; i++) rpl_certificate_fini(&round[i]);
    free(round);
    free(done);
    out->n_rounds_wanted = job->n;
    out->interrupted = out->n_rounds < job->n && interrupted;
    return rc;
}
