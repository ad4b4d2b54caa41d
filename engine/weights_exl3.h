/* EXL3 tensors of a checkpoint (formats/exl3.h): checked one by one, then put together as views. Private to weights.c. */
#ifndef ENGINE_WEIGHTS_EXL3_H
#define ENGINE_WEIGHTS_EXL3_H

#include "engine/inventory.h"
#include "engine/tensor_check.h"
#include "kernels/linear.h"

/* Checks dtype and shape of a stored EXL3 tensor, the value of a marker, and fills in s what only the file says.
 * ERR_IDENTITY. */
MUST_USE err_code eng_exl3_check(eng_tensor_spec *s, const eng_stored *stored, err *e);

/* The EXL3 form of one weight, while its parts are found. data: aligned for their types. */
typedef struct eng_exl3_parts {
    const eng_tensor_spec *spec[ENG_EXL3_COUNT]; /* NULL: not stored */
    const void *data[ENG_EXL3_COUNT];
} eng_exl3_parts;
/* The view of the whole weight, n x k, over its parts. suh and svh are set but for those that are stored as signs.
 * ERR_IDENTITY: two markers. */
MUST_USE err_code eng_exl3_view(const eng_exl3_parts *p, int32_t n, int32_t k, krn_weight *out, err *e);
/* Packed signs as factors: 1 or -1 in fp16, 16 for every word, malloc'd. NULL: no memory. */
uint16_t *eng_exl3_signs(const uint16_t *words, int64_t n_words);

#endif
