#include "replay/report_merge.h"

#include "replay/report.h"

#include <math.h>
#include <string.h>

/* ---- members ---- */

double rpl_json_number(const json_t *v)
{
    const char *s = json_string_value(v);
    if (!s) return json_is_number(v) ? json_number_value(v) : NAN;
    return strcmp(s, "inf") == 0 ? INFINITY : strcmp(s, "-inf") == 0 ? -(double)INFINITY : NAN;
}

double rpl_real(const json_t *j, const char *key) { return rpl_json_number(json_object_get(j, key)); }

static int64_t cut(json_int_t v)
{
    const json_int_t most = (json_int_t)1 << 53;
    return v > most ? most : v < -most ? -most : v;
}

int64_t rpl_count(const json_t *j, const char *key) { return cut(json_integer_value(json_object_get(j, key))); }

static json_t *sum_json(const json_t *a, const json_t *b)
{
    return json_integer(cut(cut(json_integer_value(a)) + cut(json_integer_value(b))));
}

static const rpl_field *find(const rpl_field *list, const char *name)
{
    for (; list->name; list++)
        if (strcmp(list->name, name) == 0) return list;
    return NULL;
}

/* ---- what a result promises ---- */

static bool is_real(const json_t *v)
{
    const char *s = json_string_value(v);
    return json_is_number(v) || (s && (strcmp(s, "nan") == 0 || strcmp(s, "inf") == 0 || strcmp(s, "-inf") == 0));
}

/* What a member of this rule is; NULL: v is that. */
static const char *wanted(const rpl_field *f, const json_t *v)
{
    switch (f->rule) {
    case RPL_MERGE_SUM:
    case RPL_MERGE_MIN: return json_is_integer(v) ? NULL : "an integer";
    case RPL_MERGE_MAX: return is_real(v) ? NULL : "a number";
    case RPL_MERGE_OR: return json_is_boolean(v) ? NULL : "true or false";
    case RPL_MERGE_LIST:
    case RPL_MERGE_KEYED:
    case RPL_MERGE_SUMS:
    case RPL_MERGE_SOURCE: return json_is_array(v) ? NULL : "a list";
    case RPL_MERGE_OBJECT: return json_is_object(v) ? NULL : "an object";
    case RPL_MERGE_EARLIEST: return json_is_object(v) || json_is_null(v) ? NULL : "an object or null";
    case RPL_MERGE_MARKS:
    case RPL_MERGE_WITH_FIRST:
    case RPL_MERGE_FIRST_TEXT: return json_is_string(v) ? NULL : "text";
    case RPL_MERGE_KEY:
    case RPL_MERGE_LABEL:
    case RPL_MERGE_DERIVED: return NULL;
    }
    return NULL;
}

static err_code check_fields(const rpl_field *list, const json_t *j, const char *of, const char *where, err *e)
{
    for (const rpl_field *f = list; f->name; f++) {
        const json_t *v = json_object_get(j, f->name);
        if (!v && f->needed) return err_set(e, ERR_INPUT, "%s: found no \"%s\" in %s, wanted one", where, f->name, of);
        const char *what = v ? wanted(f, v) : NULL;
        if (what) return err_set(e, ERR_INPUT, "%s: \"%s\" of %s: wanted %s", where, f->name, of, what);
        if (v && f->rule == RPL_MERGE_OBJECT) TRY(check_fields(f->sub, v, f->name, where, e));
        if (!v || !(f->rule == RPL_MERGE_LIST || f->rule == RPL_MERGE_KEYED || f->rule == RPL_MERGE_SOURCE)) continue;
        size_t i;
        json_t *item;
        json_array_foreach((json_t *)v, i, item) {
            if (!json_is_object(item))
                return err_set(e, ERR_INPUT, "%s: \"%s\" of %s, item %zu: wanted an object", where, f->name, of, i);
            if (f->sub) TRY(check_fields(f->sub, item, f->name, where, e));
        }
    }
    return ERR_OK;
}

err_code rpl_merge_check(const rpl_analysis *a, const json_t *j, const char *where, err *e)
{
    return check_fields(a->field, j, a->type, where, e);
}

/* ---- the key ---- */

static bool append(json_t *list, json_t *v) { return json_array_append_new(list, v) == 0; }

static bool add_by(json_t *key, const rpl_field *f, const json_t *list)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item)
        for (int k = 0; k < 3 && f->by[k]; k++) {
            const json_t *v = json_object_get(item, f->by[k]);
            if (!append(key, v ? json_deep_copy(v) : json_null())) return false;
        }
    return true;
}

/* Every source without the name it has on this machine. */
static bool add_source(json_t *key, const json_t *list)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item) {
        json_t *copy = json_copy(item);
        if (copy) json_object_del(copy, "tape");
        if (!append(key, copy)) return false;
    }
    return true;
}

static bool add_keys(json_t *key, const rpl_field *list, const json_t *j)
{
    bool fine = true;
    for (const rpl_field *f = list; f->name && fine; f++) {
        const json_t *v = json_object_get(j, f->name);
        if (f->rule == RPL_MERGE_KEY) fine = append(key, v ? json_deep_copy(v) : json_null());
        if (f->rule == RPL_MERGE_OBJECT && v) fine = add_keys(key, f->sub, v);
        if (f->in_key && v) fine = add_by(key, f, v);
        if (f->rule == RPL_MERGE_SOURCE && v) fine = add_source(key, v);
        /* Without a source, the name is all that tells tapes apart. */
        if (f->rule == RPL_MERGE_LABEL && v && !json_object_get(j, "source")) fine = append(key, json_deep_copy(v));
    }
    return fine;
}

char *rpl_merge_key(const rpl_analysis *a, const json_t *j)
{
    json_t *key = json_array();
    bool fine = key && append(key, json_string(a->type)) && add_keys(key, a->field, j);
    char *text = fine ? fmt_json_dumps(key, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(key);
    return text;
}

/* ---- merging ---- */

/* -1, 0, 1 by the integers `by` of two objects; those that lack one come first. */
static int compare_by(const char *const *by, const json_t *x, const json_t *y)
{
    for (int k = 0; k < 3 && by[k]; k++) {
        int64_t a = rpl_count(x, by[k]), b = rpl_count(y, by[k]);
        if (a != b) return a < b ? -1 : 1;
    }
    return 0;
}

/* Two sorted lists into one; items of into come first where they are equal. */
static bool merge_list(json_t *into, const json_t *part, const char *const *by)
{
    size_t n = json_array_size(into), m = json_array_size(part), i = 0, k = 0;
    json_t *out = json_array();
    bool fine = out != NULL;
    while (fine && (i < n || k < m)) {
        json_t *a = json_array_get(into, i), *b = json_array_get(part, k);
        bool second = !a || (b && compare_by(by, b, a) < 0);
        fine = json_array_append(out, second ? b : a) == 0;
        if (second) k++;
        else i++;
    }
    fine = fine && json_array_clear(into) == 0 && json_array_extend(into, out) == 0;
    json_decref(out);
    return fine;
}

static bool same_by(const char *const *by, const json_t *x, const json_t *y)
{
    for (int k = 0; k < 3 && by[k]; k++) {
        const json_t *a = json_object_get(x, by[k]), *b = json_object_get(y, by[k]);
        if (a && b ? !json_equal(a, b) : a || b) return false;
    }
    return true;
}

static err_code merge_fields(const rpl_field *list, json_t *into, const json_t *part, const char *where, err *e);

static err_code no_memory(const char *where, err *e) { return err_set(e, ERR_NOMEM, "%s: no memory to merge it", where); }

/* Where a new element belongs: by its "order", else behind the one it follows in part. */
static size_t place_of(const json_t *into, const json_t *item, size_t after)
{
    const char *const by[3] = { "order" };
    size_t n = json_array_size(into), i = 0;
    if (!json_object_get(item, "order")) return after;
    while (i < n && compare_by(by, json_array_get(into, i), item) <= 0) i++;
    return i;
}

static err_code merge_keyed(const rpl_field *f, json_t *into, const json_t *part, const char *where, err *e)
{
    size_t i, after = 0;
    json_t *item;
    json_array_foreach((json_t *)part, i, item) {
        size_t at = 0, n = json_array_size(into);
        while (at < n && !same_by(f->by, json_array_get(into, at), item)) at++;
        if (at < n) TRY(merge_fields(f->sub, json_array_get(into, at), item, where, e));
        else if (json_array_insert_new(into, at = place_of(into, item, after), json_deep_copy(item)) != 0)
            return no_memory(where, e);
        after = at + 1;
    }
    return ERR_OK;
}

static bool is_worse_mark(char a, char b)
{
    static const char ORDER[] = "-=~?X!";
    const char *x = strchr(ORDER, a), *y = strchr(ORDER, b);
    return x && y && x > y;
}

static json_t *merge_marks(const char *a, const char *b)
{
    char text[64];
    size_t n = strlen(a);
    if (n != strlen(b) || n >= sizeof text) return json_string(a);
    for (size_t i = 0; i < n; i++) text[i] = is_worse_mark(b[i], a[i]) ? b[i] : a[i];
    return json_stringn(text, n);
}

static json_t *merge_sums(const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    size_t n = json_array_size(a) > json_array_size(b) ? json_array_size(a) : json_array_size(b);
    bool fine = out != NULL;
    for (size_t i = 0; i < n && fine; i++)
        fine = json_array_append_new(out, sum_json(json_array_get(a, i), json_array_get(b, i))) == 0;
    if (fine) return out;
    json_decref(out);
    return NULL;
}

/* The round in "round 3 ..."; after every other where there is none. */
static int64_t round_of_text(const char *s)
{
    return strncmp(s, "round ", 6) == 0 ? strtoll(s + 6, NULL, 10) : INT32_MAX;
}

static bool is_earlier(const json_t *part, const json_t *into)
{
    return json_is_object(part) && (!json_is_object(into) || rpl_count(part, "round") < rpl_count(into, "round"));
}

/* The text that names a label: the first of a list of names. */
static const char *label_text(const json_t *v)
{
    const char *s = json_string_value(json_is_array(v) ? json_array_get(v, 0) : v);
    return s ? s : "";
}

/* Whether merge_value makes a value of this rule. */
static bool is_made(rpl_rule rule)
{
    return rule == RPL_MERGE_SUM || rule == RPL_MERGE_SUMS || rule == RPL_MERGE_MARKS;
}

/* A new value of the member of into, NULL: no memory; or, of rules that make none, NULL, and *keep_part says which of the
 * two stays. */
static json_t *merge_value(const rpl_field *f, const json_t *a, const json_t *b, bool part_first, bool *keep_part)
{
    *keep_part = false;
    switch (f->rule) {
    case RPL_MERGE_SUM: return sum_json(a, b);
    case RPL_MERGE_MIN: *keep_part = json_integer_value(b) < json_integer_value(a); return NULL;
    case RPL_MERGE_MAX:
        *keep_part = rpl_json_number(b) > rpl_json_number(a) || (isnan(rpl_json_number(b)) && !isnan(rpl_json_number(a)));
        return NULL;
    case RPL_MERGE_OR: *keep_part = json_is_true(b); return NULL;
    case RPL_MERGE_LABEL: *keep_part = strcmp(label_text(b), label_text(a)) < 0; return NULL;
    case RPL_MERGE_EARLIEST: *keep_part = is_earlier(b, a); return NULL;
    case RPL_MERGE_WITH_FIRST: *keep_part = part_first; return NULL;
    case RPL_MERGE_FIRST_TEXT:
        *keep_part = round_of_text(json_string_value(b)) < round_of_text(json_string_value(a));
        return NULL;
    case RPL_MERGE_MARKS: return merge_marks(json_string_value(a), json_string_value(b));
    case RPL_MERGE_SUMS: return merge_sums(a, b);
    case RPL_MERGE_KEY:
    case RPL_MERGE_SOURCE:
    case RPL_MERGE_LIST:
    case RPL_MERGE_KEYED:
    case RPL_MERGE_OBJECT:
    case RPL_MERGE_DERIVED: return NULL;
    }
    return NULL;
}

/* Each source keeps the first of its names by alphabet. */
static err_code merge_source(json_t *into, const json_t *part, const char *where, err *e)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)part, i, item) {
        json_t *to = json_array_get(into, i);
        if (to && strcmp(fmt_json_text(item, "tape"), fmt_json_text(to, "tape")) < 0 &&
            json_object_set(to, "tape", json_object_get(item, "tape")) != 0)
            return no_memory(where, e);
    }
    return ERR_OK;
}

static err_code merge_field(const rpl_field *f, json_t *into, const json_t *part, bool part_first, const char *where,
                            err *e)
{
    json_t *a = json_object_get(into, f->name), *b = json_object_get(part, f->name);
    bool keep_part, fine = true;
    if (!b) return ERR_OK;
    if (!a) return json_object_set_new(into, f->name, json_deep_copy(b)) == 0 ? ERR_OK : no_memory(where, e);
    if (f->rule == RPL_MERGE_OBJECT) return merge_fields(f->sub, a, b, where, e);
    if (f->rule == RPL_MERGE_KEYED) return merge_keyed(f, a, b, where, e);
    if (f->rule == RPL_MERGE_SOURCE) return merge_source(a, b, where, e);
    if (f->rule == RPL_MERGE_LIST) fine = merge_list(a, b, f->by);
    else {
        json_t *made = merge_value(f, a, b, part_first, &keep_part);
        if (is_made(f->rule)) fine = json_object_set_new(into, f->name, made) == 0;
        else if (keep_part) fine = json_object_set_new(into, f->name, json_deep_copy(b)) == 0;
    }
    return fine ? ERR_OK : no_memory(where, e);
}

static err_code merge_fields(const rpl_field *list, json_t *into, const json_t *part, const char *where, err *e)
{
    const char *name;
    json_t *v;
    bool part_first = is_earlier(json_object_get(part, "first"), json_object_get(into, "first"));
    for (const rpl_field *f = list; f->name; f++) TRY(merge_field(f, into, part, part_first, where, e));
    json_object_foreach((json_t *)part, name, v) {
        const json_t *mine = json_object_get(into, name);
        if (find(list, name) || strcmp(name, "shard") == 0 || (mine && json_equal(mine, v))) continue;
        if (mine)
            return err_set(e, ERR_INPUT, "%s: member \"%s\" differs between parts of one result, and how it adds up is not "
                           "known to this build", where, name);
        if (json_object_set_new(into, name, json_deep_copy(v)) != 0) return no_memory(where, e);
    }
    return ERR_OK;
}

err_code rpl_merge(const rpl_analysis *a, json_t *into, const json_t *part, const char *where, err *e)
{
    return merge_fields(a->field, into, part, where, e);
}
