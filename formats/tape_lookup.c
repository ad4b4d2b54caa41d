/* Records by key, rounds by number. The tables are made when first asked for. */
#include "formats/tape_reader.h"

static uint64_t key_hash(int32_t round, int32_t slot_number, int32_t rank, uint32_t name)
{
    uint64_t h = ((uint64_t)(uint32_t)round << 32 | name) * 0x9e3779b97f4a7c15u;
    h ^= (((uint64_t)(uint32_t)slot_number << 32 | (uint32_t)rank) + 0x632be59bd9b4e019u) * 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    return h * 0x9e3779b97f4a7c15u >> 16;
}

/* The place of a key in the table: its row, or a free one. */
static uint32_t *find_slot(const fmt_tape *t, int32_t round, int32_t slot_number, int32_t rank, uint32_t name)
{
    size_t at = key_hash(round, slot_number, rank, name) & (t->find_cap - 1);
    for (; t->find[at]; at = (at + 1) & (t->find_cap - 1)) {
        const fmt_page *p = fmt_index_page(&t->index, t->find[at] - 1);
        uint32_t r = (uint32_t)(t->find[at] - 1 - p->first);
        if (fmt_page_i32(p, FMT_COLUMN_ROUND, r) == round && fmt_page_i32(p, FMT_COLUMN_SLOT, r) == slot_number &&
            fmt_page_i32(p, FMT_COLUMN_RANK, r) == rank && p->names[fmt_page_u32(p, FMT_COLUMN_NAME, r)] == name)
            break;
    }
    return &t->find[at];
}

/* Brings the table up to the rows there are. false: no memory. */
static bool find_ready(fmt_tape *t)
{
    if (t->index.rows > UINT32_MAX / 4) return false;
    if (2 * t->index.rows >= t->find_cap) {
        size_t cap = 64;
        while (cap <= 2 * t->index.rows) cap *= 2;
        uint32_t *table = mem_alloc(cap, sizeof *table);
        if (!table) return false;
        free(t->find);
        t->find = table;
        t->find_cap = cap;
        t->find_rows = 0;
    }
    if (t->again_cap < t->index.rows) {
        void *array = t->again;
        if (!mem_grow(&array, &t->again_cap, (size_t)t->index.rows, sizeof *t->again)) return false;
        t->again = array;
    }
    for (; t->find_rows < t->index.rows; t->find_rows++) {
        const fmt_page *p = fmt_index_page(&t->index, t->find_rows);
        uint32_t r = (uint32_t)(t->find_rows - p->first);
        uint32_t *at = find_slot(t, fmt_page_i32(p, FMT_COLUMN_ROUND, r), fmt_page_i32(p, FMT_COLUMN_SLOT, r),
                                 fmt_page_i32(p, FMT_COLUMN_RANK, r), p->names[fmt_page_u32(p, FMT_COLUMN_NAME, r)]);
        uint32_t *first = *at ? &t->again[*at - 1] : &t->again[t->find_rows];
        t->again[t->find_rows] = *at ? *first : (uint32_t)t->find_rows + 1;
        *first = *at = (uint32_t)t->find_rows + 1;
    }
    return true;
}

int64_t fmt_tape_find(const fmt_tape *t, const fmt_tape_key *key)
{
    fmt_tape *self = (fmt_tape *)t;
    int64_t name = fmt_names_find(&t->index.names, key->name, strlen(key->name)), found = -1;
    if (name < 0) return -1;
    pthread_mutex_lock(&self->lock);
    if (find_ready(self)) {
        const uint32_t last = *find_slot(t, key->round, key->slot, key->rank, (uint32_t)name);
        if (last) found = (int64_t)t->again[last - 1] - 1;
    }
    pthread_mutex_unlock(&self->lock);
    return found;
}

int64_t fmt_tape_again(const fmt_tape *t, size_t i)
{
    fmt_tape *self = (fmt_tape *)t;
    int64_t next = -1;
    pthread_mutex_lock(&self->lock);
    if (find_ready(self)) next = (int64_t)t->again[i] - 1;
    pthread_mutex_unlock(&self->lock);
    return next > (int64_t)i ? next : -1; /* after the last comes the first */
}

static int by_round(const void *a, const void *b)
{
    const fmt_round_span *x = a, *y = b;
    if (x->round != y->round) return x->round < y->round ? -1 : 1;
    return x->first < y->first ? -1 : 1;
}

/* Makes spans and rounds for the rows there are. */
static bool rounds_ready(fmt_tape *t)
{
    if (t->round_rows == t->index.rows) return true;
    fmt_round_span *spans = NULL;
    size_t n = 0, cap = 0, merged = 0;
    bool sorted = true;
    for (size_t k = 0; k < t->index.n_pages; k++) {
        const fmt_page *p = &t->index.pages[k];
        for (uint32_t r = 0; r < p->rows; r++) {
            int32_t round = fmt_page_i32(p, FMT_COLUMN_ROUND, r);
            if (n && spans[n - 1].round == round) { spans[n - 1].last = p->first + r; continue; }
            if (n && spans[n - 1].round > round) sorted = false;
            if (!mem_grow((void **)&spans, &cap, n + 1, sizeof *spans)) { free(spans); return false; }
            spans[n++] = (fmt_round_span){ round, p->first + r, p->first + r };
        }
    }
    if (!sorted) qsort(spans, n, sizeof *spans, by_round);
    int32_t *rounds = mem_alloc(n, sizeof *rounds);
    if (!rounds) { free(spans); return false; }
    for (size_t i = 0; i < n; i++) {
        if (merged && spans[merged - 1].round == spans[i].round) {
            if (spans[i].last > spans[merged - 1].last) spans[merged - 1].last = spans[i].last;
            continue;
        }
        rounds[merged] = spans[i].round;
        spans[merged++] = spans[i];
    }
    free(t->spans);
    free(t->rounds);
    t->spans = spans;
    t->rounds = rounds;
    t->n_rounds = merged;
    t->round_rows = t->index.rows;
    return true;
}

void fmt_tape_round_span(const fmt_tape *t, int32_t round, size_t *first, size_t *n)
{
    fmt_tape *self = (fmt_tape *)t;
    *first = *n = 0;
    pthread_mutex_lock(&self->lock);
    size_t lo = 0, hi = rounds_ready(self) ? t->n_rounds : 0;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (t->spans[mid].round < round) lo = mid + 1;
        else hi = mid;
    }
    if (lo < t->n_rounds && t->spans[lo].round == round) {
        *first = (size_t)t->spans[lo].first;
        *n = (size_t)(t->spans[lo].last - t->spans[lo].first + 1);
    }
    pthread_mutex_unlock(&self->lock);
}

size_t fmt_tape_rounds(const fmt_tape *t, const int32_t **rounds)
{
    fmt_tape *self = (fmt_tape *)t;
    pthread_mutex_lock(&self->lock);
    size_t n = rounds_ready(self) ? t->n_rounds : 0;
    *rounds = t->rounds;
    pthread_mutex_unlock(&self->lock);
    return n;
}
