/* Faults that drive commits on request, each with what the worker must answer to it. Which turn meets which fault follows
 * from the seed alone. */
#ifndef SERVE_DRIVE_FAULTS_H
#define SERVE_DRIVE_FAULTS_H

#include "base/err.h"

/* name, what the client does, what must follow */
#define SRV_FAULT_LIST(X)                                                                                        \
    X(DROP, "drop")           /* an insert is not sent: the draft is refused, the slot poisoned */               \
    X(DELAY, "delay")         /* everything comes late: nothing */                                               \
    X(REORDER, "reorder")     /* the draft is sent before its insert: both are refused, the slot is poisoned */  \
    X(TRUNCATE, "truncate")   /* the connection closes inside a frame: the client starts again */                \
    X(EPOCH, "wrong-epoch")   /* a request of another epoch: refused, and nothing was done */                    \
    X(SLOT, "wrong-slot")     /* a request on a slot of somebody else: refused, and nothing was done */          \
    X(HALF_OPEN, "half-open") /* silence inside a frame; the same client starts again on a new connection */
#define X(id, name) SRV_FAULT_##id,
typedef enum srv_fault { SRV_FAULT_LIST(X) SRV_FAULT_COUNT, SRV_NO_FAULT = SRV_FAULT_COUNT } srv_fault;
#undef X

typedef struct srv_fault_plan {
    double p[SRV_FAULT_COUNT]; /* of a turn; together at most 1 */
    uint64_t delay_ns, seed;
} srv_fault_plan;

/* "drop:0.01,delay:0.05,all:0.01@7": kind and probability, the seed behind '@' (default 0); all stands for every kind. A
 * delay lasts 5 ms. ERR_ARG names the item. */
MUST_USE err_code srv_faults_parse(const char *text, srv_fault_plan *out, err *e);
/* The fault of turn number `turn` of a client; SRV_NO_FAULT: none. */
srv_fault srv_fault_of(const srv_fault_plan *p, int32_t client, uint64_t turn);
const char *srv_fault_name(srv_fault f);

#endif
