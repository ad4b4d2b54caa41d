#include "base/cli.h"

#include "base/utf8.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const cli_option COMMON[] = {
    { "--json", NULL, "one JSON object per line", CLI_FLAG, offsetof(cli_common, json) },
    { "--quiet", NULL, "no progress and no notes on stderr", CLI_FLAG, offsetof(cli_common, quiet) },
    { "--color", "WHEN", "auto, always or never", CLI_STR, offsetof(cli_common, color) },
    { "--threads", "N", "threads of the CPU kernels (default: all)", CLI_COUNT, offsetof(cli_common, threads) },
    { "--help", NULL, "this text; -h is the same", CLI_FLAG, offsetof(cli_common, help) },
};
enum { N_COMMON = sizeof COMMON / sizeof COMMON[0] };

/* Of commands that have a CLI_NEW. */
static const cli_option FORCE = { "--force", NULL, "replace a file that has the output's name", CLI_FLAG,
                                  offsetof(cli_common, force) };

static bool has_new(const cli_command *c)
{
    for (int i = 0; i < c->n_options; i++)
        if (c->options[i].type == CLI_NEW) return true;
    return false;
}

/* Matches "NAME" or "NAME=value"; *value is set for the latter. */
static const cli_option *find(const cli_option *list, int n, const char *arg, const char **value)
{
    for (int i = 0; i < n; i++) {
        size_t len = strlen(list[i].name);
        if (strncmp(arg, list[i].name, len) != 0) continue;
        if (arg[len] == 0) { *value = NULL; return &list[i]; }
        if (arg[len] == '=' && len > 2) { *value = arg + len + 1; return &list[i]; }
    }
    return NULL;
}

err_code cli_int(const char *text, const char *what, int64_t lo, int64_t hi, int64_t *out, err *e)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v < lo || v > hi)
        return err_set(e, ERR_ARG, "%s: found '%s', wanted an integer from %lld to %lld", what, text, (long long)lo,
                       (long long)hi);
    *out = v;
    return ERR_OK;
}

static err_code store(const cli_option *o, void *base, const char *value, err *e)
{
    char *at = (char *)base + o->offset;
    switch (o->type) {
    case CLI_FLAG:
        if (value) return err_set(e, ERR_ARG, "%s takes no value, found '%s'", o->name, value);
        *(bool *)at = true;
        return ERR_OK;
    case CLI_STR:
    case CLI_IN:
    case CLI_OUT:
    case CLI_NEW:
        *(const char **)at = value;
        return ERR_OK;
    case CLI_INT:
        return cli_int(value, o->name, INT64_MIN, INT64_MAX, (int64_t *)at, e);
    case CLI_COUNT:
        return cli_int(value, o->name, 1, INT32_MAX, (int64_t *)at, e);
    case CLI_MULTI: {
        cli_list *l = (cli_list *)at;
        if (l->count == CLI_LIST_MAX) return err_set(e, ERR_ARG, "%s: more than %d times", o->name, CLI_LIST_MAX);
        l->item[l->count++] = value;
        return ERR_OK;
    }
    }
    return ERR_OK;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

err_code cli_keep_off(const char *what, const char *out, const char *in, err *e)
{
    struct stat o, i, folder;
    if (stat(out, &o) != 0 || stat(in, &i) != 0) return ERR_OK; /* nothing to destroy, or reported by whoever opens it */
    if (same_file(&o, &i) && !S_ISDIR(o.st_mode))
        return err_set(e, ERR_ARG, "%s: %s is an input of this command", what, out);
    bool of_checkpoint = ends_with(out, ".safetensors") || ends_with(out, ".json");
    if (!S_ISDIR(i.st_mode) || S_ISDIR(o.st_mode) || !of_checkpoint) return ERR_OK;
    char parent[4096];
    const char *slash = strrchr(out, '/');
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - out) : 1, slash ? out : ".");
    if (stat(parent[0] ? parent : "/", &folder) == 0 && same_file(&folder, &i))
        return err_set(e, ERR_ARG, "%s: %s belongs to the input %s", what, out, in);
    return ERR_OK;
}

err_code cli_keep_file(const char *what, const char *out, const cli_common *common, err *e)
{
    struct stat st;
    char part[4096];
    if (common->force) return ERR_OK;
    if (stat(out, &st) == 0 && S_ISREG(st.st_mode))
        return err_set(e, ERR_ARG, "%s: %s exists, wanted another name, or --force to replace it", what, out);
    int n = snprintf(part, sizeof part, "%s.part", out);
    if ((size_t)n >= sizeof part || stat(part, &st) != 0 || !S_ISREG(st.st_mode)) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: %s is what a killed writer left, or is being written (sparktape recover makes a tape "
                   "of it): wanted another name, or --force to replace it", what, part);
}

static bool is_output(const cli_option *o) { return o->type == CLI_OUT || o->type == CLI_NEW; }

/* Every output against every argument and every CLI_IN of the command, and what must not be replaced. */
static err_code check_outputs(const cli_command *self, const void *opts, const cli_common *common, const cli_args *args,
                              err *e)
{
    for (int o = 0; o < self->n_options; o++) {
        const cli_option *to = &self->options[o];
        const char *out = is_output(to) ? *(const char *const *)((const char *)opts + to->offset) : NULL;
        for (int i = 0; out && i < args->count; i++) TRY(cli_keep_off(to->name, out, args->item[i], e));
        for (int i = 0; out && i < self->n_options; i++) {
            const cli_option *from = &self->options[i];
            const char *in = from->type == CLI_IN ? *(const char *const *)((const char *)opts + from->offset) : NULL;
            if (in) TRY(cli_keep_off(to->name, out, in, e));
        }
        if (out && to->type == CLI_NEW) TRY(cli_keep_file(to->name, out, common, e));
    }
    return ERR_OK;
}

/* Counts words of "MODEL [PATTERN] T..": at least *lo, at most *hi arguments. */
static void wanted_args(const char *spec, int *lo, int *hi)
{
    *lo = *hi = 0;
    const char *p = spec;
    while (*p) {
        while (*p == ' ') p++;
        if (!*p) break;
        size_t n = strcspn(p, " ");
        (*hi)++;
        if (*p != '[') (*lo)++;
        if (n > 2 && strstr(p, "..") && strstr(p, "..") < p + n) *hi = CLI_ARGS_MAX;
        p += n;
    }
}

err_code cli_utf8(const char *text, const char *why, err *e)
{
    return utf8_valid(text) ? ERR_OK : err_set(e, ERR_ARG, "found the name '%s', wanted one of UTF-8, %s", text, why);
}

err_code cli_parse(const cli_command *self, int argc, char **argv, void *opts, cli_common *common, cli_args *args, err *e)
{
    *common = (cli_common){ .color = "auto" };
    *args = (cli_args){ 0 };
    bool ended = false;
    uint64_t files = 0; /* by option: given already. A second one would replace the first without a word */
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i], *value = NULL;
        if (!ended && strcmp(a, "--") == 0) { ended = true; continue; }
        if (!ended && strcmp(a, "-h") == 0) a = "--help";
        if (ended || a[0] != '-' || a[1] == 0) {
            if (args->count == CLI_ARGS_MAX) return err_set(e, ERR_ARG, "more than %d arguments", CLI_ARGS_MAX);
            args->item[args->count++] = a;
            continue;
        }
        void *base = opts;
        const cli_option *o = find(self->options, self->n_options, a, &value);
        if (!o) { o = find(COMMON, N_COMMON, a, &value); base = common; }
        if (!o && has_new(self)) o = find(&FORCE, 1, a, &value);
        if (!o)
            return err_set(e, ERR_ARG, "option %s is unknown, see sparktape %s --help", a, self->name);
        if (o->type != CLI_FLAG && !value) {
            if (i + 1 >= argc) return err_set(e, ERR_ARG, "%s: found nothing, wanted %s", o->name, o->value);
            value = argv[++i];
        }
        bool file = o->type == CLI_IN || o->type == CLI_OUT || o->type == CLI_NEW;
        uint64_t bit = file ? UINT64_C(1) << (o - self->options) : 0;
        if (files & bit) return err_set(e, ERR_ARG, "%s: found it twice, wanted one %s", o->name, o->value);
        files |= bit;
        TRY(store(o, base, value, e));
    }
    if (common->help) return ERR_OK;
    for (int i = 0; i < argc && common->json; i++)
        TRY(cli_utf8(argv[i], "as JSON can hold no other: leave --json out, or rename it", e));
    if (strcmp(common->color, "auto") && strcmp(common->color, "always") && strcmp(common->color, "never"))
        return err_set(e, ERR_ARG, "--color: found '%s', wanted auto, always or never", common->color);
    if (common->threads < 0 || common->threads > 4096)
        return err_set(e, ERR_ARG, "--threads: found %lld, wanted 1 to 4096", (long long)common->threads);
    int lo, hi;
    wanted_args(self->args, &lo, &hi);
    if (args->count < lo || args->count > hi)
        return err_set(e, ERR_ARG, "found %d arguments, wanted %s, see sparktape %s --help", args->count,
                       self->args[0] ? self->args : "none", self->name);
    return check_outputs(self, opts, common, args, e);
}

static void help_row(const cli_option *o)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
    printf("  %-26s %s\n", left, o->help);
}

void cli_help(const cli_command *self)
{
    printf("usage: sparktape %s %s%s[options]\n%s\n\n", self->name, self->args, self->args[0] ? " " : "", self->summary);
    for (int i = 0; i < self->n_options; i++) help_row(&self->options[i]);
    if (has_new(self)) help_row(&FORCE);
    for (int i = 0; i < N_COMMON; i++) help_row(&COMMON[i]);
}

bool cli_color(const cli_common *common)
{
    if (strcmp(common->color, "always") == 0) return true;
    if (strcmp(common->color, "never") == 0) return false;
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
}

void cli_say_as(err *e, const char *was, const char *is)
{
    const size_t n = strlen(was);
    if (!e || strncmp(e->msg, was, n) != 0 || (e->msg[n] != ':' && e->msg[n] != ' ')) return;
    const err why = *e;
    err_set(e, why.code, "%s%s", is, why.msg + n);
}

static bool glob(const char *p, const char *p_end, const char *s)
{
    const char *star = NULL, *back = NULL;
    for (;;) {
        if (p < p_end && *p == '*') { star = ++p; back = s; continue; }
        if (!*s) break;
        if (p < p_end && (*p == '?' || *p == *s)) { p++; s++; continue; }
        if (!star) return false;
        p = star;
        s = ++back;
    }
    while (p < p_end && *p == '*') p++;
    return p == p_end;
}

bool cli_match(const char *pattern, const char *name)
{
    for (;;) {
        size_t n = strcspn(pattern, ",");
        if (glob(pattern, pattern + n, name)) return true;
        if (!pattern[n]) return false;
        pattern += n + 1;
    }
}
