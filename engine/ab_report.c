#include "engine/ab_report.h"

#include "engine/cmd_common.h"

static const char *promise_text(const ab_pair *p)
{
    return p->promise == AB_BITS ? "equal bits" : "both inside the bound of the contract";
}

/* "n 2560, hc 4" */
static void shape_text(const ab_pair *p, const int32_t *dim, char *out, size_t bytes)
{
    const char *name = p->dims;
    size_t at = 0;
    for (int i = 0; *name && at < bytes; i++) {
        const int len = (int)strcspn(name, " ");
        at += (size_t)snprintf(out + at, bytes - at, "%s%.*s %d", i ? ", " : "", len, name, dim[i]);
        name += len + (name[len] == ' ');
    }
}

static json_t *shape_json(const ab_pair *p, const int32_t *dim)
{
    json_t *j = json_object();
    const char *name = p->dims;
    for (int i = 0; *name; i++) {
        char key[24];
        const int len = (int)strcspn(name, " ");
        snprintf(key, sizeof key, "%.*s", len, name);
        fmt_json_put(&j, key, json_integer(dim[i]));
        name += len + (name[len] == ' ');
    }
    return j;
}

/* On the CPU, where new has no twin of its own, both sides are the same code: that they agree says nothing. */
static bool same_code(const ab_pair *p, const ab_device *d) { return !d->on_card && !p->own_twin; }

static const char *speed_word(const ab_pair *p, const ab_device *d, const ab_row *r)
{
    return same_code(p, d) ? "same twin" : ab_times_word(&r->units);
}

static err_code print_json(json_t *j, err *e)
{
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

/* ---- device ---- */

json_t *ab_state_json(const ab_state *s)
{
    return s->known ? json_pack("{s:i, s:i, s:i, s:f}", "sm_mhz", (int)s->sm_mhz, "memory_mhz", (int)s->memory_mhz,
                                "temperature_c", (int)s->temperature_c, "power_w", s->power_w)
                    : json_null();
}

void ab_print_state(const char *when, const ab_state *s)
{
    if (s->known)
        printf("%s: SM %d MHz, memory %d MHz, %d C, %.1f W\n", when, s->sm_mhz, s->memory_mhz, s->temperature_c,
               s->power_w);
}

err_code ab_print_device(const ab_device *d, const ab_state *s, bool json, err *e)
{
    if (json)
        return print_json(json_pack("{s:i, s:s, s:s, s:f, s:f, s:i, s:o}", "schema", CMD_SCHEMA, "device", d->name,
                                    "backend", d->on_card ? "cuda" : "cpu", "copy_bytes_per_s", d->copy_bytes_per_s,
                                    "empty_node_us", d->empty_us, "nodes", (int)d->nodes, "state", ab_state_json(s)),
                          e);
    printf("device: %s; copy %.1f GB/s", d->name, d->copy_bytes_per_s * 1e-9);
    if (d->on_card) printf("; a graph of %d: an empty node takes %.2f us", d->nodes, d->empty_us);
    printf("\n");
    if (d->on_card && !s->known) printf("before: the card does not say its clocks, temperature and power\n");
    ab_print_state("before", s);
    return ERR_OK;
}

/* ---- pairs ---- */

static json_t *times_json(const ab_times *t)
{
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "pairs", (int)t->n, "base_us", t->p50_us[AB_BASE],
                     "new_us", t->p50_us[AB_NEW], "ratio", t->ratio, "ratio_min", t->ratio_min, "ratio_max", t->ratio_max,
                     "faster_share", t->faster, "drift", t->drift);
}

static json_t *finding_json(const ab_pair *p, const ab_row *r)
{
    const ab_finding *f = &r->finding;
    char text[512];
    if (f->fault == AB_EQUAL) return json_null();
    ab_finding_text(f, text, sizeof text);
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:o, s:s}", "fault", ab_fault_name(f->fault), "output",
                     f->array, "index", (json_int_t)f->index, "count", (json_int_t)f->count, "base_bits",
                     (json_int_t)f->bits[AB_BASE], "new_bits", (json_int_t)f->bits[AB_NEW], "kind",
                     ab_kind_name(f->kind), "seed", (json_int_t)f->seed, "shape", shape_json(p, r->broken_dim), "text",
                     text);
}

/* The floor is what a copy of as many bytes as the new side moves would take. */
static double floor_us(const ab_device *d, const ab_row *r) { return (double)r->bytes[AB_NEW] / d->copy_bytes_per_s * 1e6; }
static double speed_of(const ab_row *r, int side) { return (double)r->bytes[side] / r->units.p50_us[side] * 1e6; }

static err_code row_json(const ab_pair *p, const int32_t *dim, const ab_device *d, const ab_row *r, err *e)
{
    const bool kept = r->finding.fault == AB_EQUAL;
    json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:o, s:i, s:I, s:b, s:b, s:f, s:o, s:I, s:I}", "schema", CMD_SCHEMA, "base",
                          p->name[AB_BASE], "new", p->name[AB_NEW], "promise", p->promise == AB_BITS ? "bits" : "bound",
                          "shape", shape_json(p, dim), "T", (int)r->T, "compared", (json_int_t)r->compared, "kept",
                          (int)kept, "same_code", (int)same_code(p, d), "equal_share",
                          (double)r->n_equal / (double)(r->n_all ? r->n_all : 1), "difference", finding_json(p, r),
                          "base_bytes", (json_int_t)r->bytes[AB_BASE], "new_bytes", (json_int_t)r->bytes[AB_NEW]);
    if (r->timed) {
        fmt_json_put(&j, "times", times_json(&r->units));
        if (r->once.n) fmt_json_put(&j, "once", times_json(&r->once));
        fmt_json_put(&j, "base_bytes_per_s", json_real(speed_of(r, AB_BASE)));
        fmt_json_put(&j, "new_bytes_per_s", json_real(speed_of(r, AB_NEW)));
        fmt_json_put(&j, "floor_us", json_real(floor_us(d, r)));
        fmt_json_put(&j, "floor_share", json_real(floor_us(d, r) / r->units.p50_us[AB_NEW]));
        fmt_json_put(&j, "verdict", json_string(speed_word(p, d, r)));
    } else fmt_json_put(&j, "verdict", json_string(ab_fault_name(r->finding.fault)));
    return print_json(j, e);
}

static void print_row(const ab_pair *p, const ab_device *d, const ab_row *r)
{
    printf("  %3d %8lld ", r->T, (long long)r->compared);
    if (!r->timed) {
        char text[512], shape[96];
        ab_finding_text(&r->finding, text, sizeof text);
        shape_text(p, r->broken_dim, shape, sizeof shape);
        printf(" %s, at %s\n    again: sparktape ab %s %s %d --seeds 1 --seed %llu%s\n", text, shape,
               p->name[AB_BASE], p->name[AB_NEW], r->T, (unsigned long long)r->finding.seed, d->on_card ? "" : " --cpu");
        return;
    }
    const ab_times *t = &r->units;
    printf("%9.2f %9.2f %6.3f %6.3f %6.3f %6.3f", t->p50_us[AB_BASE], t->p50_us[AB_NEW], t->ratio, t->ratio_min,
           t->ratio_max, t->drift);
    if (d->on_card) printf(" %8.2f %8.2f %6.3f", r->once.p50_us[AB_BASE], r->once.p50_us[AB_NEW], r->once.ratio);
    printf(" %9.1f %9.1f %8.1f %8.2f %6.1f%%  %s", (double)r->bytes[AB_BASE] * 1e-3, (double)r->bytes[AB_NEW] * 1e-3,
           speed_of(r, AB_NEW) * 1e-9, floor_us(d, r), 100 * floor_us(d, r) / t->p50_us[AB_NEW], speed_word(p, d, r));
    if (p->promise == AB_BOUND) printf("; %.2f%% equal bits", 100.0 * (double)r->n_equal / (double)r->n_all);
    printf("\n");
}

err_code ab_print_pair(const ab_pair *p, const int32_t *dim, const ab_device *d, const ab_row *rows, int32_t n, bool json,
                       ab_totals *t, err *e)
{
    char shape[96];
    shape_text(p, dim, shape, sizeof shape);
    if (!json) {
        printf("\n%s -> %s: %s\n  %s; timed at %s\n", p->name[AB_BASE], p->name[AB_NEW], p->summary, promise_text(p),
               shape);
        if (same_code(p, d)) printf("  new has no twin of its own: on the CPU both sides are the ops of base\n");
        printf("  %3s %8s %9s %9s %6s %6s %6s %6s%s %9s %9s %8s %8s %7s  verdict\n", "T", "compared", "base us", "new us",
               "ratio", "min", "max", "drift", d->on_card ? "   1 base    1 new  ratio" : "", "base KB", "new KB",
               "new GB/s", "floor us", "reached");
    }
    t->pairs++;
    for (int32_t i = 0; i < n; i++) {
        const ab_row *r = &rows[i];
        t->rows++;
        t->broken += r->finding.fault != AB_EQUAL;
        t->faster += r->timed && strcmp(speed_word(p, d, r), "faster") == 0;
        t->slower += r->timed && strcmp(speed_word(p, d, r), "slower") == 0;
        if (json) TRY(row_json(p, dim, d, r, e));
        else print_row(p, d, r);
    }
    return ERR_OK;
}

err_code ab_print_end(const ab_totals *t, const ab_state *s, bool json, err *e)
{
    const char *verdict = t->broken ? "FAIL" : "PASS";
    if (json)
        return print_json(json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:o}", "schema", CMD_SCHEMA, "verdict", verdict,
                                    "pairs", (int)t->pairs, "rows", (int)t->rows, "broken", (int)t->broken, "faster",
                                    (int)t->faster, "slower", (int)t->slower, "state", ab_state_json(s)),
                          e);
    printf("\n");
    ab_print_state("after", s);
    printf("%s: %d pairs, %d rows: %d break their promise; new is faster in %d, slower in %d\n", verdict, t->pairs, t->rows,
           t->broken, t->faster, t->slower);
    return ERR_OK;
}

/* ---- list ---- */

err_code ab_print_list(bool json, err *e)
{
    for (int32_t i = 0; i < ab_pair_count(); i++) {
        const ab_pair *p = ab_pair_at(i);
        char shape[96];
        if (json) {
            json_t *shapes = json_array();
            for (int32_t k = 0; k < p->n_shapes; k++) fmt_json_add(&shapes, shape_json(p, p->shape[k]));
            TRY(print_json(json_pack("{s:i, s:s, s:s, s:s, s:i, s:b, s:o, s:s}", "schema", CMD_SCHEMA, "base",
                                     p->name[AB_BASE], "new", p->name[AB_NEW], "promise",
                                     p->promise == AB_BITS ? "bits" : "bound", "t_max", (int)p->t_max, "own_twin",
                                     (int)p->own_twin, "shapes", shapes, "summary", p->summary),
                           e));
            continue;
        }
        shape_text(p, p->shape[0], shape, sizeof shape);
        printf("%-34s %-26s %-6s T to %-4d %s\n    %s; %d more shapes are compared\n", p->name[AB_BASE], p->name[AB_NEW],
               p->promise == AB_BITS ? "bits" : "bound", p->t_max, p->summary, shape, p->n_shapes - 1);
    }
    return ERR_OK;
}
