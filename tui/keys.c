#include "tui/keys.h"

#include "base/mem.h"
#include "tui/text.h"

#include <ctype.h>
#include <strings.h>

#define ROUNDS TUI_ON_ROUNDS
#define PROGRAM TUI_ON_PROGRAM
#define VALUE TUI_ON_VALUE
#define ROUTING TUI_ON_ROUTING
#define TOKENS TUI_ON_TOKENS
#define MATRIX TUI_ON_MATRIX
#define INFO TUI_ON_INFO
#define PAGER TUI_ON_PAGER
#define ALL TUI_ON_ALL
#define SEVEN (ALL & ~PAGER)
#define K(name) TUI_KEY_##name

/* Order: as the help shows them. */
static const tui_binding BUILT_IN[] = {
    { TUI_DO_OPEN, SEVEN & ~VALUE, { K(ENTER) }, "open", "open", "open what the cursor is on" },
    { TUI_DO_BACK, ALL, { 'q' }, "back", "back", "back; at the first: quit" },
    { TUI_DO_ESCAPE, ALL, { K(ESC) }, "escape", NULL, "back, never quits" },
    { TUI_DO_QUIT, ALL, { 'Q' }, "quit", NULL, "quit" },
    { TUI_DO_HELP, ALL, { '?', K(F1) }, "help", "help", "this help" },
    { TUI_DO_ORIGIN, SEVEN, { 'o' }, "origin", "origin", "first origin: began here" },
    { TUI_DO_NEXT_DIFFERENT, ROUNDS | PROGRAM | ROUTING | TOKENS, { 'n' }, "next-different", "next",
      "next, last that differs" },
    { TUI_DO_PREVIOUS_DIFFERENT, ROUNDS | PROGRAM | ROUTING | TOKENS, { 'N' }, "previous-different", NULL, NULL },
    { TUI_DO_NEXT_DIFFERENT, PAGER, { 'n' }, "next-match", "next", "next, last line with text" },
    { TUI_DO_PREVIOUS_DIFFERENT, PAGER, { 'N' }, "previous-match", NULL, NULL },
    { TUI_DO_WORST, VALUE, { 'w' }, "worst", "worst", "worst; of one: largest" },
    { TUI_DO_NEXT_DIFFERENT, VALUE, { 'e' }, "next-element", "next", "differs; of one: illegal" },
    { TUI_DO_PREVIOUS_DIFFERENT, VALUE, { 'E' }, "previous-element", NULL, NULL },
    { TUI_DO_GOTO, VALUE, { 'g' }, "goto", "go to", "go to an index: 3,17" },
    { TUI_DO_GOTO, ROUNDS, { 'g' }, "goto-round", NULL, "go to a round" },
    { TUI_DO_BITS, VALUE, { 'h' }, "bits", "bits", "sign, exponent, mantissa" },
    { TUI_DO_PANES, VALUE, { K(TAB) }, "panes", "panes", "A, B, B\u2212A, ULP: all or one" },
    { TUI_DO_PANEL, VALUE, { 'p' }, "panel", "panel", "histogram, profile, block" },
    { TUI_DO_STAGE, ROUTING, { K(TAB) }, "stage", "stage", "stage of the heat map" },
    { TUI_DO_ROUND_BACK, PROGRAM | VALUE | ROUTING | TOKENS, { '[' }, "round-back", NULL, "round before, after" },
    { TUI_DO_ROUND_ON, PROGRAM | VALUE | ROUTING | TOKENS, { ']' }, "round-on", "round", NULL },
    { TUI_DO_SORT, ROUNDS | PROGRAM, { 's' }, "sort", "sort", "sort by the next column" },
    { TUI_DO_SORT_BY, ROUNDS | PROGRAM, { K(F6) }, "sort-by", NULL, "sort by a named column" },
    { TUI_DO_SORT_TURN, ROUNDS | PROGRAM, { 'S' }, "sort-turn", NULL, "turn the order around" },
    { TUI_DO_FILTER, ROUNDS | PROGRAM, { '/', K(F4) }, "filter", "filter", "only lines with a text" },
    { TUI_DO_FILTER, PAGER, { '/' }, "search", "search", "search a text" },
    { TUI_DO_EXPRESSION, ROUNDS | PROGRAM, { 'f' }, "expression", NULL, "only lines: excess>4" },
    { TUI_DO_MARK, ROUNDS, { 'm', ' ' }, "mark", NULL, "mark, or unmark" },
    { TUI_DO_NEXT_MARK, ROUNDS, { '\'' }, "next-mark", NULL, "next marked line" },
    { TUI_DO_OTHER_ARM, SEVEN & ~MATRIX, { 'b' }, "other-arm", NULL, "B: the next arm" },
    { TUI_DO_CERTIFY, ROUNDS | PROGRAM | VALUE, { 'c' }, "certify", NULL, "judge the round: causes" },
    { TUI_DO_ATTRIBUTE, PROGRAM | VALUE, { 'a' }, "attribute", NULL, "attribution on this op" },
    { TUI_DO_FOLLOW, SEVEN, { 'F' }, "follow", NULL, "follow a growing tape" },
    { TUI_DO_PAUSE, SEVEN, { 'P' }, "pause", NULL, "stop comparing, go on" },
    { TUI_DO_REFERENCE, SEVEN, { 'y' }, "reference", NULL, "copy a reference to this" },
    { TUI_DO_EXPORT, ALL, { 'x' }, "export", NULL, "export this screen" },
    { TUI_DO_COMMAND, ALL, { ':' }, "command", NULL, "run a command on this" },
    { TUI_DO_MOUSE, ALL, { 'M' }, "mouse", NULL, "mouse on, off" },
    { TUI_DO_GO_ROUNDS, ALL, { '1' }, "rounds", NULL, "Rounds, Program, Value" },
    { TUI_DO_GO_PROGRAM, ALL, { '2' }, "program", NULL, NULL },
    { TUI_DO_GO_VALUE, ALL, { '3' }, "value", NULL, NULL },
    { TUI_DO_GO_ROUTING, ALL, { '4' }, "routing", NULL, "Routing Tokens Matrix Info" },
    { TUI_DO_GO_TOKENS, ALL, { '5' }, "tokens", NULL, NULL },
    { TUI_DO_GO_MATRIX, ALL, { '6' }, "matrix", NULL, NULL },
    { TUI_DO_GO_INFO, ALL, { '7' }, "info", NULL, NULL },
    { TUI_DO_UP, ALL, { K(UP), 'k' }, "up", NULL, "up, down" },
    { TUI_DO_DOWN, ALL, { K(DOWN), 'j' }, "down", NULL, NULL },
    { TUI_DO_LEFT, VALUE | MATRIX | PAGER, { K(LEFT) }, "left", NULL, "left, right" },
    { TUI_DO_RIGHT, VALUE | MATRIX | PAGER, { K(RIGHT) }, "right", NULL, NULL },
    { TUI_DO_PAGE_UP, ALL, { K(PGUP) }, "page-up", NULL, "a page up, down" },
    { TUI_DO_PAGE_DOWN, ALL, { K(PGDN) }, "page-down", NULL, NULL },
    { TUI_DO_PAGE_LEFT, VALUE, { '<' }, "page-left", NULL, "a page left, right" },
    { TUI_DO_PAGE_RIGHT, VALUE, { '>' }, "page-right", NULL, NULL },
    { TUI_DO_FIRST, ALL, { K(HOME) }, "first", NULL, "the first, the last" },
    { TUI_DO_LAST, ALL, { K(END) }, "last", NULL, NULL },
};

static tui_binding table[COUNT_OF(BUILT_IN)]; /* with the keys that the configuration gave */
static bool made;

static const tui_binding *bindings(void)
{
    if (!made) tui_bindings_reset();
    return table;
}

void tui_bindings_reset(void)
{
    memcpy(table, BUILT_IN, sizeof table);
    made = true;
}

#define X(key, name) name,
static const char *const NAMES[] = { TUI_KEY_LIST(X) };
#undef X

size_t tui_bindings(void) { return COUNT_OF(BUILT_IN); }
const tui_binding *tui_binding_at(size_t i) { return &bindings()[i]; }

const tui_binding *tui_binding_find(int32_t key, uint32_t screen)
{
    const tui_binding *b = bindings();
    for (size_t i = 0; key != TUI_KEY_NONE && i < COUNT_OF(BUILT_IN); i++)
        for (int k = 0; (b[i].screens & screen) && k < TUI_BINDING_KEYS; k++)
            if (b[i].key[k] == key) return &b[i];
    return NULL;
}

err_code tui_binding_set(const char *name, const int32_t *keys, size_t n, err *e)
{
    char text[16];
    tui_binding *b = NULL;
    bindings();
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (strcmp(table[i].name, name) == 0) b = &table[i];
    if (!b) return err_set(e, ERR_ARG, "found action '%s', wanted one that browse --list-keys prints", name);
    if (n == 0 && b->action == TUI_DO_QUIT)
        return err_set(e, ERR_ARG, "quit: found no key, wanted one: nothing else leaves from every screen");
    if (n > TUI_BINDING_KEYS)
        return err_set(e, ERR_ARG, "%s: found %zu keys, wanted at most %d", name, n, (int)TUI_BINDING_KEYS);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < COUNT_OF(table); i++)
            for (int j = 0; j < TUI_BINDING_KEYS; j++)
                if (&table[i] != b && (table[i].screens & b->screens) && table[i].key[j] == keys[k])
                    return err_set(e, ERR_ARG, "%s: the key %s is that of %s", name, tui_key_text(keys[k], text),
                                   table[i].name);
    memset(b->key, 0, sizeof b->key);
    if (n) memcpy(b->key, keys, n * sizeof *keys);
    return ERR_OK;
}

const char *tui_binding_keys_text(size_t i, uint32_t screen, int32_t width, char buf[64])
{
    const tui_binding *b = bindings();
    for (int most = TUI_BINDING_KEYS; most > 0; most--) { /* all keys of each if they fit, else the first ones */
        char key[16];
        size_t at = 0;
        buf[0] = 0;
        for (size_t k = i; k < COUNT_OF(BUILT_IN) && (k == i || !b[k].help); k++)
            for (int j = 0; (b[k].screens & screen) && j < most && b[k].key[j] && at < 48; j++)
                at += (size_t)snprintf(buf + at, 64 - at, "%s%s", at ? " " : "", tui_key_text(b[k].key[j], key));
        if ((int32_t)at <= width) break;
    }
    return buf;
}

const char *tui_key_text(int32_t key, char buf[16])
{
    if (key >= TUI_KEY_SPECIAL && key < TUI_KEY_END_) snprintf(buf, 16, "%s", NAMES[key - TUI_KEY_SPECIAL]);
    else if (key == ' ') snprintf(buf, 16, "Space");
    else snprintf(buf, 16, "%c", key > ' ' && key < 0x7f ? (char)key : '?');
    return buf;
}

/* ---- files of recorded keys ---- */

enum { FILE_BYTES_MAX = 1 << 20 };

typedef struct key_list { int32_t *key; size_t n, capacity; } key_list;

static err_code add(key_list *l, int32_t key, err *e)
{
    void *array = l->key;
    if (!mem_grow(&array, &l->capacity, l->n + 1, sizeof *l->key)) return err_set(e, ERR_NOMEM, "no memory for the keys");
    l->key = array;
    l->key[l->n++] = key;
    return ERR_OK;
}

/* 0: no key has this name. */
static int32_t named_key(const char *word, size_t n)
{
    for (size_t i = 0; i < COUNT_OF(NAMES); i++)
        if (strlen(NAMES[i]) == n && strncasecmp(NAMES[i], word, n) == 0) return TUI_KEY_SPECIAL + (int32_t)i;
    return n == 5 && strncasecmp("Space", word, n) == 0 ? ' ' : TUI_KEY_NONE;
}

static bool printable(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < ' ' || s[i] > '~') return false;
    return n > 0;
}

static err_code add_word(key_list *l, const char *word, size_t n, const char *where, size_t line, err *e)
{
    int32_t named = named_key(word, n);
    if (named != TUI_KEY_NONE) return add(l, named, e);
    bool types = word[0] == '/' || word[0] == ':', quoted = n >= 2 && word[0] == '"' && word[n - 1] == '"';
    if (!printable(word, n) || !(n == 1 || types || quoted))
        return err_set(e, ERR_INPUT, "%s: line %zu: found '%.*s', wanted a key: Enter, Down, F6, one character, /text, "
                       ":text or \"text\"", where, line, (int)(n < 40 ? n : 40), word);
    if (quoted) word++, n -= 2;
    for (size_t i = 0; i < n; i++) TRY(add(l, word[i], e));
    return ERR_OK;
}

static err_code parse_words(key_list *l, const char *text, size_t bytes, const char *where, err *e)
{
    size_t line = 1;
    for (size_t i = 0; i < bytes;) {
        if (text[i] == '\n') line++;
        if (isspace((unsigned char)text[i])) {
            i++;
            continue;
        }
        size_t end = i;
        if (text[i] == '#') {
            while (i < bytes && text[i] != '\n') i++;
            continue;
        }
        if (text[i] == '"') { /* up to the closing quote; one that is alone on its line is the key itself */
            size_t close = i + 1;
            while (close < bytes && text[close] != '"' && text[close] != '\n') close++;
            if (close < bytes && text[close] == '"') end = close + 1;
        }
        if (end == i)
            while (end < bytes && !isspace((unsigned char)text[end])) end++;
        TRY(add_word(l, text + i, end - i, where, line, e));
        i = end;
    }
    return ERR_OK;
}

err_code tui_keys_parse(const char *text, size_t bytes, const char *where, int32_t **keys, size_t *n, err *e)
{
    key_list l = { 0 };
    *keys = NULL;
    *n = 0;
    err_code rc = parse_words(&l, text, bytes, where, e);
    if (rc != ERR_OK) {
        free(l.key);
        return rc;
    }
    *keys = l.key;
    *n = l.n;
    return ERR_OK;
}

err_code tui_keys_read(const char *path, int32_t **keys, size_t *n, err *e)
{
    tui_text text = { 0 };
    *keys = NULL;
    *n = 0;
    err_code rc = tui_text_read(&text, path, FILE_BYTES_MAX, e);
    if (rc == ERR_OK) rc = tui_keys_parse(text.text, text.n, path, keys, n, e);
    tui_text_fini(&text);
    return rc;
}
