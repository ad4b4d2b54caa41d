/* The server's insides, for its own files: server.c the listener, the worker's replies and the end, connection.c the bytes
 * of one connection. All on the loop's thread. */
#ifndef SERVE_SERVER_STATE_H
#define SERVE_SERVER_STATE_H

#include "serve/early.h"
#include "serve/server.h"

#include <stdatomic.h>
#include <uv.h>

enum { SRV_STAGING_BYTES = 64 << 10 };

typedef struct srv_connection {
    union { uv_handle_t handle; uv_stream_t stream; uv_pipe_t pipe; uv_tcp_t tcp; } uv;
    srv_server *server;
    struct srv_connection *next;
    uint64_t id, deadline_ns; /* deadline 0: none */
    srv_tls *tls;             /* NULL: plain */
    srv_buf plain;            /* of the last read, decrypted */
    uint8_t header[SRV_FRAME_HEADER_BYTES];
    uint32_t header_fill, body_bytes, body_fill;
    uint8_t *body;            /* NULL: the header is not whole */
    int32_t queued;           /* requests with the worker */
    uint64_t queued_bytes;
    char client[SRV_NAME_BYTES]; /* of its session, as far as replies told; "": it has none */
    bool paused;              /* not read from until the worker has caught up */
    bool ending;              /* its last reply is on the way; what comes in is dropped */
    bool closing;             /* uv_close was called */
} srv_connection;

typedef struct srv_connection_counts {
    uint64_t accepted, turned_away, bad_messages, timeouts, slow, broken, unsent;
    uint64_t refused; /* with "message" */
} srv_connection_counts;

struct srv_server {
    uv_loop_t loop;
    union { uv_handle_t handle; uv_stream_t stream; uv_pipe_t pipe; uv_tcp_t tcp; } listener;
    uv_async_t async;
    uv_timer_t tick;
    uv_idle_t awake;          /* while it runs the loop asks for events and never sleeps */
    uv_signal_t signal[SRV_SIGNALS];
    srv_address address;
    srv_key *key;
    uint64_t frame_timeout_ns;
    uint64_t awake_until_ns;
    int32_t n_given;          /* requests that the worker has */
    bool signals, stopping, finishing;
    bool deaf;                /* a connection could not be taken, for want of memory: libuv listens no more until it is */
    atomic_bool stop_wanted;
    srv_worker *worker;
    srv_connection *connections;
    int32_t n_connections;
    uint64_t last_id;
    srv_connection_counts counts;
    char staging[SRV_STAGING_BYTES]; /* what is read is used before the next read */
};

json_t *srv_server_status(const srv_server *s); /* new reference; NULL: no memory */
/* Hands work to the worker. */
void srv_server_put(srv_server *s, srv_work *work);

/* c is in the list, its handle open and accepted: TLS where there is a key, and bytes may come. */
void srv_connection_start(srv_connection *c);
/* A reply of the worker to a request of `frame_bytes`, which c no longer waits for. */
void srv_connection_reply(srv_connection *c, const srv_reply *reply, uint64_t frame_bytes);
/* Writes what is under way, then closes. */
void srv_connection_end(srv_connection *c);
void srv_connection_close(srv_connection *c); /* at once; c is freed by the loop */
/* Its client has no session (any more): it may be silent only for a while. */
void srv_connection_forget(srv_connection *c);
void srv_connection_tick(uv_timer_t *t); /* closes those whose deadline is over; takes what could not be taken */
void srv_tick_begin(srv_server *s);      /* from now on, until there is nothing to wait for */
void srv_server_accept(srv_server *s);   /* takes the connection that waits */

#endif
