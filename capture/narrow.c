#include "capture/narrow.h"

#include "base/cli.h"
#include "base/mem.h"
#include "formats/number.h"

#include <limits.h>

bool cap_name_dtype(const char *name, fmt_dtype *out)
{
    static const struct { const char *names; fmt_dtype dtype; } TABLE[] = {
        { "pos,draft.slots,draft.anchor,draft.pos,draft.n_out,ids,block_pos,s*.ffn.ids,drafts,head.*.top_ids",
          FMT_DTYPE_I32 },
        { "s*.mix_pre,s*.mix_post,s*.mix_comb,s*.ffn.scores,s*.ffn.weights,s*.ffn.slot,s*.ffn.shared,head.logits,"
          "head.biased,head.*.top,confidence", FMT_DTYPE_F32 },
        { "taps,main_x,x0,s*.main_kv,s*.window,s*.attn.*,s*.attn_out,s*.ffn.*,s*.ffn_out,s*.out,head.collapse,head.norm",
          FMT_DTYPE_BF16 },
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof TABLE[0]; i++)
        if (cli_match(TABLE[i].names, name)) {
            *out = TABLE[i].dtype;
            return true;
        }
    return false;
}

static double f16_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 0x3ff;
    double v = ldexp(1024 + fraction, exponent - 25);
    if (exponent == 0) v = ldexp(fraction, -24);
    if (exponent == 31) v = fraction ? (double)NAN : (double)INFINITY;
    return h & 0x8000 ? -v : v;
}

static bool is_float(fmt_dtype d)
{
    return d == FMT_DTYPE_F64 || d == FMT_DTYPE_F32 || d == FMT_DTYPE_F16 || d == FMT_DTYPE_BF16;
}

/* Element i of a float tensor; data may lie at any byte. */
static double element(const fmt_tensor *t, int64_t i)
{
    const uint8_t *p = (const uint8_t *)t->data + i * (int64_t)fmt_dtype_bytes(t->dtype);
    uint16_t half;
    float f;
    double d;
    switch (t->dtype) {
    case FMT_DTYPE_F64: memcpy(&d, p, sizeof d); return d;
    case FMT_DTYPE_F32: memcpy(&f, p, sizeof f); return (double)f;
    case FMT_DTYPE_F16: memcpy(&half, p, sizeof half); return f16_value(half);
    default: memcpy(&half, p, sizeof half); return (double)f32_from_bf16(half);
    }
}

int64_t cap_narrow(const fmt_tensor *t, fmt_dtype to, void *dst)
{
    int64_t n = fmt_tensor_elems(t), inexact = 0;
    if (t->dtype == FMT_DTYPE_I64 && to == FMT_DTYPE_I32) {
        for (int64_t i = 0; i < n; i++) {
            int64_t v;
            memcpy(&v, (const uint8_t *)t->data + 8 * i, sizeof v);
            inexact += v < INT32_MIN || v > INT32_MAX;
            ((int32_t *)dst)[i] = (int32_t)v;
        }
        return inexact;
    }
    if (!is_float(t->dtype) || (to != FMT_DTYPE_BF16 && to != FMT_DTYPE_F32)) return -1;
    for (int64_t i = 0; i < n; i++) {
        double v = element(t, i);
        float f = (float)v;
        if (to == FMT_DTYPE_F32) ((float *)dst)[i] = f;
        else f = f32_from_bf16(((bf16 *)dst)[i] = bf16_from_f32(f));
        inexact += v == v && (double)f != v;
    }
    return inexact;
}

err_code cap_put_named(fmt_tape_writer *w, const fmt_tape_key *key, const fmt_tensor *given, cap_as *as, err *e)
{
    fmt_tensor t = *given;
    fmt_dtype wanted;
    void *narrowed = NULL;
    *as = CAP_AS_GIVEN;
    if (cap_name_dtype(key->name, &wanted) && wanted != t.dtype) {
        narrowed = mem_alloc_aligned((size_t)fmt_tensor_elems(&t), fmt_dtype_bytes(wanted));
        if (!narrowed) return err_set(e, ERR_NOMEM, "%s: no memory for its copy", key->name);
        *as = cap_narrow(&t, wanted, narrowed) == 0 ? CAP_AS_NAMED : CAP_AS_OTHER;
        if (*as == CAP_AS_NAMED) {
            t.dtype = wanted;
            t.data = narrowed;
        }
    }
    err_code rc = fmt_tape_put(w, key, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e);
    free(narrowed);
    return rc;
}
