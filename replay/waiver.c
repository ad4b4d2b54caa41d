#include "replay/waiver.h"

#include "base/cli.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

enum { FILE_MAX = 16 << 20 };

void rpl_today(char out[11])
{
    time_t now = time(NULL);
    struct tm t;
    gmtime_r(&now, &t);
    strftime(out, 11, "%Y-%m-%d", &t);
}

/* A day that the calendar has, as YYYY-MM-DD: such texts compare like the days. */
static bool is_date(const char *s)
{
    static const int DAYS[] = { 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    if (strlen(s) != 10 || s[4] != '-' || s[7] != '-') return false;
    for (int i = 0; i < 10; i++)
        if (i != 4 && i != 7 && (s[i] < '0' || s[i] > '9')) return false;
    int year = atoi(s), month = atoi(s + 5), day = atoi(s + 8);
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return month >= 1 && month <= 12 && day >= 1 && day <= DAYS[month - 1] && (month != 2 || day != 29 || leap);
}

/* ---- reading ---- */

static err_code get_text(const json_t *j, const char *key, bool needed, const char *where, char **out, err *e)
{
    const json_t *v = json_object_get(j, key);
    const char *s = json_string_value(v);
    if (!v && !needed) return ERR_OK;
    if (!s || !s[0])
        return err_set(e, ERR_INPUT, "%s: \"%s\": found %s, wanted text", where, key,
                       s ? "an empty one" : v ? "something else" : "none");
    *out = mem_strdup(s);
    return *out ? ERR_OK : err_set(e, ERR_NOMEM, "%s: no memory", where);
}

/* keys: those it may have, commas between. A misspelt one must not be passed over. */
static err_code check_keys(const json_t *j, const char *keys, const char *where, err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)j, key, v) {
        bool known = false;
        size_t n;
        for (const char *k = keys; *k && !known; k += n + (k[n] == ',')) {
            n = strcspn(k, ",");
            known = strlen(key) == n && memcmp(k, key, n) == 0;
        }
        if (!known) return err_set(e, ERR_INPUT, "%s: found key '%.40s', wanted one of %s", where, key, keys);
    }
    return ERR_OK;
}

static err_code get_ceiling(const json_t *j, const char *where, rpl_waiver *w, err *e)
{
    const json_t *ratio = json_object_get(j, "max_ratio"), *count = json_object_get(j, "max_count");
    w->max_ratio = NAN;
    w->max_count = -1;
    if (!ratio && !count)
        return err_set(e, ERR_INPUT, "%s: found neither max_ratio nor max_count, wanted a ceiling", where);
    if (ratio && !(json_is_number(ratio) && json_number_value(ratio) >= 0))
        return err_set(e, ERR_INPUT, "%s: \"max_ratio\": wanted a number of 0 or more", where);
    if (count && !(json_is_integer(count) && json_integer_value(count) >= 0))
        return err_set(e, ERR_INPUT, "%s: \"max_count\": wanted an integer of 0 or more", where);
    if (ratio) w->max_ratio = json_number_value(ratio);
    if (count) w->max_count = json_integer_value(count);
    return ERR_OK;
}

static err_code parse_one(const json_t *j, const char *where, rpl_waiver *w, err *e)
{
    char *expires = NULL;
    if (!json_is_object(j)) return err_set(e, ERR_INPUT, "%s: wanted an object", where);
    TRY(check_keys(j, "value,cause,max_ratio,max_count,reason,expires,analysis,tape", where, e));
    TRY(get_text(j, "value", true, where, &w->value, e));
    TRY(get_text(j, "cause", true, where, &w->cause, e));
    TRY(get_text(j, "reason", true, where, &w->reason, e));
    TRY(get_text(j, "analysis", false, where, &w->analysis, e));
    TRY(get_text(j, "tape", false, where, &w->tape, e));
    TRY(get_ceiling(j, where, w, e));
    TRY(get_text(j, "expires", true, where, &expires, e));
    bool right = is_date(expires);
    if (right) memcpy(w->expires, expires, sizeof w->expires);
    else err_set(e, ERR_INPUT, "%s: \"expires\": found '%.40s', wanted a day such as 2027-03-31", where, expires);
    free(expires);
    return right ? ERR_OK : ERR_INPUT;
}

err_code rpl_waivers_parse(const json_t *j, const char *where, rpl_waivers *out, err *e)
{
    const json_t *list = json_object_get(j, "waivers");
    *out = (rpl_waivers){ 0 };
    if (rpl_count(j, "schema") != 1) return err_set(e, ERR_INPUT, "%s: \"schema\": wanted 1", where);
    TRY(check_keys(j, "schema,waivers", where, e));
    if (!json_is_array(list)) return err_set(e, ERR_INPUT, "%s: \"waivers\": wanted a list", where);
    out->item = mem_alloc(json_array_size(list) + 1, sizeof *out->item);
    if (!out->item) return err_set(e, ERR_NOMEM, "%s: no memory", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char place[300];
        snprintf(place, sizeof place, "%.200s: waiver %zu", where, i + 1);
        out->n = i + 1;
        TRY(parse_one(json_array_get(list, i), place, &out->item[i], e));
    }
    return ERR_OK;
}

err_code rpl_waivers_read(const char *path, rpl_waivers *out, err *e)
{
    json_t *j;
    *out = (rpl_waivers){ 0 };
    TRY(fmt_json_read(path, FILE_MAX, &j, e));
    err_code rc = rpl_waivers_parse(j, path, out, e);
    json_decref(j);
    return rc;
}

void rpl_waivers_fini(rpl_waivers *w)
{
    for (size_t i = 0; i < w->n; i++) {
        rpl_waiver *x = &w->item[i];
        free(x->value);
        free(x->cause);
        free(x->reason);
        free(x->analysis);
        free(x->tape);
    }
    free(w->item);
    *w = (rpl_waivers){ 0 };
}

/* ---- applying ---- */

/* Every one of the names, commas between, or the op that writes them all. */
static bool matches_value(const char *pattern, const rpl_issue *s)
{
    char names[sizeof s->value], *next = names;
    memcpy(names, s->value, sizeof names);
    if (s->op[0] && cli_match(pattern, s->op)) return true;
    for (char *name; (name = strsep(&next, ",")) != NULL;)
        if (!cli_match(pattern, name)) return false;
    return true;
}

static bool speaks_about(const rpl_waiver *w, const rpl_issue *s, const rpl_result *r)
{
    char tape[512];
    return (!w->analysis || cli_match(w->analysis, r->analysis->name)) &&
           (!w->tape || cli_match(w->tape, rpl_result_tape(r, tape, sizeof tape))) && matches_value(w->value, s) &&
           cli_match(w->cause, s->cause);
}

/* What speaks against it; "" nothing. count: of all issues of the result that it speaks about. */
static void object(const rpl_waiver *w, const rpl_issue *s, int64_t count, const char *today, char *buf, size_t buf_bytes)
{
    buf[0] = 0;
    if (strcmp(today, w->expires) > 0) snprintf(buf, buf_bytes, "its waiver expired on %s: %.80s", w->expires, w->reason);
    else if (!isnan(w->max_ratio) && !(s->ratio <= w->max_ratio) && !(isnan(s->ratio) && w->max_count >= 0)) {
        if (isnan(s->ratio))
            snprintf(buf, buf_bytes, "its waiver has no max_count, and there is no ratio to hold to max_ratio");
        else
            snprintf(buf, buf_bytes, "above its waiver's ceiling: ratio %.4g of at most %.4g", s->ratio, w->max_ratio);
    } else if (w->max_count >= 0 && count > w->max_count)
        snprintf(buf, buf_bytes, "above its waiver's ceiling: count %" PRId64 " of at most %" PRId64, count, w->max_count);
}

void rpl_waivers_apply(rpl_waivers *w, rpl_issue *issue, size_t n, const rpl_result *result, const char *today)
{
    for (size_t k = 0; k < w->n; k++) {
        rpl_waiver *x = &w->item[k];
        for (size_t i = 0; i < n;) {
            size_t end = i;
            int64_t count = 0;
            for (; end < n && issue[end].result == issue[i].result; end++)
                if (speaks_about(x, &issue[end], &result[issue[i].result]) &&
                    __builtin_add_overflow(count, issue[end].n, &count))
                    count = INT64_MAX; /* above every ceiling */
            for (; i < end; i++) {
                rpl_issue *s = &issue[i];
                char against[sizeof s->refused];
                if (!speaks_about(x, s, &result[s->result])) continue;
                x->n_matched++;
                if (s->waiver >= 0) continue;
                object(x, s, count, today, against, sizeof against);
                if (!against[0]) s->waiver = (int32_t)k;
                else memcpy(s->refused, against, sizeof against);
            }
        }
    }
}
