#include "replay/feed.h"

#include "base/mem.h"

struct rpl_feed {
    const fmt_tape *tape;
    const cap_redact *redact;
    rpl_windows windows;
    cap_rounds *rounds;
    int32_t *slots;      /* engine slots of the round's inserts, then of its draft */
    const bf16 **main_x; /* per insert */
    int32_t anchors[ENG_BATCH_MAX];
    size_t slots_capacity, main_x_capacity;
};

err_code rpl_feed_open(const fmt_tape *t, const eng_config *c, rpl_windows windows, const cap_redact *redact,
                       rpl_feed **out, err *e)
{
    rpl_feed *f = *out = mem_alloc(1, sizeof *f);
    if (!f) return err_set(e, ERR_NOMEM, "%s: no memory for its rounds", fmt_tape_path(t));
    *f = (rpl_feed){ .tape = t, .redact = redact, .windows = windows };
    err_code rc = cap_rounds_open_chosen(t, c, &f->rounds, e);
    if (rc == ERR_OK) return ERR_OK;
    rpl_feed_close(f);
    *out = NULL;
    return rc;
}

void rpl_feed_close(rpl_feed *f)
{
    if (!f) return;
    cap_rounds_close(f->rounds);
    free(f->slots);
    free(f->main_x);
    free(f);
}

int32_t rpl_feed_count(const rpl_feed *f) { return cap_rounds_count(f->rounds); }
int32_t rpl_feed_slots(const rpl_feed *f) { return cap_rounds_slots(f->rounds); }

err_code rpl_feed_restore(rpl_feed *f, eng_engine *g, rpl_replay_report *report, rpl_restore **out, err *e)
{
    return rpl_restore_open(f->tape, f->rounds, g, report, out, e);
}

static err_code make_room(rpl_feed *f, const eng_round *r, err *e)
{
    void *slots = f->slots, *main_x = f->main_x;
    bool fine = mem_grow(&slots, &f->slots_capacity, (size_t)r->n_inserts + (size_t)r->batch + 1, sizeof *f->slots);
    f->slots = slots;
    fine = mem_grow(&main_x, &f->main_x_capacity, (size_t)r->n_inserts + 1, sizeof *f->main_x) && fine;
    f->main_x = main_x;
    return fine ? ERR_OK : err_set(e, ERR_NOMEM, "replay: no memory for round %d", r->round);
}

err_code rpl_feed_round(rpl_feed *f, int32_t i, rpl_fed *out, err *e)
{
    const bf16 *const *recorded;
    eng_round r;
    TRY(cap_rounds_at(f->rounds, i, &r, &recorded, e));
    TRY(make_room(f, &r, e));
    for (int32_t k = 0; k < r.n_inserts; k++) {
        const eng_insert_event *in = &r.inserts[k];
        rpl_windows w = f->windows;
        if (w == RPL_WINDOWS_AUTO) w = in->taps ? RPL_WINDOWS_B : RPL_WINDOWS_A;
        if (w == RPL_WINDOWS_A ? !recorded[k] : !in->taps)
            return err_set(e, ERR_INPUT, "%s: round %d slot %d: found no %s, wanted by --windows %s",
                           fmt_tape_path(f->tape), r.round, in->slot, w == RPL_WINDOWS_A ? "main_x" : "taps",
                           w == RPL_WINDOWS_A ? "A" : "B");
        f->slots[k] = cap_rounds_dense(f->rounds, in->slot);
        f->main_x[k] = w == RPL_WINDOWS_A ? recorded[k] : NULL;
    }
    for (int32_t b = 0; b < r.batch; b++) {
        f->slots[r.n_inserts + b] = cap_rounds_dense(f->rounds, r.slots[b]);
        f->anchors[b] = cap_redact_reveal(f->redact, r.anchors[b]);
    }
    r.anchors = f->anchors;
    *out = (rpl_fed){ r, f->slots, f->slots + r.n_inserts, f->main_x };
    return ERR_OK;
}
