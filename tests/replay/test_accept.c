#include "replay_help.h"

#include <math.h>

#include "replay/accept.h"

/* A request whose target answers as it should: after each draft one insert, of the anchor's row and of those of the drafts
 * that it took, and the next draft with its own token as anchor. */
enum { N_ROUNDS = 12, PROMPT = 10, ROWS_MAX = 256 };

static eng_config config;
static bf16 *pool;
static int32_t counting[ROWS_MAX];
static int32_t taken[N_ROUNDS]; /* drafts taken of round i; of the last one nothing is told */
static fmt_tape *source;        /* io, and main_x */

static json_t *identity_of(const eng_options *o) { return eng_identity(shared_run.weights, o); }

/* Drafts of a round, read from the engine by running it, are what the target answers to. */
static fmt_tape *record_request(const char *path)
{
    eng_options o = run_options("native-packed", 1, "eager");
    const char *main_x[] = { "main_x=tensor" };
    cli_list taps = { .count = 1, .item = { main_x[0] } };
    const cap_options options = { .level = ENG_LEVEL_IO, .taps = &taps };
    eng_engine *g, *ahead;
    cap_recorder *r;
    fmt_tape *t;
    int32_t last = -1, anchor = 5, rows = PROMPT, slot = 0, tape_slot = 7, n_out = config.block;
    json_t *identity = identity_of(&o);
    OK(eng_open(shared_run.weights, &o, 1, cap_retain_level(&options), true, &g, e));
    OK(eng_open(shared_run.weights, &o, 1, ENG_LEVEL_IO, true, &ahead, e));
    OK(cap_recorder_open(g, path, identity, &options, &r, e));
    for (int32_t i = 0; i < N_ROUNDS; i++) {
        int32_t drafts[ENG_BLOCK_MAX], pos = last + rows;
        float confidence[ENG_BLOCK_MAX];
        eng_insert_event in = { tape_slot, rows, pool, counting + last + 1 };
        eng_round round = { .round = i, .n_inserts = 1, .inserts = &in, .batch = 1, .slots = &tape_slot,
                            .anchors = &anchor, .pos = &pos, .n_out = n_out };
        OK(eng_insert(ahead, 0, pool, in.pos, rows, NULL, e));
        OK(eng_draft(ahead, 1, &slot, &anchor, &pos, n_out, drafts, confidence, NULL, e));
        OK(cap_recorder_round(r, &round, &slot, &slot, NULL, e));
        taken[i] = i * 2 % (n_out + 1);
        last = pos;
        rows = taken[i] + 1;
        /* the target's own token: none of those that it refused, but in round 3 the very one */
        anchor = taken[i] == n_out ? 9 : i == 3 ? drafts[taken[i]] : (drafts[taken[i]] + 1) % config.vocab;
    }
    OK(cap_recorder_finish(r, e));
    eng_close(g);
    eng_close(ahead);
    json_decref(identity);
    OK(fmt_tape_open(path, &t, e));
    return t;
}

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    config = *eng_weights_config(shared_run.weights);
    size_t n = (size_t)ROWS_MAX * (size_t)config.n_taps * (size_t)config.dim;
    pool = mem_alloc(n, sizeof *pool);
    if (!pool) return -1;
    for (size_t i = 0; i < n; i++) pool[i] = bf16_from_f32((float)((int)(i * 2654435761u >> 20 & 1023) - 512) / 300.0F);
    for (int32_t i = 0; i < ROWS_MAX; i++) counting[i] = i;
    source = record_request("request.tape");
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(source);
    free(pool);
    return run_teardown(state);
}

static eng_options arms[2];

static rpl_accept_options two_arms(void)
{
    arms[0] = run_options("native-packed", 1, "eager");
    arms[1] = run_options("mirror64", 0, "eager");
    return (rpl_accept_options){ .arm = arms, .n_arms = 2, .shard = 1, .n_shards = 1, .quiet = true };
}

static rpl_acceptance run_accept(const fmt_tape *t, const rpl_accept_options *o)
{
    rpl_acceptance a = { 0 };
    OK(rpl_accept_tape(t, shared_run.weights, o, &a, e));
    return a;
}

static void what_the_target_took_is_read_off_the_tape(void **state)
{
    (void)state;
    rpl_accept_options o = two_arms();
    rpl_acceptance a = run_accept(source, &o);
    double sum = 0;
    assert_int_equal(a.n_blocks, N_ROUNDS);
    for (int32_t i = 0; i < N_ROUNDS; i++) {
        const rpl_block *b = &a.block[i];
        assert_int_equal(b->taken, i + 1 < N_ROUNDS ? taken[i] : -1);
        if (!b->determined) continue;
        for (int32_t k = 0; k < b->taken; k++) assert_int_equal(b->target[k], b->drafts[k]);
        if (b->taken < b->n_out) assert_int_equal(b->target[b->taken], a.block[i + 1].anchor);
        sum += taken[i] + (i == 3 && taken[3] < b->n_out); /* the target's token was the draft that it did not take */
    }
    assert_true(a.n_determined >= N_ROUNDS - 4 && a.n_determined < N_ROUNDS);
    assert_int_equal(a.n_short, 1);
    const rpl_accept_run *recorded = &a.run[0];
    assert_int_equal(recorded->accepted.n, a.n_determined);
    assert_true(recorded->accepted.mean >= sum / (double)a.n_determined - 1e-12); /* more where tokens go on to agree */
    assert_true(recorded->accepted.error > 0);
    rpl_acceptance_fini(&a);
}

static void the_recorded_arm_drafts_the_recorded_blocks(void **state)
{
    (void)state;
    rpl_accept_options o = two_arms();
    rpl_acceptance a = run_accept(source, &o);
    for (int r = 1; r <= 2; r++) { /* A and B of native-packed */
        assert_int_equal(a.run[r].windows, r == 1 ? 'A' : 'B');
        assert_string_equal(a.run[r].missing, "");
        assert_int_equal(a.run[r].n_blocks, N_ROUNDS);
        assert_int_equal(a.run[r].n_exact, N_ROUNDS);
        assert_true(a.run[r].accepted.mean == a.run[0].accepted.mean);
        assert_int_equal(a.run[r].versus.n, 0); /* it is the control */
        assert_int_equal(a.run[r + 2].versus.n, a.n_determined);
        double difference = a.run[r + 2].accepted.mean - a.run[r].accepted.mean;
        assert_true(fabs(a.run[r + 2].versus.mean - difference) < 1e-12);
    }
    rpl_acceptance_fini(&a);
}

static void parts_add_up(void **state)
{
    (void)state;
    rpl_accept_options o = two_arms();
    rpl_acceptance whole = run_accept(source, &o);
    int64_t n = 0, exact = 0, determined = 0;
    double accepted = 0;
    o.n_shards = 2;
    for (o.shard = 1; o.shard <= 2; o.shard++) {
        rpl_acceptance part = run_accept(source, &o);
        n += part.run[3].n_blocks;
        exact += part.run[3].n_exact;
        determined += part.n_determined;
        accepted += part.run[3].accepted.mean * (double)part.run[3].accepted.n;
        rpl_acceptance_fini(&part);
    }
    assert_int_equal(n, N_ROUNDS);
    assert_int_equal(exact, whole.run[3].n_exact);
    assert_int_equal(determined, whole.n_determined);
    assert_true(fabs(accepted / (double)determined - whole.run[3].accepted.mean) < 1e-12);
    rpl_acceptance_fini(&whole);
}

static bool drop_one(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)data;
    return strcmp(r->key.name, ctx) != 0;
}

static void what_the_tape_lacks_is_said(void **state)
{
    (void)state;
    char taps[] = "taps", main_x[] = "main_x";
    rpl_accept_options o = two_arms();
    fmt_tape *t = copy_tape(source, "no-taps.tape", drop_one, taps);
    rpl_acceptance a = run_accept(t, &o);
    assert_string_equal(a.run[1].missing, "");
    assert_string_equal(a.run[2].missing, "taps of every insert");
    assert_int_equal(a.run[1].n_exact, N_ROUNDS);
    assert_int_equal(a.n_target_logits, 0);
    assert_int_equal(a.run[1].p_target.n, 0);
    rpl_acceptance_fini(&a);
    fmt_tape_close(t);
    t = copy_tape(source, "no-main-x.tape", drop_one, main_x);
    a = run_accept(t, &o);
    assert_string_equal(a.run[1].missing, "main_x of every insert");
    assert_string_equal(a.run[2].missing, "");
    rpl_acceptance_fini(&a);
    fmt_tape_close(t);
}

/* Splits what is known: an insert of a round is a row shorter at its front. */
static bool later_insert(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)ctx;
    if (r->key.round != 6 || r->key.slot != 7) return true;
    if (strcmp(r->key.name, "pos") != 0) return strcmp(r->key.name, "taps") == 0 || strcmp(r->key.name, "main_x") == 0;
    int32_t *pos = (int32_t *)(void *)data;
    for (int64_t i = 0; i < r->tensor.shape[0]; i++) pos[i]++;
    return true;
}

static void positions_that_do_not_follow_are_refused(void **state)
{
    (void)state;
    rpl_accept_options o = two_arms();
    rpl_acceptance a = { 0 };
    fmt_tape *t = copy_tape(source, "gap.tape", later_insert, NULL);
    REFUSED(rpl_accept_tape(t, shared_run.weights, &o, &a, e), ERR_INPUT, "round 6 slot 7");
    rpl_acceptance_fini(&a);
    fmt_tape_close(t);
}

/* Copies source with the target's logits beside every insert: 0 but for one token, which gets `logit`. */
static fmt_tape *with_logits(const char *path, int32_t token, float logit)
{
    fmt_tape_writer *w;
    fmt_tape *t;
    OK(fmt_tape_create(path, fmt_tape_head(source), &w, e));
    for (size_t i = 0; i < fmt_tape_count(source); i++) {
        fmt_tape_record r;
        fmt_tape_at(source, i, &r);
        uint8_t *data = mem_alloc(r.raw_bytes, 1);
        OK(fmt_tape_get(source, i, data, r.raw_bytes, e));
        r.tensor.data = data;
        OK(fmt_tape_put(w, &r.key, &r.tensor, r.place, r.axis, r.n_ranks, r.tier, e));
        free(data);
        if (strcmp(r.key.name, "pos") != 0) continue;
        int64_t shape[2] = { r.tensor.shape[0], config.vocab };
        float *x = mem_alloc((size_t)(shape[0] * shape[1]), sizeof *x);
        for (int64_t row = 0; row < shape[0]; row++) x[row * shape[1] + token] = logit;
        fmt_tape_key key = r.key;
        key.name = "target.logits";
        fmt_tensor logits = fmt_tensor_make(FMT_DTYPE_F32, x, 2, shape);
        OK(fmt_tape_put(w, &key, &logits, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
        free(x);
    }
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open(path, &t, e));
    return t;
}

static void the_targets_probabilities_are_summed_to_the_first_mismatch(void **state)
{
    (void)state;
    rpl_accept_options o = two_arms();
    fmt_tape *t = with_logits("logits.tape", 0, 0);
    rpl_acceptance a = run_accept(t, &o);
    double wanted = 0;
    int64_t n = 0;
    assert_true(a.n_target_logits > 0);
    for (int32_t i = 0; i < N_ROUNDS; i++) {
        const rpl_block *b = &a.block[i];
        int32_t lead = 0;
        if (!b->determined || b->n_logits != b->n_out) continue;
        while (lead < b->n_out && b->drafts[lead] == b->target[lead]) lead++;
        wanted += (double)(lead < b->n_out ? lead + 1 : lead) / (double)config.vocab;
        n++;
    }
    assert_true(n > 4);
    assert_int_equal(a.run[0].p_target.n, n);
    assert_true(fabs(a.run[0].p_target.mean - wanted / (double)n) < 1e-12);
    rpl_acceptance_fini(&a);
    fmt_tape_close(t);
}

static void rounds_that_are_not_on_the_tape_break_the_chain(void **state)
{
    (void)state;
    rpl_accept_options o = two_arms();
    fmt_tape *t = record_request("whole.tape"), *chosen;
    /* the same tape without round 4, which says that rounds are missing */
    json_t *head = json_copy((json_t *)(uintptr_t)fmt_tape_head(t));
    fmt_tape_writer *w;
    json_object_set_new(head, "rounds", json_string("0-3,5-11"));
    OK(fmt_tape_create("chosen.tape", head, &w, e));
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        uint8_t *data = mem_alloc(r.raw_bytes, 1);
        OK(fmt_tape_get(t, i, data, r.raw_bytes, e));
        r.tensor.data = data;
        if (r.key.round != 4) OK(fmt_tape_put(w, &r.key, &r.tensor, r.place, r.axis, r.n_ranks, r.tier, e));
        free(data);
    }
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open("chosen.tape", &chosen, e));
    rpl_acceptance a = run_accept(chosen, &o);
    for (size_t k = 0; k < a.n_blocks; k++)
        if (a.block[k].round == 3) assert_int_equal(a.block[k].taken, -1);
    rpl_acceptance_fini(&a);
    json_decref(head);
    fmt_tape_close(chosen);
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_target_took_is_read_off_the_tape),
        cmocka_unit_test(the_recorded_arm_drafts_the_recorded_blocks),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(what_the_tape_lacks_is_said),
        cmocka_unit_test(positions_that_do_not_follow_are_refused),
        cmocka_unit_test(the_targets_probabilities_are_summed_to_the_first_mismatch),
        cmocka_unit_test(rounds_that_are_not_on_the_tape_break_the_chain),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
