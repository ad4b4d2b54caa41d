/* Reports: parts of results are put together as if they had been one, in whatever order and grouping, and what is missing
 * or does not belong is named. */
#include "report_help.h"

#include "base/utf8.h"

#include <sys/stat.h>
#include <unistd.h>

enum { PARTS = 4 };

/* The parts in the order of the digits of which, through a report of reports where there is a '|'. */
static json_t *merge_parts(const char *which)
{
    rpl_report r = { 0 }, inner = { 0 };
    for (const char *c = which; *c; c++) {
        if (*c != '|') {
            add_part(&inner, certificate_part("a.tape", "c0ffee", *c - '0', PARTS), "p.json");
            continue;
        }
        OK(rpl_report_finish(&inner, NULL, "2026-01-01", e));
        OK(rpl_report_add(&r, inner.result[0].json, "inner", "inner", e));
        rpl_report_fini(&inner);
    }
    if (inner.n_results) {
        OK(rpl_report_finish(&inner, NULL, "2026-01-01", e));
        OK(rpl_report_add(&r, inner.result[0].json, "inner", "inner", e));
        rpl_report_fini(&inner);
    }
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_int_equal(r.n_results, 1);
    json_t *j = json_deep_copy(r.result[0].json);
    rpl_report_fini(&r);
    return j;
}

static void merging_is_associative_and_gives_the_whole(void **state)
{
    static const char *const ORDERS[] = { "1234", "4321", "12|34", "34|12", "1|2|3|4", "13|2|4", "2|431", "3|1|42" };
    (void)state;
    json_t *whole = certificate_part("a.tape", "c0ffee", 1, 1);
    for (size_t i = 0; i < COUNT_OF(ORDERS); i++) {
        json_t *j = merge_parts(ORDERS[i]);
        json_t *have = json_object_get(json_object_get(j, "shard"), "have");
        assert_int_equal(json_array_size(have), PARTS);
        assert_int_equal(json_integer_value(json_array_get(have, 3)), 4);
        assert_true(rpl_real(j, "seconds") == 2.0); /* of the slowest */
        json_object_set(j, "shard", json_object_get(whole, "shard"));
        json_object_set(j, "seconds", json_object_get(whole, "seconds"));
        /* By construction parts 1 and 3 each have a value that the whole counts once. */
        json_t *middle = json_array_get(json_object_get(j, "ops"), 1);
        assert_string_equal(fmt_json_text(middle, "value"), "middle");
        assert_int_equal(rpl_count(middle, "elements"), 8);
        json_object_set_new(middle, "elements", json_integer(4));
        json_object_set_new(middle, "equal", json_integer(4));
        json_object_set_new(middle, "values", json_integer(1));
        if (!json_equal(j, whole)) {
            char *a = json_dumps(j, 0), *b = json_dumps(whole, 0);
            fail_msg("%s:\n%s\n%s", ORDERS[i], a, b);
        }
        json_decref(j);
    }
    json_decref(whole);
}

static void missing_parts_are_named_and_never_pass(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    for (int i = 1; i <= 9; i += i == 1 ? 3 : 5) /* 1, 4, 9 of 12: rounds without a fault */
        add_part(&r, certificate_part("a.tape", "c0ffee", i, 12), "p.json");
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_string_equal(r.result[0].verdict, "PARTIAL");
    assert_string_equal(fmt_json_text(r.result[0].json, "verdict"), "PARTIAL");
    assert_int_equal(rpl_report_exit(&r), 1);
    assert_int_equal(r.n_errors, 1);
    assert_string_equal(r.error[0], "9 of 12 shards of certify a.tape are missing: 2-3, 5-8, 10-12");
    rpl_report_fini(&r);
    /* all of them there: this is what makes the difference */
    for (int i = 1; i <= 12; i++)
        if (i != 6 && i != 7) add_part(&r, certificate_part("a.tape", "c0ffee", i, 12), "p.json");
    json_t *clean = certificate_part("a.tape", "c0ffee", 1, 12);
    for (int i = 6; i <= 7; i++) {
        json_object_set_new(clean, "shard", json_pack("{s:i, s:i}", "i", i, "n", 12));
        OK(rpl_report_add(&r, clean, "p.json", "p.json", e));
    }
    json_decref(clean);
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_int_equal(r.n_errors, 0);
    assert_string_equal(r.result[0].verdict, "PASS");
    assert_int_equal(rpl_report_exit(&r), 0);
    rpl_report_fini(&r);
}

static void a_part_that_is_there_twice_counts_once_and_is_an_error(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    add_part(&r, certificate_part("a.tape", "c0ffee", 1, 2), "a.json");
    add_part(&r, certificate_part("b.tape", "c0ffee", 1, 2), "b.json"); /* the same tape by another name */
    add_part(&r, certificate_part("a.tape", "c0ffee", 2, 2), "c.json");
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_int_equal(r.n_results, 1);
    assert_int_equal(rpl_count(r.result[0].json, "rounds"), 12);
    assert_int_equal(r.n_errors, 1);
    assert_string_equal(r.error[0], "shard 1 of 2 of certify a.tape is there twice: in a.json and in b.json");
    assert_int_equal(rpl_report_exit(&r), 1);
    /* and it stays one in a report of this report */
    char *json = written(&r, as_json);
    rpl_report again = { 0 };
    for (char *line = strtok(json, "\n"); line; line = strtok(NULL, "\n"))
        add_part(&again, parse_json(line), "report.json");
    OK(rpl_report_finish(&again, NULL, "2026-01-01", e));
    assert_int_equal(again.n_errors, 1);
    assert_string_equal(again.error[0], r.error[0]);
    free(json);
    rpl_report_fini(&again);
    rpl_report_fini(&r);
}

/* The same complaint twice is one, and what is missing is no part of it: a later report may have it. */
static void a_part_that_is_there_three_times_is_one_error(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    for (int i = 0; i < 3; i++) add_part(&r, certificate_part("a.tape", "c0ffee", 1, 2), "a.json");
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_int_equal(r.n_errors, 2);
    assert_int_equal(r.n_twice, 1);
    char *json = written(&r, as_json);
    rpl_report again = { 0 };
    for (char *line = strtok(json, "\n"); line; line = strtok(NULL, "\n"))
        add_part(&again, parse_json(line), "report.json");
    add_part(&again, certificate_part("a.tape", "c0ffee", 2, 2), "b.json");
    OK(rpl_report_finish(&again, NULL, "2026-01-01", e));
    assert_int_equal(again.n_errors, 1);
    assert_string_equal(again.error[0], r.error[0]);
    free(json);
    rpl_report_fini(&again);
    rpl_report_fini(&r);
}

/* Adds a whole certificate with one member changed. */
static void add_changed(rpl_report *r, const char *key, json_t *value)
{
    json_t *j = certificate_part("a.tape", "c0ffee", 1, 1);
    if (key) json_object_set_new(j, key, value);
    add_part(r, j, "x.json");
}

static void different_tapes_runs_builds_and_options_stay_apart(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    add_changed(&r, NULL, NULL);
    add_part(&r, certificate_part("a.tape", "beef", 1, 1), "x.json"); /* other content, the same name */
    add_changed(&r, "source", parse_json("[{'tape': 'a.tape', 'content': 'c0ffee', 'run': 'mirror, cpu'}]"));
    add_changed(&r, "bound", json_string("worst"));
    add_changed(&r, "options", parse_json("{'tap': 's0.*'}"));
    add_changed(&r, "by", json_string("0.2.0 abc"));
    add_changed(&r, "shard", parse_json("{'i': 1, 'n': 2}"));
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_int_equal(r.n_results, 7);
    assert_int_equal(r.n_errors, 1); /* of the last: its other part */
    rpl_report_fini(&r);
}

static void partial_is_never_a_pass(void **state)
{
    (void)state;
    for (int damaged = 0; damaged < 2; damaged++) {
        rpl_report r = { 0 };
        json_t *j = certificate_part("a.tape", "c0ffee", 1, 12);
        json_object_del(j, "shard");
        json_object_set_new(j, "partial", json_true());
        if (damaged) json_object_set_new(j, "damaged", json_true());
        json_object_set_new(j, "verdict", json_string("PASS")); /* whatever it says of itself */
        add_part(&r, j, "x.json");
        OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
        assert_string_equal(r.result[0].verdict, "PARTIAL");
        assert_int_equal(rpl_report_exit(&r), 1);
        rpl_report_fini(&r);
    }
    rpl_report none = { 0 };
    OK(rpl_report_finish(&none, NULL, "2026-01-01", e));
    assert_int_equal(rpl_report_exit(&none), 1); /* nothing is no pass either */
    rpl_report_fini(&none);
}

static void origins_come_before_what_follows_from_them(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    add_part(&r, certificate_part("a.tape", "c0ffee", 1, 1), "x.json");
    add_part(&r, certificate_part("b.tape", "beef", 1, 1), "y.json");
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_int_equal(r.n_issues, 4);
    char *text = written(&r, as_text);
    const char *last_origin = strstr(text, "origin     certify b.tape");
    assert_non_null(last_origin);
    assert_non_null(strstr(last_origin, "inherited  certify a.tape"));
    assert_true(has_text(text, "round 5 op s0.attn.q, s0.attn.q: 3, ratio 40.5, order noise: 3 of 3"));
    free(text);
    rpl_report_fini(&r);
}

/* ---- parity: other rules ---- */

static const char PARITY[] =
    "{'schema': 1, 'type': 'parity', 'verdict': 'PASS', 'tape': 'a.tape', 'rounds': 1, 'rounds_wanted': 1, "
    "'values': 2, 'values_differ': 1, 'judged': 1, 'repeat': 2, 'recorded_run': false, 'columns': [{'name': 'A', "
    "'tape': false, 'reference': true, 'unstable': 0, 'ranks_differ': 0, 'poisoned': 0, 'equal': 1, 'flip': 1, "
    "'differs': 0, 'absent': 0, 'unjudged': 0, 'first': {'round': %d, 'value': 'v%d'}, 'origin': null}], "
    "'bitwise': [{'why': 'eager against graph', 'a': 'A', 'b': 'B', 'values': 2, 'differ': %d, 'first': null}], "
    "'names': [{'value': 'v', 'op': 'o', 'marks': '%s', 'values': 1, 'differ': 1, 'first': {'round': %d}, "
    "'pattern': 'p%d'}], 'seconds': 1.0, 'shard': {'i': %d, 'n': 2}}";

static void parity_keeps_the_worst_mark_and_the_first_place(void **state)
{
    (void)state;
    for (int order = 0; order < 2; order++) {
        rpl_report r = { 0 };
        for (int k = 0; k < 2; k++) {
            int part = order ? 2 - k : k + 1, round = part == 1 ? 8 : 3;
            const char *marks = part == 1 ? "=~-X" : "~=!?";
            add_part(&r, made(PARITY, round, round, part == 1 ? 0 : 1, marks, round, round, part), "x.json");
        }
        OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
        const json_t *j = r.result[0].json, *name = json_array_get(json_object_get(j, "names"), 0);
        const json_t *column = json_array_get(json_object_get(j, "columns"), 0);
        assert_string_equal(fmt_json_text(name, "marks"), "~~!X");
        assert_string_equal(fmt_json_text(name, "pattern"), "p3");
        assert_string_equal(fmt_json_text(json_object_get(column, "first"), "value"), "v3");
        assert_int_equal(rpl_count(column, "flip"), 2);
        assert_string_equal(r.result[0].verdict, "FAIL"); /* the pair of part 2 differs */
        assert_int_equal(r.n_issues, 1);
        assert_string_equal(r.issue[0].cause, "eager against graph: A, B");
        rpl_report_fini(&r);
    }
}

static void what_a_same_diff_lists_is_no_issue(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        rpl_report r = { 0 };
        add_part(&r, made("{'schema': 1, 'type': 'diff', 'verdict': '%s', 'a': 'x', 'b': 'y', 'rounds': 1, 'values': 2,"
                          " 'compared': 1, 'equal': 1, 'differ': 0, 'one_sided': 1, 'elements': 9, 'origins': 0,"
                          " 'inherited': 0, 'unplaced': 0, 'findings': 0, 'drafts': 0, 'drafts_equal': 0,"
                          " 'rounds_differ': 0, 'redacted': 0, 'lines': [{'type': 'value', 'round': 0, 'value': 'v',"
                          " 'op': 'o', 'class': 'none', 'state': 'only in a', 'findings': []}]}",
                          same ? "SAME" : "DIFFERENT"), "x.json");
        OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
        assert_string_equal(r.result[0].verdict, same ? "PASS" : "FAIL");
        assert_int_equal(r.n_issues, same ? 0 : 1);
        assert_int_equal(rpl_report_exit(&r), same ? 0 : 1);
        rpl_report_fini(&r);
    }
}

/* ---- what is refused ---- */

static void refuse(const char *text, const char *words)
{
    rpl_report r = { 0 };
    json_t *j = parse_json(text);
    REFUSED(rpl_report_add(&r, j, "x.json", "x.json: object 1", e), ERR_INPUT, words);
    json_decref(j);
    rpl_report_fini(&r);
}

static void bad_results_are_refused_by_place_and_member(void **state)
{
    (void)state;
    refuse("[]", "x.json: object 1: found no object");
    refuse("{'type': 'certificate'}", "found no \"schema\", wanted 1");
    refuse("{'schema': 2, 'type': 'certificate'}", "found another \"schema\"");
    refuse("{'schema': 1, 'type': 'loss'}", "found type 'loss', wanted a result of certify");
    refuse("{'schema': 1, 'type': 'certificate'}", "found no \"rounds\" in certificate");
    refuse("{'schema': 1, 'type': 'injection', 'changed': '7'}", "\"changed\" of injection: wanted an integer");
    refuse("{'schema': 1, 'type': 'injection', 'changed': 7, 'shard': {'i': 3, 'n': 2}}", "\"shard\": wanted");
    refuse("{'schema': 1, 'type': 'injection', 'changed': 7, 'shard': {'n': 2, 'have': [2, 1]}}", "\"shard\": wanted");
}

static void a_member_that_nobody_can_add_up_is_refused(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    json_t *a = certificate_part("a.tape", "c0ffee", 1, 2), *b = certificate_part("a.tape", "c0ffee", 2, 2);
    json_object_set_new(a, "new_figure", json_integer(1));
    json_object_set_new(b, "new_figure", json_integer(2));
    OK(rpl_report_add(&r, a, "a", "a", e));
    REFUSED(rpl_report_add(&r, b, "b", "b", e), ERR_INPUT, "member \"new_figure\" differs between parts");
    json_decref(a);
    json_decref(b);
    rpl_report_fini(&r);
}

/* With ' for ", as everywhere here. */
static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (; *text; text++) putc(*text == '\'' ? '"' : *text, f);
    fclose(f);
}

static void bad_files_are_refused_by_name_and_line(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    REFUSED(rpl_report_read(&r, "nowhere.json", e), ERR_INPUT, "nowhere.json: cannot be opened");
    write_file("bad.json", "");
    REFUSED(rpl_report_read(&r, "bad.json", e), ERR_INPUT, "bad.json: found nothing");
    write_file("bad.json", "{'schema': 1, 'type': 'injection', 'changed': 1}\n{'schema': 1, \n 'type' }\n");
    REFUSED(rpl_report_read(&r, "bad.json", e), ERR_FORMAT, "bad.json: object 2: line 2");
    write_file("bad.json", "{'schema': 1, 'type': 'value', 'round': 1}\n");
    REFUSED(rpl_report_read(&r, "bad.json", e), ERR_INPUT, "wanted the diff's verdict line before it");
    unlink("bad.json");
    rpl_report_fini(&r);
}

static void attribute_and_reduce_are_taken_and_judge_nothing(void **state)
{
    rpl_report r = { 0 };
    char text[600];
    (void)state;
    write_file("a.json", "{'schema': 1, 'type': 'attribution', 'verdict': 'ATTRIBUTED', 'tape': 'a.tape', "
               "'metric': 'drafts', 'arm': 'the tape', 'reference': 'mirror', 'arm_figure': 3.0, 'rounds': [1, 2], "
               "'away': {'ops': ['s0.attn.q', 'x0'], 'minimal': true, 'figure': 0.0}, 'appear': null}\n");
    write_file("b.json", "{'schema': 1, 'type': 'reduction', 'tape': 'a.tape', 'folder': 'x', 'op': 's1.attn_out', "
               "'round': 4, 'elements': 10, 'equal': 7, 'flip': 1, 'illegal': 2, 'unjudged': 0}\n");
    OK(rpl_report_read(&r, "a.json", e));
    OK(rpl_report_read(&r, "b.json", e));
    OK(rpl_report_finish(&r, NULL, "2026-01-31", e));
    assert_int_equal(r.n_results, 2);
    assert_int_equal(rpl_report_exit(&r), 0);
    assert_string_equal(r.result[0].verdict, "DONE");
    assert_string_equal(rpl_result_figures(&r.result[0], text, sizeof text),
                        "ATTRIBUTED: drafts of the tape against mirror: 3; goes away with s0.attn.q, x0");
    assert_non_null(strstr(rpl_result_figures(&r.result[1], text, sizeof text), "s1.attn_out of round 4: 10 elements"));
    rpl_report_fini(&r);
    write_file("a.json", "{'schema': 1, 'type': 'attribution', 'verdict': 'PARTIAL', 'tape': 'a.tape'}\n");
    OK(rpl_report_read(&r, "a.json", e));
    OK(rpl_report_finish(&r, NULL, "2026-01-31", e));
    assert_int_equal(rpl_report_exit(&r), 1); /* cut short */
    unlink("a.json");
    unlink("b.json");
    rpl_report_fini(&r);
}

/* ---- writing ---- */

static const char HOSTILE[] = "<script>alert('1')</script> & \"x\" \x01\x1b[2J\xef\xbf\xbf ]]>";

static void text_of_files_cannot_leave_its_place(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    json_t *j = certificate_part(HOSTILE, "c0ffee", 1, 1);
    json_t *origin = json_array_get(json_object_get(j, "origins"), 0);
    json_object_set_new(origin, "op", json_string(HOSTILE));
    json_object_set_new(origin, "cause", json_string(HOSTILE));
    json_object_set_new(json_array_get(json_object_get(j, "ops"), 0), "value", json_string(HOSTILE));
    add_part(&r, j, HOSTILE);
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    char *out[] = { written(&r, rpl_report_html), written(&r, rpl_report_junit), written(&r, as_text) };
    for (size_t i = 0; i < COUNT_OF(out); i++) {
        assert_null(strchr(out[i], 0x01));
        assert_null(strchr(out[i], 0x1b));
        if (i < 2) {
            assert_null(strstr(out[i], "<script"));
            assert_null(strstr(out[i], "\xef\xbf\xbf"));
            assert_true(has_text(out[i],
                                 "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;x&quot; ??[2J? ]]&gt;"));
        }
        free(out[i]);
    }
    rpl_report_fini(&r);
}

/* Names of more bytes than there is room for, which end in half a character. */
/* What a picture has no room for is told. */
static void limits_of_the_pictures_are_told(void **state)
{
    rpl_report r = { 0 };
    char name[32];
    (void)state;
    for (int i = 0; i < 65; i++) {
        snprintf(name, sizeof name, "t%d.tape", i);
        json_t *part = certificate_part(name, name, 1, 1);
        for (int k = 0; i == 0 && k < 200; k++) {
            char value[24];
            snprintf(value, sizeof value, "value%d", k);
            json_array_append_new(json_object_get(part, "ops"), made_op(value, 4 + k, 1, 1, 0, 0));
        }
        add_part(&r, part, "x.json");
    }
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    char *page = written(&r, rpl_report_html);
    assert_non_null(strstr(page, "only 64 of 65 tapes are shown"));
    assert_non_null(strstr(page, "75 values are not shown: more than 128 rows or columns"));
    free(page);
    rpl_report_fini(&r);
}

static void a_text_that_is_cut_stays_utf8_and_in_the_json(void **state)
{
    rpl_report r = { 0 };
    char cause[601] = "";
    (void)state;
    for (size_t i = 0; i + 1 < sizeof cause; i += 2) memcpy(cause + i, "\xc3\xa9", 3);
    json_t *j = certificate_part(cause, "c0ffee", 1, 1), *origin = json_array_get(json_object_get(j, "origins"), 0);
    json_object_set_new(origin, "cause", json_string(cause));
    add_part(&r, j, "\xff.json");
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_int_equal(utf8_bytes(r.issue[0].cause + strlen(r.issue[0].cause) - 1), 0); /* it is cut */
    char *out[] = { written(&r, rpl_report_html), written(&r, rpl_report_junit), written(&r, as_json) };
    json_t *last = parse_json(strchr(out[2], '\n') + 1);
    assert_int_equal(json_array_size(json_object_get(last, "issues")), r.n_issues);
    json_decref(last);
    for (size_t i = 0; i < COUNT_OF(out); i++) {
        for (const char *c = out[i]; *c; c += utf8_bytes(c))
            if (utf8_bytes(c) == 0) fail_msg("form %zu, byte %td: %.40s", i, c - out[i], c);
        free(out[i]);
    }
    rpl_report_fini(&r);
}

static void sums_of_any_integers_stay_integers(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    for (int i = 1; i <= 2; i++)
        add_part(&r, made("{'schema': 1, 'type': 'injection', 'changed': 9223372036854775807, 'shard': {'i': %d, 'n': 2}}",
                          i), "x.json");
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    assert_int_equal(rpl_count(r.result[0].json, "changed"), INT64_C(1) << 53);
    rpl_report_fini(&r);
}

static void junit_counts_what_fails(void **state)
{
    rpl_report r = { 0 };
    (void)state;
    json_t *j = certificate_part("a.tape", "c0ffee", 1, 1);
    json_object_set_new(json_array_get(json_object_get(j, "ops"), 0), "value", json_string("s0.attn.q"));
    add_part(&r, j, "x.json");
    add_part(&r, certificate_part("b.tape", "beef", 1, 12), "y.json");
    OK(rpl_report_finish(&r, NULL, "2026-01-01", e));
    char *xml = written(&r, rpl_report_junit);
    assert_true(has_text(xml, "<testsuite name=\"report\" tests=\"1\" failures=\"0\" errors=\"1\""));
    assert_true(has_text(xml, "name=\"certify a.tape, native-packed, cpu\" tests=\"4\" failures=\"2\" errors=\"0\""));
    assert_true(has_text(xml, "name=\"certify b.tape, native-packed, cpu\" tests=\"4\" failures=\"1\" errors=\"0\""));
    assert_true(has_text(xml, "name=\"s0.attn.q\"><failure message=\"round 5 s0.attn.q: 3, ratio 40.5"));
    free(xml);
    rpl_report_fini(&r);
}

/* ---- anything may stand anywhere ---- */

/* One small result of every kind. */
static const char *const SAMPLES[] = {
    "{'schema': 1, 'type': 'classification', 'verdict': 'FAIL', 'tapes': ['a'], 'model': 'm', 'control': 'c', "
    "'rounds': 1, 'gates': {'state_flags': {'verdict': 'PASS', 'figure': 0, 'of': 1, 'limit': 0, 'default': 0}, "
    "'own_logit_flags': {'limit': 0, 'default': 0}, "
    "'attention_median_excess': {'figure': 5, 'control': 7, 'of': 2, 'limit': 2, 'default': 2}, "
    "'kl_ratio': {'limit': 2, 'default': 2}, 'unexplained_tokens': {'limit': 0, 'default': 0}}, "
    "'state': {'rows': 1, 'windows': 1, "
    "'windows_given': 0, 'main_x_given': 0, 'keys_in_doubt': 0}, 'worker': {'excess': [1.5]}, 'certificate': "
    "{'verdict': 'PASS', 'elements': 9, 'equal': 9, 'flip': 0, 'illegal': 1, 'not_judged': 0, 'first_illegal': "
    "'round 3 slot 0 v'}, 'flags': [{'tape': 0, 'round': 0, 'slot': 0, 'kind': 'stale row', 'n': 1}], 'tokens': "
    "[{'tape': 0, 'round': 0, 'slot': 0, 'position': 1, 'side': 'worker', 'margin': 1, 'noise': 2}], 'keys': "
    "[{'tape': 0, 'round': 0, 'slot': 0, 'n_out': 2, 'rerun': true, 'kl_positions': 2, 'mirror_error': [1], 'band': 1, "
    "'band_floor': 1, 'noise': 1, 'worker': {'error': [1], 'excess': [1.5], 'kl': 1, 'tokens': [1, 0, 0]}}], ",
    "{'schema': 1, 'type': 'acceptance', 'tape': 'a', 'control': 'x', 'rounds': 1, 'blocks': 1, 'determined': 1, "
    "'runs': [{'arm': 'x', 'run': 'x', 'windows': 'A', 'blocks': 1, 'accepted_at': [1, 0], 'accepted': {'n': 1, "
    "'mean': 1.0, 'error': 'nan'}}], 'block_list': [{'round': 0, 'slot': 0, 'accepted': [1], 'p_target': [null]}], ",
    "{'schema': 1, 'type': 'scorecard', 'verdict': 'FAIL', 'seed': 1, 'planted': 1, 'detected': 1, 'right': 0, "
    "'missed': 0, 'admissible': 0, 'absorbed': 0, 'idle': 0, 'arms': [{'arm': 'x', 'clean': 'FAIL'}], 'plantings': "
    "[{'kind': 'k', 'op': 'o', 'op_kind': 'linear', 'stage': 0, 'arm': 'x', 'outcome': 'elsewhere'}], ",
    "{'schema': 1, 'type': 'diff', 'verdict': 'DIFFERENT', 'a': 'x', 'b': 'y', 'rounds': 1, 'values': 1, "
    "'compared': 1, 'equal': 0, 'differ': 1, 'one_sided': 0, 'elements': 1, 'origins': 1, 'inherited': 0, "
    "'unplaced': 0, 'findings': 0, 'drafts': 0, 'drafts_equal': 0, 'rounds_differ': 1, 'redacted': 0, 'lines': "
    "[{'type': 'value', 'round': 0, 'value': 'v', 'op': 'o', 'class': 'origin', 'state': 'compared', "
    "'findings': ['all zero'], 'metrics': {'differ': 3}}], ",
    "{'schema': 1, 'type': 'first divergence', 'tape': 'a', 'a': 'x', 'b': 'y', 'round': 1, 'value': 'v', ",
    "{'schema': 1, 'type': 'injection', 'path': 'a', 'injected': {'kind': 'k', 'op': 'o'}, 'changed': 1, ",
};
enum { N_SAMPLES = COUNT_OF(SAMPLES) + 2 };

/* Part i of 2. */
static json_t *sample(size_t which, int i)
{
    if (which < COUNT_OF(SAMPLES)) return made("%s'shard': {'i': %d, 'n': 2}}", SAMPLES[which], i);
    if (which > COUNT_OF(SAMPLES)) return made(PARITY, 1, 1, 1, "X", 1, 1, i);
    json_t *j = certificate_part("a.tape", "c0ffee", i, 2);
    json_object_set_new(json_array_get(json_object_get(j, "origins"), 0), "map",
                        parse_json("{'value': 's0.attn.q', 'rows': 2, 'columns': 64, 'row_step': 1, 'column_step': 32,"
                                   " 'share': ['00ff', '0000']}"));
    return j;
}

/* Whatever stands in it, a result is refused or written. *refused may be NULL. */
static bool survives(json_t *changed, size_t which, bool *refused)
{
    rpl_report r = { 0 };
    err e = { 0 };
    json_t *other = sample(which, 2);
    err_code rc = rpl_report_add(&r, changed, "x", "x", &e);
    if (rc == ERR_OK) rc = rpl_report_add(&r, other, "y", "y", &e);
    json_decref(other);
    if (rc == ERR_OK) rc = rpl_report_finish(&r, NULL, "2026-01-01", &e);
    void (*const forms[])(const rpl_report *, FILE *) = { as_text, as_json, rpl_report_junit, rpl_report_html };
    for (size_t i = 0; rc == ERR_OK && i < COUNT_OF(forms); i++) free(written(&r, forms[i]));
    rpl_report_fini(&r);
    if (refused) *refused = rc != ERR_OK;
    if (rc != ERR_OK && rc != ERR_INPUT) print_error("%s: %s\n", err_name(rc), e.msg);
    return rc == ERR_OK || rc == ERR_INPUT;
}

/* Puts every other kind of value in the place of every member and item below j. */
static int64_t change_all(json_t *whole, json_t *j, size_t which)
{
    static const char *const VALUES[] = { "null", "-1", "9223372036854775807", "1e300", "''", "'inf'", "[]", "{}", "true",
                                          "[[7]]", "[{'round': 'x'}]" };
    const char *key;
    json_t *v;
    void *next;
    size_t i;
    int64_t n = 0;
    json_object_foreach_safe(j, next, key, v) {
        json_incref(v);
        for (size_t k = 0; k < COUNT_OF(VALUES); k++, n++) {
            json_t *as = parse_json(VALUES[k]);
            json_object_set_new(j, key, as);
            if (!survives(whole, which, NULL)) fail_msg("sample %zu, %s = %s", which, key, VALUES[k]);
        }
        json_object_set(j, key, v);
        n += change_all(whole, v, which);
        json_decref(v);
    }
    json_array_foreach(j, i, v) {
        json_incref(v);
        for (size_t k = 0; k < COUNT_OF(VALUES); k++, n++) {
            json_array_set_new(j, i, parse_json(VALUES[k]));
            if (!survives(whole, which, NULL)) fail_msg("sample %zu, item %zu = %s", which, i, VALUES[k]);
        }
        json_array_set(j, i, v);
        n += change_all(whole, v, which);
        json_decref(v);
    }
    return n;
}

static void any_value_in_any_place_is_refused_or_written(void **state)
{
    (void)state;
    for (size_t which = 0; which < N_SAMPLES; which++) {
        json_t *j = sample(which, 1);
        bool refused;
        assert_true(survives(j, which, &refused));
        if (refused) fail_msg("sample %zu is refused", which);
        assert_true(change_all(j, j, which) > 50);
        json_decref(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_is_associative_and_gives_the_whole),
        cmocka_unit_test(missing_parts_are_named_and_never_pass),
        cmocka_unit_test(a_part_that_is_there_twice_counts_once_and_is_an_error),
        cmocka_unit_test(a_part_that_is_there_three_times_is_one_error),
        cmocka_unit_test(different_tapes_runs_builds_and_options_stay_apart),
        cmocka_unit_test(partial_is_never_a_pass),
        cmocka_unit_test(origins_come_before_what_follows_from_them),
        cmocka_unit_test(parity_keeps_the_worst_mark_and_the_first_place),
        cmocka_unit_test(what_a_same_diff_lists_is_no_issue),
        cmocka_unit_test(bad_results_are_refused_by_place_and_member),
        cmocka_unit_test(a_member_that_nobody_can_add_up_is_refused),
        cmocka_unit_test(bad_files_are_refused_by_name_and_line),
        cmocka_unit_test(attribute_and_reduce_are_taken_and_judge_nothing),
        cmocka_unit_test(text_of_files_cannot_leave_its_place),
        cmocka_unit_test(limits_of_the_pictures_are_told),
        cmocka_unit_test(a_text_that_is_cut_stays_utf8_and_in_the_json),
        cmocka_unit_test(sums_of_any_integers_stay_integers),
        cmocka_unit_test(junit_counts_what_fails),
        cmocka_unit_test(any_value_in_any_place_is_refused_or_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
