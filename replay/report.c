#include "replay/report.h"

#include "base/mem.h"
#include "replay/report_sum.h"
#include "replay/waiver.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

enum { SHARDS_MAX = 1 << 20, FILES_NAMED = 5 /* the last one is "..." */ };

static err_code no_memory(err *e) { return err_set(e, ERR_NOMEM, "report: no memory"); }

/* ---- names ---- */

const char *rpl_result_tape(const rpl_result *r, char *buf, size_t buf_bytes)
{
    const json_t *source = json_object_get(r->json, "source");
    size_t n = 0, i;
    json_t *item;
    buf[0] = 0;
    json_array_foreach((json_t *)source, i, item)
        if (n < buf_bytes)
            n += (size_t)snprintf(buf + n, buf_bytes - n, "%s%s", i ? ", " : "", fmt_json_text(item, "tape"));
    for (int k = 0; !buf[0] && k < 3; k++)
        snprintf(buf, buf_bytes, "%s", fmt_json_text(r->json, (const char *[]){ "tape", "path", "model" }[k]));
    return buf;
}

const char *rpl_result_run(const rpl_result *r, char *buf, size_t buf_bytes)
{
    const json_t *source = json_object_get(r->json, "source");
    size_t n = 0, i;
    json_t *item;
    const char *last = "";
    buf[0] = 0;
    json_array_foreach((json_t *)source, i, item) {
        const char *run = fmt_json_text(item, "run");
        if (n < buf_bytes && strcmp(run, last) != 0)
            n += (size_t)snprintf(buf + n, buf_bytes - n, "%s%s", n ? " | " : "", run);
        last = run;
    }
    return buf;
}

/* old (NULL: nothing yet) with more behind it, where it is not there yet; takes old. NULL: no memory. */
static char *join(char *old, const char *more)
{
    char *text = NULL;
    size_t n = strlen(more);
    if (!old) return mem_strdup(more);
    for (const char *at = old; n && (at = strstr(at, more)) != NULL; at += n)
        if ((at == old || at[-1] == ' ') && (at[n] == 0 || at[n] == ',')) return old;
    if (asprintf(&text, "%s, %s", old, more) < 0) text = NULL;
    free(old);
    return text;
}

/* Adds to r->error what is not there yet. */
static __attribute__((format(printf, 3, 4))) err_code complain(rpl_report *r, err *e, const char *fmt, ...)
{
    char *text = NULL;
    void *array = r->error;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n < 0) return no_memory(e);
    for (size_t i = 0; i < r->n_errors; i++)
        if (strcmp(r->error[i], text) == 0) {
            free(text);
            return ERR_OK;
        }
    if (!mem_grow(&array, &r->capacity[2], r->n_errors + 1, sizeof *r->error)) {
        free(text);
        return no_memory(e);
    }
    r->error = array;
    r->error[r->n_errors++] = text;
    return ERR_OK;
}

/* ---- adding ---- */

/* The parts that j is made of, as {"n", "have"}: "shard" is that already, or {"i", "n"}. */
static err_code shard_of(const json_t *j, const char *where, json_t **out, err *e)
{
    const json_t *shard = json_object_get(j, "shard"), *have = json_object_get(shard, "have");
    int64_t n = shard ? rpl_count(shard, "n") : 1, before = 0;
    size_t k;
    json_t *item;
    *out = NULL;
    bool right = n >= 1 && n <= SHARDS_MAX && (!shard || json_is_object(shard));
    json_array_foreach((json_t *)have, k, item) {
        int64_t i = json_integer_value(item);
        right = right && i > before && i <= n;
        before = i;
    }
    if (shard && !have) right = right && rpl_count(shard, "i") >= 1 && rpl_count(shard, "i") <= n;
    if (!right || (have && before == 0))
        return err_set(e, ERR_INPUT, "%s: \"shard\": wanted {\"i\": 1, \"n\": 4} or {\"n\": 4, \"have\": [1, 2]}", where);
    json_t *list = have ? json_deep_copy(have)
                        : json_pack("[I]", (json_int_t)(shard ? rpl_count(shard, "i") : 1));
    *out = json_pack("{s:I, s:o}", "n", (json_int_t)n, "have", list);
    return *out ? ERR_OK : no_memory(e);
}

/* The first number in both ascending lists; 0: none. */
static int64_t common(const json_t *a, const json_t *b)
{
    size_t i = 0, k = 0;
    while (i < json_array_size(a) && k < json_array_size(b)) {
        int64_t x = json_integer_value(json_array_get(a, i)), y = json_integer_value(json_array_get(b, k));
        if (x == y) return x;
        if (x < y) i++;
        else k++;
    }
    return 0;
}

/* Puts the numbers of b between those of a, both ascending. false: no memory. */
static bool unite(json_t *a, const json_t *b)
{
    size_t k, at;
    json_t *item;
    json_array_foreach((json_t *)b, k, item) {
        for (at = 0; at < json_array_size(a); at++)
            if (json_integer_value(json_array_get(a, at)) > json_integer_value(item)) break;
        if (json_array_insert(a, at, item) != 0) return false;
    }
    return true;
}

static rpl_result *find(rpl_report *r, const char *key, int64_t n)
{
    for (size_t i = 0; i < r->n_results; i++)
        if (strcmp(r->result[i].key, key) == 0 && rpl_count(json_object_get(r->result[i].json, "shard"), "n") == n)
            return &r->result[i];
    return NULL;
}

/* The first part of a result. Takes key, whatever happens. */
static err_code add_new(rpl_report *r, const rpl_analysis *a, const json_t *j, json_t *shard, char *key, const char *file,
                        err *e)
{
    rpl_result fresh = { .analysis = a, .json = json_deep_copy(j), .key = key, .files = mem_strdup(file), .n_parts = 1 };
    void *array = r->result;
    bool fine = fresh.json && fresh.files && json_object_set(fresh.json, "shard", shard) == 0 &&
                mem_grow(&array, &r->capacity[0], r->n_results + 1, sizeof fresh);
    if (!fine) {
        json_decref(fresh.json);
        free(fresh.files);
        free(key);
        return no_memory(e);
    }
    r->result = array;
    r->result[r->n_results++] = fresh;
    return ERR_OK;
}

/* Another part, which is named as an error where it is there already. */
static err_code add_part(rpl_report *r, rpl_result *to, const json_t *j, const json_t *shard, const char *file,
                         const char *where, err *e)
{
    char tape[256];
    json_t *ours = json_object_get(to->json, "shard"), *have = json_object_get(ours, "have");
    const json_t *theirs = json_object_get(shard, "have");
    int64_t n = rpl_count(ours, "n"), twice = common(have, theirs);
    rpl_result_tape(to, tape, sizeof tape);
    if (twice) {
        if (n == 1)
            TRY(complain(r, e, "%s %s is there twice: in %s and in %s", to->analysis->name, tape, to->files, file));
        else
            TRY(complain(r, e, "shard %" PRId64 " of %" PRId64 " of %s %s is there twice: in %s and in %s", twice, n,
                         to->analysis->name, tape, to->files, file));
        r->n_twice = r->n_errors; /* these come before any other: the others are named at the end */
        return ERR_OK;
    }
    to->n_parts++;
    if (to->n_parts <= FILES_NAMED) to->files = join(to->files, to->n_parts < FILES_NAMED ? file : "...");
    if (!to->files || !unite(have, theirs)) return no_memory(e);
    return rpl_merge(to->analysis, to->json, j, where, e);
}

/* A report's own line: what was there twice in what it read stays an error. */
static err_code add_report_line(rpl_report *r, const json_t *j, err *e)
{
    size_t i;
    json_t *text;
    json_array_foreach(json_object_get(j, "twice"), i, text)
        if (json_is_string(text)) {
            TRY(complain(r, e, "%s", json_string_value(text)));
            r->n_twice = r->n_errors;
        }
    return ERR_OK;
}

err_code rpl_report_add(rpl_report *r, const json_t *j, const char *file, const char *where, err *e)
{
    if (!json_is_object(j)) return err_set(e, ERR_INPUT, "%s: found no object, wanted a result (the --json of an analysis)",
                                           where);
    const char *type = fmt_json_text(j, "type");
    const rpl_analysis *a = rpl_analysis_find(type);
    if (rpl_count(j, "schema") != 1)
        return err_set(e, ERR_INPUT, "%s: found %s \"schema\", wanted 1", where,
                       json_object_get(j, "schema") ? "another" : "no");
    if (strcmp(type, "report") == 0) return add_report_line(r, j, e);
    if (!a)
        return err_set(e, ERR_INPUT, "%s: found type '%.40s', wanted a result of certify, diff, parity, classify, accept, "
                       "scorecard, inject, attribute, reduce or report", where, type);
    TRY(rpl_merge_check(a, j, where, e));
    json_t *shard;
    TRY(shard_of(j, where, &shard, e));
    char *key = rpl_merge_key(a, j);
    rpl_result *to = key ? find(r, key, rpl_count(shard, "n")) : NULL;
    err_code rc;
    if (!key) rc = no_memory(e);
    else if (to) {
        free(key);
        rc = add_part(r, to, j, shard, file, where, e);
    } else rc = add_new(r, a, j, shard, key, file, e);
    json_decref(shard);
    return rc;
}

/* ---- finishing ---- */

static int compare_results(const void *x, const void *y)
{
    const rpl_result *a = x, *b = y;
    char s[512], t[512];
    if (a->analysis != b->analysis) return a->analysis < b->analysis ? -1 : 1;
    int order = strcmp(rpl_result_tape(a, s, sizeof s), rpl_result_tape(b, t, sizeof t));
    return order ? order : strcmp(a->key, b->key);
}

/* "2, 4, 7-9" of the parts that are not there. */
static void missing_text(const json_t *shard, char *buf, size_t buf_bytes)
{
    const json_t *have = json_object_get(shard, "have");
    int64_t n = rpl_count(shard, "n"), first = 0;
    size_t k = 0, used = 0;
    buf[0] = 0;
    for (int64_t i = 1; i <= n + 1; i++) {
        bool there = i > n || json_integer_value(json_array_get(have, k)) == i;
        if (there && i <= n) k++;
        if (!there && !first) first = i;
        if (!there || !first) continue;
        if (used + 40 > buf_bytes) {
            snprintf(buf + used, buf_bytes - used, " ...");
            return;
        }
        used += (size_t)snprintf(buf + used, buf_bytes - used, "%s%" PRId64, used ? ", " : "", first);
        if (i - 1 > first) used += (size_t)snprintf(buf + used, buf_bytes - used, "-%" PRId64, i - 1);
        first = 0;
    }
}

/* Complains of the parts that x lacks. */
static err_code name_missing(rpl_report *r, const rpl_result *x, err *e)
{
    const json_t *shard = json_object_get(x->json, "shard");
    char tape[256], list[200];
    int64_t n = rpl_count(shard, "n"), have = (int64_t)json_array_size(json_object_get(shard, "have"));
    if (have == n) return ERR_OK;
    missing_text(shard, list, sizeof list);
    return complain(r, e, "%" PRId64 " of %" PRId64 " shards of %s %s %s missing: %s", n - have, n, x->analysis->name,
                    rpl_result_tape(x, tape, sizeof tape), n - have == 1 ? "is" : "are", list);
}

/* An inherited issue is excused by waived origins: it follows from them. */
static void judge_result(rpl_report *r, size_t k)
{
    rpl_result *x = &r->result[k];
    int32_t n_own = 0, n_own_waived = 0, n_inherited = 0, n_inherited_waived = 0;
    for (size_t i = 0; i < r->n_issues; i++) {
        const rpl_issue *s = &r->issue[i];
        if (s->result != (int32_t)k) continue;
        x->n_issues++;
        x->n_waived += s->waiver >= 0;
        if (s->kind == RPL_ISSUE_INHERITED) {
            n_inherited++;
            n_inherited_waived += s->waiver >= 0;
        } else {
            n_own++;
            n_own_waived += s->waiver >= 0;
        }
    }
    bool covered = n_own ? n_own_waived == n_own : n_inherited && n_inherited_waived == n_inherited;
    bool waivable = rpl_badness(x->verdict) >= rpl_badness("INCOMPLETE");
    if (waivable && covered) x->verdict = "WAIVED";
    if (strcmp(x->verdict, "WAIVED") == 0 && (json_is_true(json_object_get(x->json, "partial")) ||
                                              !rpl_result_has_all(x->json)))
        x->verdict = "PARTIAL";
}

err_code rpl_report_finish(rpl_report *r, struct rpl_waivers *w, const char *today, err *e)
{
    r->waivers = w;
    if (r->n_results) qsort(r->result, r->n_results, sizeof *r->result, compare_results); /* no NULL, not even for none */
    for (size_t i = 0; i < r->n_results; i++) {
        rpl_result *x = &r->result[i];
        if (x->n_parts > 1) TRY(rpl_merge_derive(x->analysis, x->json, e));
        TRY(name_missing(r, x, e));
        x->verdict = rpl_result_verdict(x);
        json_object_del(x->json, "waived"); /* certify's, by the waivers that it was given */
        bool said = x->n_parts > 1 || !rpl_result_has_all(x->json);
        const char *verdict = strcmp(x->verdict, "DONE") == 0 ? "PASS" : x->verdict;
        if (said && json_object_set_new(x->json, "verdict", json_string(verdict)) != 0) return no_memory(e);
        /* A diff that is the same may still list what one tape lacks: that is no issue then. */
        if (rpl_badness(x->verdict) > rpl_badness("PASS")) TRY(rpl_issues_add(r, (int32_t)i, e));
    }
    if (w) rpl_waivers_apply(w, r->issue, r->n_issues, r->result, today);
    r->verdict = r->n_errors || r->n_results == 0 ? "FAIL" : "PASS";
    for (size_t i = 0; i < r->n_results; i++) {
        judge_result(r, i);
        if (rpl_badness(r->result[i].verdict) > rpl_badness(r->verdict)) r->verdict = r->result[i].verdict;
    }
    return ERR_OK;
}

int rpl_report_exit(const rpl_report *r)
{
    return r->n_results && r->n_errors == 0 && rpl_word_of(r->verdict)->fine ? 0 : 1;
}

err_code rpl_report_waive(const json_t *result, rpl_waivers *w, FILE *out, int *exit_status, err *e)
{
    rpl_report r = { 0 };
    char today[11];
    json_t *whole = json_copy((json_t *)result);
    rpl_today(today);
    if (whole) json_object_del(whole, "shard");
    err_code rc = whole ? rpl_report_add(&r, whole, "", "the result", e) : no_memory(e);
    if (rc == ERR_OK) rc = rpl_report_finish(&r, w, today, e);
    if (rc == ERR_OK && out) rpl_report_waived_text(&r, out);
    if (rc == ERR_OK && rpl_report_exit(&r) == 0) *exit_status = 0;
    json_decref(whole);
    rpl_report_fini(&r);
    return rc;
}

void rpl_report_fini(rpl_report *r)
{
    for (size_t i = 0; i < r->n_results; i++) {
        json_decref(r->result[i].json);
        free(r->result[i].key);
        free(r->result[i].files);
    }
    for (size_t i = 0; i < r->n_errors; i++) free(r->error[i]);
    free(r->result);
    free(r->issue);
    free(r->error);
    *r = (rpl_report){ 0 };
}
