#include "engine/device_bench.h"

#include "base/mem.h"
#include "engine/device_exec.h"

enum { GROUP = FMT_QDQ_GROUP };

static uint64_t weight_bytes(const krn_weight *w)
{
    uint64_t n = (uint64_t)w->n, k = (uint64_t)w->k;
    switch (w->format) {
    case KRN_W_FP8: return n * k + (n + GROUP - 1) / GROUP * ((k + GROUP - 1) / GROUP);
    case KRN_W_FP4: return n * (k / 2) + n * (k / GROUP);
    case KRN_W_BF16: return n * k * sizeof(bf16);
    case KRN_W_F32: return n * k * sizeof(float);
    case KRN_W_EXL3: return n * k * (uint64_t)w->exl3.bits / 8 + (n + k) * sizeof(uint16_t);
    }
    return 0;
}

static uint64_t expert_bytes(const krn_expert_bank *b)
{
    uint64_t elems = (uint64_t)b->n * (uint64_t)b->k;
    return b->format == KRN_W_FP4 ? elems / 2 + elems / GROUP : elems * sizeof(bf16);
}

static uint64_t exl3_expert_bytes(const krn_exl3_bank *b)
{
    const uint64_t n = (uint64_t)b->n, k = (uint64_t)b->k;
    return n * k * (uint64_t)b->bits / 8 + (n + k) * sizeof(uint16_t);
}

static uint64_t bank_bytes(const eng_device_rank *k, int32_t stage, bool w2)
{
    const krn_exl3_bank *exl3 = eng_device_experts_exl3(k->weights, stage, w2);
    const krn_kx_bank *kx = eng_device_experts_kx(k->weights, stage, w2);
    if (kx) return (uint64_t)krn_kx_bytes(kx->n, kx->k);
    return exl3 ? exl3_expert_bytes(exl3) : expert_bytes(eng_device_experts(k->weights, stage, w2));
}

uint64_t eng_device_op_bytes(const eng_device *d, eng_step_kind step, int32_t i, int32_t n_out,
                             const int32_t *experts_used)
{
    const eng_op *op = &d->program[step]->op[i];
    const eng_device_rank *k = &d->rank[0];
    if (op->kind == ENG_OP_EXPERTS_UP || op->kind == ENG_OP_EXPERTS_DOWN)
        return bank_bytes(k, op->stage, op->kind == ENG_OP_EXPERTS_DOWN) * (uint64_t)experts_used[op->stage];
    if (op->kind == ENG_OP_LINEAR || op->kind == ENG_OP_WO_A)
        return weight_bytes(eng_device_weight(k->weights, op->weight[0], op->stage));
    if (op->kind == ENG_OP_MARKOV)
        return (uint64_t)n_out * weight_bytes(eng_device_weight(k->weights, op->weight[1], op->stage));
    return 0;
}

static uint64_t step_bytes(const eng_device *d, eng_step_kind step, int32_t n_out, const int32_t *experts_used)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < d->program[step]->n_ops; i++) bytes += eng_device_op_bytes(d, step, i, n_out, experts_used);
    return bytes;
}

uint64_t eng_device_draft_bytes(const eng_device *d, int32_t n_out, const int32_t *experts_used)
{
    return step_bytes(d, ENG_STEP_DRAFT, n_out, experts_used);
}

uint64_t eng_device_insert_bytes(const eng_device *d) { return step_bytes(d, ENG_STEP_INSERT, 0, NULL); }

uint64_t eng_device_part_bytes(const eng_device *d, eng_part part)
{
    return eng_device_weights_bytes(d->rank[0].weights, part);
}

err_code eng_device_memory_used(const eng_device *d, uint64_t *bytes, err *e)
{
    krn_device_info info;
    TRY(krn_device_use(d->device, e)); /* the figure is the current device's */
    TRY(krn_device_info_get(d->device, &info, e));
    *bytes = info.memory_bytes - info.memory_free_bytes;
    return ERR_OK;
}

err_code eng_copy_speed(krn_stream s, krn_event started, krn_event ended, double *bytes_per_s, err *e)
{
    enum { TRIES = 10 };
    const uint64_t bytes = 1ull << 30;
    void *from = NULL, *to = NULL;
    bool done;
    err_code rc = krn_device_alloc(bytes, &from, e);
    if (rc == ERR_OK) rc = krn_device_alloc(bytes, &to, e);
    *bytes_per_s = 0;
    for (int i = 0; i < TRIES && rc == ERR_OK; i++) {
        double us = 0;
        rc = krn_event_record(started, s, e);
        if (rc == ERR_OK) rc = krn_copy(to, from, bytes, s, e);
        if (rc == ERR_OK) rc = krn_event_record(ended, s, e);
        if (rc == ERR_OK) rc = krn_stream_wait(s, 0, &done, e);
        if (rc == ERR_OK) rc = krn_event_elapsed_us(started, ended, &us, e);
        if (us > 0 && 2.0 * (double)bytes / us * 1e6 > *bytes_per_s) *bytes_per_s = 2.0 * (double)bytes / us * 1e6;
    }
    krn_device_free(from);
    krn_device_free(to);
    return rc;
}

err_code eng_device_copy_speed(eng_device *d, double *bytes_per_s, err *e)
{
    return eng_copy_speed(d->lane[0], d->started, d->ended, bytes_per_s, e);
}

static err_code time_ops(const eng_device_run *r, krn_event *at, double *us, err *e)
{
    enum { HEAD_START_US = 6000 }; /* longer than the host needs to put the whole step on the stream */
    krn_stream s = r->d->stream[r->program->step];
    bool done;
    TRY(krn_delay(HEAD_START_US, s, e));
    TRY(krn_event_record(at[0], s, e));
    for (int32_t i = 0; i < r->program->n_ops; i++) {
        TRY(eng_device_launch_op(r, i, s, e));
        TRY(krn_event_record(at[i + 1], s, e));
    }
    TRY(krn_stream_wait(s, 0, &done, e));
    for (int32_t i = 0; i < r->program->n_ops; i++) TRY(krn_event_elapsed_us(at[i], at[i + 1], &us[i], e));
    return ERR_OK;
}

static err_code profile(const eng_device_run *r, double *us, err *e)
{
    int32_t n = r->program->n_ops + 1;
    krn_event *at = mem_alloc((size_t)n, sizeof *at);
    err_code rc = at ? ERR_OK : err_set(e, ERR_NOMEM, "bench: no memory for %d events", n);
    for (int32_t i = 0; i < n && rc == ERR_OK; i++) rc = krn_event_open(true, &at[i], e);
    if (rc == ERR_OK) rc = time_ops(r, at, us, e);
    for (int32_t i = 0; at && i < n; i++) krn_event_close(at[i]);
    free(at);
    return rc;
}

err_code eng_device_profile(eng_device *d, const eng_device_draft *in, double *us, err *e)
{
    eng_device_run r = { d, d->program[ENG_STEP_DRAFT], eng_extents_of(&d->config, in->batch * d->config.block, in->batch,
                                                                      in->n_out) };
    /* The ordinary step first: it brings the inputs to the device and loads every kernel. */
    TRY(eng_device_run_draft(d, in, NULL, e));
    return profile(&r, us, e);
}

err_code eng_device_profile_insert(eng_device *d, int32_t rows, double *us, err *e)
{
    eng_device_run r = { d, d->program[ENG_STEP_INSERT], eng_extents_of(&d->config, rows, 1, 1) };
    TRY(krn_device_use(d->device, e));
    return profile(&r, us, e);
}
