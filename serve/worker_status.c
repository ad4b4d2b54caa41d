#include "serve/worker_state.h"

#include "base/clock.h"
#include "base/mem.h"

/* A copy of what the lock guards, so that nothing waits while it becomes text. */
typedef struct snapshot {
    srv_sessions sessions;
    srv_stats stats;
    err failed;
    bool stopping;
    int64_t queued;
    uint64_t busy_since_ns;
} snapshot;

static void take_snapshot(srv_worker *w, snapshot *s)
{
    pthread_mutex_lock(&w->lock);
    s->sessions = w->sessions;
    s->stats = w->stats;
    s->failed = w->failed;
    s->stopping = w->stopping;
    s->busy_since_ns = w->busy_since_ns;
    s->queued = 0;
    for (const srv_work *x = w->queue; x; x = x->next) s->queued++;
    pthread_mutex_unlock(&w->lock);
}

static json_t *slot_json(const srv_sessions *s, int32_t i)
{
    const srv_slot *slot = &s->slot[i];
    const srv_session *session = srv_sessions_of_epoch(s, slot->epoch);
    json_t *j = json_pack("{s:i, s:s}", "slot", (int)i, "state", srv_slot_state_name(slot->state));
    bool held = slot->state != SRV_SLOT_FREE;
    if (!j || !held) return j;
    json_t *more = json_pack("{s:s, s:I, s:I, s:i, s:s}", "client", session ? session->client : "", "epoch",
                             (json_int_t)slot->epoch, "request", (json_int_t)slot->request, "last", (int)slot->last,
                             "reason", slot->reason);
    if (!more || json_object_update(j, more) != 0) {
        json_decref(j);
        j = NULL;
    }
    json_decref(more);
    return j;
}

static json_t *slots_json(const srv_sessions *s)
{
    json_t *slots = json_array();
    for (int32_t i = 0; slots && i < s->worker.slots; i++)
        if (json_array_append_new(slots, slot_json(s, i)) != 0) {
            json_decref(slots);
            slots = NULL;
        }
    return slots;
}

static json_t *snapshot_json(const srv_worker *w, const snapshot *s)
{
    uint64_t now = clock_ns();
    const char *state = s->failed.code != ERR_OK ? "poisoned" : s->stopping ? "closing" : "serving";
    return json_pack("{s:s, s:s, s:s, s:s, s:f, s:I, s:f, s:i, s:i, s:I, s:o, s:{s:b, s:f}, s:{s:I, s:I}, s:o}",
                     "state", state, "reason", s->failed.msg, "arm", s->sessions.worker.arm,
                     "checkpoint", s->sessions.worker.checkpoint, "uptime_s", (double)(now - w->started_ns) * 1e-9,
                     "queued", (json_int_t)s->queued,
                     "busy_us", s->busy_since_ns ? (double)(now - s->busy_since_ns) * 1e-3 : 0.0,
                     "slots", (int)s->sessions.worker.slots, "slots_unreserved", (int)srv_sessions_unreserved(&s->sessions),
                     "positions", (json_int_t)s->sessions.worker.positions, "slot", slots_json(&s->sessions),
                     "prewarm", "on", (int)w->o.prewarm, "ms", srv_worker_prewarm_ms(w),
                     "memory", "engine_bytes", (json_int_t)w->owned_bytes, "resident_bytes",
                     (json_int_t)srv_resident_bytes(), "counts", srv_stats_json(&s->stats));
}

json_t *srv_worker_status(srv_worker *w)
{
    snapshot *s = mem_alloc(1, sizeof *s);
    if (!s) return NULL;
    take_snapshot(w, s);
    json_t *j = snapshot_json(w, s);
    free(s);
    json_t *dump = w->dump.status ? w->dump.status(w->dump.ctx) : json_null();
    if (j && json_object_set(j, "about", w->about) == 0 && json_object_set_new(j, "dump", dump) == 0) return j;
    json_decref(j);
    return NULL;
}
