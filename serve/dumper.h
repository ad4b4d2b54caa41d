/* V1 dumps: chosen rounds of a serving worker, kept as the graph computed them and proved by an eager run on the spot.
 *
 * Every insert is captured when it runs, since nobody knows yet which round will draft from it; its part waits with its
 * slot, and is dropped with it when that round is not chosen. A chosen round's steps run once more, eager and op by op (the
 * inserts on the spare slot, the draft on its own ones, whose windows a draft does not change): every V1 value and the
 * answer must be the same bits. A difference is an event on the tape, is counted, and may poison the worker. */
#ifndef SERVE_DUMPER_H
#define SERVE_DUMPER_H

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
    uint64_t rotate_bytes;
    int32_t slots;          /* of the worker; the engine's slot after them is the spare */
    bool poison;            /* a difference fails draft_after, before the client is answered */
} srv_dumper_setup;

/* ERR_INPUT: dir is no folder that can be written to. ERR_NOMEM, ERR_DEVICE. */
MUST_USE err_code srv_dumper_open(const srv_dumper_setup *s, srv_dumper **out, err *e);
/* The hooks; d lives longer than their user. */
void srv_dumper_hooks(srv_dumper *d, srv_dump *out);
/* After the worker: finishes the tape if the worker's last hook did not. NULL is a no-op. */
void srv_dumper_close(srv_dumper *d);

/* How two shots of the same step of one pool differ. Both were waited for. */
typedef struct srv_shot_difference {
    int32_t values, differing;     /* values compared (all ranks and windows of one count once), and those that differ */
    char first[40];                /* name of the first one */
    int32_t rank, entry;           /* where: rank, and batch entry of a window */
    int64_t element;               /* first element that differs, row-major */
} srv_shot_difference;
void srv_shots_compare(const eng_program *p, eng_shot *a, eng_shot *b, int32_t first_rank, int32_t end_rank,
                       srv_shot_difference *out);

#endif
