/* The table of Markov terms that an arm keeps ready (kernels/markov.h), one a rank.
 *
 * A frequent token's term is the rank's part of markov_head . markov_embed[token]: making it ahead spares a step the whole
 * head. Byte-pair vocabularies give frequent pairs the low ids: the table has the tokens 0 .. rows - 1. */
#ifndef ENGINE_MARKOV_TABLE_H
#define ENGINE_MARKOV_TABLE_H

#include "engine/arm.h"
#include "engine/weights.h"
#include "kernels/markov.h"

/* 8,192 of the bias cache, 4,096 hot rows, at most a quarter of the vocabulary; 0: no table. */
int32_t eng_markov_rows(const eng_config *c, eng_markov m);
/* Of one rank with vocab_rows rows of the vocabulary: terms and index. */
uint64_t eng_markov_table_bytes(const eng_config *c, eng_markov m, int32_t vocab_rows);

/* What the op reads: table is what krn_markov_step takes, NULL for a factorised arm. The rest is the memory behind it. */
typedef struct eng_markov_table {
    const krn_markov_table *table;
    krn_markov_table view;
    int32_t *row;
    void *term;
} eng_markov_table;

/* The arm's rounding without any term kept: every step computes all. Bits as with a table. */
void eng_markov_table_empty(eng_markov m, eng_markov_table *out);
/* On the CPU, sums as acc. Ends with out->table pointing into *out, which must not move. ERR_NOMEM. */
MUST_USE err_code eng_markov_table_open(const eng_rank_weights *w, const eng_config *c, eng_markov m, krn_acc acc,
                                        bool quiet, eng_markov_table *out, err *e);
void eng_markov_table_close(eng_markov_table *t);

#endif
