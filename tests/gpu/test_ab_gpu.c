/* ab on a card: every registered pair keeps its promise there, and its harness sees a kernel that does nothing. Products
 * with official weights are left to the command itself, which takes seconds to make them. */
#include "engine/ab.h"

#include "gpu.h"

static ab_device *card;

/* All shapes but those whose weights are large: 1 seed of each kind, at two T. */
static void every_pair_keeps_its_promise(void **state)
{
    (void)state;
    err e = { 0 };
    int broken = 0;
    for (int32_t i = 0; i < ab_pair_count(); i++) {
        const ab_pair *p = ab_pair_at(i);
        int64_t n = 0, equal = 0, all = 0;
        for (int32_t s = p->weights ? p->cpu_first : 0; s < p->n_shapes; s++) {
            ab_case *c;
            gpu_ok(ab_case_open(p, p->shape[s], 4, card, &c, &e), &e);
            for (int32_t T = 4; T >= 1; T -= 3) {
                ab_case_resize(c, T);
                for (int kind = 0; kind < AB_KINDS; kind++) {
                    ab_finding f;
                    char text[512];
                    if (kind != AB_PLAIN && !(p->kinds >> kind & 1)) continue;
                    gpu_ok(ab_case_compare(c, (ab_kind)kind, 3, &f, &e), &e);
                    n++;
                    equal += f.n_equal;
                    all += f.n_all;
                    if (f.fault == AB_EQUAL) continue;
                    ab_finding_text(&f, text, sizeof text);
                    print_message("%s, shape %d: %s\n", p->name[AB_NEW], s, text);
                    broken++; /* one run tells of all of them */
                }
            }
            ab_case_close(c);
        }
        print_message("%-28s %3lld inputs, %8lld of %8lld elements have equal bits\n", p->name[AB_NEW], (long long)n,
                      (long long)equal, (long long)all);
    }
    assert_int_equal(broken, 0);
}

static void times_of_the_small_pairs(void **state)
{
    (void)state;
    err e = { 0 };
    const ab_settings s = { .iterations = 9, .settle_s = 0.02 };
    print_message("figure: ab.empty_node %.3f us\n", card->empty_us);
    assert_true(card->empty_us > 0 && card->copy_bytes_per_s > 1e10);
    for (int32_t i = 0; i < ab_pair_count(); i++) {
        const ab_pair *p = ab_pair_at(i);
        ab_finding f;
        ab_times units, once;
        ab_case *c;
        if (p->weights) continue;
        gpu_ok(ab_case_open(p, p->shape[0], 1, card, &c, &e), &e);
        gpu_ok(ab_case_compare(c, AB_PLAIN, 3, &f, &e), &e);
        gpu_ok(ab_case_time(c, true, &s, &units, &e), &e);
        gpu_ok(ab_case_time(c, false, &s, &once, &e), &e);
        ab_case_close(c);
        assert_true(units.p50_us[AB_BASE] > 0 && once.p50_us[AB_BASE] > 0);
        print_message("figure: ab.%s.T1.base %.3f us\nfigure: ab.%s.T1.new %.3f us\n", p->name[AB_NEW],
                      units.p50_us[AB_BASE], p->name[AB_NEW], units.p50_us[AB_NEW]);
    }
}

static err_code nothing(const ab_call *c, err *e)
{
    (void)c, (void)e;
    return ERR_OK;
}

static void a_kernel_that_does_nothing_is_seen(void **state)
{
    (void)state;
    err e = { 0 };
    ab_finding f;
    ab_case *c;
    for (int both = 0; both < 2; both++) {
        ab_pair p = *ab_pair_at(0);
        p.side[AB_NEW] = nothing;
        if (both) p.side[AB_BASE] = nothing;
        gpu_ok(ab_case_open(&p, p.shape[0], 1, card, &c, &e), &e);
        gpu_ok(ab_case_compare(c, AB_PLAIN, 3, &f, &e), &e);
        ab_case_close(c);
        assert_int_not_equal(f.fault, AB_EQUAL);
        assert_string_equal(f.array, "R");
        assert_int_equal(f.fault, both ? AB_UNMOVED : AB_DIFFERS);
    }
}

static int open_card(void **state)
{
    (void)state;
    err e = { 0 };
    if (ab_card_open(&card, &e) == ERR_OK) return 0;
    print_message("%s\n", e.msg);
    return -1;
}

static int close_card(void **state)
{
    (void)state;
    ab_card_close(card);
    return 0;
}

int main(void)
{
    if (krn_device_count() == 0) return gpu_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_keeps_its_promise),
        cmocka_unit_test(times_of_the_small_pairs),
        cmocka_unit_test(a_kernel_that_does_nothing_is_seen),
    };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
