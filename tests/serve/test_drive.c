/* drive's parts: the fault list, how rounds are dealt out to clients, and what a turn's time is made of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "serve/drive.h"
#include "serve/server.h"
#include "tests/serve/serve_help.h"
#include "engine/traffic.h"

static void fault_lists_are_read(void **state)
{
    (void)state;
    srv_fault_plan p;
    OK(srv_faults_parse("drop:0.25,wrong-epoch:0.5@77", &p, e));
    assert_true(p.p[SRV_FAULT_DROP] == 0.25 && p.p[SRV_FAULT_EPOCH] == 0.5 && p.p[SRV_FAULT_DELAY] == 0);
    assert_int_equal(p.seed, 77);
    OK(srv_faults_parse("all:0.1", &p, e));
    for (int f = 0; f < SRV_FAULT_COUNT; f++) assert_true(p.p[f] == 0.1);
    static const char *const BAD[] = { "", "drop", "drop:", "drop:0", "drop:1.5", "drop:x", "drip:0.1", "drop:0.1,",
                                       "drop:0.1@", "drop:0.1@-1", "drop:0.1@x", "all:0.5", "drop:nan" };
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        err e = { 0 };
        if (srv_faults_parse(BAD[i], &p, &e) != ERR_ARG || !e.msg[0]) fail_msg("'%s' was taken", BAD[i]);
    }
}

static void faults_come_as_often_as_asked_and_always_the_same(void **state)
{
    (void)state;
    enum { TURNS = 20000 };
    srv_fault_plan p, other;
    int count[SRV_FAULT_COUNT + 1] = { 0 }, moved = 0;
    OK(srv_faults_parse("drop:0.1,truncate:0.02@1", &p, e));
    OK(srv_faults_parse("drop:0.1,truncate:0.02@2", &other, e));
    for (uint64_t t = 0; t < TURNS; t++) {
        srv_fault f = srv_fault_of(&p, 3, t);
        count[f]++;
        assert_int_equal(srv_fault_of(&p, 3, t), f);
        moved += f != srv_fault_of(&other, 3, t) || f != srv_fault_of(&p, 2, t);
    }
    assert_in_range(count[SRV_FAULT_DROP], TURNS * 8 / 100, TURNS * 12 / 100);
    assert_in_range(count[SRV_FAULT_TRUNCATE], TURNS * 1 / 100, TURNS * 3 / 100);
    assert_int_equal(count[SRV_FAULT_DROP] + count[SRV_FAULT_TRUNCATE] + count[SRV_NO_FAULT], TURNS);
    assert_true(moved > TURNS / 10);
}

/* Each insert and each drafted slot of the script is some client's, once, in order, and a slot stays with its client. */
static void rounds_are_dealt_out_whole(void **state)
{
    (void)state;
    eng_script *script;
    eng_traffic_report report;
    OK(eng_traffic_write("s.safetensors", &help_config, 12, 4, 5, true, &report, e));
    OK(eng_script_open("s.safetensors", &help_config, &script, e));
    for (int32_t n = 1; n <= 4; n++) {
        srv_plan *p;
        int64_t inserts = 0, drafts = 0;
        OK(srv_plan_script("s.safetensors", &help_config, n, &p, e));
        assert_int_equal(srv_plan_parts(p), n);
        for (int32_t k = 0; k < n; k++) {
            const srv_part *part = srv_plan_part(p, k);
            int32_t last_round = -1;
            assert_int_equal(part->slots_at_once, 4 / n + (k < 4 % n));
            for (size_t t = 0; t < part->n_turns; t++) {
                const srv_turn *turn = &part->turn[t];
                assert_true(turn->round > last_round);
                last_round = turn->round;
                inserts += turn->n_inserts;
                drafts += turn->batch;
                for (int32_t i = 0; i < turn->n_inserts; i++)
                    assert_int_equal(eng_script_dense(script, turn->insert[i].slot) % n, k);
                for (int32_t b = 0; b < turn->batch; b++)
                    assert_int_equal(eng_script_dense(script, turn->slot[b]) % n, k);
            }
        }
        for (int32_t i = 0; i < eng_script_rounds(script); i++) {
            inserts -= eng_script_at(script, i)->n_inserts;
            drafts -= eng_script_at(script, i)->batch;
        }
        assert_int_equal(inserts, 0);
        assert_int_equal(drafts, 0);
        srv_plan_close(p);
    }
    eng_script_close(script);
}

static void *serve(void *arg)
{
    srv_server *server = ((void **)arg)[0];
    srv_worker *worker = ((void **)arg)[1];
    OK(srv_server_run(server, worker, e));
    return NULL;
}

/* Every turn that drafts has its parts, and no part of a turn is longer than the longest turn. */
static void a_turns_time_is_told_by_parts(void **state)
{
    (void)state;
    eng_traffic_report report;
    srv_address wanted, bound;
    int fd;
    pthread_t thread;
    double seconds;
    srv_plan *plan;
    srv_server *server;
    srv_worker *worker;
    srv_drive_counts *n = mem_alloc(1, sizeof *n);
    json_t *about = json_object();
    eng_engine *engine = help_engine(HELP_SLOTS);
    OK(eng_traffic_write("t.safetensors", &help_config, 12, 4, 5, true, &report, e));
    OK(srv_plan_script("t.safetensors", &help_config, 2, &plan, e));
    OK(srv_address_parse("unix:./d.sock", true, &wanted, e));
    OK(srv_listen(&wanted, &fd, &bound, e));
    OK(srv_server_open(&(srv_server_setup){ .fd = fd, .address = &bound, .frame_timeout_ns = 10000000000ull }, &server, e));
    OK(srv_worker_open(&(srv_worker_setup){ .engine = engine, .checkpoint = "", .about = about, .slots = HELP_SLOTS,
                                            .positions = 1 << 20, .wake = srv_server_wake, .ctx = server }, &worker, e));
    assert_int_equal(pthread_create(&thread, NULL, serve, (void *[]){ server, worker }), 0);
    OK(srv_drive(&(srv_drive_setup){ .address = &bound, .client = "t", .checkpoint = "", .arm = "", .repeat = 3,
                                     .positions = srv_plan_positions(plan), .plan = plan, .timeout_ns = 20000000000ull },
                 n, &seconds, e));
    srv_server_stop(server);
    pthread_join(thread, NULL);
    srv_worker_close(worker);
    srv_server_close(server);
    assert_true(n->step.count > 0 && n->first_ns > 0);
    assert_int_equal(n->send.count, n->step.count);
    assert_int_equal(n->queue.count, n->step.count);
    assert_int_equal(n->rest.count, n->step.count);
    const srv_histogram *part[] = { &n->send, &n->queue, &n->step, &n->rest };
    uint64_t sum_ns = 0;
    for (size_t i = 0; i < COUNT_OF(part); i++) {
        assert_true(part[i]->max_ns <= n->turn.max_ns);
        sum_ns += part[i]->sum_ns;
    }
    assert_true(sum_ns <= n->turn.sum_ns && sum_ns > n->turn.sum_ns / 2);
    srv_plan_close(plan);
    eng_close(engine);
    json_decref(about);
    free(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fault_lists_are_read),
        cmocka_unit_test(faults_come_as_often_as_asked_and_always_the_same),
        cmocka_unit_test(rounds_are_dealt_out_whole),
        cmocka_unit_test(a_turns_time_is_told_by_parts),
    };
    return cmocka_run_group_tests(tests, help_make_model, help_drop_model);
}
