#include "serve/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <unistd.h>

#include "base/keyfile.h"
#include "base/mem.h"

enum {
    KEY_BYTES_MIN = 32,
    KEY_BYTES_MAX = 64,
    CHUNK_BYTES = 16384, /* a TLS record's plain text: what OpenSSL's memory holds at a time */
};
static const char IDENTITY[] = "sparktape"; /* the key's name on the wire: there is one key */
/* One suite: the key belongs to its hash, so that both ends agree without asking. */
static const char SUITE[] = "TLS_AES_256_GCM_SHA384";
static const unsigned char SUITE_CODE[] = { 0x13, 0x02 };

struct srv_key {
    SSL_CTX *ctx;
    bool server;
    size_t bytes;
    uint8_t key[KEY_BYTES_MAX];
};

struct srv_tls {
    SSL *ssl;
    BIO *in, *out; /* the wire; the SSL's */
    bool ready;    /* the handshake is done, and the key was proved */
    srv_buf kept;  /* plain text sent before that */
};

/* ---- the key file ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static err_code parse_key(const char *path, const char *text, size_t n, srv_key *k, err *e)
{
    if (n > 0 && text[n - 1] == '\n') n--;
    for (size_t i = 0; i < n; i++)
        if (hex_digit(text[i]) < 0)
            return err_set(e, ERR_INPUT, "%s: byte %zu is no hex digit, wanted one line of them", path, i);
    if (n % 2 != 0 || n < 2 * KEY_BYTES_MIN || n > 2 * KEY_BYTES_MAX)
        return err_set(e, ERR_INPUT, "%s: found %zu hex digits, wanted a key of %d to %d bytes: %d to %d digits", path, n,
                       KEY_BYTES_MIN, KEY_BYTES_MAX, 2 * KEY_BYTES_MIN, 2 * KEY_BYTES_MAX);
    k->bytes = n / 2;
    for (size_t i = 0; i < k->bytes; i++) k->key[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    return ERR_OK;
}

static err_code read_key(const char *path, srv_key *k, err *e)
{
    char text[2 * KEY_BYTES_MAX + 2]; /* room for a newline and one byte too many */
    size_t n = 0;
    ssize_t got = 0;
    int fd;
    err_code rc = ERR_OK;
    TRY(keyfile_open(path, path, &fd, e));
    while (n < sizeof text && (got = read(fd, text + n, sizeof text - n)) > 0) n += (size_t)got;
    if (got < 0) rc = err_set(e, ERR_INPUT, "%s: cannot read the key: %s", path, strerror(errno));
    if (rc == ERR_OK) rc = parse_key(path, text, n, k, e);
    OPENSSL_cleanse(text, sizeof text);
    close(fd);
    return rc;
}

/* ---- the key in OpenSSL ---- */

static SSL_SESSION *session_of(SSL *ssl)
{
    const srv_key *k = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    const SSL_CIPHER *suite = SSL_CIPHER_find(ssl, SUITE_CODE);
    SSL_SESSION *s = SSL_SESSION_new();
    if (s && suite && SSL_SESSION_set1_master_key(s, k->key, k->bytes) && SSL_SESSION_set_cipher(s, suite) &&
        SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION) &&
        SSL_SESSION_set_timeout(s, INT32_MAX)) /* else a wall clock set forward just now has it expire in its handshake */
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_bytes, SSL_SESSION **out)
{
    (void)md; /* of the suite that was chosen: there is but one */
    *id = (const unsigned char *)IDENTITY;
    *id_bytes = sizeof IDENTITY - 1;
    *out = session_of(ssl);
    return *out != NULL;
}

static int find_session(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **out)
{
    *out = NULL;
    if (id_bytes != sizeof IDENTITY - 1 || memcmp(id, IDENTITY, id_bytes) != 0) return 1; /* no session: no handshake */
    *out = session_of(ssl);
    return *out != NULL;
}

static bool set_up(srv_key *k)
{
    SSL_CTX *c = k->ctx = SSL_CTX_new(k->server ? TLS_server_method() : TLS_client_method());
    if (!c || !SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) || !SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(c, SUITE) || !SSL_CTX_set_num_tickets(c, 0) || !SSL_CTX_set_app_data(c, k))
        return false;
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
    if (k->server) {
        SSL_CTX_set_psk_find_session_callback(c, find_session);
    } else {
        SSL_CTX_set_psk_use_session_callback(c, use_session);
        SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL); /* a server that has a certificate instead fails: none is trusted */
    }
    return true;
}

err_code srv_key_open(const char *path, bool server, srv_key **out, err *e)
{
    *out = NULL;
    srv_key *k = mem_alloc(1, sizeof *k);
    if (!k) return err_set(e, ERR_NOMEM, "%s: no memory", path);
    k->server = server;
    err_code rc = read_key(path, k, e);
    if (rc == ERR_OK && !set_up(k)) rc = err_set(e, ERR_SYSTEM, "OpenSSL: no TLS 1.3 with %s", SUITE);
    if (rc == ERR_OK) *out = k;
    else srv_key_close(k);
    ERR_clear_error();
    return rc;
}

void srv_key_close(srv_key *k)
{
    if (!k) return;
    SSL_CTX_free(k->ctx);
    OPENSSL_cleanse(k, sizeof *k);
    free(k);
}

/* ---- connections ---- */

err_code srv_tls_open(srv_key *k, srv_tls **out, err *e)
{
    *out = NULL;
    srv_tls *t = mem_alloc(1, sizeof *t);
    BIO *in = BIO_new(BIO_s_mem()), *wire = BIO_new(BIO_s_mem());
    SSL *ssl = SSL_new(k->ctx);
    if (!t || !in || !wire || !ssl) {
        BIO_free(in);
        BIO_free(wire);
        SSL_free(ssl);
        free(t);
        return err_set(e, ERR_NOMEM, "tls: no memory");
    }
    SSL_set_bio(ssl, in, wire);
    if (k->server) SSL_set_accept_state(ssl);
    else SSL_set_connect_state(ssl);
    *t = (srv_tls){ .ssl = ssl, .in = in, .out = wire };
    *out = t;
    return ERR_OK;
}

void srv_tls_close(srv_tls *t)
{
    if (!t) return;
    SSL_free(t->ssl);
    srv_buf_fini(&t->kept);
    free(t);
}

bool srv_tls_ready(const srv_tls *t) { return t->ready; }

/* What OpenSSL has written goes to the wire. */
static err_code drain(srv_tls *t, srv_buf *wire, err *e)
{
    uint8_t chunk[CHUNK_BYTES];
    int n;
    while ((n = BIO_read(t->out, chunk, sizeof chunk)) > 0) TRY(srv_buf_append(wire, chunk, (size_t)n, e));
    return ERR_OK;
}

/* The reason of OpenSSL's last failure; ERR_OK when it only waits for the wire, or the peer has closed in order. */
static err_code judge(srv_tls *t, int rc, err *e)
{
    int why = SSL_get_error(t->ssl, rc);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_ZERO_RETURN) return ERR_OK;
    const char *reason = ERR_reason_error_string(ERR_peek_error());
    ERR_clear_error();
    return err_set(e, ERR_IO, "tls: %s: %s%s", t->ready ? "the connection broke" : "no handshake",
                   reason ? reason : "no reason given",
                   t->ready ? "" : " (the peer must speak TLS 1.3 and hold the same key)");
}

static err_code write_all(srv_tls *t, const uint8_t *data, size_t bytes, srv_buf *wire, err *e)
{
    while (bytes > 0) {
        size_t n = bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES;
        ERR_clear_error();
        int rc = SSL_write(t->ssl, data, (int)n);
        if (rc <= 0) {
            TRY(judge(t, rc, e));
            return err_set(e, ERR_IO, "tls: the connection is closed");
        }
        data += rc;
        bytes -= (size_t)rc;
        TRY(drain(t, wire, e));
    }
    return ERR_OK;
}

/* Goes on with the handshake; when that ends, the key must have been proved, and what was kept is sent. */
static err_code handshake(srv_tls *t, srv_buf *wire, err *e)
{
    if (t->ready) return ERR_OK;
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    err_code judged = rc == 1 ? ERR_OK : judge(t, rc, e);
    TRY(drain(t, wire, judged == ERR_OK ? e : NULL));
    if (rc != 1) return judged;
    if (!SSL_session_reused(t->ssl)) return err_set(e, ERR_IO, "tls: no handshake: the peer did not prove the key");
    t->ready = true;
    err_code sent = write_all(t, t->kept.data, t->kept.bytes, wire, e);
    srv_buf_fini(&t->kept);
    return sent;
}

/* All plain text that is whole. */
static err_code read_all(srv_tls *t, srv_buf *plain, bool *ended, err *e)
{
    uint8_t chunk[CHUNK_BYTES];
    int n;
    for (;;) {
        ERR_clear_error();
        if ((n = SSL_read(t->ssl, chunk, sizeof chunk)) <= 0) break;
        TRY(srv_buf_append(plain, chunk, (size_t)n, e));
    }
    *ended = SSL_get_error(t->ssl, n) == SSL_ERROR_ZERO_RETURN;
    return judge(t, n, e);
}

err_code srv_tls_receive(srv_tls *t, const uint8_t *data, size_t bytes, srv_buf *plain, srv_buf *wire, bool *ended, err *e)
{
    *ended = false;
    while (bytes > 0 && !*ended) {
        int n = BIO_write(t->in, data, (int)(bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES));
        if (n <= 0) return err_set(e, ERR_NOMEM, "tls: no memory");
        data += n;
        bytes -= (size_t)n;
        TRY(handshake(t, wire, e));
        if (!t->ready) continue;
        err_code rc = read_all(t, plain, ended, e);
        TRY(drain(t, wire, rc == ERR_OK ? e : NULL));
        TRY(rc);
    }
    return ERR_OK;
}

err_code srv_tls_send(srv_tls *t, const uint8_t *data, size_t bytes, srv_buf *wire, err *e)
{
    if (!t->ready) {
        if (data) TRY(srv_buf_append(&t->kept, data, bytes, e));
        return handshake(t, wire, e);
    }
    return data ? write_all(t, data, bytes, wire, e) : ERR_OK;
}

void srv_tls_end(srv_tls *t, srv_buf *wire)
{
    ERR_clear_error();
    if (t->ready) (void)SSL_shutdown(t->ssl);
    ERR_clear_error();
    (void)drain(t, wire, NULL);
}
