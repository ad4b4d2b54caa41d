#include "serve/drive_faults.h"

#include <errno.h>
#include <string.h>

static const char *const NAMES[] = {
#define X(id, name) name,
    SRV_FAULT_LIST(X)
#undef X
};

enum { DEFAULT_DELAY_NS = 5000000 };

const char *srv_fault_name(srv_fault f) { return f < SRV_FAULT_COUNT ? NAMES[f] : "none"; }

static err_code parse_item(const char *item, size_t bytes, srv_fault_plan *out, err *e)
{
    const char *colon = memchr(item, ':', bytes);
    size_t name_bytes = colon ? (size_t)(colon - item) : bytes;
    char *end = NULL;
    errno = 0;
    double p = colon ? strtod(colon + 1, &end) : 0;
    if (!colon || errno || end != item + bytes || end == colon + 1 || !(p > 0 && p <= 1))
        return err_set(e, ERR_ARG, "--faults: found '%.*s', wanted KIND:P with 0 < P <= 1", (int)bytes, item);
    bool all = name_bytes == 3 && memcmp(item, "all", 3) == 0, found = all;
    for (int f = 0; f < SRV_FAULT_COUNT; f++) {
        bool same = strlen(NAMES[f]) == name_bytes && memcmp(NAMES[f], item, name_bytes) == 0;
        if (same || all) out->p[f] = p;
        found = found || same;
    }
    if (found) return ERR_OK;
    return err_set(e, ERR_ARG,
                   "--faults: found kind '%.*s', wanted drop, delay, reorder, truncate, wrong-epoch, wrong-slot, "
                   "half-open or all", (int)name_bytes, item);
}

err_code srv_faults_parse(const char *text, srv_fault_plan *out, err *e)
{
    *out = (srv_fault_plan){ .delay_ns = DEFAULT_DELAY_NS };
    const char *at = strchr(text, '@'), *stop = at ? at : text + strlen(text);
    if (at) {
        char *end;
        errno = 0;
        out->seed = strtoull(at + 1, &end, 10);
        if (errno || *end || end == at + 1 || at[1] == '-')
            return err_set(e, ERR_ARG, "--faults: found seed '%s', wanted a number", at + 1);
    }
    for (const char *item = text; ; ) {
        const char *comma = memchr(item, ',', (size_t)(stop - item));
        size_t bytes = (size_t)((comma ? comma : stop) - item);
        TRY(parse_item(item, bytes, out, e));
        if (!comma) break;
        item = comma + 1;
    }
    double sum = 0;
    for (int f = 0; f < SRV_FAULT_COUNT; f++) sum += out->p[f];
    if (sum > 1) return err_set(e, ERR_ARG, "--faults: found probabilities that add up to %g, wanted at most 1", sum);
    return ERR_OK;
}

/* splitmix64's finaliser. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

srv_fault srv_fault_of(const srv_fault_plan *p, int32_t client, uint64_t turn)
{
    uint64_t h = mix(mix(mix(p->seed + 0x9e3779b97f4a7c15u) + (uint64_t)client + 1) + turn + 1);
    double u = (double)(h >> 11) * 0x1p-53;
    for (int f = 0; f < SRV_FAULT_COUNT; f++) {
        if (u < p->p[f]) return (srv_fault)f;
        u -= p->p[f];
    }
    return SRV_NO_FAULT;
}
