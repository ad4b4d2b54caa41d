#include "serve/drive_player.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/mem.h"

static void *player_thread(void *arg)
{
    srv_player *p = arg;
    if (srv_player_play(p, &p->failed) != ERR_OK) atomic_store(&p->pace->stop, true);
    srv_client_close(p->link);
    srv_client_close(p->silent);
    return NULL;
}

static void add_counts(srv_drive_counts *into, const srv_drive_counts *n)
{
    into->turns += n->turns;
    into->inserts += n->inserts;
    into->rows += n->rows;
    into->drafts += n->drafts;
    into->checked += n->checked;
    into->mismatches += n->mismatches;
    into->recoveries += n->recoveries;
    for (int f = 0; f < SRV_FAULT_COUNT; f++) into->fault[f] += n->fault[f];
    for (int r = 0; r < SRV_REFUSAL_COUNT; r++) into->refused[r] += n->refused[r];
    if (!into->first_ns) into->first_ns = n->first_ns;
    srv_histogram_merge(&into->turn, &n->turn);
    srv_histogram_merge(&into->step, &n->step);
    srv_histogram_merge(&into->send, &n->send);
    srv_histogram_merge(&into->queue, &n->queue);
    srv_histogram_merge(&into->rest, &n->rest);
    if (!into->mismatch[0]) memcpy(into->mismatch, n->mismatch, sizeof into->mismatch);
}

static err_code start_player(srv_player *p, pthread_t *thread, err *e)
{
    p->slot = mem_alloc(p->part->n_slots, sizeof *p->slot);
    if (!p->slot) return err_set(e, ERR_NOMEM, "no memory for client %s", p->name);
    for (size_t i = 0; i < p->part->n_slots; i++) p->slot[i] = SRV_NOT_OPEN;
    if (pthread_create(thread, NULL, player_thread, p) == 0) return ERR_OK;
    return err_set(e, ERR_SYSTEM, "the thread of client %s cannot be started", p->name);
}

err_code srv_drive(const srv_drive_setup *s, srv_drive_counts *out, double *seconds, err *e)
{
    int32_t n = srv_plan_parts(s->plan), started = 0;
    srv_pace beat = { .rate = s->rate, .start_ns = clock_ns() };
    srv_player *all = mem_alloc((size_t)n, sizeof *all);
    pthread_t *thread = mem_alloc((size_t)n, sizeof *thread);
    *out = (srv_drive_counts){ 0 };
    *seconds = 0;
    err_code rc = all && thread ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %d clients", n);
    for (; started < n && rc == ERR_OK; started++) {
        if (srv_plan_part(s->plan, started)->n_turns == 0) break; /* slots are dealt out in order: nor has any later one */
        all[started] = (srv_player){ .setup = s, .part = srv_plan_part(s->plan, started), .pace = &beat,
                                           .index = started };
        snprintf(all[started].name, sizeof all[started].name, "%.50s-%d", s->client, started);
        rc = start_player(&all[started], &thread[started], e);
        if (rc != ERR_OK) break;
    }
    if (rc != ERR_OK) atomic_store(&beat.stop, true);
    for (int32_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    *seconds = (double)(clock_ns() - beat.start_ns) * 1e-9;
    for (int32_t i = 0; i < started; i++) {
        add_counts(out, &all[i].n);
        if (rc == ERR_OK && all[i].failed.code != ERR_OK) {
            rc = all[i].failed.code;
            if (e) *e = all[i].failed;
        }
    }
    for (int32_t i = 0; all && i < n; i++) free(all[i].slot);
    free(all);
    free(thread);
    return rc;
}

err_code srv_drive_meet(const srv_drive_setup *s, srv_welcome *out, err *e)
{
    const srv_part none = { .slots_at_once = 1 };
    srv_player p = { .setup = s, .part = &none };
    snprintf(p.name, sizeof p.name, "%.50s-0", s->client); /* its first client replaces this session */
    err_code rc = srv_player_hello(&p, out, e);
    srv_client_close(p.link);
    return rc;
}
