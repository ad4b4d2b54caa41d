/* A dense number for every tensor kind of every stage and expert: the index of the arrays that hold one view per weight.
 * Private to the weight files. */
#ifndef ENGINE_INVENTORY_INDEX_H
#define ENGINE_INVENTORY_INDEX_H

#include "engine/inventory.h"

#include <stddef.h>

/* How many weights a config has; a quantised one counts once. */
size_t eng_weight_count(const eng_config *c);
/* Index below eng_weight_count. stage and expert are looked at only where the kind has them, and must be in range there. */
size_t eng_weight_index(const eng_config *c, eng_wid id, int32_t stage, int32_t expert);
/* Stages and experts that a kind is repeated over; 1 where it is not. */
int32_t eng_wid_stages(const eng_config *c, eng_wid id);
int32_t eng_wid_experts(const eng_config *c, eng_wid id);
/* The name without .weight or .scale, as messages show it: "mtp.2.ffn.experts.7.w1". Returns buf. */
const char *eng_weight_name(const eng_config *c, eng_wid id, int32_t stage, int32_t expert, char buf[ENG_TENSOR_NAME]);

#endif
