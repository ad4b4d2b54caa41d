/* What the columns make of one value, in words. */
#include "replay/parity.h"

#include <stdarg.h>

typedef struct text { char *to; size_t at, size; } text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (t->at < t->size) t->at += (size_t)vsnprintf(t->to + t->at, t->size - t->at, format, args);
    va_end(args);
}

static void begin_sentence(text *t) { add(t, "%s", t->at ? "; " : ""); }

static void add_names(text *t, const rpl_parity *p, uint64_t set)
{
    const char *between = "";
    for (int32_t c = 0; c < p->n_columns; c++)
        if (set >> c & 1) {
            add(t, "%s%s", between, p->column[c].name);
            between = ", ";
        }
}

/* ---- columns of one kind ---- */

typedef struct kind { uint64_t set, of; char name[40]; } kind; /* the columns of `of` that are of this kind */

/* The columns with the same mode (backend, rank count, arm) as column c, among those whose run is known. */
static kind kind_of(const rpl_parity *p, int what, int32_t c, uint64_t present)
{
    const eng_options *o = &p->column[c].o;
    kind k = { 0 };
    for (int32_t i = 0; i < p->n_columns; i++) {
        const rpl_column *other = &p->column[i];
        if (!(present >> i & 1) || (other->tape && !other->known)) continue;
        const eng_options *q = &other->o;
        bool same = what == 0 ? q->mode == o->mode : what == 1 ? q->backend == o->backend
                    : what == 2 ? q->n_ranks == o->n_ranks : q->arm == o->arm;
        k.of |= 1ull << i;
        if (same) k.set |= 1ull << i;
    }
    if (what == 0) snprintf(k.name, sizeof k.name, "%s", eng_mode_name(o->mode));
    else if (what == 1) snprintf(k.name, sizeof k.name, "%s", eng_backend_name(o->backend));
    else if (what == 2) snprintf(k.name, sizeof k.name, "tp%d", o->n_ranks);
    else snprintf(k.name, sizeof k.name, "%s", o->arm->name);
    return k;
}

static int count(uint64_t set) { return __builtin_popcountll(set); }

/* The name of what the set's columns have in common and no others have; false: nothing. */
static bool name_set(const rpl_parity *p, uint64_t set, uint64_t present, char name[RPL_COLUMN_NAME])
{
    for (int32_t c = 0; c < p->n_columns; c++) {
        const rpl_column *column = &p->column[c];
        if (!(set >> c & 1) || (column->tape && !column->known)) continue;
        for (int what = 0; what < 4; what++) {
            kind k = kind_of(p, what, c, present);
            if (k.set != set || count(k.of) == count(k.set)) continue;
            snprintf(name, RPL_COLUMN_NAME, "%s", k.name);
            return true;
        }
    }
    for (int32_t c = 0; c < p->n_columns; c++)
        if (set == 1ull << c) {
            snprintf(name, RPL_COLUMN_NAME, "%s", p->column[c].name);
            return true;
        }
    return false;
}

/* ---- sentences ---- */

static void say_unstable(text *t, const rpl_parity *p, int64_t row)
{
    uint64_t set = 0;
    for (int32_t c = 0; c < p->n_columns; c++)
        if (p->column[c].unstable[row]) set |= 1ull << c;
    if (!set) return;
    begin_sentence(t);
    add(t, "unstable: differs from itself (");
    add_names(t, p, set);
    add(t, ")");
}

static void say_ranks(text *t, const rpl_parity *p, int64_t row)
{
    for (int32_t c = 0; c < p->n_columns; c++) {
        int8_t rank = p->column[c].trace.rank[row];
        if (rank <= 0) continue;
        begin_sentence(t);
        add(t, "only rank %d differs (%s)", rank, p->column[c].name);
    }
}

/* Columns of the same bits as column c. */
static uint64_t same_as(const rpl_parity *p, int64_t row, int32_t c, uint64_t present)
{
    uint64_t set = 0;
    for (int32_t i = 0; i < p->n_columns; i++)
        if (present >> i & 1 && p->column[i].trace.hash[row] == p->column[c].trace.hash[row]) set |= 1ull << i;
    return set;
}

static void say_groups(text *t, const rpl_parity *p, int64_t row)
{
    uint64_t present = 0, group[RPL_COLUMNS_MAX], rest;
    int n = 0;
    char name[RPL_COLUMN_NAME];
    for (int32_t c = 0; c < p->n_columns; c++)
        if (p->column[c].trace.rank[row] >= 0) present |= 1ull << c;
    for (rest = present; rest; rest &= ~group[n - 1]) {
        group[n] = same_as(p, row, __builtin_ctzll(rest), present);
        n++;
    }
    if (n < 2) return;
    begin_sentence(t);
    uint64_t ref = 1ull << p->reference;
    if (n == 2) {
        uint64_t few = count(group[0]) < count(group[1]) || (count(group[0]) == count(group[1]) && !(group[0] & ref))
                           ? group[0] : group[1];
        bool all_alike = few == ref && count(present) > 2;
        if (all_alike) add(t, "every arm differs from %s alike", p->column[p->reference].o.arm->name);
        else if (name_set(p, few, present, name)) add(t, "only %s differs", name);
        if (all_alike || name_set(p, few, present, name)) return;
    }
    add(t, "%d results: ", n);
    for (int k = 0; k < n; k++) {
        add(t, "%s", k ? " | " : "");
        add_names(t, p, group[k]);
    }
}

const char *rpl_parity_pattern(const rpl_parity *p, int64_t row, char buf[RPL_PATTERN_TEXT])
{
    text t = { buf, 0, RPL_PATTERN_TEXT };
    *buf = 0;
    say_unstable(&t, p, row);
    say_ranks(&t, p, row);
    say_groups(&t, p, row);
    return buf;
}
