/* One value of a round: judged, summed, and placed. */
#include "replay/certify_round.h"

#include "base/cli.h"
#include "base/mem.h"
#include "engine/fault.h"
#include "replay/value.h"

#include <math.h>

bool rpl_certify_wants(const rpl_certify *c, const char *name) { return !c->o.taps || cli_match(c->o.taps, name); }

/* ---- one judged value ---- */

/* Moves the cursor to v's name on the tape; they come in the same order. */
static void find_name(rpl_certify *c, const rpl_forced_value *v)
{
    for (int32_t k = 0; k < c->n_names; k++) {
        int32_t i = (c->cursor + k) % c->n_names;
        if (c->name[i].slot != v->slot || strcmp(c->name[i].name, v->name) != 0) continue;
        c->cursor = i;
        c->seen[i] = true;
        return;
    }
}

rpl_note rpl_note_of(const rpl_certify *c, const cap_name *n, const char *why)
{
    rpl_note note = { .first_round = c->round, .n_values = 1, .order = n->order };
    snprintf(note.value, sizeof note.value, "%s", n->name);
    snprintf(note.why, sizeof note.why, "%.*s", (int)sizeof note.why - 1, why);
    return note;
}

/* The rank whose share of v's value holds element i, -1: no one's alone. */
static int32_t rank_of(const rpl_certify *c, const rpl_forced_value *v, int64_t i)
{
    if (v->value < 0 || c->o.n_ranks < 2 || i < 0) return -1;
    const eng_program *p = c->program[v->program->step];
    const eng_value *value = &p->value[v->value];
    if (value->place != FMT_PLACE_SHARDED) return -1;
    int64_t inner = 1;
    for (int32_t d = value->axis + 1; d < v->recorded.ndim; d++) inner *= v->recorded.shape[d];
    int64_t at = i / inner % v->recorded.shape[value->axis];
    for (int32_t rank = 0; rank < c->o.n_ranks; rank++) {
        int64_t shape[FMT_DIMS_MAX];
        eng_value_shape(p, v->value, &c->extents[p->step], rank, c->o.n_ranks, shape);
        if (at < shape[value->axis]) return rank;
        at -= shape[value->axis];
    }
    return -1;
}

static rpl_spot spot_of(const rpl_forced_value *v, int64_t i, const rpl_verdict *verdict)
{
    rpl_spot s = { .index = i, .ndim = v->recorded.ndim, .got = verdict->got, .exact = verdict->exact,
                   .bound = verdict->bound, .ratio = verdict->ratio };
    rpl_set_name(s.value, v->name);
    for (int32_t d = s.ndim - 1; d >= 0 && i >= 0; d--) {
        s.at[d] = v->recorded.shape[d] ? i % v->recorded.shape[d] : 0;
        i = v->recorded.shape[d] ? i / v->recorded.shape[d] : 0;
    }
    return s;
}

/* Cells hold as many rows and blocks as it takes to fit. */
static void map_illegal(const rpl_forced_value *v, const uint8_t *classes, rpl_illegal_map *m)
{
    const int64_t n = fmt_tensor_elems(&v->recorded), rows = v->recorded.ndim ? v->recorded.shape[0] : 1;
    int32_t count[RPL_MAP_ROWS][RPL_MAP_BLOCKS] = { { 0 } }, all[RPL_MAP_ROWS][RPL_MAP_BLOCKS] = { { 0 } };
    if (rows < 1 || rows > INT32_MAX || n / rows < 1 || n / rows > INT32_MAX) return;
    rpl_set_name(m->value, v->name);
    m->rows = (int32_t)rows;
    m->columns = (int32_t)(n / rows);
    m->row_step = (m->rows + RPL_MAP_ROWS - 1) / RPL_MAP_ROWS;
    m->block_step = ((m->columns + RPL_PROFILE_BLOCK - 1) / RPL_PROFILE_BLOCK + RPL_MAP_BLOCKS - 1) / RPL_MAP_BLOCKS;
    for (int64_t i = 0; i < n; i++) {
        int64_t r = i / m->columns / m->row_step, b = i % m->columns / RPL_PROFILE_BLOCK / m->block_step;
        all[r][b]++;
        count[r][b] += classes[i] == RPL_ILLEGAL;
    }
    for (int r = 0; r < RPL_MAP_ROWS; r++)
        for (int b = 0; b < RPL_MAP_BLOCKS; b++)
            if (count[r][b]) m->share[r][b] = (uint8_t)(1 + 254 * (int64_t)count[r][b] / all[r][b]);
}

rpl_origin rpl_origin_of(const rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict)
{
    rpl_origin o = { .round = c->round, .slot = v->slot, .n_outputs = 1, .n_illegal = verdict->n_illegal,
                     .n = fmt_tensor_elems(&v->recorded), .rank = rank_of(c, v, verdict->worst) };
    rpl_set_name(o.op, v->op);
    rpl_set_name(o.output[0], v->name);
    o.worst = spot_of(v, verdict->worst, verdict);
    return o;
}

/* v's rows go into the rings, and the fixed rings stand where this round begins. */
static bool makes_rows(const rpl_certify *c, const rpl_forced_value *v)
{
    return c->rings_at == c->index && v->slot != FMT_TAPE_NO_SLOT && v->group && strstr(v->name, ".main_kv");
}

/* Places a value with illegal elements (verdict) among the origins or the inherited. */
static err_code place(rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict, err *e)
{
    rpl_verdict again;
    rpl_finding_of found;
    bool reads_ring = !v->group || v->program->step == ENG_STEP_DRAFT;
    if (c->o.taps && !c->full) c->want_full = true;
    if (!c->scanning && reads_ring && c->rings_at < c->index) c->want_scan = true;
    if (c->want_full || c->want_scan) return ERR_OK; /* to be judged again, then with what explains it at hand */
    TRY(rpl_place_room(c, &v->recorded, e));
    TRY(rpl_judge_value(c->judge, v, &again, c->classes, e));
    TRY(rpl_place_value(c, v, verdict, &found, e));
    bool own = found.n_illegal > 0;
    rpl_origin o = rpl_origin_of(c, v, own ? &found.verdict : verdict);
    if (!own) rpl_set_name(o.from, found.from);
    if (own || !v->group) TRY(rpl_place_wrong(c, v, false, e));
    if (own) map_illegal(v, c->classes, &o.map);
    if (own && c->o.explain && !c->scanning)
        TRY(c->o.explain(c->o.explain_ctx, v, &found.verdict, c->classes, &o, e));
    if (makes_rows(c, v)) TRY(rpl_place_rows(c, v, own, e));
    return c->scanning || !rpl_certify_wants(c, v->name) ? ERR_OK : rpl_certificate_origin(c->to, &o, e);
}

static bool all_zero(const fmt_tensor *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (rpl_element(t->dtype, t->data, i) != 0) return false;
    return true;
}

/* Of F32 or BF16: most values are looked at here and have none. */
static bool any_nan(const fmt_tensor *t, int64_t n)
{
    int32_t most = 0;
    int16_t most_16 = 0;
    if (t->dtype == FMT_DTYPE_F32)
        for (int64_t i = 0; i < n; i++) {
            const int32_t size = (int32_t)(((const uint32_t *)t->data)[i] & 0x7fffffff);
            most = size > most ? size : most;
        }
    else
        for (int64_t i = 0; i < n; i++) {
            const int16_t size = (int16_t)(((const bf16 *)t->data)[i] & 0x7fff);
            most_16 = size > most_16 ? size : most_16;
        }
    return most > 0x7f800000 || most_16 > 0x7f80;
}

/* Equal, and yet it proves nothing. Integers may well be zero. */
static err_code look_for_nothing(rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict, err *e)
{
    if (v->recorded.dtype == FMT_DTYPE_I32) return ERR_OK;
    rpl_note n = rpl_note_of(c, &c->name[c->cursor], "all zero");
    if (verdict->n > 1 && all_zero(&v->recorded, verdict->n)) return rpl_certificate_note(c->to, true, &n, e);
    if (!any_nan(&v->recorded, verdict->n)) return ERR_OK;
    for (int64_t i = 0; i < verdict->n; i++) {
        if (!isnan(rpl_element(v->recorded.dtype, v->recorded.data, i)) ||
            !isnan(rpl_element(v->computed.dtype, v->computed.data, i)))
            continue;
        n = rpl_note_of(c, &c->name[c->cursor], "NaN, and NaN is what its inputs give");
        return rpl_certificate_note(c->to, true, &n, e);
    }
    return ERR_OK;
}

/* Tokens that are not mirror64's under the same prefix, and yet legal. */
static err_code list_token_ties(rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict, err *e)
{
    if (!v->group || v->group->kind != ENG_OP_MARKOV || v->recorded.dtype != FMT_DTYPE_I32 || verdict->n_unjudged)
        return ERR_OK;
    const int32_t *got = v->recorded.data, *exact = v->computed.data;
    const int64_t n = fmt_tensor_elems(&v->recorded), n_out = v->recorded.shape[1], vocab = c->config.vocab;
    if (memcmp(got, exact, (size_t)n * sizeof *got) == 0) return ERR_OK;
    const float *biased = eng_bench_value(v->bench, eng_program_find_value(v->program, "head.biased"));
    rpl_verdict again;
    TRY(rpl_place_room(c, &v->recorded, e));
    TRY(rpl_judge_value(c->judge, v, &again, c->classes, e));
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == exact[i] || c->classes[i] == RPL_ILLEGAL) continue;
        rpl_tie t = { .round = c->round, .row = i / n_out, .place = (int32_t)(i % n_out), .got = got[i], .exact = exact[i],
                      .margin = (double)biased[i * vocab + exact[i]] - biased[i * vocab + got[i]] };
        rpl_set_name(t.value, v->name);
        TRY(rpl_certificate_tie(c->to, &t, e));
    }
    return ERR_OK;
}

/* The k experts of a row by score and bias, the lower id first among equals, as krn_gate_topk chooses. */
static void choose(const float *scores, const float *bias, int32_t n, int32_t k, int32_t out[ENG_ACTIVE_MAX])
{
    for (int32_t place = 0; place < k; place++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            bool taken = false;
            for (int32_t j = 0; j < place; j++) taken = taken || out[j] == i;
            if (!taken && (best < 0 || scores[i] + bias[i] > scores[best] + bias[best])) best = i;
        }
        out[place] = best;
    }
}

/* Experts that the recorded scores choose and mirror64's would not, although every score of the row is legal. */
static err_code list_routing_ties(rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict, err *e)
{
    if (!v->group || v->group->kind != ENG_OP_GATE_SCORES || verdict->n_flip == 0 || verdict->n_illegal) return ERR_OK;
    const int32_t n = c->config.n_experts, k = c->config.n_active;
    const float *recorded = v->recorded.data, *computed = v->computed.data;
    const float *bias = eng_weights_view(c->weights, ENG_W_GATE_BIAS, v->group->stage, -1).data;
    for (int64_t row = 0; row < v->recorded.shape[0]; row++) {
        int32_t got[ENG_ACTIVE_MAX], exact[ENG_ACTIVE_MAX];
        const float *score = computed + row * n;
        if (memcmp(recorded + row * n, score, (size_t)n * sizeof *score) == 0) continue;
        choose(recorded + row * n, bias, n, k, got);
        choose(score, bias, n, k, exact);
        for (int32_t i = 0; i < k; i++) {
            if (got[i] == exact[i]) continue;
            rpl_tie t = { .round = c->round, .row = row, .place = i, .got = got[i], .exact = exact[i] };
            t.margin = (double)score[exact[i]] + bias[exact[i]] - ((double)score[got[i]] + bias[got[i]]);
            snprintf(t.value, sizeof t.value, "s%d.ffn.ids", v->group->stage);
            TRY(rpl_certificate_tie(c->to, &t, e));
        }
    }
    return ERR_OK;
}

static err_code add_sum(rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *d, err *e)
{
    rpl_value_sum s = { .order = c->name[c->cursor].order, .n_values = 1, .n = d->n - d->n_unjudged,
                        .n_equal = d->n_equal, .n_flip = d->n_flip, .n_illegal = d->n_illegal,
                        .n_unjudged = d->n_unjudged, .n_events = d->n_events,
                        .flip_distance = d->n_flip ? d->flip_distance : 0 };
    rpl_set_name(s.value, v->name);
    rpl_set_name(s.op, v->op);
    for (int k = 0; k < 2 && c->o.sharpness; k++)
        TRY(rpl_judge_sharpness(c->judge, v, k + 1, &s.admitted[k], &s.tried[k], e));
    c->to->n_values++;
    c->to->n += s.n;
    c->to->n_unjudged += d->n_unjudged;
    c->to->n_equal += d->n_equal;
    c->to->n_flip += d->n_flip;
    c->to->n_illegal += d->n_illegal;
    c->to->n_events += d->n_events;
    c->to->bytes += fmt_tensor_bytes(&v->recorded);
    if (d->n_unjudged) {
        rpl_note n = rpl_note_of(c, &c->name[c->cursor], "too much between its inputs and it is hidden");
        TRY(rpl_certificate_note(c->to, false, &n, e));
    }
    return rpl_certificate_sum(c->to, &s, e);
}

static void set_extents(rpl_certify *c, const rpl_forced_value *v)
{
    if (v->program && v->program->step == ENG_STEP_INSERT)
        c->extents[ENG_STEP_INSERT] = eng_extents_of(&c->config, (int32_t)v->recorded.shape[0], 1, 1);
}

/* Copies of a replicated value that differ from the first rank's: *out is filled, *rank the first such rank, 0: none. */
static err_code compare_ranks(rpl_certify *c, const rpl_forced_value *v, rpl_verdict *out, int32_t *rank, err *e)
{
    fmt_tape_record first, other;
    const fmt_tensor *t = &v->recorded;
    fmt_tape_at(c->tape, c->name[c->cursor].first_record, &first);
    const bool again = first.key.slot != FMT_TAPE_NO_SLOT && fmt_tape_again(c->tape, c->name[c->cursor].first_record) >= 0;
    *rank = 0;
    for (int32_t r = first.key.rank + 1; first.key.rank >= 0 && r < first.n_ranks && *rank == 0; r++) {
        const fmt_tape_key key = { first.key.round, first.key.slot, r, first.key.name };
        int64_t at = first.place == FMT_PLACE_REPLICATED ? fmt_tape_find(c->tape, &key) : -1;
        if (at < 0) continue;
        fmt_tape_at(c->tape, (size_t)at, &other);
        if (other.tier != FMT_TIER_TENSOR || (!again && other.hash == first.hash)) continue;
        cap_value copy = { 0 };
        err_code rc = cap_rank_get(c->tape, &key, &copy, e);
        if (rc == ERR_OK && !rpl_same_shape(&copy.tensor, t)) {
            cap_value_fini(&copy);
            continue;
        }
        *out = (rpl_verdict){ .n = fmt_tensor_elems(t), .first = -1, .worst = -1, .bound = 0, .ratio = INFINITY };
        for (int64_t i = 0; rc == ERR_OK && i < out->n; i++) {
            if (rpl_element_bits(t->dtype, copy.tensor.data, i) == rpl_element_bits(t->dtype, t->data, i)) continue;
            if (out->n_illegal++ > 0) continue;
            out->first = out->worst = i;
            out->got = rpl_element(t->dtype, copy.tensor.data, i);
            out->exact = rpl_element(t->dtype, t->data, i);
        }
        cap_value_fini(&copy);
        TRY(rc);
        if (out->n_illegal) *rank = r;
    }
    return ERR_OK;
}

/* Other copies follow from what their op read where that differs too. */
static err_code place_ranks(rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict, int32_t rank, err *e)
{
    rpl_origin o = rpl_origin_of(c, v, verdict);
    o.rank = rank;
    o.ranks_differ = true;
    snprintf(o.cause, sizeof o.cause, "%s: rank %d's copy differs in %lld of %lld elements",
             eng_cause_name(ENG_CAUSE_RANK_DISAGREEMENT), rank, (long long)verdict->n_illegal, (long long)verdict->n);
    for (int32_t k = 0; v->group && k < v->group->n_in && !o.from[0]; k++)
        for (size_t i = 0; i < c->n_wrong && !o.from[0]; i++) {
            const rpl_wrong *w = &c->wrong[i];
            if (!w->right && w->step == v->program->step && w->slot == v->slot && w->value == v->group->in[k])
                rpl_set_name(o.from, w->name);
        }
    TRY(rpl_place_wrong(c, v, true, e));
    return c->scanning || !rpl_certify_wants(c, v->name) ? ERR_OK : rpl_certificate_origin(c->to, &o, e);
}

err_code rpl_certify_value(void *ctx, const rpl_forced_value *v, err *e)
{
    rpl_certify *c = ctx;
    rpl_verdict verdict, ranks;
    int32_t rank;
    if (c->scanning && (!v->group || v->slot == FMT_TAPE_NO_SLOT)) { /* past the inserts */
        c->stopped = true;
        return err_set(e, ERR_INPUT, "certify: stopped");
    }
    find_name(c, v);
    set_extents(c, v);
    bool counts = rpl_certify_wants(c, v->name) && !c->scanning;
    if (!counts && !c->full && !c->scanning) return ERR_OK;
    TRY(rpl_judge_value(c->judge, v, &verdict, NULL, e));
    if (counts) {
        TRY(add_sum(c, v, &verdict, e));
        TRY(look_for_nothing(c, v, &verdict, e));
        TRY(list_token_ties(c, v, &verdict, e));
        TRY(list_routing_ties(c, v, &verdict, e));
    }
    TRY(compare_ranks(c, v, &ranks, &rank, e));
    if (verdict.n_illegal) TRY(place(c, v, &verdict, e));
    else if (makes_rows(c, v)) TRY(rpl_place_rows(c, v, false, e));
    return rank ? place_ranks(c, v, &ranks, rank, e) : ERR_OK;
}
