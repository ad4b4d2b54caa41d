#include "replay/certify.h"

#include "base/mem.h"
#include "capture/redact.h"
#include "replay/inject.h"

#include <inttypes.h>
#include <math.h>

enum { FEW = 12 }; /* lines of a kind unless all are wanted */

static const char *slot_text(int32_t slot, char buf[16])
{
    if (slot == FMT_TAPE_NO_SLOT) return "-";
    snprintf(buf, 16, "%d", slot);
    return buf;
}

/* "[0,17]" */
static const char *at_text(const rpl_spot *s, char buf[80])
{
    size_t n = 0;
    buf[0] = 0;
    for (int32_t d = 0; d < s->ndim && n < 60; d++)
        n += (size_t)snprintf(buf + n, 80 - n, "%s%" PRId64, d ? "," : "[", s->at[d]);
    if (n) snprintf(buf + n, 80 - n, "]");
    return buf;
}

/* "s0.attn.q" without its stage: stages are summed in the table. */
static const char *kind_of(const char *value)
{
    char *rest;
    if (value[0] != 's' || value[1] < '0' || value[1] > '9') return value;
    strtol(value + 1, &rest, 10);
    return *rest == '.' ? rest + 1 : value;
}

const char *rpl_certify_verdict(const rpl_certify_report *r)
{
    return rpl_coverage_verdict(&r->coverage, rpl_certificate_verdict(r->c));
}

static void print_verdict(const rpl_certify_report *r)
{
    const rpl_certificate *c = r->c;
    printf("%s  ", r->waived ? "WAIVED" : rpl_certify_verdict(r));
    if (c->n == 0) printf("nothing judged: not one element was there to judge");
    else
        printf("%" PRId64 " elements of %" PRId64 " values in %d rounds: %" PRId64 " equal, %" PRId64 " flips, %" PRId64
               " illegal", c->n, c->n_values, c->n_rounds, c->n_equal, c->n_flip, c->n_illegal);
    if (c->n_origins) printf("; %zu origins, %zu inherited", c->n_origins, c->n_inherited);
    if (c->n_findings) printf("; %zu findings", c->n_findings);
    if (c->n_not_judged) printf("; %" PRId64 " values not or not wholly judged", c->n_not_judged);
    printf("\n");
    rpl_coverage_print(&r->coverage);
}

static void print_run(const rpl_certify_report *r)
{
    const json_t *id = json_object_get(fmt_tape_head(r->tape), "identity");
    const char *arm = json_string_value(json_object_get(json_object_get(id, "arm"), "name"));
    const char *mode = json_string_value(json_object_get(id, "mode")), *acc = json_string_value(json_object_get(id, "acc"));
    const char *combine = json_string_value(json_object_get(id, "combine")), *key = cap_redact_key_of(r->tape);
    printf("%s", fmt_tape_path(r->tape));
    if (arm) printf("  %s, %s, %s, %s, tp %lld", arm, mode ? mode : "?", acc ? acc : "?", combine ? combine : "?",
                    (long long)json_integer_value(json_object_get(id, "tp")));
    if (r->coverage.n_shards > 1) printf("  (shard %d of %d)", r->coverage.shard, r->coverage.n_shards);
    printf("\nbound: %s, %s%s\n", rpl_bound_name(r->bound), rpl_bound_formula(r->bound),
           r->bound == RPL_BOUND_SHARP ? " (illegal is a hint, no proof: see --help)" : "");
    char text[RPL_INJECTED_TEXT];
    const char *injected = rpl_injected(id, text);
    if (injected) printf("injected   %s\n", injected);
    if (key) printf("redacted   token ids are (key %s): what reads or chooses tokens was not judged\n", key);
}

static double percent(int64_t part, int64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }

/* Rows of the table: each value's sums, or (apart false) those of every stage together, in the order of the first. */
static rpl_value_sum *rows_of(const rpl_certificate *c, bool apart, size_t *n)
{
    rpl_value_sum *row = mem_alloc(c->n_sums + 1, sizeof *row);
    *n = 0;
    for (size_t i = 0; row && i < c->n_sums; i++) {
        const rpl_value_sum *s = &c->sum[i];
        size_t at = apart ? *n : 0;
        while (at < *n && strcmp(kind_of(row[at].value), kind_of(s->value)) != 0) at++;
        if (at == *n) {
            row[(*n)++] = *s;
            continue;
        }
        rpl_value_sum *to = &row[at];
        to->n += s->n;
        to->n_equal += s->n_equal;
        to->n_flip += s->n_flip;
        to->n_illegal += s->n_illegal;
        to->n_unjudged += s->n_unjudged;
        to->n_events += s->n_events;
        if (s->flip_distance > to->flip_distance) to->flip_distance = s->flip_distance;
        for (int k = 0; k < 2; k++) {
            to->tried[k] += s->tried[k];
            to->admitted[k] += s->admitted[k];
        }
    }
    return row;
}

static err_code print_table(const rpl_certify_report *r, err *e)
{
    size_t n;
    rpl_value_sum *row = rows_of(r->c, r->all, &n);
    if (!row) return err_set(e, ERR_NOMEM, "certify: no memory for the table");
    if (n) printf("\n%-16s %12s %12s %10s %9s %9s %7s%s\n", "value", "elements", "equal", "flip", "illegal", "distance",
                  "events", r->sharpness ? "   +-1 ulp   +-2 ulp" : "");
    for (size_t i = 0; i < n; i++) {
        const rpl_value_sum *s = &row[i];
        printf("%-16s %12" PRId64 " %12" PRId64 " %10" PRId64 " %9" PRId64 " %9.3f %7" PRId64,
               r->all ? s->value : kind_of(s->value), s->n, s->n_equal, s->n_flip, s->n_illegal, s->flip_distance,
               s->n_events);
        if (r->sharpness)
            printf(" %8.4f%% %8.4f%%", percent(s->admitted[0], s->tried[0]), percent(s->admitted[1], s->tried[1]));
        printf("\n");
    }
    free(row);
    return ERR_OK;
}

/* The origins, or inherited ones, of one op and one kind of cause. */
typedef struct group {
    const rpl_origin *first, *worst;
    int32_t n_rounds, last_round;
    int64_t n_illegal, n;
} group;

static bool is_of(const group *g, const rpl_origin *o)
{
    const rpl_origin *first = g->first;
    size_t n = strcspn(o->cause, ":"); /* after it stand figures of the round */
    return strcmp(first->op, o->op) == 0 && strcspn(first->cause, ":") == n && strncmp(first->cause, o->cause, n) == 0 &&
           strcmp(first->from, o->from) == 0 && first->rank == o->rank && first->ranks_differ == o->ranks_differ;
}

/* In the order of the first of each; with all every one is a group. NULL: no memory. */
static group *group_origins(const rpl_origin *list, size_t n_list, bool all, size_t *n)
{
    group *groups = mem_alloc(n_list + 1, sizeof *groups);
    *n = 0;
    for (size_t i = 0; groups && i < n_list; i++) {
        const rpl_origin *o = &list[i];
        size_t at = all ? *n : 0;
        while (at < *n && !is_of(&groups[at], o)) at++;
        group *g = &groups[at];
        if (at == *n) {
            *g = (group){ .first = o, .worst = o, .last_round = -1 };
            (*n)++;
        }
        bool lost = isnan(g->worst->worst.ratio); /* further off than any */
        if (!lost && !(o->worst.ratio <= g->worst->worst.ratio)) g->worst = o;
        g->n_rounds += o->round != g->last_round;
        g->last_round = o->round;
        g->n_illegal += o->n_illegal;
        g->n += o->n;
    }
    return groups;
}

static void print_origin(const group *g)
{
    const rpl_origin *o = g->worst;
    char slot[16], of_worst[16], at[80], share[48], where[160], rank[16] = "-";
    snprintf(share, sizeof share, "%" PRId64 "/%" PRId64, g->n_illegal, g->n);
    snprintf(where, sizeof where, "%d/%s/%s%s", o->round, slot_text(o->slot, of_worst), o->worst.value,
             at_text(&o->worst, at));
    if (o->rank >= 0) snprintf(rank, sizeof rank, "%d", o->rank);
    printf("%5d %6d %4s  %-16s %4s %15s  %-28s %15.9g %15.9g %10.3g %9.3g  %s%s%s\n", g->first->round, g->n_rounds,
           slot_text(g->first->slot, slot), o->op, rank, share, where, o->worst.got, o->worst.exact, o->worst.bound,
           o->worst.ratio, o->cause, o->cause[0] && o->ranks_differ ? "; " : "",
           o->ranks_differ ? "the rank's copy differs from the first rank's" : "");
}

static err_code print_origins(const rpl_certify_report *r, err *e)
{
    size_t n;
    const rpl_certificate *c = r->c;
    if (!c->n_origins) return ERR_OK;
    group *groups = group_origins(c->origin, c->n_origins, r->all, &n);
    if (!groups) return err_set(e, ERR_NOMEM, "certify: no memory for the origins");
    printf("\norigins: on the recorded inputs no order of sums gives these\n%5s %6s %4s  %-16s %4s %15s  %-28s %15s %15s "
           "%10s %9s  %s\n", "round", "rounds", "slot", "op", "rank", "illegal", "worst", "got", "exact", "bound", "ratio",
           "cause");
    for (size_t i = 0; i < n && (i < FEW || r->all); i++) print_origin(&groups[i]);
    if (n > FEW && !r->all) printf("%5s %zu more (--all)\n", "", n - FEW);
    free(groups);
    return ERR_OK;
}

static err_code print_inherited(const rpl_certify_report *r, err *e)
{
    size_t n;
    const rpl_certificate *c = r->c;
    if (!c->n_inherited) return ERR_OK;
    group *groups = group_origins(c->inherited, c->n_inherited, r->all, &n);
    if (!groups) return err_set(e, ERR_NOMEM, "certify: no memory for what is inherited");
    printf("\ninherited: what they read is illegal, and with it put right they are not\n%5s %6s %4s  %-16s %15s  %s\n",
           "round", "rounds", "slot", "op", "illegal", "follows from");
    for (size_t i = 0; i < n && (i < FEW || r->all); i++) {
        const rpl_origin *o = groups[i].first;
        char slot[16], share[48];
        snprintf(share, sizeof share, "%" PRId64 "/%" PRId64, groups[i].n_illegal, groups[i].n);
        printf("%5d %6d %4s  %-16s %15s  %s\n", o->round, groups[i].n_rounds, slot_text(o->slot, slot), o->op, share,
               o->from);
    }
    if (n > FEW && !r->all) printf("%5s %zu more (--all)\n", "", n - FEW);
    free(groups);
    return ERR_OK;
}

static void print_ties(const rpl_certify_report *r)
{
    const rpl_certificate *c = r->c;
    for (size_t i = 0; i < c->n_ties && (i < FEW || r->all); i++) {
        const rpl_tie *t = &c->tie[i];
        if (i == 0) printf("\nties: another choice, by legal scores\n");
        printf("%5d       %-16s [%" PRId64 ",%d]  got %d, exact %d, margin %.4g\n", t->round, t->value, t->row,
               t->place, t->got, t->exact, t->margin);
    }
    if (c->n_ties > FEW && !r->all) printf("%5s %zu more (--all)\n", "", c->n_ties - FEW);
}

static void print_notes(const rpl_certify_report *r, const char *title, const rpl_note *n, size_t count)
{
    for (size_t i = 0; i < count && (i < FEW || r->all); i++)
        printf("%s%-10s %-20s %6" PRId64 " value%s from round %d: %s\n", i ? "" : "\n", i ? "" : title, n[i].value,
               n[i].n_values, n[i].n_values == 1 ? " " : "s", n[i].first_round, n[i].why);
    if (count > FEW && !r->all) printf("%-10s %zu more names (--all)\n", "", count - FEW);
}

/* The reference of the first origin's worst element, as `show` takes it, and the op as an issue to send. A ring is no op
 * that can be run alone: what made it is looked for. */
static void print_closer(const rpl_certify_report *r)
{
    char slot[16], at[80];
    if (!r->c->n_origins) return;
    const rpl_origin *o = &r->c->origin[0];
    printf("\nlook closer: sparktape show '%s:%d/%s/%s%s'\n", fmt_tape_path(r->tape), o->round, slot_text(o->slot, slot),
           o->worst.value, at_text(&o->worst, at));
    const char *tape = fmt_tape_path(r->tape), *model = eng_weights_folder(r->weights), *end = strrchr(o->op, '.');
    if (end && strcmp(end, ".window") == 0) printf("             sparktape attribute %s %s\n", tape, model);
    else {
        printf("             sparktape reduce %s %s --op %s --round %d ", tape, model, o->op, o->round);
        if (o->slot != FMT_TAPE_NO_SLOT) printf("--slot %d ", o->slot);
        printf("-o DIR\n");
    }
}

err_code rpl_certify_print(const rpl_certify_report *r, err *e)
{
    const rpl_certificate *c = r->c;
    print_verdict(r);
    print_run(r);
    TRY(print_table(r, e));
    TRY(print_origins(r, e));
    TRY(print_inherited(r, e));
    print_ties(r);
    print_notes(r, "finding", c->finding, c->n_findings);
    print_notes(r, "not judged", c->not_judged, c->n_notes);
    const double mb = (double)c->bytes * 1e-6;
    if (c->n && r->seconds > 0) printf("\n%.1f MB in %.2f s, %.0f MB/s\n", mb, r->seconds, mb / r->seconds);
    print_closer(r);
    return ERR_OK;
}
