/* An attribution as text and as JSON. */
#include "replay/attribute.h"
#include "replay/source.h"

#include <inttypes.h>
#include <math.h>

#include "replay/inject.h"

static const char *const KINDS[] = { "reference", "arm", "away", "appear", "only" };

/* ---- text ---- */

static const char *number(double v, char buf[24])
{
    if (isinf(v)) snprintf(buf, 24, "inf");
    else snprintf(buf, 24, v == floor(v) && v < 1e6 ? "%.0f" : "%.4g", v);
    return buf;
}

void rpl_attribution_begin(const rpl_attribution *a)
{
    char text[64];
    printf("%-4s  %-76s %12s\n", "try", "who makes the ops", rpl_metric_text(&a->metric, text));
}

void rpl_attribution_print_try(const rpl_attribution *a, const rpl_try *t)
{
    char who[RPL_TRY_TEXT + 2 * RPL_SIDE_TEXT + 32], figure[24];
    switch (t->kind) {
    case RPL_TRY_REFERENCE: snprintf(who, sizeof who, "%s alone", a->reference); break;
    case RPL_TRY_ARM: snprintf(who, sizeof who, "%s alone", a->arm); break;
    case RPL_TRY_AWAY: snprintf(who, sizeof who, "%s, by %s %s", a->arm, a->reference, t->text); break;
    case RPL_TRY_APPEAR: snprintf(who, sizeof who, "%s, by %s %s", a->reference, a->arm, t->text); break;
    case RPL_TRY_ONLY: snprintf(who, sizeof who, "%s, but %s", a->reference, t->text); break;
    }
    printf("%-4zu  %-76s %12s  %s\n", a->n_tries, who, number(t->figure, figure), t->differs ? "differs" : "same");
    fflush(stdout);
}

/* The ops of a set, one a line, with the kinds that they are made of. */
static void print_set(const rpl_attribution *a, const rpl_found *f)
{
    for (int32_t i = 0; i < a->n_units; i++) {
        const rpl_unit *u = rpl_mix_unit(a->mix, i);
        char kinds[RPL_GROUP_TEXT];
        if (!f->unit[i]) continue;
        printf("    %-20s %s", u->name, rpl_group_text(rpl_mix_program(a->mix, u->step), u->group, kinds));
        if (a->deviations) printf(": %" PRId64 " elements are off", rpl_deviations_of_unit(a->deviations, i));
        printf("\n");
    }
}

/* "it goes away when mirror makes 2 ops (then 0):" */
static void print_found(const rpl_attribution *a, const rpl_found *f, const char *what, const char *by)
{
    char figure[24];
    if (!f->searched) return;
    printf("%s when %s makes %d op%s%s (then %s):\n", what, by, f->n, f->n == 1 ? "" : "s",
           f->minimal ? "" : ", the smallest set so far, not known to be minimal", number(f->figure, figure));
    print_set(a, f);
}

static bool same_set(const rpl_attribution *a)
{
    for (int32_t i = 0; i < a->n_units; i++)
        if (a->away.unit[i] != a->appear.unit[i]) return false;
    return true;
}

static void print_rounds(const rpl_attribution *a)
{
    if (a->n_wanted == a->n_rounds) return;
    printf("differs in %d of %d rounds:", a->n_wanted, a->n_rounds);
    for (int32_t i = 0, told = 0; i < rpl_mix_rounds(a->mix) && told < 10; i++)
        if (a->wanted[i]) printf("%s %d", told++ ? "," : "", rpl_mix_round_number(a->mix, i));
    printf("%s; the tries ran these\n", a->n_wanted > 10 ? " .." : "");
}

/* What the tape's own drafts say of the arm that ran. */
static void print_tape(const rpl_attribution *a)
{
    if (a->n_tape_other == 0 || a->metric.kind == RPL_METRIC_KL) return;
    if (a->deviations)
        printf("%" PRId64 " of the %" PRId64 " recorded tokens come of no op: inputs that are not on the tape, or values "
               "that it does not hold\n", a->n_tape_other, a->n_tape_tokens);
    else
        printf("%" PRId64 " of the %" PRId64 " recorded tokens are not what %s drafts here: attribute the tape itself "
               "(without --arm)\n", a->n_tape_other, a->n_tape_tokens, a->arm);
}

void rpl_attribution_print(const rpl_attribution *a)
{
    const char *verdict = rpl_attribution_verdict(a);
    char text[64], figure[24];
    if (!a->meter || a->n_tries == 0) {
        printf("%s: interrupted before anything was measured\n", verdict);
        return;
    }
    if (a->deviations && rpl_deviations_skipped(a->deviations))
        printf("%" PRId64 " recorded values were not compared: their inputs are not on the tape\n",
               rpl_deviations_skipped(a->deviations));
    print_tape(a);
    if (a->damaged)
        printf("the tape is damaged or unfinished: what is left of it was looked at; sparktape recover T -o OUT makes a "
               "whole one of that\n");
    if (strcmp(verdict, "INCOMPLETE") == 0) {
        printf("%s: nothing was compared: no op's value is on the tape; wanted one recorded with --level deep\n", verdict);
        return;
    }
    if (a->tried[0].kind == RPL_TRY_ONLY) {
        char limit[24];
        printf("%s: %s %s, a difference above %s\n", verdict, rpl_metric_text(&a->metric, text),
               number(a->arm_figure, figure), number(a->metric.limit, limit));
        return;
    }
    print_rounds(a);
    if (a->away.minimal && a->appear.minimal && same_set(a)) {
        char alone[24];
        printf("%d op%s make%s the difference: without %s, with %s alone:\n", a->away.n, a->away.n == 1 ? "" : "s",
               a->away.n == 1 ? "s" : "", number(a->away.figure, figure), number(a->appear.figure, alone));
        print_set(a, &a->away);
    } else {
        print_found(a, &a->away, "it goes away", a->reference);
        print_found(a, &a->appear, "it appears", a->arm);
    }
    if (a->interrupted) printf("%s: interrupted after %zu tries\n", verdict, a->n_tries);
    else if (a->spent) printf("%s: the %zu tries are spent (--tries)\n", verdict, a->n_tries);
    else if (a->stays)
        printf("%s: %s, and no set of ops makes it go away\n", verdict,
               a->differs ? "the reference alone differs too" : "no op makes the difference");
    else if (!a->differs && a->deviations && a->n_candidates)
        printf("%s: no difference to attribute; %d op%s of the tape off the reference, which %s does not show\n", verdict,
               a->n_candidates, a->n_candidates == 1 ? "" : "s", rpl_metric_text(&a->metric, text));
    else if (!a->differs) printf("%s: no difference to attribute\n", verdict);
    else printf("%s: %zu tries\n", verdict, a->n_tries);
}

/* ---- JSON ---- */

static json_t *set_json(const rpl_attribution *a, const rpl_found *f)
{
    if (!f->searched) return json_null();
    json_t *ops = json_array();
    for (int32_t i = 0; i < a->n_units; i++)
        if (f->unit[i]) fmt_json_add(&ops, json_string(rpl_mix_unit(a->mix, i)->name));
    return json_pack("{s:o, s:b, s:o}", "ops", ops, "minimal", f->minimal, "figure", fmt_json_real(f->figure));
}

static json_t *tries_json(const rpl_attribution *a)
{
    json_t *tries = json_array();
    for (size_t i = 0; i < a->n_tries; i++) {
        const rpl_try *t = &a->tried[i];
        fmt_json_add(&tries, json_pack("{s:s, s:s, s:i, s:o, s:b}", "kind", KINDS[t->kind], "ops", t->text, "n_ops",
                                       (int)t->n_units, "figure", fmt_json_real(t->figure), "differs", t->differs));
    }
    return tries;
}

static json_t *rounds_json(const rpl_attribution *a)
{
    json_t *rounds = json_array();
    for (int32_t i = 0; a->mix && i < rpl_mix_rounds(a->mix); i++)
        if (a->wanted[i]) fmt_json_add(&rounds, json_integer(rpl_mix_round_number(a->mix, i)));
    return rounds;
}

json_t *rpl_attribution_json(const rpl_attribution *a, const fmt_tape *t)
{
    char text[64];
    json_t *j = json_pack(
        "{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:b, s:i, s:o, s:o, s:o, s:o, s:b, s:b, s:I, s:I}", "schema", 1,
        "type", "attribution", "verdict", rpl_attribution_verdict(a), "tape", fmt_tape_path(t), "metric",
        rpl_metric_text(&a->metric, text), "arm", a->arm, "reference", a->reference, "limit",
        fmt_json_real(a->metric.limit), "reference_figure", fmt_json_real(a->reference_figure), "arm_figure",
        fmt_json_real(a->arm_figure), "differs", a->differs, "candidates", (int)a->n_candidates, "rounds", rounds_json(a),
        "away", set_json(a, &a->away), "appear", set_json(a, &a->appear), "tries", tries_json(a), "interrupted",
        a->interrupted, "damaged", a->damaged, "tape_tokens", (json_int_t)a->n_tape_tokens, "tape_tokens_other",
        (json_int_t)a->n_tape_other);
    return rpl_source_json(j, t);
}
