/* Files of results: JSON objects one after the other, as --json prints them. */
#include "replay/report.h"

#include "base/infile.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* The lines of a diff, which belong to its verdict line, are gathered in one object until something else comes. */
typedef struct gather {
    rpl_report *report;
    const char *file;
    json_t *diff;          /* NULL: none is open */
    char where[400];       /* of its verdict line */
    bool any;
} gather;

static err_code close_diff(gather *g, err *e)
{
    if (!g->diff) return ERR_OK;
    err_code rc = rpl_report_add(g->report, g->diff, g->file, g->where, e);
    json_decref(g->diff);
    g->diff = NULL;
    return rc;
}

/* A line goes into its diff, which has the schema for all of them. false: no memory. */
static bool take_line(gather *g, json_t *line)
{
    json_object_del(line, "schema");
    return json_array_append(json_object_get(g->diff, "lines"), line) == 0;
}

static bool is_line(const char *type)
{
    static const char *const TYPES[] = { "value", "finding", "draft" };
    for (size_t i = 0; i < COUNT_OF(TYPES); i++)
        if (strcmp(type, TYPES[i]) == 0) return true;
    return false;
}

/* Texts of a stranger's file are printed. false: no memory. */
static bool defuse(json_t *j)
{
    const char *key;
    json_t *v;
    size_t i;
    if (json_is_string(j)) {
        const size_t n = json_string_length(j);
        char *copy = mem_alloc(n + 1, 1);
        if (!copy) return false;
        memcpy(copy, json_string_value(j), n);
        utf8_defuse(copy, n, "\n\t");
        const bool kept = memcmp(copy, json_string_value(j), n) == 0 || json_string_setn_nocheck(j, copy, n) == 0;
        free(copy);
        return kept;
    }
    json_object_foreach(j, key, v)
        if (!defuse(v)) return false;
    json_array_foreach(j, i, v)
        if (!defuse(v)) return false;
    return true;
}

static err_code add_object(gather *g, json_t *j, const char *where, err *e)
{
    const char *type = fmt_json_text(j, "type");
    g->any = true;
    if (is_line(type)) {
        if (!g->diff)
            return err_set(e, ERR_INPUT, "%s: found a line of type '%s' alone, wanted the diff's verdict line before it",
                           where, type);
        return take_line(g, j) ? ERR_OK : err_set(e, ERR_NOMEM, "%s: no memory", where);
    }
    TRY(close_diff(g, e));
    if (strcmp(type, "verdict") != 0) return rpl_report_add(g->report, j, g->file, where, e);
    g->diff = json_copy(j);
    snprintf(g->where, sizeof g->where, "%s", where);
    if (g->diff && json_object_set_new(g->diff, "type", json_string("diff")) == 0 &&
        json_object_set_new(g->diff, "lines", json_array()) == 0)
        return ERR_OK;
    return err_set(e, ERR_NOMEM, "%s: no memory", where);
}

/* Whether there is anything but white space left. */
static bool has_more(FILE *f)
{
    int c = getc(f);
    while (c == ' ' || c == '\t' || c == '\r' || c == '\n') c = getc(f);
    return c != EOF && ungetc(c, f) != EOF;
}

static err_code add_stream(gather *g, FILE *f, err *e)
{
    err_code rc = ERR_OK;
    for (int n = 1; rc == ERR_OK && has_more(f); n++) {
        char where[400];
        json_error_t why;
        snprintf(where, sizeof where, "%.300s: object %d", g->file, n);
        json_t *j = json_loadf(f, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &why);
        if (j) rc = defuse(j) ? add_object(g, j, where, e) : err_set(e, ERR_NOMEM, "%s: no memory", where);
        else rc = err_set(e, ERR_FORMAT, "%s: line %d, column %d of it: %s; wanted JSON", where, why.line, why.column,
                          why.text);
        json_decref(j);
    }
    if (rc == ERR_OK && ferror(f)) rc = err_set(e, ERR_IO, "%s: reading failed: %s", g->file, strerror(errno));
    if (rc == ERR_OK) rc = close_diff(g, e);
    json_decref(g->diff);
    if (rc == ERR_OK && !g->any)
        rc = err_set(e, ERR_INPUT, "%s: found nothing, wanted a result (an analysis' --json)", g->file);
    return rc;
}

static err_code read_file(rpl_report *r, const char *path, err *e)
{
    gather g = { .report = r, .file = path };
    int fd;
    TRY(infile_open(path, path, "results", &fd, NULL, e));
    FILE *f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return err_set(e, ERR_NOMEM, "%s: no memory for reading it", path);
    }
    err_code rc = add_stream(&g, f, e);
    r->n_files += rc == ERR_OK;
    fclose(f);
    return rc;
}

static int by_name(const void *x, const void *y) { return strcmp(*(const char *const *)x, *(const char *const *)y); }

static bool is_json(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".json") == 0;
}

/* Paths of the folder's *.json, sorted. */
static err_code list_folder(const char *path, char ***out, size_t *n, err *e)
{
    size_t capacity = 0;
    err_code rc = ERR_OK;
    DIR *d = opendir(path);
    *out = NULL;
    *n = 0;
    if (!d) return err_set(e, ERR_IO, "%s: cannot be listed: %s", path, strerror(errno));
    for (struct dirent *entry; rc == ERR_OK && (entry = readdir(d)) != NULL;) {
        void *array = *out;
        bool room = is_json(entry->d_name) && mem_grow(&array, &capacity, *n + 1, sizeof **out);
        *out = array;
        if (!is_json(entry->d_name)) continue;
        if (room && asprintf(&(*out)[*n], "%s/%s", path, entry->d_name) >= 0) ++*n;
        else rc = err_set(e, ERR_NOMEM, "%s: no memory", path);
    }
    closedir(d);
    if (rc == ERR_OK && *n == 0) rc = err_set(e, ERR_INPUT, "%s: found no *.json in this folder, wanted results", path);
    if (rc == ERR_OK) qsort(*out, *n, sizeof **out, by_name);
    return rc;
}

err_code rpl_report_read(rpl_report *r, const char *path, err *e)
{
    struct stat st;
    char **name;
    size_t n;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return read_file(r, path, e);
    err_code rc = list_folder(path, &name, &n, e);
    for (size_t i = 0; rc == ERR_OK && i < n; i++) rc = read_file(r, name[i], e);
    for (size_t i = 0; i < n; i++) free(name[i]);
    free(name);
    return rc;
}
