#include "replay/diff_report.h"
#include "replay/source.h"

static err_code emit(json_t *line, err *e)
{
    if (!line) return err_set(e, ERR_NOMEM, "diff: no memory for the report");
    err_code rc = fmt_json_print(stdout, line, e);
    json_decref(line);
    return rc;
}

static json_t *shape_json(const fmt_tensor *t)
{
    json_t *shape = json_array();
    if (t->ndim < 0) {
        json_decref(shape);
        return json_null();
    }
    for (int32_t i = 0; i < t->ndim; i++) fmt_json_add(&shape, json_integer(t->shape[i]));
    return json_pack("{s:s, s:o}", "dtype", fmt_dtype_name(t->dtype), "shape", shape);
}

static json_t *metrics_json(const rpl_value *v)
{
    const rpl_metrics *m = &v->m;
    int last = RPL_ULP_BUCKETS;
    while (last > 0 && m->ulp[last - 1] == 0) last--;
    json_t *ulp = json_array();
    for (int i = 0; i < last; i++) fmt_json_add(&ulp, json_integer(m->ulp[i]));
    return json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:I, s:I, s:I}", "elements", (json_int_t)m->n,
        "differ", (json_int_t)(m->n - m->n_equal), "max_abs", fmt_json_real(m->max_abs), "max_rel",
        fmt_json_real(m->max_rel), "rel_l2", fmt_json_real(m->rel_l2), "cosine", fmt_json_real(m->cosine), "max_ulp",
        m->max_ulp == UINT64_MAX ? json_string("nan") : json_integer((json_int_t)m->max_ulp), "ulp_histogram", ulp,
        "first", (json_int_t)m->first, "worst", (json_int_t)m->worst, "a_worst", fmt_json_real(v->a_worst), "b_worst",
        fmt_json_real(v->b_worst), "nan_differ", (json_int_t)(m->n_nan_a + m->n_nan_b - 2 * m->n_nan_both),
        "inf_differ", (json_int_t)m->n_inf_differ, "zero_differ", (json_int_t)m->n_zero_differ);
}

/* Compared by the digests of the rows. */
static json_t *rows_json(const rpl_rows *r)
{
    json_t *named = json_array();
    for (int64_t i = 0; i < r->n_differ && i < RPL_ROWS_NAMED; i++) fmt_json_add(&named, json_integer(r->row[i]));
    return json_pack("{s:I, s:I, s:o, s:b}", "rows", (json_int_t)r->n, "differ", (json_int_t)r->n_differ, "first", named,
                     "permuted", r->permuted);
}

static json_t *value_json(int32_t round, const rpl_value *v)
{
    json_t *findings = json_array();
    for (int bit = 0; bit < RPL_FINDING_COUNT; bit++)
        if (v->m.findings >> bit & 1)
            fmt_json_add(&findings, json_string(rpl_finding_text((rpl_finding)(1 << bit))));
    json_t *j =
        json_pack("{s:i, s:s, s:i, s:o, s:s, s:s?, s:s, s:s, s:s, s:o, s:o, s:o}", "schema", 1, "type", "value", "round",
                  round, "slot", v->slot == FMT_TAPE_NO_SLOT ? json_null() : json_integer(v->slot), "value", v->name,
                  "op", v->op, "ops", v->ops, "class", v->cls == RPL_CLASS_NONE ? "none" : rpl_class_text(v->cls), "state",
                  rpl_state_text(v->state), "a", shape_json(&v->a), "b", shape_json(&v->b), "findings", findings);
    if (!j) return NULL;
    if (v->state == RPL_STATE_COMPARED) fmt_json_put(&j, "metrics", metrics_json(v));
    if (v->has_logits)
        fmt_json_put(&j, "logits",
                     json_pack("{s:o, s:o, s:i, s:i, s:I, s:I, s:o}", "kl_mean",
                               fmt_json_real(v->logits.kl_mean), "kl_max", fmt_json_real(v->logits.kl_max),
                               "top_k", v->logits.k, "top_overlap_min", v->logits.overlap_min, "rows",
                               (json_int_t)v->logits.rows, "argmax_equal", (json_int_t)v->logits.n_argmax_equal,
                               "margin_min", fmt_json_real(v->logits.margin_min)));
    if (v->has_ids)
        fmt_json_put(&j, "ids", json_pack("{s:I, s:I, s:I}", "rows", (json_int_t)v->ids.rows, "same_set",
                                          (json_int_t)v->ids.n_same_set, "same_order", (json_int_t)v->ids.n_same_order));
    if (v->rows.n) fmt_json_put(&j, "rows", rows_json(&v->rows));
    if (v->why[0]) fmt_json_put(&j, "why", json_string(v->why));
    return j;
}

static err_code print_values_json(const rpl_diff *d, bool origins, err *e)
{
    for (int32_t i = 0; i < d->n_rounds; i++)
        for (int32_t k = 0; k < d->round[i]->n_values; k++) {
            const rpl_value *v = &d->round[i]->value[k];
            bool wanted = d->all || rpl_diff_differs(v) || v->m.findings;
            if (wanted && (v->cls == RPL_CLASS_ORIGIN) == origins) TRY(emit(value_json(d->round[i]->round, v), e));
        }
    return ERR_OK;
}

err_code rpl_diff_print_json(const rpl_diff *d, err *e)
{
    json_t *identity = json_array();
    for (char **p = d->identity; p && *p; p++) fmt_json_add(&identity, json_string(*p));
    json_t *verdict = json_pack(
                 "{s:i, s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I,"
                 " s:i, s:i, s:o, s:I}",
                 "schema", 1, "type", "verdict", "verdict", rpl_diff_verdict(d), "a", fmt_tape_path(d->a), "b",
                 fmt_tape_path(d->b), "forced", d->forced, "partial", d->interrupted || d->damaged, "damaged", d->damaged,
                 "rounds_wanted", d->n_rounds_wanted, "values", (json_int_t)d->n_values, "compared",
                 (json_int_t)d->n_compared, "equal", (json_int_t)d->n_equal, "differ", (json_int_t)d->n_differ,
                 "one_sided", (json_int_t)d->n_one_sided, "elements", (json_int_t)d->n_elems, "origins",
                 (json_int_t)d->by_class[RPL_CLASS_ORIGIN], "inherited",
                 (json_int_t)d->by_class[RPL_CLASS_INHERITED], "unplaced", (json_int_t)d->by_class[RPL_CLASS_UNPLACED],
                 "findings", (json_int_t)(d->n_findings + (d->n_elems == 0)), "drafts", (json_int_t)d->n_blocks,
                 "drafts_equal", (json_int_t)d->n_blocks_exact, "rounds", d->n_rounds, "rounds_differ",
                 d->rounds_differ, "identity", identity, "redacted", (json_int_t)d->n_redacted);
    TRY(emit(rpl_options_json(rpl_source_json(rpl_source_json(verdict, d->a), d->b), d->rounds, d->tap), e));
    if (d->n_elems == 0)
        TRY(emit(json_pack("{s:i, s:s, s:s}", "schema", 1, "type", "finding", "finding", "nothing compared"), e));
    TRY(print_values_json(d, true, e));
    TRY(print_values_json(d, false, e));
    for (int32_t i = 0; i < d->n_rounds; i++)
        for (int32_t k = 0; k < d->round[i]->n_drafts; k++) {
            const rpl_draft *b = &d->round[i]->draft[k];
            if (b->exact && !d->all) continue;
            TRY(emit(json_pack("{s:i, s:s, s:i, s:i, s:i, s:b, s:i, s:i, s:i, s:i, s:o, s:o}", "schema", 1, "type",
                               "draft", "round", d->round[i]->round, "slot", b->slot, "position", b->position, "exact",
                               b->exact, "tokens", b->n_out, "same", b->n_same, "token_a", b->token_a, "token_b",
                               b->token_b, "margin_b", fmt_json_real(b->margin_b), "gap_b", fmt_json_real(b->gap_b)),
                     e));
        }
    return ERR_OK;
}
