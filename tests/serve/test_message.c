/* Messages: what goes out comes back, and nothing that comes from outside is believed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "serve/message.h"
#include "tests/formats/alloc_fail.h"

static const char SHA[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static const bf16 TAPS[] = { 0x3f80, 0xbf80, 0x7f80, 0x0001, 0x8000, 0x4049 };

static const srv_request REQUESTS[] = {
    { SRV_HELLO, 1, 0, { .hello = { 1, "c", "", "", 1, 1 } } },
    { SRV_HELLO, UINT64_MAX, 0, { .hello = { 1, "target 7", "0123456789abcdef", "native-packed", INT64_MAX, INT32_MAX } } },
    { SRV_OPEN, 2, 3, { .slot = 0 } },
    { SRV_INSERT, 4, UINT64_MAX, { .insert = { 3, 2, INT32_MAX - 1, TAPS, sizeof TAPS } } },
    { SRV_INSERT, 4, 0, { .insert = { 0, INT32_MAX, 0, NULL, 0 } } },
    { SRV_DRAFT, 5, 1, { .draft = { 1, 1, { 0 }, { 0 }, { 0 } } } },
    { SRV_DRAFT, 6, 1, { .draft = { 4, 16, { 3, 1, 0, 2 }, { 128999, 0, 127, 128 }, { INT32_MAX, 65535, 65536, 31 } } } },
    { SRV_RELEASE, 7, 1, { .slot = 3 } },
    { SRV_STATUS, 0, 0, { .slot = 0 } },
};

static const srv_reply REPLIES[] = {
    { SRV_HELLO, 1, SRV_REFUSED_NONE, -1, "",
      { .welcome = { UINT64_MAX, 4, 5, 4096, 3, 129280, 128, INT64_MAX, "native-packed", "0123", true } } },
    { SRV_OPEN, 2, SRV_REFUSED_NONE, -1, "", { .opened = { 3, INT64_MAX } } },
    { SRV_INSERT, UINT64_MAX, SRV_REFUSED_NONE, -1, "", { .inserted = { INT32_MAX } } },
    { SRV_DRAFT, 4, SRV_REFUSED_NONE, -1, "",
      { .drafted = { INT64_MAX, 2, 3, 4, { 1, 2, 3, 128999, 0, 70000 },
                     { 0.5f, -1e30f, INFINITY, -0.0f, 1e-45f, 3 }, 0, 1e9 } } },
    { SRV_RELEASE, 5, SRV_REFUSED_NONE, -1, "", { .drafted = { 0 } } },
    { SRV_DRAFT, 6, SRV_REFUSED_POISONED, 2, "slot 2: found position 9, wanted 8", { .drafted = { 0 } } },
    { SRV_OP_COUNT, 0, SRV_REFUSED_MESSAGE, -1, "", { .drafted = { 0 } } },
};

/* The body of the one frame in b, in memory of exactly its size, so that a read past it is found. */
static uint8_t *body_of(const srv_buf *b, size_t *bytes)
{
    uint32_t n;
    err e;
    assert_int_equal(srv_frame_bytes(b->data, &n, &e), ERR_OK);
    assert_int_equal(b->bytes, SRV_FRAME_HEADER_BYTES + n);
    uint8_t *body = malloc(n);
    assert_non_null(body);
    memcpy(body, b->data + SRV_FRAME_HEADER_BYTES, n);
    *bytes = n;
    return body;
}

static uint8_t *request_body(const srv_request *r, size_t *bytes)
{
    srv_buf b = { 0 };
    err e = { 0 };
    if (srv_encode_request(r, &b, &e) != ERR_OK) fail_msg("%s", e.msg);
    uint8_t *body = body_of(&b, bytes);
    srv_buf head = { 0 }; /* the same, but that an insert's rows are still to come */
    if (srv_encode_request_head(r, &head, &e) != ERR_OK) fail_msg("%s", e.msg);
    assert_int_equal(head.bytes + (r->op == SRV_INSERT ? r->u.insert.taps_bytes : 0), b.bytes);
    assert_memory_equal(head.data, b.data, head.bytes);
    srv_buf_fini(&head);
    srv_buf_fini(&b);
    return body;
}

static uint8_t *reply_body(const srv_reply *r, size_t *bytes)
{
    srv_buf b = { 0 };
    err e = { 0 };
    if (srv_encode_reply(r, &b, &e) != ERR_OK) fail_msg("%s", e.msg);
    uint8_t *body = body_of(&b, bytes);
    srv_buf_fini(&b);
    return body;
}

/* msgpack of JSON text with ' for ", in memory of exactly its size. */
static uint8_t *json_body(const char *text, size_t *bytes)
{
    char plain[4096];
    size_t n = strlen(text);
    assert_true(n < sizeof plain);
    for (size_t i = 0; i <= n; i++) plain[i] = text[i] == '\'' ? '"' : text[i];
    json_error_t at;
    json_t *v = json_loads(plain, JSON_DECODE_ANY, &at);
    if (!v) fail_msg("%s: %s", text, at.text);
    uint8_t *body;
    err e;
    assert_int_equal(fmt_msgpack_pack(v, &body, bytes, &e), ERR_OK);
    json_decref(v);
    return body;
}

static void refused(const char *label, err_code rc, const err *e, const char *message)
{
    if (rc != ERR_INPUT) fail_msg("%s: found code %d, wanted ERR_INPUT", label, rc);
    if (!strstr(e->msg, message)) fail_msg("%s: '%s' lacks '%s'", label, e->msg, message);
    assert_null(strchr(e->msg, '\n'));
}

/* ---- there and back ---- */

static void every_request_comes_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(REQUESTS); i++) {
        const srv_request *r = &REQUESTS[i];
        srv_request got;
        size_t n;
        err e = { 0 };
        uint8_t *body = request_body(r, &n);
        if (srv_decode_request(body, n, &got, &e) != ERR_OK) fail_msg("request %zu: %s", i, e.msg);
        assert_int_equal(got.op, r->op);
        assert_int_equal(got.id, r->id);
        assert_int_equal(got.epoch, r->epoch);
        if (r->op == SRV_INSERT) {
            const uint8_t *taps = (const uint8_t *)got.u.insert.taps;
            assert_int_equal(got.u.insert.taps_bytes, r->u.insert.taps_bytes);
            assert_true(taps >= body && taps + got.u.insert.taps_bytes <= body + n);
            if (r->u.insert.taps) assert_memory_equal(taps, r->u.insert.taps, r->u.insert.taps_bytes);
            got.u.insert.taps = r->u.insert.taps;
            assert_memory_equal(&got.u.insert, &r->u.insert, sizeof r->u.insert);
        } else {
            assert_memory_equal(&got.u, &r->u, sizeof r->u);
        }
        free(body);
    }
}

static void every_reply_comes_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(REPLIES); i++) {
        const srv_reply *r = &REPLIES[i];
        srv_reply got;
        size_t n;
        err e = { 0 };
        uint8_t *body = reply_body(r, &n);
        if (srv_decode_reply(body, n, &got, &e) != ERR_OK) fail_msg("reply %zu: %s", i, e.msg);
        free(body);
        assert_int_equal(got.op, r->op);
        assert_int_equal(got.id, r->id);
        assert_int_equal(got.refused, r->refused);
        assert_int_equal(got.refused_slot, r->refused_slot);
        assert_string_equal(got.text, r->text);
        if (r->op == SRV_HELLO) assert_memory_equal(&got.u.welcome, &r->u.welcome, sizeof r->u.welcome);
        else assert_memory_equal(&got.u.drafted, &r->u.drafted, sizeof r->u.drafted);
        srv_reply_fini(&got);
    }
}

static void every_refusal_comes_back_by_its_name(void **state)
{
    (void)state;
    for (int i = SRV_REFUSED_NONE + 1; i < SRV_REFUSAL_COUNT; i++) {
        srv_reply r = { .op = SRV_STATUS, .id = 9, .refused = (srv_refusal)i, .refused_slot = i % 4 }, got;
        strcpy(r.text, "why\nnot \xc3\xa9");
        size_t n;
        err e;
        uint8_t *body = reply_body(&r, &n);
        assert_int_equal(srv_decode_reply(body, n, &got, &e), ERR_OK);
        free(body);
        assert_int_equal(got.refused, i);
        assert_int_equal(got.refused_slot, i % 4);
        assert_string_equal(got.text, "why?not ??");
        srv_reply_fini(&got); /* has no status */
    }
}

static void a_status_comes_back(void **state)
{
    (void)state;
    srv_reply r = { .op = SRV_STATUS, .id = 3, .refused_slot = -1 }, got;
    r.u.status = json_pack("{s:i, s:s, s:[{s:i, s:s}], s:{s:f}}", "schema", 1, "state", "serving", "slot", "slot", 0,
                           "state", "free", "latency", "p50_us", 1.25);
    size_t n;
    err e = { 0 };
    uint8_t *body = reply_body(&r, &n);
    assert_int_equal(srv_decode_reply(body, n, &got, &e), ERR_OK);
    assert_true(json_equal(got.u.status, r.u.status));
    srv_reply_fini(&got);
    assert_null(got.u.status);
    free(body);
    json_decref(r.u.status);
}

static void a_confidence_keeps_every_bit(void **state)
{
    (void)state;
    static const uint32_t BITS[] = { 0x7fc00001, 0xff812345, 0x80000000, 0x00000001, 0x7f800000 };
    srv_reply r = { .op = SRV_DRAFT, .refused_slot = -1, .u.drafted = { .batch = 1, .n_out = COUNT_OF(BITS) } }, got;
    memcpy(r.u.drafted.confidence, BITS, sizeof BITS);
    size_t n;
    err e;
    uint8_t *body = reply_body(&r, &n);
    assert_int_equal(srv_decode_reply(body, n, &got, &e), ERR_OK);
    assert_memory_equal(got.u.drafted.confidence, BITS, sizeof BITS);
    free(body);
}

/* ---- the written protocol ---- */

/* Bytes of the lines "    hex  text" after "## Example" in PROTOCOL.md. */
static size_t example(uint8_t *out, size_t room)
{
    static char text[65536];
    FILE *f = fopen(TESTS_DIR "/../serve/PROTOCOL.md", "rb");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *line = strstr(text, "\n## Example");
    assert_non_null(line);
    size_t n = 0;
    while ((line = strstr(line, "\n    "))) {
        unsigned int byte;
        int used;
        line += 5;
        while (sscanf(line, "%2x%n", &byte, &used) == 1 && used == 2) { /* two blanks end the bytes */
            assert_true(n < room);
            out[n++] = (uint8_t)byte;
            line += 3;
            if (*line == ' ') break;
        }
    }
    return n;
}

static void the_example_of_the_protocol_is_what_is_sent(void **state)
{
    (void)state;
    uint8_t want[512];
    size_t n = example(want, sizeof want);
    srv_request r = { SRV_DRAFT, 7, 3, { .draft = { 2, 5, { 0, 2 }, { 128000, 11 }, { 63, 900 } } } };
    srv_buf b = { 0 };
    err e;
    assert_int_equal(srv_encode_request(&r, &b, &e), ERR_OK);
    assert_int_equal(b.bytes, n);
    assert_memory_equal(b.data, want, n);
    srv_buf_fini(&b);
}

static void a_frame_of_no_or_too_many_bytes_is_refused_by_its_length(void **state)
{
    (void)state;
    static const struct { uint8_t header[4]; uint32_t bytes; } CASES[] = {
        { { 0, 0, 0, 0 }, 0 }, { { 1, 0, 0, 0 }, 1 },          { { 0x40, 1, 0, 0 }, 320 },
        { { 0, 0, 0, 4 }, 64 << 20 }, { { 1, 0, 0, 4 }, 0 }, { { 0, 0, 0, 0x40 }, 0 }, { { 0xff, 0xff, 0xff, 0xff }, 0 },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        uint32_t n = 77;
        err e = { 0 };
        err_code rc = srv_frame_bytes(CASES[i].header, &n, &e);
        if (CASES[i].bytes) {
            assert_int_equal(rc, ERR_OK);
            assert_int_equal(n, CASES[i].bytes);
        } else {
            refused("header", rc, &e, "wanted 1 to 67108864");
            assert_int_equal(n, 77);
        }
    }
}

/* ---- what is refused ---- */

static void every_truncation_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(REQUESTS) + COUNT_OF(REPLIES); i++) {
        bool request = i < COUNT_OF(REQUESTS);
        size_t n;
        uint8_t *body = request ? request_body(&REQUESTS[i], &n) : reply_body(&REPLIES[i - COUNT_OF(REQUESTS)], &n);
        for (size_t len = 0; len < n; len++) {
            uint8_t *cut = malloc(len ? len : 1);
            memcpy(cut, body, len);
            srv_request r;
            srv_reply reply;
            err e = { 0 };
            err_code rc = request ? srv_decode_request(cut, len, &r, &e) : srv_decode_reply(cut, len, &reply, &e);
            refused("truncated", rc, &e, "message: byte ");
            free(cut);
        }
        free(body);
    }
}

static void bytes_after_the_map_are_refused(void **state)
{
    (void)state;
    uint8_t body[] = { 0x82, 0xa2, 'o', 'p', 0xa6, 's', 't', 'a', 't', 'u', 's', 0xa2, 'i', 'd', 1, 0xc0 };
    srv_request r;
    err e = { 0 };
    assert_int_equal(srv_decode_request(body, sizeof body - 1, &r, &e), ERR_OK);
    refused("more", srv_decode_request(body, sizeof body, &r, &e), &e, "byte 15: found 1 bytes after the map");
}

#define DRAFT "'op':'draft','id':9,'epoch':1"
static void a_hostile_request_is_refused_by_key_found_and_wanted(void **state)
{
    (void)state;
    static const struct { const char *text, *message; } CASES[] = {
        { "3", "found an integer, wanted a map" },
        { "'text'", "found a string, wanted a map" },
        { "null", "found nil, wanted a map" },
        { "[1, 2]", "found an array, wanted a map" },
        { "{}", "key 'op' is missing" },
        { "{'op': 'open'}", "key 'id' is missing" },
        { "{'op': 1, 'id': 1}", "op: found an integer, wanted a string" },
        { "{'op': 'opened', 'id': 1}", "op: found 'opened', wanted one of hello" },
        { "{'op': '', 'id': 1}", "op: found '', wanted one of hello" },
        { "{'op': 'open', 'id': -1, 'epoch': 1}", "id: found -1, wanted 0 or more" },
        { "{'op': 'open', 'id': 1.0, 'epoch': 1}", "id: found a float64, wanted an integer" },
        { "{'op': 'open', 'id': 1}", "open: key 'epoch' is missing" },
        { "{'op': 'open', 'id': 1, 'epoch': '1'}", "epoch: found a string" },
        { "{'op': 'release', 'id': 1, 'epoch': 1, 'slot': -9223372036854775808}",
          "slot: found -9223372036854775808, wanted 0 to" },
        { "{'op': 'release', 'id': 1, 'epoch': 1, 'slot': 2147483648}", "slot: found 2147483648, wanted 0 to 2147483647" },
        { "{'op': 'release', 'id': 1, 'epoch': 1, 'slot': true}", "slot: found a boolean, wanted an integer" },
        { "{'op': 'insert', 'id': 1, 'epoch': 1, 'slot': 0, 'pos': 0, 'rows': 0, 'taps': ''}",
          "rows: found 0, wanted 1 to" },
        { "{'op': 'insert', 'id': 1, 'epoch': 1, 'slot': 0, 'pos': 0, 'rows': 1, 'taps': 'ab'}",
          "taps: found a string, wanted bytes" },
        { "{'op': 'insert', 'id': 1, 'epoch': 1, 'slot': 0, 'pos': 2147483647, 'rows': 2, 'taps': ''}",
          "found 2 rows from position" },
        { "{'op': 'insert', 'id': 1, 'epoch': 1, 'slot': 0, 'pos': 2, 'rows': 2147483647, 'taps': ''}",
          "found 2147483647 rows from" },
        { "{" DRAFT ",'n_out':0,'slots':[0],'anchors':[1],'pos':[1]}", "n_out: found 0, wanted 1 to" },
        { "{" DRAFT ",'n_out':17,'slots':[0],'anchors':[1],'pos':[1]}", "n_out: found 17, wanted 1 to 16" },
        { "{" DRAFT ",'n_out':4,'slots':[],'anchors':[],'pos':[]}",
          "slots: found an array of 0, wanted 4 at most, one at least" },
        { "{" DRAFT ",'n_out':4,'slots':[0,1,2,3,4],'anchors':[1],'pos':[1]}", "slots: found an array of 5" },
        { "{" DRAFT ",'n_out':4,'slots':[0,1],'anchors':[1],'pos':[1,2]}", "anchors: found an array of 1, wanted 2" },
        { "{" DRAFT ",'n_out':4,'slots':[0,1],'anchors':[1,2],'pos':[1,2,3]}", "pos: found an array of 3, wanted 2" },
        { "{" DRAFT ",'n_out':4,'slots':[0],'anchors':[-5],'pos':[1]}", "anchors: found -5, wanted 0 to" },
        { "{" DRAFT ",'n_out':4,'slots':[[0]],'anchors':[1],'pos':[1]}", "slots: found an array, wanted an integer" },
        { "{" DRAFT ",'n_out':4,'slots':0,'anchors':[1],'pos':[1]}", "slots: found an integer, wanted an array" },
        { "{" DRAFT ",'n_out':4,'slots':{'0':0},'anchors':[1],'pos':[1]}", "slots: found a map, wanted an array" },
        { "{'op':'hello','id':1}", "hello: key 'version' is missing" },
        { "{'op':'hello','id':1,'version':1}", "hello: key 'client' is missing" },
        { "{'op':'hello','id':1,'version':1,'client':''}", "client: found 0 characters, wanted 1 to 63" },
        { "{'op':'hello','id':1,'version':1,'client':'0123456789012345678901234567890123456789012345678901234567890123'}",
          "client: found 64 characters, wanted 1 to 63" },
        { "{'op':'hello','id':1,'version':1,'client':'a\\nb'}", "client: found byte 0x0a" },
        { "{'op':'hello','id':1,'version':1,'client':'\\u00e9'}", "client: found byte 0xc3" },
        { "{'op':'hello','id':1,'version':1,'client':'c','checkpoint':null}", "checkpoint: found nil, wanted a string" },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        size_t n;
        uint8_t *body = json_body(CASES[i].text, &n);
        srv_request r;
        err e = { 0 };
        refused(CASES[i].text, srv_decode_request(body, n, &r, &e), &e, CASES[i].message);
        free(body);
    }
}

#define STATUS "\xa2" "op" "\xa6" "status" "\xa2" "id\x01" /* two pairs */
#define BYTES(text) text, sizeof text - 1
static void hostile_bytes_are_refused(void **state)
{
    (void)state;
    static const struct { const char *data; size_t bytes; const char *message; } CASES[] = {
        { BYTES(""), "byte 0: found the end" },
        { BYTES("\xc1"), "byte 0: found 0xc1" },
        { BYTES("\xdf\xff\xff\xff\xff"), "found a map of 4294967295 keys, wanted at most 64" },
        { BYTES("\xde\x00\x41" STATUS), "found a map of 65 keys" },
        { BYTES("\x83" STATUS), "found the end" },
        { BYTES("\x83" STATUS "\xa1k\xdd\xff\xff\xff\xff\x00"), "found the end" },
        { BYTES("\x83" STATUS "\xa1k\xdf\xff\xff\xff\xff\x00"), "found the end" },
        { BYTES("\x83" STATUS "\xa1k\xc6\xff\xff\xff\xff\x00"), "wanted 4294967300" },
        { BYTES("\x83" STATUS "\xa1k\xdb\xff\xff\xff\xff\x00"), "wanted 4294967300" },
        { BYTES("\x83" STATUS "\xa1k\xc9\xff\xff\xff\xff\x00"), "wanted 4294967301" },
        { BYTES("\x83" STATUS "\xa1k\xd8\x00"), "wanted 18" },
        { BYTES("\x83" STATUS "\xa1k\xcf\x00"), "wanted 9" },
        { BYTES("\x83" STATUS "\xbfk"), "wanted 32" },
        { BYTES("\x83" STATUS "\xa1k\xc1"), "found 0xc1" },
        { BYTES("\x83" STATUS "\xa1k\x92\x00\xc1"), "found 0xc1" },
        { BYTES("\x83" STATUS "\xa2id\x01"), "found key 'id' twice" },
        { BYTES("\x84" STATUS "\xa1x\x01\xd9\x01x\x01"), "found key 'x' twice" },
        { BYTES("\x83" STATUS "\x01\x01"), "found an integer, wanted a key that is a string" },
        { BYTES("\x83" STATUS "\xc4\x01x\x01"), "found bytes, wanted a key that is a string" },
        { BYTES("\x83" STATUS "\x80\x01"), "found a map, wanted a key" },
        { BYTES("\x82\xa2op\xa6status\xa2id\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"), "id: found a float64" }, /* NaN */
        { BYTES("\x82\xa2op\xa6status\xa2id\xca\x7f\xc0\x00\x00"), "id: found a float32" },
        { BYTES("\x82\xa2op\xa6status\xa2id\xd3\xff\xff\xff\xff\xff\xff\xff\xff"), "id: found -1" },
        { BYTES("\x82\xa2op\xa6status\xa2id\xd0\x80"), "id: found -128" },
        { BYTES("\x82\xa2op\xa6status\xa2id\xe0"), "id: found -32" },
        { BYTES("\x82\xa2op\xc4\x06status\xa2id\x01"), "op: found bytes, wanted a string" },
        { BYTES("\x82\xa2op\xa3o\x00p\xa2id\x01"), "op: found byte 0x00" },
        { BYTES("GET / HTTP/1.1\r\n\r\n"), "found an integer, wanted a map" },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        uint8_t *body = malloc(CASES[i].bytes + 1); /* not 0 */
        memcpy(body, CASES[i].data, CASES[i].bytes);
        body = realloc(body, CASES[i].bytes ? CASES[i].bytes : 1);
        srv_request r;
        srv_reply reply;
        err e = { 0 };
        refused(CASES[i].message, srv_decode_request(body, CASES[i].bytes, &r, &e), &e, CASES[i].message);
        assert_int_equal(srv_decode_reply(body, CASES[i].bytes, &reply, &e), ERR_INPUT);
        free(body);
    }
}

static void every_key_is_needed(void **state)
{
    (void)state;
    static const char *const MESSAGES[] = {
        "{'op':'hello','id':1,'version':1,'client':'c','checkpoint':'','arm':'','positions':1,'slots':1}",
        "{'op':'open','id':1,'epoch':1}", "{'op':'release','id':1,'epoch':1,'slot':1}", "{'op':'status','id':1}",
        "{'op':'draft','id':1,'epoch':1,'n_out':1,'slots':[1],'anchors':[1],'pos':[1]}",
        ("{'id':1,'op':'hello','ok':true,'epoch':1,'slots':1,'positions':1,'arm':'','checkpoint':'',"
         "'identity_compared':true,'block':5,'dim':8,'n_taps':3,'vocab':9,'window':4}"),
        "{'id':1,'op':'open','ok':true,'slot':1,'request':1}", "{'id':1,'op':'insert','ok':true,'last':1}",
        "{'id':1,'op':'release','ok':true}", "{'id':1,'op':'status','ok':true,'status':{}}",
        "{'id':1,'op':'draft','ok':false,'refusal':'worker','text':'t'}",
    };
    for (size_t i = 0; i < COUNT_OF(MESSAGES); i++) {
        size_t n, packed_bytes;
        bool is_reply = strstr(MESSAGES[i], "'ok'") != NULL;
        uint8_t *body = json_body(MESSAGES[i], &n), *packed;
        json_t *v, *item;
        const char *key;
        srv_request r;
        srv_reply reply;
        err e = { 0 };
        assert_int_equal(fmt_msgpack_unpack(body, n, &v, &e), ERR_OK);
        assert_int_equal(is_reply ? srv_decode_reply(body, n, &reply, &e) : srv_decode_request(body, n, &r, &e), ERR_OK);
        if (is_reply) srv_reply_fini(&reply);
        json_object_foreach(v, key, item) {
            char message[64];
            json_t *less = json_copy(v);
            json_object_del(less, key);
            assert_int_equal(fmt_msgpack_pack(less, &packed, &packed_bytes, &e), ERR_OK);
            err_code rc = is_reply ? srv_decode_reply(packed, packed_bytes, &reply, &e)
                                   : srv_decode_request(packed, packed_bytes, &r, &e);
            snprintf(message, sizeof message, "key '%s' is missing", key);
            refused(MESSAGES[i], rc, &e, message);
            free(packed);
            json_decref(less);
        }
        json_decref(v);
        free(body);
    }
}

#define REPLY "'id':1,'ok':true,'op':'draft','round':1,'step_batch':1"
static void a_hostile_reply_is_refused(void **state)
{
    (void)state;
    static const struct { const char *text, *message; } CASES[] = {
        { "{'id':1,'op':'open','ok':1}", "ok: found an integer, wanted a boolean" },
        { "{'id':1,'op':'gone','ok':true}", "op: found 'gone', wanted one of hello" },
        { "{'id':1,'op':'open','ok':false,'refusal':'none','text':''}", "refusal: found 'none', which is not known" },
        { "{'id':1,'op':'open','ok':false,'refusal':'bored','text':''}", "refusal: found 'bored'" },
        { "{'id':1,'op':'open','ok':false,'refusal':'slot','text':'a\\tb'}", "text: found byte 0x09" },
        { "{'id':1,'op':'open','ok':false,'refusal':'slot','text':'','slot':-1}", "slot: found -1" },
        { "{'id':1,'op':'open','ok':true,'slot':0,'request':-1}", "request: found -1, wanted 0 to 9223372036854775807" },
        { "{" REPLY ",'queue_us':1,'step_us':1.5}", "queue_us: found an integer, wanted a float64" },
        { "{" REPLY ",'queue_us':-0.5,'step_us':1.5}", "queue_us: found -0.5, wanted 0 or more" },
        { "{" REPLY ",'queue_us':0.5,'step_us':1.5,'drafts':[],'confidence':[]}", "drafts: found an array of 0" },
        { "{" REPLY ",'queue_us':0.5,'step_us':1.5,'drafts':[[]],'confidence':[[]]}", "drafts: found an array of 0" },
        { "{" REPLY ",'queue_us':0.5,'step_us':1.5,'drafts':[[1],[1],[1],[1],[1]],'confidence':[]}",
          "drafts: found an array of 5" },
        { "{" REPLY ",'queue_us':0.5,'step_us':1.5,'drafts':[[1,2],[1]],'confidence':[]}",
          "drafts: found an array of 1, wanted 2" },
        { "{" REPLY ",'queue_us':0.5,'step_us':1.5,'drafts':[[1,2],3],'confidence':[]}",
          "drafts: found an integer, wanted an array" },
        { "{" REPLY ",'queue_us':0.5,'step_us':1.5,'drafts':[[1,2]],'confidence':[[1]]}",
          "confidence: found an array of 1, wanted 2" },
        { "{" REPLY ",'queue_us':0.5,'step_us':1.5,'drafts':[[1]],'confidence':[[1.0]]}",
          "confidence: found a float64, wanted a float32" },
        { "{" REPLY ",'queue_us':0.5,'step_us':1.5,'drafts':[[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]],'confidence':[]}",
          "drafts: found an array of 17, wanted 16 at most" },
        { "{'id':1,'op':'status','ok':true,'status':[]}", "status: found an array, wanted a map" },
        { "{'id':1,'op':'status','ok':true,'status':{'a':[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]}}", "status: msgpack: byte" },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        json_t *v;
        char plain[1024];
        snprintf(plain, sizeof plain, "%s", CASES[i].text);
        for (char *c = plain; *c; c++) if (*c == '\'') *c = '"';
        uint8_t *body;
        size_t n;
        srv_reply r;
        err e = { 0 };
        assert_non_null(v = json_loads(plain, 0, NULL));
        if (fmt_msgpack_pack(v, &body, &n, &e) != ERR_OK) { /* too deep for our own packer: by hand */
            static const char HEAD[] = "\x84\xa2id\x01\xa2op\xa6status\xa2ok\xc3\xa6status\x81\xa1" "a";
            n = sizeof HEAD - 1 + 17;
            body = malloc(n);
            memcpy(body, HEAD, sizeof HEAD - 1);
            memset(body + sizeof HEAD - 1, 0x91, 16);
            body[n - 1] = 0;
        }
        refused(CASES[i].text, srv_decode_reply(body, n, &r, &e), &e, CASES[i].message);
        srv_reply_fini(&r);
        free(body);
        json_decref(v);
    }
}

static void times_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
    static const uint64_t BITS[] = { 0x7ff8000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0xbff0000000000000 };
    srv_reply r = { .op = SRV_DRAFT, .refused_slot = -1, .u.drafted = { .batch = 1, .n_out = 1, .step_us = 1.0 } };
    for (size_t i = 0; i < COUNT_OF(BITS); i++) {
        size_t n, at;
        srv_reply got;
        srv_buf b = { 0 };
        err e = { 0 };
        uint8_t *body = reply_body(&r, &n);
        for (at = 0; memcmp(body + at, "\xcb\x3f\xf0", 3) != 0; at++) { }
        for (int k = 0; k < 8; k++) body[at + 1 + k] = (uint8_t)(BITS[i] >> (56 - 8 * k));
        refused("time", srv_decode_reply(body, n, &got, &e), &e, "step_us: found ");
        srv_reply bad = r;
        memcpy(&bad.u.drafted.queue_us, &BITS[i], sizeof BITS[i]);
        assert_int_equal(srv_encode_reply(&bad, &b, &e), ERR_ARG);
        srv_buf_fini(&b);
        free(body);
    }
}

static void a_refused_request_still_tells_its_id_and_op(void **state)
{
    (void)state;
    static const struct { const char *data; size_t bytes; srv_op op; uint64_t id; } CASES[] = {
        { BYTES("\x83\xa2id\x2a\xa2op\xa4open\xa5" "epo"), SRV_OPEN, 42 },
        { BYTES("\x83\xa2id\x2a\xa2op\xa4open\xa5" "epoch\xc0"), SRV_OPEN, 42 },
        { BYTES("\x82\xa2id\x2a\xa2op\xa4opes"), SRV_OP_COUNT, 42 },
        { BYTES("\x82\xa2id\xff\xa2op\xa4open"), SRV_OPEN, 0 },
        { BYTES("\x82\xa2id\x2a\xa2op\x01"), SRV_OP_COUNT, 42 },
        { BYTES("\x82\xa2id\x2a\xa2op"), SRV_OP_COUNT, 42 },
        { BYTES("\x81\xa2op\xa4open"), SRV_OPEN, 0 },
        { BYTES("\x00"), SRV_OP_COUNT, 0 },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        srv_request r;
        err e = { 0 };
        assert_int_equal(srv_decode_request((const uint8_t *)CASES[i].data, CASES[i].bytes, &r, &e), ERR_INPUT);
        if (r.op != CASES[i].op || r.id != CASES[i].id) fail_msg("case %zu: op %d id %d", i, r.op, (int)r.id);
    }
}

/* ---- what is not refused ---- */

static void unknown_keys_of_any_kind_are_ignored(void **state)
{
    (void)state;
    static const struct { const char *data; size_t bytes; } VALUES[] = {
        { BYTES("\xc0") }, { BYTES("\xc2") }, { BYTES("\xff") }, { BYTES("\xca\x7f\xc0\x00\x00") },
        { BYTES("\xc4\x02\x00\x01") }, { BYTES("\xd4\x01\x00") }, { BYTES("\xd8\x01" "0123456789abcdef") },
        { BYTES("\xc7\x00\x05") }, { BYTES("\xc7\x01\x05x") },
        { BYTES("\xc8\x00\x01\x05x") }, { BYTES("\x91\x82\x01\x02\xc0\x90") }, { BYTES("\xd9\x03\xff\xfe\xfd") },
        { BYTES("\xdc\x00\x02\x00\x80") }, { BYTES("\xdf\x00\x00\x00\x01\x90\x91\xc3") }, { BYTES("\xa0") },
    };
    for (size_t i = 0; i < COUNT_OF(VALUES); i++) {
        srv_buf b = { 0 };
        srv_request r;
        err e = { 0 };
        assert_int_equal(srv_buf_append(&b, BYTES("\x83\xa2id\x05\xa3new"), &e), ERR_OK);
        assert_int_equal(srv_buf_append(&b, VALUES[i].data, VALUES[i].bytes, &e), ERR_OK);
        assert_int_equal(srv_buf_append(&b, BYTES("\xa2op\xa6status"), &e), ERR_OK);
        if (srv_decode_request(b.data, b.bytes, &r, &e) != ERR_OK) fail_msg("value %zu: %s", i, e.msg);
        assert_int_equal(r.id, 5);
        assert_int_equal(r.op, SRV_STATUS);
        srv_buf_fini(&b);
    }
}

static void a_million_levels_take_no_stack(void **state)
{
    (void)state;
    static const char TAIL[] = "\xa2op\xa6status";
    size_t levels = 1000000;
    srv_buf b = { 0 };
    srv_request r;
    err e = { 0 };
    assert_int_equal(srv_buf_append(&b, BYTES("\x83\xa2id\x05\xa3new"), &e), ERR_OK);
    for (size_t i = 0; i < levels; i++) assert_int_equal(srv_buf_append(&b, "\x91", 1, &e), ERR_OK);
    assert_int_equal(srv_buf_append(&b, "\xc0", 1, &e), ERR_OK);
    assert_int_equal(srv_buf_append(&b, TAIL, sizeof TAIL - 1, &e), ERR_OK);
    assert_int_equal(srv_decode_request(b.data, b.bytes, &r, &e), ERR_OK);
    srv_buf_fini(&b);
}

static void a_number_may_have_any_width(void **state)
{
    (void)state;
    static const struct { const char *data; size_t bytes; } SEVENS[] = {
        { BYTES("\x07") }, { BYTES("\xcc\x07") }, { BYTES("\xcd\x00\x07") }, { BYTES("\xce\x00\x00\x00\x07") },
        { BYTES("\xcf\x00\x00\x00\x00\x00\x00\x00\x07") }, { BYTES("\xd0\x07") }, { BYTES("\xd1\x00\x07") },
        { BYTES("\xd2\x00\x00\x00\x07") }, { BYTES("\xd3\x00\x00\x00\x00\x00\x00\x00\x07") },
    };
    for (size_t i = 0; i < COUNT_OF(SEVENS); i++) {
        srv_buf b = { 0 };
        srv_request r;
        err e = { 0 };
        assert_int_equal(srv_buf_append(&b, BYTES("\x84\xa2id\x05\xa2op\xa7release\xa5" "epoch\x01\xa4slot"), &e), ERR_OK);
        assert_int_equal(srv_buf_append(&b, SEVENS[i].data, SEVENS[i].bytes, &e), ERR_OK);
        assert_int_equal(srv_decode_request(b.data, b.bytes, &r, &e), ERR_OK);
        assert_int_equal(r.u.slot, 7);
        srv_buf_fini(&b);
    }
}

static void a_hello_of_another_version_is_read_as_far_as_that(void **state)
{
    (void)state;
    size_t n;
    uint8_t *body = json_body("{'op':'hello','id':8,'version':2,'client':{'name':'c'}}", &n);
    srv_request r;
    err e = { 0 };
    assert_int_equal(srv_decode_request(body, n, &r, &e), ERR_OK);
    assert_int_equal(r.u.hello.version, 2);
    assert_string_equal(r.u.hello.client, "");
    free(body);
}

/* ---- any bytes ---- */

static void no_changed_byte_does_harm(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(REQUESTS) + COUNT_OF(REPLIES); i++) {
        bool request = i < COUNT_OF(REQUESTS);
        size_t n;
        uint8_t *body = request ? request_body(&REQUESTS[i], &n) : reply_body(&REPLIES[i - COUNT_OF(REQUESTS)], &n);
        for (size_t at = 0; at < n; at++) {
            uint8_t was = body[at];
            for (int v = 0; v < 256; v++) {
                srv_request r;
                srv_reply reply;
                err e = { 0 };
                body[at] = (uint8_t)v;
                err_code rc = request ? srv_decode_request(body, n, &r, &e) : srv_decode_reply(body, n, &reply, &e);
                if (rc != ERR_OK) assert_int_equal(rc, ERR_INPUT);
                if (!request) srv_reply_fini(&reply);
            }
            body[at] = was;
        }
        free(body);
    }
}

/* ---- encoding ---- */

static void what_the_protocol_does_not_allow_is_not_sent(void **state)
{
    (void)state;
    srv_request bad[] = {
        { SRV_OP_COUNT, 1, 1, { .slot = 0 } },
        { SRV_RELEASE, 1, 1, { .slot = -1 } },
        { SRV_INSERT, 1, 1, { .insert = { 0, 0, 0, TAPS, 2 } } },
        { SRV_INSERT, 1, 1, { .insert = { 0, 1, -1, TAPS, 2 } } },
        { SRV_INSERT, 1, 1, { .insert = { 0, 1, 0, TAPS, (64 << 20) + 1 } } },
        { SRV_DRAFT, 1, 1, { .draft = { 0, 5, { 0 }, { 0 }, { 0 } } } },
        { SRV_DRAFT, 1, 1, { .draft = { 5, 5, { 0 }, { 0 }, { 0 } } } },
        { SRV_DRAFT, 1, 1, { .draft = { 1, 17, { 0 }, { 0 }, { 0 } } } },
        { SRV_DRAFT, 1, 1, { .draft = { 1, 5, { 0 }, { -1 }, { 0 } } } },
        { SRV_HELLO, 1, 0, { .hello = { 1, "", "", "", 1, 1 } } },
        { SRV_HELLO, 1, 0, { .hello = { 1, "a\nb", "", "", 1, 1 } } },
        { SRV_HELLO, 1, 0, { .hello = { 1, "c", "", "", -1, 1 } } },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        srv_buf b = { 0 };
        err e = { 0 };
        assert_int_equal(srv_buf_append(&b, "kept", 4, &e), ERR_OK);
        if (srv_encode_request(&bad[i], &b, &e) != ERR_ARG) fail_msg("request %zu was encoded", i);
        assert_int_equal(b.bytes, 4);
        assert_true(strlen(e.msg) > 0);
        srv_buf_fini(&b);
    }
}

static void frames_are_appended_one_after_the_other(void **state)
{
    (void)state;
    srv_buf b = { 0 };
    err e = { 0 };
    for (size_t i = 0; i < COUNT_OF(REQUESTS); i++) assert_int_equal(srv_encode_request(&REQUESTS[i], &b, &e), ERR_OK);
    size_t at = 0, i = 0;
    while (at < b.bytes) {
        uint32_t n;
        srv_request r;
        assert_int_equal(srv_frame_bytes(b.data + at, &n, &e), ERR_OK);
        at += SRV_FRAME_HEADER_BYTES;
        assert_int_equal(srv_decode_request(b.data + at, n, &r, &e), ERR_OK);
        assert_int_equal(r.id, REQUESTS[i++].id);
        at += n;
    }
    assert_int_equal(i, COUNT_OF(REQUESTS));
    srv_buf_fini(&b);
}

static void every_failing_allocation_is_reported(void **state)
{
    (void)state;
    srv_reply r = { .op = SRV_STATUS, .id = 3, .refused_slot = -1 };
    r.u.status = json_pack("{s:[{s:i, s:s}], s:f}", "slots", "slot", 0, "state", "free", "p50", 1.25);
    for (int persistent = 0; persistent < 2; persistent++) {
        for (long n = 0;; n++) { /* encoding */
            srv_buf b = { 0 };
            err e = { 0 };
            alloc_fail_at(n, persistent);
            err_code rc = srv_encode_reply(&r, &b, &e);
            bool hit = alloc_fail_end();
            assert_int_equal(rc, hit ? ERR_NOMEM : ERR_OK);
            if (hit) assert_int_equal(b.bytes, 0);
            srv_buf_fini(&b);
            if (!hit) break;
        }
        size_t bytes;
        uint8_t *body = reply_body(&r, &bytes);
        for (long n = 0;; n++) { /* decoding */
            srv_reply got;
            err e = { 0 };
            alloc_fail_at(n, persistent);
            err_code rc = srv_decode_reply(body, bytes, &got, &e);
            bool hit = alloc_fail_end();
            if (!hit) assert_int_equal(rc, ERR_OK);
            else assert_int_not_equal(rc, ERR_OK);
            srv_reply_fini(&got);
            if (!hit) break;
        }
        free(body);
    }
    json_decref(r.u.status);
}

static void names_are_those_of_the_protocol(void **state)
{
    (void)state;
    assert_string_equal(srv_op_name(SRV_HELLO), "hello");
    assert_string_equal(srv_op_name(SRV_STATUS), "status");
    assert_string_equal(srv_op_name(SRV_OP_COUNT), "");
    assert_string_equal(srv_refusal_name(SRV_REFUSED_POISONED), "poisoned");
    assert_string_equal(srv_refusal_name(SRV_REFUSAL_COUNT), "?");
    assert_int_equal(strlen(SHA), 64);
    srv_hello h;
    assert_true(sizeof h.checkpoint > strlen(SHA));
}

int main(void)
{
    alloc_fail_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_comes_back),
        cmocka_unit_test(every_reply_comes_back),
        cmocka_unit_test(every_refusal_comes_back_by_its_name),
        cmocka_unit_test(a_status_comes_back),
        cmocka_unit_test(a_confidence_keeps_every_bit),
        cmocka_unit_test(the_example_of_the_protocol_is_what_is_sent),
        cmocka_unit_test(a_frame_of_no_or_too_many_bytes_is_refused_by_its_length),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(bytes_after_the_map_are_refused),
        cmocka_unit_test(a_hostile_request_is_refused_by_key_found_and_wanted),
        cmocka_unit_test(hostile_bytes_are_refused),
        cmocka_unit_test(every_key_is_needed),
        cmocka_unit_test(a_hostile_reply_is_refused),
        cmocka_unit_test(times_that_are_no_numbers_are_refused),
        cmocka_unit_test(a_refused_request_still_tells_its_id_and_op),
        cmocka_unit_test(unknown_keys_of_any_kind_are_ignored),
        cmocka_unit_test(a_million_levels_take_no_stack),
        cmocka_unit_test(a_number_may_have_any_width),
        cmocka_unit_test(a_hello_of_another_version_is_read_as_far_as_that),
        cmocka_unit_test(no_changed_byte_does_harm),
        cmocka_unit_test(what_the_protocol_does_not_allow_is_not_sent),
        cmocka_unit_test(frames_are_appended_one_after_the_other),
        cmocka_unit_test(every_failing_allocation_is_reported),
        cmocka_unit_test(names_are_those_of_the_protocol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
