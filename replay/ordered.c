#include "replay/ordered.h"

#include "base/mem.h"

struct rpl_ordered {
    cap_name *name;
    size_t count;
    size_t *first; /* [n_rounds + 1] */
    int32_t n_rounds;
};

static bool of_insert(const cap_name *n) { return n->slot != FMT_TAPE_NO_SLOT && n->order < CAP_ORDER_DRAFT; }

/* Round; inserts first and by slot; then program order, slots of a window side by side. first_record breaks ties, so that
 * sorting is a total order and unknown names keep the order they were written in. */
static int compare(const void *x, const void *y)
{
    const cap_name *a = x, *b = y;
    if (a->round != b->round) return a->round < b->round ? -1 : 1;
    bool insert_a = of_insert(a), insert_b = of_insert(b);
    if (insert_a != insert_b) return insert_a ? -1 : 1;
    if (insert_a && a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
    if (a->order != b->order) return a->order < b->order ? -1 : 1;
    if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
    return a->first_record < b->first_record ? -1 : a->first_record > b->first_record;
}

static bool same_name(const cap_name *a, const cap_name *b)
{
    return a->round == b->round && a->slot == b->slot && strcmp(a->name, b->name) == 0;
}

/* Names of b that a lacks, after a's of the same place. Two tapes of the same rounds mostly go side by side. */
static void add_others(rpl_ordered *o, const cap_names *a, const cap_names *b)
{
    size_t n_a = cap_names_count(a);
    for (size_t i = 0; i < cap_names_count(b); i++) {
        cap_name n = *cap_names_at(b, i);
        if (i < n_a && same_name(&n, cap_names_at(a, i))) continue;
        if (cap_names_find(a, n.round, n.slot, n.name) >= 0) continue;
        n.first_record += (uint32_t)n_a;
        o->name[o->count++] = n;
    }
}

/* Most rounds are written in this order. */
static void sort(cap_name *name, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (compare(&name[i - 1], &name[i]) > 0) {
            qsort(name, n, sizeof *name, compare);
            return;
        }
}

/* Rounds are mostly written one after the other: then each is sorted by itself, else everything at once. */
static void sort_rounds(rpl_ordered *o)
{
    bool apart = true;
    for (size_t i = 1; i < o->count && apart; i++) apart = o->name[i - 1].round <= o->name[i].round;
    if (!apart) sort(o->name, o->count);
    for (size_t i = 0; i < o->count; i++)
        if (i == 0 || o->name[i].round != o->name[i - 1].round) o->first[o->n_rounds++] = i;
    o->first[o->n_rounds] = o->count;
    for (int32_t r = 0; r < o->n_rounds && apart; r++)
        sort(o->name + o->first[r], o->first[r + 1] - o->first[r]);
}

err_code rpl_ordered_make(const cap_names *a, const cap_names *b, rpl_ordered **out, err *e)
{
    *out = NULL;
    size_t n_a = cap_names_count(a), n_b = b ? cap_names_count(b) : 0;
    rpl_ordered *o = mem_alloc(1, sizeof *o);
    if (o) {
        o->name = mem_alloc(n_a + n_b, sizeof *o->name);
        o->first = mem_alloc(n_a + n_b + 1, sizeof *o->first);
    }
    if (!o || !o->name || !o->first) {
        rpl_ordered_free(o);
        return err_set(e, ERR_NOMEM, "no memory for %zu values", n_a + n_b);
    }
    for (size_t i = 0; i < n_a; i++) o->name[o->count++] = *cap_names_at(a, i);
    if (b) add_others(o, a, b);
    sort_rounds(o);
    *out = o;
    return ERR_OK;
}

void rpl_ordered_free(rpl_ordered *o)
{
    if (!o) return;
    free(o->name);
    free(o->first);
    free(o);
}

int32_t rpl_ordered_rounds(const rpl_ordered *o) { return o->n_rounds; }
int32_t rpl_ordered_number(const rpl_ordered *o, int32_t i) { return o->name[o->first[i]].round; }

const cap_name *rpl_ordered_at(const rpl_ordered *o, int32_t i, int32_t *n)
{
    *n = (int32_t)(o->first[i + 1] - o->first[i]);
    return o->name + o->first[i];
}
