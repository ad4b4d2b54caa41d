#include "tape_help.h"

#include "base/mem.h"
#include "capture/round_list.h"

static cap_round_list parsed(const char *text)
{
    cap_round_list l;
    OK(cap_round_list_parse(text, "--rounds", &l, e));
    return l;
}

static void items_choose_their_rounds(void **state)
{
    static const struct { const char *text; int64_t in[4], out[4]; } CASES[] = {
        { "7", { 7, 7, 7, 7 }, { 6, 8, 0, 70 } },
        { "0", { 0, 0, 0, 0 }, { 1, 2, 3, 4 } },
        { "100-120", { 100, 101, 119, 120 }, { 99, 121, 0, 1000 } },
        { "5-5", { 5, 5, 5, 5 }, { 4, 6, 0, 55 } },
        { "30-", { 30, 31, 1000000, INT64_MAX }, { 29, 0, 1, 3 } },
        { "every:50", { 0, 50, 100, 5000 }, { 1, 49, 51, 99 } },
        { "every:1", { 0, 1, 2, 3 }, { -1, -2, -3, -4 } },
        { "all", { 0, 1, 77, INT64_MAX }, { -1, -2, -3, -4 } },
        { "7,100-120,every:50", { 7, 110, 150, 0 }, { 8, 99, 121, 151 } },
        { "p:1@3", { 0, 1, 2, 1000000 }, { -1, -2, -3, -4 } },
        { "9223372036854775807", { INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX }, { 0, 1, 2, INT64_MAX - 1 } },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        cap_round_list l = parsed(CASES[i].text);
        for (int k = 0; k < 4; k++) {
            long long in = CASES[i].in[k], out = CASES[i].out[k];
            if (!cap_round_list_has(&l, in)) fail_msg("%s lacks %lld", CASES[i].text, in);
            if (cap_round_list_has(&l, out)) fail_msg("%s has %lld", CASES[i].text, out);
        }
    }
}

static void bad_items_are_named_and_change_nothing(void **state)
{
    static const struct { const char *text, *found; } BAD[] = {
        { "", "''" }, { ",", "''" }, { "1,", "''" }, { ",1", "''" }, { "x", "'x'" }, { "-3", "'-3'" }, { "+3", "'+3'" },
        { "1 ", "'1 '" }, { " 1", "' 1'" }, { "1-2-3", "'1-2-3'" }, { "9-3", "'9-3'" }, { "1--2", "'1--2'" },
        { "every:0", "'every:0'" }, { "every:", "'every:'" }, { "every:-1", "'every:-1'" }, { "every:2x", "'every:2x'" },
        { "p:0.5", "'p:0.5'" }, { "p:@1", "'p:@1'" }, { "p:0@1", "'p:0@1'" }, { "p:1.01@1", "'p:1.01@1'" },
        { "p:-0.5@1", "'p:-0.5@1'" }, { "p:nan@1", "'p:nan@1'" }, { "p:inf@1", "'p:inf@1'" }, { "p:0.5@", "'p:0.5@'" },
        { "p:0.5@x", "'p:0.5@x'" }, { "p:0x1p-3@1", "'p:0x1p-3@1'" }, { "p:1e@1", "'p:1e@1'" }, { "All", "'All'" },
        { "1,2,none,3", "'none'" }, { "9223372036854775808", "'9223372036854775808'" },
        { "p:0.5@18446744073709551616", "'p:0.5@18446744073709551616'" },
        { "0000000000000000000000000000000000000000000000000000000000000000000001", "'0000" },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        cap_round_list l = { .n = 77 };
        REFUSED(cap_round_list_parse(BAD[i].text, "--rounds", &l, e), ERR_ARG, BAD[i].found);
        REFUSED(cap_round_list_parse(BAD[i].text, "DSPARK_V1_ROUNDS", &l, e), ERR_ARG, "DSPARK_V1_ROUNDS: ");
        assert_int_equal(l.n, 77);
    }
}

static void as_many_items_as_there_is_room_for(void **state)
{
    char text[4 * CAP_ROUND_ITEMS_MAX + 8] = "";
    cap_round_list l;
    (void)state;
    for (int i = 0; i < CAP_ROUND_ITEMS_MAX; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? "," : "", i);
    l = parsed(text);
    assert_int_equal(l.n, CAP_ROUND_ITEMS_MAX);
    assert_true(cap_round_list_has(&l, CAP_ROUND_ITEMS_MAX - 1));
    strcat(text, ",99");
    REFUSED(cap_round_list_parse(text, "--rounds", &l, e), ERR_ARG, "more than 64");
}

/* The same rounds in every run and build: another hash would choose others. */
static void chance_is_the_same_everywhere(void **state)
{
    static const int64_t WANTED[] = { 25, 42, 68, 72, 73, 81, 123, 124, 144, 148, 175, 180, 184, 202, 211, 218 };
    cap_round_list l = parsed("p:0.05@9");
    size_t n = 0;
    (void)state;
    for (int64_t round = 0; n < COUNT_OF(WANTED); round++)
        if (cap_round_list_has(&l, round)) assert_int_equal(round, WANTED[n++]);
}

static void chance_is_as_large_as_said_and_follows_the_seed(void **state)
{
    enum { ROUNDS = 100000 };
    static const struct { const char *text; double p; } CASES[] = {
        { "p:0.5@0", 0.5 }, { "p:0.01@9", 0.01 }, { "p:1e-3@18446744073709551615", 1e-3 }, { "p:0.999@1", 0.999 },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        cap_round_list l = parsed(CASES[i].text);
        double n = 0, sigma = sqrt(CASES[i].p * (1 - CASES[i].p) * ROUNDS);
        for (int64_t round = 0; round < ROUNDS; round++) n += cap_round_list_has(&l, round);
        if (!(fabs(n - CASES[i].p * ROUNDS) <= 4 * sigma)) fail_msg("%s: %.0f of %d", CASES[i].text, n, ROUNDS);
    }
    /* Rounds of two seeds meet as often as independent ones: p * p. */
    cap_round_list a = parsed("p:0.5@1"), b = parsed("p:0.5@2");
    double both = 0;
    for (int64_t round = 0; round < ROUNDS; round++) both += cap_round_list_has(&a, round) && cap_round_list_has(&b, round);
    assert_true(fabs(both - 0.25 * ROUNDS) <= 4 * sqrt(0.25 * 0.75 * ROUNDS));
    /* And so do neighbours of one seed. */
    both = 0;
    for (int64_t round = 0; round < ROUNDS; round++)
        both += cap_round_list_has(&a, round) && cap_round_list_has(&a, round + 1);
    assert_true(fabs(both - 0.25 * ROUNDS) <= 4 * sqrt(0.25 * 0.75 * ROUNDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_choose_their_rounds), cmocka_unit_test(bad_items_are_named_and_change_nothing),
        cmocka_unit_test(as_many_items_as_there_is_room_for), cmocka_unit_test(chance_is_the_same_everywhere),
        cmocka_unit_test(chance_is_as_large_as_said_and_follows_the_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
