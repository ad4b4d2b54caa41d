/* Acceptance as text and as JSON. */
#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "replay/accept.h"

static const char *arm_name(const rpl_accept_run *r) { return r->arm ? r->arm->arm->name : "recorded"; }

/* Backend and rank count where they are not the plain ones; the arm's default accumulation and exact combine go unsaid. */
static const char *run_name(const rpl_accept_run *r, char buf[96])
{
    const eng_options *o = r->arm;
    size_t n = (size_t)snprintf(buf, 96, "%s", arm_name(r));
    if (o && o->backend == ENG_BACKEND_CUDA) n += (size_t)snprintf(buf + n, 96 - n, " cuda");
    if (o && o->n_ranks > 1) n += (size_t)snprintf(buf + n, 96 - n, " tp%d", o->n_ranks);
    if (o && o->combine == ENG_COMBINE_FUSED) snprintf(buf + n, 96 - n, " fused");
    return buf;
}

/* "  1.810 +- 0.052", as a column. */
static void print_mean(const rpl_mean *m, bool sign)
{
    char text[48] = "-";
    if (m->n) snprintf(text, sizeof text, sign ? "%+.3f" : "%.3f", m->mean);
    printf("%9s", text);
    if (m->n && !isnan(m->error)) printf(" +- %.3f", m->error);
    else printf("%9s", "");
}

static void print_run(const rpl_acceptance *a, const rpl_accept_run *r)
{
    char name[96], exact[32] = "-";
    if (r->missing[0]) {
        printf("%-30s %c    not run: the tape lacks %s\n", run_name(r, name), r->windows, r->missing);
        return;
    }
    if (r->n_blocks && r->arm) snprintf(exact, sizeof exact, "%.1f%%", 100 * (double)r->n_exact / (double)r->n_blocks);
    printf("%-30s %c %8s", run_name(r, name), r->windows ? r->windows : '-', exact);
    print_mean(&r->accepted, false);
    print_mean(&r->versus, true);
    if (a->n_target_logits) {
        print_mean(&r->p_target, false);
        print_mean(&r->p_versus, true);
    }
    printf("\n");
}

const char *rpl_accept_verdict(const rpl_accept_report *r)
{
    return rpl_coverage_verdict(&r->coverage, r->a->n_rounds_all ? "PASS" : NULL);
}

void rpl_accept_print(const rpl_accept_report *r)
{
    const rpl_acceptance *a = r->a;
    char name[96];
    const char *verdict = rpl_accept_verdict(r);
    if (strcmp(verdict, "PASS") != 0) printf("%s  ", verdict);
    printf("%s: %" PRId64 " blocks", r->tape, a->n_mine);
    if (r->coverage.n_shards > 1) printf(" (part %d of %d)", r->coverage.shard, r->coverage.n_shards);
    printf(", %" PRId64 " with the target's own tokens for all their drafts\n", a->n_determined);
    rpl_coverage_print(&r->coverage);
    if (rpl_coverage_empty(&r->coverage)) return;
    printf("%-30s %s %8s %17s %17s", "arm", "w", "exact", "accepted", "against control");
    if (a->n_target_logits) printf(" %17s %17s", "temperature 1", "against control");
    printf("\n");
    for (int32_t i = 0; i < a->n_runs; i++) print_run(a, &a->run[i]);
    printf("w: windows, A captured main_x, B main_x from the taps; exact: blocks with the recorded drafts; accepted:\n"
           "leading drafts a block that are the target's tokens; control: %s, paired\n",
           run_name(&a->run[1 + 2 * a->control], name));
    if (a->synthetic)
        printf("synthetic traffic: no target chose these tokens, and those taken are the recorded drafts, which favours\n"
               "whatever drafts like them. `accepted` is no quality here: read `exact`, and `against control` between\n"
               "arms of which none was recorded\n");
    if (a->n_determined == 0)
        printf("accepted: no block tells the target's tokens: no slot's next draft follows one insert of the rows taken\n");
    if (a->n_short)
        printf("of %" PRId64 " blocks fewer drafts were taken than were the target's tokens\n", a->n_short);
    if (a->n_target_logits == 0)
        printf("at temperature 1: not estimated, the tape has no target.logits; `accepted` is then a sample of it\n");
    if (a->restored.rounds_left_out)
        printf("drafts of %d rounds left out: their windows are not on the tape\n", a->restored.rounds_left_out);
}

/* ---- JSON ---- */

json_t *rpl_mean_json(const rpl_mean *m)
{
    if (m->n == 0) return json_null();
    return json_pack("{s:I, s:o, s:o}", "n", (json_int_t)m->n, "mean", fmt_json_real(m->mean), "error",
                     fmt_json_real(m->error));
}

/* Determined blocks of this part that run r reached: those that the means are of. */
static bool counts(const rpl_acceptance *a, const rpl_accept_run *r, size_t k)
{
    return a->block[k].mine && a->block[k].determined && !r->missing[0] && k < r->n_reached;
}

/* How many blocks had their 1st, 2nd, ... draft accepted. */
static json_t *accepted_at_json(const rpl_acceptance *a, const rpl_accept_run *r)
{
    json_int_t n[ENG_BLOCK_MAX] = { 0 };
    int32_t most = 0;
    json_t *list = json_array();
    for (size_t k = 0; k < a->n_blocks; k++) {
        if (!counts(a, r, k)) continue;
        if (a->block[k].n_out > most) most = a->block[k].n_out;
        for (int32_t i = rpl_accept_leading(&a->block[k], r->drafts + k * ENG_BLOCK_MAX); i > 0; i--) n[i - 1]++;
    }
    for (int32_t i = 0; i < most; i++) fmt_json_add(&list, json_integer(n[i]));
    return list;
}

/* What the means are made of, so that those of several parts can be made again: of each determined block the accepted
 * length, and the sum of p_target, of every run; null where the run did not come to it. */
static json_t *blocks_json(const rpl_acceptance *a)
{
    json_t *list = json_array();
    for (size_t k = 0; k < a->n_blocks; k++) {
        const rpl_block *b = &a->block[k];
        if (!b->mine || !b->determined) continue;
        json_t *accepted = json_array(), *p = json_array();
        for (int32_t i = 0; i < a->n_runs; i++) {
            const rpl_accept_run *r = &a->run[i];
            bool reached = counts(a, r, k);
            int32_t leading = rpl_accept_leading(b, r->drafts + k * ENG_BLOCK_MAX);
            fmt_json_add(&accepted, reached ? json_integer(leading) : json_null());
            fmt_json_add(&p, reached && !isnan(r->p[k]) ? json_real(r->p[k]) : json_null());
        }
        fmt_json_add(&list, json_pack("{s:i, s:i, s:o, s:o}", "round", (int)b->round, "slot", (int)b->slot, "accepted",
                                      accepted, "p_target", p));
    }
    return list;
}

static json_t *run_json(const rpl_acceptance *a, const rpl_accept_run *r)
{
    char name[96], windows[2] = { r->windows, 0 };
    json_t *o = json_pack("{s:s, s:s, s:s?}", "arm", arm_name(r), "run", run_name(r, name), "windows",
                          r->windows ? windows : NULL);
    if (r->missing[0]) {
        fmt_json_put(&o, "missing", json_string(r->missing));
        return o;
    }
    fmt_json_put(&o, "blocks", json_integer(r->n_blocks));
    fmt_json_put(&o, "blocks_exact", json_integer(r->n_exact));
    fmt_json_put(&o, "tokens", json_integer(r->n_tokens));
    fmt_json_put(&o, "tokens_equal", json_integer(r->n_tokens_equal));
    fmt_json_put(&o, "accepted", rpl_mean_json(&r->accepted));
    fmt_json_put(&o, "accepted_at", accepted_at_json(a, r));
    fmt_json_put(&o, "versus_control", rpl_mean_json(&r->versus));
    fmt_json_put(&o, "p_target", rpl_mean_json(&r->p_target));
    fmt_json_put(&o, "p_target_versus_control", rpl_mean_json(&r->p_versus));
    return o;
}

json_t *rpl_accept_json(const rpl_accept_report *r)
{
    const rpl_acceptance *a = r->a;
    json_t *runs = json_array();
    for (int32_t i = 0; i < a->n_runs; i++) fmt_json_add(&runs, run_json(a, &a->run[i]));
    json_t *o = json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:i, s:o, s:s, s:s, s:o}", "schema", 1,
                          "verdict", rpl_accept_verdict(r), "tape", r->tape, "model", r->model, "blocks",
                          (json_int_t)a->n_mine, "determined", (json_int_t)a->n_determined, "short", (json_int_t)a->n_short,
                          "target_logits", (json_int_t)a->n_target_logits, "control",
                          arm_name(&a->run[1 + 2 * a->control]), "rounds_left_out", (int)a->restored.rounds_left_out,
                          "runs", runs, "traffic", a->synthetic ? "synthetic" : "unmarked", "type", "acceptance",
                          "block_list", blocks_json(a));
    return rpl_coverage_json(&r->coverage, o);
}
