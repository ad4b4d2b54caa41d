#include "replay/value.h"

#include <math.h>
#include <string.h>

const char *rpl_state_text(rpl_state s)
{
    static const char *const TEXT[RPL_STATE_COUNT] = {
        "compared", "compared by hash", "only in A", "only in B", "other dtype", "other shape", "no payload", "redacted",
        "unreadable",
    };
    return s < RPL_STATE_COUNT ? TEXT[s] : "?";
}

const char *rpl_class_text(rpl_class c)
{
    static const char *const TEXT[RPL_CLASS_COUNT] = { "equal", "origin", "inherited", "input", "unplaced", "-" };
    return c < RPL_CLASS_COUNT ? TEXT[c] : "?";
}

bool rpl_same_shape(const fmt_tensor *a, const fmt_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Rows of logits that are the same on both sides. */
static rpl_logits same_logits(int64_t rows, int64_t cols)
{
    int32_t k = cols < RPL_TOP_K ? (int32_t)cols : RPL_TOP_K;
    return (rpl_logits){ .rows = rows, .n_argmax_equal = rows, .margin_min = (double)INFINITY, .overlap_min = k, .k = k };
}

static bool is_logits(const rpl_value *v, const fmt_tensor *t, int32_t vocab)
{
    int64_t cols = t->ndim ? t->shape[t->ndim - 1] : 1;
    return t->dtype == FMT_DTYPE_F32 && vocab > 0 && cols == vocab && fmt_tensor_elems(t) > 0 &&
           strncmp(v->name, "head.", 5) == 0;
}

static bool is_ids(const rpl_value *v, const fmt_tensor *t)
{
    int64_t cols = t->ndim ? t->shape[t->ndim - 1] : 1;
    return t->dtype == FMT_DTYPE_I32 && ends_with(v->name, ".ids") && cols >= 1 && cols <= RPL_TOP_K;
}

/* A value of the same bits on both sides: its joined shape, its statistics, no NaN and no infinity. */
static void set_same(rpl_value *v, const fmt_tensor *t, const fmt_stats *stats, int32_t vocab)
{
    int64_t n = fmt_tensor_elems(t), cols = t->ndim ? t->shape[t->ndim - 1] : 1;
    v->a = v->b = *t;
    v->state = RPL_STATE_COMPARED;
    v->cls = RPL_CLASS_EQUAL;
    v->m = (rpl_metrics){ .n = n, .n_equal = n, .cosine = 1, .first = -1, .worst = -1 };
    v->m.norm_a = v->m.norm_b = stats->rms * sqrt((double)n);
    v->m.ulp[0] = n;
    v->m.n_zero_a = v->m.n_zero_b = (int64_t)stats->n_zero;
    v->has_logits = is_logits(v, t, vocab);
    if (v->has_logits) v->logits = same_logits(n / cols, cols);
    v->has_ids = is_ids(v, t);
    if (v->has_ids) v->ids = (rpl_ids){ n / cols, n / cols, n / cols, -1, -1 };
}

/* Records of one rank on both sides that hold the same bits, as the hashes say; *out is A's. */
static bool same_part(const fmt_tape *a, const fmt_tape *b, const fmt_tape_key *key, fmt_tape_record *out)
{
    fmt_tape_record other;
    int64_t i = fmt_tape_find(a, key), j = fmt_tape_find(b, key);
    if (i < 0 || j < 0) return false;
    if (key->slot != FMT_TAPE_NO_SLOT && (fmt_tape_again(a, (size_t)i) >= 0 || fmt_tape_again(b, (size_t)j) >= 0))
        return false; /* one insert's rows of several */
    fmt_tape_at(a, (size_t)i, out);
    fmt_tape_at(b, (size_t)j, &other);
    return out->hash == other.hash && out->tensor.dtype == other.tensor.dtype &&
           rpl_same_shape(&out->tensor, &other.tensor) && out->place == other.place && out->axis == other.axis &&
           out->n_ranks == other.n_ranks && out->tier == FMT_TIER_TENSOR && other.tier == FMT_TIER_TENSOR &&
           out->stats.n_nan == 0 && out->stats.n_inf == 0 && out->raw_bytes > 0;
}

/* Adds a further rank's record to whole: the next shard, or a copy with the same bits. false: it does not fit. */
static bool add_part(fmt_tape_record *whole, const fmt_tape_record *part)
{
    bool sharded = whole->place == FMT_PLACE_SHARDED;
    fmt_tensor shape = part->tensor;
    if (part->place != whole->place || part->axis != whole->axis || part->n_ranks != whole->n_ranks) return false;
    if (sharded) shape.shape[whole->axis] = whole->tensor.shape[whole->axis];
    if (shape.dtype != whole->tensor.dtype || !rpl_same_shape(&shape, &whole->tensor)) return false;
    if (!sharded) return part->hash == whole->hash;
    double n = (double)fmt_tensor_elems(&whole->tensor), more = (double)fmt_tensor_elems(&part->tensor);
    fmt_stats *s = &whole->stats;
    s->rms = sqrt((s->rms * s->rms * n + part->stats.rms * part->stats.rms * more) / (n + more));
    s->n_zero += part->stats.n_zero;
    whole->raw_bytes += part->raw_bytes;
    whole->tensor.shape[whole->axis] += part->tensor.shape[whole->axis]; /* no overflow: both have bytes on the tape */
    return true;
}

bool rpl_value_same(rpl_value *v, int32_t round, const fmt_tape *a, const fmt_tape *b, int32_t vocab)
{
    enum { WORTH_BYTES = 4096 }; /* smaller values are decoded as fast */
    fmt_tape_record whole, part;
    fmt_tape_key key = { round, v->slot, FMT_TAPE_NO_RANK, v->name };
    bool imported = fmt_tape_find(a, &key) >= 0 || fmt_tape_find(b, &key) >= 0;
    if (!imported) key.rank = 0;
    if (!same_part(a, b, &key, &whole)) return false;
    int32_t n_ranks = imported ? 1 : whole.n_ranks;
    if (n_ranks > ENG_RANKS_MAX || (n_ranks > 1 && whole.place == FMT_PLACE_PARTIAL)) return false;
    if (whole.place == FMT_PLACE_SHARDED && whole.axis >= whole.tensor.ndim) return false;
    for (key.rank = 1; key.rank < n_ranks; key.rank++)
        if (!same_part(a, b, &key, &part) || !add_part(&whole, &part)) return false;
    if (whole.raw_bytes < WORTH_BYTES || whole.stats.n_zero == (uint64_t)fmt_tensor_elems(&whole.tensor)) return false;
    set_same(v, &whole.tensor, &whole.stats, vocab);
    return true;
}

void rpl_value_compare(rpl_value *v, const fmt_tensor *a, const fmt_tensor *b, int32_t vocab)
{
    v->a = *a, v->b = *b;
    v->a.data = v->b.data = NULL;
    v->cls = RPL_CLASS_NONE;
    if (a->dtype != b->dtype) { v->state = RPL_STATE_DTYPE; return; }
    if (!rpl_same_shape(a, b)) { v->state = RPL_STATE_SHAPE; return; }
    int64_t n = fmt_tensor_elems(a), cols = a->ndim ? a->shape[a->ndim - 1] : 1, rows = cols ? n / cols : 0;
    uint32_t findings = v->m.findings;
    v->state = RPL_STATE_COMPARED;
    rpl_metrics_of(a->dtype, a->data, b->data, n, &v->m);
    v->m.findings |= findings;
    bool equal = v->m.n_equal == v->m.n;
    v->cls = equal ? RPL_CLASS_EQUAL : RPL_CLASS_UNPLACED;
    if (v->m.worst >= 0) {
        v->a_worst = rpl_element(a->dtype, a->data, v->m.worst);
        v->b_worst = rpl_element(b->dtype, b->data, v->m.worst);
    }
    v->has_logits = is_logits(v, a, vocab);
    if (v->has_logits && equal) v->logits = same_logits(rows, cols);
    else if (v->has_logits) rpl_logits_of(a->data, b->data, rows, cols, &v->logits);
    v->has_ids = is_ids(v, a);
    if (v->has_ids) rpl_ids_of(a->data, b->data, rows, (int32_t)cols, &v->ids);
}

bool rpl_one_sided(const rpl_value *v)
{
    return v->state == RPL_STATE_ONLY_A || v->state == RPL_STATE_ONLY_B || v->state == RPL_STATE_UNKNOWN;
}

void rpl_round_count(rpl_round *r, const rpl_value *v)
{
    r->by_class[v->cls]++;
    if (v->m.findings) r->n_findings++;
    if (v->state == RPL_STATE_COMPARED || v->state == RPL_STATE_BY_HASH) {
        r->n_compared++;
        r->n_elems += v->m.n;
        r->n_bytes += 2 * (uint64_t)v->m.n * fmt_dtype_bytes(v->a.dtype);
    }
    if (v->state == RPL_STATE_REDACTED) r->n_redacted++;
    else if (v->cls == RPL_CLASS_EQUAL) r->n_equal++;
    else if (!rpl_one_sided(v)) r->n_differ++;
}
