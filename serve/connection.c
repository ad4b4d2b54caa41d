#include "serve/server_state.h"

#include "base/clock.h"
#include "base/mem.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

enum {
    QUEUED_MAX = 64,              /* requests of one connection with the worker; then it is not read from */
    QUEUED_BYTES_MAX = SRV_FRAME_MAX_BYTES,
    REPLIES_BYTES_MAX = 1 << 20,  /* not read by the client; thousands of replies */
    KEEPALIVE_S = 15,
    TICK_MS = 50,                 /* how late a deadline may be seen */
};
#define LINGER_NS 1000000000ull /* for a closed connection's last reply to be read */
#define UNACKED_MS 30000          /* TCP: a peer that takes nothing for so long is gone */

typedef struct write_job {
    uv_write_t uv;
    srv_buf buf;
} write_job;

static void read_on(srv_connection *c);

/* ---- deadlines ---- */

void srv_tick_begin(srv_server *s)
{
    if (!uv_is_active((uv_handle_t *)&s->tick)) uv_timer_start(&s->tick, srv_connection_tick, TICK_MS, TICK_MS);
}

static void set_deadline(srv_connection *c, uint64_t after_ns)
{
    c->deadline_ns = clock_ns() + after_ns;
    srv_tick_begin(c->server);
}

/* ---- out ---- */

static void on_written(uv_write_t *uv, int status)
{
    write_job *job = (write_job *)uv;
    srv_connection *c = uv->handle->data;
    srv_buf_fini(&job->buf);
    free(job);
    if (status < 0 && !c->closing) {
        c->server->counts.broken++;
        srv_connection_close(c);
    }
}

/* Takes *buf, ready for the wire. */
static void send_wire(srv_connection *c, srv_buf *buf)
{
    write_job *job = buf->bytes ? mem_alloc(1, sizeof *job) : NULL;
    if (!job) {
        bool lost = buf->bytes > 0;
        srv_buf_fini(buf);
        if (lost) srv_connection_close(c);
        return;
    }
    job->buf = *buf;
    *buf = (srv_buf){ 0 };
    uv_buf_t part = uv_buf_init((char *)job->buf.data, (unsigned)job->buf.bytes);
    if (uv_write(&job->uv, &c->uv.stream, &part, 1, on_written) != 0) {
        srv_buf_fini(&job->buf);
        free(job);
        srv_connection_close(c);
    } else if (uv_stream_get_write_queue_size(&c->uv.stream) > REPLIES_BYTES_MAX) {
        c->server->counts.slow++;
        srv_connection_close(c);
    }
}

static void send_reply(srv_connection *c, const srv_reply *reply)
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
        srv_connection_close(c);
    }
}

static void on_shut_down(uv_shutdown_t *uv, int status)
{
    srv_connection *c = uv->handle->data;
    (void)status;
    free(uv);
    if (c->server->finishing) srv_connection_close(c);
}

/* Writes what is under way, then says that there is no more. The peer is still read from for a while: closing a socket with
 * unread bytes would throw away what was sent, and the peer would never see why. */
void srv_connection_end(srv_connection *c)
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
    srv_connection_close(c);
}

static void refuse_connection(srv_connection *c, uint64_t id, srv_op op, const char *why)
{
    srv_reply reply = { .op = op, .id = id, .refused_slot = -1 };
    srv_refuse(&reply, SRV_REFUSED_MESSAGE, -1, "%s", why);
    c->server->counts.refused++;
    send_reply(c, &reply);
    srv_connection_end(c);
}

/* ---- the end of a connection ---- */

static void on_closed(uv_handle_t *h)
{
    srv_connection *c = h->data, **at = &c->server->connections;
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

void srv_connection_close(srv_connection *c)
{
    if (c->closing) return;
    c->closing = true;
    c->deadline_ns = 0;
    if (!c->ending) srv_worker_gone(c->server->worker, c->id);
    uv_close(&c->uv.handle, on_closed);
}

void srv_connection_tick(uv_timer_t *t)
{
    srv_server *s = t->data;
    uint64_t now = clock_ns();
    if (s->deaf && !s->stopping) srv_server_accept(s);
    bool more = s->deaf && !s->stopping;
    for (srv_connection *c = s->connections; c; c = c->next) {
        more |= c->deadline_ns != 0;
        if (!c->deadline_ns || now < c->deadline_ns) continue;
        if (c->ending) srv_connection_close(c);
        else {
            s->counts.timeouts++;
            if (c->tls && !srv_tls_ready(c->tls)) srv_connection_close(c);
            else if (c->header_fill > 0)
                refuse_connection(c, 0, SRV_OP_COUNT, "a frame was begun and not finished in time");
            else refuse_connection(c, 0, SRV_OP_COUNT, "no session, and no request in time");
        }
    }
    if (!more) uv_timer_stop(&s->tick);
}

/* ---- in ---- */

static void answer_status(srv_connection *c, const srv_request *r)
{
    srv_reply reply = { .op = SRV_STATUS, .id = r->id, .refused_slot = -1 };
    reply.u.status = srv_server_status(c->server);
    if (reply.u.status) send_reply(c, &reply);
    else srv_connection_close(c);
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
static void take_frame(srv_connection *c)
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
        srv_connection_close(c);
        return;
    }
    *work = (srv_work){ .request = r, .connection = c->id, .received_ns = clock_ns(), .frame = frame,
                        .frame_bytes = bytes };
    c->queued++;
    c->queued_bytes += bytes;
    srv_server_put(s, work);
}

static void begin_body(srv_connection *c)
{
    err e;
    if (srv_frame_bytes(c->header, &c->body_bytes, &e) != ERR_OK) {
        c->server->counts.bad_messages++;
        refuse_connection(c, 0, SRV_OP_COUNT, e.msg);
        return;
    }
    c->body = malloc(c->body_bytes); /* not zeroed: only what arrives takes memory */
    if (!c->body) srv_connection_close(c);
}

/* Bytes of the protocol, cut anywhere. */
static void feed(srv_connection *c, const uint8_t *data, size_t bytes)
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

static void feed_tls(srv_connection *c, const uint8_t *data, size_t bytes)
{
    srv_buf wire = { 0 };
    bool ended = false;
    err e;
    c->plain.bytes = 0;
    err_code rc = srv_tls_receive(c->tls, data, bytes, &c->plain, &wire, &ended, &e);
    send_wire(c, &wire);
    feed(c, c->plain.data, c->plain.bytes);
    if (ended) srv_connection_close(c);
    else if (rc != ERR_OK && !c->ending && !c->closing) { /* what TLS says of it is on the way */
        c->server->counts.broken++;
        srv_connection_end(c);
    }
}

/* The rest of a long body is read where it belongs; everything else goes through the staging buffer. */
static bool reads_into_body(const srv_connection *c)
{
    return !c->tls && !c->ending && c->body && c->body_bytes - c->body_fill >= SRV_STAGING_BYTES;
}

static void on_room(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    srv_connection *c = h->data;
    (void)suggested;
    *buf = reads_into_body(c) ? uv_buf_init((char *)c->body + c->body_fill, c->body_bytes - c->body_fill)
                              : uv_buf_init(c->server->staging, SRV_STAGING_BYTES);
}

/* After input and replies: pauses a connection that is ahead of the worker, and times what the client owes: the rest of a
 * frame, or without a session any word at all. Else those who say nothing could hold all connections there are. */
static void settle(srv_connection *c)
{
    if (c->ending || c->closing) return;
    bool full = c->queued >= QUEUED_MAX || c->queued_bytes >= QUEUED_BYTES_MAX;
    bool owes = c->header_fill > 0 || (c->tls && !srv_tls_ready(c->tls)) || (!c->client[0] && c->queued == 0);
    if (full && !c->paused) {
        c->paused = true;
        uv_read_stop(&c->uv.stream);
    }
    if (!owes || c->paused) c->deadline_ns = 0;
    else if (!c->deadline_ns) set_deadline(c, c->server->frame_timeout_ns);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    srv_connection *c = stream->data;
    if (n == 0) return;
    if (n < 0) {
        c->server->counts.broken += n != UV_EOF && !c->ending;
        srv_connection_close(c);
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

static void read_on(srv_connection *c)
{
    if (!c->paused) return;
    c->paused = false;
    uv_read_start(&c->uv.stream, on_room, on_read);
}

/* A peer that vanished is noticed: keepalive while it owes us, a limit on what it does not acknowledge. */
static void set_tcp(srv_connection *c)
{
    int fd, ms = UNACKED_MS;
    uv_tcp_nodelay(&c->uv.tcp, 1);
    uv_tcp_keepalive(&c->uv.tcp, 1, KEEPALIVE_S);
    if (uv_fileno(&c->uv.handle, &fd) == 0) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

void srv_connection_start(srv_connection *c)
{
    srv_server *s = c->server;
    err e;
    if ((s->key && srv_tls_open(s->key, &c->tls, &e) != ERR_OK) || uv_read_start(&c->uv.stream, on_room, on_read) != 0) {
        s->counts.broken++;
        srv_connection_close(c);
        return;
    }
    s->counts.accepted++;
    if (!s->address.unix_socket) set_tcp(c);
    settle(c);
}

void srv_connection_reply(srv_connection *c, const srv_reply *reply, uint64_t frame_bytes)
{
    c->queued--;
    c->queued_bytes -= frame_bytes;
    send_reply(c, reply);
    if (c->queued < QUEUED_MAX && c->queued_bytes < QUEUED_BYTES_MAX && !c->closing) read_on(c);
    settle(c);
}

void srv_connection_forget(srv_connection *c)
{
    c->client[0] = 0;
    settle(c);
}
