/* What the files of pairs share: calls that run the kernel on a card and its twin on the CPU, and arrays in one line. */
#ifndef ENGINE_AB_SIDES_H
#define ENGINE_AB_SIDES_H

#include "engine/ab.h"

#include "base/mem.h"

#ifdef HAVE_CUDA
#define AB_CARD(call) TRY(call)
#else
#define AB_CARD(call) return err_set(e, ERR_DEVICE, "this build has no CUDA backend")
#endif
/* A kernel whose twin takes the same arguments; a kernel whose twin also takes an accumulation mode. c: the ab_call. */
#define AB_RUN(kernel, ...)                                                  \
    do {                                                                     \
        if (c->on_card) AB_CARD(kernel(__VA_ARGS__, c->stream, e));          \
        else kernel##_ref(__VA_ARGS__);                                      \
    } while (0)
#define AB_RUN_ACC(kernel, ...)                                              \
    do {                                                                     \
        if (c->on_card) AB_CARD(kernel(__VA_ARGS__, c->stream, e));          \
        else kernel##_ref(__VA_ARGS__, KRN_ACC_BLOCKED);                     \
    } while (0)

#define AB_BIT(kind) (1u << (kind))
enum {
    AB_NUMBERS = AB_BIT(AB_ZEROS) | AB_BIT(AB_TIES) | AB_BIT(AB_DENORMAL) | AB_BIT(AB_HUGE),
    /* Where a bound must hold: an infinity is in none, and bounds do not count what products of subnormals lose. */
    AB_BOUNDED = AB_BIT(AB_ZEROS) | AB_BIT(AB_TIES),
};

static inline ab_array ab_bf16(const char *name, int64_t n, float scale)
{
    return (ab_array){ name, AB_IN, FMT_DTYPE_BF16, n, scale };
}
static inline ab_array ab_f32(const char *name, int64_t n, float scale)
{
    return (ab_array){ name, AB_IN, FMT_DTYPE_F32, n, scale };
}
static inline ab_array ab_i32(const char *name, int64_t n) { return (ab_array){ name, AB_IN, FMT_DTYPE_I32, n, 0 }; }
static inline ab_array ab_out(const char *name, fmt_dtype type, int64_t n)
{
    return (ab_array){ name, AB_OUT, type, n, 0 };
}
static inline ab_array ab_work(const char *name, fmt_dtype type, int64_t n)
{
    return (ab_array){ name, AB_WORK, type, n, 0 };
}
static inline ab_array ab_weight(const char *name, fmt_dtype type, int64_t n)
{
    return (ab_array){ name, AB_WEIGHT, type, n, 0 };
}

#endif
