/* Any bytes as a shard of an EXL3 delivery: each tensor with the name of one is refused with one line, or part of a view of
 * which every tile decodes. */
#include "engine/weights_exl3.h"
#include "formats/exl3.h"

#include <string.h>

#include "memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The smallest weight there is, 128 x 128, so that a trellis takes 2 KB a bit. */
enum { SIDE = FMT_EXL3_BLOCK };
static const struct { const char *name; eng_tensor_spec spec; } PARTS[] = {
    { "w.trellis", { .dtype = FMT_DTYPE_I16, .ndim = 3, .shape = { SIDE / 16, SIDE / 16, 0 }, .exl3 = ENG_EXL3_TRELLIS } },
    { "w.suh", { .dtype = FMT_DTYPE_F16, .ndim = 1, .shape = { SIDE }, .exl3 = ENG_EXL3_SUH } },
    { "w.svh", { .dtype = FMT_DTYPE_F16, .ndim = 1, .shape = { SIDE }, .exl3 = ENG_EXL3_SVH } },
    { "w.su", { .dtype = FMT_DTYPE_I16, .ndim = 1, .shape = { SIDE / 16 }, .exl3 = ENG_EXL3_SU } },
    { "w.sv", { .dtype = FMT_DTYPE_I16, .ndim = 1, .shape = { SIDE / 16 }, .exl3 = ENG_EXL3_SV } },
    { "w.mcg", { .dtype = FMT_DTYPE_I32, .ndim = 0, .exl3 = ENG_EXL3_MCG } },
    { "w.mul1", { .dtype = FMT_DTYPE_I32, .ndim = 0, .exl3 = ENG_EXL3_MUL1 } },
};
enum { N_PARTS = sizeof PARTS / sizeof PARTS[0] };

static void check_refusal(err_code rc, const err *e) { CHECK(rc == ERR_IDENTITY && e->msg[0] && !strchr(e->msg, '\n')); }

/* Data of a shard need not be aligned: a copy is. */
static void *copy_of(const fmt_safetensors_entry *x)
{
    void *copy = malloc(x->bytes ? x->bytes : 1);
    CHECK(copy);
    memcpy(copy, x->tensor.data, x->bytes);
    return copy;
}

static void decode(const krn_weight *w)
{
    const int32_t tiles = SIDE / FMT_EXL3_TILE * (SIDE / FMT_EXL3_TILE);
    uint16_t state[FMT_EXL3_TILE_WEIGHTS], tile[16 * FMT_EXL3_BITS_MAX];
    CHECK(w->exl3.bits >= 1 && w->exl3.bits <= FMT_EXL3_BITS_MAX && w->exl3.codebook < FMT_EXL3_CODEBOOKS);
    const size_t bytes = (size_t)fmt_exl3_tile_bytes(w->exl3.bits);
    for (int32_t i = 0; i < tiles; i++) {
        const uint8_t *at = (const uint8_t *)w->data + (size_t)i * bytes;
        fmt_exl3_unpack((const uint16_t *)(const void *)at, w->exl3.bits, state);
        fmt_exl3_pack(state, w->exl3.bits, tile);
        CHECK(memcmp(tile, at, bytes) == 0); /* every bit pattern is a valid tile */
    }
}

static void read_delivery(const fmt_safetensors *f)
{
    eng_tensor_spec spec[N_PARTS];
    eng_exl3_parts p = { 0 };
    krn_weight w;
    err e = { 0 };
    void *data[N_PARTS] = { NULL };
    for (int i = 0; i < N_PARTS; i++) {
        const fmt_safetensors_entry *x = fmt_safetensors_find(f, PARTS[i].name);
        if (!x) continue;
        spec[i] = PARTS[i].spec;
        strcpy(spec[i].name, PARTS[i].name);
        const eng_stored stored = { x, f };
        err_code rc = eng_exl3_check(&spec[i], &stored, &e);
        if (rc != ERR_OK) {
            check_refusal(rc, &e);
            continue;
        }
        p.spec[spec[i].exl3] = &spec[i];
        p.data[spec[i].exl3] = data[i] = copy_of(x);
    }
    if (p.spec[ENG_EXL3_SU]) {
        uint16_t *signs = eng_exl3_signs(p.data[ENG_EXL3_SU], p.spec[ENG_EXL3_SU]->shape[0]);
        CHECK(signs && (signs[SIDE - 1] & 0x7fff) == 0x3c00);
        free(signs);
    }
    if (p.spec[ENG_EXL3_TRELLIS]) {
        err_code rc = eng_exl3_view(&p, SIDE, SIDE, &w, &e);
        if (rc == ERR_OK) decode(&w);
        else check_refusal(rc, &e);
    }
    for (int i = 0; i < N_PARTS; i++) free(data[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[MEMFILE_PATH];
    fmt_safetensors *f;
    err e = { 0 };
    int fd = memfile(data, size, path);
    if (fmt_safetensors_open(path, &f, &e) == ERR_OK) {
        read_delivery(f);
        fmt_safetensors_close(f);
    }
    close(fd);
    return 0;
}
