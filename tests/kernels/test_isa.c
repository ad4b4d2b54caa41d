#include "kernels/kernels.h"

#include "base/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void the_best_set_is_what_the_processor_has(void **state)
{
    (void)state;
    krn_isa want = cpu_has_avx512() ? KRN_ISA_AVX512 : cpu_has_avx2() ? KRN_ISA_AVX2 : KRN_ISA_SCALAR;
    assert_int_equal(krn_isa_best(), want);
}

static void the_best_set_is_used_unless_another_is_chosen(void **state)
{
    (void)state;
    assert_int_equal(krn_isa_get(), krn_isa_best());
    for (krn_isa isa = KRN_ISA_SCALAR; isa <= krn_isa_best(); isa++) {
        krn_isa_set(isa);
        assert_int_equal(krn_isa_get(), isa);
    }
}

static void a_set_that_the_processor_lacks_is_clipped(void **state)
{
    (void)state;
    krn_isa_set(KRN_ISA_COUNT);
    assert_int_equal(krn_isa_get(), krn_isa_best());
}

static void every_set_has_a_name_of_its_own(void **state)
{
    (void)state;
    assert_string_equal(krn_isa_name(KRN_ISA_SCALAR), "scalar");
    assert_string_equal(krn_isa_name(KRN_ISA_AVX2), "avx2");
    assert_string_equal(krn_isa_name(KRN_ISA_AVX512), "avx512");
    assert_string_equal(krn_isa_name(KRN_ISA_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_set_is_what_the_processor_has),
        cmocka_unit_test(the_best_set_is_used_unless_another_is_chosen),
        cmocka_unit_test(a_set_that_the_processor_lacks_is_clipped),
        cmocka_unit_test(every_set_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
