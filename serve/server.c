#include "serve/server.h"

#include "base/clock.h"
#include "base/mem.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <unistd.h>
#include <uv.h>

enum {
    BACKLOG = 64,
    CONNECTIONS_MAX = 64,
    STAGING_BYTES = 64 << 10,
    QUEUED_MAX = 64,              /* requests of one connection with the worker; then it is not read from */
    QUEUED_BYTES_MAX = SRV_FRAME_MAX_BYTES,
    REPLIES_BYTES_MAX = 1 << 20,  /* not read by the client; thousands of replies */
    KEEPALIVE_S = 15,
    TICK_MS = 50,                 /* how late a deadline may be seen */
};
#define LINGER_NS 1000000000ull   /* for a closed connection's last reply to be read */
#define UNACKED_MS 30000          /* TCP: a peer that takes nothing for so long is gone */

typedef struct connection {
    union { uv_handle_t handle; uv_stream_t stream; uv_pipe_t pipe; uv_tcp_t tcp; } uv;
    srv_server *server;
    struct connection *next;
    uint64_t id, deadline_ns; /* 0: none */
    srv_tls *tls;             /* NULL: plain */
    srv_buf plain;            /* of the last read, decrypted */
    uint8_t header[SRV_FRAME_HEADER_BYTES];
    uint32_t header_fill, body_bytes, body_fill;
    uint8_t *body;            /* NULL: the header is not whole */
    int32_t queued;
    uint64_t queued_bytes;
    bool paused;              /* not read from until the worker has caught up */
    bool ending;              /* its last reply is on the way; what comes in is dropped */
    bool closing;             /* uv_close was called */
} connection;

typedef struct counts {
    uint64_t accepted, turned_away, bad_messages, timeouts, slow, broken, unsent;
} counts;

struct srv_server {
    uv_loop_t loop;
    union { uv_handle_t handle; uv_stream_t stream; uv_pipe_t pipe; uv_tcp_t tcp; } listener;
    uv_async_t async;
    uv_timer_t tick;
    uv_signal_t term, intr;
    srv_address address;
    srv_key *key;
    uint64_t frame_timeout_ns;
    bool signals, running, stopping, finishing;
    atomic_bool stop_wanted;
    srv_worker *worker;
    connection *connections;
    int32_t n_connections;
    uint64_t last_id;
    counts counts;
    char staging[STAGING_BYTES]; /* what is read is used before the next read */
};

typedef struct write_job {
    uv_write_t uv;
    srv_buf buf;
} write_job;

static void close_connection(connection *c);
static void read_on(connection *c);

/* ---- deadlines ---- */

static void on_tick(uv_timer_t *t);

static void set_deadline(connection *c, uint64_t after_ns)
{
    c->deadline_ns = clock_ns() + after_ns;
    if (!uv_is_active((uv_handle_t *)&c->server->tick)) uv_timer_start(&c->server->tick, on_tick, TICK_MS, TICK_MS);
}

/* ---- out ---- */

static void on_written(uv_write_t *uv, int status)
{
    write_job *job = (write_job *)uv;
    connection *c = uv->handle->data;
    srv_buf_fini(&job->buf);
    free(job);
    if (status < 0 && !c->closing) {
        c->server->counts.broken++;
        close_connection(c);
    }
}

/* Takes *buf, ready for the wire. */
static void send_wire(connection *c, srv_buf *buf)
{
    write_job *job = buf->bytes ? mem_alloc(1, sizeof *job) : NULL;
    if (!job) {
        bool lost = buf->bytes > 0;
        srv_buf_fini(buf);
        if (lost) close_connection(c);
        return;
    }
    job->buf = *buf;
    *buf = (srv_buf){ 0 };
    uv_buf_t part = uv_buf_init((char *)job->buf.data, (unsigned)job->buf.bytes);
    if (uv_write(&job->uv, &c->uv.stream, &part, 1, on_written) != 0) {
        srv_buf_fini(&job->buf);
        free(job);
        close_connection(c);
    } else if (uv_stream_get_write_queue_size(&c->uv.stream) > REPLIES_BYTES_MAX) {
        c->server->counts.slow++;
        close_connection(c);
    }
}

static void send_reply(connection *c, const srv_reply *reply)
{
    srv_buf plain = { 0 }, wire = { 0 };
    err e;
    if (c->closing) return;
    err_code rc = srv_encode_reply(reply, &plain, &e);
    if (rc == ERR_OK && c->tls) {
        rc = srv_tls_send(c->tls, plain.data, plain.bytes, &wire, &e);
        srv_buf_fini(&plain);
        plain = wire;
    }
    if (rc == ERR_OK) send_wire(c, &plain);
    else {
        srv_buf_fini(&plain);
        c->server->counts.broken++;
        close_connection(c);
    }
}

static void on_shut_down(uv_shutdown_t *uv, int status)
{
    connection *c = uv->handle->data;
    (void)status;
    free(uv);
    if (c->server->finishing) close_connection(c);
}

/* Writes what is under way, then says that there is no more. The peer is still read from for a while: closing a socket with
 * unread bytes would throw away what was sent, and the peer would never see why. */
static void end_connection(connection *c)
{
    if (c->ending || c->closing) return;
    c->ending = true;
    srv_worker_gone(c->server->worker, c->id);
    set_deadline(c, LINGER_NS);
    read_on(c);
    if (c->tls) {
        srv_buf wire = { 0 };
        srv_tls_end(c->tls, &wire);
        send_wire(c, &wire);
        if (c->closing) return;
    }
    uv_shutdown_t *uv = mem_alloc(1, sizeof *uv);
    if (uv && uv_shutdown(uv, &c->uv.stream, on_shut_down) == 0) return;
    free(uv);
    close_connection(c);
}

static void refuse_connection(connection *c, uint64_t id, srv_op op, const char *why)
{
    srv_reply reply = { .op = op, .id = id, .refused_slot = -1 };
    srv_refuse(&reply, SRV_REFUSED_MESSAGE, -1, "%s", why);
    send_reply(c, &reply);
    end_connection(c);
}

/* ---- the end of a connection ---- */

static void on_closed(uv_handle_t *h)
{
    connection *c = h->data, **at = &c->server->connections;
    srv_server *s = c->server;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    s->n_connections--;
    srv_tls_close(c->tls);
    srv_buf_fini(&c->plain);
    free(c->body);
    free(c);
    if (s->finishing && s->n_connections == 0) uv_stop(&s->loop);
}

static void close_connection(connection *c)
{
    if (c->closing) return;
    c->closing = true;
    c->deadline_ns = 0;
    if (!c->ending) srv_worker_gone(c->server->worker, c->id);
    uv_close(&c->uv.handle, on_closed);
}

static void on_tick(uv_timer_t *t)
{
    srv_server *s = t->data;
    uint64_t now = clock_ns();
    bool more = false;
    for (connection *c = s->connections; c; c = c->next) {
        more |= c->deadline_ns != 0;
        if (!c->deadline_ns || now < c->deadline_ns) continue;
        if (c->ending) close_connection(c);
        else {
            s->counts.timeouts++;
            if (c->tls && !srv_tls_ready(c->tls)) close_connection(c);
            else refuse_connection(c, 0, SRV_OP_COUNT, "a frame was begun and not finished in time");
        }
    }
    if (!more) uv_timer_stop(&s->tick);
}

/* ---- in ---- */

static json_t *server_status(const srv_server *s)
{
    json_t *j = srv_worker_status(s->worker);
    json_t *mine = json_pack("{s:i, s:s, s:s, s:i, s:{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}}", "schema", 1, "version",
                             SPARKTAPE_VERSION, "address", s->address.text, "pid", (int)getpid(), "connections",
                             "open", (int)s->n_connections, "accepted", (json_int_t)s->counts.accepted,
                             "turned_away", (json_int_t)s->counts.turned_away,
                             "bad_messages", (json_int_t)s->counts.bad_messages,
                             "timeouts", (json_int_t)s->counts.timeouts, "slow", (json_int_t)s->counts.slow,
                             "broken", (json_int_t)s->counts.broken, "unsent_replies", (json_int_t)s->counts.unsent);
    if (j && mine && json_object_update(mine, j) == 0) {
        json_decref(j);
        return mine;
    }
    json_decref(j);
    json_decref(mine);
    return NULL;
}

static void answer_status(connection *c, const srv_request *r)
{
    srv_reply reply = { .op = SRV_STATUS, .id = r->id, .refused_slot = -1 };
    reply.u.status = server_status(c->server);
    if (reply.u.status) send_reply(c, &reply);
    else close_connection(c);
    srv_reply_fini(&reply);
}

/* Rows at an odd address move down by one byte, over the last byte of their own length: no copy is made. */
static void align_taps(srv_insert *in)
{
    if ((uintptr_t)in->taps % sizeof(bf16) == 0) return;
    uint8_t *at = (uint8_t *)(uintptr_t)in->taps;
    memmove(at - 1, at, in->taps_bytes);
    in->taps = (const bf16 *)(uintptr_t)(at - 1);
}

/* A whole frame: c->body goes to the worker or is freed. */
static void take_frame(connection *c)
{
    srv_server *s = c->server;
    srv_request r = { 0 };
    err e = { 0 };
    uint8_t *frame = c->body;
    uint32_t bytes = c->body_bytes;
    c->body = NULL;
    c->header_fill = c->body_fill = 0;
    c->deadline_ns = 0;
    if (srv_decode_request(frame, bytes, &r, &e) != ERR_OK) {
        s->counts.bad_messages++;
        free(frame);
        refuse_connection(c, r.id, r.op, e.msg);
        return;
    }
    if (r.op == SRV_INSERT) align_taps(&r.u.insert);
    else { /* nothing else points into it */
        free(frame);
        frame = NULL;
        bytes = 0;
    }
    if (r.op == SRV_STATUS) {
        answer_status(c, &r);
        return;
    }
    srv_work *work = mem_alloc(1, sizeof *work);
    if (!work) {
        free(frame);
        close_connection(c);
        return;
    }
    *work = (srv_work){ .request = r, .connection = c->id, .received_ns = clock_ns(), .frame = frame,
                        .frame_bytes = bytes };
    c->queued++;
    c->queued_bytes += bytes;
    srv_worker_put(s->worker, work);
}

static void begin_body(connection *c)
{
    err e;
    if (srv_frame_bytes(c->header, &c->body_bytes, &e) != ERR_OK) {
        c->server->counts.bad_messages++;
        refuse_connection(c, 0, SRV_OP_COUNT, e.msg);
        return;
    }
    c->body = malloc(c->body_bytes); /* not zeroed: only what arrives takes memory */
    if (!c->body) close_connection(c);
}

/* Bytes of the protocol, cut anywhere. */
static void feed(connection *c, const uint8_t *data, size_t bytes)
{
    while (bytes > 0 && !c->ending && !c->closing) {
        uint8_t *to = c->body ? c->body + c->body_fill : c->header + c->header_fill;
        uint32_t room = c->body ? c->body_bytes - c->body_fill : SRV_FRAME_HEADER_BYTES - c->header_fill;
        uint32_t n = bytes < room ? (uint32_t)bytes : room;
        memcpy(to, data, n);
        data += n;
        bytes -= n;
        if (c->body) c->body_fill += n;
        else c->header_fill += n;
        if (c->body && c->body_fill == c->body_bytes) take_frame(c);
        else if (!c->body && c->header_fill == SRV_FRAME_HEADER_BYTES) begin_body(c);
    }
}

static void feed_tls(connection *c, const uint8_t *data, size_t bytes)
{
    srv_buf wire = { 0 };
    bool ended = false;
    err e;
    c->plain.bytes = 0;
    err_code rc = srv_tls_receive(c->tls, data, bytes, &c->plain, &wire, &ended, &e);
    send_wire(c, &wire);
    feed(c, c->plain.data, c->plain.bytes);
    if (ended) close_connection(c);
    else if (rc != ERR_OK && !c->ending && !c->closing) { /* what TLS says of it is on the way */
        c->server->counts.broken++;
        end_connection(c);
    }
}

/* The rest of a long body is read where it belongs; everything else goes through the staging buffer. */
static bool reads_into_body(const connection *c)
{
    return !c->tls && !c->ending && c->body && c->body_bytes - c->body_fill >= STAGING_BYTES;
}

static void on_room(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    connection *c = h->data;
    (void)suggested;
    *buf = reads_into_body(c) ? uv_buf_init((char *)c->body + c->body_fill, c->body_bytes - c->body_fill)
                              : uv_buf_init(c->server->staging, STAGING_BYTES);
}

/* After input: pauses a connection that is ahead of the worker, times a frame that is begun. */
static void settle(connection *c)
{
    if (c->ending || c->closing) return;
    bool full = c->queued >= QUEUED_MAX || c->queued_bytes >= QUEUED_BYTES_MAX;
    bool begun = c->header_fill > 0 || (c->tls && !srv_tls_ready(c->tls));
    if (full && !c->paused) {
        c->paused = true;
        uv_read_stop(&c->uv.stream);
    }
    if (!begun || c->paused) c->deadline_ns = 0;
    else if (!c->deadline_ns) set_deadline(c, c->server->frame_timeout_ns);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    connection *c = stream->data;
    if (n == 0) return;
    if (n < 0) {
        c->server->counts.broken += n != UV_EOF && !c->ending;
        close_connection(c);
        return;
    }
    if (c->ending) return;
    if (buf->base != c->server->staging) {
        c->body_fill += (uint32_t)n;
        if (c->body_fill == c->body_bytes) take_frame(c);
    } else if (c->tls) feed_tls(c, (const uint8_t *)buf->base, (size_t)n);
    else feed(c, (const uint8_t *)buf->base, (size_t)n);
    settle(c);
}

static void read_on(connection *c)
{
    if (!c->paused) return;
    c->paused = false;
    uv_read_start(&c->uv.stream, on_room, on_read);
}

/* ---- connections ---- */

static int init_stream(srv_server *s, void *storage)
{
    return s->address.unix_socket ? uv_pipe_init(&s->loop, storage, 0) : uv_tcp_init(&s->loop, storage);
}

/* A peer that vanished is noticed: keepalive while it owes us, a limit on what it does not acknowledge. */
static void set_tcp(connection *c)
{
    int fd, ms = UNACKED_MS;
    uv_tcp_nodelay(&c->uv.tcp, 1);
    uv_tcp_keepalive(&c->uv.tcp, 1, KEEPALIVE_S);
    if (uv_fileno(&c->uv.handle, &fd) == 0) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

static void on_connection(uv_stream_t *listener, int status)
{
    srv_server *s = listener->data;
    connection *c = status == 0 ? mem_alloc(1, sizeof *c) : NULL;
    err e;
    if (!c) return;
    if (init_stream(s, &c->uv) != 0) {
        free(c);
        return;
    }
    c->uv.handle.data = c;
    c->server = s;
    c->id = ++s->last_id;
    c->next = s->connections;
    s->connections = c;
    s->n_connections++;
    if (uv_accept(listener, &c->uv.stream) != 0) {
        close_connection(c);
    } else if (s->n_connections > CONNECTIONS_MAX) {
        s->counts.turned_away++;
        close_connection(c);
    } else if ((s->key && srv_tls_open(s->key, &c->tls, &e) != ERR_OK) ||
               uv_read_start(&c->uv.stream, on_room, on_read) != 0) {
        s->counts.broken++;
        close_connection(c);
    } else {
        s->counts.accepted++;
        if (!s->address.unix_socket) set_tcp(c);
        settle(c);
    }
}

static connection *find(const srv_server *s, uint64_t id)
{
    for (connection *c = s->connections; c; c = c->next)
        if (c->id == id) return c;
    return NULL;
}

static void deliver(srv_server *s, srv_work *work)
{
    connection *c = find(s, work->connection);
    if (!c || c->closing || c->ending) {
        s->counts.unsent++;
        return;
    }
    c->queued--;
    c->queued_bytes -= work->frame_bytes;
    send_reply(c, &work->reply);
    if (c->closing || !c->paused || c->queued >= QUEUED_MAX || c->queued_bytes >= QUEUED_BYTES_MAX) return;
    read_on(c);
    settle(c);
}

/* ---- the end ---- */

static void begin_stop(srv_server *s)
{
    if (s->stopping) return;
    s->stopping = true;
    uv_close(&s->listener.handle, NULL);
    srv_address_remove(&s->address);
    uv_signal_stop(&s->term); /* the next one finds the default: it kills */
    uv_signal_stop(&s->intr);
    srv_worker_stop(s->worker);
}

static void finish(srv_server *s)
{
    s->finishing = true;
    if (s->n_connections == 0) uv_stop(&s->loop);
    for (connection *c = s->connections; c; c = c->next) {
        if (c->ending) close_connection(c);
        else end_connection(c);
    }
}

static void on_wake(uv_async_t *a)
{
    srv_server *s = a->data;
    if (!s->worker) return;
    bool ended = srv_worker_ended(s->worker); /* asked first: nothing is handed over after it */
    for (srv_work *x = srv_worker_take(s->worker), *next; x; x = next) {
        next = x->next;
        deliver(s, x);
        srv_work_free(x);
    }
    if (atomic_load(&s->stop_wanted)) begin_stop(s);
    if (ended && !s->finishing) finish(s);
}

static void on_signal(uv_signal_t *sig, int number)
{
    (void)number;
    begin_stop(sig->data);
}

const char *srv_server_address(const srv_server *s) { return s->address.text; }

void srv_server_wake(void *server) { uv_async_send(&((srv_server *)server)->async); }

void srv_server_stop(srv_server *s)
{
    atomic_store(&s->stop_wanted, true);
    srv_server_wake(s);
}

/* ---- open, run, close ---- */

static int open_handles(srv_server *s, int fd)
{
    int rc = uv_async_init(&s->loop, &s->async, on_wake);
    if (rc == 0) rc = uv_timer_init(&s->loop, &s->tick);
    if (rc == 0) rc = uv_signal_init(&s->loop, &s->term);
    if (rc == 0) rc = uv_signal_init(&s->loop, &s->intr);
    if (rc == 0) rc = init_stream(s, &s->listener);
    if (rc == 0) rc = s->address.unix_socket ? uv_pipe_open(&s->listener.pipe, fd) : uv_tcp_open(&s->listener.tcp, fd);
    if (rc != 0) close(fd);
    s->async.data = s->tick.data = s->term.data = s->intr.data = s->listener.handle.data = s;
    return rc;
}

err_code srv_server_open(const srv_server_setup *setup, srv_server **out, err *e)
{
    *out = NULL;
    srv_server *s = mem_alloc(1, sizeof *s);
    if (!s || uv_loop_init(&s->loop) != 0) {
        free(s);
        close(setup->fd);
        return err_set(e, ERR_NOMEM, "server: no event loop");
    }
    s->address = *setup->address;
    s->key = setup->key;
    s->frame_timeout_ns = setup->frame_timeout_ns;
    s->signals = setup->signals;
    int rc = open_handles(s, setup->fd);
    if (rc != 0) {
        err_set(e, ERR_SYSTEM, "server: %s: %s", s->address.text, uv_strerror(rc));
        srv_server_close(s);
        return ERR_SYSTEM;
    }
    *out = s;
    return ERR_OK;
}

err_code srv_server_start(srv_server *s, srv_worker *w, err *e)
{
    s->worker = w;
    int rc = uv_listen(&s->listener.stream, BACKLOG, on_connection);
    if (rc == 0 && s->signals) rc = uv_signal_start(&s->term, on_signal, SIGTERM);
    if (rc == 0 && s->signals) rc = uv_signal_start(&s->intr, on_signal, SIGINT);
    if (rc != 0) return err_set(e, ERR_SYSTEM, "server: %s: %s", s->address.text, uv_strerror(rc));
    srv_server_wake(s); /* a stop may have come before */
    return ERR_OK;
}

err_code srv_server_run(srv_server *s, srv_worker *w, err *e)
{
    if (!s->worker) TRY(srv_server_start(s, w, e));
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return ERR_OK;
}

static void close_handle(uv_handle_t *h, void *ctx)
{
    (void)ctx;
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

void srv_server_close(srv_server *s)
{
    if (!s) return;
    uv_walk(&s->loop, close_handle, NULL);
    while (uv_loop_close(&s->loop) == UV_EBUSY) uv_run(&s->loop, UV_RUN_DEFAULT);
    if (!s->stopping) srv_address_remove(&s->address);
    free(s);
}
