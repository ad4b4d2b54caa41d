/* Results made by hand, for the tests of reports and waivers. */
#ifndef TESTS_REPLAY_REPORT_HELP_H
#define TESTS_REPLAY_REPORT_HELP_H

#include "tests/support/ok.h"

#include "base/mem.h"
#include "replay/report.h"
#include "replay/waiver.h"

/* JSON with ' for ". */
static inline json_t *parse_json(const char *text)
{
    json_error_t why;
    char *quoted = mem_strdup(text);
    assert_non_null(quoted);
    for (char *c = quoted; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *j = json_loads(quoted, JSON_DECODE_ANY, &why);
    if (!j) fail_msg("%s: %s", text, why.text);
    free(quoted);
    return j;
}

/* The same, printed. */
static inline __attribute__((format(printf, 1, 2))) json_t *made(const char *fmt, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    assert_true(n >= 0);
    json_t *j = parse_json(text);
    free(text);
    return j;
}

static inline json_t *made_op(const char *value, int order, int values, int elements, int flips, double distance)
{
    return made("{'value': '%s', 'op': '%s', 'order': %d, 'values': %d, 'elements': %d, 'equal': %d, 'flip': %d,"
                " 'illegal': 0, 'unjudged': 0, 'events': 0, 'flip_distance': %.17g}", value, value, order, values, elements,
                elements - flips, flips, distance);
}

static inline json_t *made_origin(int round, const char *op, int illegal, double ratio)
{
    return made("{'round': %d, 'slot': null, 'op': '%s', 'outputs': ['%s'], 'rank': null, 'illegal': %d, 'elements': 100,"
                " 'worst': {'value': '%s', 'ratio': %g}, 'cause': 'order noise: 3 of 3'}", round, op, op, illegal, op,
                ratio);
}

/* Part i of n of a certificate: of the rounds i, i + n, ... below 12. Round 5 has an origin, round 6 one that follows.
 * Parts of odd i have a value that the others lack, between two that all have. */
static inline json_t *certificate_part(const char *tape, const char *content, int i, int n)
{
    int rounds = 0, illegal = 0;
    json_t *origins = json_array(), *inherited = json_array(), *ties = json_array(), *ops = json_array();
    for (int r = i - 1; r < 12; r += n) {
        rounds++;
        json_array_append_new(ties, made("{'round': %d, 'value': 'drafts'}", r));
        if (r == 5) json_array_append_new(origins, made_origin(r, "s0.attn.q", 3, 40.5));
        if (r == 6) json_array_append_new(inherited, made_origin(r, "s0.attn.o", 2, 8));
        illegal += r == 5 ? 3 : r == 6 ? 2 : 0;
    }
    if (json_array_size(inherited)) json_object_set_new(json_array_get(inherited, 0), "from", json_string("s0.attn.q"));
    json_array_append_new(ops, made_op("first", 1, rounds, 10 * rounds, rounds, 0.25 / i));
    if (i % 2) json_array_append_new(ops, made_op("middle", 2, 1, 4, 0, 0));
    json_array_append_new(ops, made_op("last", 3, rounds, 10 * rounds, rounds, 0.25 / i));
    json_t *j = made("{'schema': 1, 'type': 'certificate', 'verdict': '%s', 'rounds': %d, 'rounds_wanted': %d,"
                     " 'partial': false, 'damaged': false, 'bound': 'default',"
                     " 'source': [{'content': '%s', 'run': 'native-packed, cpu'}], 'elements': %d, 'equal': %d,"
                     " 'flip': %d, 'illegal': %d, 'values': %d, 'events': 0, 'unjudged': 0,"
                     " 'values_not_judged': %d, 'not_judged': [{'value': 'hidden', 'why': 'redacted', 'values': %d,"
                     " 'first_round': %d, 'order': 7}], 'findings': [], 'bytes': %d, 'seconds': %.1f,"
                     " 'shard': {'i': %d, 'n': %d}}", illegal ? "FAIL" : "PASS", rounds, rounds, content, 20 * rounds,
                     18 * rounds, 2 * rounds, illegal, 2 * rounds, rounds, rounds, i - 1, 100 * rounds, 0.5 * i, i, n);
    json_object_set_new(j, "tape", json_string(tape));
    json_object_set_new(json_array_get(json_object_get(j, "source"), 0), "tape", json_string(tape));
    json_object_set_new(j, "origins", origins);
    json_object_set_new(j, "inherited", inherited);
    json_object_set_new(j, "ties", ties);
    json_object_set_new(j, "ops", ops);
    return j;
}

static inline void add_part(rpl_report *r, json_t *j, const char *file)
{
    OK(rpl_report_add(r, j, file, file, e));
    json_decref(j);
}

/* What f writes, malloc'd. Not inline: gcc 12 then takes pointers into the text for pointers to the variable. */
static __attribute__((noinline, unused)) char *written(const rpl_report *r, void (*f)(const rpl_report *, FILE *))
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    f(r, out);
    fclose(out);
    return text;
}

static inline void as_text(const rpl_report *r, FILE *out) { rpl_report_text(r, true, false, out); }
static inline void as_json(const rpl_report *r, FILE *out) { OK(rpl_report_json(r, out, e)); }

static inline bool has_text(const char *text, const char *part)
{
    if (strstr(text, part)) return true;
    print_error("\"%s\" is not in:\n%s\n", part, text);
    return false;
}

#endif
