#include "replay/compare.h"

#include "base/mem.h"

/* Lines found so far; failed: no memory. */
typedef struct lines {
    char **line;
    size_t n, capacity;
    bool failed;
} lines;

/* A scalar as people write it, anything else as compact JSON. malloc'd; NULL: no memory. */
static char *text_of(const json_t *v)
{
    if (!v) return mem_strdup("-");
    if (json_is_string(v)) return mem_strdup(json_string_value(v));
    return fmt_json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
}

static void add(lines *l, const char *path, const json_t *a, const json_t *b)
{
    char *x = text_of(a), *y = text_of(b), *line = NULL;
    void *array = l->line;
    if (x && y && asprintf(&line, "%s: %s | %s", path, x, y) < 0) line = NULL;
    free(x);
    free(y);
    for (char *p = line; p && *p; p++) /* strings out of a file: a terminal must not obey them */
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    if (!line || !mem_grow(&array, &l->capacity, l->n + 2, sizeof *l->line)) {
        free(line);
        l->failed = true;
        return;
    }
    l->line = array;
    l->line[l->n++] = line;
    l->line[l->n] = NULL;
}

/* Depth of a tape's head is at most 16 (formats/json.h), so recursion is bounded. */
static void walk(lines *l, const char *path, const json_t *a, const json_t *b)
{
    if (l->failed || (a && b && json_equal(a, b))) return;
    if ((a && !json_is_object(a)) || (b && !json_is_object(b)) || (!a && !b)) {
        add(l, path, a, b);
        return;
    }
    const char *key;
    json_t *v;
    char child[256];
    const char *dot = path[0] ? "." : "";
    json_object_foreach((json_t *)a, key, v) { /* a side that lacks the object lacks each of its members */
        snprintf(child, sizeof child, "%s%s%s", path, dot, key);
        walk(l, child, v, json_object_get(b, key));
    }
    json_object_foreach((json_t *)b, key, v) {
        if (json_object_get(a, key)) continue;
        snprintf(child, sizeof child, "%s%s%s", path, dot, key);
        walk(l, child, NULL, v);
    }
}

char **rpl_identity_diff(const json_t *a, const json_t *b)
{
    lines l = { .line = mem_alloc(1, sizeof *l.line), .capacity = 1 };
    if (!l.line) return NULL;
    walk(&l, "", a, b);
    if (!l.failed) return l.line;
    rpl_lines_free(l.line);
    return NULL;
}

void rpl_lines_free(char **list)
{
    for (char **p = list; p && *p; p++) free(*p);
    free(list);
}
