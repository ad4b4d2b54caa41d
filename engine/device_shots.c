#include "engine/device_shots.h"

#include "base/clock.h"
#include "base/hot.h"
#include "base/mem.h"
#include "engine/device_exec.h"

#include <time.h>

/* How long a copy may take: it stands behind a step that has a deadline of its own. */
#define LANDING_DEADLINE_NS 120000000000ull
#define CLOSE_DEADLINE_NS 10000000000ull

typedef struct device_shot {
    void *dev;
    uint8_t *host;
    krn_event *from, *to; /* [n_parts]: around the launches that pack */
    krn_event landed;     /* the copies of all parts so far are done */
    int32_t n_packed;     /* parts whose copies may be under way */
} device_shot;

struct eng_device_shots {
    eng_device *d;
    eng_shot_items (*items)[ENG_SHOT_TABLES];             /* [local ranks] */
    krn_snap_item *table[ENG_RANKS_MAX][ENG_SHOT_TABLES]; /* the same in device memory, all in one piece */
    void *tables;
    krn_stream copy;
    int32_t depth, n_parts;
    uint64_t part_bytes;
    device_shot *shot; /* [depth] */
};

/* Where the items' values are. A stage's window is that of slot 0. */
static void set_sources(eng_device *d, int32_t local, eng_shot_items *items)
{
    const eng_program *p = items->program;
    const eng_device_rank *k = &d->rank[local];
    int64_t ring = (int64_t)d->config.window * d->config.head_dim, stage = 0;
    for (int32_t v = 0; v < p->n_values; v++) {
        if (p->value[v].state) {
            for (int32_t b = 0; items->at[v] >= 0 && b < ENG_BATCH_MAX; b++)
                items->item[items->at[v] + b].src = k->rings + stage * ring;
            stage++; /* each stage has one, in order */
            continue;
        }
        if (items->at[v] >= 0) items->item[items->at[v]].src = k->value[p->step][v];
        if (items->top[v] >= 0) items->item[items->top[v]].src = k->value[p->step][v];
    }
}

static err_code open_tables(eng_device_shots *s, err *e)
{
    eng_device *d = s->d;
    uint64_t n = 0;
    bool done;
    for (int32_t r = 0; r < d->n_local; r++)
        for (int32_t t = 0; t < ENG_SHOT_TABLES; t++) n += (uint64_t)s->items[r][t].n;
    TRY(krn_device_alloc(n * sizeof(krn_snap_item), &s->tables, e));
    n = 0;
    for (int32_t r = 0; r < d->n_local; r++)
        for (int32_t t = 0; t < ENG_SHOT_TABLES; t++) {
            eng_shot_items *items = &s->items[r][t];
            if (items->n == 0) continue;
            set_sources(d, r, items);
            s->table[r][t] = (krn_snap_item *)s->tables + n;
            TRY(krn_copy(s->table[r][t], items->item, (uint64_t)items->n * sizeof *items->item, s->copy, e));
            n += (uint64_t)items->n;
        }
    return krn_stream_wait(s->copy, 0, &done, e);
}

static err_code open_shot(eng_device_shots *s, device_shot *shot, uint64_t bytes, err *e)
{
    shot->from = mem_alloc((size_t)s->n_parts, sizeof *shot->from);
    shot->to = mem_alloc((size_t)s->n_parts, sizeof *shot->to);
    if (!shot->from || !shot->to) return err_set(e, ERR_NOMEM, "shots: no memory for %d events", 2 * s->n_parts);
    for (int32_t i = 0; i < s->n_parts; i++) {
        TRY(krn_event_open(true, &shot->from[i], e));
        TRY(krn_event_open(true, &shot->to[i], e));
    }
    TRY(krn_event_open(false, &shot->landed, e));
    TRY(krn_device_alloc(bytes, &shot->dev, e));
    return krn_pinned_alloc(bytes, (void **)&shot->host, e);
}

static err_code open_all(eng_device_shots *s, const eng_device_shots_setup *setup, err *e)
{
    TRY(krn_device_use(s->d->device, e));
    TRY(krn_stream_open(&s->copy, e));
    TRY(open_tables(s, e));
    for (int32_t i = 0; i < s->depth; i++) TRY(open_shot(s, &s->shot[i], setup->shot_bytes, e));
    return ERR_OK;
}

err_code eng_device_shots_open(eng_device *d, const eng_device_shots_setup *setup, eng_device_shots **out, err *e)
{
    *out = NULL;
    eng_device_shots *s = mem_alloc(1, sizeof *s);
    device_shot *shot = mem_alloc((size_t)setup->depth, sizeof *shot);
    if (!s || !shot) {
        free(s);
        free(shot);
        return err_set(e, ERR_NOMEM, "shots: no memory for %d shots", setup->depth);
    }
    *s = (eng_device_shots){ .d = d, .items = setup->items, .depth = setup->depth, .n_parts = setup->n_parts,
                             .part_bytes = setup->part_bytes, .shot = shot };
    err_code rc = open_all(s, setup, e);
    if (rc != ERR_OK) {
        eng_device_shots_close(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

void eng_device_shots_close(eng_device_shots *s)
{
    err ignored; /* the device was current before: it still is one */
    bool done;
    if (!s) return;
    if (krn_device_use(s->d->device, &ignored) != ERR_OK) return;
    /* A copy that nobody waited for must not find its memory gone; after a failed step none may ever end. */
    err_code last = krn_stream_wait(s->copy, CLOSE_DEADLINE_NS, &done, &ignored);
    (void)last;
    for (int32_t i = 0; i < s->depth; i++) {
        device_shot *shot = &s->shot[i];
        for (int32_t k = 0; k < s->n_parts; k++) {
            if (shot->from) krn_event_close(shot->from[k]);
            if (shot->to) krn_event_close(shot->to[k]);
        }
        free(shot->from);
        free(shot->to);
        krn_event_close(shot->landed);
        krn_device_free(shot->dev);
        krn_pinned_free(shot->host);
    }
    krn_stream_close(s->copy);
    krn_device_free(s->tables);
    free(s->shot);
    free(s);
}

uint8_t *eng_device_shots_data(eng_device_shots *s, int32_t shot) { return s->shot[shot].host; }

/* One launch a rank, one copy for all of them. */
static err_code pack(eng_device_shots *s, device_shot *shot, int32_t part, int32_t table, const krn_snap_live *live, err *e)
{
    eng_device *d = s->d;
    krn_stream stream = d->stream[table == 0 ? ENG_STEP_INSERT : ENG_STEP_DRAFT];
    uint64_t offset[KRN_SNAP_ITEMS_MAX], start = (uint64_t)part * s->part_bytes, bytes = 0;
    uint8_t *dev = shot->dev;
    /* A shot that was freed without a wait may still be under way, from another step's stream. Nobody reads what that one
     * brings, but its launch must not write after this one. */
    if (part == 0) TRY(krn_event_follow(shot->landed, stream, e));
    TRY(krn_event_record(shot->from[part], stream, e));
    for (int32_t r = 0; r < d->n_local; r++) {
        const eng_shot_items *items = &s->items[r][table];
        if (items->n == 0) continue;
        TRY(krn_snapshot(s->table[r][table], items->item, items->n, live, dev + start + bytes, stream, e));
        bytes += krn_snapshot_layout(items->item, items->n, live, offset);
    }
    TRY(krn_event_record(shot->to[part], stream, e));
    TRY(krn_event_follow(shot->to[part], s->copy, e));
    if (bytes > 0) TRY(krn_copy(shot->host + start, dev + start, bytes, s->copy, e));
    shot->n_packed = part + 1;
    return krn_event_record(shot->landed, s->copy, e);
}

err_code eng_device_shots_pack(eng_device_shots *s, int32_t shot, int32_t part, int32_t table, const krn_snap_live *live,
                               err *e)
{
    hot_begin();
    err_code rc = pack(s, &s->shot[shot], part, table, live, e);
    hot_end();
    return rc;
}

err_code eng_device_shots_wait(eng_device_shots *s, int32_t shot, double *us, err *e)
{
    enum { PAUSE_NS = 50000 }; /* nobody's reply waits for this: leave the processor and the driver to the steps */
    device_shot *it = &s->shot[shot];
    uint64_t start = clock_ns();
    bool done = false;
    *us = 0;
    TRY(krn_device_use(s->d->device, e));
    for (;;) {
        TRY(krn_event_wait(it->landed, 1, &done, e)); /* asks once */
        if (done) break;
        if (clock_ns() - start > LANDING_DEADLINE_NS)
            return err_set(e, ERR_DEVICE, "shot: not on the host within %.0f s", (double)LANDING_DEADLINE_NS * 1e-9);
        nanosleep(&(struct timespec){ 0, PAUSE_NS }, NULL);
    }
    for (int32_t i = 0; i < it->n_packed; i++) {
        double part_us;
        TRY(krn_event_elapsed_us(it->from[i], it->to[i], &part_us, e));
        *us += part_us;
    }
    it->n_packed = 0;
    return ERR_OK;
}
