#include "replay/certify.h"
#include "replay/source.h"

static json_t *text_or_null(const char *s) { return s[0] ? json_string(s) : json_null(); }

static json_t *slot_json(int32_t slot) { return slot == FMT_TAPE_NO_SLOT ? json_null() : json_integer(slot); }

static json_t *spot_json(const rpl_spot *s)
{
    json_t *at = json_array();
    for (int32_t d = 0; d < s->ndim; d++) fmt_json_add(&at, json_integer(s->at[d]));
    return json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:o}", "value", s->value, "index", (json_int_t)s->index, "at", at,
                     "got", fmt_json_real(s->got), "exact", fmt_json_real(s->exact), "bound", fmt_json_real(s->bound),
                     "ratio", fmt_json_real(s->ratio));
}

/* A row of cells is a text of two hex digits each: "00ff" is none, all. */
static json_t *map_json(const rpl_illegal_map *m)
{
    json_t *share = json_array();
    int32_t blocks = (m->columns + RPL_PROFILE_BLOCK - 1) / RPL_PROFILE_BLOCK;
    for (int32_t r = 0; r * m->row_step < m->rows; r++) {
        char text[2 * RPL_MAP_BLOCKS + 1] = "";
        for (int32_t b = 0; b * m->block_step < blocks; b++) snprintf(text + (ptrdiff_t)2 * b, 3, "%02x", m->share[r][b]);
        fmt_json_add(&share, json_string(text));
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:o}", "value", m->value, "rows", (int)m->rows, "columns", (int)m->columns,
                     "row_step", (int)m->row_step, "column_step", (int)m->block_step * RPL_PROFILE_BLOCK, "share", share);
}

static json_t *origin_json(const rpl_origin *o)
{
    json_t *outputs = json_array();
    for (int32_t i = 0; i < o->n_outputs; i++) fmt_json_add(&outputs, json_string(o->output[i]));
    json_t *j = json_pack("{s:i, s:o, s:s, s:o, s:o, s:b, s:I, s:I, s:o, s:o}", "round", o->round, "slot",
                          slot_json(o->slot), "op", o->op, "outputs", outputs, "rank",
                          o->rank < 0 ? json_null() : json_integer(o->rank), "ranks_differ", o->ranks_differ, "illegal",
                          (json_int_t)o->n_illegal, "elements", (json_int_t)o->n, "worst", spot_json(&o->worst), "cause",
                          text_or_null(o->cause));
    if (o->from[0]) fmt_json_put(&j, "from", json_string(o->from));
    if (o->map.value[0]) fmt_json_put(&j, "map", map_json(&o->map));
    return j;
}

static json_t *origins_json(const rpl_origin *o, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) fmt_json_add(&list, origin_json(&o[i]));
    return list;
}

static json_t *sums_json(const rpl_certify_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->c->n_sums; i++) {
        const rpl_value_sum *s = &r->c->sum[i];
        json_t *j = json_pack("{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "value", s->value, "op", s->op,
                              "order", (int)s->order, "values", (json_int_t)s->n_values, "elements", (json_int_t)s->n,
                              "equal", (json_int_t)s->n_equal, "flip", (json_int_t)s->n_flip, "illegal",
                              (json_int_t)s->n_illegal, "unjudged", (json_int_t)s->n_unjudged, "events",
                              (json_int_t)s->n_events, "flip_distance", fmt_json_real(s->flip_distance));
        if (j && r->sharpness)
            fmt_json_put(&j, "sharpness",
                         json_pack("[{s:i, s:I, s:I}, {s:i, s:I, s:I}]", "ulps", 1, "tried", (json_int_t)s->tried[0],
                                   "admitted", (json_int_t)s->admitted[0], "ulps", 2, "tried",
                                   (json_int_t)s->tried[1], "admitted", (json_int_t)s->admitted[1]));
        fmt_json_add(&list, j);
    }
    return list;
}

static json_t *notes_json(const rpl_note *n, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        fmt_json_add(&list, json_pack("{s:s, s:s, s:I, s:i, s:i}", "value", n[i].value, "why", n[i].why,
                                      "values", (json_int_t)n[i].n_values, "first_round", n[i].first_round,
                                      "order", (int)n[i].order));
    return list;
}

static json_t *ties_json(const rpl_certificate *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_ties; i++) {
        const rpl_tie *t = &c->tie[i];
        fmt_json_add(&list, json_pack("{s:i, s:s, s:I, s:i, s:i, s:i, s:o}", "round", t->round, "value", t->value,
                                      "row", (json_int_t)t->row, "place", t->place, "got", t->got, "exact",
                                      t->exact, "margin", fmt_json_real(t->margin)));
    }
    return list;
}

json_t *rpl_certify_json(const rpl_certify_report *r)
{
    const rpl_certificate *c = r->c;
    json_t *j = json_pack("{s:i, s:s, s:i, s:I, s:I, s:I, s:I, s:o, s:o}", "schema", 1, "verdict",
                          rpl_certify_verdict(r), "rounds", c->n_rounds, "elements", (json_int_t)c->n, "equal",
                          (json_int_t)c->n_equal, "flip", (json_int_t)c->n_flip, "illegal", (json_int_t)c->n_illegal,
                          "origins", origins_json(c->origin, c->n_origins), "inherited",
                          origins_json(c->inherited, c->n_inherited));
    json_t *more = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:I, s:f}",
                             "type", "certificate", "tape", fmt_tape_path(r->tape), "bound",
                             rpl_bound_name(r->bound), "values", (json_int_t)c->n_values, "events",
                             (json_int_t)c->n_events, "unjudged", (json_int_t)c->n_unjudged,
                             "values_not_judged", (json_int_t)c->n_not_judged, "not_judged",
                             notes_json(c->not_judged, c->n_notes), "findings", notes_json(c->finding, c->n_findings),
                             "ties", ties_json(c), "ops", sums_json(r), "bytes", (json_int_t)c->bytes, "seconds",
                             r->seconds);
    bool fine = j && more && json_object_update(j, more) == 0;
    json_t *injected = json_object_get(json_object_get(fmt_tape_head(r->tape), "identity"), "injected");
    if (fine && injected) fine = json_object_set(j, "injected", injected) == 0;
    json_decref(more);
    if (fine) return rpl_source_json(rpl_coverage_json(&r->coverage, j), r->tape);
    json_decref(j);
    return NULL;
}
