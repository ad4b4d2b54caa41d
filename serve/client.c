#include "serve/client.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/message_fields.h"
#include "serve/tls.h"

enum { READ_BYTES = 65536 };
static const char CLOSED[] = "the worker closed the connection";

struct srv_client {
    int fd;
    srv_key *key; /* NULL: plain */
    srv_tls *tls;
    uint64_t timeout_ns, last_id;
    uint64_t awake_ns, awake_until_ns; /* see srv_client_stay_awake */
    srv_buf in; /* plain text that came; the first `taken` bytes of it have been handed out */
    size_t taken;
    srv_buf out, message; /* bytes of the wire to send; a message before it is one of them */
    size_t sent;          /* of out */
    bool ended;           /* nothing more comes */
    bool known;           /* it replied, or holds the key: it is a worker */
    char name[sizeof ((srv_address *)0)->text];
};

static err_code broken(const srv_client *c, const char *what, err *e)
{
    return err_set(e, ERR_IO, "%s: %s", c->name, what);
}

/* e says what is wrong with a reply. Where another protocol's words came before any reply, they say more. */
static err_code no_reply(const srv_client *c, err_code rc, err *e)
{
    char words[24] = "";
    size_t n = 0;
    while (n < c->in.bytes && n + 1 < sizeof words && srv_printable((char)c->in.data[n])) n++;
    if (c->known || n < SRV_FRAME_HEADER_BYTES) return err_wrap(e, "%s: reply", c->name);
    memcpy(words, c->in.data, n);
    return err_set(e, rc, "%s: found '%s', wanted a sparktape worker", c->name, words);
}

static err_code timed_out(const srv_client *c, err *e)
{
    bool silent = !c->known && c->in.bytes == 0;
    return err_set(e, ERR_IO, "%s: timed out after %g s%s", c->name, (double)c->timeout_ns * 1e-9,
                   silent ? ": found silence, wanted a sparktape worker" : "");
}

/* The connection is over, and no whole reply is left. */
static err_code closed(const srv_client *c, err *e)
{
    enum { ALERT = 0x15, MAJOR = 3 }; /* how a TLS record begins */
    size_t left = c->in.bytes - c->taken;
    if (!c->known && left >= 2 && c->in.data[0] == ALERT && c->in.data[1] == MAJOR)
        return err_set(e, ERR_INPUT, "%s: found TLS, wanted a plain connection, or a key for it", c->name);
    if (left) return broken(c, "the worker closed the connection inside a reply", e);
    if (c->known) return broken(c, CLOSED, e);
    return broken(c, "closed without a word, wanted a sparktape worker (so does one with a --tls-key, or full)", e);
}

/* Takes in what has come. */
static err_code take(srv_client *c, err *e)
{
    uint8_t data[READ_BYTES];
    ssize_t n = recv(c->fd, data, sizeof data, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return ERR_OK;
    if (n <= 0) {
        c->ended = true;
        return n == 0 || errno == ECONNRESET ? ERR_OK : broken(c, strerror(errno), e);
    }
    if (!c->tls) return srv_buf_append(&c->in, data, (size_t)n, e);
    bool ended;
    err_code rc = srv_tls_receive(c->tls, data, (size_t)n, &c->in, &c->out, &ended, e);
    c->ended = c->ended || ended || rc != ERR_OK;
    return rc == ERR_OK ? rc : err_wrap(e, "%s", c->name);
}

/* One wait, and then whatever can be done: bytes in, bytes out. ERR_IO also when the deadline is over. */
static err_code pump(srv_client *c, uint64_t deadline_ns, err *e)
{
    bool waits = c->sent < c->out.bytes;
    struct pollfd p = { .fd = c->fd, .events = (short)((c->ended ? 0 : POLLIN) | (waits ? POLLOUT : 0)) };
    uint64_t now = clock_ns();
    if (now >= deadline_ns) return timed_out(c, e);
    uint64_t left_ms = now < c->awake_until_ns ? 0 : (deadline_ns - now) / 1000000 + 1;
    int rc = poll(&p, 1, left_ms < 1000000 ? (int)left_ms : 1000000);
    if (rc < 0 && errno != EINTR) return broken(c, strerror(errno), e);
    if (rc <= 0) return ERR_OK;
    if (!c->ended && (p.revents & (POLLIN | POLLHUP | POLLERR))) TRY(take(c, e));
    if (waits && (p.revents & (POLLOUT | POLLHUP | POLLERR))) {
        ssize_t n = send(c->fd, c->out.data + c->sent, c->out.bytes - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) return broken(c, CLOSED, e);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return broken(c, strerror(errno), e);
        if (n > 0) c->sent += (size_t)n;
    }
    return ERR_OK;
}

/* Sends all that waits. What cannot be sent is dropped: the connection is broken. */
static err_code flush(srv_client *c, uint64_t deadline_ns, err *e)
{
    err_code rc = ERR_OK;
    while (rc == ERR_OK && c->sent < c->out.bytes) rc = pump(c, deadline_ns, e);
    c->sent = c->out.bytes = 0;
    return rc;
}

err_code srv_client_open(const srv_address *a, const char *key_file, uint64_t timeout_ns, srv_client **out, err *e)
{
    uint64_t deadline_ns = clock_ns() + timeout_ns;
    err_code rc;
    *out = NULL;
    srv_client *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "%s: no memory", a->text);
    c->fd = -1;
    c->timeout_ns = timeout_ns;
    memcpy(c->name, a->text, sizeof c->name);
    if (key_file && (rc = srv_key_open(key_file, false, &c->key, e)) != ERR_OK) goto fail;
    if ((rc = srv_connect(a, deadline_ns, &c->fd, e)) != ERR_OK) goto fail;
    if (key_file && (rc = srv_tls_open(c->key, &c->tls, e)) != ERR_OK) goto fail;
    if (c->tls && (rc = srv_tls_send(c->tls, NULL, 0, &c->out, e)) != ERR_OK) goto fail;
    while (c->tls && !srv_tls_ready(c->tls)) {
        rc = c->ended ? broken(c, CLOSED, e) : pump(c, deadline_ns, e);
        if (rc != ERR_OK) goto fail;
    }
    c->known = c->tls != NULL;
    if ((rc = flush(c, deadline_ns, e)) != ERR_OK) goto fail; /* the handshake's last bytes */
    *out = c;
    return ERR_OK;
fail:
    srv_client_close(c);
    return rc;
}

void srv_client_close(srv_client *c)
{
    if (!c) return;
    if (c->tls) { /* the end in order, or what broke: best effort */
        srv_tls_end(c->tls, &c->out);
        (void)!send(c->fd, c->out.data + c->sent, c->out.bytes - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (c->fd >= 0) close(c->fd);
    srv_tls_close(c->tls);
    srv_key_close(c->key);
    srv_buf_fini(&c->in);
    srv_buf_fini(&c->out);
    srv_buf_fini(&c->message);
    free(c);
}

void srv_client_stay_awake(srv_client *c, uint64_t awake_ns) { c->awake_ns = awake_ns; }

int srv_client_fd(const srv_client *c) { return c->fd; }

err_code srv_client_send_raw(srv_client *c, const void *data, size_t bytes, err *e)
{
    if (c->tls && bytes) TRY(srv_tls_send(c->tls, data, bytes, &c->out, e));
    else TRY(srv_buf_append(&c->out, data, bytes, e));
    return flush(c, clock_ns() + c->timeout_ns, e);
}

/* Rows are most of an insert: they are sent from where they are, behind what is in out. Those that the socket does not take
 * at once join it. */
static err_code send_rows(srv_client *c, const uint8_t *rows, size_t bytes, err *e)
{
    struct iovec part[2] = { { c->out.data + c->sent, c->out.bytes - c->sent }, { (void *)(uintptr_t)rows, bytes } };
    const struct msghdr m = { .msg_iov = part, .msg_iovlen = 2 };
    ssize_t n = sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL); /* what fails, fails again when the rest is sent */
    size_t went = n > 0 ? (size_t)n : 0, head = went < part[0].iov_len ? went : part[0].iov_len;
    c->sent += head;
    if (srv_buf_append(&c->out, rows + (went - head), bytes - (went - head), e) == ERR_OK) return ERR_OK;
    c->ended = true; /* half a frame is out */
    c->sent = c->out.bytes = 0;
    return ERR_NOMEM;
}

err_code srv_client_send(srv_client *c, srv_request *r, err *e)
{
    const bool rows = r->op == SRV_INSERT && r->u.insert.taps_bytes > 0 && !c->tls;
    srv_buf *frame = c->tls ? &c->message : &c->out;
    uint64_t chosen = r->id ? r->id : c->last_id + 1;
    srv_request named = *r;
    named.id = chosen;
    c->message.bytes = 0;
    TRY(rows ? srv_encode_request_head(&named, frame, e) : srv_encode_request(&named, frame, e));
    if (r->id == 0) r->id = c->last_id = chosen;
    if (rows) TRY(send_rows(c, (const uint8_t *)r->u.insert.taps, (size_t)r->u.insert.taps_bytes, e));
    if (c->tls) TRY(srv_tls_send(c->tls, frame->data, frame->bytes, &c->out, e));
    return flush(c, clock_ns() + c->timeout_ns, e);
}

/* The frame at the head of what came: its body, or NULL when it is not whole. */
static err_code frame_at_head(const srv_client *c, const uint8_t **body, uint32_t *bytes, err *e)
{
    const uint8_t *head = c->in.data + c->taken;
    size_t left = c->in.bytes - c->taken;
    *body = NULL;
    if (left < SRV_FRAME_HEADER_BYTES) return ERR_OK;
    TRY(srv_frame_bytes(head, bytes, e));
    if (left - SRV_FRAME_HEADER_BYTES >= *bytes) *body = head + SRV_FRAME_HEADER_BYTES;
    return ERR_OK;
}

err_code srv_client_receive(srv_client *c, srv_reply *out, err *e)
{
    uint64_t now = clock_ns(), deadline_ns = now + c->timeout_ns;
    const uint8_t *body;
    uint32_t bytes;
    *out = (srv_reply){ .op = SRV_OP_COUNT, .refused_slot = -1 };
    c->awake_until_ns = now + c->awake_ns;
    for (;;) {
        err_code head = frame_at_head(c, &body, &bytes, e);
        if (head != ERR_OK) return no_reply(c, head, e);
        if (body) break;
        if (c->ended) return closed(c, e);
        if (c->taken) { /* what was handed out makes room */
            c->in.bytes -= c->taken;
            memmove(c->in.data, c->in.data + c->taken, c->in.bytes);
            c->taken = 0;
        }
        TRY(pump(c, deadline_ns, e));
    }
    c->taken += SRV_FRAME_HEADER_BYTES + bytes;
    err_code rc = srv_decode_reply(body, bytes, out, e);
    c->known = c->known || rc == ERR_OK;
    return rc == ERR_OK ? rc : err_wrap(e, "%s: reply", c->name);
}

err_code srv_client_call(srv_client *c, srv_request *r, srv_reply *out, err *e)
{
    *out = (srv_reply){ .op = SRV_OP_COUNT, .refused_slot = -1 };
    TRY(srv_client_send(c, r, e));
    TRY(srv_client_receive(c, out, e));
    if (out->id == r->id && out->op == r->op) return ERR_OK;
    err_set(e, ERR_INPUT, "%s: found the reply to request %" PRIu64 " (%s), wanted that to %" PRIu64 " (%s)%s%s", c->name,
            out->id, srv_op_name(out->op), r->id, srv_op_name(r->op), *out->text ? ": " : "", out->text);
    srv_reply_fini(out);
    return ERR_INPUT;
}
