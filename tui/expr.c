#include "tui/expr.h"

#include "base/mem.h"
#include "tui/table.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct parser {
    const char *p;
    const tui_expr_field *fields;
    int n_fields, depth;
    size_t words;
    tui_expr *x;
    err *e;
} parser;

enum { NONE = -1, DEPTH_MAX = 32 };

static int either(parser *s);

static void skip(parser *s) { s->p += strspn(s->p, " \t"); }

static bool take(parser *s, const char *word)
{
    skip(s);
    if (strncmp(s->p, word, strlen(word)) != 0) return false;
    s->p += strlen(word);
    return true;
}

static int wrong(parser *s, const char *wanted)
{
    char names[256] = "";
    size_t at = 0;
    for (int i = 0; i < s->n_fields && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? " " : "", s->fields[i].name);
    err_set(s->e, ERR_ARG, "found '%s', wanted %s (%s)", *s->p ? s->p : "the end", wanted, names);
    return NONE;
}

static int add(parser *s, tui_expr_node node)
{
    if (s->x->n == TUI_EXPR_NODES) return wrong(s, "a shorter expression");
    s->x->node[s->x->n] = node;
    return s->x->n++;
}

/* A word or "a text" into words; its place. NONE: neither. */
static int take_text(parser *s)
{
    skip(s);
    bool quoted = *s->p == '"';
    const char *start = s->p + quoted;
    size_t n = quoted ? strcspn(start, "\"") : strcspn(start, " \t()&|!=<>~\"");
    if ((quoted && start[n] != '"') || (!quoted && n == 0) || s->words + n + 1 > sizeof s->x->words) return NONE;
    int at = (int)s->words;
    memcpy(s->x->words + at, start, n);
    s->x->words[at + (int)n] = 0;
    s->words += n + 1;
    s->p = start + n + quoted;
    return at;
}

static int compare(parser *s)
{
    static const struct { const char *sign; tui_expr_op op; } SIGNS[] = {
        { "==", TUI_EXPR_EQ }, { "!=", TUI_EXPR_NE }, { "<=", TUI_EXPR_LE }, { ">=", TUI_EXPR_GE }, { "<", TUI_EXPR_LT },
        { ">", TUI_EXPR_GT }, { "=", TUI_EXPR_EQ }, { "~", TUI_EXPR_HAS },
    };
    skip(s);
    const char *start = s->p;
    size_t n = strcspn(start, " \t()&|!=<>~\"");
    int field = 0;
    while (field < s->n_fields &&
           !(strlen(s->fields[field].name) == n && strncasecmp(start, s->fields[field].name, n) == 0)) field++;
    if (n == 0 || field == s->n_fields) return wrong(s, "a field");
    s->p += n;
    for (size_t i = 0; i < COUNT_OF(SIGNS); i++) {
        if (!take(s, SIGNS[i].sign)) continue;
        bool is_text = s->fields[field].is_text;
        if (!is_text && SIGNS[i].op == TUI_EXPR_HAS) {
            s->p--;
            return wrong(s, "== != < <= > or >= behind a number");
        }
        skip(s);
        const char *value = s->p;
        tui_expr_node node = { .op = SIGNS[i].op, .left = field, .number = (double)NAN, .text = take_text(s) };
        if (node.text == NONE) return wrong(s, is_text ? "a text" : "a number");
        char *end;
        const char *word = s->x->words + node.text;
        double number = strtod(word, &end);
        if (*word && *end == 0) node.number = number;
        if (!is_text && isnan(node.number)) {
            s->p = value;
            return wrong(s, "a number");
        }
        return add(s, node);
    }
    return add(s, (tui_expr_node){ .op = TUI_EXPR_THERE, .left = field, .text = NONE });
}

static int not(parser *s)
{
    int inner;
    if (++s->depth > DEPTH_MAX) return wrong(s, "fewer ( and !");
    if (take(s, "!")) {
        inner = not(s);
        inner = inner == NONE ? NONE : add(s, (tui_expr_node){ .op = TUI_EXPR_NOT, .left = inner });
    } else if (take(s, "(")) {
        inner = either(s);
        if (inner != NONE && !take(s, ")")) inner = wrong(s, "a closing bracket");
    } else {
        inner = compare(s);
    }
    s->depth--;
    return inner;
}

static int both(parser *s)
{
    int left = not(s);
    while (left != NONE && take(s, "&&")) {
        int right = not(s);
        left = right == NONE ? NONE : add(s, (tui_expr_node){ .op = TUI_EXPR_AND, .left = left, .right = right });
    }
    return left;
}

static int either(parser *s)
{
    int left = both(s);
    while (left != NONE && take(s, "||")) {
        int right = both(s);
        left = right == NONE ? NONE : add(s, (tui_expr_node){ .op = TUI_EXPR_OR, .left = left, .right = right });
    }
    return left;
}

err_code tui_expr_parse(const char *text, const tui_expr_field *fields, int n, tui_expr *out, err *e)
{
    tui_expr x = { 0 };
    err found = { 0 };
    parser s = { .p = text, .fields = fields, .n_fields = n, .x = &x, .e = &found };
    *out = (tui_expr){ 0 };
    snprintf(x.source, sizeof x.source, "%s", text);
    if (text[strspn(text, " \t")] == 0) return ERR_OK;
    x.root = either(&s);
    skip(&s);
    if (x.root != NONE && *s.p) x.root = wrong(&s, "&& or ||");
    if (x.root == NONE) return err_set(e, found.code, "%s", found.msg);
    *out = x;
    return ERR_OK;
}

static bool compares(const tui_expr *x, const tui_expr_node *n, const tui_field *f)
{
    double order;
    const char *text = x->words + (n->text >= 0 ? n->text : 0);
    if (n->op == TUI_EXPR_THERE) return f->text ? f->text[0] != 0 : !isnan(f->number) && f->number != 0;
    if (f->text) {
        if (n->op == TUI_EXPR_HAS) return tui_contains(f->text, text);
        order = strcasecmp(f->text, text);
    } else {
        if (n->op == TUI_EXPR_HAS || isnan(f->number) || isnan(n->number)) return false;
        order = f->number < n->number ? -1 : f->number > n->number;
    }
    switch (n->op) {
    case TUI_EXPR_NE: return order != 0;
    case TUI_EXPR_LE: return order <= 0;
    case TUI_EXPR_GE: return order >= 0;
    case TUI_EXPR_LT: return order < 0;
    case TUI_EXPR_GT: return order > 0;
    default: return order == 0;
    }
}

static bool passes(const tui_expr *x, int at, tui_field (*get)(void *line, int field), void *line)
{
    const tui_expr_node *n = &x->node[at];
    switch (n->op) {
    case TUI_EXPR_OR: return passes(x, n->left, get, line) || passes(x, n->right, get, line);
    case TUI_EXPR_AND: return passes(x, n->left, get, line) && passes(x, n->right, get, line);
    case TUI_EXPR_NOT: return !passes(x, n->left, get, line);
    default: {
        tui_field f = get(line, n->left);
        return compares(x, n, &f);
    }
    }
}

bool tui_expr_passes(const tui_expr *x, tui_field (*get)(void *line, int field), void *line)
{
    return x->n == 0 || passes(x, x->root, get, line);
}
