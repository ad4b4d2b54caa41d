#include "engine/markov_table.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/mem.h"

enum { CACHE_ROWS = 8192, HOT_ROWS = 4096, VOCAB_SHARE = 4, PIECE = 128 /* terms at a time */ };

int32_t eng_markov_rows(const eng_config *c, eng_markov m)
{
    const int32_t rows = m == ENG_MARKOV_CACHE ? CACHE_ROWS : m == ENG_MARKOV_HOT ? HOT_ROWS : 0;
    return rows < c->vocab / VOCAB_SHARE ? rows : c->vocab / VOCAB_SHARE;
}

static uint64_t elem_bytes(eng_markov m) { return m == ENG_MARKOV_CACHE ? sizeof(bf16) : sizeof(float); }

uint64_t eng_markov_table_bytes(const eng_config *c, eng_markov m, int32_t vocab_rows)
{
    if (m == ENG_MARKOV_FACTORISED) return 0;
    return (uint64_t)eng_markov_rows(c, m) * (uint64_t)vocab_rows * elem_bytes(m) + (uint64_t)c->vocab * sizeof(int32_t);
}

void eng_markov_table_empty(eng_markov m, eng_markov_table *out)
{
    *out = (eng_markov_table){ .view.bf16 = m == ENG_MARKOV_CACHE };
    out->table = m == ENG_MARKOV_FACTORISED ? NULL : &out->view;
}

err_code eng_markov_table_open(const eng_rank_weights *w, const eng_config *c, eng_markov m, krn_acc acc, bool quiet,
                               eng_markov_table *out, err *e)
{
    const int32_t rows = eng_markov_rows(c, m);
    eng_markov_table_empty(m, out);
    if (m == ENG_MARKOV_FACTORISED) return ERR_OK;
    const krn_weight *embed = eng_rank_weight(w, ENG_W_MARKOV_EMBED, -1, -1);
    const krn_weight *head = eng_rank_weight(w, ENG_W_MARKOV_HEAD, -1, -1);
    const uint64_t row_bytes = (uint64_t)head->n * elem_bytes(m);
    out->row = mem_alloc((size_t)c->vocab, sizeof *out->row);
    out->term = mem_alloc_aligned((size_t)rows * row_bytes + 1, 1); /* a small vocabulary has no rows */
    if (!out->row || !out->term) {
        eng_markov_table_close(out);
        return err_set(e, ERR_NOMEM, "the table of Markov terms wants %" PRIu64 " bytes", (uint64_t)rows * row_bytes);
    }
    for (int32_t t = 0; t < c->vocab; t++) out->row[t] = t < rows ? t : -1;
    progress bar;
    progress_begin(&bar, "Markov terms", (uint64_t)rows * row_bytes, quiet);
    for (int32_t t = 0; t < rows; t += PIECE) {
        const int32_t n = rows - t < PIECE ? rows - t : PIECE;
        krn_markov_terms_ref(embed->data, head->data, embed->n, c->markov_rank, head->n, out->row + t, n,
                             m == ENG_MARKOV_CACHE, acc, (uint8_t *)out->term + (uint64_t)t * row_bytes);
        progress_add(&bar, (uint64_t)n * row_bytes);
    }
    progress_end(&bar);
    out->view.row = out->row;
    out->view.term = out->term;
    return ERR_OK;
}

void eng_markov_table_close(eng_markov_table *t)
{
    free(t->row);
    free(t->term);
    *t = (eng_markov_table){ 0 };
}
