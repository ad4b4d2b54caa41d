/* The order in which a program's ops reach the device.
 *
 * Eager: one stream, program order. A graph: ops that do not need each other stand side by side, since a small kernel's
 * latency is most of its time. Lanes are streams during the capture; the data flow of the program says which op must follow
 * which, so no op needs to know about them. Values have memory of their own, so only reading after writing orders ops, and
 * collectives keep program order, because all ranks must meet in the same one. */
#include "engine/device_exec.h"

#include "base/hot.h"
#include "base/mem.h"

static bool meets(const eng_op *op) { return eng_op_cuda(op->kind).all != NULL; }

/* ---- units ---- */

static int32_t producer(const eng_program *p, int32_t value) { return p->value[value].producer; }

/* Units as far as they are found. unit_of: -1 where an op has none yet. */
typedef struct found {
    const eng_device *d;
    const eng_program *p;
    const int32_t *unit_of;
    const eng_device_unit *unit;
} found;

/* Where in the program op i runs: an op without a unit where it is. */
static int32_t place_of(const found *f, int32_t i)
{
    return i < 0 || f->unit_of[i] < 0 ? i : f->unit[f->unit_of[i]].stand;
}

/* The first inputs of two ops are one value, or one unit makes both. */
static bool beside(const found *f, const eng_op *a, const eng_op *b)
{
    if (a->stage != b->stage || a->n_in == 0 || b->n_in == 0) return false;
    if (a->in[0] == b->in[0]) return true;
    const int32_t from_a = producer(f->p, a->in[0]), from_b = producer(f->p, b->in[0]);
    return from_a >= 0 && from_b >= 0 && f->unit_of[from_a] >= 0 && f->unit_of[from_a] == f->unit_of[from_b];
}

/* The first op after u's that goes on with it as the fusion says, and has no unit; -1: none. */
static int32_t next_op(const found *f, const eng_device_unit *u, const eng_device_fusion *fusion)
{
    const eng_op *op = f->p->op;
    const int32_t last = u->op[u->n - 1], by = fusion->by[u->n];
    for (int32_t i = last + 1; i < f->p->n_ops; i++) {
        if (op[i].kind != fusion->kind[u->n] || f->unit_of[i] >= 0) continue;
        if (by == ENG_DEVICE_BESIDE ? beside(f, &op[i], &op[u->op[0]]) : by < op[i].n_in && op[i].in[by] == op[last].out[0])
            return i;
    }
    return -1;
}

static bool has_op(const eng_device_unit *u, int32_t i)
{
    for (int32_t n = 0; n < u->n; n++)
        if (u->op[n] == i) return true;
    return false;
}

static bool reads_unit(const eng_program *p, int32_t i, const eng_device_unit *u)
{
    for (int32_t k = 0; k < p->op[i].n_in; k++)
        if (has_op(u, producer(p, p->op[i].in[k]))) return true;
    return false;
}

/* Where in the program u can run: at the first of its ops by which everything is there that it reads, if nothing that
 * reads of it runs before. -1: nowhere. */
static int32_t stand_of(const found *f, const eng_device_unit *u)
{
    const eng_program *p = f->p;
    for (int32_t m = 0; m < u->n; m++) {
        const int32_t at = u->op[m];
        bool fine = true;
        for (int32_t n = 0; n < u->n; n++)
            for (int32_t k = 0; k < p->op[u->op[n]].n_in; k++) {
                const int32_t from = producer(p, p->op[u->op[n]].in[k]);
                fine = fine && (has_op(u, from) || place_of(f, from) < at);
            }
        for (int32_t i = 0; i < p->n_ops; i++) fine = fine && (has_op(u, i) || !reads_unit(p, i, u) || place_of(f, i) > at);
        if (fine) return at;
    }
    return -1;
}

/* u begins with its first op: whether the fusion has the others, and where it stands. */
static bool complete(const found *f, const eng_device_fusion *fusion, eng_device_unit *u)
{
    const eng_op *op[ENG_DEVICE_UNIT_OPS] = { &f->p->op[u->op[0]] };
    if (fusion->kind[0] != op[0]->kind) return false;
    for (; u->n < fusion->n; u->n++) {
        const int32_t i = next_op(f, u, fusion);
        if (i < 0) return false;
        u->op[u->n] = i;
        op[u->n] = &f->p->op[i];
    }
    if (fusion->fits && !fusion->fits(f->d, f->p, op)) return false;
    u->fn = fusion->fn;
    u->stand = stand_of(f, u);
    return u->stand >= 0;
}

/* The longest fusion that begins with op i and takes only ops that no unit has yet. Two sums over ranks in a row are one
 * unit, so that they can be one exchange. */
static eng_device_unit unit_at(const found *f, int32_t i)
{
    const eng_program *p = f->p;
    if (p->op[i].kind == ENG_OP_ALL_REDUCE && i + 1 < p->n_ops && p->op[i + 1].kind == ENG_OP_ALL_REDUCE)
        return (eng_device_unit){ .n = 2, .op = { i, i + 1 }, .stand = i + 1 };
    for (size_t n = 0; n < ENG_DEVICE_N_FUSIONS; n++) {
        eng_device_unit u = { .n = 1, .op = { i } };
        if (complete(f, &ENG_DEVICE_FUSIONS[n], &u)) return u;
    }
    return (eng_device_unit){ .n = 1, .op = { i }, .stand = i };
}

/* Takes ops into units in program order, then puts the units where they stand. unit: room for twice n_ops. */
static void make_units(eng_device *d, eng_step_kind step)
{
    const eng_program *p = d->program[step];
    int32_t *unit_of = d->unit_of[step], n = 0;
    eng_device_unit *unit = d->unit[step], *one = unit + p->n_ops;
    const found f = { d, p, unit_of, one };
    for (int32_t i = 0; i < p->n_ops; i++) unit_of[i] = -1;
    for (int32_t i = 0; i < p->n_ops; i++) {
        if (unit_of[i] >= 0) continue;
        one[n] = unit_at(&f, i);
        for (int32_t k = 0; k < one[n].n; k++) unit_of[one[n].op[k]] = n;
        n++;
    }
    for (int32_t i = 0; i < p->n_ops; i++)
        if (one[unit_of[i]].stand == i) unit[d->n_units[step]++] = one[unit_of[i]];
    for (int32_t u = 0; u < d->n_units[step]; u++)
        for (int32_t k = 0; k < unit[u].n; k++) unit_of[unit[u].op[k]] = u;
}

/* The units whose values u reads, other than itself. */
typedef struct needs { int32_t n, unit[ENG_DEVICE_UNIT_OPS * ENG_OP_INS]; } needs;
static needs needs_of(const eng_device *d, eng_step_kind step, const eng_device_unit *u)
{
    const eng_program *p = d->program[step];
    const int32_t *unit_of = d->unit_of[step];
    needs out = { 0 };
    for (int32_t n = 0; n < u->n; n++)
        for (int32_t k = 0; k < p->op[u->op[n]].n_in; k++) {
            int32_t from = producer(p, p->op[u->op[n]].in[k]);
            if (from >= 0 && unit_of[from] != unit_of[u->op[0]]) out.unit[out.n++] = unit_of[from];
        }
    return out;
}

/* Units to the end of the step from each unit, itself included. */
static void path_lengths(const eng_device *d, eng_step_kind step, int32_t *length)
{
    for (int32_t i = 0; i < d->n_units[step]; i++) length[i] = 1;
    for (int32_t i = d->n_units[step] - 1; i >= 0; i--) {
        needs from = needs_of(d, step, &d->unit[step][i]);
        for (int32_t k = 0; k < from.n; k++)
            if (length[from.unit[k]] < length[i] + 1) length[from.unit[k]] = length[i] + 1;
    }
}

/* A unit stays on the lane of one that it needs if it has the longest way to go of all that need that one; otherwise it
 * takes the lane that has been quiet longest. length as of path_lengths; heir [n_units] is scratch. */
static void assign_lanes(eng_device *d, eng_step_kind step, const int32_t *length, int32_t *heir)
{
    eng_device_unit *unit = d->unit[step];
    int32_t last[ENG_DEVICE_LANES];
    for (int l = 0; l < ENG_DEVICE_LANES; l++) last[l] = -1;
    for (int32_t i = 0; i < d->n_units[step]; i++) heir[i] = -1;
    for (int32_t i = 0; i < d->n_units[step]; i++) {
        needs from = needs_of(d, step, &unit[i]);
        for (int32_t k = 0; k < from.n; k++)
            if (heir[from.unit[k]] < 0 || length[i] > length[heir[from.unit[k]]]) heir[from.unit[k]] = i;
    }
    for (int32_t i = 0; i < d->n_units[step]; i++) {
        needs from = needs_of(d, step, &unit[i]);
        int32_t lane = -1;
        for (int32_t k = 0; k < from.n; k++) {
            int32_t l = unit[from.unit[k]].lane;
            if (heir[from.unit[k]] == i && (lane < 0 || last[l] > last[lane])) lane = l;
        }
        for (int32_t l = 0; lane < 0 && l < ENG_DEVICE_LANES; l++) {
            bool quietest = true;
            for (int32_t m = 0; m < ENG_DEVICE_LANES; m++) quietest = quietest && last[l] <= last[m];
            if (quietest) lane = l;
        }
        unit[i].lane = lane;
        last[lane] = i;
    }
}

/* Which units of other lanes each one waits for: of what it needs, and of the meeting before one in which the ranks meet,
 * that alone which nothing else it waits for stands behind. A launch with one edge to it begins early (kernels/launch.cuh),
 * one with several hardly does. over [n_units] is scratch: over[i] what is over when i is, bit by bit, of `words` words. */
static void find_waits(eng_device *d, eng_step_kind step, uint64_t *over, size_t words)
{
    eng_device_unit *unit = d->unit[step];
    int32_t last[ENG_DEVICE_LANES], meeting = -1;
    for (int l = 0; l < ENG_DEVICE_LANES; l++) last[l] = -1;
    for (int32_t i = 0; i < d->n_units[step]; i++) {
        eng_device_unit *u = &unit[i];
        uint64_t *own = over + (size_t)i * words;
        needs from = needs_of(d, step, u);
        const bool meet = meets(&d->program[step]->op[u->op[0]]);
        if (last[u->lane] >= 0) memcpy(own, over + (size_t)last[u->lane] * words, words * sizeof *own);
        for (;;) { /* the latest first: the others may stand before it */
            int32_t f = meet && meeting >= 0 && !(own[meeting / 64] >> meeting % 64 & 1) ? meeting : -1;
            for (int32_t k = 0; k < from.n; k++)
                if (from.unit[k] > f && !(own[from.unit[k] / 64] >> from.unit[k] % 64 & 1)) f = from.unit[k];
            if (f < 0) break;
            u->wait[u->n_waits++] = f;
            for (size_t w = 0; w < words; w++) own[w] |= over[(size_t)f * words + w];
        }
        own[i / 64] |= (uint64_t)1 << i % 64;
        last[u->lane] = i;
        if (meet) meeting = i;
    }
}

err_code eng_device_units_make(eng_device *d, eng_step_kind step, err *e)
{
    size_t n = (size_t)d->program[step]->n_ops, words = n / 64 + 1;
    int32_t *scratch = mem_alloc(2 * n, sizeof *scratch);
    uint64_t *over = mem_alloc(n * words, sizeof *over);
    d->unit[step] = mem_alloc(2 * n, sizeof *d->unit[step]);
    d->unit_of[step] = mem_alloc(n, sizeof *d->unit_of[step]);
    if (!scratch || !over || !d->unit[step] || !d->unit_of[step]) {
        free(scratch);
        free(over);
        return err_set(e, ERR_NOMEM, "device: no memory for %zu ops", n);
    }
    make_units(d, step);
    for (int32_t i = 0; i < d->n_units[step]; i++) { /* nothing stands before what it reads */
        needs from = needs_of(d, step, &d->unit[step][i]);
        for (int32_t k = 0; k < from.n; k++) CHECK(from.unit[k] < i);
    }
    path_lengths(d, step, scratch);
    assign_lanes(d, step, scratch, scratch + n);
    find_waits(d, step, over, words);
    free(scratch);
    free(over);
    for (int32_t i = 0; i < d->n_units[step]; i++) TRY(krn_event_open(false, &d->unit[step][i].done, e));
    return ERR_OK;
}

/* ---- launching ---- */

err_code eng_device_launch_op(const eng_device_run *r, int32_t i, krn_stream s, err *e)
{
    const eng_op *op = &r->program->op[i];
    eng_device_op fn = eng_op_cuda(op->kind);
    if (fn.all) return fn.all(r, op, s, e);
    for (int32_t k = 0; k < r->d->n_local; k++) TRY(fn.one(r, &r->d->rank[k], op, s, e));
    return ERR_OK;
}

err_code eng_device_launch(const eng_device_run *r, int32_t first, err *e)
{
    eng_device *d = r->d;
    eng_step_kind step = r->program->step;
    krn_stream s = d->stream[step];
    int64_t before = krn_launch_count();
    if (step == ENG_STEP_DRAFT) TRY(krn_event_follow(d->written, s, e));
    err_code rc = krn_event_record(d->started, s, e);
    hot_begin();
    for (int32_t i = first; i < r->program->n_ops && rc == ERR_OK; i++) {
        if (meets(&r->program->op[i]) && d->comm) rc = krn_mark(d->mark, i, s, e);
        if (rc == ERR_OK) rc = eng_device_launch_op(r, i, s, e);
    }
    hot_end();
    d->launches = krn_launch_count() - before;
    TRY(rc);
    TRY(krn_event_record(d->ended, s, e));
    return step == ENG_STEP_INSERT ? krn_event_record(d->written, s, e) : ERR_OK;
}

/* ---- capture ---- */

static err_code launch_unit(const eng_device_run *r, const eng_device_unit *u, krn_stream s, err *e)
{
    const eng_op *op[ENG_DEVICE_UNIT_OPS];
    if (!u->fn && u->n == 1) return eng_device_launch_op(r, u->op[0], s, e);
    if (!u->fn) {
        TRY(eng_device_comm_group_begin(r->d->comm, e));
        for (int32_t n = 0; n < u->n; n++) TRY(eng_device_launch_op(r, u->op[n], s, e));
        return eng_device_comm_group_end(r->d->comm, e);
    }
    for (int32_t n = 0; n < u->n; n++) op[n] = &r->program->op[u->op[n]];
    for (int32_t k = 0; k < r->d->n_local; k++) TRY(u->fn(r, &r->d->rank[k], op, s, e));
    return ERR_OK;
}

/* The first of a draft's units that reads a window; it waits for `written` before it begins, as kernels/attention.h wants.
 * The later ones need what it makes. -1: none, an insert's. */
static int32_t first_reader(const eng_device *d, eng_step_kind step)
{
    const eng_program *p = d->program[step];
    for (int32_t i = 0; i < d->n_units[step]; i++)
        for (int32_t n = 0; n < d->unit[step][i].n; n++) {
            const eng_op *op = &p->op[d->unit[step][i].op[n]];
            for (int32_t k = 0; k < op->n_in; k++)
                if (p->value[op->in[k]].state) return i;
        }
    return -1;
}

static err_code put_graph(const eng_device_run *r, err *e)
{
    eng_device *d = r->d;
    eng_step_kind step = r->program->step;
    int32_t reader = first_reader(d, step);
    TRY(krn_event_record(d->fork, d->lane[0], e));
    for (int l = 1; l < ENG_DEVICE_LANES; l++) TRY(krn_event_follow(d->fork, d->lane[l], e));
    TRY(krn_event_follow(d->fork, d->side, e));
    for (int32_t i = 0; i < d->n_units[step]; i++) {
        const eng_device_unit *u = &d->unit[step][i];
        krn_stream lane = d->lane[u->lane];
        bool meet = meets(&r->program->op[u->op[0]]);
        for (int32_t k = 0; k < u->n_waits; k++) TRY(krn_event_follow(d->unit[step][u->wait[k]].done, lane, e));
        if (i == reader) TRY(krn_event_follow_outside(d->written, lane, e));
        if (meet && d->comm) { /* beside the collective, so that it costs no time */
            krn_event reached = d->joined[ENG_DEVICE_LANES];
            TRY(krn_event_record(reached, lane, e));
            TRY(krn_event_follow(reached, d->side, e));
            TRY(krn_mark(d->mark, u->op[0], d->side, e));
        }
        TRY(launch_unit(r, u, lane, e));
        TRY(krn_event_record(u->done, lane, e));
    }
    for (int l = 1; l < ENG_DEVICE_LANES; l++) {
        TRY(krn_event_record(d->joined[l], d->lane[l], e));
        TRY(krn_event_follow(d->joined[l], d->lane[0], e));
    }
    TRY(krn_event_record(d->joined[0], d->side, e));
    return krn_event_follow(d->joined[0], d->lane[0], e);
}

err_code eng_device_capture(const eng_device_run *r, eng_device_graph *g, err *e)
{
    int64_t before = krn_launch_count();
    TRY(krn_capture_begin(r->d->lane[0], e));
    err_code rc = put_graph(r, e);
    if (rc != ERR_OK) {
        krn_capture_abort(r->d->lane[0]);
        return rc;
    }
    TRY(krn_capture_end(r->d->lane[0], &g->graph, e));
    g->launches = krn_launch_count() - before;
    return ERR_OK;
}
