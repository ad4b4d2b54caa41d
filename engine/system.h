/* What this machine can run: each arm of a checkpoint, on the processor and on the cards, by the memory that its ranks take
 * (engine/footprint.h) beside the memory that is free. */
#ifndef ENGINE_SYSTEM_H
#define ENGINE_SYSTEM_H

#include "engine/arm.h"
#include "engine/cards.h"
#include "engine/weights.h"

enum { ENG_SYSTEM_WHY = 192 };

/* One way to run an arm; why: what stands against it, "" if nothing does. */
typedef struct eng_way { char why[ENG_SYSTEM_WHY]; } eng_way;

typedef struct eng_system_arm {
    const eng_arm *arm;
    uint64_t one_bytes, two_bytes;           /* the largest rank of one, of two; 0: the config cannot be cut so */
    eng_way cpu, card, nccl, emulated;       /* one rank in memory, on a card; two on two cards; two on one */
} eng_system_arm;

/* Positions and slots as in eng_footprint_for. w: a checkpoint of that config, whose missing tensors stand against arms;
 * NULL: by the config alone. memory_bytes: what is free for the processor's ranks. Opens nothing. ERR_ARG, ERR_NOMEM: of
 * the footprint. */
MUST_USE err_code eng_system_arm_of(const eng_config *c, const eng_weights *w, const eng_arm *arm, int64_t positions,
                                    int32_t slots, uint64_t memory_bytes, const eng_cards *cards, eng_system_arm *out,
                                    err *e);

#endif
