/* Sessions: who may do what with which slot (PROTOCOL.md). A state machine without threads, files or an engine.
 *
 * Every function that answers a request fills *reply, whose op and id the caller has set, and returns true when the request
 * may be done, or false when reply says why not. A refusal other than "poisoned" changes nothing.
 *
 * A slot goes free -> open -> (poisoned ->) ended -> free: once ended, by release or because its session is over, nothing
 * reaches it any more, and it is free again when its rows have been forgotten (srv_sessions_reaped). */
#ifndef SERVE_SESSION_H
#define SERVE_SESSION_H

#include "serve/message.h"

typedef enum srv_slot_state {
    SRV_SLOT_FREE, SRV_SLOT_OPEN, SRV_SLOT_POISONED, SRV_SLOT_ENDED, SRV_SLOT_STATES
} srv_slot_state;

typedef struct srv_slot {
    srv_slot_state state;
    uint64_t epoch;      /* of the session that holds it */
    int64_t request;     /* unique in the worker's life; -1 before the first */
    int32_t first, last; /* positions inserted; last -1: none */
    char reason[SRV_TEXT_BYTES]; /* poisoned: the first one */
} srv_slot;

typedef struct srv_session {
    uint64_t epoch; /* 0: nobody */
    uint64_t connection;
    char client[SRV_NAME_BYTES];
    int32_t slots; /* reserved */
    int64_t positions;
} srv_session;

typedef struct srv_sessions {
    srv_welcome worker; /* what the worker is: slots and positions are all it has */
    uint64_t epochs;    /* opened so far: the last one's number */
    int64_t requests;
    srv_session session[SRV_SLOTS_MAX]; /* each holds a slot at least, so there are no more */
    srv_slot slot[SRV_SLOTS_MAX];
} srv_sessions;

void srv_sessions_init(srv_sessions *s, const srv_welcome *worker);

/* Opens an epoch, and ends the sessions that it replaces: of the same client, and the connection's own. */
bool srv_sessions_hello(srv_sessions *s, uint64_t connection, const srv_hello *h, srv_reply *reply);
bool srv_sessions_open(srv_sessions *s, uint64_t connection, uint64_t epoch, srv_reply *reply);
/* Poisons the slot when the rows do not follow the contract. After the engine took them: srv_sessions_inserted. */
bool srv_sessions_insert(srv_sessions *s, uint64_t connection, uint64_t epoch, const srv_insert *in, srv_reply *reply);
void srv_sessions_inserted(srv_sessions *s, const srv_insert *in, srv_reply *reply);
/* A draft is done for all of its slots or for none; only the slots at fault are poisoned. */
bool srv_sessions_draft(srv_sessions *s, uint64_t connection, uint64_t epoch, const srv_draft *d, srv_reply *reply);
bool srv_sessions_release(srv_sessions *s, uint64_t connection, uint64_t epoch, int32_t slot, srv_reply *reply);

/* The slot broke the contract; a slot that is not open stays as it is. Fills the refusal. */
void srv_sessions_poison(srv_sessions *s, int32_t slot, const char *reason, srv_reply *reply);
/* The connection is gone, and its session with it. */
void srv_sessions_gone(srv_sessions *s, uint64_t connection);

int32_t srv_sessions_ended(const srv_sessions *s); /* a slot whose rows must be forgotten, -1: none */
void srv_sessions_reaped(srv_sessions *s, int32_t slot);
int32_t srv_sessions_unreserved(const srv_sessions *s); /* slots that a new client could have */
const srv_session *srv_sessions_of_epoch(const srv_sessions *s, uint64_t epoch); /* NULL: over */
const char *srv_slot_state_name(srv_slot_state state);

/* Makes reply a refusal; returns false. slot -1: none in particular. */
bool srv_refuse(srv_reply *reply, srv_refusal why, int32_t slot, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
