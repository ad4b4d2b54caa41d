/* An EXL3 weight (formats/exl3.h) as a kernel with one mistake reads it: what planted faults multiply by, and what the
 * search for a cause tries. */
#ifndef ENGINE_MISREAD_H
#define ENGINE_MISREAD_H

#include "formats/exl3.h"
#include "kernels/linear.h"

#include <stddef.h>

typedef enum eng_misread {
    ENG_MISREAD_BIT,          /* bit `which` of the tiles is flipped: up to 16 / bits weights are others */
    ENG_MISREAD_CODEBOOK,     /* one of the two other codebooks, by which % 2 */
    ENG_MISREAD_SUH_MISSING,  /* suh is 1 */
    ENG_MISREAD_SUH_SIGN,     /* suh without its signs */
    ENG_MISREAD_SVH_NEXT,     /* every block of outputs has the svh of the next one; the last keeps its own */
    ENG_MISREAD_WORDS,        /* the two 16-bit words of each pair change places */
    ENG_MISREAD_STRIPS,       /* tiles of input rows 0 to 15 and 16 to 31 of every 32 change places */
    ENG_MISREAD_ROWS,         /* the 256 weights of a tile are taken as 16 rows of 16 */
    ENG_MISREAD_HADAMARD_IN,  /* inputs are not transformed */
    ENG_MISREAD_HADAMARD_OUT, /* outputs are not transformed */
    ENG_MISREAD_BLOCK,        /* a slice begins one block too early, along N where which is 0, along K where it is 1. The
                               * stored tensor has a block there */
    ENG_MISREADS
} eng_misread;

const char *eng_misread_text(eng_misread m); /* "suh left out" */
/* Memory that any of them needs. */
size_t eng_misread_bytes(const krn_weight *w);
/* Bits of the tiles of w's blocks. */
int64_t eng_misread_bits(const krn_weight *w);
/* w, as it is read: n and k are w's. It points into w and memory [eng_misread_bytes], and is a KRN_W_F32 where EXL3 cannot
 * say it. */
krn_weight eng_misread_make(eng_misread m, const krn_weight *w, int64_t which, void *memory);

#endif
