#include "engine/weights_exl3.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "formats/exl3.h"

enum { SIGNS_PER_WORD = 16, FP16_ONE = 0x3c00, FP16_MINUS_ONE = 0xbc00 };

static bool is_marker(eng_exl3 part) { return part == ENG_EXL3_MCG || part == ENG_EXL3_MUL1; }

/* Bit patterns: a U16 or U32 holds the same. */
static bool same_dtype(fmt_dtype wanted, fmt_dtype found)
{
    return found == wanted || (wanted == FMT_DTYPE_I16 && found == FMT_DTYPE_U16) ||
           (wanted == FMT_DTYPE_I32 && found == FMT_DTYPE_U32);
}

/* Some writers store the marker as a scalar, some as a vector of one, some as an empty one whose name says it all. */
static err_code check_marker(const eng_tensor_spec *s, const eng_stored *stored, err *e)
{
    const fmt_tensor *t = &stored->entry->tensor;
    const fmt_exl3_codebook c = s->exl3 == ENG_EXL3_MCG ? FMT_EXL3_MCG : FMT_EXL3_MUL1;
    const int64_t elems = fmt_tensor_elems(t);
    int32_t found;
    if (!same_dtype(s->dtype, t->dtype) || t->ndim > 1 || elems > 1) {
        char text[160];
        return err_set(e, ERR_IDENTITY, "%s: tensor %s: found %s, wanted one I32", fmt_safetensors_path(stored->shard),
                       s->name, fmt_tensor_text(t, text, sizeof text));
    }
    if (elems == 0) return ERR_OK;
    memcpy(&found, t->data, sizeof found);
    if (found == fmt_exl3_codebook_marker(c)) return ERR_OK;
    return err_set(e, ERR_IDENTITY, "%s: tensor %s: found multiplier %" PRId32 ", wanted %" PRId32 ": codebooks of other "
                   "multipliers are not read", fmt_safetensors_path(stored->shard), s->name, found,
                   fmt_exl3_codebook_marker(c));
}

err_code eng_exl3_check(eng_tensor_spec *s, const eng_stored *stored, err *e)
{
    const fmt_tensor *t = &stored->entry->tensor;
    const char *path = fmt_safetensors_path(stored->shard);
    char a[160], b[160];
    if (is_marker(s->exl3)) {
        s->ndim = t->ndim;
        s->shape[0] = t->ndim ? t->shape[0] : 0;
        return check_marker(s, stored, e);
    }
    bool same = same_dtype(s->dtype, t->dtype) && t->ndim == s->ndim;
    for (int32_t d = 0; same && d < (s->exl3 == ENG_EXL3_TRELLIS ? 2 : s->ndim); d++) same = t->shape[d] == s->shape[d];
    if (same && s->exl3 == ENG_EXL3_TRELLIS) {
        const int64_t words = t->shape[2];
        if (words % FMT_EXL3_TILE != 0 && words % (FMT_EXL3_TILE / 2) == 0 && words > 0)
            return err_set(e, ERR_IDENTITY, "%s: tensor %s: found %" PRId64 " words a tile, %.1f bits a weight: half bits "
                           "are not read, wanted 16 words for each of 1 to %d bits", path, s->name, words,
                           (double)words / FMT_EXL3_TILE, FMT_EXL3_BITS_MAX);
        if (words % FMT_EXL3_TILE != 0 || words < FMT_EXL3_TILE || words > FMT_EXL3_TILE * FMT_EXL3_BITS_MAX)
            return err_set(e, ERR_IDENTITY, "%s: tensor %s: found %" PRId64 " words a tile, wanted 16 for each of 1 to %d "
                           "bits", path, s->name, words, FMT_EXL3_BITS_MAX);
        s->shape[2] = words;
    }
    if (same) return ERR_OK;
    fmt_tensor wanted = fmt_tensor_make(s->dtype, NULL, s->ndim, s->shape);
    if (s->exl3 == ENG_EXL3_TRELLIS)
        snprintf(b, sizeof b, "I16 [%" PRId64 ", %" PRId64 ", 16 x bits]", s->shape[0], s->shape[1]);
    else
        fmt_tensor_text(&wanted, b, sizeof b);
    return err_set(e, ERR_IDENTITY, "%s: tensor %s: found %s, wanted %s", path, s->name, fmt_tensor_text(t, a, sizeof a),
                   b);
}

err_code eng_exl3_view(const eng_exl3_parts *p, int32_t n, int32_t k, krn_weight *out, err *e)
{
    const eng_tensor_spec *trellis = p->spec[ENG_EXL3_TRELLIS];
    const eng_tensor_spec *mcg = p->spec[ENG_EXL3_MCG], *mul1 = p->spec[ENG_EXL3_MUL1];
    if (mcg && mul1)
        return err_set(e, ERR_IDENTITY, "tensors %s and %s: found two codebooks of one weight, wanted one", mcg->name,
                       mul1->name);
    const int32_t bits = (int32_t)(trellis->shape[2] / FMT_EXL3_TILE);
    const int64_t tile_bytes = fmt_exl3_tile_bytes(bits);
    *out = (krn_weight){
        .format = KRN_W_EXL3, .n = n, .k = k, .data = p->data[ENG_EXL3_TRELLIS],
        .row_bytes = trellis->shape[1] * tile_bytes,
        .exl3 = { .bits = bits, .codebook = mcg ? FMT_EXL3_MCG : mul1 ? FMT_EXL3_MUL1 : FMT_EXL3_3INST,
                  .block_bytes = FMT_EXL3_BLOCK / FMT_EXL3_TILE * tile_bytes, .suh = p->data[ENG_EXL3_SUH],
                  .svh = p->data[ENG_EXL3_SVH] } };
    return ERR_OK;
}

uint16_t *eng_exl3_signs(const uint16_t *words, int64_t n_words)
{
    uint16_t *out = mem_alloc((size_t)n_words * SIGNS_PER_WORD, sizeof *out);
    for (int64_t i = 0; out && i < n_words * SIGNS_PER_WORD; i++)
        out[i] = words[i / SIGNS_PER_WORD] >> i % SIGNS_PER_WORD & 1 ? FP16_MINUS_ONE : FP16_ONE;
    return out;
}
