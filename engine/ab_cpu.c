/* The CPU as a device of ab: memory is the host's, sides run the twins, a unit is one run timed by the clock. */
#include "engine/ab.h"

#include "base/clock.h"
#include "base/mem.h"

typedef struct cpu_unit { ab_launch_fn launch; void *ctx; int32_t n; } cpu_unit;

static err_code take(ab_device *d, uint64_t bytes, void **out, err *e)
{
    (void)d;
    *out = mem_alloc_aligned(bytes ? bytes : 1, 1);
    return *out ? ERR_OK : err_set(e, ERR_NOMEM, "ab: no memory for %llu bytes", (unsigned long long)bytes);
}

static void give(ab_device *d, void *memory)
{
    (void)d;
    free(memory);
}

static err_code copy(ab_device *d, void *to, const void *from, uint64_t bytes, err *e)
{
    (void)d, (void)e;
    memcpy(to, from, bytes);
    return ERR_OK;
}

static err_code fill(ab_device *d, void *to, uint8_t byte, uint64_t bytes, err *e)
{
    (void)d, (void)e;
    memset(to, byte, bytes);
    return ERR_OK;
}

static err_code unit_open(ab_device *d, ab_launch_fn launch, void *ctx, int32_t n, bool graph, void **out, err *e)
{
    (void)d, (void)graph;
    cpu_unit *u = mem_alloc(1, sizeof *u);
    *out = u;
    if (!u) return err_set(e, ERR_NOMEM, "ab: no memory");
    *u = (cpu_unit){ launch, ctx, n };
    return ERR_OK;
}

static err_code unit_time(ab_device *d, void *unit, double *us, err *e)
{
    (void)d;
    const cpu_unit *u = unit;
    const uint64_t start = clock_ns();
    for (int32_t i = 0; i < u->n; i++) TRY(u->launch(u->ctx, i, e));
    const uint64_t took = clock_ns() - start;
    *us = (double)(took ? took : 1) * 1e-3; /* a clock that is coarser than the run must not give 0 to divide by */
    return ERR_OK;
}

static void unit_close(ab_device *d, void *unit)
{
    (void)d;
    free(unit);
}

/* Of 32 MiB twice, which few caches hold. */
static err_code copy_speed(ab_device *d, err *e)
{
    enum { BYTES = 1 << 25, TRIES = 3 };
    uint8_t *from = mem_alloc_aligned(BYTES, 1), *to = mem_alloc_aligned(BYTES, 1);
    err_code rc = from && to ? ERR_OK : err_set(e, ERR_NOMEM, "ab: no memory for %d bytes", (int)BYTES);
    for (int i = 0; i < TRIES && rc == ERR_OK; i++) {
        from[i] = (uint8_t)(i + 1); /* each copy is another one */
        const uint64_t start = clock_ns();
        memcpy(to, from, BYTES);
        const double speed = to[i] == i + 1 ? 2.0 * BYTES / ((double)(clock_ns() - start) * 1e-9) : 0;
        if (speed > d->copy_bytes_per_s) d->copy_bytes_per_s = speed;
    }
    free(from);
    free(to);
    return rc;
}

err_code ab_cpu_open(ab_device *out, err *e)
{
    *out = (ab_device){ .nodes = 1, .take = take, .give = give, .copy = copy, .fill = fill, .unit_open = unit_open,
                        .unit_time = unit_time, .unit_close = unit_close };
    snprintf(out->name, sizeof out->name, "CPU twins, %s", krn_isa_name(krn_isa_get()));
    return copy_speed(out, e);
}
