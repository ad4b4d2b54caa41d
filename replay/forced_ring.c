#include "replay/forced_state.h"

#include "base/mem.h"

ring_state *rpl_rings_find(const rpl_forced *f, int32_t slot)
{
    for (size_t i = 0; i < f->n_rings; i++)
        if (f->ring[i].slot == slot) return &f->ring[i];
    return NULL;
}

static size_t ring_elems(const rpl_forced *f) { return (size_t)f->config.window * (size_t)f->config.head_dim; }

static err_code add_ring(rpl_forced *f, int32_t slot, ring_state **out, err *e)
{
    *out = rpl_rings_find(f, slot);
    if (*out) return ERR_OK;
    void *array = f->ring;
    size_t stages = (size_t)f->config.n_stages, n_at = stages * (size_t)f->config.window;
    bf16 *rows = mem_alloc(stages * ring_elems(f), sizeof *rows);
    int32_t *at = mem_alloc(n_at, sizeof *at);
    int64_t *told = mem_alloc(stages, sizeof *told);
    if (!rows || !at || !told || !mem_grow(&array, &f->rings_capacity, f->n_rings + 1, sizeof *f->ring)) {
        free(rows);
        free(at);
        free(told);
        return err_set(e, ERR_NOMEM, "forced run: no memory for the ring of slot %d", slot);
    }
    f->ring = array;
    *out = &f->ring[f->n_rings++];
    for (size_t i = 0; i < n_at; i++) at[i] = -1;
    **out = (ring_state){ .slot = slot, .rows = rows, .at = at, .told = told };
    return ERR_OK;
}

/* Writes one insert's recorded main_kv rows: position p to row p mod window, later rows over earlier ones. */
static err_code apply_insert(rpl_forced *f, int32_t round, int32_t slot, err *e)
{
    int64_t rows = rpl_forced_length(f, round, slot, "pos"), width = f->config.head_dim, window = f->config.window;
    ring_state *ring;
    TRY(add_ring(f, slot, &ring, e));
    if (rpl_forced_lost(f, round, slot, "pos")) ring->missing = UINT32_MAX; /* nobody knows where its rows belong */
    if (rows == 0) return ERR_OK;
    TRY(rpl_forced_vector(f, round, slot, "pos", rows, &f->scratch[0], e));
    const int32_t *pos = f->scratch[0].tensor.data;
    TRY(rpl_forced_range(f, round, "pos", pos, rows, INT32_MAX, e));
    for (int32_t k = 0; k < f->config.n_stages; k++) {
        char name[32];
        snprintf(name, sizeof name, "s%d.main_kv", k);
        if (!rpl_forced_has(f, round, slot, name)) {
            ring->missing |= 1u << k;
            continue;
        }
        fmt_tensor want = fmt_tensor_make(FMT_DTYPE_BF16, NULL, 2, (const int64_t[]){ rows, width });
        TRY(rpl_forced_get(f, round, slot, name, &want, &f->scratch[1], e));
        const bf16 *kv = f->scratch[1].tensor.data;
        for (int64_t r = 0; r < rows; r++) {
            memcpy(ring->rows + (size_t)k * ring_elems(f) + (size_t)((pos[r] % window) * width), kv + r * width,
                   (size_t)width * sizeof *kv);
            ring->at[k * window + pos[r] % window] = pos[r];
        }
    }
    return ERR_OK;
}

/* Rows of the window of a draft at pos that the ring holds. */
static int64_t rows_there(const rpl_forced *f, const ring_state *ring, int32_t stage, int32_t pos)
{
    int32_t window = f->config.window;
    int64_t n = 0;
    for (int32_t p = pos < window ? 0 : pos - window + 1; p <= pos; p++)
        n += ring->at[stage * window + p % window] == p;
    return n;
}

/* Takes the rows that the ring lacks from the window that a draft at pos saw, where that is recorded. */
static err_code apply_window(rpl_forced *f, int32_t round, int32_t slot, int32_t pos, int32_t stage, err *e)
{
    int32_t window = f->config.window, live = pos < window ? pos + 1 : window;
    int64_t width = f->config.head_dim;
    ring_state *ring;
    char name[32];
    TRY(add_ring(f, slot, &ring, e));
    snprintf(name, sizeof name, "s%d.window", stage);
    ring->told[stage] = rows_there(f, ring, stage, pos);
    if (ring->told[stage] == live || !rpl_forced_has(f, round, slot, name)) return ERR_OK;
    fmt_tensor want = fmt_tensor_make(FMT_DTYPE_BF16, NULL, 2, (const int64_t[]){ live, width });
    TRY(rpl_forced_get(f, round, slot, name, &want, &f->scratch[1], e));
    for (int32_t p = pos - live + 1; p <= pos; p++) {
        int32_t row = p % window, *at = &ring->at[stage * window + row];
        if (*at == p) continue;
        memcpy(ring->rows + (size_t)stage * ring_elems(f) + (size_t)(row * width),
               (const bf16 *)f->scratch[1].tensor.data + row * width, (size_t)width * sizeof(bf16));
        *at = p;
    }
    return ERR_OK;
}

/* The same for all slots and stages of a round's draft. */
static err_code apply_windows(rpl_forced *f, int32_t round, err *e)
{
    int32_t slots[ENG_BATCH_MAX], pos[ENG_BATCH_MAX];
    int64_t n = rpl_forced_length(f, round, FMT_TAPE_NO_SLOT, "draft.slots");
    if (n < 1 || n > ENG_BATCH_MAX || !rpl_forced_has(f, round, FMT_TAPE_NO_SLOT, "draft.pos"))
        return ERR_OK; /* reading the draft's inputs says what is wrong with it */
    TRY(rpl_forced_vector(f, round, FMT_TAPE_NO_SLOT, "draft.slots", n, &f->scratch[0], e));
    memcpy(slots, f->scratch[0].tensor.data, (size_t)n * sizeof *slots);
    TRY(rpl_forced_vector(f, round, FMT_TAPE_NO_SLOT, "draft.pos", n, &f->scratch[0], e));
    memcpy(pos, f->scratch[0].tensor.data, (size_t)n * sizeof *pos);
    TRY(rpl_forced_range(f, round, "draft.pos", pos, n, INT32_MAX, e));
    for (int64_t b = 0; b < n; b++)
        for (int32_t k = 0; k < f->config.n_stages; k++) TRY(apply_window(f, round, slots[b], pos[b], k, e));
    return ERR_OK;
}

void rpl_rings_forget(rpl_forced *f)
{
    for (size_t i = 0; i < f->n_rings; i++) {
        free(f->ring[i].rows);
        free(f->ring[i].at);
        free(f->ring[i].told);
    }
    f->n_rings = 0;
    f->ring_round = 0;
}

static err_code apply_round(rpl_forced *f, int32_t i, err *e)
{
    int32_t n, round = rpl_ordered_number(f->ordered, i);
    const cap_name *name = rpl_ordered_at(f->ordered, i, &n);
    for (int32_t k = 0; k < n; k++)
        if (name[k].slot != FMT_TAPE_NO_SLOT && strcmp(name[k].name, "pos") == 0)
            TRY(apply_insert(f, round, name[k].slot, e));
    return f->chosen ? apply_windows(f, round, e) : ERR_OK;
}

err_code rpl_rings_up_to(rpl_forced *f, int32_t i, err *e)
{
    if (f->ring_round > i + 1) rpl_rings_forget(f);
    for (; f->ring_round <= i; f->ring_round++) {
        err_code rc = apply_round(f, f->ring_round, e);
        if (rc == ERR_OK) continue;
        rpl_rings_forget(f);
        return rc;
    }
    return ERR_OK;
}

err_code rpl_rings_load(rpl_forced *f, int32_t round, int32_t slot, int32_t stage, int32_t pos, int64_t n_rows, bf16 *dst,
                        bool *ok, err *e)
{
    const ring_state *ring = rpl_rings_find(f, slot);
    char name[32];
    snprintf(name, sizeof name, "s%d.window", stage);
    *ok = true;
    memset(dst, 0, ring_elems(f) * sizeof *dst);
    if (f->chosen) *ok = ring && rows_there(f, ring, stage, pos) == n_rows;
    if (f->chosen && !*ok) return ERR_OK;
    if (ring && (f->chosen || !(ring->missing >> stage & 1))) {
        memcpy(dst, ring->rows + (size_t)stage * ring_elems(f), ring_elems(f) * sizeof *dst);
        return ERR_OK;
    }
    *ok = rpl_forced_has(f, round, slot, name);
    if (!*ok) return ERR_OK;
    fmt_tensor want = fmt_tensor_make(FMT_DTYPE_BF16, NULL, 2, (const int64_t[]){ n_rows, f->config.head_dim });
    TRY(rpl_forced_get(f, round, slot, name, &want, &f->scratch[0], e));
    memcpy(dst, f->scratch[0].tensor.data, fmt_tensor_bytes(&want));
    return ERR_OK;
}
