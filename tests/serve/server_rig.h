/* A server in a thread of the test, over a real socket, and clients of it. */
#ifndef TESTS_SERVE_SERVER_RIG_H
#define TESTS_SERVE_SERVER_RIG_H

#include "tests/serve/serve_help.h"

#include <signal.h>

#include "serve/client.h"
#include "serve/server.h"

#define FRAME_TIMEOUT_NS 300000000ull
#define WAIT_NS 20000000000ull

typedef struct rig {
    eng_engine *engine;
    srv_server *server;
    srv_worker *worker;
    srv_key *key;
    srv_address address;
    pthread_t thread;
    bool joined;
} rig;

static rig g;
static uint64_t frame_timeout_ns = FRAME_TIMEOUT_NS, spin_ns;
static help_hooks hooks;

static inline void *serve(void *arg)
{
    (void)arg;
    OK(srv_server_run(g.server, g.worker, e));
    return NULL;
}

static inline void start(const char *address, const char *key)
{
    srv_address wanted;
    int fd;
    json_t *about = json_object();
    srv_dump dump = help_dump(&hooks);
    g = (rig){ .engine = help_engine(HELP_SLOTS + 1) };
    if (key) OK(srv_key_open(key, true, &g.key, e));
    OK(srv_address_parse(address, true, &wanted, e));
    OK(srv_listen(&wanted, &fd, &g.address, e));
    srv_server_setup s = { .fd = fd, .address = &g.address, .key = g.key, .frame_timeout_ns = frame_timeout_ns };
    OK(srv_server_open(&s, &g.server, e));
    srv_worker_setup w = { .engine = g.engine, .checkpoint = "c0ffee", .about = about, .slots = HELP_SLOTS,
                           .positions = HELP_ROWS, .prewarm = true, .spin_ns = spin_ns, .dump = &dump,
                           .wake = srv_server_wake, .ctx = g.server };
    OK(srv_worker_open(&w, &g.worker, e));
    json_decref(about);
    assert_int_equal(pthread_create(&g.thread, NULL, serve, NULL), 0);
}

static inline void join(void)
{
    if (!g.joined) pthread_join(g.thread, NULL);
    g.joined = true;
}

static inline int set_up(void **state)
{
    (void)state;
    start("unix:./s.sock", NULL);
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    frame_timeout_ns = FRAME_TIMEOUT_NS;
    spin_ns = 0;
    hooks.hold = false;
    sem_post(&hooks.go);
    srv_server_stop(g.server);
    join();
    srv_worker_close(g.worker);
    srv_server_close(g.server);
    srv_key_close(g.key);
    eng_close(g.engine);
    return 0;
}

static inline int make_all(void **state)
{
    signal(SIGPIPE, SIG_IGN);
    return help_make_model(state);
}

/* ---- clients ---- */

typedef struct client { srv_client *c; uint64_t epoch; int32_t slot; } client;

static inline srv_client *dial(const char *key)
{
    srv_client *c = NULL;
    OK(srv_client_open(&g.address, key, WAIT_NS, &c, e));
    return c;
}

static inline srv_reply call(srv_client *c, srv_request r)
{
    srv_reply reply;
    r.id = 0;
    OK(srv_client_call(c, &r, &reply, e));
    return reply;
}

static inline srv_reply done(srv_reply r)
{
    if (r.refused != SRV_REFUSED_NONE) fail_msg("%s: %s: %s", srv_op_name(r.op), srv_refusal_name(r.refused), r.text);
    return r;
}

static inline client join_in(const char *name, int32_t slots)
{
    client x = { .c = dial(NULL) };
    x.epoch = done(call(x.c, (srv_request){ .op = SRV_HELLO, .u.hello = help_hello(name, slots) })).u.welcome.epoch;
    x.slot = done(call(x.c, (srv_request){ .op = SRV_OPEN, .epoch = x.epoch })).u.opened.slot;
    return x;
}

static inline srv_request insert_of(const client *x, int32_t stream, int32_t p)
{
    srv_request r = { .op = SRV_INSERT, .epoch = x->epoch };
    r.u.insert = (srv_insert){ x->slot, 1, p, help_rows(stream, p), help_width() * sizeof(bf16) };
    return r;
}

static inline srv_request draft_of(const client *x, int32_t stream, int32_t p)
{
    return (srv_request){ .op = SRV_DRAFT, .epoch = x->epoch,
                          .u.draft = { 1, 5, { x->slot }, { 10 * stream + p }, { p } } };
}

static inline srv_drafted step(const client *x, int32_t stream, int32_t p)
{
    done(call(x->c, insert_of(x, stream, p)));
    return done(call(x->c, draft_of(x, stream, p))).u.drafted;
}

static inline json_t *status_by(srv_client *c) { return done(call(c, (srv_request){ .op = SRV_STATUS })).u.status; }

static inline json_t *status(void)
{
    srv_client *c = dial(NULL);
    json_t *j = status_by(c);
    srv_client_close(c);
    return j;
}

#endif
