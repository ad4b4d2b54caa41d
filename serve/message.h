/* Messages of the serving protocol (PROTOCOL.md): frames in, typed requests and replies out, and the other way.
 *
 * Decoding trusts nothing: every length is checked before it is used, unknown keys are ignored, a missing, doubled or
 * mistyped key is ERR_INPUT that names it. It allocates nothing but a status. Text is copied; taps stay in the frame. */
#ifndef SERVE_MESSAGE_H
#define SERVE_MESSAGE_H

#include "engine/engine.h"
#include "formats/json.h"

enum {
    SRV_VERSION = 1,
    SRV_FRAME_HEADER_BYTES = 4,
    SRV_FRAME_MAX_BYTES = 64 << 20, /* a longer frame is refused when its length is read */
    SRV_SLOTS_MAX = 4,              /* active requests of one worker */
    SRV_NAME_BYTES = 64,
    SRV_TEXT_BYTES = ERR_MSG_BYTES,
};

/* SRV_OP_COUNT stands for an op that nobody knows; its name is "". */
typedef enum srv_op { SRV_HELLO, SRV_OPEN, SRV_INSERT, SRV_DRAFT, SRV_RELEASE, SRV_STATUS, SRV_OP_COUNT } srv_op;

/* Why a request is refused; the name goes on the wire. */
#define SRV_REFUSAL_LIST(X)                                                                       \
    X(NONE, "none")         /* it is not */                                                       \
    X(MESSAGE, "message")   /* no request of this protocol: the connection is closed after it */  \
    X(VERSION, "version")   /* protocol versions differ */                                        \
    X(IDENTITY, "identity") /* another checkpoint */                                              \
    X(ARM, "arm")           /* another arm than the worker's */                                   \
    X(LIMIT, "limit")       /* more slots, positions or drafts than there are */                  \
    X(EPOCH, "epoch")       /* no hello before, or a message of an earlier epoch */               \
    X(SLOT, "slot")         /* not a slot of this session, or none left to open */                \
    X(POISONED, "poisoned") /* the slot broke the contract: the text is the first reason */       \
    X(WORKER, "worker")     /* the worker is poisoned: the text is the reason */                  \
    X(CLOSING, "closing")   /* the worker is shutting down */
#define X(id, name) SRV_REFUSED_##id,
typedef enum srv_refusal { SRV_REFUSAL_LIST(X) SRV_REFUSAL_COUNT } srv_refusal;
#undef X
const char *srv_refusal_name(srv_refusal r);
const char *srv_op_name(srv_op op);

typedef struct srv_hello {
    int64_t version;             /* when it is not SRV_VERSION, nothing below is decoded */
    char client[SRV_NAME_BYTES]; /* who: a new hello of the same name ends that client's earlier session */
    char checkpoint[72];         /* sha256 in hex; "": not compared */
    char arm[SRV_NAME_BYTES];    /* "": any */
    int64_t positions;           /* longest request: last position + 1 */
    int32_t slots;               /* wanted; may be 0, or more than SRV_SLOTS_MAX */
} srv_hello;

typedef struct srv_insert {
    int32_t slot, rows, first_pos; /* positions first_pos .. first_pos + rows - 1, which is an int32_t; rows 1 or more */
    const bf16 *taps;              /* [rows, n_taps * dim], inside the frame, maybe unaligned: copy before use */
    uint64_t taps_bytes;           /* as they came: whether it is the size of so many rows is not checked here */
} srv_insert;

typedef struct srv_draft {
    int32_t batch; /* 1..ENG_BATCH_MAX */
    int32_t n_out; /* 1..ENG_BLOCK_MAX */
    int32_t slot[ENG_BATCH_MAX], anchor[ENG_BATCH_MAX], pos[ENG_BATCH_MAX];
} srv_draft;

typedef struct srv_request {
    srv_op op;
    uint64_t id;    /* the client's, echoed */
    uint64_t epoch; /* of every request but hello and status */
    union {
        srv_hello hello;
        srv_insert insert;
        srv_draft draft;
        int32_t slot; /* release */
    } u;
} srv_request;

/* What hello settles. */
typedef struct srv_welcome {
    uint64_t epoch;
    int32_t slots, block, dim, n_taps, vocab, window;
    int64_t positions;
    char arm[SRV_NAME_BYTES], checkpoint[72];
    bool identity_compared;
} srv_welcome;

typedef struct srv_drafted {
    int64_t round;
    int32_t batch, n_out, step_batch;                    /* step_batch: slots of the step it was part of */
    int32_t drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX];       /* [batch, n_out] */
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];     /* [batch, n_out]; travels bit for bit */
    double queue_us, step_us;                            /* received to begun; the step */
} srv_drafted;

typedef struct srv_reply {
    srv_op op;
    uint64_t id;
    srv_refusal refused;           /* SRV_REFUSED_NONE: the union holds */
    int32_t refused_slot;          /* -1: none in particular */
    char text[SRV_TEXT_BYTES];     /* of a refusal; on the wire what is not printable ASCII is '?' */
    union {
        srv_welcome welcome;                               /* hello */
        struct { int32_t slot; int64_t request; } opened;  /* open: request is unique in the worker's life; tapes use it */
        struct { int32_t last; } inserted;                 /* insert: last position now */
        srv_drafted drafted;
        json_t *status;                                    /* status: owned by the reply; encode borrows it */
    } u;
} srv_reply;

typedef struct srv_buf { uint8_t *data; size_t bytes, capacity; } srv_buf; /* grown with realloc; starts as zeros */
MUST_USE err_code srv_buf_append(srv_buf *b, const void *data, size_t bytes, err *e); /* ERR_NOMEM: b is as it was */
void srv_buf_fini(srv_buf *b); /* b is as at the start */

/* Whole frames, header included, appended to *b; on error b is as it was. ERR_NOMEM. ERR_ARG: a name that is not printable
 * ASCII, a number below its least, a batch out of range, a frame over SRV_FRAME_MAX_BYTES. */
MUST_USE err_code srv_encode_request(const srv_request *r, srv_buf *b, err *e);
/* The same, but of an insert without its rows: u.insert.taps_bytes at u.insert.taps are to be sent behind it. */
MUST_USE err_code srv_encode_request_head(const srv_request *r, srv_buf *b, err *e);
MUST_USE err_code srv_encode_reply(const srv_reply *r, srv_buf *b, err *e);
/* The length that a frame header announces. ERR_INPUT: 0, or over SRV_FRAME_MAX_BYTES. */
MUST_USE err_code srv_frame_bytes(const uint8_t header[SRV_FRAME_HEADER_BYTES], uint32_t *bytes, err *e);
/* body: one frame without its header. On error *r's id and op are those of the frame, 0 and SRV_OP_COUNT where it has none,
 * so that the refusal can name them. ERR_INPUT. */
MUST_USE err_code srv_decode_request(const uint8_t *body, size_t bytes, srv_request *r, err *e);
/* *r is the caller's (srv_reply_fini), on error without a status. ERR_INPUT, ERR_NOMEM. */
MUST_USE err_code srv_decode_reply(const uint8_t *body, size_t bytes, srv_reply *r, err *e);
void srv_reply_fini(srv_reply *r); /* the status */

#endif
