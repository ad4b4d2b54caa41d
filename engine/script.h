/* Scripts: what a client would send, as a safetensors file (docs/values.md), checked as a whole before anything runs. */
#ifndef ENGINE_SCRIPT_H
#define ENGINE_SCRIPT_H

#include "engine/config.h"
#include "formats/number.h"
#include "formats/safetensors.h"

typedef struct eng_insert_event { int32_t slot, rows; const bf16 *taps; const int32_t *pos; } eng_insert_event;
typedef struct eng_round {
    int32_t round;
    int32_t n_inserts;
    const eng_insert_event *inserts;   /* by ascending slot */
    int32_t batch;                     /* 0: no draft in this round */
    const int32_t *slots, *anchors, *pos;
    int32_t n_out;
} eng_round;

typedef struct eng_script eng_script;
/* Maps and checks path against c: names, widths, dtypes, counts, positions per slot, finite taps, anchors, n_out, draft
 * after insert with the rows it needs. ERR_FORMAT, or ERR_INPUT that names round and slot and what is wrong. Slots are any
 * int32 >= 0; eng_script_dense maps them to 0.. in first-use order. */
MUST_USE err_code eng_script_open(const char *path, const eng_config *c, eng_script **out, err *e);
void eng_script_close(eng_script *s);
int32_t eng_script_rounds(const eng_script *s);
const eng_round *eng_script_at(const eng_script *s, int32_t i); /* ascending round numbers */
int32_t eng_script_slots(const eng_script *s);                  /* distinct slots */
bool eng_script_synthetic(const eng_script *s); /* the file says that no target took these rows: of engine/traffic.h */
int32_t eng_script_dense(const eng_script *s, int32_t slot);    /* engine slot of a script slot */

/* The position rule shared with the server: whether rows at first..first+n-1 may follow `last` (-1: nothing yet). */
bool eng_positions_follow(int32_t last, const int32_t *pos, int32_t rows, int32_t *bad_row);

#endif
