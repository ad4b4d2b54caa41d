#include "engine/ab.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/cmd_bench.h"

/* What outputs hold before a run. Different ones, so that what both sides leave alone differs too. */
static const uint8_t POISON[AB_SIDES] = { 0xa5, 0x5a };

struct ab_case {
    const ab_pair *pair;
    const int32_t *dim;
    ab_device *device;
    int32_t t_max, n_arrays;
    ab_array array[AB_ARRAYS_MAX];       /* at the T of `in` */
    ab_inputs in;                        /* buf: host memory of what is read */
    void *dev[AB_ARRAYS_MAX];
    void *got[AB_SIDES][AB_ARRAYS_MAX];  /* host memory of what a side wrote */
    void *check;                         /* host memory for the largest AB_IN */
    krn_span *bound;                     /* AB_BOUND: of the first AB_OUT */
    int32_t n_copies[AB_ARRAYS_MAX];     /* while a unit is timed: of a weight; else 1 */
    void *copies[AB_ARRAYS_MAX];
};

static const char *const KIND_NAMES[AB_KINDS] = { "plain", "zeros", "ties", "denormal", "huge", "stale" };
const char *ab_kind_name(ab_kind k) { return KIND_NAMES[k]; }

static const char *const FAULT_NAMES[AB_FAULTS] = { "equal", "bits differ", "outside its bound", "not written", "not moved",
                                                    "an input was written to" };
const char *ab_fault_name(ab_fault f) { return FAULT_NAMES[f]; }

static uint64_t bytes_of(const ab_array *a) { return (uint64_t)a->n * fmt_dtype_bytes(a->type); }
static bool is_read(ab_role r) { return r == AB_IN || r == AB_WEIGHT || r == AB_STATE; }
static bool is_result(ab_role r) { return r == AB_OUT || r == AB_STATE; }

/* ---- memory ---- */

static err_code open_array(ab_case *c, int32_t i, uint64_t *largest, err *e)
{
    const ab_array *a = &c->array[i];
    const uint64_t bytes = bytes_of(a);
    bool here = true;
    c->n_copies[i] = 1;
    if (is_read(a->role)) here = (c->in.buf[i] = mem_alloc_aligned(bytes, 1)) != NULL;
    for (int s = 0; s < AB_SIDES && is_result(a->role) && here; s++)
        here = (c->got[s][i] = mem_alloc_aligned(bytes, 1)) != NULL;
    if (!here)
        return err_set(e, ERR_NOMEM, "ab: no memory for %s, %llu bytes", a->name, (unsigned long long)bytes);
    if (a->role == AB_IN && bytes > *largest) *largest = bytes;
    return c->device->take(c->device, bytes, &c->dev[i], e);
}

static ab_call call_of(const ab_case *c, int32_t node)
{
    ab_call call = { .dim = c->dim, .T = c->in.T, .node = node, .on_card = c->device->on_card,
                     .stream = c->device->stream };
    for (int32_t i = 0; i < c->n_arrays; i++) {
        const int32_t copy = node % c->n_copies[i]; /* 0 is the original */
        call.buf[i] = copy == 0 ? c->dev[i] : (uint8_t *)c->copies[i] + (uint64_t)(copy - 1) * bytes_of(&c->array[i]);
    }
    return call;
}

static err_code open_case(ab_case *c, err *e)
{
    const ab_pair *p = c->pair;
    uint64_t largest = 0;
    c->n_arrays = p->arrays(c->dim, c->t_max, c->array);
    CHECK(c->n_arrays <= AB_ARRAYS_MAX);
    for (int32_t i = 0; i < c->n_arrays; i++) TRY(open_array(c, i, &largest, e));
    c->check = mem_alloc_aligned(largest + 1, 1);
    if (!c->check) return err_set(e, ERR_NOMEM, "ab: no memory for %llu bytes", (unsigned long long)largest);
    for (int32_t i = 0; p->bound && i < c->n_arrays && !c->bound; i++) {
        if (c->array[i].role != AB_OUT) continue;
        c->bound = mem_alloc((size_t)c->array[i].n, sizeof *c->bound);
        if (!c->bound) return err_set(e, ERR_NOMEM, "ab: no memory for the bounds of %s", c->array[i].name);
    }
    if (p->weights) p->weights(&c->in);
    for (int32_t i = 0; i < c->n_arrays; i++)
        if (c->array[i].role == AB_WEIGHT)
            TRY(c->device->copy(c->device, c->dev[i], c->in.buf[i], bytes_of(&c->array[i]), e));
    const ab_call call = call_of(c, 0);
    return p->prepare ? p->prepare(&call, e) : ERR_OK;
}

err_code ab_case_open(const ab_pair *p, const int32_t *dim, int32_t t_max, ab_device *d, ab_case **out, err *e)
{
    *out = NULL;
    ab_case *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "ab: no memory");
    *c = (ab_case){ .pair = p, .dim = dim, .device = d, .t_max = t_max, .in = { .dim = dim, .T = t_max } };
    err_code rc = open_case(c, e);
    if (rc != ERR_OK) {
        ab_case_close(c);
        return rc;
    }
    *out = c;
    return ERR_OK;
}

void ab_case_close(ab_case *c)
{
    if (!c) return;
    for (int32_t i = 0; i < c->n_arrays; i++) {
        c->device->give(c->device, c->dev[i]);
        free(c->in.buf[i]);
        for (int s = 0; s < AB_SIDES; s++) free(c->got[s][i]);
    }
    free(c->check);
    free(c->bound);
    free(c);
}

void ab_case_resize(ab_case *c, int32_t T)
{
    CHECK(T >= 1 && T <= c->t_max);
    c->in.T = T;
    c->pair->arrays(c->dim, T, c->array);
}

/* ---- comparing ---- */

static err_code put_inputs(ab_case *c, ab_kind kind, uint64_t seed, err *e)
{
    c->in.kind = kind;
    c->in.seed = seed;
    for (int32_t i = 0; i < c->n_arrays; i++) {
        const ab_array *a = &c->array[i];
        if (is_read(a->role) && a->scale > 0) ab_fill_numbers(a->type, c->in.buf[i], a->n, a->scale, kind, seed, a->name);
    }
    if (c->pair->fill) c->pair->fill(&c->in);
    for (int32_t i = 0; i < c->n_arrays; i++)
        if (c->array[i].role == AB_IN)
            TRY(c->device->copy(c->device, c->dev[i], c->in.buf[i], bytes_of(&c->array[i]), e));
    return ERR_OK;
}

static err_code run_side(ab_case *c, int side, err *e)
{
    ab_device *d = c->device;
    for (int32_t i = 0; i < c->n_arrays; i++) {
        const ab_array *a = &c->array[i];
        if (a->role == AB_STATE) TRY(d->copy(d, c->dev[i], c->in.buf[i], bytes_of(a), e));
        if (a->role == AB_OUT) TRY(d->fill(d, c->dev[i], POISON[side], bytes_of(a), e));
    }
    const ab_call call = call_of(c, 0);
    if (c->pair->side[side](&call, e) != ERR_OK) return err_wrap(e, "%s", c->pair->name[side]);
    for (int32_t i = 0; i < c->n_arrays; i++)
        if (is_result(c->array[i].role)) TRY(d->copy(d, c->got[side][i], c->dev[i], bytes_of(&c->array[i]), e));
    return ERR_OK;
}

static uint64_t element(const void *data, int64_t i, uint32_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, (const uint8_t *)data + (uint64_t)i * bytes, bytes);
    return v;
}

static uint64_t poison(int side, uint32_t bytes)
{
    uint64_t v = 0;
    memset(&v, POISON[side], bytes);
    return v;
}

/* Notes a fault of element i. Only the first fault of a comparison is told; more of the same are counted. */
static void note(ab_finding *f, const ab_case *c, int32_t array, int64_t i, ab_fault fault, bool by_base, bool by_new)
{
    const ab_array *a = &c->array[array];
    if (f->fault != AB_EQUAL) {
        f->count += f->fault == fault && f->array == a->name;
        return;
    }
    f->fault = fault;
    f->by[AB_BASE] = by_base;
    f->by[AB_NEW] = by_new;
    f->array = a->name;
    f->type = a->type;
    f->index = i;
    f->n = a->n;
    f->count = 1;
    for (int s = 0; s < AB_SIDES && is_result(a->role); s++)
        f->bits[s] = element(c->got[s][array], i, fmt_dtype_bytes(a->type));
}

static float value_of(fmt_dtype type, uint64_t bits)
{
    const uint32_t word = (uint32_t)(type == FMT_DTYPE_BF16 ? bits << 16 : bits);
    float v;
    memcpy(&v, &word, sizeof v);
    return v;
}

/* A NaN lies in no bound. */
static bool inside(krn_span s, fmt_dtype type, uint64_t bits)
{
    if (type == FMT_DTYPE_BF16) s = krn_span_bf16(s);
    const double v = (double)value_of(type, bits);
    return v >= s.lo && v <= s.hi;
}

static void judge_result(const ab_case *c, int32_t array, const krn_span *bound, ab_finding *f)
{
    const ab_array *a = &c->array[array];
    const uint32_t bytes = fmt_dtype_bytes(a->type);
    const void *base = c->got[AB_BASE][array], *fresh = c->got[AB_NEW][array];
    f->n_all += a->n;
    if (!bound && memcmp(base, fresh, bytes_of(a)) == 0) {
        f->n_equal += a->n;
        return;
    }
    for (int64_t i = 0; i < a->n; i++) {
        const uint64_t x = element(base, i, bytes), y = element(fresh, i, bytes);
        if (x == y) f->n_equal++;
        const bool x_left = a->role == AB_OUT && x == poison(AB_BASE, bytes) && x != y;
        const bool y_left = a->role == AB_OUT && y == poison(AB_NEW, bytes) && x != y;
        const bool x_out = bound && !inside(bound[i], a->type, x), y_out = bound && !inside(bound[i], a->type, y);
        if (x_left || y_left) note(f, c, array, i, AB_UNWRITTEN, x_left, y_left);
        else if (!bound && x != y) note(f, c, array, i, AB_DIFFERS, true, true);
        else if (x_out || y_out) {
            if (f->fault == AB_EQUAL) f->bound = bound[i];
            note(f, c, array, i, AB_OUTSIDE, x_out, y_out);
        }
    }
}

static void judge_moved(const ab_case *c, int32_t array, ab_finding *f)
{
    const uint64_t bytes = bytes_of(&c->array[array]);
    const bool still_base = memcmp(c->got[AB_BASE][array], c->in.buf[array], bytes) == 0;
    const bool still_new = memcmp(c->got[AB_NEW][array], c->in.buf[array], bytes) == 0;
    if (still_base || still_new) note(f, c, array, 0, AB_UNMOVED, still_base, still_new);
}

/* After both sides ran: which of them it was is not known. */
static err_code judge_input(ab_case *c, int32_t array, ab_finding *f, err *e)
{
    const ab_array *a = &c->array[array];
    const uint32_t bytes = fmt_dtype_bytes(a->type);
    TRY(c->device->copy(c->device, c->check, c->dev[array], bytes_of(a), e));
    if (memcmp(c->check, c->in.buf[array], bytes_of(a)) == 0) return ERR_OK;
    for (int64_t i = 0; i < a->n; i++)
        if (element(c->check, i, bytes) != element(c->in.buf[array], i, bytes))
            note(f, c, array, i, AB_SPOILT, true, true);
    return ERR_OK;
}

err_code ab_case_compare(ab_case *c, ab_kind kind, uint64_t seed, ab_finding *out, err *e)
{
    *out = (ab_finding){ .kind = kind, .seed = seed, .T = c->in.T };
    TRY(put_inputs(c, kind, seed, e));
    for (int side = 0; side < AB_SIDES; side++) TRY(run_side(c, side, e));
    const krn_span *bound = c->bound; /* of the first output; all else is compared by its bits */
    if (bound) c->pair->bound(&c->in, c->bound);
    for (int32_t i = 0; i < c->n_arrays; i++) {
        if (!is_result(c->array[i].role)) continue;
        judge_result(c, i, c->array[i].role == AB_OUT ? bound : NULL, out);
        if (c->array[i].role == AB_OUT) bound = NULL;
        else if (kind == AB_PLAIN) judge_moved(c, i, out);
    }
    for (int32_t i = 0; i < c->n_arrays; i++)
        if (c->array[i].role == AB_IN) TRY(judge_input(c, i, out, e));
    return ERR_OK;
}

/* "0x3f80 (1)" */
static void value_text(fmt_dtype type, uint64_t bits, char *out, size_t bytes)
{
    const int digits = 2 * (int)fmt_dtype_bytes(type);
    if (fmt_dtype_bytes(type) == 8) {
        snprintf(out, bytes, "0x%016llx", (unsigned long long)bits);
        return;
    }
    if (type != FMT_DTYPE_F32 && type != FMT_DTYPE_BF16) {
        snprintf(out, bytes, "0x%0*llx (%d)", digits, (unsigned long long)bits, (int)(int32_t)bits);
        return;
    }
    snprintf(out, bytes, "0x%0*llx (%.9g)", digits, (unsigned long long)bits, (double)value_of(type, bits));
}

void ab_finding_text(const ab_finding *f, char *out, size_t bytes)
{
    char base[48], fresh[48], where[120] = "", bound[80] = "";
    static const char *const WHO[2][2] = { { "", " by new" }, { " by base", " by either" } };
    if (f->fault == AB_EQUAL) {
        snprintf(out, bytes, "equal");
        return;
    }
    value_text(f->type, f->bits[AB_BASE], base, sizeof base);
    value_text(f->type, f->bits[AB_NEW], fresh, sizeof fresh);
    if (f->fault != AB_SPOILT) snprintf(where, sizeof where, ": base %s, new %s", base, fresh);
    if (f->fault == AB_OUTSIDE) snprintf(bound, sizeof bound, " (%.9g to %.9g)", f->bound.lo, f->bound.hi);
    const bool whose = f->fault == AB_OUTSIDE || f->fault == AB_UNWRITTEN || f->fault == AB_UNMOVED;
    snprintf(out, bytes, "%s[%lld] of %lld%s: %s%s%s, %lld such; kind %s, seed %llu, T %d", f->array, (long long)f->index,
             (long long)f->n, where, ab_fault_name(f->fault), whose ? WHO[f->by[AB_BASE]][f->by[AB_NEW]] : "", bound,
             (long long)f->count, ab_kind_name(f->kind), (unsigned long long)f->seed, f->T);
}

/* ---- timing ---- */

void ab_times_of(const double *base_us, const double *new_us, int32_t n, double *room, ab_times *out)
{
    const int32_t half = n / 2;
    double first = 0, second = 0;
    *out = (ab_times){ .n = n, .drift = 1 };
    for (int32_t i = 0; i < n; i++) {
        room[i] = new_us[i] / base_us[i];
        out->faster += room[i] < 1 ? 1.0 / n : 0;
    }
    bench_sort(room, n);
    out->ratio = bench_quantile(room, n, 0.5);
    out->ratio_min = room[0];
    out->ratio_max = room[n - 1];
    for (int s = 0; s < AB_SIDES; s++) {
        memcpy(room, s == AB_BASE ? base_us : new_us, (size_t)n * sizeof *room);
        bench_sort(room, n);
        out->p50_us[s] = bench_quantile(room, n, 0.5);
    }
    if (half == 0) return;
    memcpy(room, base_us, (size_t)n * sizeof *room);
    bench_sort(room, half);
    bench_sort(room + half, n - half);
    first = bench_quantile(room, half, 0.5);
    second = bench_quantile(room + half, n - half, 0.5);
    out->drift = second / first;
}

const char *ab_times_word(const ab_times *t)
{
    return t->faster >= 0.75 && t->ratio < 1 ? "faster" : t->faster <= 0.25 && t->ratio > 1 ? "slower" : "no difference";
}

typedef struct side_of { const ab_case *c; int side; } side_of;
static err_code launch(void *ctx, int32_t node, err *e)
{
    const side_of *s = ctx;
    const ab_call call = call_of(s->c, node);
    return s->c->pair->side[s->side](&call, e);
}

/* More bytes of each weight than any cache holds, so that a run reads its weights from memory, as a step does. */
static err_code open_copies(ab_case *c, err *e)
{
    static const uint64_t DISTINCT_BYTES = 400000000;
    ab_device *d = c->device;
    for (int32_t i = 0; i < c->n_arrays; i++) {
        const ab_array *a = &c->array[i];
        const uint64_t bytes = bytes_of(a), wanted = (DISTINCT_BYTES + bytes - 1) / bytes;
        if (a->role != AB_WEIGHT || wanted < 2) continue;
        const int32_t n = wanted > (uint64_t)d->nodes ? d->nodes : (int32_t)wanted;
        if (n < 2) continue;
        TRY(d->take(d, (uint64_t)(n - 1) * bytes, &c->copies[i], e));
        c->n_copies[i] = n;
        for (int32_t k = 0; k < n - 1; k++)
            TRY(d->copy(d, (uint8_t *)c->copies[i] + (uint64_t)k * bytes, c->dev[i], bytes, e));
    }
    return ERR_OK;
}

static void close_copies(ab_case *c)
{
    for (int32_t i = 0; i < c->n_arrays; i++) {
        c->device->give(c->device, c->copies[i]);
        c->copies[i] = NULL;
        c->n_copies[i] = 1;
    }
}

enum { PAIRS_MIN = 5 }; /* however long they take */

/* us[AB_SIDES][iterations]; *n: pairs that were timed. */
static err_code sample(ab_device *d, void *const *unit, const ab_settings *s, double *us, int32_t *n, err *e)
{
    double settling;
    const uint64_t settled = clock_ns() + (uint64_t)(s->settle_s * 1e9);
    do
        for (int side = 0; side < AB_SIDES; side++) TRY(d->unit_time(d, unit[side], &settling, e));
    while (clock_ns() < settled);
    const uint64_t end = s->budget_s > 0 ? clock_ns() + (uint64_t)(s->budget_s * 1e9) : UINT64_MAX;
    for (*n = 0; *n < s->iterations && (*n < PAIRS_MIN || clock_ns() < end); ++*n)
        for (int side = 0; side < AB_SIDES; side++)
            TRY(d->unit_time(d, unit[side], &us[side * s->iterations + *n], e));
    return ERR_OK;
}

err_code ab_case_time(ab_case *c, bool graph, const ab_settings *s, ab_times *out, err *e)
{
    ab_device *d = c->device;
    const int32_t runs = graph ? d->nodes : 1;
    void *unit[AB_SIDES] = { NULL };
    side_of sides[AB_SIDES] = { { c, AB_BASE }, { c, AB_NEW } };
    int32_t n = 0;
    double *us = mem_alloc(3 * (size_t)s->iterations, sizeof *us);
    err_code rc = us ? ERR_OK : err_set(e, ERR_NOMEM, "ab: no memory for %d pairs", s->iterations);
    if (rc == ERR_OK && graph) rc = open_copies(c, e);
    for (int side = 0; side < AB_SIDES && rc == ERR_OK; side++)
        rc = d->unit_open(d, launch, &sides[side], runs, graph, &unit[side], e);
    if (rc == ERR_OK) rc = sample(d, unit, s, us, &n, e);
    for (int side = 0; side < AB_SIDES; side++) d->unit_close(d, unit[side]);
    close_copies(c);
    if (rc == ERR_OK) {
        for (int32_t i = 0; i < 2 * s->iterations; i++) us[i] /= runs;
        ab_times_of(us, us + s->iterations, n, us + 2 * s->iterations, out);
    }
    free(us);
    return rc;
}
