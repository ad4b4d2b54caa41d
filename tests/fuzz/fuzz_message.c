/* Any bytes as a message of the serving protocol, both ways: refused with one line, or a message that is written again as
 * the same one. */
#include <string.h>

#include "serve/message.h"

enum { HEADER = SRV_FRAME_HEADER_BYTES };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_refusal(err_code rc, const err *e) { CHECK(rc == ERR_INPUT && e->msg[0] && !strchr(e->msg, '\n')); }

static void request(const uint8_t *data, size_t size)
{
    srv_request r, again;
    srv_buf first = { 0 }, second = { 0 };
    err e = { 0 };
    err_code rc = srv_decode_request(data, size, &r, &e);
    CHECK(r.op <= SRV_OP_COUNT);
    if (rc != ERR_OK) {
        check_refusal(rc, &e);
        return;
    }
    if (r.op == SRV_HELLO && r.u.hello.version != SRV_VERSION) return; /* was not read any further */
    CHECK(srv_encode_request(&r, &first, &e) == ERR_OK);
    CHECK(srv_decode_request(first.data + HEADER, first.bytes - HEADER, &again, &e) == ERR_OK);
    CHECK(srv_encode_request(&again, &second, &e) == ERR_OK);
    CHECK(first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0);
    srv_buf_fini(&first);
    srv_buf_fini(&second);
}

static void reply(const uint8_t *data, size_t size)
{
    srv_reply r, again;
    srv_buf first = { 0 }, second = { 0 };
    err e = { 0 };
    err_code rc = srv_decode_reply(data, size, &r, &e);
    if (rc != ERR_OK) {
        check_refusal(rc, &e);
        srv_reply_fini(&r);
        return;
    }
    CHECK(srv_encode_reply(&r, &first, &e) == ERR_OK);
    CHECK(srv_decode_reply(first.data + HEADER, first.bytes - HEADER, &again, &e) == ERR_OK);
    CHECK(srv_encode_reply(&again, &second, &e) == ERR_OK);
    CHECK(first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0);
    srv_reply_fini(&r);
    srv_reply_fini(&again);
    srv_buf_fini(&first);
    srv_buf_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    request(data, size);
    reply(data, size);
    return 0;
}
