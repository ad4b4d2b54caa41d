#include "replay/trace.h"

#include "base/mem.h"
#include "capture/joined.h"
#include "engine/identity.h"

struct rpl_layout {
    eng_program *program[2];  /* whose names the rows use */
    rpl_row *row;
    size_t n, capacity;
    int64_t *first;           /* [n_rounds + 1] */
    int32_t *chosen;          /* [n_rounds + 1] rounds before it that were */
    int32_t n_rounds, insert_rows;
};

/* ---- layout ---- */

static err_code add_row(rpl_layout *l, const rpl_row *row, err *e)
{
    void *array = l->row;
    if (!mem_grow(&array, &l->capacity, l->n + 1, sizeof *l->row)) return err_set(e, ERR_NOMEM, "no memory for the values");
    l->row = array;
    l->row[l->n++] = *row;
    return ERR_OK;
}

/* Every value that a step makes and that a tape may hold. */
static err_code add_made(rpl_layout *l, const eng_program *p, const rpl_row *like, err *e)
{
    for (int32_t v = 0; v < p->n_values; v++) {
        const eng_value *value = &p->value[v];
        if (value->state || value->producer < 0 || value->level > ENG_LEVEL_DEEP) continue;
        rpl_row row = *like;
        row.name = value->name;
        row.op = p->op[value->producer].name;
        TRY(add_row(l, &row, e));
    }
    return ERR_OK;
}

/* The windows of the drafted slots, which ops of the insert write. */
static err_code add_windows(rpl_layout *l, const eng_round *r, const rpl_row *like, err *e)
{
    const eng_program *p = l->program[ENG_STEP_INSERT];
    for (int32_t b = 0; b < r->batch; b++)
        for (int32_t i = 0; i < p->n_ops; i++) {
            const eng_value *value = &p->value[p->op[i].out[0]];
            if (!value->state) continue;
            rpl_row row = *like;
            row.slot = r->slots[b];
            row.name = value->name;
            row.op = p->op[i].name;
            TRY(add_row(l, &row, e));
        }
    return ERR_OK;
}

static err_code add_round(rpl_layout *l, int32_t index, const eng_round *r, err *e)
{
    for (int32_t k = 0; k < r->n_inserts; k++) {
        rpl_row like = { .index = index, .round = r->round, .slot = r->inserts[k].slot };
        for (int32_t j = 0; j < k; j++) like.nth += r->inserts[j].slot == like.slot;
        TRY(add_made(l, l->program[ENG_STEP_INSERT], &like, e));
    }
    const rpl_row like = { .index = index, .round = r->round, .slot = FMT_TAPE_NO_SLOT, .draft = true };
    if (r->batch == 0) return ERR_OK;
    TRY(add_windows(l, r, &like, e));
    return add_made(l, l->program[ENG_STEP_DRAFT], &like, e);
}

/* A round that holds values but no inputs is on the tape and not in the feed. */
static err_code fill_layout(rpl_layout *l, const fmt_tape *t, rpl_feed *f, const bool *only, err *e)
{
    const int32_t *number; /* ascending, as the feed's are */
    size_t n_numbers = fmt_tape_rounds(t, &number), at = 0;
    l->n_rounds = rpl_feed_count(f);
    l->first = mem_alloc((size_t)l->n_rounds + 1, sizeof *l->first);
    l->chosen = mem_alloc((size_t)l->n_rounds + 1, sizeof *l->chosen);
    if (!l->first || !l->chosen) return err_set(e, ERR_NOMEM, "no memory for %d rounds", l->n_rounds);
    l->insert_rows = 1;
    for (int32_t i = 0; i < l->n_rounds; i++) {
        rpl_fed r;
        TRY(rpl_feed_round(f, i, &r, e));
        l->first[i] = (int64_t)l->n;
        for (int32_t k = 0; k < r.in.n_inserts; k++)
            if (r.in.inserts[k].rows > l->insert_rows) l->insert_rows = r.in.inserts[k].rows;
        while (at < n_numbers && number[at] != r.in.round) at++;
        bool wanted = !only || (at < n_numbers && only[at]);
        l->chosen[i + 1] = l->chosen[i] + wanted;
        if (wanted) TRY(add_round(l, i, &r.in, e));
    }
    l->first[l->n_rounds] = (int64_t)l->n;
    return ERR_OK;
}

err_code rpl_layout_make(const fmt_tape *t, const eng_config *c, const bool *only, rpl_layout **out, err *e)
{
    const eng_reps reps = eng_identity_reps(json_object_get(fmt_tape_head(t), "identity"));
    rpl_feed *f = NULL;
    *out = NULL;
    rpl_layout *l = mem_alloc(1, sizeof *l);
    if (!l) return err_set(e, ERR_NOMEM, "no memory for the values");
    err_code rc = rpl_feed_open(t, c, RPL_WINDOWS_AUTO, NULL, &f, e);
    for (int k = 0; k < 2 && rc == ERR_OK; k++)
        rc = eng_program_make(c, (eng_step_kind)k, 1, ENG_COMBINE_EXACT, &reps, &l->program[k], e);
    if (rc == ERR_OK) rc = fill_layout(l, t, f, only, e);
    rpl_feed_close(f);
    if (rc == ERR_OK) *out = l;
    else rpl_layout_free(l);
    return rc;
}

void rpl_layout_free(rpl_layout *l)
{
    if (!l) return;
    for (int k = 0; k < 2; k++) eng_program_free(l->program[k]);
    free(l->row);
    free(l->first);
    free(l->chosen);
    free(l);
}

int64_t rpl_layout_count(const rpl_layout *l) { return (int64_t)l->n; }
const rpl_row *rpl_layout_at(const rpl_layout *l, int64_t i) { return &l->row[i]; }
int32_t rpl_layout_rounds(const rpl_layout *l) { return l->n_rounds; }
int32_t rpl_layout_chosen(const rpl_layout *l, int32_t index) { return l->chosen[index]; }
bool rpl_layout_has(const rpl_layout *l, int32_t index) { return l->first[index + 1] > l->first[index]; }
int32_t rpl_layout_insert_rows(const rpl_layout *l) { return l->insert_rows; }

void rpl_layout_span(const rpl_layout *l, int32_t index, int64_t *first, int64_t *n)
{
    *first = l->first[index];
    *n = l->first[index + 1] - *first;
}

const char *rpl_row_text(const rpl_row *r, char *buf, size_t buf_bytes)
{
    char slot[24] = "";
    if (r->slot != FMT_TAPE_NO_SLOT) snprintf(slot, sizeof slot, " slot %d", r->slot);
    snprintf(buf, buf_bytes, "round %d%s %s (op %s)", r->round, slot, r->name, r->op);
    return buf;
}

/* ---- traces ---- */

err_code rpl_trace_init(rpl_trace *t, const rpl_layout *l, err *e)
{
    *t = (rpl_trace){ .n = (int64_t)l->n };
    t->hash = mem_alloc(l->n + 1, sizeof *t->hash);
    t->rank = mem_alloc(l->n + 1, sizeof *t->rank);
    if (!t->hash || !t->rank) {
        rpl_trace_fini(t);
        return err_set(e, ERR_NOMEM, "no memory for the hashes of %zu values", l->n);
    }
    memset(t->rank, RPL_TRACE_ABSENT, l->n + 1);
    return ERR_OK;
}

void rpl_trace_fini(rpl_trace *t)
{
    free(t->hash);
    free(t->rank);
    *t = (rpl_trace){ 0 };
}

int64_t rpl_trace_differs(const rpl_trace *a, const rpl_trace *b, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++)
        if (a->rank[i] >= 0 && b->rank[i] >= 0 && a->hash[i] != b->hash[i]) return i;
    return -1;
}

/* The record of a row on rank 0, or the lowest one recorded; -1: none. */
static int64_t find_record(const fmt_tape *t, const rpl_row *row)
{
    fmt_tape_key key = { row->round, row->slot, FMT_TAPE_NO_RANK, row->name };
    int64_t at = fmt_tape_find(t, &key);
    while (at < 0 && ++key.rank < ENG_RANKS_MAX) at = fmt_tape_find(t, &key);
    if (at < 0 || row->nth == 0) return at;
    size_t first, n;
    int32_t nth = row->nth;
    fmt_tape_round_span(t, row->round, &first, &n);
    for (size_t i = (size_t)at + 1; i < first + n; i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        bool same = r.key.slot == row->slot && r.key.rank == key.rank && strcmp(r.key.name, row->name) == 0;
        if (same && --nth == 0) return (int64_t)i;
    }
    return -1;
}

/* First rank whose copy of a replicated value has another hash; of the first insert of a slot. */
static int8_t other_rank(const fmt_tape *t, const rpl_row *row, const fmt_tape_record *first)
{
    for (int32_t rank = first->key.rank + 1; rank < first->n_ranks && row->nth == 0; rank++) {
        fmt_tape_record r;
        int64_t at = fmt_tape_find(t, &(fmt_tape_key){ row->round, row->slot, rank, row->name });
        if (at < 0) continue;
        fmt_tape_at(t, (size_t)at, &r);
        if (r.hash != first->hash) return (int8_t)rank;
    }
    return 0;
}

err_code rpl_trace_of_tape(const fmt_tape *t, const rpl_layout *l, rpl_trace *out, err *e)
{
    cap_value v = { 0 };
    err_code rc = rpl_trace_init(out, l, e);
    for (int64_t i = 0; i < out->n && rc == ERR_OK; i++) {
        const rpl_row *row = &l->row[i];
        fmt_tape_record r;
        int64_t at = find_record(t, row);
        if (at < 0) continue;
        fmt_tape_at(t, (size_t)at, &r);
        if (r.has_digest) continue; /* of rows: not the hash of the whole that runs are compared by */
        if (r.place == FMT_PLACE_REPLICATED || r.n_ranks == 1) {
            out->hash[i] = r.hash;
            out->rank[i] = other_rank(t, row, &r);
            continue;
        }
        err why = { 0 };
        rc = cap_joined_get(t, &(fmt_tape_key){ row->round, row->slot, 0, row->name }, &v, &why);
        if (rc == ERR_FORMAT) out->damaged = true;
        if (rc == ERR_INPUT || rc == ERR_FORMAT) rc = ERR_OK; /* or only hashes of parts, or not all of them */
        else if (rc != ERR_OK && e) *e = why;
        if (!v.tensor.data || row->nth) continue;
        out->hash[i] = fmt_hash64(v.tensor.data, fmt_tensor_bytes(&v.tensor));
        out->rank[i] = 0;
    }
    cap_value_fini(&v);
    if (rc != ERR_OK) rpl_trace_fini(out);
    return rc;
}
