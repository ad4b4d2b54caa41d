/* Values of which a side kept a digest and no tensor (kernels/digest.h): the other side's is made where it has the tensor.
 */
#include "base/mem.h"
#include "kernels/digest.h"
#include "replay/value.h"

enum { A = 0, B = 1 };

/* The digest of one tensor of a side. row: one per row, or NULL where they are not kept. */
typedef struct sum { uint64_t digest, n_rows, *row; } sum;

static void sum_fini(sum *s) { free(s->row); }

static err_code sum_of_tensor(const fmt_tensor *t, sum *out, err *e)
{
    fmt_stats ignored;
    out->n_rows = krn_digest_rows(t);
    out->row = mem_alloc((size_t)out->n_rows + 1, sizeof *out->row);
    if (!out->row) return err_set(e, ERR_NOMEM, "no memory for %llu digests", (unsigned long long)out->n_rows);
    krn_digest_ref(t, out->row, &out->digest, &ignored);
    return ERR_OK;
}

/* Of record r, number i: taken from the tape, or made of its tensor. */
static err_code sum_of_record(const fmt_tape *t, size_t i, const fmt_tape_record *r, cap_value *buffer, sum *out, err *e)
{
    if (!r->has_digest) {
        TRY(cap_record_get(t, i, buffer, e));
        return sum_of_tensor(&buffer->tensor, out, e);
    }
    out->digest = r->digest;
    out->n_rows = r->n_digest_rows;
    if (r->n_digest_rows == 0) return ERR_OK;
    out->row = mem_alloc((size_t)r->n_digest_rows, sizeof *out->row);
    if (!out->row) return err_set(e, ERR_NOMEM, "no memory for %llu digests", (unsigned long long)r->n_digest_rows);
    return fmt_tape_digest_rows(t, i, out->row, r->n_digest_rows, e);
}

static int by_number(const void *x, const void *y)
{
    const uint64_t *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

/* The same rows, some of them in other places. Sorts both. */
static bool is_permuted(sum *a, sum *b)
{
    qsort(a->row, (size_t)a->n_rows, sizeof *a->row, by_number);
    qsort(b->row, (size_t)b->n_rows, sizeof *b->row, by_number);
    return memcmp(a->row, b->row, (size_t)a->n_rows * sizeof *a->row) == 0;
}

/* Rows of two whole values, which then are sorted. */
static void compare_rows(sum *a, sum *b, rpl_rows *out)
{
    if (!a->row || !b->row || a->n_rows != b->n_rows) return;
    out->n = (int64_t)a->n_rows;
    for (uint64_t r = 0; r < a->n_rows; r++) {
        if (a->row[r] == b->row[r]) continue;
        if (out->n_differ < RPL_ROWS_NAMED) out->row[out->n_differ] = (int64_t)r;
        out->n_differ++;
    }
    out->permuted = out->n_differ > 0 && is_permuted(a, b);
}

/* One record stands for the whole value. */
static bool is_whole(const fmt_tape_record *r) { return r->place == FMT_PLACE_REPLICATED || r->n_ranks == 1; }

static bool same_cut(const fmt_tape_record *a, const fmt_tape_record *b)
{
    return a->place == b->place && a->axis == b->axis && a->n_ranks == b->n_ranks;
}

/* The whole value of a side: from its one record, or joined. */
static err_code sum_of_whole(const fmt_tape *t, const fmt_tape_key *key, const fmt_tape_record *r, cap_value *buffer,
                             fmt_tensor *shape, sum *out, err *e)
{
    *shape = r->tensor;
    if (r->has_digest) return sum_of_record(t, (size_t)fmt_tape_find(t, &r->key), r, buffer, out, e);
    TRY(cap_joined_get(t, key, buffer, e));
    *shape = buffer->tensor;
    shape->data = NULL;
    return sum_of_tensor(&buffer->tensor, out, e);
}

/* Sets what is known of the two shapes. true: they are of one type. */
static bool same_types(rpl_value *v, const fmt_tensor shape[2])
{
    v->a = shape[A], v->b = shape[B];
    if (v->a.dtype != v->b.dtype) v->state = RPL_STATE_DTYPE;
    else if (!rpl_same_shape(&v->a, &v->b)) v->state = RPL_STATE_SHAPE;
    else return true;
    return false;
}

static void set_result(rpl_value *v, bool same)
{
    v->state = RPL_STATE_BY_HASH;
    v->m = (rpl_metrics){ .n = fmt_tensor_elems(&v->a), .first = -1, .worst = -1 };
    v->m.n_equal = same ? v->m.n : 0;
    v->cls = same ? RPL_CLASS_EQUAL : RPL_CLASS_UNPLACED;
}

static err_code compare_whole(rpl_value *v, const fmt_tape_key *key, const fmt_tape *const tape[2],
                              const fmt_tape_record rec[2], cap_value buffer[2], err *e)
{
    sum of[2] = { 0 };
    fmt_tensor shape[2];
    err_code rc = ERR_OK;
    for (int s = A; s <= B && rc == ERR_OK; s++)
        rc = sum_of_whole(tape[s], key, &rec[s], &buffer[s], &shape[s], &of[s], e);
    if (rc == ERR_OK && same_types(v, shape)) {
        compare_rows(&of[A], &of[B], &v->rows);
        set_result(v, of[A].digest == of[B].digest);
    }
    sum_fini(&of[A]);
    sum_fini(&of[B]);
    return rc;
}

/* Ranks that cut the value alike on both tapes: each rank's part against the other's. Which rows differ is not said. */
static err_code compare_parts(rpl_value *v, const fmt_tape_key *key, const fmt_tape *const tape[2],
                              const fmt_tape_record rec[2], cap_value buffer[2], err *e)
{
    bool same = true;
    fmt_tape_key k = *key;
    const fmt_tensor first[2] = { rec[A].tensor, rec[B].tensor };
    if (!same_types(v, first)) return ERR_OK;
    for (k.rank = 0; k.rank < rec[A].n_ranks; k.rank++) {
        sum of[2] = { 0 };
        fmt_tape_record part[2];
        err_code rc = ERR_OK;
        for (int s = A; s <= B && rc == ERR_OK; s++) {
            int64_t i = fmt_tape_find(tape[s], &k);
            if (i < 0) rc = err_set(e, ERR_INPUT, "%s: rank %d: its part is missing", fmt_tape_path(tape[s]), k.rank);
            else fmt_tape_at(tape[s], (size_t)i, &part[s]);
            if (rc == ERR_OK) rc = sum_of_record(tape[s], (size_t)i, &part[s], &buffer[s], &of[s], e);
        }
        if (rc == ERR_OK)
            same = same && of[A].digest == of[B].digest && part[A].tensor.dtype == part[B].tensor.dtype &&
                   rpl_same_shape(&part[A].tensor, &part[B].tensor);
        sum_fini(&of[A]);
        sum_fini(&of[B]);
        TRY(rc);
    }
    set_result(v, same);
    return ERR_OK;
}

void rpl_value_by_digest(rpl_value *v, int32_t round, const fmt_tape *const tape[2], const fmt_tape_record rec[2],
                         cap_value buffer[2])
{
    const fmt_tape_key key = { round, v->slot, 0, v->name };
    err why = { 0 };
    err_code rc = ERR_OK;
    bool whole = true, known = true;
    for (int s = A; s <= B; s++) {
        known = known && (rec[s].has_digest || rec[s].tier == FMT_TIER_TENSOR); /* a hash of bytes is no digest */
        whole = whole && (!rec[s].has_digest || is_whole(&rec[s]));
    }
    v->state = RPL_STATE_UNKNOWN;
    if (known && whole) rc = compare_whole(v, &key, tape, rec, buffer, &why);
    else if (known && same_cut(&rec[A], &rec[B])) rc = compare_parts(v, &key, tape, rec, buffer, &why);
    if (rc == ERR_OK) return;
    v->state = RPL_STATE_UNREADABLE;
    snprintf(v->why, sizeof v->why, "%.*s", (int)sizeof v->why - 1, why.msg);
}

const char *rpl_rows_text(const rpl_rows *rows, char *buf, size_t buf_bytes)
{
    const char *what = rows->permuted        ? "changed places, the same rows otherwise"
                       : rows->n_differ == 1 ? "differs"
                                             : "differ";
    bool all = rows->n_differ <= RPL_ROWS_NAMED; /* are named */
    size_t at = all ? (size_t)snprintf(buf, buf_bytes, "row%s", rows->n_differ == 1 ? "" : "s")
                    : (size_t)snprintf(buf, buf_bytes, "%lld of %lld rows %s: ", (long long)rows->n_differ,
                                       (long long)rows->n, what);
    for (int64_t i = 0; i < rows->n_differ && i < RPL_ROWS_NAMED && at < buf_bytes; i++)
        at += (size_t)snprintf(buf + at, buf_bytes - at, "%s%lld", i ? ", " : all ? " " : "", (long long)rows->row[i]);
    if (at < buf_bytes && all) snprintf(buf + at, buf_bytes - at, " of %lld %s", (long long)rows->n, what);
    else if (at < buf_bytes) snprintf(buf + at, buf_bytes - at, ", ...");
    return buf;
}
