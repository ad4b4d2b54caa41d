#include "engine/ab.h"

#include "base/mem.h"

static const ab_pair_list *const LISTS[] = { &AB_PAIRS_PLE, &AB_PAIRS_NORM, &AB_PAIRS_FFN, &AB_PAIRS_LINEAR,
                                             &AB_PAIRS_EXPERTS };

int32_t ab_pair_count(void)
{
    int32_t n = 0;
    for (size_t i = 0; i < COUNT_OF(LISTS); i++) n += LISTS[i]->n;
    return n;
}

const ab_pair *ab_pair_at(int32_t i)
{
    size_t list = 0;
    while (i >= LISTS[list]->n) i -= LISTS[list++]->n;
    return &LISTS[list]->pair[i];
}

/* Letters to insert, take away or change: how far two names are apart. Long names are compared by their beginnings. */
static int distance(const char *a, const char *b)
{
    enum { LETTERS = 64 };
    int row[LETTERS + 1];
    const size_t n = strnlen(b, LETTERS);
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (size_t i = 1; i <= strnlen(a, LETTERS); i++) {
        int before = row[0]; /* of the row above, one to the left */
        row[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            const int change = before + (a[i - 1] != b[j - 1]);
            int best = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            if (change < best) best = change;
            before = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

/* The two names of a side that are nearest: "a" or "a or b". */
static void nearest(int side, const char *name, char *out, size_t bytes)
{
    const char *best[2] = { NULL };
    int far[2] = { INT32_MAX, INT32_MAX };
    for (int32_t i = 0; i < ab_pair_count(); i++) {
        const char *other = ab_pair_at(i)->name[side];
        const int d = distance(name, other);
        if (d >= far[1]) continue;
        const int at = d < far[0] ? 0 : 1;
        if (at == 0) {
            far[1] = far[0];
            best[1] = best[0];
        }
        far[at] = d;
        best[at] = other;
    }
    snprintf(out, bytes, "%s%s%s", best[0], best[1] ? " or " : "", best[1] ? best[1] : "");
}

err_code ab_pair_find(const char *base, const char *fresh, const ab_pair **out, err *e)
{
    const ab_pair *of_base = NULL, *of_new = NULL;
    char names[160];
    *out = NULL;
    for (int32_t i = 0; i < ab_pair_count(); i++) {
        const ab_pair *p = ab_pair_at(i);
        const bool first = strcmp(p->name[AB_BASE], base) == 0, second = strcmp(p->name[AB_NEW], fresh) == 0;
        if (first) of_base = p;
        if (second) of_new = p;
        if (first && second) {
            *out = p;
            return ERR_OK;
        }
    }
    if (of_base)
        return err_set(e, ERR_ARG, "NEW: found '%.64s', wanted %s, which is what %s is compared with", fresh,
                       of_base->name[AB_NEW], base);
    if (of_new)
        return err_set(e, ERR_ARG, "BASE: found '%.64s', wanted %s, which is what %s is compared with", base,
                       of_new->name[AB_BASE], fresh);
    nearest(AB_BASE, base, names, sizeof names);
    return err_set(e, ERR_ARG, "BASE: found '%.64s', wanted a kernel that sparktape ab --list names, such as %s", base,
                   names);
}
