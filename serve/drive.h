/* The driver: clients that play a plan against a worker, commit faults on request, and check every answer. */
#ifndef SERVE_DRIVE_H
#define SERVE_DRIVE_H

#include "serve/address.h"
#include "serve/drive_faults.h"
#include "serve/drive_plan.h"
#include "serve/histogram.h"
#include "serve/message.h"

typedef struct srv_drive_setup {
    const srv_address *address;
    const char *key_file;       /* NULL: plain */
    const char *client;         /* name; clients are NAME-0, NAME-1, ... */
    const char *checkpoint, *arm; /* wanted; "": not compared, any */
    int64_t positions;
    const srv_plan *plan;
    int32_t repeat;             /* how often each client plays its part */
    double rate;                /* turns a second of all clients together; 0: as fast as it goes */
    srv_fault_plan faults;
    uint64_t timeout_ns;        /* of one reply */
    uint64_t awake_ns;          /* srv_client_stay_awake of every client */
} srv_drive_setup;

/* Counts of one client or of all. */
typedef struct srv_drive_counts {
    uint64_t turns, inserts, rows, drafts, checked, mismatches; /* drafts: slots drafted */
    uint64_t recoveries;                    /* slots and sessions that were made anew after a fault */
    uint64_t fault[SRV_FAULT_COUNT];        /* committed */
    uint64_t refused[SRV_REFUSAL_COUNT];    /* answers that a fault had to have, and had */
    uint64_t first_ns;                      /* of a client's first turn; of all: the first client's */
    srv_histogram turn;                     /* first byte sent (or due, with a rate) to last reply, without faults */
    srv_histogram step;                     /* as the worker tells it */
    /* Of the same turns, those that draft: until all was sent; the draft from received to begun, as the worker tells it;
     * and what is left beside these and the step: sockets, threads that wake, inserts that the draft was sent behind. */
    srv_histogram send, queue, rest;
    char mismatch[ERR_MSG_BYTES];           /* the first one */
} srv_drive_counts;

/* Plays everything, a thread for each client that has turns. *out is filled also on error. ERR_IO: a connection broke or a
 * reply is late; ERR_IDENTITY: hello was refused; ERR_INPUT: a refusal that no fault explains, or a fault that was not
 * refused as it must be. */
MUST_USE err_code srv_drive(const srv_drive_setup *s, srv_drive_counts *out, double *seconds, err *e);

/* What a worker says of itself, with a hello that reserves nothing for long: what a plan needs of the config. */
MUST_USE err_code srv_drive_meet(const srv_drive_setup *s, srv_welcome *out, err *e);

#endif
