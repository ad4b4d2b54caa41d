/* Which arms a machine runs, by pretended cards and memory. */
#include "tests/engine/fixture.h"

#include "engine/system.h"
#include "tests/support/ok.h"

enum { POSITIONS = 1000, SLOTS = 2 };

static fixture checkpoint;
static eng_weights *weights;

static int setup(void **state)
{
    (void)state;
    fixture_init(&checkpoint);
    fixture_write(&checkpoint);
    OK(eng_weights_open(checkpoint.dir, true, &weights, e));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    eng_weights_close(weights);
    fixture_fini(&checkpoint);
    return 0;
}

static eng_cards cards_of(int32_t n, uint64_t free_bytes)
{
    eng_cards c = { .built = true, .nccl = "2.28.9", .n = n };
    for (int32_t i = 0; i < n; i++) c.card[i].memory_free_bytes = free_bytes;
    return c;
}

static eng_system_arm arm_of(const char *name, uint64_t memory_bytes, const eng_cards *cards)
{
    eng_system_arm a;
    OK(eng_system_arm_of(eng_weights_config(weights), weights, eng_arm_find(name), POSITIONS, SLOTS, memory_bytes, cards,
                         &a, e));
    return a;
}

static void names(eng_way way, const char *text)
{
    if (!strstr(way.why, text)) fail_msg("'%s' lacks '%s'", way.why, text);
}

static void memory_decides_to_the_byte(void **state)
{
    (void)state;
    eng_cards none = cards_of(0, 0);
    const eng_system_arm size = arm_of("native-packed", 0, &none);
    assert_true(size.two_bytes > size.one_bytes / 4 && size.two_bytes < size.one_bytes);
    eng_cards c = cards_of(2, size.one_bytes);
    eng_system_arm a = arm_of("native-packed", size.one_bytes, &c);
    assert_string_equal(a.cpu.why, "");
    assert_string_equal(a.card.why, "");
    assert_string_equal(a.nccl.why, "");
    names(a.emulated, "card 0 has");
    c = cards_of(2, size.one_bytes - 1);
    a = arm_of("native-packed", size.one_bytes - 1, &c);
    names(a.cpu, "memory has");
    names(a.card, "card 0 has");
    c = cards_of(2, 2 * size.two_bytes);
    c.card[1].memory_free_bytes = size.two_bytes - 1;
    a = arm_of("native-packed", 0, &c);
    assert_string_equal(a.emulated.why, "");
    names(a.nccl, "card 1 has");
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    eng_cards c = cards_of(1, UINT64_MAX);
    eng_system_arm a = arm_of("native-packed", UINT64_MAX, &c);
    names(a.nccl, "one card, wanted 2");
    assert_string_equal(a.emulated.why, "");
    a = arm_of("k2-tp2", UINT64_MAX, &c);
    names(a.cpu, "sparktape quantize");
    names(a.card, "sparktape quantize");
    const uint64_t bytes = a.one_bytes; /* by the config alone nothing is missing */
    OK(eng_system_arm_of(eng_weights_config(weights), NULL, eng_arm_find("k2-tp2"), POSITIONS, SLOTS, UINT64_MAX, &c, &a,
                         e));
    assert_string_equal(a.cpu.why, "");
    assert_int_equal(a.one_bytes, bytes);
    a = arm_of("mirror64", UINT64_MAX, &c);
    assert_string_equal(a.cpu.why, "");
    names(a.card, "the processor only");
    c = cards_of(0, 0);
    names(arm_of("native-packed", UINT64_MAX, &c).card, "no card");
    c.built = false;
    names(arm_of("native-packed", UINT64_MAX, &c).card, "built without CUDA");
    c = cards_of(2, UINT64_MAX);
    strcpy(c.nccl, "none");
    names(arm_of("native-packed", UINT64_MAX, &c).nccl, "built without NCCL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_decides_to_the_byte),
        cmocka_unit_test(what_is_missing_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
