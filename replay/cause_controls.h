/* Self-against-self controls: what the same rounds, run again by the same run, show of a value, before anything is said of
 * one tape's tensors. A value that differs from itself is unstable; one that changes with what stands in memory that nobody
 * wrote has read it. Neither can be told from a wrong function in one tape. */
#ifndef REPLAY_CAUSE_CONTROLS_H
#define REPLAY_CAUSE_CONTROLS_H

#include "engine/fault.h"
#include "replay/trace.h"

enum { RPL_CONTROL_RUNS = 2 }; /* beside the recorded one; sparktape parity --repeat makes more */

/* By the layout's rows. Borrowed, but for what rpl_controls_make fills. */
typedef struct rpl_controls {
    const rpl_layout *layout;
    const rpl_trace *recorded, *first; /* what is explained; the first run of those that were made again */
    int32_t runs;            /* made again */
    bool same;               /* the recorded run was of this program, and the first run has its history */
    const uint8_t *unstable; /* 1: the runs differ among themselves */
    const uint8_t *poisoned; /* 1: changes with the poison (engine/poison.h); NULL: not looked at */
    struct rpl_control_runs *own; /* of rpl_controls_make */
} rpl_controls;

/* The recorded run as options, and the fault that its tape says was planted: *f is used then, and outlives *out. ERR_INPUT:
 * the head does not say how t was recorded, or this machine cannot run it so. */
MUST_USE err_code rpl_controls_options(const fmt_tape *t, int64_t threads, eng_options *out, eng_fault *f, err *e);
/* Runs o `runs` times (2 or more) in one engine and, on the CPU, with each poison. only [rounds of t] (NULL: all): values
 * of these rounds are compared. *out is zeroed; rpl_controls_fini is right for it whatever happened. ERR_INPUT as
 * rpl_feed_open, and of a redacted tape; ERR_DEVICE, ERR_NOMEM. */
MUST_USE err_code rpl_controls_make(const fmt_tape *t, const eng_weights *w, const eng_options *o, const bool *only,
                                    int32_t runs, bool quiet, rpl_controls *out, err *e);
void rpl_controls_fini(rpl_controls *c);

/* What the controls show of a value, in the round and slot (FMT_TAPE_NO_SLOT: draft step) that it is of. NOTHING: it is not
 * among the rows, or the recorded bits do not come back and another program may have made them. */
typedef enum rpl_shown { RPL_SHOWN_NOTHING, RPL_SHOWN_STABLE, RPL_SHOWN_POISONED, RPL_SHOWN_UNSTABLE } rpl_shown;
rpl_shown rpl_controls_show(const rpl_controls *c, int32_t round, int32_t slot, const char *name);

#endif
