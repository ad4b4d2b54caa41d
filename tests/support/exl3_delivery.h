/* An EXL3 delivery beside a checkpoint, without an encoder: every bit pattern is a valid tile, so random words are weights.
 * Not those of the official tensors, but as large. */
#ifndef TESTS_SUPPORT_EXL3_DELIVERY_H
#define TESTS_SUPPORT_EXL3_DELIVERY_H

#include "tests/support/ok.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "engine/inventory.h"
#include "engine/noise.h"
#include "formats/exl3.h"
#include "formats/safetensors.h"

typedef struct exl3_delivery {
    int32_t experts, dense, head; /* bits; 0: the part is left out */
    fmt_exl3_codebook codebook;
    uint64_t seed;
} exl3_delivery;

static inline int32_t exl3_delivery_bits(const exl3_delivery *d, eng_wid id)
{
    const eng_part part = eng_wkind_of(id)->part;
    return part == ENG_PART_EXPERTS ? d->experts : part == ENG_PART_DENSE ? d->dense : d->head;
}

/* The tensors of a delivery have one of these parts. */
static inline bool exl3_delivery_has(const exl3_delivery *d, const eng_tensor_spec *s)
{
    if (exl3_delivery_bits(d, s->wid) == 0) return false;
    if (s->exl3 == ENG_EXL3_MCG) return d->codebook == FMT_EXL3_MCG;
    if (s->exl3 == ENG_EXL3_MUL1) return d->codebook == FMT_EXL3_MUL1;
    return s->exl3 == ENG_EXL3_TRELLIS || s->exl3 == ENG_EXL3_SUH || s->exl3 == ENG_EXL3_SVH;
}

/* One tensor's bytes. */
static inline void exl3_delivery_fill(const exl3_delivery *d, const eng_tensor_spec *s, uint16_t *to, size_t n)
{
    const uint64_t key = eng_noise_key(d->seed, s->name);
    if (s->exl3 == ENG_EXL3_MCG || s->exl3 == ENG_EXL3_MUL1) {
        const int32_t marker = fmt_exl3_codebook_marker(d->codebook);
        memcpy(to, &marker, sizeof marker);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = eng_noise_bits(key, i);
        const float size = (float)(0.75 + 0.5 * eng_noise_uniform(bits)) * (s->exl3 == ENG_EXL3_SUH ? 0.03f : 1);
        to[i] = s->exl3 == ENG_EXL3_TRELLIS ? (uint16_t)bits : fp16_from_f32(bits & 1 ? -size : size);
    }
}

/* Writes FOLDER/exl3-1.safetensors and adds its tensors to the folder's index. */
static inline void exl3_delivery_write(const char *folder, const eng_config *c, const exl3_delivery *d)
{
    eng_tensor_spec *spec;
    size_t n, used = 0;
    char path[4096];
    json_t *index = NULL;
    fmt_safetensors_writer *w;
    OK(eng_inventory_exl3(c, &spec, &n, e));
    fmt_safetensors_decl *decl = mem_alloc(n, sizeof *decl);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    OK(fmt_json_read(path, 64 << 20, &index, e));
    for (size_t i = 0; i < n; i++) {
        if (!exl3_delivery_has(d, &spec[i])) continue;
        if (spec[i].exl3 == ENG_EXL3_TRELLIS) spec[i].shape[2] = FMT_EXL3_TILE * exl3_delivery_bits(d, spec[i].wid);
        spec[used] = spec[i];
        decl[used] = (fmt_safetensors_decl){ .name = spec[used].name, .dtype = spec[used].dtype, .ndim = spec[used].ndim };
        for (int32_t k = 0; k < spec[used].ndim; k++) decl[used].shape[k] = spec[used].shape[k];
        json_object_set_new(json_object_get(index, "weight_map"), spec[used].name, json_string("exl3-1.safetensors"));
        used++;
    }
    OK(fmt_json_write(path, index, e));
    json_decref(index);
    snprintf(path, sizeof path, "%s/exl3-1.safetensors", folder);
    OK(fmt_safetensors_create(path, decl, used, NULL, &w, e));
    for (size_t i = 0; i < used; i++) {
        size_t words = 1;
        for (int32_t k = 0; k < spec[i].ndim; k++) words *= (size_t)spec[i].shape[k];
        uint16_t *data = mem_alloc(words + 2, sizeof *data);
        exl3_delivery_fill(d, &spec[i], data, words);
        fmt_safetensors_put(w, data, words * fmt_dtype_bytes(spec[i].dtype));
        free(data);
    }
    OK(fmt_safetensors_finish(w, e));
    free(decl);
    free(spec);
}

#endif
