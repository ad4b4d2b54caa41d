/* The recorder: what a run's steps left in their shots, streamed to a tape by a thread of its own.
 *
 * A part is one step under capture: its inputs, copied, and the shot that the step fills. Parts of a round are handed over
 * together; the writer thread waits for their bytes, compresses and writes them in that order, and frees the shots. The
 * same run gives the same tape, whatever the threads did. Memory is bounded by the pool of shots and by the bytes of
 * inputs that may wait; when either is used up the policy decides: wait (block), or leave the round out, counted and named
 * on the tape (drop).
 *
 * Threads: everything here is called by the engine's caller, but cap_recorder_counts (any thread). */
#ifndef CAPTURE_RECORDER_H
#define CAPTURE_RECORDER_H

#include "base/cli.h"
#include "engine/engine.h"
#include "engine/script.h"
#include "engine/shots.h"
#include "formats/tape.h"

typedef struct cap_recorder cap_recorder;
typedef struct cap_part cap_part;

typedef enum cap_on_full { CAP_BLOCK, CAP_DROP } cap_on_full;

typedef struct cap_options {
    eng_level level;       /* io, v1 or deep */
    const cli_list *taps;  /* "PATTERN=TIER" items (tier tensor, stats, hash or off), later ones win; NULL: none */
    cap_on_full on_full;
    int32_t depth;         /* shots in flight; 0: 8. With CAP_DROP a round needs one for each of its parts */
    uint64_t memory_bytes; /* of shots and waiting inputs together; 0: 1 GiB. One shot there is whatever it takes */
    int32_t insert_rows;   /* the longest insert that shots have room for; 0: 128. A longer one makes the shots anew when
                              all are free: with CAP_BLOCK it waits for that, with CAP_DROP it is left out until then */
    const char *rounds;    /* the round list that chooses, for head and summary; NULL: every round is wanted */
    const struct cap_redact *redact; /* replaces the vocabulary's ids (capture/redact.h); borrowed; NULL: they are kept */
    uint64_t rotate_bytes; /* 0: one tape. Else PATH is "NAME.tape" and tapes are NAME-000000.tape, NAME-000001.tape ... but
                              for numbers that are taken: a new one after a round that made the last one this long */
    const cli_list *when;  /* conditions, as capture/condition.h has them: a round is kept when one holds. NULL: always */
    int32_t flight;        /* then so many rounds before it are kept too, from memory, as far as there was room for them */
    int32_t round_steps;   /* with when or flight: steps of the longest round, which needs a shot for each; 0: 5 */
    const fmt_tape *base;  /* store what equals or nearly equals its values as the difference; borrowed; NULL: none */
    bool synthetic;        /* the head says that no target took the rounds' rows (cap_rounds_synthetic) */
    bool events_only;      /* serving: a failure of the disk is counted, never returned, and the rest is dropped */
} cap_options;

/* Checks "PATTERN=TIER" items before anything is opened. ERR_ARG: no '=', or an unknown tier. NULL: nothing to check. */
MUST_USE err_code cap_taps_check(const cli_list *taps, err *e);
/* The same of conditions; no tape is opened. out: the tape to be written, which no item may name; NULL: not known yet. */
MUST_USE err_code cap_when_check(const cli_list *when, const char *out, err *e);
/* ERR_INPUT: t, which a recording is compared with or stored on, is damaged or unfinished: what it has lost would go
 * unsaid. what: begins the message, "--base a.tape". */
MUST_USE err_code cap_check_whole(const char *what, const fmt_tape *t, err *e);
/* Level up to which graph mode must retain values for o: what eng_open wants. */
eng_level cap_retain_level(const cap_options *o);

/* Opens PATH (as .part) with the head made from identity (borrowed), level, config, program and tap items. The engine is
 * borrowed until the recorder is gone. ERR_ARG: a bad tap item or condition, or one that matches no value; memory_bytes has
 * no room for `flight` rounds. A round's inputs are recorded at every level and whatever the taps say: they are what makes
 * a tape replayable. */
MUST_USE err_code cap_recorder_open(eng_engine *g, const char *path, const json_t *identity, const cap_options *o,
                                    cap_recorder **out, err *e);

/* ---- a round, step by step (serving) ---- */
/* Prepares capture of an insert: copies taps ([rows, n_taps * dim], NULL: there are none), main_x ([rows, dim], not NULL:
 * the insert runs from it) and positions, takes a shot. slot: the request's number on the tape. *out NULL with ERR_OK:
 * there was no room (CAP_DROP; with CAP_BLOCK only when the caller itself holds all of it, so that no wait would end), or
 * the writer has failed (events_only). ERR_NOMEM, ERR_DEVICE; the writer's error if it failed before (not events_only). */
MUST_USE err_code cap_part_insert(cap_recorder *r, int32_t slot, const bf16 *taps, const bf16 *main_x, const int32_t *pos,
                                  int32_t rows, cap_part **out, err *e);
/* The same of a draft: the arguments of eng_draft, slots being the requests' numbers. */
MUST_USE err_code cap_part_draft(cap_recorder *r, int32_t batch, const int32_t *slots, const int32_t *anchors,
                                 const int32_t *pos, int32_t n_out, cap_part **out, err *e);
/* What to give the step. */
const eng_tap *cap_part_tap(const cap_part *p);
eng_shot *cap_part_shot(const cap_part *p);
/* An insert's copied inputs, for a step that runs it again. Valid as long as the part is the caller's. */
void cap_part_inputs(const cap_part *p, int32_t *slot, const bf16 **taps, const int32_t **pos, int32_t *rows);
/* What the draft answered ([batch, n_out], copied): on the tape as `drafts` and `confidence` where no tap shows these, else
 * compared with what it shows; a difference is an event, {"event":"answer differs","value":NAME,"answer":[...]}. */
void cap_part_answer(cap_part *p, const int32_t *drafts, const float *confidence);
/* With when or flight: the part's round is kept, with those before it, whatever the conditions say. why: a literal. */
void cap_part_want(cap_part *p, const char *why);
void cap_part_drop(cap_recorder *r, cap_part *p); /* it is not wanted after all; NULL is a no-op */
/* Hands the parts over: inserts in order, then the draft (NULL: none), one part or more. They are the recorder's from here
 * on, also on error. ERR: the writer failed before (not with events_only). */
MUST_USE err_code cap_recorder_submit(cap_recorder *r, int32_t round, cap_part *const *inserts, int32_t n_inserts,
                                      cap_part *draft, err *e);
/* A fact about a round, in order with what was submitted; event is borrowed. 65536 of them may wait; then CAP_BLOCK waits,
 * and CAP_DROP loses it, counted. ERR as submit. */
MUST_USE err_code cap_recorder_event(cap_recorder *r, int32_t round, const json_t *event, err *e);
/* The round was wanted and could not be kept: counted, and {"event":"dropped","round":R,"why":WHY} on the tape. */
void cap_recorder_dropped(cap_recorder *r, int32_t round, const char *why);

/* With when or flight: the round that is judged next is kept, with those before it, whatever the conditions say. why: for
 * the tape. Any thread. */
void cap_recorder_trigger(cap_recorder *r, const char *why);

/* ---- a whole round (record, replay) ---- */
/* Runs one round (inserts, then the draft) and records it. The slots of the round are the requests' own and go on the tape;
 * the engine_slots say where each insert and each draft entry runs. main_x: NULL, or the round's captured main_x per insert
 * (windows A; a NULL entry runs from its taps). After an error the round is not whole on the tape: discard. */
MUST_USE err_code cap_recorder_round(cap_recorder *r, const eng_round *round, const int32_t *engine_slots_of_inserts,
                                     const int32_t *engine_slots_of_draft, const bf16 *const *main_x, err *e);
/* The same round without capture: the tape does not know of it (a round list left it out). */
MUST_USE err_code cap_recorder_skip_round(cap_recorder *r, const eng_round *round, const int32_t *engine_slots_of_inserts,
                                          const int32_t *engine_slots_of_draft, const bf16 *const *main_x, err *e);

/* Honest counts so far. */
typedef struct cap_counts {
    uint64_t rounds, inserts, drafts, values, raw_bytes; /* on tapes */
    uint64_t dropped, waits, wait_ns;                    /* rounds left out; times and time the caller waited for room */
    uint64_t events, events_lost;                        /* on tapes; without room */
    uint64_t tapes, tape_bytes;                          /* finished ones; bytes in these and in the one being written */
    uint64_t judged, fired;                              /* rounds that conditions judged; that one held on, or asked for */
    uint64_t host_ns, device_ns;                         /* what the probes cost the steps */
    char tape[256];                                      /* being written; "" between two */
    char failed[ERR_MSG_BYTES];                          /* "": the writer is well */
} cap_counts;
void cap_recorder_counts(cap_recorder *r, cap_counts *out);

/* Waits for everything that was handed over, writes the summary (the counts, taps that never fired) and gives the tape its
 * name. Frees r; parts that were not handed over must be dropped before. ERR: the writer failed, now or before (with
 * events_only ERR_OK all the same); the tape is then closed as well as it can be, else .part is left with what it holds. */
MUST_USE err_code cap_recorder_finish(cap_recorder *r, err *e);
/* After it failed: e's message goes on to say where what was written of path is, if anything is. Returns e's code. e
 * is not NULL. */
err_code cap_say_what_is_left(const char *path, err *e);
/* The same, with the counts as they are at the end (NULL: not wanted), and ERR also with events_only. */
MUST_USE err_code cap_recorder_end(cap_recorder *r, cap_counts *counts, err *e);
/* Frees r and removes .part (of rotated ones only the last); parts as for finish. NULL is a no-op. */
void cap_recorder_discard(cap_recorder *r);

#endif
