/* A CUDA device as a device of ab. One stream; a unit is a graph, or launches between two events. */
#include "engine/ab.h"

#include "base/mem.h"
#include "engine/cmd_bench.h"

typedef struct card {
    ab_device device; /* first: what callers hold */
    krn_event from, to;
} card;

typedef struct card_unit {
    ab_launch_fn launch;
    void *ctx;
    int32_t n;
    krn_graph *graph; /* NULL: one by one */
} card_unit;

static err_code wait(ab_device *d, err *e)
{
    static const uint64_t DEADLINE_NS = 60000000000u;
    bool done;
    TRY(krn_stream_wait(d->stream, DEADLINE_NS, &done, e));
    return done ? ERR_OK : err_set(e, ERR_DEVICE, "ab: a run did not end within 60 s");
}

static err_code take(ab_device *d, uint64_t bytes, void **out, err *e)
{
    (void)d;
    return krn_device_alloc(bytes, out, e);
}

static void give(ab_device *d, void *memory)
{
    (void)d;
    if (memory) krn_device_free(memory);
}

static err_code copy(ab_device *d, void *to, const void *from, uint64_t bytes, err *e)
{
    TRY(krn_copy(to, from, bytes, d->stream, e));
    return wait(d, e);
}

static err_code fill(ab_device *d, void *to, uint8_t byte, uint64_t bytes, err *e)
{
    return krn_fill(to, byte, bytes, d->stream, e); /* runs follow it on the stream */
}

static void unit_close(ab_device *d, void *unit)
{
    card_unit *u = unit;
    (void)d;
    if (u) krn_graph_close(u->graph);
    free(u);
}

static err_code capture(ab_device *d, card_unit *u, err *e)
{
    err_code rc = ERR_OK;
    TRY(krn_capture_begin(d->stream, e));
    for (int32_t i = 0; i < u->n && rc == ERR_OK; i++) rc = u->launch(u->ctx, i, e);
    if (rc == ERR_OK) return krn_capture_end(d->stream, &u->graph, e);
    krn_capture_abort(d->stream);
    return rc;
}

static err_code unit_open(ab_device *d, ab_launch_fn launch, void *ctx, int32_t n, bool graph, void **out, err *e)
{
    *out = NULL;
    card_unit *u = mem_alloc(1, sizeof *u);
    if (!u) return err_set(e, ERR_NOMEM, "ab: no memory");
    *u = (card_unit){ launch, ctx, n, NULL };
    err_code rc = launch(ctx, 0, e); /* loads the kernels, which a capture may not */
    if (rc == ERR_OK) rc = wait(d, e);
    if (rc == ERR_OK && graph) rc = capture(d, u, e);
    if (rc != ERR_OK) {
        unit_close(d, u);
        return rc;
    }
    *out = u;
    return ERR_OK;
}

static err_code unit_time(ab_device *d, void *unit, double *us, err *e)
{
    enum { HEAD_START_US = 30 }; /* longer than the host needs for a few launches: their cost on the host is not in us */
    const card *k = (const card *)d;
    const card_unit *u = unit;
    if (!u->graph) TRY(krn_delay(HEAD_START_US, d->stream, e));
    TRY(krn_event_record(k->from, d->stream, e));
    if (u->graph) TRY(krn_graph_launch(u->graph, d->stream, e));
    else
        for (int32_t i = 0; i < u->n; i++) TRY(u->launch(u->ctx, i, e));
    TRY(krn_event_record(k->to, d->stream, e));
    TRY(wait(d, e));
    return krn_event_elapsed_us(k->from, k->to, us, e);
}

static err_code launch_nothing(void *ctx, int32_t node, err *e)
{
    (void)node;
    return krn_delay(0, ((const ab_device *)ctx)->stream, e);
}

/* What a node of a graph costs that does nothing: below it no kernel gets, however few its bytes. */
static err_code measure_empty(ab_device *d, err *e)
{
    enum { SAMPLES = 21 };
    double us[SAMPLES];
    void *unit = NULL;
    err_code rc = unit_open(d, launch_nothing, d, d->nodes, true, &unit, e);
    for (int i = 0; i < SAMPLES && rc == ERR_OK; i++) rc = unit_time(d, unit, &us[i], e);
    unit_close(d, unit);
    if (rc != ERR_OK) return rc;
    bench_sort(us, SAMPLES);
    d->empty_us = bench_quantile(us, SAMPLES, 0.5) / d->nodes;
    return ERR_OK;
}

static err_code open_card(card *k, err *e)
{
    ab_device *d = &k->device;
    TRY(krn_device_use(0, e));
    TRY(krn_stream_open(&d->stream, e));
    TRY(krn_event_open(true, &k->from, e));
    TRY(krn_event_open(true, &k->to, e));
    snprintf(d->name, sizeof d->name, "%s", eng_device_name());
    TRY(eng_copy_speed(d->stream, k->from, k->to, &d->copy_bytes_per_s, e));
    return measure_empty(d, e);
}

err_code ab_card_open(ab_device **out, err *e)
{
    *out = NULL;
    if (krn_device_count() == 0) return err_set(e, ERR_DEVICE, "found no CUDA device");
    card *k = mem_alloc(1, sizeof *k);
    if (!k) return err_set(e, ERR_NOMEM, "ab: no memory");
    k->device = (ab_device){ .on_card = true, .nodes = AB_NODES, .take = take, .give = give, .copy = copy, .fill = fill,
                             .unit_open = unit_open, .unit_time = unit_time, .unit_close = unit_close };
    err_code rc = open_card(k, e);
    if (rc != ERR_OK) {
        ab_card_close(&k->device);
        return rc;
    }
    *out = &k->device;
    return ERR_OK;
}

void ab_card_close(ab_device *d)
{
    card *k = (card *)d;
    if (!k) return;
    krn_event_close(k->from);
    krn_event_close(k->to);
    krn_stream_close(d->stream);
    free(k);
}
