/* One client of the driver: plays its part of a plan on a connection of its own, commits faults, starts again after them,
 * and checks and times what is answered. Used by drive.c alone. */
#ifndef SERVE_DRIVE_PLAYER_H
#define SERVE_DRIVE_PLAYER_H

#include <stdatomic.h>

#include "serve/client.h"
#include "serve/drive.h"

enum { SRV_NOT_OPEN = -1 };

/* What all clients share. */
typedef struct srv_pace { atomic_uint_fast64_t ticket; uint64_t start_ns; double rate; atomic_bool stop; } srv_pace;

typedef struct srv_player {
    const srv_drive_setup *setup;
    const srv_part *part;
    srv_pace *pace;
    int32_t index;
    char name[SRV_NAME_BYTES];
    srv_client *link, *silent; /* silent: a half-open connection that is left standing until the next one */
    uint64_t epoch;
    int32_t *slot;             /* [part->n_slots]: the worker's, or SRV_NOT_OPEN */
    uint64_t sent_ns, queue_ns, step_ns; /* of the last turn: when all was sent; what its draft's reply says */
    srv_drive_counts n;
    err failed;
} srv_player;

/* Connects, and opens a session. Errors as of srv_drive. */
MUST_USE err_code srv_player_hello(srv_player *p, srv_welcome *w, err *e);
/* The whole part, as often as the setup says, or until the pace stops. The connections stay open. */
MUST_USE err_code srv_player_play(srv_player *p, err *e);

#endif
