#include <inttypes.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "engine/inventory_index.h"
#include "engine/weights.h"

enum { ALIGN = 64 };

struct eng_rank_weights {
    eng_config config;
    krn_weight *view;  /* by eng_weight_index; data NULL for what no rank reads */
    uint8_t *decoded;  /* all expanded copies, each at a multiple of 64 bytes */
    uint64_t decoded_bytes;
};

/* A matrix to decode: from the rank's slice to its place in decoded. */
typedef struct job {
    krn_weight *view;
    uint64_t offset_bytes;
    eng_wid id;
    int32_t stage, expert;
} job;

typedef struct job_list { job *job; size_t n; } job_list;

static krn_weight cut(const eng_config *c, const krn_weight *whole, eng_wid id, int32_t rank, int32_t n_ranks)
{
    eng_range r = eng_cut_range(c, id, rank, n_ranks);
    if (eng_wkind_of(id)->cut == ENG_CUT_COLS) return krn_weight_slice(whole, 0, whole->n, r.first, r.count);
    return krn_weight_slice(whole, r.first, r.count, 0, whole->k);
}

/* Makes the slices, and lists those that are to be expanded. */
static err_code slice_all(const eng_weights *w, int32_t rank, int32_t n_ranks, const eng_reps *reps, eng_rank_weights *r,
                          job_list *jobs, err *e)
{
    const eng_config *c = &r->config;
    for (int id = 0; id < ENG_W_COUNT; id++) {
        if (!eng_wkind_of(id)->loaded) continue;
        for (int32_t stage = 0; stage < eng_wid_stages(c, id); stage++)
            for (int32_t expert = 0; expert < eng_wid_experts(c, id); expert++) {
                krn_weight whole = eng_weights_held(w, reps, id, stage, expert);
                krn_weight *v = &r->view[eng_weight_index(c, id, stage, expert)];
                uint64_t bytes;
                *v = cut(c, &whole, id, rank, n_ranks);
                if (!eng_reps_expand(reps, id)) continue;
                jobs->job[jobs->n++] = (job){ v, r->decoded_bytes, id, stage, expert };
                if (!mul_u64((uint64_t)v->n, (uint64_t)v->k * sizeof(bf16), &bytes) || !add_u64(bytes, ALIGN - 1, &bytes) ||
                    !add_u64(r->decoded_bytes, bytes / ALIGN * ALIGN, &r->decoded_bytes))
                    return err_set(e, ERR_NOMEM, "decoded weights are larger than an address");
            }
    }
    return ERR_OK;
}

static err_code take_memory(eng_rank_weights *r, int32_t rank, err *e)
{
    uint64_t available = cpu_memory_free_bytes(); /* 0: unknown */
    if (r->decoded_bytes == 0) return ERR_OK;
    if ((available == 0 || r->decoded_bytes < available) && r->decoded_bytes <= SIZE_MAX)
        r->decoded = mem_alloc_aligned((size_t)r->decoded_bytes, 1);
    if (r->decoded) return ERR_OK;
    return err_set(e, ERR_NOMEM, "decoded weights of rank %d want %" PRIu64 " bytes, available are %" PRIu64
                   ": an arm that keeps them packed needs none", rank, r->decoded_bytes, available);
}

/* Decodes every listed matrix and points its view at the copy. */
static err_code decode_all(eng_rank_weights *r, const job_list *jobs, bool quiet, err *e)
{
    err_code rc = ERR_OK;
    progress bar;
    progress_begin(&bar, "decoding weights", r->decoded_bytes, quiet);
    for (size_t i = 0; i < jobs->n && rc == ERR_OK; i++) { /* one at a time: the decoder has threads of its own */
        const job *j = &jobs->job[i];
        krn_weight *v = j->view;
        char name[ENG_TENSOR_NAME];
        bf16 *out = (bf16 *)(r->decoded + j->offset_bytes); /* [n, k] */
        int64_t inexact = krn_weight_decode_bf16(v, 0, v->n, out);
        if (inexact)
            rc = err_set(e, ERR_INPUT, "tensor %s.weight: found %" PRId64 " values that bf16 cannot hold, wanted none: "
                         "only an arm that keeps it packed can run",
                         eng_weight_name(&r->config, j->id, j->stage, j->expert, name), inexact);
        *v = (krn_weight){ .format = KRN_W_BF16, .n = v->n, .k = v->k, .data = out, .row_bytes = (int64_t)v->k * 2 };
        progress_add(&bar, (uint64_t)v->n * (uint64_t)v->row_bytes);
    }
    progress_end(&bar);
    return rc;
}

err_code eng_rank_weights_open(const eng_weights *w, int32_t rank, int32_t n_ranks, const eng_reps *reps, bool quiet,
                               eng_rank_weights **out, err *e)
{
    job_list jobs = { 0 };
    eng_rank_weights *r = NULL;
    const eng_config *c = eng_weights_config(w);
    err_code rc;
    *out = NULL;
    TRY(eng_cut_check(c, n_ranks, e));
    TRY(eng_weights_need(w, reps, e));
    CHECK(rank >= 0 && rank < n_ranks);
    size_t n = eng_weight_count(c);
    r = mem_alloc(1, sizeof *r);
    jobs.job = mem_alloc(n, sizeof *jobs.job);
    if (r) r->view = mem_alloc(n, sizeof *r->view);
    if (!r || !r->view || !jobs.job) {
        rc = err_set(e, ERR_NOMEM, "no memory for the weights of rank %d", rank);
        goto out;
    }
    r->config = *c;
    if ((rc = slice_all(w, rank, n_ranks, reps, r, &jobs, e)) != ERR_OK) goto out;
    if ((rc = take_memory(r, rank, e)) != ERR_OK) goto out;
    if ((rc = decode_all(r, &jobs, quiet, e)) != ERR_OK) goto out;
    *out = r;
    r = NULL;
out:
    free(jobs.job);
    eng_rank_weights_close(r);
    return rc;
}

void eng_rank_weights_close(eng_rank_weights *r)
{
    if (!r) return;
    free(r->decoded);
    free(r->view);
    free(r);
}

const krn_weight *eng_rank_weight(const eng_rank_weights *r, eng_wid id, int32_t stage, int32_t expert)
{
    return &r->view[eng_weight_index(&r->config, id, stage, expert)];
}

uint64_t eng_rank_weights_owned_bytes(const eng_rank_weights *r) { return r->decoded_bytes; }
