#include "replay/state_hash.h"

#include "base/mem.h"

err_code rpl_chain_init(rpl_chain *c, int32_t n, err *e)
{
    *c = (rpl_chain){ .n = n };
    c->state = mem_alloc((size_t)n + 1, sizeof *c->state);
    c->outputs = mem_alloc((size_t)n + 1, sizeof *c->outputs);
    if (c->state && c->outputs) return ERR_OK;
    rpl_chain_fini(c);
    return err_set(e, ERR_NOMEM, "no memory for the states of %d rounds", n);
}

void rpl_chain_fini(rpl_chain *c)
{
    free(c->state);
    free(c->outputs);
    *c = (rpl_chain){ 0 };
}

static void link_to(uint64_t *chain, int32_t i, uint64_t number)
{
    const uint64_t pair[2] = { i > 0 ? chain[i - 1] : 0, number };
    chain[i] = fmt_hash64(pair, sizeof pair);
}

err_code rpl_chain_state(rpl_chain *c, int32_t i, eng_engine *g, const int32_t *slots, int32_t n_slots, err *e)
{
    uint64_t number = (uint64_t)n_slots;
    for (int32_t k = 0; k < n_slots; k++) {
        uint64_t of_slot[2 + ENG_STAGES_MAX] = { number, (uint64_t)eng_slot_last(g, slots[k]) };
        for (int32_t stage = 0; stage < eng_config_of(g)->n_stages; stage++) {
            fmt_tensor t;
            TRY(eng_window(g, slots[k], stage, &t, e));
            of_slot[2 + stage] = fmt_hash64(t.data, fmt_tensor_bytes(&t));
        }
        number = fmt_hash64(of_slot, sizeof of_slot);
    }
    link_to(c->state, i, number);
    return ERR_OK;
}

void rpl_chain_outputs(rpl_chain *c, int32_t i, uint64_t drafts, uint64_t confidence)
{
    const uint64_t pair[2] = { drafts, confidence };
    link_to(c->outputs, i, fmt_hash64(pair, sizeof pair));
}

static uint64_t hash_of(const fmt_tape *t, int32_t round, const char *name)
{
    fmt_tape_key key = { round, FMT_TAPE_NO_SLOT, FMT_TAPE_NO_RANK, name };
    fmt_tape_record r;
    int64_t at = -1;
    for (; at < 0 && key.rank < ENG_RANKS_MAX; key.rank++) at = fmt_tape_find(t, &key);
    if (at < 0) return 0;
    fmt_tape_at(t, (size_t)at, &r);
    return r.hash;
}

err_code rpl_chain_of_tape(const fmt_tape *t, rpl_chain *out, err *e)
{
    const int32_t *rounds;
    TRY(rpl_chain_init(out, (int32_t)fmt_tape_rounds(t, &rounds), e));
    free(out->state);
    out->state = NULL;
    for (int32_t i = 0; i < out->n; i++)
        rpl_chain_outputs(out, i, hash_of(t, rounds[i], "drafts"), hash_of(t, rounds[i], "confidence"));
    return ERR_OK;
}

static bool same_state(const rpl_chain *a, const rpl_chain *b, int32_t i)
{
    return !a->state || !b->state || a->state[i] == b->state[i];
}

rpl_first rpl_chain_first(const rpl_chain *a, const rpl_chain *b)
{
    rpl_first f = { .round = -1 };
    int32_t lo = 0, hi = a->n < b->n ? a->n : b->n; /* the first differing round is in lo .. hi; hi: there is none */
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        f.checks++;
        if (same_state(a, b, mid) && a->outputs[mid] == b->outputs[mid]) lo = mid + 1;
        else hi = mid;
    }
    if (lo < a->n && lo < b->n) {
        f.round = lo;
        f.state = !same_state(a, b, lo);
    }
    return f;
}
