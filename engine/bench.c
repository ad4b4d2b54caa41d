#include "engine/engine.h"

#include "base/mem.h"
#include "engine/exec.h"
#include "kernels/combine.h"
#include "kernels/rope.h"

struct eng_bench {
    eng_program *program;
    eng_rank_weights *weights;
    eng_step step;
    float *rope_freq;
    bf16 *rings;      /* [batch][n_stages][window][head_dim] */
    int32_t *forced;  /* [batch, n_out] */
    int32_t n_ranks;  /* whose partial sums the bench adds as they do */
    void *masked;     /* n_ranks > 1: an input of which one rank's columns are left */
    float *part;      /* n_ranks > 1: that rank's partial sums */
    int32_t opened[3]; /* rows, batch, n_out at open */
};

/* The weight that cuts op's sum over its input's columns between ranks; NULL: every rank sums whole rows. */
static const eng_wid *cut_sum(const eng_op *op)
{
    return op->n_weights == 1 && eng_wkind_of(op->weight[0])->cut == ENG_CUT_COLS ? &op->weight[0] : NULL;
}

/* Room for the largest input and output of an op whose sum is cut. */
static err_code open_parts(eng_bench *b, err *e)
{
    const eng_program *p = b->program;
    int64_t in = 0, out = 0;
    for (int32_t i = 0; i < p->n_ops && b->n_ranks > 1; i++) {
        if (!cut_sum(&p->op[i])) continue;
        int64_t n_in = eng_value_elems(p, p->op[i].in[0], &b->step.x, 0, 1);
        int64_t n_out = eng_value_elems(p, p->op[i].out[0], &b->step.x, 0, 1);
        if (n_in > in) in = n_in;
        if (n_out > out) out = n_out;
    }
    if (in == 0) return ERR_OK;
    b->masked = mem_alloc_aligned((size_t)in, sizeof(bf16));
    b->part = mem_alloc_aligned((size_t)out, sizeof *b->part);
    return b->masked && b->part ? ERR_OK : err_set(e, ERR_NOMEM, "bench: no memory");
}

static err_code open_bench(const eng_weights *w, const eng_options *o, eng_step_kind kind, int32_t rows, int32_t batch,
                           int32_t n_out, eng_bench *b, err *e)
{
    const eng_config *c = eng_weights_config(w);
    TRY(eng_cut_check(c, o->n_ranks, e));
    b->n_ranks = o->n_ranks;
    b->opened[0] = rows;
    b->opened[1] = batch;
    b->opened[2] = n_out;
    TRY(eng_program_make(c, kind, 1, o->combine, &o->reps, &b->program, e));
    TRY(eng_rank_weights_open(w, 0, 1, &o->reps, true, &b->weights, e));
    size_t ring = (size_t)c->window * (size_t)c->head_dim;
    b->rope_freq = mem_alloc((size_t)c->rope_dim / 2, sizeof *b->rope_freq);
    b->rings = mem_alloc_aligned((size_t)batch * (size_t)c->n_stages * ring, sizeof *b->rings);
    b->forced = mem_alloc((size_t)batch * (size_t)n_out, sizeof *b->forced);
    if (!b->rope_freq || !b->rings || !b->forced) return err_set(e, ERR_NOMEM, "bench: no memory");
    krn_rope_freqs(c->rope_theta, c->rope_dim, b->rope_freq);
    TRY(eng_step_init(&b->step, b->program, b->weights, o, 0, 1, NULL, b->rope_freq, rows, batch,
                      ENG_LEVEL_HIDDEN, e));
    b->step.x = eng_extents_of(c, rows, batch, n_out);
    for (int32_t i = 0; i < batch; i++)
        for (int32_t k = 0; k < c->n_stages; k++)
            b->step.ring[i][k] = b->rings + ((size_t)i * (size_t)c->n_stages + (size_t)k) * ring;
    return open_parts(b, e);
}

err_code eng_bench_open(const eng_weights *w, const eng_options *o, eng_step_kind step, int32_t rows, int32_t batch,
                        int32_t n_out, eng_bench **out, err *e)
{
    *out = NULL;
    if (rows < 1 || batch < 1 || batch > ENG_BATCH_MAX || n_out < 1 || n_out > eng_weights_config(w)->block)
        return err_set(e, ERR_ARG, "bench: rows %d, batch %d, n_out %d", rows, batch, n_out);
    eng_bench *b = mem_alloc(1, sizeof *b);
    if (!b) return err_set(e, ERR_NOMEM, "bench: no memory");
    err_code rc = open_bench(w, o, step, rows, batch, n_out, b, e);
    if (rc != ERR_OK) {
        eng_bench_close(b);
        return rc;
    }
    *out = b;
    return ERR_OK;
}

void eng_bench_close(eng_bench *b)
{
    if (!b) return;
    eng_step_fini(&b->step);
    eng_rank_weights_close(b->weights);
    eng_program_free(b->program);
    free(b->rope_freq);
    free(b->rings);
    free(b->forced);
    free(b->masked);
    free(b->part);
    free(b);
}

const eng_program *eng_bench_program(const eng_bench *b) { return b->program; }
int32_t eng_bench_ranks(const eng_bench *b) { return b->n_ranks; }
void *eng_bench_value(eng_bench *b, int32_t value) { return b->step.value[value]; }
bf16 *eng_bench_ring(eng_bench *b, int32_t i, int32_t stage) { return b->step.ring[i][stage]; }

krn_weight *eng_bench_weight(eng_bench *b, eng_wid id, int32_t stage, int32_t expert)
{
    return (krn_weight *)(uintptr_t)eng_rank_weight(b->weights, id, stage, expert); /* the bench's own views */
}

const eng_extents *eng_bench_extents(const eng_bench *b) { return &b->step.x; }

void eng_bench_resize(eng_bench *b, int32_t rows, int32_t batch, int32_t n_out)
{
    const int32_t *most = b->opened;
    CHECK(rows >= 1 && rows <= most[0] && batch >= 1 && batch <= most[1] && n_out >= 1 && n_out <= most[2]);
    b->step.x = eng_extents_of(&b->program->config, rows, batch, n_out);
}

void eng_bench_positions(eng_bench *b, const int32_t *pos, const int32_t *anchors)
{
    const eng_program *p = b->program;
    if (p->step == ENG_STEP_INSERT) {
        memcpy(b->step.value[eng_program_find_value(p, "pos")], pos, sizeof *pos * (size_t)b->step.x.n[ENG_DIM_ROWS]);
        return;
    }
    size_t bytes = sizeof *pos * (size_t)b->step.x.n[ENG_DIM_B];
    memcpy(b->step.value[eng_program_find_value(p, "draft.pos")], pos, bytes);
    memcpy(b->step.value[eng_program_find_value(p, "draft.anchor")], anchors, bytes);
}

void eng_bench_force_drafts(eng_bench *b, const int32_t *drafts)
{
    size_t n = (size_t)(b->step.x.n[ENG_DIM_B] * b->step.x.n[ENG_DIM_N_OUT]);
    if (drafts) memcpy(b->forced, drafts, n * sizeof *drafts);
    b->step.forced_drafts = drafts ? b->forced : NULL;
}

const int32_t *eng_bench_forced_drafts(const eng_bench *b) { return b->step.forced_drafts; }

/* Runs an op whose sum is cut, once per rank with the other ranks' columns of the input zeroed, and adds the results as the
 * ranks do. Zeros add nothing to a sum that starts at +0, and a cut falls on whole groups (EXL3: the columns of a slice's
 * blocks outside of it count as zeros too), so a rank's part has its own bits. */
static err_code run_in_parts(eng_bench *b, int32_t i, eng_wid wid, err *e)
{
    const eng_program *p = b->program;
    const int32_t in = p->op[i].in[0], out = p->op[i].out[0];
    int32_t n_outputs, cols;
    eng_wid_shape(&p->config, wid, &n_outputs, &cols);
    const int64_t rows = eng_value_elems(p, in, &b->step.x, 0, 1) / cols, n = eng_value_elems(p, out, &b->step.x, 0, 1);
    const bf16 *x = b->step.value[in];
    float *sum = b->step.value[out];
    bf16 *masked = b->masked;
    err_code rc = ERR_OK;
    b->step.value[in] = masked;
    b->step.value[out] = b->part;
    for (int32_t rank = 0; rank < b->n_ranks && rc == ERR_OK; rank++) {
        eng_range r = eng_cut_range(&p->config, wid, rank, b->n_ranks);
        memset(masked, 0, (size_t)(rows * cols) * sizeof *masked);
        for (int64_t row = 0; row < rows; row++)
            memcpy(masked + row * cols + r.first, x + row * cols + r.first, (size_t)r.count * sizeof *masked);
        rc = eng_step_eager(&b->step, i, i, NULL, 0, 0, 0, e);
        if (rank == 0) memcpy(sum, b->part, (size_t)n * sizeof *sum);
        else krn_add_f32_ref(sum, b->part, sum, n);
    }
    b->step.value[in] = (void *)(uintptr_t)x;
    b->step.value[out] = sum;
    return rc;
}

err_code eng_bench_run(eng_bench *b, int32_t first_op, int32_t last_op, err *e)
{
    for (int32_t i = first_op; i <= last_op; i++) {
        const eng_wid *wid = b->n_ranks > 1 ? cut_sum(&b->program->op[i]) : NULL;
        TRY(wid ? run_in_parts(b, i, *wid, e) : eng_step_eager(&b->step, i, i, NULL, 0, 0, 0, e));
    }
    return ERR_OK;
}
