/* The client's side of a connection: blocking, one request at a time or pipelined. What drive and status use.
 *
 * While it sends it also takes in what comes, so that a worker whose replies wait does not hold up the requests. */
#ifndef SERVE_CLIENT_H
#define SERVE_CLIENT_H

#include "serve/address.h"
#include "serve/message.h"

typedef struct srv_client srv_client;

/* key_file NULL: plain. timeout_ns: of the connect with its handshake, of every send, of every wait for a reply. ERR_IO,
 * ERR_INPUT (key), ERR_NOMEM. */
MUST_USE err_code srv_client_open(const srv_address *a, const char *key_file, uint64_t timeout_ns, srv_client **out,
                                  err *e);
void srv_client_close(srv_client *c); /* NULL is a no-op */

/* From now on a wait for a reply polls for awake_ns before it sleeps, as an engine does that cannot wait for a scheduler:
 * it takes a core. 0, as opened: sleeps at once. */
void srv_client_stay_awake(srv_client *c, uint64_t awake_ns);

/* Sends one request (c chooses r->id when it is 0: counting from 1, and tells it back). ERR_IO: the connection broke, or
 * timed out; replies that came before can still be received. ERR_ARG: see srv_encode_request; nothing was sent. */
MUST_USE err_code srv_client_send(srv_client *c, srv_request *r, err *e);
/* The next reply, in the order they come. The caller owns it (srv_reply_fini). ERR_IO: closed, or timed out. ERR_INPUT: no
 * message of this protocol; what spoke instead of a worker is quoted. */
MUST_USE err_code srv_client_receive(srv_client *c, srv_reply *out, err *e);
/* Both; the reply must be that of this request (ERR_INPUT). A refusal is no error. */
MUST_USE err_code srv_client_call(srv_client *c, srv_request *r, srv_reply *out, err *e);
/* Raw bytes as they are (plain or through TLS), for faults and tests. */
MUST_USE err_code srv_client_send_raw(srv_client *c, const void *data, size_t bytes, err *e);
int srv_client_fd(const srv_client *c); /* to poll for replies, to shut one half; c keeps it */

#endif
