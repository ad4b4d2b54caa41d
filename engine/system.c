#include "engine/system.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/footprint.h"

__attribute__((format(printf, 2, 3))) static void against(eng_way *way, const char *format, ...)
{
    va_list ap;
    if (way->why[0]) return; /* the first reason stands */
    va_start(ap, format);
    vsnprintf(way->why, sizeof way->why, format, ap);
    va_end(ap);
}

static void against_all(eng_system_arm *a, const char *why)
{
    eng_way *all[] = { &a->cpu, &a->card, &a->nccl, &a->emulated };
    for (size_t i = 0; i < COUNT_OF(all); i++) against(all[i], "%s", why);
}

static double gib(uint64_t bytes) { return (double)bytes / 0x1p30; }

static void fit(eng_way *way, const char *where, uint64_t bytes, uint64_t free_bytes)
{
    if (bytes > free_bytes) against(way, "%.1f GiB, %s has %.1f free", gib(bytes), where, gib(free_bytes));
}

/* The largest rank. */
static err_code rank_bytes(const eng_config *c, const eng_arm *arm, const eng_footprint_for *f, uint64_t *out, err *e)
{
    *out = 0;
    for (int32_t r = 0; r < f->n_ranks; r++) {
        eng_footprint rank;
        TRY(eng_footprint_of(c, arm, f, r, &rank, e));
        if (rank.total_bytes > *out) *out = rank.total_bytes;
    }
    return ERR_OK;
}

err_code eng_system_arm_of(const eng_config *c, const eng_weights *w, const eng_arm *arm, int64_t positions, int32_t slots,
                           uint64_t memory_bytes, const eng_cards *cards, eng_system_arm *out, err *e)
{
    const eng_reps reps = eng_arm_reps(arm);
    err why = { 0 };
    *out = (eng_system_arm){ .arm = arm };
    TRY(rank_bytes(c, arm, &(eng_footprint_for){ 1, positions, slots, false, false }, &out->one_bytes, e));
    err_code rc = rank_bytes(c, arm, &(eng_footprint_for){ 2, positions, slots, false, false }, &out->two_bytes, &why);
    if (rc == ERR_NOMEM) return err_set(e, rc, "%s", why.msg);
    if (rc == ERR_OK && arm->unsharded) rc = err_set(&why, ERR_ARG, "one rank only");
    if (rc != ERR_OK) {
        against(&out->nccl, "%s", why.msg);
        against(&out->emulated, "%s", why.msg);
    }
    rc = w ? eng_weights_need(w, &reps, &why) : ERR_OK;
    if (rc == ERR_NOMEM) return err_set(e, rc, "%s", why.msg);
    if (rc != ERR_OK) against_all(out, why.msg);

    fit(&out->cpu, "memory", out->one_bytes, memory_bytes);
    eng_way *on_cards[] = { &out->card, &out->nccl, &out->emulated };
    for (size_t i = 0; i < COUNT_OF(on_cards); i++) {
        if (arm->unsharded) against(on_cards[i], "the processor only");
        if (!cards->built) against(on_cards[i], "built without CUDA");
        if (cards->n == 0) against(on_cards[i], "no card");
    }
    if (cards->n < 2) against(&out->nccl, "one card, wanted 2");
    if (strcmp(cards->nccl, "none") == 0) against(&out->nccl, "built without NCCL");
    fit(&out->card, "card 0", out->one_bytes, cards->card[0].memory_free_bytes);
    fit(&out->emulated, "card 0", 2 * out->two_bytes, cards->card[0].memory_free_bytes);
    fit(&out->nccl, "card 0", out->two_bytes, cards->card[0].memory_free_bytes);
    fit(&out->nccl, "card 1", out->two_bytes, cards->card[1].memory_free_bytes);
    return ERR_OK;
}
