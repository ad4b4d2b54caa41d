/* The memory plan reproduces the figures of the deployed pair (MiB of rank 0 of 2, as printed to one decimal). */
#include "engine/footprint.h"
#include "engine/share.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const eng_footprint_for DEPLOYED = { .n_ranks = 2, .positions = 327680, .slots = 8 };

static eng_footprint plan(const char *arm, const eng_footprint_for *f, int32_t rank)
{
    eng_config c;
    eng_footprint p;
    err e = { 0 };
    assert_true(eng_config_preset("official", &c));
    if (eng_footprint_of(&c, eng_arm_find(arm), f, rank, &p, &e) != ERR_OK) fail_msg("%s", e.msg);
    return p;
}

static void mib(const eng_footprint *p, eng_foot part, const char *wanted)
{
    char got[32];
    snprintf(got, sizeof got, "%.1f", (double)p->bytes[part] / 0x1p20);
    if (strcmp(got, wanted) != 0) fail_msg("%s: %s MiB, wanted %s", eng_foot_name(part), got, wanted);
}

static void packed_and_expanded_arms_have_the_published_sizes(void **state)
{
    (void)state;
    eng_footprint packed = plan("native-packed", &DEPLOYED, 0), expanded = plan("native-expanded", &DEPLOYED, 0);
    mib(&packed, ENG_FOOT_EXPERTS, "3442.5");
    mib(&expanded, ENG_FOOT_EXPERTS, "12960.0");
    mib(&packed, ENG_FOOT_DENSE, "321.1");
    mib(&expanded, ENG_FOOT_DENSE, "639.8");
    mib(&packed, ENG_FOOT_HEAD, "632.5");
    assert_int_equal(packed.bytes[ENG_FOOT_HEAD], 64768ull * 5120 * 2);
    eng_footprint rank_1 = plan("native-packed", &DEPLOYED, 1);
    assert_int_equal(rank_1.bytes[ENG_FOOT_HEAD], 64512ull * 5120 * 2);
}

static void parts_that_every_arm_shares_have_the_published_sizes(void **state)
{
    (void)state;
    eng_footprint p = plan("native-packed", &DEPLOYED, 0);
    mib(&p, ENG_FOOT_EMBED, "1262.5");
    mib(&p, ENG_FOOT_MARKOV_EMBED, "63.1");
    mib(&p, ENG_FOOT_MARKOV_HEAD, "31.6");
    mib(&p, ENG_FOOT_ROPE, "80.5");
    mib(&p, ENG_FOOT_SMALL, "18.8");
    mib(&p, ENG_FOOT_WINDOWS, "3.4");
    eng_footprint_for longer = DEPLOYED;
    longer.positions = 1048576;
    p = plan("native-packed", &longer, 0);
    mib(&p, ENG_FOOT_ROPE, "256.5");
}

static void the_control_has_the_published_sizes(void **state)
{
    (void)state;
    eng_footprint p = plan("k2-tp2", &DEPLOYED, 0);
    mib(&p, ENG_FOOT_EXPERTS, "1633.8");
    mib(&p, ENG_FOOT_DENSE, "218.5");
    mib(&p, ENG_FOOT_HEAD, "237.3");
    mib(&p, ENG_FOOT_MARKOV_CACHE, "1012.5");
    assert_int_equal(p.total_bytes >> 20, 4562);
}

/* The same three figures from the tensors that a delivery holds: bytes of each whole trellis and vector, cut by blocks. */
static void the_controls_figures_are_those_of_its_tensors(void **state)
{
    (void)state;
    static const int BITS[] = { [ENG_PART_EXPERTS] = 2, [ENG_PART_DENSE] = 5, [ENG_PART_HEAD] = 6 };
    uint64_t bytes[ENG_PART_SMALL + 1] = { 0 };
    eng_config c;
    eng_tensor_spec *spec;
    size_t n;
    err e = { 0 };
    assert_true(eng_config_preset("official", &c));
    assert_int_equal(eng_inventory_exl3(&c, &spec, &n, &e), ERR_OK);
    for (size_t i = 0; i < n; i++) {
        eng_part part = eng_wkind_of(spec[i].wid)->part;
        if (spec[i].exl3 == ENG_EXL3_TRELLIS) spec[i].shape[2] = 16 * BITS[part];
        if (spec[i].exl3 > ENG_EXL3_SVH) continue; /* signs and markers */
        eng_share share = eng_share_of(&c, &spec[i], 0, 2);
        bytes[part] += eng_share_bytes(&share);
    }
    free(spec);
    eng_footprint p = plan("k2-tp2", &DEPLOYED, 0);
    const uint64_t stages = 3, wo_a = 4096ull * 4096 + 128ull * 128 * 4; /* official FP8, its scales in fp32 */
    assert_int_equal(p.bytes[ENG_FOOT_EXPERTS], bytes[ENG_PART_EXPERTS]);
    assert_int_equal(p.bytes[ENG_FOOT_DENSE], bytes[ENG_PART_DENSE] + stages * wo_a);
    assert_int_equal(p.bytes[ENG_FOOT_HEAD], bytes[ENG_PART_HEAD]);
    assert_int_equal(bytes[ENG_PART_HEAD], 248848896); /* 40 x 506 blocks of 6 bits, and two vectors */
}

/* Totals were published with the K6 head and the control's bias cache in every arm. */
static void every_arm_has_the_published_total(void **state)
{
    (void)state;
    static const struct { const char *arm; double mib; } TOTALS[] = {
        { "k2-tp2", 4562 }, { "native-experts-packed", 6371 }, { "native-packed", 6473 }, { "native-hybrid", 6792 },
        { "native-expanded", 16310 }, { "native-packed-kx", 6473 }, { "native-hybrid-kx", 6792 },
    };
    eng_footprint_for deployed = DEPLOYED;
    deployed.head_exl3 = deployed.markov_cache = true;
    for (size_t i = 0; i < sizeof TOTALS / sizeof *TOTALS; i++) {
        eng_footprint p = plan(TOTALS[i].arm, &deployed, 0);
        uint64_t shared = p.total_bytes - p.bytes[ENG_FOOT_EXPERTS] - p.bytes[ENG_FOOT_DENSE] - p.bytes[ENG_FOOT_HEAD];
        if (!(fabs((double)p.total_bytes / 0x1p20 - TOTALS[i].mib) <= 0.5))
            fail_msg("%s: %.1f MiB, wanted %.0f", TOTALS[i].arm, (double)p.total_bytes / 0x1p20, TOTALS[i].mib);
        assert_true(fabs((double)shared / 0x1p20 - 2472.4) <= 0.1); /* published as a sum of rounded parts */
    }
}

static void the_second_rank_holds_less_of_the_head(void **state)
{
    (void)state;
    eng_footprint_for k6 = DEPLOYED;
    k6.head_exl3 = true;
    eng_footprint a = plan("native-packed", &k6, 0), b = plan("native-packed", &k6, 1);
    assert_true(fabs((double)(a.bytes[ENG_FOOT_HEAD] - b.bytes[ENG_FOOT_HEAD]) / 0x1p20 - 0.9) <= 0.05);
}

static void k6_replaces_the_official_head(void **state)
{
    (void)state;
    eng_footprint_for k6 = DEPLOYED;
    k6.head_exl3 = true;
    eng_footprint p = plan("native-packed", &k6, 0);
    mib(&p, ENG_FOOT_HEAD, "237.3");
}

static void ranks_together_hold_what_one_rank_holds_of_the_cut_parts(void **state)
{
    (void)state;
    eng_footprint_for alone = DEPLOYED;
    alone.n_ranks = 1;
    eng_footprint whole = plan("native-expanded", &alone, 0), a = plan("native-expanded", &DEPLOYED, 0),
                  b = plan("native-expanded", &DEPLOYED, 1);
    static const eng_foot CUT[] = { ENG_FOOT_EXPERTS, ENG_FOOT_HEAD, ENG_FOOT_MARKOV_HEAD };
    for (int i = 0; i < 3; i++) assert_int_equal(a.bytes[CUT[i]] + b.bytes[CUT[i]], whole.bytes[CUT[i]]);
    assert_int_equal(a.bytes[ENG_FOOT_EMBED], whole.bytes[ENG_FOOT_EMBED]);
}

/* A rank of four has 576 of the 2,304 inner columns: w2's last block of 128 columns is half empty. */
static void a_kx_arm_holds_whole_blocks(void **state)
{
    (void)state;
    eng_footprint_for four = DEPLOYED;
    four.n_ranks = 4;
    const eng_footprint packed = plan("native-packed", &four, 3), kx = plan("native-packed-kx", &four, 3);
    const uint64_t experts = 3 * 128, dim = 5120, inter = 576;
    assert_int_equal(packed.bytes[ENG_FOOT_EXPERTS], experts * 3 * inter * dim * 17 / 32);
    assert_int_equal(kx.bytes[ENG_FOOT_EXPERTS], experts * (2 * inter + 640) * dim * 17 / 32);
    assert_int_equal(kx.total_bytes - packed.total_bytes, experts * 64 * dim * 17 / 32);
}

static void a_rank_count_that_does_not_cut_is_refused(void **state)
{
    (void)state;
    eng_config c;
    eng_footprint p;
    err e = { 0 };
    assert_true(eng_config_preset("official", &c));
    eng_footprint_for five = DEPLOYED;
    five.n_ranks = 5;
    assert_int_equal(eng_footprint_of(&c, eng_arm_find("native-packed"), &five, 0, &p, &e), ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_and_expanded_arms_have_the_published_sizes),
        cmocka_unit_test(parts_that_every_arm_shares_have_the_published_sizes),
        cmocka_unit_test(the_control_has_the_published_sizes),
        cmocka_unit_test(the_controls_figures_are_those_of_its_tensors),
        cmocka_unit_test(every_arm_has_the_published_total),
        cmocka_unit_test(the_second_rank_holds_less_of_the_head),
        cmocka_unit_test(k6_replaces_the_official_head),
        cmocka_unit_test(ranks_together_hold_what_one_rank_holds_of_the_cut_parts),
        cmocka_unit_test(a_kx_arm_holds_whole_blocks),
        cmocka_unit_test(a_rank_count_that_does_not_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
