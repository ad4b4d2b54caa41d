#include "serve/message_fields.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/mem.h"

#define X(id, name) name,
static const char *const REFUSALS[SRV_REFUSAL_COUNT] = { SRV_REFUSAL_LIST(X) };
#undef X
static const char *const OPS[SRV_OP_COUNT] = { "hello", "open", "insert", "draft", "release", "status" };

const char *srv_refusal_name(srv_refusal r) { return r < SRV_REFUSAL_COUNT ? REFUSALS[r] : "?"; }
const char *srv_op_name(srv_op op) { return op < SRV_OP_COUNT ? OPS[op] : ""; }

/* ---- keys ---- */

#define AT(type, member) (uint32_t)offsetof(type, member)
#define IN(member) AT(srv_request, u.member)
#define NAME_IN(member) IN(member), .room = sizeof((srv_request *)0)->u.member
static const srv_field HELLO[] = {
    { "version", SRV_I64, IN(hello.version) }, /* the first: message_decode.c stops there when it is another one */
    { "client", SRV_NAME, NAME_IN(hello.client), .least = 1 },
    { "checkpoint", SRV_NAME, NAME_IN(hello.checkpoint) },
    { "arm", SRV_NAME, NAME_IN(hello.arm) },
    { "positions", SRV_I64, IN(hello.positions) },
    { "slots", SRV_I32, IN(hello.slots) },
};
static const srv_field INSERT[] = {
    { "slot", SRV_I32, IN(insert.slot) },
    { "pos", SRV_I32, IN(insert.first_pos) },
    { "rows", SRV_I32, IN(insert.rows), .least = 1 },
};
static const srv_field DRAFT[] = { { "n_out", SRV_I32, IN(draft.n_out), .least = 1 } };
static const srv_field RELEASE[] = { { "slot", SRV_I32, IN(slot) } };

#define OUT(member) AT(srv_reply, u.member)
#define NAME_OUT(member) OUT(member), .room = sizeof((srv_reply *)0)->u.member
static const srv_field WELCOME[] = {
    { "epoch", SRV_U64, OUT(welcome.epoch) },
    { "slots", SRV_I32, OUT(welcome.slots) },
    { "positions", SRV_I64, OUT(welcome.positions) },
    { "arm", SRV_NAME, NAME_OUT(welcome.arm) },
    { "checkpoint", SRV_NAME, NAME_OUT(welcome.checkpoint) },
    { "identity_compared", SRV_BOOL, OUT(welcome.identity_compared) },
    { "block", SRV_I32, OUT(welcome.block) },
    { "dim", SRV_I32, OUT(welcome.dim) },
    { "n_taps", SRV_I32, OUT(welcome.n_taps) },
    { "vocab", SRV_I32, OUT(welcome.vocab) },
    { "window", SRV_I32, OUT(welcome.window) },
};
static const srv_field OPENED[] = {
    { "slot", SRV_I32, OUT(opened.slot) },
    { "request", SRV_I64, OUT(opened.request) },
};
static const srv_field INSERTED[] = { { "last", SRV_I32, OUT(inserted.last) } };
static const srv_field DRAFTED[] = {
    { "round", SRV_I64, OUT(drafted.round) },
    { "step_batch", SRV_I32, OUT(drafted.step_batch) },
    { "queue_us", SRV_REAL, OUT(drafted.queue_us) },
    { "step_us", SRV_REAL, OUT(drafted.step_us) },
};

#define FIELDS(table) { table, COUNT_OF(table) }
static const srv_fields REQUEST[SRV_OP_COUNT] = {
    [SRV_HELLO] = FIELDS(HELLO),
    [SRV_INSERT] = FIELDS(INSERT),
    [SRV_DRAFT] = FIELDS(DRAFT),
    [SRV_RELEASE] = FIELDS(RELEASE),
};
static const srv_fields REPLY[SRV_OP_COUNT] = {
    [SRV_HELLO] = FIELDS(WELCOME),
    [SRV_OPEN] = FIELDS(OPENED),
    [SRV_INSERT] = FIELDS(INSERTED),
    [SRV_DRAFT] = FIELDS(DRAFTED),
};
srv_fields srv_request_fields(srv_op op) { return REQUEST[op]; }
srv_fields srv_reply_fields(srv_op op) { return REPLY[op]; }

/* ---- buffers and frames ---- */

err_code srv_buf_append(srv_buf *b, const void *data, size_t bytes, err *e)
{
    if (bytes > SIZE_MAX - b->bytes || !mem_grow((void **)&b->data, &b->capacity, b->bytes + bytes, 1))
        return err_set(e, ERR_NOMEM, "message: no memory for %zu bytes more", bytes);
    if (bytes) memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    return ERR_OK;
}

void srv_buf_fini(srv_buf *b)
{
    free(b->data);
    *b = (srv_buf){ 0 };
}

err_code srv_frame_bytes(const uint8_t header[SRV_FRAME_HEADER_BYTES], uint32_t *bytes, err *e)
{
    uint32_t n = get_u32(header);
    if (n == 0 || n > SRV_FRAME_MAX_BYTES)
        return err_set(e, ERR_INPUT, "message: found a frame of %" PRIu32 " bytes, wanted 1 to %d", n, SRV_FRAME_MAX_BYTES);
    *bytes = n;
    return ERR_OK;
}

void srv_reply_fini(srv_reply *r)
{
    if (r->refused != SRV_REFUSED_NONE || r->op != SRV_STATUS) return;
    json_decref(r->u.status);
    r->u.status = NULL;
}
