/* A value as the model has it, whatever the rank count: shards joined along their axis, partials summed in rank order,
 * replicated copies taken from the lowest recorded rank (and compared: a disagreement is reported, not hidden). Where a
 * slot was inserted into several times in a round, its rows are those of all inserts, in order, and its window is the
 * last one. */
#ifndef CAPTURE_JOINED_H
#define CAPTURE_JOINED_H

#include "formats/tape.h"

typedef struct cap_value {
    fmt_tensor tensor;    /* data owned by this struct */
    fmt_place place;      /* of the recorded parts */
    int32_t n_ranks;
    int32_t ranks_differ; /* first rank whose replicated copy differs from the first one, 0: none */
    void *owned;
} cap_value;

/* round, slot and name of key; its rank is ignored. ERR_INPUT: absent, or a rank's shard or partial is missing (named), or
 * the parts do not fit each other, or the tier has no payload. ERR_FORMAT: damaged. ERR_NOMEM. Buffers in *v are reused
 * when large enough: zero it before the first call. After an error v->tensor.data is NULL. */
MUST_USE err_code cap_joined_get(const fmt_tape *t, const fmt_tape_key *key, cap_value *v, err *e);
/* What the key's rank alone recorded, whole or its part: of all inserts of a slot. Errors as above. */
MUST_USE err_code cap_rank_get(const fmt_tape *t, const fmt_tape_key *key, cap_value *v, err *e);
/* One record as it stands, nothing joined (i: record index). Errors as above. */
MUST_USE err_code cap_record_get(const fmt_tape *t, size_t i, cap_value *v, err *e);
void cap_value_fini(cap_value *v);

/* The distinct (round, slot, name) of a tape in writing order, ranks folded: what export, diff and the browser walk. */
typedef struct cap_names cap_names;
typedef struct cap_name {
    int32_t round, slot;
    const char *name;
    uint32_t first_record;
    int32_t order; /* cap_name_order(name) */
} cap_name;
MUST_USE err_code cap_names_make(const fmt_tape *t, cap_names **out, err *e);
void cap_names_free(cap_names *n); /* NULL is a no-op */
size_t cap_names_count(const cap_names *n);
const cap_name *cap_names_at(const cap_names *n, size_t i);
int64_t cap_names_find(const cap_names *n, int32_t round, int32_t slot, const char *name); /* -1: none */

/* Export names (docs/values.md): "round.{r}.insert.{slot}.{value}", "round.{r}.{value}", "round.{r}.window.{slot}.s{k}",
 * "round.{r}.draft.{slots|anchor|pos|n_out}". In a tape: insert values have the slot; windows are "s{k}.window" with the
 * slot; draft inputs are "draft.slots", "draft.anchor", "draft.pos", "draft.n_out" without slot. */
enum { CAP_EXPORT_NAME = 192 }; /* the longest value name, two numbers, the fixed words and ".rank{r}" */
void cap_export_name(int32_t round, int32_t slot, const char *name, char out[CAP_EXPORT_NAME]);
/* The way back, for exactly the names that cap_export_name makes. false: not such a name. name_out: FMT_TAPE_NAME_BYTES. */
bool cap_export_parse(const char *export_name, int32_t *round, int32_t *slot, char *name_out);
/* Where a value stands among those of its round and slot in program order; names that docs/values.md does not list come
 * last, all alike. Draft inputs come before windows, windows before the draft step's values. */
int32_t cap_name_order(const char *name);
bool cap_name_known(const char *name); /* docs/values.md lists it */
enum { CAP_ORDER_DRAFT = 1 << 16 }; /* the first order of the draft step; smaller ones are an insert's */

#endif
