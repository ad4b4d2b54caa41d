/* Building blocks of program_insert.c and program_draft.c: append values and ops to a program. */
#ifndef ENGINE_PROGRAM_BUILD_H
#define ENGINE_PROGRAM_BUILD_H

#include "engine/program.h"

enum { ENG_NO_STAGE = -1 };

typedef struct eng_builder {
    eng_program *p;
    size_t cap_values, cap_ops;
    int32_t stage;  /* prefix of names: "s{stage}."; ENG_NO_STAGE: none */
    bool no_memory; /* sticky; checked once at the end */
} eng_builder;

typedef struct eng_form { fmt_dtype dtype; int32_t ndim; eng_dim dim[3]; } eng_form;
#define ENG_FORM(dtype, n, ...) ((eng_form){ FMT_DTYPE_##dtype, n, { __VA_ARGS__ } })

/* Appends a value, replicated, with no producer yet; returns its index. name without the stage prefix. */
int32_t eng_build_value(eng_builder *b, const char *name, eng_form form, eng_level level);
int32_t eng_build_sharded(eng_builder *b, const char *name, eng_form form, int32_t axis, eng_level level);
int32_t eng_build_partial(eng_builder *b, const char *name, eng_form form, eng_level level);

typedef struct eng_refs { int32_t n; int32_t id[ENG_OP_INS]; } eng_refs;
#define ENG_REFS(...) ((eng_refs){ sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t), { __VA_ARGS__ } })
#define ENG_NONE ((eng_refs){ 0, { 0 } })

/* Appends an op named after its first output (without a trailing '~'): in, out are value indices, weights are eng_wid. */
void eng_build_op(eng_builder *b, eng_kind kind, eng_refs in, eng_refs out, eng_refs weights);
/* y = sum over ranks of a PARTIAL value; the value itself with one rank. hidden_name names the sum. */
int32_t eng_build_all_reduce(eng_builder *b, int32_t value, const char *hidden_name);

/* What a product with a weight of kind id takes for x: its QDQ, a new hidden value of that name, or x itself where the
 * weight is EXL3. */
int32_t eng_build_operand(eng_builder *b, int32_t x, const char *name, eng_wid id);

/* kv_norm(wkv(x)), RoPE at pos, QDQ: the latent row of a stage, into value `out`. x_q is wkv's operand. Shared by insert
 * (context rows) and draft (block rows). */
void eng_build_latent(eng_builder *b, int32_t x_q, int32_t pos, int32_t out);

void eng_build_insert(eng_builder *b);
void eng_build_draft(eng_builder *b);

#endif
