#include "replay_help.h"

#include "replay/reduce.h"

#include <dirent.h>
#include <sys/stat.h>

static fmt_tape *tape;

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    eng_options o = run_options("native-packed", 2, "eager");
    tape = record("run.tape", &o, ENG_LEVEL_DEEP);
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(tape);
    return run_teardown(state);
}

/* Each bundle has a folder of its own. */
static rpl_reduced reduce(const char *op, int32_t slot, int32_t first, int32_t last, char folder[32])
{
    static int n;
    rpl_reduced r;
    snprintf(folder, 32, "bundle%d", n++);
    const rpl_reduce_options o = { .round = 1, .slot = slot, .op = op, .first = first, .last = last, .folder = folder };
    OK(rpl_reduce(tape, shared_run.weights, &o, &r, e));
    return r;
}

static bool is_there(const char *folder, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static int64_t bytes_of(const char *folder, const char *name)
{
    struct stat s;
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &s) == 0 ? (int64_t)s.st_size : -1;
}

/* Files of data/ whose name begins with prefix. */
static int count_files(const char *folder, const char *prefix)
{
    char path[200];
    int n = 0;
    snprintf(path, sizeof path, "%s/data", folder);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(d);
    return n;
}

static void every_op_of_both_steps_makes_a_bundle(void **state)
{
    const eng_config *c = eng_weights_config(shared_run.weights);
    char folder[32];
    (void)state;
    for (int step = 0; step < 2; step++) {
        eng_program *p;
        OK(eng_program_make(c, (eng_step_kind)step, 1, ENG_COMBINE_EXACT, NULL, &p, e));
        for (int32_t v = 0; v < p->n_values; v++) {
            const eng_value *value = &p->value[v];
            if (value->state || value->producer < 0 || value->level > ENG_LEVEL_DEEP) continue;
            if (strstr(value->name, "s1.")) continue; /* as stage 0 */
            rpl_reduced r = reduce(value->name, step == 0 ? 1 : FMT_TAPE_NO_SLOT, 0, -1, folder);
            if (r.n == 0 || r.n_illegal || r.n_unjudged || r.n != r.n_equal + r.n_flip)
                fail_msg("%s: %lld elements, %lld illegal", value->name, (long long)r.n, (long long)r.n_illegal);
            assert_true(is_there(folder, "test.c") && is_there(folder, "README.md") && is_there(folder, "bundle.h"));
        }
        eng_program_free(p);
    }
}

static void only_chosen_experts_are_in_it(void **state)
{
    const eng_config *c = eng_weights_config(shared_run.weights);
    char folder[32];
    cap_value ids = { 0 };
    int chosen = 0;
    (void)state;
    reduce("s0.ffn.gate", FMT_TAPE_NO_SLOT, 2, 2, folder);
    OK(cap_joined_get(tape, &(fmt_tape_key){ 1, FMT_TAPE_NO_SLOT, 0, "s0.ffn.ids" }, &ids, e));
    for (int32_t ex = 0; ex < c->n_experts; ex++) {
        const int32_t *of_row = (const int32_t *)ids.tensor.data + 2 * c->n_active;
        bool has = false;
        char name[64];
        for (int32_t k = 0; k < c->n_active; k++) has = has || of_row[k] == ex;
        snprintf(name, sizeof name, "data/ffn.experts.%d.w1.npy", ex);
        assert_int_equal(is_there(folder, name), has);
        chosen += has;
    }
    assert_int_equal(chosen, c->n_active);
    assert_int_equal(count_files(folder, "ffn.experts."), 4 * c->n_active); /* w1, w3, and their scales */
    cap_value_fini(&ids);
}

static void only_tokens_that_were_met_are_in_it(void **state)
{
    const eng_config *c = eng_weights_config(shared_run.weights);
    char folder[32];
    (void)state;
    reduce("x0", FMT_TAPE_NO_SLOT, 0, -1, folder);
    assert_true(bytes_of(folder, "data/embed.npy") > 0);
    assert_true(bytes_of(folder, "data/embed.npy") < (int64_t)c->vocab * c->dim / 4);
}

static void rows_are_taken_whole_blocks_where_they_meet(void **state)
{
    const eng_config *c = eng_weights_config(shared_run.weights);
    char folder[32];
    (void)state;
    rpl_reduced all = reduce("s0.attn.norm", FMT_TAPE_NO_SLOT, 0, -1, folder);
    rpl_reduced one = reduce("s0.attn.norm", FMT_TAPE_NO_SLOT, 1, 1, folder);
    assert_int_equal(one.rows, 1);
    assert_int_equal(one.n * all.rows, all.n);
    assert_true(one.bytes < all.bytes);
    rpl_reduced block = reduce("s0.attn.o", FMT_TAPE_NO_SLOT, 1, 1, folder);
    assert_int_equal(block.rows, c->block);
    rpl_reduced tokens = reduce("drafts", FMT_TAPE_NO_SLOT, all.rows - 1, all.rows - 1, folder);
    assert_int_equal(tokens.rows, c->block);
}

static void a_refusal_leaves_nothing(void **state)
{
    rpl_reduced r;
    rpl_reduce_options o = { .round = 1, .slot = FMT_TAPE_NO_SLOT, .op = "nope", .last = -1, .folder = "no" };
    (void)state;
    REFUSED(rpl_reduce(tape, shared_run.weights, &o, &r, e), ERR_INPUT, "nope");
    o.op = "s0.window";
    REFUSED(rpl_reduce(tape, shared_run.weights, &o, &r, e), ERR_INPUT, "copied rows");
    o.op = "main_x";
    REFUSED(rpl_reduce(tape, shared_run.weights, &o, &r, e), ERR_ARG, "--slot");
    o.slot = 77;
    REFUSED(rpl_reduce(tape, shared_run.weights, &o, &r, e), ERR_INPUT, "slot 77");
    o.slot = FMT_TAPE_NO_SLOT;
    o.op = "x0";
    o.round = 99;
    REFUSED(rpl_reduce(tape, shared_run.weights, &o, &r, e), ERR_INPUT, "round 99");
    o.round = 1;
    o.first = o.last = 500;
    REFUSED(rpl_reduce(tape, shared_run.weights, &o, &r, e), ERR_ARG, "rows 500-500");
    assert_true(access("no", F_OK) != 0 && access("no.part", F_OK) != 0);
    o.folder = "model";
    REFUSED(rpl_reduce(tape, shared_run.weights, &o, &r, e), ERR_ARG, "model");
    o.folder = "missing/no";
    REFUSED(rpl_reduce(tape, shared_run.weights, &o, &r, e), ERR_IO, "missing/no.part");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_of_both_steps_makes_a_bundle),
        cmocka_unit_test(only_chosen_experts_are_in_it),
        cmocka_unit_test(only_tokens_that_were_met_are_in_it),
        cmocka_unit_test(rows_are_taken_whole_blocks_where_they_meet),
        cmocka_unit_test(a_refusal_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
