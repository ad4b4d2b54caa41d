/* State of a dump that holds main_x and windows but no main_kv: each row that the round's insert brought into a window,
 * made again from the dumped main_x and judged where it lies. */
#include "replay/classify_in.h"

#include "base/mem.h"

/* The insert program at some number of rows, with main_x and pos set and everything after them made. */
typedef struct insert {
    eng_bench *bench;
    const eng_program *program;
    rpl_fold *fold;
    cap_value main_x, pos, window;
    int32_t rows;
} insert;

static void close_insert(insert *in)
{
    rpl_fold_free(in->fold);
    eng_bench_close(in->bench);
    cap_value_fini(&in->main_x);
    cap_value_fini(&in->pos);
    cap_value_fini(&in->window);
}

/* Reads what round inserted into slot. *there false: not on the tape, or of another shape. */
static err_code read_insert(rpl_classify *c, int32_t round, int32_t slot, insert *in, bool *there, err *e)
{
    const fmt_tape_key main_x = { round, slot, 0, "main_x" }, pos = { round, slot, 0, "pos" };
    *there = rpl_classify_has(c, round, slot, "main_x") && rpl_classify_has(c, round, slot, "pos");
    if (!*there) return ERR_OK;
    TRY(cap_joined_get(c->tape, &main_x, &in->main_x, e));
    TRY(cap_joined_get(c->tape, &pos, &in->pos, e));
    const fmt_tensor *x = &in->main_x.tensor, *p = &in->pos.tensor;
    *there = x->dtype == FMT_DTYPE_BF16 && x->ndim == 2 && x->shape[1] == c->config.dim && p->dtype == FMT_DTYPE_I32 &&
             p->ndim == 1 && p->shape[0] == x->shape[0] && x->shape[0] >= 1 && x->shape[0] <= INT32_MAX;
    if (*there) in->rows = (int32_t)x->shape[0];
    return ERR_OK;
}

static err_code make_rows(rpl_classify *c, insert *in, err *e)
{
    TRY(eng_bench_open(c->weights, &c->mirror64_options, ENG_STEP_INSERT, in->rows, 1, 1, &in->bench, e));
    in->program = eng_bench_program(in->bench);
    const eng_program *p = in->program;
    bool *recorded = mem_alloc((size_t)p->n_values, sizeof *recorded);
    if (!recorded) return err_set(e, ERR_NOMEM, "classify: no memory");
    for (int32_t v = 0; v < p->n_values; v++) recorded[v] = p->value[v].level <= ENG_LEVEL_DEEP;
    err_code rc = rpl_fold_make(p, recorded, NULL, &in->fold, e);
    free(recorded);
    TRY(rc);
    int32_t main_x = eng_program_find_value(p, "main_x");
    memcpy(eng_bench_value(in->bench, main_x), in->main_x.tensor.data, fmt_tensor_bytes(&in->main_x.tensor));
    eng_bench_positions(in->bench, in->pos.tensor.data, NULL);
    return eng_bench_run(in->bench, p->value[main_x].producer + 1, p->n_ops - 1, e);
}

/* Judges the inserted rows that a window holds: recorded has the made ones in place of those that it no longer does. */
static err_code judge_rows(rpl_classify *c, insert *in, int32_t round, int32_t b, int32_t stage, err *e)
{
    const eng_config *g = &c->config;
    const int32_t *pos = in->pos.tensor.data, slot = c->slots[b];
    const size_t width = (size_t)g->head_dim;
    const int64_t shape[] = { in->rows, g->head_dim }, live = c->pos[b] < g->window ? c->pos[b] + 1 : g->window;
    char name[32], window[32];
    snprintf(name, sizeof name, "s%d.main_kv", stage);
    snprintf(window, sizeof window, "s%d.window", stage);
    const fmt_tape_key key = { round, slot, 0, window };
    if (!rpl_classify_has(c, round, slot, window)) return ERR_OK;
    TRY(cap_joined_get(c->tape, &key, &in->window, e));
    const fmt_tensor *w = &in->window.tensor;
    if (w->dtype != FMT_DTYPE_BF16 || w->ndim != 2 || w->shape[0] != live || w->shape[1] != g->head_dim) return ERR_OK;

    int32_t value = eng_program_find_value(in->program, name), n = 0;
    const bf16 *made = eng_bench_value(in->bench, value);
    bf16 *rows = mem_alloc((size_t)in->rows * width, sizeof *rows);
    if (!rows) return err_set(e, ERR_NOMEM, "classify: no memory for %d rows", in->rows);
    memcpy(rows, made, (size_t)in->rows * width * sizeof *rows);
    for (int32_t r = 0; r < in->rows; r++) {
        if (pos[r] < 0 || pos[r] > c->pos[b] || pos[r] <= c->pos[b] - g->window) continue;
        const bf16 *lies = (const bf16 *)w->data + (size_t)(pos[r] % g->window) * width;
        memcpy(rows + (size_t)r * width, lies, width * sizeof *rows);
        n++;
    }
    rpl_verdict verdict = { 0 };
    rpl_forced_value v = { .round = round, .slot = slot, .program = in->program, .name = name, .value = value,
                           .group = rpl_fold_at(in->fold, rpl_fold_of_value(in->fold, value)), .bench = in->bench,
                           .computed = fmt_tensor_make(FMT_DTYPE_BF16, made, 2, shape),
                           .recorded = fmt_tensor_make(FMT_DTYPE_BF16, rows, 2, shape) };
    v.op = v.group->name;
    err_code rc = rpl_judge_value(c->judge, &v, &verdict, NULL, e);
    free(rows);
    TRY(rc);
    c->out.n_windows += n > 0;
    c->out.n_state_rows += n;
    if (verdict.n_illegal == 0) return ERR_OK;
    int32_t at = pos[verdict.worst / g->head_dim];
    rpl_flag f = { .round = round, .slot = slot, .kind = RPL_FLAG_ILLEGAL, .position = at, .row = at % g->window,
                   .n = verdict.n_illegal, .got = verdict.got, .wanted = verdict.exact };
    snprintf(f.value, sizeof f.value, "%.23s", window);
    return rpl_classify_flag(c, &f, e);
}

err_code rpl_classify_rows(rpl_classify *c, int32_t round, int32_t b, err *e)
{
    insert in = { 0 };
    bool there;
    if (rpl_classify_has(c, round, c->slots[b], "s0.main_kv")) return ERR_OK;
    err_code rc = read_insert(c, round, c->slots[b], &in, &there, e);
    if (rc == ERR_OK && there) rc = make_rows(c, &in, e);
    for (int32_t k = 0; rc == ERR_OK && there && k < c->config.n_stages; k++) rc = judge_rows(c, &in, round, b, k, e);
    close_insert(&in);
    return rc;
}
