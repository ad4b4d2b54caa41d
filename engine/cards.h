/* The CUDA cards of this machine, as a build with CUDA sees them. */
#ifndef ENGINE_CARDS_H
#define ENGINE_CARDS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { ENG_CARDS_MAX = 16 };

typedef struct eng_card {
    char name[64];
    int32_t sm_major, sm_minor, n_sm;
    uint64_t memory_bytes, memory_free_bytes; /* free: now, for anybody */
    uint32_t reaches;                         /* bit i: it reads and writes card i's memory directly */
} eng_card;

typedef struct eng_cards {
    bool built;              /* this program has the CUDA backend */
    int32_t driver, runtime; /* as CUDA counts: 13000 is 13.0; 0: no driver, or no card */
    char nccl[24];           /* "2.28.9"; "none": built without */
    int32_t n;               /* all of the machine; card[] has the first ENG_CARDS_MAX */
    eng_card card[ENG_CARDS_MAX];
} eng_cards;

/* No card is no error. ERR_DEVICE: a card that does not answer. The calling thread's device changes. */
MUST_USE err_code eng_cards_find(eng_cards *out, err *e);

#endif
