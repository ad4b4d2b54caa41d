/* The server: connections, frames and TLS on one libuv loop, in front of a worker.
 *
 * It only moves bytes: a request is decoded, queued with the worker, and its reply written when the worker is done with it.
 * Status alone is answered here, so that it tells the truth also while a step hangs. A client cannot make it wait: frames,
 * and silence without a session, have a time limit, a connection with much in the queue is not read from, and one that does
 * not read its replies is closed. */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include "serve/address.h"
#include "serve/tls.h"
#include "serve/worker.h"

typedef struct srv_server srv_server;

typedef struct srv_server_setup {
    int fd;                     /* from srv_listen; the server closes it, also when open fails */
    const srv_address *address; /* as bound; copied */
    srv_key *key;               /* NULL: plain. Borrowed until close */
    uint64_t frame_timeout_ns;  /* for a frame, or a handshake, that has begun, and for silence without a session */
    bool signals;               /* SIGTERM, SIGINT and SIGHUP stop it, unless they are ignored; a second one kills */
} srv_server_setup;

/* Takes connections into the backlog, but none of them before run. ERR_SYSTEM, ERR_NOMEM. */
MUST_USE err_code srv_server_open(const srv_server_setup *s, srv_server **out, err *e);
/* From here on signals stop it in order; the caller says that it is ready. ERR_SYSTEM. */
MUST_USE err_code srv_server_start(srv_server *s, srv_worker *w, err *e);
/* Starts unless that was done, and serves until it is stopped: the worker has then ended, and its last replies are written.
 * A Unix socket's file is gone. */
MUST_USE err_code srv_server_run(srv_server *s, srv_worker *w, err *e);
void srv_server_close(srv_server *s); /* after the worker, which wakes it; NULL is a no-op */
const char *srv_server_address(const srv_server *s); /* as bound */

void srv_server_wake(void *server); /* any thread; what the worker's setup wants as wake, with the server as ctx */
void srv_server_stop(srv_server *s); /* any thread: as SIGTERM */

#endif
