#include "replay/value.h"

#include <math.h>
#include <string.h>

const char *rpl_state_text(rpl_state s)
{
    static const char *const TEXT[RPL_STATE_COUNT] = {
        "compared", "compared by hash", "only in A", "only in B", "other dtype", "other shape", "no payload", "unreadable",
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
    return t->dtype == FMT_DTYPE_F32 && vocab > 0 && cols == vocab && fmt_tensor_elems(t) > 0 && strncmp(v->name, "head.", 5) == 0;
}

void rpl_value_same(rpl_value *v, const fmt_tensor *t, const fmt_stats *stats, int32_t vocab)
{
    int64_t n = fmt_tensor_elems(t), cols = t->ndim ? t->shape[t->ndim - 1] : 1;
    v->a = v->b = *t;
    v->a.data = v->b.data = NULL;
    v->state = RPL_STATE_COMPARED;
    v->cls = RPL_CLASS_EQUAL;
    v->m = (rpl_metrics){ .n = n, .n_equal = n, .cosine = 1, .first = -1, .worst = -1, .findings = v->m.findings };
    v->m.norm_a = v->m.norm_b = stats->rms * sqrt((double)n);
    v->m.ulp[0] = n;
    v->m.n_zero_a = v->m.n_zero_b = (int64_t)stats->n_zero;
    v->has_logits = is_logits(v, t, vocab);
    if (v->has_logits) v->logits = same_logits(n / cols, cols);
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
    if (a->dtype == FMT_DTYPE_I32 && ends_with(v->name, ".ids") && cols >= 1 && cols <= RPL_TOP_K) {
        v->has_ids = true;
        rpl_ids_of(a->data, b->data, rows, (int32_t)cols, &v->ids);
    }
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
    if (v->cls == RPL_CLASS_EQUAL) r->n_equal++;
    else if (v->state != RPL_STATE_UNKNOWN) r->n_differ++;
}
