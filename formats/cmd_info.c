#include <inttypes.h>
#include <time.h>

#include "formats/commands.h"
#include "formats/tape_reader.h"

const char *fmt_bytes_text(uint64_t bytes, char *buf, size_t buf_bytes)
{
    static const char *const UNIT[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    double v = (double)bytes;
    size_t u = 0;
    for (; v >= 999.5 && u + 1 < COUNT_OF(UNIT); u++) v /= 1000;
    snprintf(buf, buf_bytes, u && v < 100 ? "%.1f %s" : "%.0f %s", v, UNIT[u]);
    return buf;
}

/* Seconds since 1970 and, for people, the date. */
static void print_time(int64_t seconds)
{
    const time_t at = (time_t)seconds;
    struct tm tm;
    char date[64] = "";
    if (gmtime_r(&at, &tm)) strftime(date, sizeof date, " (%Y-%m-%d %H:%M:%S UTC)", &tm);
    printf("%" PRId64 "%s\n", seconds, date);
}

/* Any JSON, indented: scalars on the line of their key, long lists as a count (--json has them all). */
static void print_value(const char *key, const json_t *v, int depth)
{
    enum { INDENT = 2, KEY_WIDTH = 26, LIST_SHOWN = 8 };
    char *text = NULL;
    printf("%*s%-*s ", depth * INDENT, "", KEY_WIDTH - depth * INDENT, key);
    if (json_is_object(v) && json_object_size(v)) {
        const char *k;
        json_t *child;
        printf("\n");
        json_object_foreach((json_t *)(uintptr_t)v, k, child) print_value(k, child, depth + 1);
        return;
    }
    if (json_is_array(v) && (json_array_size(v) > LIST_SHOWN || json_is_object(json_array_get(v, 0)))) {
        printf("(%zu)\n", json_array_size(v));
        return;
    }
    if (json_is_string(v)) printf("%s\n", json_string_value(v));
    else if (json_is_integer(v) && depth == 1 && strcmp(key, "created") == 0) print_time(json_integer_value(v));
    else printf("%s\n", (text = fmt_json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9))) ? text : "?");
    free(text);
}

static int warn_of_conditions(const json_t *when)
{
    int n = 0;
    size_t i;
    const json_t *c;
    json_array_foreach(json_object_get(when, "conditions"), i, c) {
        int64_t passed_over = json_integer_value(json_object_get(c, "passed_over"));
        if (passed_over > 0)
            n += printf("WARNING: the condition %s passed over %" PRId64 " values that it could not compare\n",
                        json_string_value(json_object_get(c, "when")), passed_over) > 0;
        if (json_integer_value(json_object_get(c, "fired")) == 0)
            n += printf("WARNING: the condition %s never held in %" PRId64 " rounds\n",
                        json_string_value(json_object_get(c, "when")),
                        (int64_t)json_integer_value(json_object_get(when, "judged"))) > 0;
    }
    return n;
}

/* What made rounds be kept (record --when, --flight): the first ones. */
static void print_triggers(const fmt_tape *t)
{
    enum { SHOWN = 8 };
    size_t n = 0;
    for (size_t i = 0; i < fmt_tape_event_count(t); i++) {
        int32_t round;
        const json_t *event = fmt_tape_event_at(t, i, &round), *value = json_object_get(event, "value");
        const char *what = json_string_value(json_object_get(event, "event"));
        if (!what || strcmp(what, "trigger") != 0 || n++ >= SHOWN) continue;
        printf("%-26s %s in round %d%s%s, with %" PRId64 " before it\n", "trigger",
               json_string_value(json_object_get(event, "when")), round, value ? ", " : "",
               value ? json_string_value(value) : "", (int64_t)json_integer_value(json_object_get(event, "before")));
    }
    if (n > SHOWN) printf("%-26s and %zu more\n", "", n - SHOWN);
}

/* What a reader of the tape must know before anything else, from the summary's counters (TAPE.md). */
static int print_warnings(const fmt_tape *t)
{
    const json_t *s = fmt_tape_summary(t), *taps = json_object_get(s, "taps"), *never = json_object_get(taps, "never");
    int64_t dropped = json_integer_value(json_object_get(s, "dropped"));
    int64_t lost = json_integer_value(json_object_get(s, "events_lost"));
    const char *failed = json_string_value(json_object_get(s, "failed"));
    int64_t armed = json_integer_value(json_object_get(taps, "armed"));
    int64_t fired = json_integer_value(json_object_get(taps, "fired"));
    const fmt_tape_fault *faults;
    size_t n_faults = fmt_tape_damage(t, &faults);
    int n = 0;
    if (json_integer_value(json_object_get(s, "rounds")) == 0) armed = 0; /* nothing could fire: that is said below */
    if (armed > 0 && fired == 0) n += printf("WARNING: %" PRId64 " taps were armed and none was seen\n", armed) > 0;
    else if (armed > 0 && json_array_size(never)) {
        printf("WARNING: %zu of %" PRId64 " armed taps never fired:", json_array_size(never), armed);
        for (size_t i = 0; i < json_array_size(never) && i < 8; i++) printf(" %s", json_string_value(json_array_get(never,
                                                                                                                    i)));
        printf(json_array_size(never) > 8 ? " ...\n" : "\n");
        n++;
    }
    n += warn_of_conditions(json_object_get(s, "when"));
    if (dropped > 0) n += printf("WARNING: %" PRId64 " values or rounds were dropped\n", dropped) > 0;
    if (lost > 0) n += printf("WARNING: %" PRId64 " events were lost\n", lost) > 0;
    if (failed) n += printf("WARNING: its writer failed: %s\n", failed) > 0;
    if (s && fmt_tape_count(t) == 0) n += printf("WARNING: it holds no value\n") > 0;
    if (!fmt_tape_finished(t)) n += printf("WARNING: unfinished: what its writer had not flushed is not here\n") > 0;
    if (n_faults)
        n += printf("WARNING: damaged at %zu places, first: %s; see sparktape doctor %s\n", n_faults, faults[0].what,
                    fmt_tape_path(t)) > 0;
    return n;
}

/* Fields of the end chunk that this build has no use for: a later minor version's. New reference, NULL without memory. */
static json_t *unknown_fields(fmt_tape *t)
{
    static const char *const KNOWN[] = { "records", "events", "chunks", "summary", "head", "index" };
    json_t *rest = json_object(), *child;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)fmt_tape_end_json(t), key, child) {
        bool known = false;
        for (size_t i = 0; i < COUNT_OF(KNOWN); i++) known = known || strcmp(KNOWN[i], key) == 0;
        if (!known && json_object_set(rest, key, child) != 0) break;
    }
    return rest;
}

static uint64_t raw_bytes(const fmt_tape *t)
{
    const fmt_index *ix = fmt_tape_index(t);
    uint64_t sum = 0;
    for (size_t k = 0; k < ix->n_pages; k++) {
        const fmt_page *p = &ix->pages[k];
        for (uint32_t r = 0; r < p->rows; r++)
            if (fmt_page_u8(p, FMT_COLUMN_TIER, r) == FMT_TIER_TENSOR) sum += p->types[fmt_page_u32(p, FMT_COLUMN_TYPE,
                                                                                                    r)].bytes;
    }
    return sum;
}

static void print_text(fmt_tape *t, const json_t *unknown)
{
    const int32_t *rounds;
    size_t n_rounds = fmt_tape_rounds(t, &rounds);
    uint64_t raw = raw_bytes(t), file = fmt_tape_file_bytes(t);
    char a[32], b[32];
    print_warnings(t);
    printf("%-26s %s\n", "tape", fmt_tape_path(t));
    printf("%-26s %d.%d, %s\n", "format", FMT_TAPE_MAJOR, fmt_tape_minor(t), fmt_tape_finished(t) ? "finished"
           : "unfinished");
    printf("%-26s %zu in %zu rounds", "records", fmt_tape_count(t), n_rounds);
    if (n_rounds) printf(" (%d to %d)", rounds[0], rounds[n_rounds - 1]);
    printf(", %zu events\n", fmt_tape_event_count(t));
    printf("%-26s %s, holding %s of values", "bytes", fmt_bytes_text(file, a, sizeof a), fmt_bytes_text(raw, b, sizeof b));
    printf(raw ? " (%.2fx)\n" : "\n", (double)raw / (double)file);
    print_triggers(t);
    print_value("head", fmt_tape_head(t), 0);
    if (fmt_tape_summary(t)) print_value("summary", fmt_tape_summary(t), 0);
    if (json_object_size(unknown)) print_value("fields of a later version", unknown, 0);
}

static err_code print_json(fmt_tape *t, const json_t *unknown, err *e)
{
    const int32_t *rounds;
    const fmt_tape_fault *faults;
    const json_t *summary = fmt_tape_summary(t);
    json_t *line = json_pack("{s:i, s:s, s:{s:i, s:i}, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:O, s:O?, s:O}", "schema", 1,
                             "path",
                             fmt_tape_path(t), "format", "major", FMT_TAPE_MAJOR, "minor", fmt_tape_minor(t), "finished",
                             fmt_tape_finished(t), "faults", (json_int_t)fmt_tape_damage(t, &faults), "records",
                             (json_int_t)fmt_tape_count(t), "rounds", (json_int_t)fmt_tape_rounds(t, &rounds), "events",
                             (json_int_t)fmt_tape_event_count(t), "bytes", (json_int_t)fmt_tape_file_bytes(t), "raw_bytes",
                             (json_int_t)raw_bytes(t), "head", fmt_tape_head(t), "summary", summary, "unknown", unknown);
    if (!line) return err_set(e, ERR_NOMEM, "%s: no memory for the output", fmt_tape_path(t));
    err_code rc = fmt_json_print(stdout, line, e);
    json_decref(line);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    cli_common common;
    cli_args args;
    fmt_tape *t;
    TRY(cli_parse(self, argc, argv, NULL, &common, &args, e));
    *exit_status = 0;
    if (common.help) { cli_help(self); return ERR_OK; }
    TRY(fmt_tape_open(args.item[0], &t, e));
    json_t *unknown = unknown_fields(t);
    err_code rc = ERR_OK;
    if (common.json) rc = print_json(t, unknown, e);
    else print_text(t, unknown);
    json_decref(unknown);
    fmt_tape_close(t);
    return rc;
}

const cli_command CMD_INFO = { "info", "TAPE", "what a tape holds, where it comes from, and what it lacks", NULL, 0, run };
