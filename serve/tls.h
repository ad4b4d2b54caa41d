/* TLS 1.3 with a pre-shared key (OpenSSL), over memory: bytes of the wire in and out, bytes of the protocol out and in.
 *
 * Both ends hold the same key file. Nothing else is trusted: a certificate is never used, and an end that does not prove
 * the key is refused. Every connection has fresh keys (ephemeral Diffie-Hellman); no tickets, no early data. */
#ifndef SERVE_TLS_H
#define SERVE_TLS_H

#include "base/err.h"
#include "serve/message.h"

typedef struct srv_key srv_key; /* a key file, and the OpenSSL context made from it */
typedef struct srv_tls srv_tls; /* one connection's state */

/* path: one line, 32 to 64 bytes in hex, in a file that only its owner may read. ERR_INPUT names the file and what is wrong
 * with it; ERR_SYSTEM: OpenSSL without TLS 1.3 PSK. */
MUST_USE err_code srv_key_open(const char *path, bool server, srv_key **out, err *e);
void srv_key_close(srv_key *k); /* after its connections; NULL is a no-op */

MUST_USE err_code srv_tls_open(srv_key *k, srv_tls **out, err *e);
void srv_tls_close(srv_tls *t); /* NULL is a no-op */
/* Bytes from the wire: plain text is appended to plain, what must be sent back to wire. *ended: the peer closed in order;
 * an end of the wire without that is a cut. ERR_IO: not TLS, another key, a broken record; the connection is of no further
 * use, but what wire holds should still be sent, so that the peer learns why. ERR_NOMEM. */
MUST_USE err_code srv_tls_receive(srv_tls *t, const uint8_t *data, size_t bytes, srv_buf *plain, srv_buf *wire, bool *ended,
                                  err *e);
/* Plain text to send, once the handshake is done (kept until then): appended to wire, encrypted. data NULL: the client's
 * first flight. ERR_IO, ERR_NOMEM. */
MUST_USE err_code srv_tls_send(srv_tls *t, const uint8_t *data, size_t bytes, srv_buf *wire, err *e);
void srv_tls_end(srv_tls *t, srv_buf *wire); /* tells the peer that nothing follows; best effort */
bool srv_tls_ready(const srv_tls *t);        /* handshake done */

#endif
