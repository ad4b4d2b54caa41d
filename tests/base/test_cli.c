/* Command lines: order, forms and every refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cli.h"

typedef struct options {
    bool deep;
    const char *arm, *out, *script, *tape;
    int64_t tp, count;
    cli_list taps;
} options;

static const cli_option OPTIONS[] = {
    { "--deep", NULL, "a flag", CLI_FLAG, offsetof(options, deep) },
    { "--arm", "ARM", "a text", CLI_STR, offsetof(options, arm) },
    { "-o", "FILE", "a short name", CLI_OUT, offsetof(options, out) },
    { "--script", "FILE", "an input", CLI_IN, offsetof(options, script) },
    { "--tape", "FILE", "an output that is not made again", CLI_NEW, offsetof(options, tape) },
    { "--tp", "N", "a number", CLI_INT, offsetof(options, tp) },
    { "--count", "N", "a number from 1 on", CLI_COUNT, offsetof(options, count) },
    { "--tap", "PATTERN", "several", CLI_MULTI, offsetof(options, taps) },
};
static const cli_command COMMAND = { "sample", "MODEL [PATTERN]", "a command", OPTIONS, sizeof OPTIONS / sizeof OPTIONS[0],
                                     NULL };
static const cli_command MANY = { "many", "TAPE..", "a command", OPTIONS, sizeof OPTIONS / sizeof OPTIONS[0], NULL };
static const cli_command NONE = { "none", "", "a command", OPTIONS, sizeof OPTIONS / sizeof OPTIONS[0], NULL };

typedef struct parsed {
    options o;
    cli_common common;
    cli_args args;
    err e;
} parsed;

/* Splits line at blanks; '' is an empty word. */
static err_code parse(const cli_command *c, const char *line, parsed *p)
{
    static char copy[2000];
    static char *argv[200];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *s = strtok(copy, " "); s; s = strtok(NULL, " ")) argv[argc++] = strcmp(s, "''") ? s : s + 2;
    *p = (parsed){ 0 };
    return cli_parse(c, argc, argv, &p->o, &p->common, &p->args, &p->e);
}

static void touch(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

/* The same file under any name, and the files of a checkpoint folder; what is not there yet destroys nothing. */
static void an_output_that_is_an_input_is_refused(void **state)
{
    (void)state;
    static const char *const BAD[] = {
        "in.tape -o in.tape", "in.tape -o ./in.tape", "in.tape -o link.tape", "in.tape -o hard.tape",
        "x --script in.tape -o in.tape", "folder -o folder/config.json", "folder/ -o ./folder/a.safetensors",
    };
    static const char *const GOOD[] = {
        "in.tape -o out.tape", "folder -o folder/new.safetensors", "folder -o folder/note.tape", "folder -o in.tape",
        "none -o none",
    };
    parsed p;
    char folder[] = "cli-XXXXXX", home[4096];
    assert_non_null(getcwd(home, sizeof home));
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(mkdir("folder", 0700), 0);
    touch("in.tape");
    touch("folder/config.json");
    touch("folder/a.safetensors");
    touch("folder/note.tape");
    assert_int_equal(symlink("in.tape", "link.tape"), 0);
    assert_int_equal(link("in.tape", "hard.tape"), 0);
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        if (parse(&COMMAND, BAD[i], &p) != ERR_ARG) fail_msg("%s", BAD[i]);
        assert_non_null(strstr(p.e.msg, "-o"));
    }
    for (size_t i = 0; i < sizeof GOOD / sizeof GOOD[0]; i++)
        if (parse(&COMMAND, GOOD[i], &p) != ERR_OK) fail_msg("%s: %s", GOOD[i], p.e.msg);
    assert_int_equal(chdir(home), 0);
}

static void a_count_is_one_or_more(void **state)
{
    (void)state;
    static const char *const BAD[] = { "0", "-1", "''", "two", "99999999999999999999" };
    parsed p;
    if (parse(&COMMAND, "model --count 3", &p) != ERR_OK) fail_msg("%s", p.e.msg);
    assert_int_equal(p.o.count, 3);
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        char line[80];
        snprintf(line, sizeof line, "model --count %s", BAD[i]);
        assert_int_equal(parse(&COMMAND, line, &p), ERR_ARG);
        assert_non_null(strstr(p.e.msg, "--count"));
    }
}

static void options_and_arguments_come_in_any_order_and_form(void **state)
{
    (void)state;
    static const char *const LINES[] = {
        "--deep --arm mirror -o out --tp 2 --tap a --tap b model s0.*",
        "model s0.* --tap=a --tap=b --tp=2 -o out --arm=mirror --deep",
        "model --deep -o out s0.* --tap a --arm=mirror --tap=b --tp 2",
        "--deep --tap a --tap b --arm mirror --tp 2 -o out -- model s0.*",
    };
    for (size_t i = 0; i < sizeof LINES / sizeof LINES[0]; i++) {
        parsed p;
        if (parse(&COMMAND, LINES[i], &p) != ERR_OK) fail_msg("%s", p.e.msg);
        assert_true(p.o.deep);
        assert_string_equal(p.o.arm, "mirror");
        assert_string_equal(p.o.out, "out");
        assert_int_equal(p.o.tp, 2);
        assert_int_equal(p.o.taps.count, 2);
        assert_string_equal(p.o.taps.item[1], "b");
        assert_int_equal(p.args.count, 2);
        assert_string_equal(p.args.item[0], "model");
        assert_string_equal(p.args.item[1], "s0.*");
        assert_string_equal(p.common.color, "auto");
        assert_false(p.common.json || p.common.quiet || p.common.help);
    }
}

/* Names go into JSON, which holds UTF-8 alone; text takes what the file system has. */
static void with_json_every_word_is_utf8(void **state)
{
    static const char *const BAD[] = { "\xff.tape", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                       "\xe0\x80\x80" };
    static const char *const GOOD[] = { "a", "\xc3\xbc.tape", "\xe2\x82\xac", "\xf0\x9f\x93\xbc" };
    char line[40];
    parsed p;
    (void)state;
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        snprintf(line, sizeof line, "%s --json", BAD[i]);
        assert_int_equal(parse(&COMMAND, line, &p), ERR_ARG);
        if (!strstr(p.e.msg, "UTF-8")) fail_msg("%s", p.e.msg);
        assert_int_equal(parse(&COMMAND, BAD[i], &p), ERR_OK);
    }
    for (size_t i = 0; i < sizeof GOOD / sizeof GOOD[0]; i++) {
        snprintf(line, sizeof line, "%s --json", GOOD[i]);
        assert_int_equal(parse(&COMMAND, line, &p), ERR_OK);
    }
}

static void common_options_are_in_every_command(void **state)
{
    (void)state;
    parsed p;
    assert_int_equal(parse(&NONE, "--json --quiet --color never --threads 3", &p), ERR_OK);
    assert_true(p.common.json && p.common.quiet && p.common.threads == 3);
    assert_string_equal(p.common.color, "never");
    assert_false(cli_color(&p.common));
    assert_int_equal(parse(&NONE, "--color=always", &p), ERR_OK);
    assert_true(cli_color(&p.common));
}

static void what_follows_two_dashes_is_an_argument(void **state)
{
    (void)state;
    parsed p;
    assert_int_equal(parse(&COMMAND, "-- --deep --", &p), ERR_OK);
    assert_false(p.o.deep);
    assert_string_equal(p.args.item[0], "--deep");
    assert_string_equal(p.args.item[1], "--");
    assert_int_equal(parse(&COMMAND, "-", &p), ERR_OK); /* a file name: standard input */
    assert_string_equal(p.args.item[0], "-");
}

static void every_misuse_is_refused_by_name(void **state)
{
    (void)state;
    static const struct { const cli_command *c; const char *line, *message; } FAULTS[] = {
        { &COMMAND, "", "found 0 arguments, wanted MODEL [PATTERN]" },
        { &COMMAND, "a b c", "found 3 arguments" },
        { &MANY, "", "found 0 arguments" },
        { &NONE, "a", "found 1 arguments, wanted none" },
        { &COMMAND, "m --bogus", "option --bogus is unknown" },
        { &COMMAND, "m --dee", "option --dee is unknown" },
        { &COMMAND, "m --deeper", "option --deeper is unknown" },
        { &COMMAND, "m -x", "option -x is unknown" },
        { &COMMAND, "m --arm", "--arm: found nothing, wanted ARM" },
        { &COMMAND, "m --deep=1", "--deep takes no value" },
        { &COMMAND, "m --tp x", "--tp: found 'x'" },
        { &COMMAND, "m --tp 2x", "--tp: found '2x'" },
        { &COMMAND, "m --tp ''", "--tp: found ''" },
        { &COMMAND, "m --tp 99999999999999999999", "--tp" },
        { &COMMAND, "m --color blue", "--color: found 'blue'" },
        { &COMMAND, "m --threads -1", "--threads" },
        { &COMMAND, "m --threads 5000", "--threads" },
    };
    for (size_t i = 0; i < sizeof FAULTS / sizeof FAULTS[0]; i++) {
        parsed p;
        if (parse(FAULTS[i].c, FAULTS[i].line, &p) != ERR_ARG) fail_msg("'%s' is not refused", FAULTS[i].line);
        if (!strstr(p.e.msg, FAULTS[i].message)) fail_msg("'%s' lacks '%s'", p.e.msg, FAULTS[i].message);
    }
}

static void too_many_of_anything_are_refused(void **state)
{
    (void)state;
    char line[2000] = "";
    parsed p;
    for (int i = 0; i < CLI_ARGS_MAX; i++) strcat(line, " t");
    assert_int_equal(parse(&MANY, line, &p), ERR_OK);
    assert_int_equal(p.args.count, CLI_ARGS_MAX);
    strcat(line, " t");
    assert_int_equal(parse(&MANY, line, &p), ERR_ARG);
    strcpy(line, "m");
    for (int i = 0; i < CLI_LIST_MAX; i++) strcat(line, " --tap t");
    assert_int_equal(parse(&COMMAND, line, &p), ERR_OK);
    strcat(line, " --tap t");
    assert_int_equal(parse(&COMMAND, line, &p), ERR_ARG);
}

static void help_comes_before_the_count_of_arguments(void **state)
{
    (void)state;
    parsed p;
    assert_int_equal(parse(&COMMAND, "--help", &p), ERR_OK);
    assert_true(p.common.help);
    assert_int_equal(parse(&COMMAND, "-h", &p), ERR_OK);
    assert_true(p.common.help);
    assert_int_equal(parse(&COMMAND, "m -- -h", &p), ERR_OK);
    assert_true(!p.common.help && p.args.count == 2);
}

static void an_error_names_the_option_that_was_written(void **state)
{
    static const char *const TEXTS[][2] = {
        { "--arm: found 'x'", "--control: found 'x'" },   { "--arm x: cannot run here", "--control x: cannot run here" },
        { "--arms: found 'x'", "--arms: found 'x'" },     { "wanted --arm: none", "wanted --arm: none" }, { "", "" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++) {
        err e;
        err_set(&e, ERR_IDENTITY, "%s", TEXTS[i][0]);
        cli_say_as(&e, "--arm", "--control");
        assert_string_equal(e.msg, TEXTS[i][1]);
        assert_int_equal(e.code, ERR_IDENTITY);
    }
    cli_say_as(NULL, "--arm", "--control");
}

static void integers_are_whole_decimal_and_in_range(void **state)
{
    (void)state;
    int64_t v = 7;
    err e = { 0 };
    assert_int_equal(cli_int("-5", "--x", -5, 5, &v, &e), ERR_OK);
    assert_int_equal(v, -5);
    static const char *const FAULTS[] = { "6", "-6", "", "1.0", "0x1", "1 ", "one" };
    for (size_t i = 0; i < sizeof FAULTS / sizeof FAULTS[0]; i++) {
        assert_int_equal(cli_int(FAULTS[i], "--x", -5, 5, &v, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "--x: found '"));
        assert_non_null(strstr(e.msg, "from -5 to 5"));
        assert_int_equal(v, -5);
    }
}

static void patterns_match_as_globs_do(void **state)
{
    (void)state;
    static const struct { const char *pattern, *name; bool wanted; } CASES[] = {
        { "s0.attn_out", "s0.attn_out", true }, { "s0.attn_out", "s0.attn_ou", false },
        { "s0.attn_ou", "s0.attn_out", false },
        { "s?.attn*", "s2.attn.q", true },      { "s?.attn*", "s.attn.q", false },      { "*", "", true },
        { "", "", true },                       { "", "a", false },                     { "*out", "s0.attn_out.out", true },
        { "a*b*c", "aXbYbZc", true },           { "a*b*c", "aXcYb", false },            { "x,s1.*,y", "s1.q", true },
        { "x,s1.*,y", "y", true },              { "x,s1.*,y", "z", false },             { "x,", "", true },
        { "**", "abc", true },                  { "?", "", false },
        { "*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false }, /* no exponential search */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        if (cli_match(CASES[i].pattern, CASES[i].name) != CASES[i].wanted)
            fail_msg("'%s' and '%s': wanted %d", CASES[i].pattern, CASES[i].name, CASES[i].wanted);
}

static void a_file_is_only_replaced_by_force(void **state)
{
    (void)state;
    parsed p;
    touch("old.tape");
    assert_int_equal(parse(&COMMAND, "m --tape old.tape", &p), ERR_ARG);
    assert_non_null(strstr(p.e.msg, "--tape: old.tape exists, wanted another name, or --force"));
    assert_int_equal(parse(&COMMAND, "m --tape old.tape --force", &p), ERR_OK);
    assert_true(p.common.force);
    unlink("old.tape");
    assert_int_equal(parse(&COMMAND, "m --tape old.tape", &p), ERR_OK);
    touch("old.tape.part"); /* what a killed writer left: it may be all there is of a run */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(parse(&COMMAND, "m --tape old.tape", &p), ERR_ARG);
        assert_non_null(strstr(p.e.msg, "--tape: old.tape.part is what a killed writer left"));
        assert_non_null(strstr(p.e.msg, "sparktape recover"));
        assert_non_null(strstr(p.e.msg, "--force"));
    }
    assert_int_equal(parse(&COMMAND, "m --tape old.tape --force", &p), ERR_OK);
    unlink("old.tape.part");
    cli_command without = COMMAND;
    without.n_options = 2;
    assert_int_equal(parse(&without, "m --force", &p), ERR_ARG);
}

static void a_file_is_given_once(void **state)
{
    (void)state;
    static const char *const TWICE[] = { "m --script a --script b", "m -o a -o a", "m --tape a --tape=b" };
    parsed p;
    for (size_t i = 0; i < sizeof TWICE / sizeof TWICE[0]; i++) {
        assert_int_equal(parse(&COMMAND, TWICE[i], &p), ERR_ARG);
        assert_non_null(strstr(p.e.msg, "found it twice"));
    }
    assert_int_equal(parse(&COMMAND, "m --arm a --arm b", &p), ERR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_count_is_one_or_more),
        cmocka_unit_test(options_and_arguments_come_in_any_order_and_form),
        cmocka_unit_test(with_json_every_word_is_utf8),
        cmocka_unit_test(common_options_are_in_every_command),
        cmocka_unit_test(what_follows_two_dashes_is_an_argument),
        cmocka_unit_test(every_misuse_is_refused_by_name),
        cmocka_unit_test(too_many_of_anything_are_refused),
        cmocka_unit_test(help_comes_before_the_count_of_arguments),
        cmocka_unit_test(an_error_names_the_option_that_was_written),
        cmocka_unit_test(integers_are_whole_decimal_and_in_range),
        cmocka_unit_test(an_output_that_is_an_input_is_refused),
        cmocka_unit_test(patterns_match_as_globs_do),
        cmocka_unit_test(a_file_is_only_replaced_by_force),
        cmocka_unit_test(a_file_is_given_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
