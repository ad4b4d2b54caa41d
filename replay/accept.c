#include "replay/accept.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "capture/redact.h"

void rpl_acceptance_fini(rpl_acceptance *a)
{
    for (int32_t r = 0; r < a->n_runs; r++) {
        free(a->run[r].drafts);
        free(a->run[r].p);
    }
    free(a->run);
    free(a->block);
    rpl_replay_report_fini(&a->restored);
    *a = (rpl_acceptance){ 0 };
}

/* One arm's run under way. */
typedef struct job {
    rpl_feed *feed;
    eng_engine *engine;
    rpl_restore *restore;
    rpl_accept_run *run;
    const rpl_acceptance *a;
    size_t block; /* next one to draft */
} job;

static err_code run_round(job *j, int32_t i, err *e)
{
    rpl_fed fed;
    int32_t drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    TRY(rpl_feed_round(j->feed, i, &fed, e));
    const eng_round *r = &fed.in;
    TRY(rpl_restore_round(j->restore, i, r->round, e));
    for (int32_t k = 0; k < r->n_inserts; k++) {
        const eng_insert_event *in = &r->inserts[k];
        int32_t slot = fed.slots_of_inserts[k];
        TRY(fed.main_x[k] ? eng_insert_main_x(j->engine, slot, fed.main_x[k], in->pos, in->rows, NULL, e)
                          : eng_insert(j->engine, slot, in->taps, in->pos, in->rows, NULL, e));
    }
    if (r->batch == 0) return ERR_OK;
    size_t first = j->block;
    j->block += (size_t)r->batch;
    if (!j->a->block[first].mine) return ERR_OK;
    TRY(eng_draft(j->engine, r->batch, fed.slots_of_draft, r->anchors, r->pos, r->n_out, drafts, confidence, NULL, e));
    for (int32_t b = 0; b < r->batch; b++)
        memcpy(j->run->drafts + (first + (size_t)b) * ENG_BLOCK_MAX, drafts + (ptrdiff_t)b * r->n_out,
               (size_t)r->n_out * sizeof *drafts);
    return ERR_OK;
}

/* Runs an arm over all rounds, into run->drafts. */
static err_code run_arm(const fmt_tape *t, const eng_weights *w, const rpl_accept_options *o, rpl_acceptance *a,
                        rpl_accept_run *run, err *e)
{
    job j = { .run = run, .a = a };
    progress p;
    char what[64];
    rpl_replay_report_fini(&a->restored);
    rpl_windows windows = run->windows == 'A' ? RPL_WINDOWS_A : RPL_WINDOWS_B;
    err_code rc = rpl_feed_open(t, eng_weights_config(w), windows, NULL, &j.feed, e);
    if (rc == ERR_OK) rc = eng_open(w, run->arm, rpl_feed_slots(j.feed), ENG_LEVEL_IO, o->quiet, &j.engine, e);
    if (rc == ERR_OK) rc = rpl_feed_restore(j.feed, j.engine, &a->restored, &j.restore, e);
    snprintf(what, sizeof what, "%s, windows %c", run->arm->arm->name, run->windows);
    progress_begin(&p, what, rc == ERR_OK ? (uint64_t)rpl_feed_count(j.feed) : 0, o->quiet);
    for (int32_t i = 0; rc == ERR_OK && i < rpl_feed_count(j.feed) && !interrupt_seen(); i++) {
        rc = run_round(&j, i, e);
        run->n_rounds += i % o->n_shards == o->shard - 1;
        progress_add(&p, 1);
    }
    progress_end(&p);
    run->n_reached = j.block;
    rpl_restore_close(j.restore);
    eng_close(j.engine);
    rpl_feed_close(j.feed);
    return rc;
}

/* The recorded drafts, then each arm in windows A and B. */
static err_code make_runs(const rpl_accept_options *o, bool all_taps, bool all_main_x, rpl_acceptance *a, err *e)
{
    size_t n = a->n_blocks;
    a->control = o->control;
    a->run = mem_alloc((size_t)o->n_arms * 2 + 1, sizeof *a->run);
    if (!a->run) return err_set(e, ERR_NOMEM, "accept: no memory");
    for (a->n_runs = 0; a->n_runs < o->n_arms * 2 + 1;) {
        rpl_accept_run *run = &a->run[a->n_runs];
        if (a->n_runs > 0) {
            run->arm = &o->arm[(a->n_runs - 1) / 2];
            run->windows = a->n_runs % 2 ? 'A' : 'B';
        }
        if (run->windows == 'A' && !all_main_x) snprintf(run->missing, sizeof run->missing, "main_x of every insert");
        if (run->windows == 'B' && !all_taps) snprintf(run->missing, sizeof run->missing, "taps of every insert");
        a->n_runs++;
        run->drafts = mem_alloc(n * ENG_BLOCK_MAX + 1, sizeof *run->drafts);
        run->p = mem_alloc(n + 1, sizeof *run->p);
        if (!run->drafts || !run->p) return err_set(e, ERR_NOMEM, "accept: no memory for %zu blocks", n);
        for (size_t i = 0; i < n * ENG_BLOCK_MAX; i++) run->drafts[i] = -1;
    }
    a->run[0].n_reached = n;
    for (size_t k = 0; k < n; k++)
        if (a->block[k].has_drafts)
            memcpy(a->run[0].drafts + k * ENG_BLOCK_MAX, a->block[k].drafts, sizeof a->block[k].drafts);
    return ERR_OK;
}

err_code rpl_accept_tape(const fmt_tape *t, const eng_weights *w, const rpl_accept_options *o, rpl_acceptance *out, err *e)
{
    cap_rounds *rounds;
    bool all_taps, all_main_x;
    if (cap_redact_key_of(t))
        return err_set(e, ERR_INPUT, "%s: redacted (key %s): its tokens are not the model's, nothing to draft",
                       fmt_tape_path(t), cap_redact_key_of(t));
    out->synthetic = cap_rounds_synthetic(t);
    TRY(cap_rounds_open_chosen(t, eng_weights_config(w), &rounds, e));
    err_code rc = rpl_accept_blocks(t, rounds, o, out, &all_taps, &all_main_x, e);
    cap_rounds_close(rounds);
    if (rc == ERR_OK) rc = make_runs(o, all_taps, all_main_x, out, e);
    out->n_rounds = out->n_rounds_wanted;
    for (int32_t r = 1; rc == ERR_OK && r < out->n_runs && out->n_rounds_wanted; r++) {
        rpl_accept_run *run = &out->run[r];
        if (run->missing[0]) continue;
        rc = run_arm(t, w, o, out, run, e);
        if (run->n_rounds < out->n_rounds) out->n_rounds = run->n_rounds;
    }
    out->interrupted = interrupt_seen();
    if (rc == ERR_OK) rc = rpl_accept_probabilities(t, eng_weights_config(w), out, e);
    if (rc == ERR_OK) rpl_accept_sum(out);
    return rc;
}
