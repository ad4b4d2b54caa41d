/* TLS by a pre-shared key: who gets in, who does not, and that bytes pass whole however they are cut. */
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "serve/tls.h"

#define KEY_PATH "tls_under_test.key"
#define HEX32 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"
#define OTHER "00112233445566778899aabbccddeeff00112233445566778899aabbccddeefe"

static void put_key(const char *text, size_t n, mode_t mode)
{
    unlink(KEY_PATH);
    int fd = open(KEY_PATH, O_CREAT | O_WRONLY | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), n);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static srv_key *key_of(const char *text, bool server)
{
    srv_key *k;
    err e = { 0 };
    put_key(text, strlen(text), 0600);
    if (srv_key_open(KEY_PATH, server, &k, &e) != ERR_OK) fail_msg("%s", e.msg);
    unlink(KEY_PATH);
    return k;
}

/* One end of a connection, and what waits for it on the wire. */
typedef struct side {
    srv_key *key;
    srv_tls *tls;
    srv_buf wire, plain; /* to the other end; received */
    bool ended;
    err_code rc;
    err e;
} side;

static void side_open(side *s, const char *key, bool server)
{
    *s = (side){ .key = key_of(key, server) };
    assert_int_equal(srv_tls_open(s->key, &s->tls, &s->e), ERR_OK);
    if (!server) assert_int_equal(srv_tls_send(s->tls, NULL, 0, &s->wire, &s->e), ERR_OK);
}

static void side_close(side *s)
{
    srv_tls_close(s->tls);
    srv_key_close(s->key);
    srv_buf_fini(&s->wire);
    srv_buf_fini(&s->plain);
}

/* Carries what `from` has written, `step` bytes at a time (0: all at once). false: there was nothing, or to failed. */
static bool carry(side *from, side *to, size_t step)
{
    srv_buf moved = from->wire;
    bool any = moved.bytes > 0;
    from->wire = (srv_buf){ 0 };
    for (size_t at = 0; at < moved.bytes && to->rc == ERR_OK; ) {
        size_t left = moved.bytes - at, n = step && step < left ? step : left;
        uint8_t *part = malloc(n); /* of exactly its size */
        memcpy(part, moved.data + at, n);
        bool ended;
        to->rc = srv_tls_receive(to->tls, part, n, &to->plain, &to->wire, &ended, &to->e);
        to->ended = to->ended || ended;
        free(part);
        at += n;
    }
    srv_buf_fini(&moved);
    return any && to->rc == ERR_OK;
}

static void talk(side *a, side *b, size_t step)
{
    bool more = true;
    while (more) {
        more = carry(a, b, step);
        more = carry(b, a, step) || more;
    }
}

static void pair(side *client, side *server, size_t step)
{
    side_open(client, HEX32, false);
    side_open(server, HEX32, true);
    talk(client, server, step);
    if (client->rc != ERR_OK || server->rc != ERR_OK) fail_msg("'%s', '%s'", client->e.msg, server->e.msg);
    assert_true(srv_tls_ready(client->tls) && srv_tls_ready(server->tls));
}

/* ---- keys ---- */

static void a_faulty_key_file_is_refused_with_what_was_wanted(void **state)
{
    (void)state;
    static const struct { const char *text; mode_t mode; const char *message; } CASES[] = {
        { "", 0600, "found 0 hex digits, wanted a key of 32 to 64 bytes: 64 to 128 digits" },
        { "0011", 0600, "found 4 hex digits" },
        { HEX32 "a", 0600, "found 65 hex digits" },
        { HEX32 HEX32 "aa", 0600, "found 130 hex digits" },
        { HEX32 HEX32 HEX32 HEX32, 0600, "hex digits, wanted a key of 32 to 64 bytes" },
        { HEX32 "\n\n", 0600, "byte 64 is no hex digit" },
        { HEX32 "\r\n", 0600, "byte 64 is no hex digit" },
        { "x" HEX32, 0600, "byte 0 is no hex digit" },
        { HEX32 "\n", 0640, "found mode 0640, wanted 0600" },
        { HEX32 "\n", 0604, "found mode 0604, wanted 0600" },
        { HEX32 "\n", 0620, "found mode 0620, wanted 0600" },
        { HEX32 "\n", 0601, "found mode 0601, wanted 0600" },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        srv_key *k = (srv_key *)1;
        err e = { 0 };
        put_key(CASES[i].text, strlen(CASES[i].text), CASES[i].mode);
        if (srv_key_open(KEY_PATH, i % 2, &k, &e) != ERR_INPUT) fail_msg("case %zu was taken", i);
        assert_null(k);
        assert_int_equal(strncmp(e.msg, KEY_PATH ": ", strlen(KEY_PATH) + 2), 0);
        if (!strstr(e.msg, CASES[i].message)) fail_msg("'%s' lacks '%s'", e.msg, CASES[i].message);
        if (strstr(e.msg, "001122")) fail_msg("the message shows the key");
    }
    srv_key *k;
    err e = { 0 };
    unlink(KEY_PATH);
    assert_int_equal(srv_key_open(KEY_PATH, true, &k, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "No such file"));
    assert_int_equal(mkfifo(KEY_PATH, 0600), 0); /* nobody writes it: it must not make us wait */
    assert_int_equal(srv_key_open(KEY_PATH, true, &k, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "no regular file"));
    unlink(KEY_PATH);
}

static void keys_of_every_allowed_length_and_form_are_taken(void **state)
{
    (void)state;
    static const char *const KEYS[] = { HEX32, HEX32 "\n", HEX32 "ab", HEX32 HEX32, HEX32 HEX32 "\n" };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        side c, s;
        side_open(&c, KEYS[i], false);
        side_open(&s, KEYS[i], true);
        talk(&c, &s, 0);
        assert_true(srv_tls_ready(c.tls) && srv_tls_ready(s.tls));
        side_close(&c);
        side_close(&s);
    }
    srv_key_close(NULL);
    srv_tls_close(NULL);
}

/* ---- who gets in ---- */

static void the_right_key_lets_text_pass_both_ways(void **state)
{
    (void)state;
    side c, s;
    pair(&c, &s, 0);
    assert_int_equal(srv_tls_send(c.tls, (const uint8_t *)"question", 8, &c.wire, &c.e), ERR_OK);
    assert_int_equal(srv_tls_send(s.tls, (const uint8_t *)"answer", 6, &s.wire, &s.e), ERR_OK);
    assert_null(memmem(c.wire.data, c.wire.bytes, "question", 8));
    talk(&c, &s, 0);
    assert_int_equal(s.plain.bytes, 8);
    assert_memory_equal(s.plain.data, "question", 8);
    assert_int_equal(c.plain.bytes, 6);
    assert_memory_equal(c.plain.data, "answer", 6);
    side_close(&c);
    side_close(&s);
}

static void another_key_is_refused_at_both_ends(void **state)
{
    (void)state;
    static const char *const KEYS[] = { OTHER, HEX32 "00", HEX32 HEX32 };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        side c, s;
        side_open(&c, KEYS[i], false);
        side_open(&s, HEX32, true);
        assert_int_equal(srv_tls_send(c.tls, (const uint8_t *)"early", 5, &c.wire, &c.e), ERR_OK);
        talk(&c, &s, 0);
        assert_int_equal(s.rc, ERR_IO);
        assert_non_null(strstr(s.e.msg, "hold the same key"));
        assert_int_equal(c.rc, ERR_IO); /* by the server's alert */
        assert_non_null(strstr(c.e.msg, "hold the same key"));
        assert_false(srv_tls_ready(c.tls) || srv_tls_ready(s.tls));
        assert_int_equal(s.plain.bytes, 0);
        assert_int_equal(c.plain.bytes, 0);
        side_close(&c);
        side_close(&s);
    }
}

static void what_is_not_tls_is_refused(void **state)
{
    (void)state;
    static const char *const TEXTS[] = { "GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
                                         "\x15\x00\x00\x00\x82\xa2op\xa6status\xa2id\x01.....",
                                         "\x16\x03\x01\x40\x00garbage in a record of its length........................." };
    for (size_t i = 0; i < COUNT_OF(TEXTS); i++)
        for (int server = 0; server < 2; server++) {
            side s;
            bool ended;
            size_t n = i == 1 ? 21 : i == 2 ? 60 : strlen(TEXTS[i]);
            side_open(&s, HEX32, server);
            err_code rc = ERR_OK;
            for (int k = 0; k < 400 && rc == ERR_OK; k++) /* a long record is refused at its length, or when it is whole */
                rc = srv_tls_receive(s.tls, (const uint8_t *)TEXTS[i], n, &s.plain, &s.wire, &ended, &s.e);
            assert_int_equal(rc, ERR_IO);
            assert_non_null(strstr(s.e.msg, "tls: no handshake: "));
            assert_int_equal(s.plain.bytes, 0);
            side_close(&s);
        }
}

/* An OpenSSL end without our key, over memory. */
static SSL *stranger(SSL_CTX *ctx, bool server)
{
    SSL *ssl = SSL_new(ctx);
    assert_non_null(ssl);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    if (server) SSL_set_accept_state(ssl);
    else SSL_set_connect_state(ssl);
    return ssl;
}

/* Shakes hands with s until nothing more moves or s fails. */
static void meet(side *s, SSL *ssl)
{
    for (int turn = 0; turn < 10 && s->rc == ERR_OK; turn++) {
        uint8_t data[16384];
        bool ended;
        if (s->wire.bytes) BIO_write(SSL_get_rbio(ssl), s->wire.data, (int)s->wire.bytes);
        s->wire.bytes = 0;
        (void)SSL_do_handshake(ssl);
        int n = BIO_read(SSL_get_wbio(ssl), data, sizeof data);
        if (n > 0) s->rc = srv_tls_receive(s->tls, data, (size_t)n, &s->plain, &s->wire, &ended, &s->e);
    }
}

static void a_server_with_a_certificate_instead_of_the_key_is_refused(void **state)
{
    (void)state;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_non_null(key);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)"worker", -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    assert_int_equal(SSL_CTX_use_certificate(ctx, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(ctx, key), 1);
    side c;
    side_open(&c, HEX32, false);
    assert_int_equal(srv_tls_send(c.tls, (const uint8_t *)"secret", 6, &c.wire, &c.e), ERR_OK);
    SSL *ssl = stranger(ctx, true);
    meet(&c, ssl);
    assert_int_equal(c.rc, ERR_IO);
    assert_false(srv_tls_ready(c.tls));
    if (!strstr(c.e.msg, "certificate verify failed")) fail_msg("'%s'", c.e.msg);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    X509_free(cert);
    EVP_PKEY_free(key);
    side_close(&c);
}

static void a_client_without_the_key_or_with_an_older_tls_is_refused(void **state)
{
    (void)state;
    for (int old = 0; old < 2; old++) {
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        if (old) SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
        side s;
        side_open(&s, HEX32, true);
        SSL *ssl = stranger(ctx, false);
        meet(&s, ssl);
        assert_int_equal(s.rc, ERR_IO);
        assert_false(srv_tls_ready(s.tls));
        SSL_free(ssl);
        SSL_CTX_free(ctx);
        side_close(&s);
    }
}

/* ---- bytes ---- */

static void text_sent_before_the_handshake_is_kept_for_after_it(void **state)
{
    (void)state;
    side c, s;
    side_open(&c, HEX32, false);
    side_open(&s, HEX32, true);
    assert_int_equal(srv_tls_send(c.tls, (const uint8_t *)"one ", 4, &c.wire, &c.e), ERR_OK);
    assert_int_equal(srv_tls_send(c.tls, (const uint8_t *)"two", 3, &c.wire, &c.e), ERR_OK);
    assert_int_equal(srv_tls_send(s.tls, (const uint8_t *)"hello", 5, &s.wire, &s.e), ERR_OK);
    talk(&c, &s, 0);
    assert_int_equal(s.plain.bytes, 7);
    assert_memory_equal(s.plain.data, "one two", 7);
    assert_int_equal(c.plain.bytes, 5);
    side_close(&c);
    side_close(&s);
}

static void bytes_may_come_one_by_one(void **state)
{
    (void)state;
    static const size_t STEPS[] = { 1, 2, 7, 100, 16384 };
    for (size_t i = 0; i < COUNT_OF(STEPS); i++) {
        side c, s;
        uint8_t text[5000];
        for (size_t k = 0; k < sizeof text; k++) text[k] = (uint8_t)(k * 31);
        pair(&c, &s, STEPS[i]);
        assert_int_equal(srv_tls_send(c.tls, text, sizeof text, &c.wire, &c.e), ERR_OK);
        talk(&c, &s, STEPS[i]);
        assert_int_equal(s.plain.bytes, sizeof text);
        assert_memory_equal(s.plain.data, text, sizeof text);
        side_close(&c);
        side_close(&s);
    }
}

static void a_frame_of_20_mb_passes_whole(void **state)
{
    (void)state;
    size_t n = 20 << 20;
    uint8_t *text = malloc(n);
    side c, s;
    for (size_t k = 0; k < n; k++) text[k] = (uint8_t)(k * 2654435761u >> 24);
    pair(&c, &s, 0);
    assert_int_equal(srv_tls_send(c.tls, text, n, &c.wire, &c.e), ERR_OK);
    talk(&c, &s, 65536);
    assert_int_equal(s.plain.bytes, n);
    assert_memory_equal(s.plain.data, text, n);
    side_close(&c);
    side_close(&s);
    free(text);
}

static void an_end_in_order_is_told_from_a_cut(void **state)
{
    (void)state;
    side c, s;
    pair(&c, &s, 0);
    assert_int_equal(srv_tls_send(c.tls, (const uint8_t *)"last", 4, &c.wire, &c.e), ERR_OK);
    talk(&c, &s, 0);
    assert_false(s.ended); /* if the wire ended here, it would be a cut */
    srv_tls_end(c.tls, &c.wire);
    talk(&c, &s, 0);
    assert_true(s.ended);
    assert_int_equal(s.rc, ERR_OK);
    assert_int_equal(s.plain.bytes, 4);
    side_close(&c);
    side_close(&s);
}

static void a_cut_record_shows_no_text(void **state)
{
    (void)state;
    side c, s;
    pair(&c, &s, 0);
    assert_int_equal(srv_tls_send(c.tls, (const uint8_t *)"whole", 5, &c.wire, &c.e), ERR_OK);
    size_t n = c.wire.bytes;
    for (size_t at = 0; at < n; at++) {
        bool ended;
        assert_int_equal(s.plain.bytes, 0);
        assert_int_equal(srv_tls_receive(s.tls, c.wire.data + at, 1, &s.plain, &s.wire, &ended, &s.e), ERR_OK);
        assert_false(ended);
    }
    assert_int_equal(s.plain.bytes, 5);
    side_close(&c);
    side_close(&s);
}

static void a_changed_byte_anywhere_is_refused(void **state)
{
    (void)state;
    for (size_t at = 0; at < 27; at++) { /* 5 of the record's head, 5 of text, 1 of its type, 16 of the tag */
        side c, s;
        pair(&c, &s, 0);
        assert_int_equal(srv_tls_send(c.tls, (const uint8_t *)"whole", 5, &c.wire, &c.e), ERR_OK);
        assert_int_equal(c.wire.bytes, 27);
        c.wire.data[at] ^= 0x40;
        talk(&c, &s, 0);
        bool waits = at == 3 || at == 4; /* the record claims to be longer than it is */
        if (waits) assert_int_equal(s.rc, ERR_OK);
        else if (s.rc != ERR_IO || !strstr(s.e.msg, "tls: the connection broke: ")) fail_msg("byte %zu: '%s'", at, s.e.msg);
        assert_int_equal(s.plain.bytes, 0);
        side_close(&c);
        side_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_faulty_key_file_is_refused_with_what_was_wanted),
        cmocka_unit_test(keys_of_every_allowed_length_and_form_are_taken),
        cmocka_unit_test(the_right_key_lets_text_pass_both_ways),
        cmocka_unit_test(another_key_is_refused_at_both_ends),
        cmocka_unit_test(what_is_not_tls_is_refused),
        cmocka_unit_test(a_server_with_a_certificate_instead_of_the_key_is_refused),
        cmocka_unit_test(a_client_without_the_key_or_with_an_older_tls_is_refused),
        cmocka_unit_test(text_sent_before_the_handshake_is_kept_for_after_it),
        cmocka_unit_test(bytes_may_come_one_by_one),
        cmocka_unit_test(a_frame_of_20_mb_passes_whole),
        cmocka_unit_test(an_end_in_order_is_told_from_a_cut),
        cmocka_unit_test(a_cut_record_shows_no_text),
        cmocka_unit_test(a_changed_byte_anywhere_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
