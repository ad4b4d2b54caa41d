/* A server (and its client) whose n-th allocation fails, once. A session may end in an error; the server
 * goes on, and the next session gets its answers, bit for bit. */
#include "tests/serve/server_rig.h"

#include "tests/support/each_fault.h"
#include "tests/support/json_whole.h"

static help_draft want;

/* A short session, as far as it gets: any call may fail, any reply may be a refusal. */
static err_code session(err *e)
{
    srv_client *c = NULL;
    srv_request r[] = { { .op = SRV_HELLO, .u.hello = help_hello("faulty", 1) }, { .op = SRV_OPEN }, { .op = SRV_INSERT },
                        { .op = SRV_DRAFT }, { .op = SRV_STATUS }, { .op = SRV_RELEASE } };
    client x = { 0 };
    TRY(srv_client_open(&g.address, NULL, WAIT_NS, &c, e));
    err_code rc = ERR_OK;
    for (size_t i = 0; i < COUNT_OF(r) && rc == ERR_OK; i++) {
        srv_reply reply;
        if (i == 2) r[i] = insert_of(&x, 0, 0);
        else if (i == 3) r[i] = draft_of(&x, 0, 0);
        else if (i == 5) r[i].u.slot = x.slot;
        r[i].epoch = x.epoch;
        rc = srv_client_call(c, &r[i], &reply, e);
        if (rc != ERR_OK) break;
        if (reply.refused != SRV_REFUSED_NONE) rc = err_set(e, ERR_NOMEM, "%s", reply.text);
        else if (i == 0) x.epoch = reply.u.welcome.epoch;
        else if (i == 1) x.slot = reply.u.opened.slot;
        else if (i == 3 && !help_same(&reply.u.drafted, 0, &want)) fail_msg("other drafts");
        if (i == 4) srv_reply_fini(&reply);
    }
    srv_client_close(c);
    return rc;
}

static void before(const void *ctx) { (void)ctx; }

static err_code run(const void *ctx, err *e)
{
    (void)ctx;
    return session(e);
}

/* The client sees memory, a refusal, or an end of the connection. */
static void after(const void *ctx, err_code rc, const err *why, err_code wanted, long at)
{
    (void)ctx;
    if (rc != ERR_OK && ((rc != wanted && rc != ERR_IO && rc != ERR_SYSTEM) || !why->msg[0] || strchr(why->msg, '\n')))
        fail_msg("fault %ld: %s: %s", at, err_name(rc), why->msg);
    if (rc != ERR_OK) OK(session(e));
}

static void a_session_without_memory_costs_no_other(void **state)
{
    (void)state;
    OK(session(e));
    const fault_loop l = { before, run, after, SLOW ? 4 : 20 };
    assert_true(each_fault(&l, NULL, alloc_fail_at, alloc_fail_end, ERR_NOMEM, false) > 20);
}

static int set_up_faults(void **state)
{
    alloc_fail_init();
    if (make_all(state) != 0) return -1;
    eng_engine *alone = help_engine(1);
    want = help_alone(alone, 0, 0, 5);
    eng_close(alone);
    return set_up(state);
}

static int tear_down_all(void **state)
{
    tear_down(state);
    return help_drop_model(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_session_without_memory_costs_no_other) };
    return cmocka_run_group_tests(tests, set_up_faults, tear_down_all);
}
