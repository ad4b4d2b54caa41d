#include "engine/poison.h"

#include "engine/exec.h"

static const uint32_t FLOATS[ENG_POISONS + 1] = { 0, 0x7fa57fa5, 0x4e4e4e4e };

void eng_poison_fill(int32_t pattern, fmt_dtype dtype, void *data, size_t bytes)
{
    uint32_t *word = data, with = dtype == FMT_DTYPE_I32 ? (uint32_t)pattern : FLOATS[pattern];
    for (size_t i = 0; i < bytes / sizeof *word; i++) word[i] = with;
}

/* Inputs stand in the caller's memory, their places in the arena are not read. */
static void fill(eng_step *s, int32_t v)
{
    if (s->plan.offset[v] == UINT64_MAX) return;
    eng_poison_fill(s->poison, s->program->value[v].dtype, (uint8_t *)s->arena + s->plan.offset[v], s->plan.room[v]);
}

void eng_poison_step(eng_step *s)
{
    eng_poison_fill(s->poison, FMT_DTYPE_F32, s->arena, s->plan.bytes);
}

void eng_poison_op(eng_step *s, int32_t i)
{
    const eng_op *op = &s->program->op[i], *before = i > 0 ? op - 1 : NULL;
    for (int k = 0; before && k < before->n_in; k++)
        if (s->plan.last[before->in[k]] == i - 1) fill(s, before->in[k]);
    for (int k = 0; k < op->n_out; k++) fill(s, op->out[k]);
}
