/* Serving over a real socket while the disk under the dumps is slow, or stands still: nobody who asks notices. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "serve/client.h"
#include "serve/dumper.h"
#include "serve/server.h"
#include "serve/stats.h"
#include "tests/serve/serve_help.h"

enum { POSITIONS = 48, TURNS = 4, ROUNDS = POSITIONS * TURNS };
#ifdef __SANITIZE_ADDRESS__
enum { GROWTH_BYTES = 512 << 20 }; /* it holds back what was freed */
#else
enum { GROWTH_BYTES = 4 << 20 };
#endif
#define WAIT_NS 60000000000ull

/* ---- the disk: every flush of a tape waits for it (linked with --wrap) ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool closed;
    useconds_t slow_us; /* a flush takes so long */
    int flushes;
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER };

err_code __real_fmt_tape_flush(fmt_tape_writer *w, err *e);
err_code __wrap_fmt_tape_flush(fmt_tape_writer *w, err *e);

err_code __wrap_fmt_tape_flush(fmt_tape_writer *w, err *e)
{
    pthread_mutex_lock(&disk.lock);
    disk.flushes++;
    while (disk.closed) pthread_cond_wait(&disk.change, &disk.lock);
    useconds_t us = disk.slow_us;
    pthread_mutex_unlock(&disk.lock);
    if (us) usleep(us);
    return __real_fmt_tape_flush(w, e);
}

static void set_disk(bool closed, useconds_t slow_us)
{
    pthread_mutex_lock(&disk.lock);
    disk.closed = closed;
    disk.slow_us = slow_us;
    pthread_cond_broadcast(&disk.change);
    pthread_mutex_unlock(&disk.lock);
}

/* ---- a worker that dumps every round ---- */

typedef struct rig {
    eng_engine *engine;
    srv_dumper *dumper;
    srv_server *server;
    srv_worker *worker;
    srv_address address;
    pthread_t thread;
    json_t *about;
} rig;
static rig g;
static help_draft want[POSITIONS];

static void *serve(void *arg)
{
    (void)arg;
    OK(srv_server_run(g.server, g.worker, e));
    return NULL;
}

static void start(void)
{
    eng_option_words words = { .mode = "graph" };
    eng_options o;
    srv_address wanted;
    int fd;
    srv_dump hooks;
    g = (rig){ .about = json_object() };
    OK(eng_options_parse(&words, 1, &o, e));
    OK(eng_open(help_weights, &o, HELP_SLOTS + 1, ENG_LEVEL_V1, true, &g.engine, e));
    srv_dumper_setup d = { .engine = g.engine, .identity = g.about, .dir = ".", .rounds_text = "all",
                           .rotate_bytes = 1 << 30, .slots = HELP_SLOTS, .positions = HELP_ROWS };
    OK(cap_round_list_parse("all", "--dump-rounds", &d.rounds, e));
    OK(srv_dumper_open(&d, &g.dumper, e));
    srv_dumper_hooks(g.dumper, &hooks);
    OK(srv_address_parse("unix:./slow.sock", true, &wanted, e));
    OK(srv_listen(&wanted, &fd, &g.address, e));
    srv_server_setup s = { .fd = fd, .address = &g.address, .frame_timeout_ns = WAIT_NS };
    OK(srv_server_open(&s, &g.server, e));
    srv_worker_setup w = { .engine = g.engine, .checkpoint = "c0ffee", .about = g.about, .slots = HELP_SLOTS,
                           .positions = HELP_ROWS, .prewarm = true, .dump = &hooks, .wake = srv_server_wake,
                           .ctx = g.server };
    OK(srv_worker_open(&w, &g.worker, e));
    assert_int_equal(pthread_create(&g.thread, NULL, serve, NULL), 0);
}

static void stop(void)
{
    srv_server_stop(g.server);
    pthread_join(g.thread, NULL);
    srv_worker_close(g.worker);
    srv_server_close(g.server);
    OK(srv_dumper_close(g.dumper, e));
    eng_close(g.engine);
    json_decref(g.about);
}

static srv_reply call(srv_client *c, srv_request r)
{
    srv_reply reply;
    OK(srv_client_call(c, &r, &reply, e));
    if (reply.refused != SRV_REFUSED_NONE) fail_msg("%s: %s", srv_op_name(reply.op), reply.text);
    return reply;
}

/* ROUNDS rounds of one client, each equal to what the stream drafts alone; the steps' p50 in ns. */
static uint64_t play(srv_histogram *replies)
{
    srv_client *c;
    srv_histogram *steps = mem_alloc(1, sizeof *steps);
    OK(srv_client_open(&g.address, NULL, WAIT_NS, &c, e));
    uint64_t epoch = call(c, (srv_request){ .op = SRV_HELLO, .u.hello = help_hello("client", 1) }).u.welcome.epoch;
    for (int32_t turn = 0; turn < TURNS; turn++) {
        int32_t slot = call(c, (srv_request){ .op = SRV_OPEN, .epoch = epoch }).u.opened.slot;
        for (int32_t p = 0; p < POSITIONS; p++) {
            srv_request in = { .op = SRV_INSERT, .epoch = epoch };
            in.u.insert = (srv_insert){ slot, 1, p, help_rows(0, p), help_width() * sizeof(bf16) };
            uint64_t begun = clock_ns();
            call(c, in);
            srv_drafted d = call(c, (srv_request){ .op = SRV_DRAFT, .epoch = epoch,
                                                   .u.draft = { 1, 5, { slot }, { p }, { p } } }).u.drafted;
            srv_histogram_add(replies, clock_ns() - begun);
            srv_histogram_add(steps, (uint64_t)(d.step_us * 1e3));
            assert_true(help_same(&d, 0, &want[p]));
        }
        call(c, (srv_request){ .op = SRV_RELEASE, .epoch = epoch, .u.slot = slot });
    }
    srv_client_close(c);
    uint64_t p50 = srv_histogram_quantile(steps, 0.5);
    free(steps);
    return p50;
}

static int64_t dumped(const char *key)
{
    srv_client *c;
    OK(srv_client_open(&g.address, NULL, WAIT_NS, &c, e));
    srv_reply r = call(c, (srv_request){ .op = SRV_STATUS });
    int64_t n = json_integer_value(json_object_get(json_object_get(r.u.status, "dump"), key));
    srv_reply_fini(&r);
    srv_client_close(c);
    return n;
}

/* ---- tests ---- */

/* The rounds of a finished tape and those that it says were left out. */
static void account_for_every_round(uint64_t rounds)
{
    char name[300] = "";
    DIR *dir = opendir(".");
    for (struct dirent *x; (x = readdir(dir)); )
        if (strncmp(x->d_name, "v1-", 3) == 0 && strcmp(x->d_name, name) > 0) snprintf(name, sizeof name, "%s", x->d_name);
    closedir(dir);
    fmt_tape *t;
    const int32_t *kept;
    OK(fmt_tape_open(name, &t, e));
    assert_true(fmt_tape_finished(t));
    uint64_t dropped = (uint64_t)json_integer_value(json_object_get(fmt_tape_summary(t), "dropped"));
    assert_int_equal((uint64_t)fmt_tape_rounds(t, &kept) + dropped, rounds);
    assert_int_equal(fmt_tape_event_count(t), dropped); /* each by its number */
    fmt_tape_close(t);
}

/* Whoever waited for the disk would wait for ever. */
static void a_disk_that_stands_still_is_not_waited_for(void **state)
{
    (void)state;
    srv_histogram *replies = mem_alloc(1, sizeof *replies);
    start();
    set_disk(true, 0);
    (void)play(replies);
    uint64_t early = srv_resident_bytes();
    (void)play(replies);
    uint64_t late = srv_resident_bytes();
    assert_true(late < early + GROWTH_BYTES); /* what is dropped takes no memory but its number */
    assert_int_equal(dumped("rounds"), 0);
    assert_true(dumped("dropped") > 2 * ROUNDS - 100);
    set_disk(false, 0);
    stop();
    account_for_every_round(2 * ROUNDS);
    free(replies);
}

static void a_slow_disk_costs_dumps_and_nothing_else(void **state)
{
    (void)state;
    srv_histogram *quick = mem_alloc(1, sizeof *quick), *slow = mem_alloc(1, sizeof *slow);
    start();
    (void)play(quick);
    *quick = (srv_histogram){ 0 };
    uint64_t step_quick = play(quick);
    int64_t dropped_before = dumped("dropped"), kept_before = dumped("rounds");
    enum { SLOW_US = 200000 }; /* many rounds take no longer, also on a busy machine */
    set_disk(false, SLOW_US);
    uint64_t step_slow = play(slow);
    int64_t dropped = dumped("dropped") - dropped_before, kept = dumped("rounds") - kept_before;
    set_disk(false, 0);
    stop();
    uint64_t p50_quick = srv_histogram_quantile(quick, 0.5), p50_slow = srv_histogram_quantile(slow, 0.5);
    print_message("step p50 %.1f us, slow disk %.1f us; insert and draft p50 %.1f us, slow disk %.1f us; %lld kept, %lld "
                  "dropped\n", (double)step_quick * 1e-3, (double)step_slow * 1e-3, (double)p50_quick * 1e-3,
                  (double)p50_slow * 1e-3, (long long)kept, (long long)dropped);
    assert_true(kept > 0 && dropped > 0);
    assert_true(p50_slow < SLOW_US * 1000 / 2);
    assert_true(step_slow <= 4 * step_quick + 1000000); /* other processes' noise, far below one flush */
    account_for_every_round(3 * ROUNDS);
    free(quick);
    free(slow);
}

static int make_all(void **state)
{
    if (help_make_model(state) != 0) return -1;
    eng_engine *alone = help_engine(1);
    int32_t slot = 0;
    for (int32_t p = 0; p < POSITIONS; p++) {
        OK(eng_insert(alone, slot, help_rows(0, p), help_pos + p, 1, NULL, e));
        OK(eng_draft(alone, 1, &slot, &p, &p, 5, want[p].drafts, want[p].confidence, NULL, e));
    }
    eng_close(alone);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_disk_that_stands_still_is_not_waited_for),
        cmocka_unit_test(a_slow_disk_costs_dumps_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, make_all, help_drop_model);
}
