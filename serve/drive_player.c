#include "serve/drive_player.h"

#include <time.h>

#include "base/clock.h"

enum { FOREIGN_SLOT = SRV_SLOTS_MAX };

static err_code unexpected(const srv_reply *r, const char *wanted, err *e)
{
    if (r->refused == SRV_REFUSED_NONE)
        return err_set(e, ERR_INPUT, "%s %llu: found it done, wanted the refusal %s", srv_op_name(r->op),
                       (unsigned long long)r->id, wanted);
    return err_set(e, r->op == SRV_HELLO ? ERR_IDENTITY : ERR_INPUT, "%s %llu: found the refusal %s (%s), wanted %s",
                   srv_op_name(r->op), (unsigned long long)r->id, srv_refusal_name(r->refused), r->text, wanted);
}

/* Calls, and wants it done. */
static err_code done(srv_player *p, srv_request *q, srv_reply *r, err *e)
{
    TRY(srv_client_call(p->link, q, r, e));
    return r->refused == SRV_REFUSED_NONE ? ERR_OK : unexpected(r, "it done", e);
}

/* Takes a reply, and wants this refusal. */
static err_code refused(srv_player *p, srv_refusal why, err *e)
{
    srv_reply r;
    TRY(srv_client_receive(p->link, &r, e));
    err_code rc = r.refused == why ? ERR_OK : unexpected(&r, srv_refusal_name(why), e);
    if (rc == ERR_OK) p->n.refused[why]++;
    srv_reply_fini(&r);
    return rc;
}

/* ---- requests ---- */

static size_t place_of(const srv_part *part, int32_t slot)
{
    size_t i = 0;
    while (part->slot[i].slot != slot) i++;
    return i;
}

static int32_t *worker_slot(srv_player *p, int32_t slot) { return &p->slot[place_of(p->part, slot)]; }

static srv_request insert_of(srv_player *p, const eng_insert_event *in, const srv_welcome *w)
{
    uint64_t row_bytes = (uint64_t)w->n_taps * (uint64_t)w->dim * sizeof(bf16);
    return (srv_request){ .op = SRV_INSERT, .epoch = p->epoch,
                          .u.insert = { *worker_slot(p, in->slot), in->rows, in->pos[0], in->taps,
                                        (uint64_t)in->rows * row_bytes } };
}

static srv_request draft_of(srv_player *p, const srv_turn *t)
{
    srv_request q = { .op = SRV_DRAFT, .epoch = p->epoch, .u.draft = { .batch = t->batch, .n_out = t->n_out } };
    for (int32_t b = 0; b < t->batch; b++) {
        q.u.draft.slot[b] = *worker_slot(p, t->slot[b]);
        q.u.draft.anchor[b] = t->anchor[b];
        q.u.draft.pos[b] = t->pos[b];
    }
    return q;
}

err_code srv_player_hello(srv_player *p, srv_welcome *w, err *e)
{
    const srv_drive_setup *s = p->setup;
    srv_request q = { .op = SRV_HELLO,
                      .u.hello = { .version = SRV_VERSION, .positions = s->positions, .slots = p->part->slots_at_once } };
    srv_reply r;
    snprintf(q.u.hello.client, sizeof q.u.hello.client, "%s", p->name);
    snprintf(q.u.hello.checkpoint, sizeof q.u.hello.checkpoint, "%s", s->checkpoint);
    snprintf(q.u.hello.arm, sizeof q.u.hello.arm, "%s", s->arm);
    TRY(srv_client_open(s->address, s->key_file, s->timeout_ns, &p->link, e));
    srv_client_stay_awake(p->link, s->awake_ns);
    err_code rc = done(p, &q, &r, e);
    if (rc != ERR_OK) return rc;
    *w = r.u.welcome;
    p->epoch = w->epoch;
    return ERR_OK;
}

static err_code open_slot(srv_player *p, size_t place, err *e)
{
    srv_request q = { .op = SRV_OPEN, .epoch = p->epoch };
    srv_reply r;
    TRY(done(p, &q, &r, e));
    p->slot[place] = r.u.opened.slot;
    return ERR_OK;
}

static err_code release_slot(srv_player *p, size_t place, err *e)
{
    srv_request q = { .op = SRV_RELEASE, .epoch = p->epoch, .u.slot = p->slot[place] };
    srv_reply r;
    TRY(done(p, &q, &r, e));
    p->slot[place] = SRV_NOT_OPEN;
    return ERR_OK;
}

/* ---- answers ---- */

static void check(srv_player *p, const srv_turn *t, const srv_drafted *d)
{
    size_t n = (size_t)t->batch * (size_t)t->n_out;
    p->n.drafts += (uint64_t)t->batch;
    p->queue_ns = (uint64_t)(d->queue_us * 1e3);
    p->step_ns = (uint64_t)(d->step_us * 1e3);
    srv_histogram_add(&p->n.step, p->step_ns);
    if (!t->expected) return;
    p->n.checked += (uint64_t)t->batch;
    bool same = d->batch == t->batch && d->n_out == t->n_out && memcmp(d->drafts, t->drafts, n * sizeof *t->drafts) == 0 &&
                memcmp(d->confidence, t->confidence, n * sizeof *t->confidence) == 0;
    if (same) return;
    if (!p->n.mismatches++) {
        size_t i = 0;
        while (i + 1 < n && d->drafts[i] == t->drafts[i] &&
               memcmp(&d->confidence[i], &t->confidence[i], sizeof(float)) == 0)
            i++;
        snprintf(p->n.mismatch, sizeof p->n.mismatch,
                 "round %d slot %d position %zu: found draft %d (confidence %.9g), wanted %d (%.9g)", t->round,
                 t->slot[i / (size_t)t->n_out], i % (size_t)t->n_out, d->drafts[i], (double)d->confidence[i], t->drafts[i],
                 (double)t->confidence[i]);
    }
}

/* Takes the replies to a turn that was sent whole. */
static err_code take_turn(srv_player *p, const srv_turn *t, int32_t n_inserts, err *e)
{
    for (int32_t i = 0; i < n_inserts + (t->batch > 0); i++) {
        srv_reply r;
        TRY(srv_client_receive(p->link, &r, e));
        err_code rc = r.refused == SRV_REFUSED_NONE ? ERR_OK : unexpected(&r, "it done", e);
        if (rc == ERR_OK && r.op == SRV_DRAFT) check(p, t, &r.u.drafted);
        srv_reply_fini(&r);
        if (rc != ERR_OK) return rc;
    }
    return ERR_OK;
}

static err_code send_insert(srv_player *p, const eng_insert_event *in, const srv_welcome *w, err *e)
{
    srv_request q = insert_of(p, in, w);
    p->n.inserts++;
    p->n.rows += (uint64_t)in->rows;
    return srv_client_send(p->link, &q, e);
}

static err_code send_draft(srv_player *p, const srv_turn *t, err *e)
{
    if (!t->batch) return ERR_OK;
    srv_request q = draft_of(p, t);
    return srv_client_send(p->link, &q, e);
}

/* Sends all of a turn without waiting, then takes the answers. */
static err_code play(srv_player *p, const srv_turn *t, const srv_welcome *w, err *e)
{
    for (int32_t i = 0; i < t->n_inserts; i++) TRY(send_insert(p, &t->insert[i], w, e));
    TRY(send_draft(p, t, e));
    p->sent_ns = clock_ns();
    return take_turn(p, t, t->n_inserts, e);
}

/* The parts of a turn that began and ended then. */
static void add_parts(srv_player *p, const srv_turn *t, uint64_t begin_ns, uint64_t end_ns)
{
    if (!t->batch) return;
    uint64_t known = p->sent_ns - begin_ns + p->queue_ns + p->step_ns, took = end_ns - begin_ns;
    srv_histogram_add(&p->n.send, p->sent_ns - begin_ns);
    srv_histogram_add(&p->n.queue, p->queue_ns);
    srv_histogram_add(&p->n.rest, took > known ? took - known : 0);
}

/* ---- starting again ---- */

/* Inserts again what the slot had before turn `until`: from the oldest insert that still has a row in the window. */
static err_code refill(srv_player *p, size_t place, size_t until, const srv_welcome *w, err *e)
{
    const srv_part *part = p->part;
    int32_t slot = part->slot[place].slot, last = -1;
    for (size_t t = part->slot[place].first_turn; t < until; t++)
        for (int32_t i = 0; i < part->turn[t].n_inserts; i++) {
            const eng_insert_event *in = &part->turn[t].insert[i];
            if (in->slot == slot) last = in->pos[in->rows - 1];
        }
    for (size_t t = part->slot[place].first_turn; t < until; t++)
        for (int32_t i = 0; i < part->turn[t].n_inserts; i++) {
            const eng_insert_event *in = &part->turn[t].insert[i];
            if (in->slot != slot || in->pos[in->rows - 1] <= last - w->window) continue;
            srv_request q = insert_of(p, in, w);
            srv_reply r;
            p->n.inserts++;
            p->n.rows += (uint64_t)in->rows;
            TRY(done(p, &q, &r, e));
        }
    return ERR_OK;
}

/* A poisoned slot, made anew as it stands after turn `turn`'s inserts. */
static err_code renew_slot(srv_player *p, int32_t slot, size_t turn, const srv_welcome *w, err *e)
{
    size_t place = place_of(p->part, slot);
    p->n.recoveries++;
    TRY(release_slot(p, place, e));
    TRY(open_slot(p, place, e));
    return refill(p, place, turn + 1, w, e);
}

/* A lost session, made anew as it stood before turn `turn`. */
static err_code renew_session(srv_player *p, size_t turn, srv_welcome *w, err *e)
{
    p->n.recoveries++;
    p->link = NULL;
    TRY(srv_player_hello(p, w, e));
    for (size_t i = 0; i < p->part->n_slots; i++) {
        if (p->slot[i] == SRV_NOT_OPEN) continue;
        TRY(open_slot(p, i, e));
        TRY(refill(p, i, turn, w, e));
    }
    return ERR_OK;
}

/* ---- faults ---- */

/* Sends half of a turn's first frame. */
static err_code send_half(srv_player *p, const srv_turn *t, const srv_welcome *w, err *e)
{
    srv_request q = t->n_inserts ? insert_of(p, &t->insert[0], w) : draft_of(p, t);
    srv_buf b = { 0 };
    q.id = 1;
    err_code rc = srv_encode_request(&q, &b, e);
    if (rc == ERR_OK) rc = srv_client_send_raw(p->link, b.data, b.bytes / 2, e);
    srv_buf_fini(&b);
    return rc;
}

/* A request that belongs to somebody else: of another epoch, or on another's slot. */
static err_code send_strayed(srv_player *p, const srv_turn *t, const srv_welcome *w, srv_fault f, err *e)
{
    srv_request q = t->n_inserts ? insert_of(p, &t->insert[0], w) : draft_of(p, t);
    if (f == SRV_FAULT_EPOCH) q.epoch = p->epoch - 1;
    else if (q.op == SRV_INSERT) q.u.insert.slot = FOREIGN_SLOT;
    else q.u.draft.slot[0] = FOREIGN_SLOT;
    TRY(srv_client_send(p->link, &q, e));
    return refused(p, f == SRV_FAULT_EPOCH ? SRV_REFUSED_EPOCH : SRV_REFUSED_SLOT, e);
}

/* The insert whose slot the turn drafts too, -1: none. */
static int32_t drafted_insert(const srv_turn *t)
{
    for (int32_t i = 0; i < t->n_inserts; i++)
        for (int32_t b = 0; b < t->batch; b++)
            if (t->insert[i].slot == t->slot[b]) return i;
    return -1;
}

/* The turn's draft before one of its inserts (reorder), or without it (drop): the slot is poisoned by the draft. */
static err_code play_out_of_order(srv_player *p, size_t turn, int32_t missing, const srv_welcome *w, bool late, err *e)
{
    const srv_turn *t = &p->part->turn[turn];
    for (int32_t i = 0; i < t->n_inserts; i++)
        if (i != missing) TRY(send_insert(p, &t->insert[i], w, e));
    TRY(take_turn(p, &(srv_turn){ 0 }, t->n_inserts - 1, e));
    TRY(send_draft(p, t, e));
    if (late) TRY(send_insert(p, &t->insert[missing], w, e));
    TRY(refused(p, SRV_REFUSED_POISONED, e));
    if (late) TRY(refused(p, SRV_REFUSED_POISONED, e));
    TRY(renew_slot(p, t->insert[missing].slot, turn, w, e));
    TRY(send_draft(p, t, e));
    return take_turn(p, t, 0, e);
}

static void wait_ns(uint64_t ns)
{
    struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    nanosleep(&t, NULL);
}

static err_code play_faulty(srv_player *p, size_t turn, srv_fault f, srv_welcome *w, err *e)
{
    const srv_turn *t = &p->part->turn[turn];
    int32_t i = drafted_insert(t);
    p->n.fault[f]++;
    switch (f) {
    case SRV_FAULT_DROP: case SRV_FAULT_REORDER: return play_out_of_order(p, turn, i, w, f == SRV_FAULT_REORDER, e);
    case SRV_FAULT_DELAY: wait_ns(p->setup->faults.delay_ns); break;
    case SRV_FAULT_EPOCH: case SRV_FAULT_SLOT: TRY(send_strayed(p, t, w, f, e)); break;
    case SRV_FAULT_TRUNCATE:
        TRY(send_half(p, t, w, e));
        srv_client_close(p->link);
        TRY(renew_session(p, turn, w, e));
        break;
    case SRV_FAULT_HALF_OPEN:
        TRY(send_half(p, t, w, e));
        srv_client_close(p->silent);
        p->silent = p->link;
        TRY(renew_session(p, turn, w, e));
        break;
    case SRV_FAULT_COUNT: break;
    }
    return play(p, t, w, e);
}

/* A fault that this turn has something to commit it with. */
static srv_fault fault_of(const srv_player *p, size_t turn, uint64_t number)
{
    srv_fault f = srv_fault_of(&p->setup->faults, p->index, number);
    bool needs_both = f == SRV_FAULT_DROP || f == SRV_FAULT_REORDER;
    return needs_both && drafted_insert(&p->part->turn[turn]) < 0 ? SRV_NO_FAULT : f;
}

/* ---- a client ---- */

/* When the next turn is due: at once, or by its place among all clients' turns. */
static uint64_t next_start(srv_pace *p)
{
    if (p->rate <= 0) return clock_ns();
    uint64_t ticket = atomic_fetch_add(&p->ticket, 1), due = p->start_ns + (uint64_t)((double)ticket * 1e9 / p->rate);
    uint64_t now = clock_ns();
    if (now < due) wait_ns(due - now);
    return due;
}

static err_code play_turn(srv_player *p, size_t turn, uint64_t number, srv_welcome *w, err *e)
{
    const srv_part *part = p->part;
    srv_fault f = fault_of(p, turn, number);
    for (size_t i = 0; i < part->n_slots; i++)
        if (part->slot[i].first_turn == turn) TRY(open_slot(p, i, e));
    uint64_t start_ns = next_start(p->pace);
    if (f != SRV_NO_FAULT) TRY(play_faulty(p, turn, f, w, e));
    else {
        uint64_t begin_ns = clock_ns();
        TRY(play(p, &part->turn[turn], w, e));
        uint64_t end_ns = clock_ns(), took_ns = end_ns - start_ns;
        add_parts(p, &part->turn[turn], begin_ns, end_ns);
        if (!p->n.turn.count) p->n.first_ns = took_ns;
        srv_histogram_add(&p->n.turn, took_ns);
    }
    p->n.turns++;
    for (size_t i = 0; i < part->n_slots; i++)
        if (part->slot[i].last_turn == turn) TRY(release_slot(p, i, e));
    return ERR_OK;
}

err_code srv_player_play(srv_player *p, err *e)
{
    srv_welcome w = { 0 };
    uint64_t number = 0;
    TRY(srv_player_hello(p, &w, e));
    for (int32_t k = 0; k < p->setup->repeat; k++)
        for (size_t turn = 0; turn < p->part->n_turns; turn++, number++) {
            if (atomic_load(&p->pace->stop)) return ERR_OK;
            if (play_turn(p, turn, number, &w, e) != ERR_OK)
                return err_wrap(e, "%s, round %d", p->name, p->part->turn[turn].round);
        }
    return ERR_OK;
}
