/* V1 dumps: chosen rounds of a serving worker, kept as the graph computed them and proved by an eager run on the spot.
 *
 * Every insert is captured when it runs, since nobody knows yet which round will draft from it; its part waits with its
 * slot, and is dropped with it when that round is not chosen. A chosen round's steps run once more, eager and op by op (the
 * inserts on the spare slot, the draft on its own ones, whose windows a draft does not change): every V1 value and the
 * answer must be the same bits. A difference is an event on the tape, is counted, and may poison the worker.
 *
 * Memory is bounded, and taken when the dumper opens. What finds no room costs its round, which is counted as dropped; so
 * does an insert of more than insert_rows (in status) rows, and a number that a tape has no room for (2^31 and more). */
#ifndef SERVE_DUMPER_H
#define SERVE_DUMPER_H

#include <stdatomic.h>

#include "capture/recorder.h"
#include "capture/round_list.h"
#include "serve/dump.h"

typedef struct srv_dumper srv_dumper;

typedef struct srv_dumper_setup {
    eng_engine *engine;     /* retains ENG_LEVEL_V1; borrowed until close */
    const json_t *identity; /* for the tapes' heads */
    const char *dir;        /* an existing folder; tapes are DIR/v1-DATE-TIME-PID-NNNNNN.tape */
    const char *rounds_text;
    cap_round_list rounds;
    const cli_list *when;   /* of the rounds chosen, what is kept: see cap_options; borrowed until close; NULL: all */
    int32_t flight;
    const struct cap_redact *redact; /* borrowed until close; NULL: ids are kept */
    atomic_bool *asked;     /* whoever sets it wants the next round chosen, and those before it; NULL: nobody can */
    uint64_t rotate_bytes;
    int32_t slots;          /* of the worker; the engine's slot after them is the spare */
    int64_t positions;      /* longest request */
    bool poison;            /* a difference fails draft_after, before the client is answered */
} srv_dumper_setup;

/* ERR_INPUT: dir is no folder that can be written to. ERR_NOMEM, ERR_DEVICE. */
MUST_USE err_code srv_dumper_open(const srv_dumper_setup *s, srv_dumper **out, err *e);
/* The hooks; d lives longer than their user. */
void srv_dumper_hooks(srv_dumper *d, srv_dump *out);
/* The tape being written, without its ".part"; "": none, or a name of more than 254 characters. */
void srv_dumper_tape(srv_dumper *d, char out[256]);
/* After the worker: finishes the tape if the worker's last hook did not. ERR: dumps ended before the worker did, or the
 * last tape could not be closed; e says how much was kept. d is gone all the same. NULL is a no-op. */
MUST_USE err_code srv_dumper_close(srv_dumper *d, err *e);

#endif
