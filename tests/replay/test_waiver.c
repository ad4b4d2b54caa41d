/* Waivers: a known gap stays visible, cannot grow, and ends on its day. */
#include "report_help.h"

static const char FINE[] = "{'schema': 1, 'waivers': [{'value': 's*.attn.q', 'cause': 'order noise*', 'max_ratio': "
                           "41, 'max_count': 3, 'reason': 'known, issue 41', 'expires': '2026-05-31'}]}";

static rpl_waivers waivers_of(const char *text)
{
    rpl_waivers w;
    json_t *j = parse_json(text);
    OK(rpl_waivers_parse(j, "w.json", &w, e));
    json_decref(j);
    return w;
}

/* The report of the certificate with one origin (3 elements, ratio 40.5) and one that follows, on that day. */
static const char *verdict_with(const char *waivers, const char *today, rpl_report *r, rpl_waivers *w)
{
    *w = waivers_of(waivers);
    *r = (rpl_report){ 0 };
    add_part(r, certificate_part("a.tape", "c0ffee", 1, 1), "x.json");
    OK(rpl_report_finish(r, w, today, e));
    return r->result[0].verdict;
}

static void end(rpl_report *r, rpl_waivers *w)
{
    rpl_report_fini(r);
    rpl_waivers_fini(w);
}

static void a_waived_issue_stays_listed_with_its_reason(void **state)
{
    rpl_report r;
    rpl_waivers w;
    (void)state;
    assert_string_equal(verdict_with(FINE, "2026-05-31", &r, &w), "WAIVED"); /* its last day counts */
    assert_int_equal(rpl_report_exit(&r), 0);
    assert_int_equal(r.result[0].n_waived, 1);
    char *text = written(&r, as_text), *html = written(&r, rpl_report_html), *xml = written(&r, rpl_report_junit);
    assert_true(has_text(text, "WAIVED     certify a.tape round 5 op s0.attn.q"));
    assert_true(has_text(text, "(known, issue 41; until 2026-05-31)"));
    assert_true(has_text(text, "inherited  certify a.tape round 6")); /* excused by what it follows from, and still there */
    assert_true(has_text(html, "waived: known, issue 41, until 2026-05-31"));
    assert_true(has_text(xml, "failures=\"0\""));
    free(text);
    free(html);
    free(xml);
    end(&r, &w);
}

static void fails(const char *waivers, const char *today, const char *why)
{
    rpl_report r;
    rpl_waivers w;
    assert_string_equal(verdict_with(waivers, today, &r, &w), "FAIL");
    assert_int_equal(rpl_report_exit(&r), 1);
    char *text = written(&r, as_text);
    assert_true(has_text(text, why));
    free(text);
    end(&r, &w);
}

#define WAIVER(members) "{'schema': 1, 'waivers': [{" members ", 'reason': 'r', 'expires': '2026-05-31'}]}"

static void above_the_ceiling_fails(void **state)
{
    (void)state;
    fails(WAIVER("'value': '*', 'cause': '*', 'max_ratio': 40, 'max_count': 9"), "2026-01-01",
          "above its waiver's ceiling: ratio 40.5 of at most 40");
    fails(WAIVER("'value': 's0.attn.q', 'cause': '*', 'max_count': 2"), "2026-01-01",
          "above its waiver's ceiling: count 3 of at most 2");
    fails(WAIVER("'value': '*', 'cause': '*', 'max_count': 4"), "2026-01-01",
          "above its waiver's ceiling: count 5 of at most 4"); /* both issues together */
}

static void an_expired_waiver_fails_with_its_date(void **state)
{
    (void)state;
    fails(FINE, "2026-06-01", "its waiver expired on 2026-05-31: known, issue 41");
    fails(FINE, "2027-01-01", "its waiver expired on 2026-05-31");
}

static void a_waiver_that_matches_nothing_is_reported(void **state)
{
    (void)state;
    fails(WAIVER("'value': 's1.*', 'cause': '*', 'max_count': 9"), "2026-01-01",
          "waiver 1 (s1.*: r) matches nothing");
    fails(WAIVER("'value': '*', 'cause': 'row swap*', 'max_count': 9"), "2026-01-01", "matches nothing");
    fails(WAIVER("'value': '*', 'cause': '*', 'max_count': 9, 'tape': 'b*'"), "2026-01-01", "matches nothing");
    fails(WAIVER("'value': '*', 'cause': '*', 'max_count': 9, 'analysis': 'parity'"), "2026-01-01",
          "matches nothing");
}

static void what_is_partial_stays_partial(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    rpl_waivers w = waivers_of(FINE);
    json_t *j = certificate_part("a.tape", "c0ffee", 1, 1);
    json_object_set_new(j, "partial", json_true());
    add_part(&r, j, "x.json");
    OK(rpl_report_finish(&r, &w, "2026-01-01", e));
    assert_string_equal(r.result[0].verdict, "PARTIAL");
    assert_int_equal(rpl_report_exit(&r), 1);
    end(&r, &w);
}

static void an_op_with_other_outputs_is_not_covered_by_one_of_them(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    rpl_waivers w = waivers_of(FINE);
    json_t *j = certificate_part("a.tape", "c0ffee", 1, 1), *origin = json_array_get(json_object_get(j, "origins"), 0);
    json_array_append_new(json_object_get(origin, "outputs"), json_string("s0.attn.other"));
    json_object_set_new(origin, "op", json_string("s0.attn.two"));
    add_part(&r, j, "x.json");
    OK(rpl_report_finish(&r, &w, "2026-01-01", e));
    assert_string_equal(r.result[0].verdict, "FAIL");
    end(&r, &w);
}

static void a_number_that_is_none_is_above_every_ceiling(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        rpl_report r = { 0 };
        rpl_waivers w = waivers_of(WAIVER("'value': '*', 'cause': '*', 'max_ratio': 1e300, 'max_count': 99"));
        json_t *j = certificate_part("a.tape", "c0ffee", 1, 1), *origin = json_array_get(json_object_get(j, "origins"), 0);
        json_object_set_new(json_object_get(origin, "worst"), "ratio", json_string(k ? "inf" : "nan"));
        add_part(&r, j, "x.json");
        OK(rpl_report_finish(&r, &w, "2026-01-01", e));
        assert_string_equal(r.result[0].verdict, "FAIL");
        end(&r, &w);
    }
}

static void refuse(const char *text, const char *words)
{
    rpl_waivers w;
    json_t *j = parse_json(text);
    REFUSED(rpl_waivers_parse(j, "w.json", &w, e), ERR_INPUT, words);
    rpl_waivers_fini(&w);
    json_decref(j);
}

static void bad_waivers_are_refused_by_number_and_key(void **state)
{
    (void)state;
    refuse("{'waivers': []}", "w.json: \"schema\": wanted 1");
    refuse("{'schema': 1}", "w.json: \"waivers\": wanted a list");
    refuse("{'schema': 1, 'waivers': [], 'waiver': []}", "w.json: found key 'waiver', wanted one of schema,waivers");
    refuse("{'schema': 1, 'waivers': [], 'schem': 1}", "w.json: found key 'schem'"); /* the start of one is another */
    refuse(WAIVER("'value': '', 'cause': '*', 'max_count': 1"), "waiver 1: \"value\": found an empty one, wanted text");
    refuse(WAIVER("'value': 3, 'cause': '*', 'max_count': 1"), "waiver 1: \"value\": found something else");
    refuse(WAIVER("'value': '*', 'cause': '*'"), "w.json: waiver 1: found neither max_ratio nor max_count");
    refuse(WAIVER("'cause': '*', 'max_count': 1"), "waiver 1: \"value\": found none");
    refuse(WAIVER("'value': '*', 'cause': '*', 'max_count': 1, 'until': 3"), "found key 'until'");
    refuse(WAIVER("'value': '*', 'cause': '*', 'max_count': -1"), "\"max_count\": wanted an integer of 0 or more");
    static const char *const DAYS[] = { "2026-02-29", "2026-13-01", "2026-00-10", "2026-1-1", "tomorrow", "2026-01-32",
                                        "2026/01/01" };
    for (size_t i = 0; i < COUNT_OF(DAYS); i++) {
        json_t *j = made("{'schema': 1, 'waivers': [{'value': '*', 'cause': '*', 'max_count': 1, 'reason': 'r',"
                         " 'expires': '%s'}]}", DAYS[i]);
        rpl_waivers none;
        REFUSED(rpl_waivers_parse(j, "w.json", &none, e), ERR_INPUT, "\"expires\": found");
        rpl_waivers_fini(&none);
        json_decref(j);
    }
    rpl_waivers w = waivers_of("{'schema': 1, 'waivers': [{'value': '*', 'cause': '*', 'max_count': 1, 'reason': "
                               "'r', 'expires': '2028-02-29'}]}");
    rpl_waivers_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waived_issue_stays_listed_with_its_reason),
        cmocka_unit_test(above_the_ceiling_fails),
        cmocka_unit_test(an_expired_waiver_fails_with_its_date),
        cmocka_unit_test(a_waiver_that_matches_nothing_is_reported),
        cmocka_unit_test(what_is_partial_stays_partial),
        cmocka_unit_test(an_op_with_other_outputs_is_not_covered_by_one_of_them),
        cmocka_unit_test(a_number_that_is_none_is_above_every_ceiling),
        cmocka_unit_test(bad_waivers_are_refused_by_number_and_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
