#include "serve/shot_compare.h"

#include <stdio.h>
#include <string.h>

static int64_t first_difference(const fmt_tensor *a, const fmt_tensor *b)
{
    uint64_t bytes = fmt_tensor_bytes(a), elem = fmt_dtype_bytes(a->dtype), i = 0;
    if (fmt_tensor_bytes(b) != bytes) return 0;
    if (memcmp(a->data, b->data, bytes) == 0) return -1;
    const uint8_t *x = a->data, *y = b->data;
    while (x[i] == y[i]) i++;
    return (int64_t)(i / elem);
}

/* -1: the 64 largest of every row are the same, with the same bits. */
static int64_t first_top_difference(eng_shot *a, eng_shot *b, int32_t value)
{
    const float *va, *vb;
    const int32_t *ia, *ib;
    int64_t rows_a, rows_b;
    int32_t k = eng_shot_top(a, value, &va, &ia, &rows_a), kb = eng_shot_top(b, value, &vb, &ib, &rows_b);
    if (k != kb || rows_a != rows_b) return 0;
    for (int64_t i = 0; i < rows_a * k; i++)
        if (memcmp(&va[i], &vb[i], sizeof va[i]) != 0 || ia[i] != ib[i]) return i;
    return -1;
}

static void note(srv_shot_difference *d, const char *name, int32_t rank, int32_t entry, int64_t element, bool *differs)
{
    if (element < 0) return;
    if (!*differs && !d->differing) {
        snprintf(d->first, sizeof d->first, "%s", name);
        d->rank = rank;
        d->entry = entry;
        d->element = element;
    }
    *differs = true;
}

void srv_shots_compare(const eng_program *p, eng_shot *a, eng_shot *b, int32_t first_rank, int32_t end_rank,
                       srv_shot_difference *out)
{
    int32_t batch = (int32_t)eng_shot_extents(a)->n[ENG_DIM_B];
    *out = (srv_shot_difference){ 0 };
    for (int32_t v = 0; v < p->n_values; v++) {
        const eng_value *value = &p->value[v];
        bool differs = false;
        if (!eng_shot_has(a, v)) continue;
        out->values++;
        if (!eng_shot_has(b, v)) note(out, value->name, first_rank, 0, 0, &differs);
        else if (value->top_only) note(out, value->name, first_rank, 0, first_top_difference(a, b, v), &differs);
        else
            for (int32_t rank = first_rank; rank < (value->state ? first_rank + 1 : end_rank); rank++)
                for (int32_t i = 0; i < (value->state ? batch : 1); i++) {
                    fmt_tensor ta, tb;
                    eng_shot_tensor(a, rank, v, i, &ta);
                    eng_shot_tensor(b, rank, v, i, &tb);
                    note(out, value->name, rank, i, first_difference(&ta, &tb), &differs);
                }
        out->differing += differs;
    }
}
