#include "serve/session.h"

#include <stdarg.h>
#include <string.h>

bool srv_refuse(srv_reply *reply, srv_refusal why, int32_t slot, const char *fmt, ...)
{
    char text[SRV_TEXT_BYTES];
    err clean;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(&clean, ERR_INPUT, "%s", text); /* a client's words may hold control characters */
    reply->refused = why;
    reply->refused_slot = slot;
    memcpy(reply->text, clean.msg, sizeof reply->text);
    return false;
}

void srv_sessions_init(srv_sessions *s, const srv_welcome *worker)
{
    *s = (srv_sessions){ .worker = *worker };
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++) s->slot[i].request = s->slot[i].last = -1;
}

/* ---- sessions ---- */

static srv_session *session_of(srv_sessions *s, uint64_t connection, uint64_t epoch)
{
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++)
        if (s->session[i].epoch && s->session[i].epoch == epoch && s->session[i].connection == connection)
            return &s->session[i];
    return NULL;
}

static bool known(srv_sessions *s, uint64_t connection, uint64_t epoch, srv_session **out, srv_reply *reply)
{
    *out = session_of(s, connection, epoch);
    if (*out) return true;
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++)
        if (s->session[i].epoch && s->session[i].connection == connection)
            return srv_refuse(reply, SRV_REFUSED_EPOCH, -1, "epoch %llu is not this session's, wanted %llu",
                              (unsigned long long)epoch, (unsigned long long)s->session[i].epoch);
    return srv_refuse(reply, SRV_REFUSED_EPOCH, -1, "epoch %llu: this connection has no session, wanted a hello first",
                      (unsigned long long)epoch);
}

static void end_session(srv_sessions *s, srv_session *session)
{
    for (int32_t i = 0; i < s->worker.slots; i++)
        if (s->slot[i].state != SRV_SLOT_FREE && s->slot[i].epoch == session->epoch) s->slot[i].state = SRV_SLOT_ENDED;
    *session = (srv_session){ 0 };
}

void srv_sessions_gone(srv_sessions *s, uint64_t connection)
{
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++)
        if (s->session[i].epoch && s->session[i].connection == connection) end_session(s, &s->session[i]);
}

const srv_session *srv_sessions_of_epoch(const srv_sessions *s, uint64_t epoch)
{
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++)
        if (epoch && s->session[i].epoch == epoch) return &s->session[i];
    return NULL;
}

int32_t srv_sessions_unreserved(const srv_sessions *s)
{
    int32_t n = s->worker.slots;
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++) n -= s->session[i].slots;
    return n;
}

static bool replaced_by(const srv_session *old, uint64_t connection, const srv_hello *h)
{
    return old->epoch && (old->connection == connection || strcmp(old->client, h->client) == 0);
}

static bool same_worker(const srv_welcome *w, const srv_hello *h, srv_reply *reply)
{
    if (h->version != SRV_VERSION)
        return srv_refuse(reply, SRV_REFUSED_VERSION, -1, "protocol version %lld, wanted %d", (long long)h->version,
                          SRV_VERSION);
    if (h->checkpoint[0] && strcmp(h->checkpoint, w->checkpoint) != 0)
        return srv_refuse(reply, SRV_REFUSED_IDENTITY, -1, "checkpoint %s was asked for, this worker has %s", h->checkpoint,
                          w->checkpoint);
    if (h->arm[0] && strcmp(h->arm, w->arm) != 0)
        return srv_refuse(reply, SRV_REFUSED_ARM, -1, "arm %s was asked for, this worker runs %s", h->arm, w->arm);
    if (h->positions < 1 || h->positions > w->positions)
        return srv_refuse(reply, SRV_REFUSED_LIMIT, -1, "%lld positions were asked for, wanted 1 to %lld",
                          (long long)h->positions, (long long)w->positions);
    return true;
}

bool srv_sessions_hello(srv_sessions *s, uint64_t connection, const srv_hello *h, srv_reply *reply)
{
    if (!same_worker(&s->worker, h, reply)) return false;
    int32_t unreserved = srv_sessions_unreserved(s);
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++)
        if (replaced_by(&s->session[i], connection, h)) unreserved += s->session[i].slots;
    if (h->slots < 1 || h->slots > unreserved)
        return srv_refuse(reply, SRV_REFUSED_LIMIT, -1, "%d slots were asked for, %d of %d are not reserved", h->slots,
                          unreserved, s->worker.slots);

    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++)
        if (replaced_by(&s->session[i], connection, h)) end_session(s, &s->session[i]);
    int32_t at = 0;
    while (s->session[at].epoch) at++; /* there is one: every session has a slot reserved */
    s->session[at] = (srv_session){ .epoch = ++s->epochs, .connection = connection, .slots = h->slots,
                                    .positions = h->positions };
    memcpy(s->session[at].client, h->client, sizeof h->client);
    srv_welcome *w = &reply->u.welcome;
    *w = s->worker;
    w->epoch = s->epochs;
    w->slots = h->slots;
    w->positions = h->positions;
    w->identity_compared = h->checkpoint[0] != 0;
    return true;
}

/* ---- slots ---- */

const char *srv_slot_state_name(srv_slot_state state)
{
    static const char *const NAMES[SRV_SLOT_STATES] = { "free", "open", "poisoned", "ended" };
    return NAMES[state];
}

bool srv_sessions_open(srv_sessions *s, uint64_t connection, uint64_t epoch, srv_reply *reply)
{
    srv_session *session;
    if (!known(s, connection, epoch, &session, reply)) return false;
    int32_t held = 0, at = -1;
    for (int32_t i = s->worker.slots - 1; i >= 0; i--) {
        if (s->slot[i].state == SRV_SLOT_FREE) at = i;
        else if (s->slot[i].state != SRV_SLOT_ENDED && s->slot[i].epoch == epoch) held++;
    }
    if (held == session->slots)
        return srv_refuse(reply, SRV_REFUSED_LIMIT, -1, "all %d slots of this session are open", held);
    CHECK(at >= 0); /* the caller reaps ended slots first */
    s->slot[at] = (srv_slot){ .state = SRV_SLOT_OPEN, .epoch = epoch, .request = s->requests++, .last = -1 };
    reply->u.opened.slot = at;
    reply->u.opened.request = s->slot[at].request;
    return true;
}

/* The slot is this session's, poisoned or not. */
static bool own_slot(srv_sessions *s, uint64_t epoch, int32_t slot, srv_reply *reply)
{
    if (slot >= 0 && slot < s->worker.slots && s->slot[slot].epoch == epoch &&
        (s->slot[slot].state == SRV_SLOT_OPEN || s->slot[slot].state == SRV_SLOT_POISONED))
        return true;
    return srv_refuse(reply, SRV_REFUSED_SLOT, slot, "slot %d is not an open slot of this session", slot);
}

static bool usable_slot(srv_sessions *s, uint64_t epoch, int32_t slot, srv_reply *reply)
{
    if (!own_slot(s, epoch, slot, reply)) return false;
    if (s->slot[slot].state == SRV_SLOT_OPEN) return true;
    return srv_refuse(reply, SRV_REFUSED_POISONED, slot, "%s", s->slot[slot].reason);
}

void srv_sessions_poison(srv_sessions *s, int32_t slot, const char *reason, srv_reply *reply)
{
    srv_refuse(reply, SRV_REFUSED_POISONED, slot, "%s", reason);
    if (s->slot[slot].state != SRV_SLOT_OPEN) return;
    s->slot[slot].state = SRV_SLOT_POISONED;
    memcpy(s->slot[slot].reason, reply->text, sizeof reply->text);
}

bool srv_sessions_insert(srv_sessions *s, uint64_t connection, uint64_t epoch, const srv_insert *in, srv_reply *reply)
{
    srv_session *session;
    if (!known(s, connection, epoch, &session, reply) || !usable_slot(s, epoch, in->slot, reply)) return false;
    const srv_slot *slot = &s->slot[in->slot];
    const srv_welcome *w = &s->worker;
    uint64_t row_bytes = (uint64_t)w->n_taps * (uint64_t)w->dim * sizeof(bf16);
    int64_t end = (int64_t)in->first_pos + in->rows;
    char why[SRV_TEXT_BYTES];
    if (in->rows < 1)
        snprintf(why, sizeof why, "slot %d: insert of %d rows, wanted 1 or more", in->slot, in->rows);
    else if (in->taps_bytes != (uint64_t)in->rows * row_bytes)
        snprintf(why, sizeof why, "slot %d: taps of %llu bytes, %d rows take %llu", in->slot,
                 (unsigned long long)in->taps_bytes, in->rows, (unsigned long long)((uint64_t)in->rows * row_bytes));
    else if (in->first_pos < 0 || (slot->last >= 0 && in->first_pos != slot->last + 1))
        snprintf(why, sizeof why, "slot %d: rows from position %d, wanted %d", in->slot, in->first_pos, slot->last + 1);
    else if (end > session->positions)
        snprintf(why, sizeof why, "slot %d: rows up to position %lld, agreed were %lld positions", in->slot,
                 (long long)end - 1, (long long)session->positions);
    else return true;
    srv_sessions_poison(s, in->slot, why, reply);
    return false;
}

void srv_sessions_inserted(srv_sessions *s, const srv_insert *in, srv_reply *reply)
{
    srv_slot *slot = &s->slot[in->slot];
    if (slot->last < 0) slot->first = in->first_pos;
    slot->last = reply->u.inserted.last = in->first_pos + in->rows - 1;
}

/* What is wrong with entry b of a draft; false: nothing. */
static bool draft_fault(const srv_sessions *s, const srv_draft *d, int32_t b, char why[SRV_TEXT_BYTES])
{
    const srv_slot *slot = &s->slot[d->slot[b]];
    int32_t needs = d->pos[b] - s->worker.window + 1 > 0 ? d->pos[b] - s->worker.window + 1 : 0;
    if (d->anchor[b] < 0 || d->anchor[b] >= s->worker.vocab)
        snprintf(why, SRV_TEXT_BYTES, "slot %d: anchor %d, wanted 0 to %d", d->slot[b], d->anchor[b], s->worker.vocab - 1);
    else if (slot->last < 0)
        snprintf(why, SRV_TEXT_BYTES, "slot %d: draft before any insert", d->slot[b]);
    else if (d->pos[b] != slot->last)
        snprintf(why, SRV_TEXT_BYTES, "slot %d: draft at %d, wanted the last inserted %d", d->slot[b], d->pos[b],
                 slot->last);
    else if (slot->first > needs)
        snprintf(why, SRV_TEXT_BYTES, "slot %d: draft at %d needs rows from %d, the slot begins at %d", d->slot[b],
                 d->pos[b], needs, slot->first);
    else return false;
    return true;
}

bool srv_sessions_draft(srv_sessions *s, uint64_t connection, uint64_t epoch, const srv_draft *d, srv_reply *reply)
{
    srv_session *session;
    if (!known(s, connection, epoch, &session, reply)) return false;
    for (int32_t b = 0; b < d->batch; b++) {
        if (!own_slot(s, epoch, d->slot[b], reply)) return false;
        for (int32_t a = 0; a < b; a++)
            if (d->slot[a] == d->slot[b])
                return srv_refuse(reply, SRV_REFUSED_SLOT, d->slot[b], "slot %d: twice in one draft", d->slot[b]);
    }
    if (d->n_out < 1 || d->n_out > s->worker.block)
        return srv_refuse(reply, SRV_REFUSED_LIMIT, -1, "n_out %d, wanted 1 to %d", d->n_out, s->worker.block);
    bool good = true;
    for (int32_t b = d->batch - 1; b >= 0; b--) { /* the reply names the first slot at fault */
        char why[SRV_TEXT_BYTES];
        if (!usable_slot(s, epoch, d->slot[b], reply)) good = false;
        else if (draft_fault(s, d, b, why)) {
            srv_sessions_poison(s, d->slot[b], why, reply);
            good = false;
        }
    }
    return good;
}

bool srv_sessions_release(srv_sessions *s, uint64_t connection, uint64_t epoch, int32_t slot, srv_reply *reply)
{
    srv_session *session;
    if (!known(s, connection, epoch, &session, reply) || !own_slot(s, epoch, slot, reply)) return false;
    s->slot[slot].state = SRV_SLOT_ENDED;
    return true;
}

int32_t srv_sessions_ended(const srv_sessions *s)
{
    for (int32_t i = 0; i < s->worker.slots; i++)
        if (s->slot[i].state == SRV_SLOT_ENDED) return i;
    return -1;
}

void srv_sessions_reaped(srv_sessions *s, int32_t slot)
{
    CHECK(s->slot[slot].state == SRV_SLOT_ENDED);
    s->slot[slot] = (srv_slot){ .request = -1, .last = -1 };
}
