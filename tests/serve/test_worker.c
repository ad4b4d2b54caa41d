/* The worker: what it answers is what the engine alone says, in whatever steps it does it; poison, the end, and its
 * hooks. */
#include "tests/serve/serve_help.h"

#include "serve/stats.h"

static eng_engine *engine, *alone;
static srv_worker *worker;
static help_hooks hooks;
static srv_dump dump;
static sem_t woken;
static srv_work *taken; /* finished, not yet looked at */
static uint64_t ids;

static void wake(void *ctx)
{
    (void)ctx;
    sem_post(&woken);
}

static int warm_inserts, warm_released; /* what prewarm did with the hooks, which the tests then count from 0 */

static void start_spinning(bool prewarm, uint64_t spin_ns)
{
    json_t *about = json_object();
    srv_worker_setup setup = { .engine = engine, .checkpoint = "c0ffee", .about = about, .slots = HELP_SLOTS,
                               .positions = HELP_ROWS, .prewarm = prewarm, .spin_ns = spin_ns, .dump = &dump,
                               .wake = wake };
    OK(srv_worker_open(&setup, &worker, e));
    json_decref(about);
    warm_inserts = hooks.inserts;
    warm_released = hooks.released;
    hooks.inserts = hooks.released = 0;
}

static void start(bool prewarm) { start_spinning(prewarm, 0); }

static int set_up(void **state)
{
    (void)state;
    sem_init(&woken, 0, 0);
    dump = help_dump(&hooks);
    engine = help_engine(HELP_SLOTS + 1);
    if (!alone) alone = help_engine(1);
    start(true);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    hooks.hold = false;
    sem_post(&hooks.go);
    srv_worker_close(worker);
    worker = NULL;
    for (srv_work *next; taken; taken = next) {
        next = taken->next;
        srv_work_free(taken);
    }
    eng_close(engine);
    return 0;
}

static int drop_all(void **state)
{
    eng_close(alone);
    return help_drop_model(state);
}

/* ---- requests ---- */

static uint64_t put(uint64_t connection, const srv_request *r)
{
    srv_work *x = mem_alloc(1, sizeof *x);
    *x = (srv_work){ .request = *r, .connection = connection, .received_ns = clock_ns() };
    x->request.id = ++ids;
    srv_worker_put(worker, x);
    return ids;
}

/* The finished work of that id. */
static srv_reply wait_for(uint64_t id)
{
    for (;;) {
        for (srv_work **at = &taken; *at; at = &(*at)->next)
            if ((*at)->reply.id == id) {
                srv_work *x = *at;
                srv_reply r = x->reply;
                *at = x->next;
                srv_work_free(x);
                return r;
            }
        sem_wait(&woken);
        srv_work *more = srv_worker_take(worker), **end = &taken;
        while (*end) end = &(*end)->next;
        *end = more;
    }
}

static uint64_t put_hello(uint64_t connection, const char *client, int32_t slots)
{
    return put(connection, &(srv_request){ .op = SRV_HELLO, .u.hello = help_hello(client, slots) });
}

static uint64_t hello(uint64_t connection, const char *client, int32_t slots)
{
    srv_reply r = wait_for(put_hello(connection, client, slots));
    if (r.refused != SRV_REFUSED_NONE) fail_msg("hello: %s", r.text);
    return r.u.welcome.epoch;
}

static int32_t open_slot(uint64_t connection, uint64_t epoch)
{
    srv_reply r = wait_for(put(connection, &(srv_request){ .op = SRV_OPEN, .epoch = epoch }));
    if (r.refused != SRV_REFUSED_NONE) fail_msg("open: %s", r.text);
    return r.u.opened.slot;
}

static uint64_t put_rows(uint64_t connection, uint64_t epoch, int32_t slot, const bf16 *rows, int32_t first, int32_t n)
{
    srv_request r = { .op = SRV_INSERT, .epoch = epoch };
    r.u.insert = (srv_insert){ slot, n, first, rows, (uint64_t)n * help_width() * sizeof(bf16) };
    return put(connection, &r);
}

static uint64_t put_insert(uint64_t connection, uint64_t epoch, int32_t slot, int32_t stream, int32_t p)
{
    return put_rows(connection, epoch, slot, help_rows(stream, p), p, 1);
}

/* Streams are the slots' numbers: anchors tell them apart. */
static uint64_t put_draft(uint64_t connection, uint64_t epoch, int32_t n_out, int32_t p, int32_t batch,
                          const int32_t *slots)
{
    srv_request r = { .op = SRV_DRAFT, .epoch = epoch, .u.draft = { .batch = batch, .n_out = n_out } };
    for (int32_t b = 0; b < batch; b++) {
        r.u.draft.slot[b] = slots[b];
        r.u.draft.anchor[b] = 10 * slots[b] + p;
        r.u.draft.pos[b] = p;
    }
    return put(connection, &r);
}

static srv_drafted drafted(uint64_t id)
{
    srv_reply r = wait_for(id);
    if (r.refused != SRV_REFUSED_NONE) fail_msg("draft: %s: %s", srv_refusal_name(r.refused), r.text);
    return r.u.drafted;
}

static void is_alone(const srv_drafted *d, int32_t b, int32_t stream, int32_t p)
{
    help_draft want = help_alone(alone, stream, p, d->n_out);
    if (!help_same(d, b, &want)) fail_msg("stream %d at %d: another draft than alone", stream, p);
}

static void refused(srv_reply r, srv_refusal why, const char *part)
{
    if (r.refused != why || !strstr(r.text, part))
        fail_msg("found %s: %s; wanted %s: %s", srv_refusal_name(r.refused), r.text, srv_refusal_name(why), part);
}

/* The worker is inside an insert into slot, and stays there until let_go. */
static uint64_t hold_in_insert(uint64_t connection, uint64_t epoch, int32_t slot, int32_t stream, int32_t p)
{
    hooks.hold = true;
    uint64_t id = put_insert(connection, epoch, slot, stream, p);
    sem_wait(&hooks.reached);
    return id;
}

static void let_go(void)
{
    hooks.hold = false;
    sem_post(&hooks.go);
}

/* A client with all four slots, each with row 0 of its own stream. */
static uint64_t four_slots(void)
{
    uint64_t epoch = hello(1, "four", 4);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(open_slot(1, epoch), i);
        wait_for(put_insert(1, epoch, i, i, 0));
    }
    return epoch;
}

static const int32_t SLOT[4] = { 0, 1, 2, 3 };

/* ---- tests ---- */

static void replies_are_the_engines_own(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    for (int32_t p = 1; p < 12; p++) {
        for (int32_t i = 0; i < 4; i++) assert_int_equal(wait_for(put_insert(1, epoch, i, i, p)).u.inserted.last, p);
        srv_drafted d = drafted(put_draft(1, epoch, p % 2 ? 5 : 4, p, 1 + p % 4, SLOT));
        assert_int_equal(d.round, p - 1);
        assert_int_equal(d.batch, 1 + p % 4);
        for (int32_t b = 0; b < d.batch; b++) is_alone(&d, b, b, p);
    }
}

static void drafts_that_wait_share_a_step(void **state)
{
    (void)state;
    uint64_t epoch = four_slots(), id[4];
    uint64_t held = hold_in_insert(1, epoch, 0, 0, 1);
    for (int32_t i = 1; i < 4; i++) id[i] = put_draft(1, epoch, 5, 0, 1, SLOT + i);
    id[0] = put_draft(1, epoch, 5, 1, 1, SLOT);
    let_go();
    wait_for(held);
    srv_drafted d[4];
    for (int32_t i = 0; i < 4; i++) d[i] = drafted(id[i]);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(d[i].step_batch, 4);
        assert_int_equal(d[i].round, 0);
        is_alone(&d[i], 0, i, i == 0);
    }
}

static void another_n_out_or_a_fifth_slot_takes_a_step_of_its_own(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    uint64_t held = hold_in_insert(1, epoch, 3, 3, 1);
    uint64_t first = put_draft(1, epoch, 5, 0, 2, SLOT), other = put_draft(1, epoch, 4, 0, 1, SLOT + 2);
    uint64_t again = put_draft(1, epoch, 5, 0, 3, SLOT); /* its slots wait for the first; and 2 + 3 is more than 4 */
    let_go();
    wait_for(held);
    srv_drafted a = drafted(first), b = drafted(other), c = drafted(again);
    assert_int_equal(a.step_batch, 2);
    assert_int_equal(b.step_batch, 1);
    assert_int_equal(c.step_batch, 3);
    assert_true(a.round < b.round && b.round < c.round);
    is_alone(&b, 0, 2, 0);
    for (int32_t i = 0; i < 3; i++) is_alone(&c, i, i, 0);
}

static void requests_of_a_slot_keep_their_order(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    uint64_t held = hold_in_insert(1, epoch, 3, 3, 1), draft[8];
    for (int32_t p = 0; p < 8; p++) { /* all of it waits at once; slot 1's drafts are asked with another n_out */
        if (p > 0)
            for (int32_t i = 0; i < 2; i++) put_insert(1, epoch, i, i, p);
        put_draft(1, epoch, 4, p, 1, SLOT + 1);
        draft[p] = put_draft(1, epoch, 5, p, 1, SLOT);
    }
    let_go();
    wait_for(held);
    for (int32_t p = 0; p < 8; p++) {
        srv_drafted d = drafted(draft[p]);
        is_alone(&d, 0, 0, p);
        d = drafted(draft[p] - 1);
        is_alone(&d, 0, 1, p);
    }
}

static void rows_that_are_not_finite_poison_their_slot_alone(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    bf16 *bad = mem_alloc(help_width(), sizeof *bad);
    bad[7] = 0x7f80;
    refused(wait_for(put_rows(1, epoch, 2, bad, 1, 1)), SRV_REFUSED_POISONED, "column 7 is not finite");
    refused(wait_for(put_insert(1, epoch, 2, 2, 1)), SRV_REFUSED_POISONED, "column 7 is not finite");
    refused(wait_for(put_draft(1, epoch, 5, 0, 4, SLOT)), SRV_REFUSED_POISONED, "column 7 is not finite");
    srv_drafted d = drafted(put_draft(1, epoch, 5, 0, 2, SLOT));
    is_alone(&d, 1, 1, 0);
    wait_for(put(1, &(srv_request){ .op = SRV_RELEASE, .epoch = epoch, .u.slot = 2 }));
    assert_int_equal(open_slot(1, epoch), 2);
    wait_for(put_insert(1, epoch, 2, 2, 0));
    d = drafted(put_draft(1, epoch, 5, 0, 4, SLOT));
    is_alone(&d, 2, 2, 0);
    free(bad);
}

static void a_bad_draft_does_not_hold_up_those_it_waited_with(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    uint64_t held = hold_in_insert(1, epoch, 3, 3, 1);
    uint64_t good = put_draft(1, epoch, 5, 0, 1, SLOT), bad = put_draft(1, epoch, 5, 9, 1, SLOT + 1);
    uint64_t stale = put_draft(1, epoch - 1, 5, 0, 1, SLOT + 2);
    let_go();
    wait_for(held);
    srv_drafted d = drafted(good);
    assert_int_equal(d.step_batch, 1);
    is_alone(&d, 0, 0, 0);
    refused(wait_for(bad), SRV_REFUSED_POISONED, "draft at 9");
    refused(wait_for(stale), SRV_REFUSED_EPOCH, "epoch");
}

static void a_hello_overtakes_nothing(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    uint64_t held = hold_in_insert(1, epoch, 3, 3, 1);
    uint64_t before = put_draft(1, epoch, 5, 0, 1, SLOT), again = put_hello(2, "four", 4);
    uint64_t after = put_draft(1, epoch, 5, 0, 1, SLOT);
    let_go();
    wait_for(held);
    srv_drafted d = drafted(before);
    is_alone(&d, 0, 0, 0);
    assert_int_equal(wait_for(again).u.welcome.epoch, epoch + 1);
    refused(wait_for(after), SRV_REFUSED_EPOCH, "no session");
}

static void what_a_lost_connection_had_queued_is_not_done(void **state)
{
    (void)state;
    uint64_t a = hello(1, "a", 2), b = hello(2, "b", 2);
    int32_t mine = open_slot(1, a), other = open_slot(2, b);
    wait_for(put_insert(1, a, mine, 0, 0));
    uint64_t held = hold_in_insert(2, b, other, 1, 0);
    uint64_t lost[3] = { put_insert(1, a, mine, 0, 1), put_draft(1, a, 5, 1, 1, &mine), put_hello(1, "late", 2) };
    srv_worker_gone(worker, 1);
    let_go();
    assert_int_equal(wait_for(held).u.inserted.last, 0);
    for (int i = 0; i < 3; i++) wait_for(lost[i]);
    assert_int_equal(hooks.inserts, 2);
    assert_int_equal(hooks.drafts, 0);
    json_t *s = srv_worker_status(worker);
    assert_true(json_integer_value(json_object_get(json_object_get(s, "counts"), "abandoned")) >= 2);
    assert_int_equal(json_integer_value(json_object_get(s, "slots_unreserved")), 2);
    json_decref(s);
    /* the next one finds an empty slot */
    uint64_t c = hello(3, "c", 2);
    int32_t slot = open_slot(3, c);
    assert_int_equal(slot, mine);
    wait_for(put_insert(3, c, slot, 0, 0));
    srv_drafted d = drafted(put_draft(3, c, 5, 0, 1, &slot));
    is_alone(&d, 0, 0, 0);
    assert_int_equal(hooks.released, 1);
}

static void a_failed_check_poisons_the_worker(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    hooks.fail_draft = true;
    srv_drafted d = drafted(put_draft(1, epoch, 5, 0, 1, SLOT)); /* answered before the check */
    is_alone(&d, 0, 0, 0);
    refused(wait_for(put_draft(1, epoch, 5, 0, 1, SLOT)), SRV_REFUSED_WORKER, "round 0: planted mismatch");
    refused(wait_for(put_insert(1, epoch, 0, 0, 1)), SRV_REFUSED_WORKER, "planted");
    refused(wait_for(put_hello(2, "b", 1)), SRV_REFUSED_WORKER, "planted");
    json_t *s = srv_worker_status(worker);
    assert_string_equal(json_string_value(json_object_get(s, "state")), "poisoned");
    assert_non_null(strstr(json_string_value(json_object_get(s, "reason")), "planted mismatch"));
    json_decref(s);
}

static void held_replies_are_not_sent_when_the_check_fails(void **state)
{
    srv_worker_close(worker);
    dump.hold_replies = true;
    start(true);
    uint64_t epoch = four_slots();
    srv_drafted d = drafted(put_draft(1, epoch, 5, 0, 1, SLOT));
    is_alone(&d, 0, 0, 0);
    hooks.fail_draft = true;
    refused(wait_for(put_draft(1, epoch, 5, 0, 1, SLOT)), SRV_REFUSED_WORKER, "round 1: planted mismatch");
    (void)state;
}

static void stopping_refuses_what_waits_and_finishes_dumps(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    uint64_t held = hold_in_insert(1, epoch, 0, 0, 1);
    uint64_t draft = put_draft(1, epoch, 5, 0, 1, SLOT + 1), rows = put_insert(1, epoch, 0, 0, 2);
    srv_worker_stop(worker);
    let_go();
    assert_int_equal(wait_for(held).u.inserted.last, 1); /* it had begun */
    refused(wait_for(draft), SRV_REFUSED_CLOSING, "shutting down");
    refused(wait_for(rows), SRV_REFUSED_CLOSING, "shutting down");
    while (!srv_worker_ended(worker)) sem_wait(&woken);
    assert_int_equal(hooks.finished, 1);
    refused(wait_for(put_insert(1, epoch, 0, 0, 2)), SRV_REFUSED_CLOSING, "shutting down");
}

static uint64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Processor time of `ms` milliseconds in which nothing is asked. */
static uint64_t idle_ns(int ms)
{
    uint64_t before = processor_ns();
    nanosleep(&(struct timespec){ 0, ms * 1000000L }, NULL);
    return processor_ns() - before;
}

static void a_worker_that_spins_answers_the_same_and_falls_asleep(void **state)
{
    (void)state;
    enum { SPIN_MS = 60, IDLE_MS = 200 };
    srv_worker_close(worker);
    start_spinning(true, SPIN_MS * 1000000ull);
    uint64_t epoch = four_slots();
    for (int32_t p = 1; p < 4; p++) {
        wait_for(put_insert(1, epoch, 0, 0, p));
        srv_drafted d = drafted(put_draft(1, epoch, 5, p, 1, SLOT));
        is_alone(&d, 0, 0, p);
    }
    uint64_t first = idle_ns(IDLE_MS), second = idle_ns(IDLE_MS);
    assert_true(first > 0 && second < IDLE_MS * 1000000ull / 4); /* it slept before the second began */
    wait_for(put_insert(1, epoch, 1, 1, 1)); /* and wakes */
    srv_worker_gone(worker, 1);
}

static void prewarm_passes_the_dump_and_is_forgotten(void **state)
{
    (void)state;
    assert_int_equal(warm_inserts, HELP_SLOTS);
    assert_int_equal(warm_released, HELP_SLOTS);
    srv_worker_close(worker);
    start(false);
    assert_int_equal(warm_inserts + warm_released, 0);
}

static void prewarm_leaves_no_trace(void **state)
{
    (void)state;
    assert_true(srv_worker_prewarm_ms(worker) > 0);
    uint64_t epoch = four_slots();
    srv_drafted warm = drafted(put_draft(1, epoch, 5, 0, 4, SLOT));
    srv_worker_close(worker);
    eng_close(engine);
    engine = help_engine(HELP_SLOTS + 1);
    start(false);
    assert_true(srv_worker_prewarm_ms(worker) == 0);
    epoch = four_slots();
    srv_drafted cold = drafted(put_draft(1, epoch, 5, 0, 4, SLOT));
    assert_int_equal(warm.round, 0);
    assert_int_equal(warm.round, cold.round);
    assert_memory_equal(warm.drafts, cold.drafts, sizeof warm.drafts);
    assert_memory_equal(warm.confidence, cold.confidence, sizeof warm.confidence);
}

static void status_counts_what_was_done(void **state)
{
    (void)state;
    uint64_t epoch = four_slots();
    drafted(put_draft(1, epoch, 5, 0, 3, SLOT));
    wait_for(put_draft(1, epoch, 6, 0, 1, SLOT));
    json_t *s = srv_worker_status(worker);
    const json_t *counts = json_object_get(s, "counts"), *steps = json_object_get(counts, "steps_by_slots");
    assert_int_equal(json_integer_value(json_object_get(counts, "rounds")), 1);
    assert_int_equal(json_integer_value(json_object_get(counts, "rows")), 4);
    assert_int_equal(json_integer_value(json_array_get(steps, 2)), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(counts, "done"), "open")), 4);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(counts, "refused"), "limit")), 1);
    assert_true(json_number_value(json_object_get(counts, "first_step_us")) > 0);
    const json_t *slot = json_array_get(json_object_get(s, "slot"), 3);
    assert_string_equal(json_string_value(json_object_get(slot, "client")), "four");
    assert_string_equal(json_string_value(json_object_get(slot, "state")), "open");
    assert_true(json_is_null(json_object_get(s, "dump")));
    json_decref(s);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(replies_are_the_engines_own),
        CASE(drafts_that_wait_share_a_step),
        CASE(another_n_out_or_a_fifth_slot_takes_a_step_of_its_own),
        CASE(requests_of_a_slot_keep_their_order),
        CASE(rows_that_are_not_finite_poison_their_slot_alone),
        CASE(a_bad_draft_does_not_hold_up_those_it_waited_with),
        CASE(a_hello_overtakes_nothing),
        CASE(what_a_lost_connection_had_queued_is_not_done),
        CASE(a_failed_check_poisons_the_worker),
        CASE(held_replies_are_not_sent_when_the_check_fails),
        CASE(stopping_refuses_what_waits_and_finishes_dumps),
        CASE(a_worker_that_spins_answers_the_same_and_falls_asleep),
        CASE(prewarm_passes_the_dump_and_is_forgotten),
        CASE(prewarm_leaves_no_trace),
        CASE(status_counts_what_was_done),
    };
    return cmocka_run_group_tests(tests, help_make_model, drop_all);
}
