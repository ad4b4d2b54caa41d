#include "tui/keys.h"

#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <strings.h>

#define ROUNDS TUI_ON_ROUNDS
#define PROGRAM TUI_ON_PROGRAM
#define VALUE TUI_ON_VALUE
#define ALL TUI_ON_ALL
#define K(name) TUI_KEY_##name

/* Order: as the help shows them. */
static const tui_binding BINDINGS[] = {
    { TUI_DO_OPEN, ROUNDS | PROGRAM, { K(ENTER) }, "open", "open", "open what the cursor is on" },
    { TUI_DO_BACK, ALL, { 'q' }, "back", "back", "back; at the first: quit" },
    { TUI_DO_ESCAPE, ALL, { K(ESC) }, "escape", NULL, "back, never quits" },
    { TUI_DO_QUIT, ALL, { 'Q' }, "quit", NULL, "quit" },
    { TUI_DO_HELP, ALL, { '?', K(F1) }, "help", "help", "this help" },
    { TUI_DO_ORIGIN, ALL, { 'o' }, "origin", "origin", "first origin: it began here" },
    { TUI_DO_NEXT_DIFFERENT, ROUNDS | PROGRAM, { 'n' }, "next-different", "next", "next line that differs" },
    { TUI_DO_PREVIOUS_DIFFERENT, ROUNDS | PROGRAM, { 'N' }, "previous-different", NULL, "previous line that differs" },
    { TUI_DO_WORST, VALUE, { 'w' }, "worst", "worst", "worst (of one tape: largest)" },
    { TUI_DO_NEXT_DIFFERENT, VALUE, { 'e' }, "next-different", "next", "next different / not finite" },
    { TUI_DO_GOTO, VALUE, { 'g' }, "goto", "go to", "go to an index: 3,17" },
    { TUI_DO_BITS, VALUE, { 'h' }, "bits", "bits", "sign, exponent, mantissa" },
    { TUI_DO_PANES, VALUE, { K(TAB) }, "panes", "panes", "A, B, B\u2212A, ULP: all or one" },
    { TUI_DO_ROUND_BACK, PROGRAM | VALUE, { '[' }, "round-back", NULL, "previous round, same value" },
    { TUI_DO_ROUND_ON, PROGRAM | VALUE, { ']' }, "round-on", "round", "next round, same value" },
    { TUI_DO_SORT, ROUNDS, { 's', K(F6) }, "sort", "sort", "sort by the next column" },
    { TUI_DO_SORT_TURN, ROUNDS, { 'S' }, "sort-turn", NULL, "turn the order around" },
    { TUI_DO_FILTER, ROUNDS | PROGRAM, { '/', K(F4) }, "filter", "filter", "only lines with a text" },
    { TUI_DO_MARK, ROUNDS, { 'm', ' ' }, "mark", NULL, "mark, or unmark" },
    { TUI_DO_NEXT_MARK, ROUNDS, { '\'' }, "next-mark", NULL, "next marked line" },
    { TUI_DO_REFERENCE, ALL, { 'y' }, "reference", NULL, "reference for --at and show" },
    { TUI_DO_GO_ROUNDS, ALL, { '1' }, "rounds", NULL, "screen Rounds" },
    { TUI_DO_GO_PROGRAM, ALL, { '2' }, "program", NULL, "screen Program" },
    { TUI_DO_GO_VALUE, ALL, { '3' }, "value", NULL, "screen Value" },
    { TUI_DO_UP, ALL, { K(UP), 'k' }, "up", NULL, "up" },
    { TUI_DO_DOWN, ALL, { K(DOWN), 'j' }, "down", NULL, "down" },
    { TUI_DO_LEFT, VALUE, { K(LEFT) }, "left", NULL, "left" },
    { TUI_DO_RIGHT, VALUE, { K(RIGHT) }, "right", NULL, "right" },
    { TUI_DO_PAGE_UP, ALL, { K(PGUP) }, "page-up", NULL, "a page up" },
    { TUI_DO_PAGE_DOWN, ALL, { K(PGDN) }, "page-down", NULL, "a page down" },
    { TUI_DO_PAGE_LEFT, VALUE, { '<' }, "page-left", NULL, "a page left" },
    { TUI_DO_PAGE_RIGHT, VALUE, { '>' }, "page-right", NULL, "a page right" },
    { TUI_DO_FIRST, ALL, { K(HOME) }, "first", NULL, "the first one" },
    { TUI_DO_LAST, ALL, { K(END) }, "last", NULL, "the last one" },
};

#define X(key, name) name,
static const char *const NAMES[] = { TUI_KEY_LIST(X) };
#undef X

size_t tui_bindings(void) { return COUNT_OF(BINDINGS); }
const tui_binding *tui_binding_at(size_t i) { return &BINDINGS[i]; }

const tui_binding *tui_binding_find(int32_t key, uint32_t screen)
{
    for (size_t i = 0; key != TUI_KEY_NONE && i < COUNT_OF(BINDINGS); i++)
        for (int k = 0; (BINDINGS[i].screens & screen) && k < TUI_BINDING_KEYS; k++)
            if (BINDINGS[i].key[k] == key) return &BINDINGS[i];
    return NULL;
}

const char *tui_key_text(int32_t key, char buf[16])
{
    if (key >= TUI_KEY_SPECIAL && key < TUI_KEY_END_) snprintf(buf, 16, "%s", NAMES[key - TUI_KEY_SPECIAL]);
    else if (key == ' ') snprintf(buf, 16, "Space");
    else snprintf(buf, 16, "%c", key > ' ' && key < 0x7f ? (char)key : '?');
    return buf;
}

/* ---- files of recorded keys ---- */

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
    enum { BYTES_MAX = 1 << 20 };
    *keys = NULL;
    *n = 0;
    FILE *f = fopen(path, "rb");
    if (!f) return err_set(e, ERR_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
    char *text = mem_alloc(BYTES_MAX + 1, 1);
    size_t bytes = text ? fread(text, 1, BYTES_MAX + 1, f) : 0;
    err_code rc = ERR_OK;
    if (!text) rc = err_set(e, ERR_NOMEM, "%s: no memory", path);
    else if (ferror(f))
        rc = err_set(e, errno == EISDIR ? ERR_INPUT : ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    else if (bytes > BYTES_MAX) rc = err_set(e, ERR_INPUT, "%s: found more than %d bytes of keys", path, (int)BYTES_MAX);
    fclose(f);
    if (rc == ERR_OK) rc = tui_keys_parse(text, bytes, path, keys, n, e);
    free(text);
    return rc;
}
