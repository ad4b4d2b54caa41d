#include "replay/diff_report.h"

#include "base/mem.h"
#include "capture/redact.h"

#include <inttypes.h>
#include <math.h>

enum { FEW = 12 }; /* rows of a table unless all are wanted */

static rpl_coverage coverage_of(const rpl_diff *d)
{
    return (rpl_coverage){ 1, 1, d->n_rounds, d->n_rounds_wanted, d->n_rounds_wanted, d->interrupted, d->damaged };
}

void rpl_diff_sum(rpl_diff *d)
{
    for (int32_t i = 0; i < d->n_rounds; i++) {
        const rpl_round *r = d->round[i];
        d->n_values += r->n_values;
        d->n_compared += r->n_compared;
        d->n_equal += r->n_equal;
        d->n_differ += r->n_differ;
        d->n_redacted += r->n_redacted;
        d->n_findings += r->n_findings;
        d->n_elems += r->n_elems;
        d->n_bytes += r->n_bytes;
        d->rounds_differ += r->n_differ > 0;
        for (int k = 0; k < RPL_CLASS_COUNT; k++) d->by_class[k] += r->by_class[k];
        d->n_blocks += r->n_drafts;
        for (int32_t k = 0; k < r->n_drafts; k++) d->n_blocks_exact += r->draft[k].exact;
    }
    const json_t *a = fmt_tape_head(d->a), *b = fmt_tape_head(d->b);
    const json_t *level = json_object_get(a, "level");
    const json_t *taps_a = json_object_get(a, "taps"), *taps_b = json_object_get(b, "taps");
    d->n_one_sided = d->forced ? 0 : d->n_values - d->n_equal - d->n_differ - d->n_redacted;
    d->alike = level && json_equal(level, json_object_get(b, "level")) &&
               (!taps_a || !taps_b || json_equal(taps_a, taps_b));
}

const char *rpl_diff_verdict(const rpl_diff *d)
{
    const rpl_coverage coverage = coverage_of(d);
    bool differ = d->n_differ > 0 || d->n_findings > 0 || (d->alike && d->n_one_sided);
    bool hidden = d->n_redacted > 0 || (d->forced && cap_redact_key_of(d->b));
    const char *found = differ ? "DIFFERENT" : d->n_elems == 0 ? NULL : hidden ? "INCOMPLETE" : "SAME";
    if (!found && !d->interrupted) found = "DIFFERENT";
    return rpl_coverage_verdict(&coverage, found);
}

/* Differences of build, libraries and machine explain nothing by themselves when the bits agree: they are told apart. */
static bool matters(const char *line)
{
    static const char *const AROUND[] = { "build.", "libraries.", "device:", "isa:", "replay", "imported" };
    for (size_t i = 0; i < COUNT_OF(AROUND); i++)
        if (strncmp(line, AROUND[i], strlen(AROUND[i])) == 0) return false;
    return true;
}

/* "[3, 17]" of element i. */
static const char *index_text(const fmt_tensor *t, int64_t i, char buf[80])
{
    int64_t at[FMT_DIMS_MAX];
    size_t n = 0;
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        at[d] = t->shape[d] ? i % t->shape[d] : 0;
        i = t->shape[d] ? i / t->shape[d] : 0;
    }
    buf[n++] = '[';
    for (int32_t d = 0; d < t->ndim && n < 70; d++)
        n += (size_t)snprintf(buf + n, 80 - n, "%s%" PRId64, d ? "," : "", at[d]);
    snprintf(buf + (n < 78 ? n : 78), 2, "]");
    return buf;
}

static const char *slot_text(int32_t slot, char buf[16])
{
    if (slot == FMT_TAPE_NO_SLOT) return "-";
    snprintf(buf, 16, "%d", slot);
    return buf;
}

bool rpl_diff_differs(const rpl_value *v)
{
    return v->cls != RPL_CLASS_EQUAL && v->state != RPL_STATE_UNKNOWN && v->state != RPL_STATE_REDACTED;
}

static void print_run(char side, const fmt_tape *t)
{
    const json_t *id = json_object_get(fmt_tape_head(t), "identity"), *arm = json_object_get(id, "arm");
    const char *name = json_string_value(json_object_get(arm, "name")),
               *acc = json_string_value(json_object_get(id, "acc"));
    const char *mode = json_string_value(json_object_get(id, "mode")),
               *combine = json_string_value(json_object_get(id, "combine"));
    printf("%c  %s", side, fmt_tape_path(t));
    if (name) printf("  %s, %s, %s, %s, tp %lld", name, mode ? mode : "?", acc ? acc : "?", combine ? combine : "?",
                     (long long)json_integer_value(json_object_get(id, "tp")));
    const fmt_tape_fault *faults;
    size_t n_faults = fmt_tape_damage(t, &faults);
    if (n_faults) printf("  (damaged, %zu fault%s: sparktape doctor says where)", n_faults, n_faults == 1 ? "" : "s");
    printf("%s\n", fmt_tape_finished(t) ? "" : "  (unfinished)");
}

/* What redaction kept from being compared. */
static void print_redacted(const rpl_diff *d)
{
    const char *a = cap_redact_key_of(d->a), *b = cap_redact_key_of(d->b);
    if (d->forced && b) printf("redacted   B's token ids are (key %s): ops that read or choose tokens were not run\n", b);
    if (d->n_redacted)
        printf("redacted   A %s%s, B %s%s: %" PRId64 " values that tell token ids, or are withheld, were not compared\n",
               a ? "key " : "not", a ? a : "", b ? "key " : "not", b ? b : "", d->n_redacted);
}

static bool says_what_ran(const fmt_tape *t)
{
    const json_t *identity = json_object_get(fmt_tape_head(t), "identity");
    return json_object_get(identity, "arm") || json_object_get(identity, "engine"); /* ours, or the capture API's */
}

static void print_identity(const rpl_diff *d)
{
    int hidden = 0, shown = 0;
    if (!d->all && (!says_what_ran(d->a) || !says_what_ran(d->b))) {
        if (d->identity && d->identity[0])
            printf("identity   %s does not say what made it\n", says_what_ran(d->a)   ? "B"
                                                                : says_what_ran(d->b) ? "A"
                                                                                      : "neither");
        return;
    }
    for (char **p = d->identity; p && *p; p++) {
        if (!matters(*p) && !d->all) { hidden++; continue; }
        printf("%-10s %s\n", shown++ ? "" : "identity", *p);
    }
    if (hidden) printf("%-10s %d more of build, libraries and machine (--all)\n", shown ? "" : "identity", hidden);
}

/* The differences of one value over the rounds. */
typedef struct row {
    const rpl_value *worst; /* in the round where it lies furthest off */
    int32_t worst_round, first_round, last_round, n_rounds;
    int64_t n, n_differ;
    uint64_t max_ulp;
} row;

/* NaN against a number: no distance, and further off than any. */
static bool is_lost(const rpl_value *v) { return v->m.max_ulp == UINT64_MAX; }

/* A rank's copy differs on one side, and what was compared, the lowest rank's, does not. */
static bool is_copy(const rpl_value *v) { return v->state == RPL_STATE_COMPARED && v->why[0] && v->m.n_equal == v->m.n; }

static bool is_further(const rpl_value *v, const rpl_value *than)
{
    if (!than || is_lost(v) != is_lost(than)) return !than || is_lost(v);
    return !(v->m.rel_l2 <= than->m.rel_l2);
}

static void add_to_row(row *w, const rpl_value *v, int32_t round)
{
    bool further = is_further(v, w->worst);
    if (!w->worst) w->first_round = round;
    if (further) w->worst = v, w->worst_round = round;
    w->n_rounds += w->n_rounds == 0 || w->last_round != round; /* an insert value has a record per slot */
    w->last_round = round;
    w->n += v->m.n;
    w->n_differ += v->m.n - v->m.n_equal;
    if (v->m.max_ulp > w->max_ulp) w->max_ulp = v->m.max_ulp;
}

static void print_row(const row *w)
{
    char slot[16], at[80], share[48], ulp[24];
    const rpl_value *v = w->worst;
    snprintf(share, sizeof share, "%" PRId64 "/%" PRId64, w->n_differ, w->n);
    printf("%5d %6d  %-18s %15s ", w->first_round, w->n_rounds, v->name, share);
    if (v->state == RPL_STATE_BY_HASH) {
        char rows[160];
        if (v->rows.n == 0) printf("another hash, no payload kept\n");
        else printf("round %d slot %s: %s\n", w->worst_round, slot_text(v->slot, slot),
                    rpl_rows_text(&v->rows, rows, sizeof rows));
        return;
    }
    if (is_copy(v)) {
        printf("round %d slot %s: %s  %s\n", w->worst_round, slot_text(v->slot, slot), v->why, v->ops);
        return;
    }
    if (w->max_ulp == UINT64_MAX) snprintf(ulp, sizeof ulp, "NaN");
    else snprintf(ulp, sizeof ulp, "%" PRIu64, w->max_ulp);
    char where[112];
    snprintf(where, sizeof where, "%d/%s %s", w->worst_round, slot_text(v->slot, slot), index_text(&v->b, v->m.worst, at));
    printf("%10s %9.2e  %-18s %15.9g %15.9g  %s\n", ulp, v->m.rel_l2, where, v->a_worst, v->b_worst, v->ops);
}

/* Where a row stands: a rank's copy first, it may explain all others; then NaN. */
static int place_of(const rpl_value *v) { return is_copy(v) ? 2 : is_lost(v); }

/* By place_of. *closer as print_class. */
static void print_rows(const row *rows, size_t n, bool all, row *closer)
{
    size_t n_shown = 0;
    for (int place = 2; place >= 0; place--)
        for (size_t i = 0; i < n; i++) {
            if (place_of(rows[i].worst) != place) continue;
            if (n_shown == 0 && (!closer->worst || (place == 1 && place_of(closer->worst) < place))) *closer = rows[i];
            if (n_shown++ < FEW || all) print_row(&rows[i]);
        }
    if (n > FEW && !all) printf("%5s %zu more values (--all)\n", "", n - FEW);
}

/* Differences of one class in order of round and program, place_of before that: a row per value over all rounds, or, with
 * all, every single one. *closer (may hold an earlier class's) is the value to look at first. */
static err_code print_class(const rpl_diff *d, rpl_class cls, const char *title, row *closer, err *e)
{
    row *rows = NULL;
    size_t n_rows = 0, capacity = 0;
    if (!d->by_class[cls]) return ERR_OK;
    for (int32_t i = 0; i < d->n_rounds; i++)
        for (int32_t k = 0; k < d->round[i]->n_values; k++) {
            const rpl_value *v = &d->round[i]->value[k];
            size_t at = d->all ? n_rows : 0;
            if (v->cls != cls) continue;
            while (at < n_rows && strcmp(rows[at].worst->name, v->name) != 0) at++;
            void *array = rows;
            if (!mem_grow(&array, &capacity, n_rows + 1, sizeof *rows)) {
                free(rows);
                return err_set(e, ERR_NOMEM, "diff: no memory for the report");
            }
            rows = array;
            if (at == n_rows) rows[n_rows++] = (row){ 0 };
            add_to_row(&rows[at], v, d->round[i]->round);
        }
    printf("\n%s\n%5s %6s  %-18s %15s %10s %9s  %-18s %15s %15s  %s\n", title, "round", "rounds", "value",
           "differ", "max ulp", "rel L2", "worst", d->forced ? "computed" : "A", d->forced ? "recorded" : "B",
           "the ops it may lie in");
    print_rows(rows, n_rows, d->all, closer);
    free(rows);
    return ERR_OK;
}

static err_code print_inherited(const rpl_diff *d, row *closer, err *e)
{
    const rpl_value *first = NULL, *largest = NULL;
    int32_t first_round = 0, largest_round = 0;
    if (d->all) return print_class(d, RPL_CLASS_INHERITED, "inherited: their inputs differ already", closer, e);
    for (int32_t i = 0; i < d->n_rounds; i++)
        for (int32_t k = 0; k < d->round[i]->n_values; k++) {
            const rpl_value *v = &d->round[i]->value[k];
            if (v->cls != RPL_CLASS_INHERITED) continue;
            if (!first) first = v, first_round = d->round[i]->round;
            if (is_further(v, largest)) largest = v, largest_round = d->round[i]->round;
        }
    if (!first) return ERR_OK;
    printf("\ninherited  %" PRId64 " values, from round %d %s on; ", d->by_class[RPL_CLASS_INHERITED], first_round,
           first->name);
    if (is_lost(largest)) printf("NaN");
    else printf("largest rel L2 %.2e", largest->m.rel_l2);
    printf(": round %d %s\n", largest_round, largest->name);
    if (!closer->worst || (is_lost(largest) && !is_lost(closer->worst)))
        *closer = (row){ .worst = largest, .worst_round = largest_round };
    return ERR_OK;
}

static void print_missing(const rpl_diff *d)
{
    int64_t n = 0, count[RPL_STATE_COUNT] = { 0 };
    for (int32_t i = 0; i < d->n_rounds; i++)
        for (int32_t k = 0; k < d->round[i]->n_values; k++) {
            const rpl_value *v = &d->round[i]->value[k];
            char slot[16], a[96] = "-", b[96] = "-";
            if (v->cls != RPL_CLASS_NONE || v->state == RPL_STATE_REDACTED) continue;
            count[v->state]++;
            if (n == 0) printf("\n%-10s %5s %4s  %-20s %-12s\n", "no pair", "round", "slot", "value", "why");
            if (n++ >= FEW && !d->all) continue;
            if (v->a.ndim >= 0) fmt_tensor_text(&v->a, a, sizeof a);
            if (v->b.ndim >= 0) fmt_tensor_text(&v->b, b, sizeof b);
            printf("%-10s %5d %4s  %-20s %-12s A %s  B %s%s%s\n", "", d->round[i]->round, slot_text(v->slot, slot), v->name,
                   rpl_state_text(v->state), a, b, v->why[0] ? "  " : "", v->why);
        }
    if (n > FEW && !d->all) {
        printf("%-10s all:", "");
        const char *comma = "";
        for (int s = 0; s < RPL_STATE_COUNT; s++) {
            if (!count[s]) continue;
            printf("%s %" PRId64 " %s", comma, count[s], rpl_state_text((rpl_state)s));
            comma = ",";
        }
        printf(" (--all lists them)\n");
    }
}

/* Ranks that disagree where an input differs already only follow: they are counted, not shown. */
static void print_findings(const rpl_diff *d)
{
    int64_t n = 0, n_shown = 0;
    for (int32_t i = 0; i < d->n_rounds; i++)
        for (int32_t k = 0; k < d->round[i]->n_values; k++) {
            const rpl_value *v = &d->round[i]->value[k];
            for (int bit = 0; bit <= RPL_FINDING_COUNT; bit++) { /* the last one: a difference, beyond all others */
                char slot[16];
                bool nan = bit == RPL_FINDING_COUNT;
                if (nan ? !is_lost(v) : !(v->m.findings >> bit & 1)) continue;
                if (n++ == 0) printf("\nfindings\n");
                bool follows = !nan && 1 << bit == RPL_FIND_RANKS_DIFFER && v->cls == RPL_CLASS_INHERITED;
                if (d->all || (!follows && n_shown < FEW)) {
                    n_shown++;
                    printf("%-10s %5d %4s  %-20s %s\n", "finding", d->round[i]->round, slot_text(v->slot, slot), v->name,
                           nan ? "NaN against a number" : rpl_finding_text((rpl_finding)(1 << bit)));
                }
            }
        }
    if (n > n_shown) printf("%-10s %" PRId64 " more (--all)\n", "", n - n_shown);
    if (d->n_elems == 0) printf("\nfinding    nothing compared: not one element was there to compare\n");
}

static void print_drafts(const rpl_diff *d)
{
    int64_t n = 0;
    if (d->n_blocks == d->n_blocks_exact) return; /* the first line says so */
    printf("\ndrafts     %" PRId64 " of %" PRId64 " blocks exact\n", d->n_blocks_exact, d->n_blocks);
    for (int32_t i = 0; i < d->n_rounds; i++)
        for (int32_t k = 0; k < d->round[i]->n_drafts; k++) {
            const rpl_draft *b = &d->round[i]->draft[k];
            char slot[16], margin[64] = "margin not recorded";
            if (b->exact) continue;
            if (n++ >= FEW && !d->all) continue;
            if (b->token_b < 0) snprintf(margin, sizeof margin, "same tokens, other length");
            else if (!isnan(b->margin_b))
                snprintf(margin, sizeof margin, "B's margin there %.4g, over A's token %.4g", b->margin_b, b->gap_b);
            printf("%-10s %5d %4s  %d of %d tokens alike, then A %d, B %d; %s\n", "", d->round[i]->round,
                   slot_text(b->slot, slot), b->n_same, b->n_out, b->token_a, b->token_b, margin);
        }
    if (n > FEW && !d->all) printf("%-10s %" PRId64 " more (--all)\n", "", n - FEW);
}

/* Of findings alone there is no row. */
static void find_closer(const rpl_diff *d, row *closer)
{
    for (int32_t i = 0; i < d->n_rounds; i++)
        for (int32_t k = 0; k < d->round[i]->n_values && !closer->worst; k++)
            if (d->round[i]->value[k].m.findings)
                *closer = (row){ .worst = &d->round[i]->value[k], .worst_round = d->round[i]->round };
}

/* "T:3/-/s0.attn_out[0,17]", as `show` and `browse --at` take it: the worst element of the first row that was printed. */
static void print_closer(const rpl_diff *d, const row *closer)
{
    int32_t round = closer->worst_round;
    char slot[16], at[80] = "";
    const rpl_value *v = closer->worst;
    if (!v) return;
    bool in_b = v->b.ndim >= 0;
    if (v->m.worst >= 0) index_text(&v->b, v->m.worst, at);
    printf("\nlook closer: sparktape show '%s:%d/%s/%s%s'\n", fmt_tape_path(in_b ? d->b : d->a), round,
           slot_text(v->slot, slot), v->name, at);
    printf("             sparktape browse %s %s\n", fmt_tape_path(d->a), fmt_tape_path(d->b));
    printf("is it legal? sparktape certify %s MODEL\n", fmt_tape_path(d->b));
}

static void print_verdict(const rpl_diff *d)
{
    printf("%s  ", rpl_diff_verdict(d));
    if (d->n_differ)
        printf("%" PRId64 " of %" PRId64 " values differ in %d of %d rounds: %" PRId64 " origins, %" PRId64
               " inherited",
               d->n_differ, d->n_values, d->rounds_differ, d->n_rounds, d->by_class[RPL_CLASS_ORIGIN],
               d->by_class[RPL_CLASS_INHERITED]);
    else printf("%" PRId64 " values, %" PRId64 " elements equal in %d rounds", d->n_equal, d->n_elems, d->n_rounds);
    if (d->by_class[RPL_CLASS_INPUT]) printf(", %" PRId64 " inputs", d->by_class[RPL_CLASS_INPUT]);
    if (d->by_class[RPL_CLASS_UNPLACED]) printf(", %" PRId64 " unplaced", d->by_class[RPL_CLASS_UNPLACED]);
    if (d->n_one_sided)
        printf(", %" PRId64 " without a pair%s", d->n_one_sided, d->alike ? " (both should hold them)" : "");
    int64_t unlike = d->by_class[RPL_CLASS_NONE] - d->n_one_sided - d->n_redacted;
    if (unlike > 0) printf(", %" PRId64 " of another kind", unlike);
    if (d->n_blocks) printf("; drafts %" PRId64 "/%" PRId64 " blocks exact", d->n_blocks_exact, d->n_blocks);
    int64_t findings = d->n_findings + (d->n_elems == 0);
    if (findings) printf("; %" PRId64 " finding%s", findings, findings == 1 ? "" : "s");
    printf("\n");
}

static err_code print_text(const rpl_diff *d, err *e)
{
    print_verdict(d);
    print_run('A', d->a);
    print_run('B', d->b);
    print_redacted(d);
    const rpl_coverage coverage = coverage_of(d);
    rpl_coverage_print(&coverage);
    if (d->forced) printf("forced: A's arm run on every op's inputs as B recorded them, against B's outputs\n");
    print_identity(d);
    print_findings(d);
    row closer = { 0 };
    TRY(print_class(d, RPL_CLASS_ORIGIN, d->forced ? "origins: the op alone, on B's inputs, gives another value"
                                                   : "origins: everything they read is the same on both sides",
                    &closer, e));
    TRY(print_class(d, RPL_CLASS_INPUT, "inputs: the two runs were asked different things", &closer, e));
    TRY(print_class(d, RPL_CLASS_UNPLACED, "unplaced: what they were made from is not recorded on both sides", &closer, e));
    TRY(print_inherited(d, &closer, e));
    print_missing(d);
    print_drafts(d);
    find_closer(d, &closer);
    print_closer(d, &closer);
    return ERR_OK;
}

err_code rpl_diff_print(const rpl_diff *d, err *e)
{
    return d->json ? rpl_diff_print_json(d, e) : print_text(d, e);
}
