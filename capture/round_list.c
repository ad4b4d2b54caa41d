#include "capture/round_list.h"

#include <math.h>
#include <string.h>

enum { ITEM_TEXT_MAX = 63 };

/* Digits from *at on, at least one; *at moves behind them. */
static bool get_number(const char **at, uint64_t max, uint64_t *out)
{
    const char *p = *at;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (v > (max - digit) / 10) return false;
        v = 10 * v + digit;
    }
    bool found = p != *at;
    *at = p;
    *out = v;
    return found;
}

static bool get_round(const char **at, int64_t *out)
{
    uint64_t v;
    if (!get_number(at, INT64_MAX, &v)) return false;
    *out = (int64_t)v;
    return true;
}

/* "0.01", "1", "1e-3": a number in (0, 1], without what else strtod takes. */
static bool get_probability(const char **at, double *out)
{
    size_t n = strspn(*at, "0123456789.e-+");
    char text[ITEM_TEXT_MAX + 1], *end;
    memcpy(text, *at, n); /* n is at most an item's length */
    text[n] = 0;
    *out = strtod(text, &end);
    *at += n;
    return n > 0 && !*end && text[0] != '-' && text[0] != '+' && *out > 0 && *out <= 1;
}

/* The whole of text as one item. */
static bool parse_item(const char *text, cap_round_item *out)
{
    *out = (cap_round_item){ .first = 0, .last = INT64_MAX, .step = 1 };
    if (strcmp(text, "all") == 0) return true;
    if (strncmp(text, "every:", 6) == 0) {
        text += 6;
        return get_round(&text, &out->step) && !*text && out->step > 0;
    }
    if (strncmp(text, "p:", 2) == 0) {
        text += 2;
        out->random = true;
        return get_probability(&text, &out->p) && *text++ == '@' && get_number(&text, UINT64_MAX, &out->seed) && !*text;
    }
    if (!get_round(&text, &out->first)) return false;
    if (!*text) {
        out->last = out->first;
        return true;
    }
    if (*text++ != '-') return false;
    return !*text || (get_round(&text, &out->last) && !*text && out->last >= out->first);
}

err_code cap_round_list_parse(const char *text, const char *what, cap_round_list *out, err *e)
{
    cap_round_list list = { 0 };
    for (const char *at = text;;) {
        char item[ITEM_TEXT_MAX + 1];
        size_t n = strcspn(at, ",");
        if (list.n == CAP_ROUND_ITEMS_MAX)
            return err_set(e, ERR_ARG, "%s: more than %d items", what, CAP_ROUND_ITEMS_MAX);
        bool fits = n <= ITEM_TEXT_MAX;
        memcpy(item, at, fits ? n : 0);
        item[fits ? n : 0] = 0;
        if (!fits || !parse_item(item, &list.item[list.n]))
            return err_set(e, ERR_ARG, "%s: found '%.*s', wanted N, A-B, A-, every:N, p:P@SEED or all", what,
                           (int)(fits ? n : ITEM_TEXT_MAX), at);
        list.n++;
        if (!at[n]) break;
        at += n + 1;
    }
    *out = list;
    return ERR_OK;
}

/* splitmix64 of (seed, round): every bit of either changes all bits of the result. */
static uint64_t mixed(uint64_t seed, uint64_t round)
{
    uint64_t x = seed * 0xd1342543de82ef95u + round + 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 2; i++) {
        x ^= x >> 30;
        x *= 0xbf58476d1ce4e5b9u;
        x ^= x >> 27;
        x *= 0x94d049bb133111ebu;
        x ^= x >> 31;
        x += seed;
    }
    return x;
}

static bool item_has(const cap_round_item *i, int64_t round)
{
    if (round < i->first || round > i->last || (round - i->first) % i->step != 0) return false;
    return !i->random || ldexp((double)(mixed(i->seed, (uint64_t)round) >> 11), -53) < i->p;
}

bool cap_round_list_has(const cap_round_list *l, int64_t round)
{
    for (int32_t i = 0; i < l->n; i++)
        if (item_has(&l->item[i], round)) return true;
    return false;
}
