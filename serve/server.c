#include "serve/server_state.h"

#include "base/clock.h"
#include "base/mem.h"

#include <unistd.h>

enum { BACKLOG = 64, CONNECTIONS_MAX = 64 };

/* ---- status ---- */

json_t *srv_server_status(const srv_server *s)
{
    json_t *j = srv_worker_status(s->worker);
    json_t *mine = json_pack("{s:i, s:s, s:s, s:i, s:{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}}", "schema", 1, "version",
                             SPARKTAPE_VERSION, "address", s->address.text, "pid", (int)getpid(), "connections",
                             "open", (int)s->n_connections, "accepted", (json_int_t)s->counts.accepted,
                             "turned_away", (json_int_t)s->counts.turned_away,
                             "bad_messages", (json_int_t)s->counts.bad_messages,
                             "timeouts", (json_int_t)s->counts.timeouts, "slow", (json_int_t)s->counts.slow,
                             "broken", (json_int_t)s->counts.broken, "unsent_replies", (json_int_t)s->counts.unsent);
    json_t *refused = json_object_get(json_object_get(j, "counts"), "refused"); /* the worker does not see these */
    bool whole = json_object_set_new(refused, srv_refusal_name(SRV_REFUSED_MESSAGE),
                                     json_integer((json_int_t)s->counts.refused)) == 0;
    if (whole && mine && json_object_update(mine, j) == 0) {
        json_decref(j);
        return mine;
    }
    json_decref(j);
    json_decref(mine);
    return NULL;
}

/* ---- connections ---- */

static int init_stream(srv_server *s, void *storage)
{
    return s->address.unix_socket ? uv_pipe_init(&s->loop, storage, 0) : uv_tcp_init(&s->loop, storage);
}

void srv_server_accept(srv_server *s)
{
    srv_connection *c = mem_alloc(1, sizeof *c);
    s->deaf = !c || init_stream(s, &c->uv) != 0;
    if (s->deaf) {
        free(c);
        srv_tick_begin(s);
        return;
    }
    c->uv.handle.data = c;
    c->server = s;
    c->id = ++s->last_id;
    c->next = s->connections;
    s->connections = c;
    s->n_connections++;
    if (uv_accept(&s->listener.stream, &c->uv.stream) != 0) {
        srv_connection_close(c);
    } else if (s->n_connections > CONNECTIONS_MAX) {
        s->counts.turned_away++;
        srv_connection_close(c);
    } else srv_connection_start(c);
}

static void on_connection(uv_stream_t *listener, int status)
{
    if (status == 0) srv_server_accept(listener->data);
}

static srv_connection *find(const srv_server *s, uint64_t id)
{
    for (srv_connection *c = s->connections; c; c = c->next)
        if (c->id == id) return c;
    return NULL;
}

/* Whose session a hello has opened: this connection's. The client's earlier one is over. */
static void note_session(srv_server *s, uint64_t id, const char client[SRV_NAME_BYTES])
{
    for (srv_connection *c = s->connections; c; c = c->next) {
        if (c->id == id) memcpy(c->client, client, sizeof c->client);
        else if (strcmp(c->client, client) == 0) srv_connection_forget(c);
    }
}

static void deliver(srv_server *s, const srv_work *work)
{
    srv_connection *c = find(s, work->connection);
    if (work->request.op == SRV_HELLO && work->reply.refused == SRV_REFUSED_NONE && !work->abandoned)
        note_session(s, work->connection, work->request.u.hello.client);
    if (c && !c->closing && !c->ending) srv_connection_reply(c, &work->reply, work->frame_bytes);
    else s->counts.unsent++;
}

/* ---- awake ---- */

/* A loop that slept is some 40 us late for a reply or the next request: with a device, whose worker does not sleep at once
 * either, it stays awake while the worker has requests and as long after the last one as the worker does. */
static void on_awake(uv_idle_t *idle)
{
    srv_server *s = idle->data;
    if (s->n_given == 0 && clock_ns() >= s->awake_until_ns) uv_idle_stop(idle);
}

static void stay_awake(srv_server *s)
{
    uint64_t spin_ns = srv_worker_spin_ns(s->worker);
    if (spin_ns == 0) return;
    s->awake_until_ns = clock_ns() + spin_ns;
    uv_idle_start(&s->awake, on_awake); /* where it runs already, nothing */
}

void srv_server_put(srv_server *s, srv_work *work)
{
    s->n_given++;
    stay_awake(s);
    srv_worker_put(s->worker, work);
}

/* ---- the end ---- */

static void begin_stop(srv_server *s)
{
    if (s->stopping) return;
    s->stopping = true;
    uv_close(&s->listener.handle, NULL);
    srv_address_remove(&s->address);
    for (int i = 0; i < SRV_SIGNALS; i++) uv_signal_stop(&s->signal[i]); /* the next one finds the default: it kills */
    srv_worker_stop(s->worker);
}

static void finish(srv_server *s)
{
    s->finishing = true;
    if (s->n_connections == 0) uv_stop(&s->loop);
    for (srv_connection *c = s->connections; c; c = c->next) {
        if (c->ending) srv_connection_close(c);
        else srv_connection_end(c);
    }
}

static void on_wake(uv_async_t *a)
{
    srv_server *s = a->data;
    if (!s->worker) return;
    bool ended = srv_worker_ended(s->worker); /* asked first: nothing is handed over after it */
    for (srv_work *x = srv_worker_take(s->worker), *next; x; x = next) {
        next = x->next;
        s->n_given--;
        deliver(s, x);
        srv_work_free(x);
        stay_awake(s);
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
    if (rc == 0) rc = uv_idle_init(&s->loop, &s->awake);
    for (int i = 0; i < SRV_SIGNALS && rc == 0; i++) {
        rc = uv_signal_init(&s->loop, &s->signal[i]);
        s->signal[i].data = s;
    }
    if (rc == 0) rc = init_stream(s, &s->listener);
    if (rc == 0) rc = s->address.unix_socket ? uv_pipe_open(&s->listener.pipe, fd) : uv_tcp_open(&s->listener.tcp, fd);
    if (rc != 0) close(fd);
    s->async.data = s->tick.data = s->awake.data = s->listener.handle.data = s;
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
    for (int i = 0; i < SRV_SIGNALS && rc == 0 && s->signals; i++)
        if (!srv_signal_is_ignored(SRV_SIGNAL[i])) rc = uv_signal_start(&s->signal[i], on_signal, SRV_SIGNAL[i]);
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
