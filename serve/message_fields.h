/* The plain keys of every message, in the order they are written: one table for both ways. What is no plain key (taps,
 * batches, status) is written out in message_encode.c and message_decode.c. */
#ifndef SERVE_MESSAGE_FIELDS_H
#define SERVE_MESSAGE_FIELDS_H

#include "serve/message.h"

typedef enum srv_kind {
    SRV_I32,  /* int32_t, least to INT32_MAX */
    SRV_I64,  /* int64_t, least to INT64_MAX */
    SRV_U64,  /* uint64_t */
    SRV_BOOL, /* bool */
    SRV_REAL, /* double, finite, 0 or more; float64 on the wire */
    SRV_NAME, /* char[room]: printable ASCII, least to room - 1 characters */
} srv_kind;

typedef struct srv_field {
    const char *key;
    srv_kind kind;
    uint32_t offset; /* in srv_request or srv_reply */
    int32_t least;
    uint32_t room;
} srv_field;

typedef struct srv_fields { const srv_field *field; int count; } srv_fields;
srv_fields srv_request_fields(srv_op op); /* op is a real one, as below */
srv_fields srv_reply_fields(srv_op op);   /* of a reply that is no refusal */

static inline bool srv_has_epoch(srv_op op) { return op != SRV_HELLO && op != SRV_STATUS; }
static inline bool srv_printable(char c) { return c >= 0x20 && c <= 0x7e; }

#endif
