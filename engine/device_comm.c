#include "engine/device_comm.h"

#include "base/mem.h"
#include "engine/bootstrap.h"
#include "engine/config.h"
#include "engine/device.h"
#include "kernels/reduce.h"

#ifdef HAVE_NCCL
#include <nccl.h>
#endif

struct eng_device_comm {
    eng_comm_kind kind;
    int32_t rank, n_ranks; /* rank: of this group's first (NCCL: only) rank */
    eng_peers *peers;      /* ranks in other processes; NULL: none */
#ifdef HAVE_NCCL
    ncclComm_t nccl;
    float *parts; /* n_ranks above 2: [n_ranks][elems_max], the gathered partials */
    int64_t elems_max;
#endif
};

#ifdef HAVE_NCCL
static err_code nccl_failed(ncclResult_t rc, const char *what, err *e)
{
    return err_set(e, ERR_COMM, "NCCL: %s: %s", what, ncclGetErrorString(rc));
}
#define NCCL_TRY(call)                                                \
    do {                                                              \
        ncclResult_t rc_ = (call);                                    \
        if (rc_ != ncclSuccess) return nccl_failed(rc_, #call, e);    \
    } while (0)
#endif

err_code eng_device_comm_check(const eng_options *o, err *e)
{
    int32_t n = krn_device_count(), wanted = o->comm == ENG_COMM_NCCL && !o->bootstrap ? o->n_ranks : 1;
    if (n == 0) return err_set(e, ERR_DEVICE, "--backend cuda: found no CUDA device on this machine");
    if (n < wanted)
        return err_set(e, ERR_DEVICE, "--tp %d --comm nccl: found %d CUDA devices, wanted %d: --comm emulated runs all "
                       "ranks on one", o->n_ranks, n, wanted);
#ifndef HAVE_NCCL
    if (o->comm == ENG_COMM_NCCL && o->n_ranks > 1)
        return err_set(e, ERR_DEVICE, "--comm nccl: this build has no NCCL, wanted emulated");
#endif
    return ERR_OK;
}

#ifdef HAVE_NCCL
/* Room to gather the partials of more than two ranks. */
static err_code take_parts(eng_device_comm *c, int32_t device, int64_t elems_max, err *e)
{
    c->elems_max = elems_max;
    if (c->n_ranks == 2) return ERR_OK;
    TRY(krn_device_use(device, e));
    return krn_device_alloc((uint64_t)elems_max * (uint64_t)c->n_ranks * sizeof(float), (void **)&c->parts, e);
}

static err_code open_nccl(const eng_options *o, int64_t elems_max, eng_device_comm **out, err *e)
{
    ncclComm_t comm[ENG_RANKS_MAX] = { NULL };
    NCCL_TRY(ncclCommInitAll(comm, o->n_ranks, NULL));
    for (int32_t r = 0; r < o->n_ranks; r++) out[r]->nccl = comm[r];
    for (int32_t r = 0; r < o->n_ranks; r++) TRY(take_parts(out[r], r, elems_max, e));
    return ERR_OK;
}

/* Minutes: the other processes may still be loading their shards. */
#define BOOTSTRAP_DEADLINE_NS 600000000000u

static err_code open_nccl_rank(const eng_options *o, int64_t elems_max, eng_device_comm *c, err *e)
{
    ncclUniqueId id = { { 0 } };
    int32_t device = eng_device_index(o, 0);
    if (o->rank == 0) NCCL_TRY(ncclGetUniqueId(&id));
    TRY(eng_peers_open(o->bootstrap, o->rank, o->n_ranks, &id, sizeof id, BOOTSTRAP_DEADLINE_NS, &c->peers, e));
    TRY(krn_device_use(device, e));
    NCCL_TRY(ncclCommInitRank(&c->nccl, o->n_ranks, id, o->rank));
    return take_parts(c, device, elems_max, e);
}
#endif

err_code eng_device_comm_open_all(const eng_options *o, int64_t elems_max, eng_device_comm **out, err *e)
{
    int32_t groups = eng_device_groups(o);
    err_code rc = eng_device_comm_check(o, e);
    (void)elems_max;
    for (int32_t g = 0; g < groups; g++) out[g] = NULL;
    for (int32_t g = 0; g < groups && rc == ERR_OK; g++) {
        out[g] = mem_alloc(1, sizeof *out[g]);
        if (!out[g]) rc = err_set(e, ERR_NOMEM, "communicator: no memory");
        else *out[g] = (eng_device_comm){ .kind = o->comm, .rank = o->bootstrap ? o->rank : g, .n_ranks = o->n_ranks };
    }
#ifdef HAVE_NCCL
    if (rc == ERR_OK && o->comm == ENG_COMM_NCCL)
        rc = o->bootstrap ? open_nccl_rank(o, elems_max, out[0], e) : open_nccl(o, elems_max, out, e);
#endif
    for (int32_t g = 0; g < groups && rc != ERR_OK; g++) {
        eng_device_comm_close(out[g]);
        out[g] = NULL;
    }
    return rc;
}

void eng_device_comm_close(eng_device_comm *c)
{
    if (!c) return;
#ifdef HAVE_NCCL
    if (c->nccl) ncclCommDestroy(c->nccl);
    krn_device_free(c->parts);
#endif
    eng_peers_close(c->peers);
    free(c);
}

void eng_device_comm_abort(eng_device_comm *c, const char *why)
{
    eng_peers_tell(c->peers, why);
#ifdef HAVE_NCCL
    if (c->nccl) ncclCommAbort(c->nccl);
    c->nccl = NULL;
#endif
}

err_code eng_device_comm_error(eng_device_comm *c, err *e)
{
    TRY(eng_peers_check(c->peers, e));
#ifdef HAVE_NCCL
    ncclResult_t noticed = ncclSuccess;
    if (!c->nccl) return ERR_OK;
    NCCL_TRY(ncclCommGetAsyncError(c->nccl, &noticed));
    if (noticed != ncclSuccess && noticed != ncclInProgress) return nccl_failed(noticed, "a peer or the link failed", e);
#endif
    return ERR_OK;
}

err_code eng_device_comm_all_reduce(eng_device_comm *c, const float *const *in, float *const *out, int64_t n, krn_stream s,
                                    err *e)
{
    if (c->kind == ENG_COMM_EMULATED) {
        for (int32_t r = 0; r < c->n_ranks; r++) TRY(krn_sum_ranks(in, c->n_ranks, 0, n, out[r], s, e));
        return ERR_OK;
    }
    if (c->kind == ENG_COMM_SOLO) return krn_sum_ranks((const float *const[]){ in[0] }, 1, 0, n, out[0], s, e);
#ifdef HAVE_NCCL
    if (!c->nccl) return err_set(e, ERR_COMM, "rank %d: the communicator was given up earlier", c->rank);
    if (c->n_ranks == 2) { /* one addition: no order to choose, so NCCL's sum has the contract's bits */
        NCCL_TRY(ncclAllReduce(in[0], out[0], (size_t)n, ncclFloat32, ncclSum, c->nccl, s));
        return ERR_OK;
    }
    const float *part[ENG_RANKS_MAX];
    if (n > c->elems_max)
        return err_set(e, ERR_COMM, "all_reduce of %lld elements, room is for %lld", (long long)n, (long long)c->elems_max);
    NCCL_TRY(ncclAllGather(in[0], c->parts, (size_t)n, ncclFloat32, c->nccl, s));
    for (int32_t r = 0; r < c->n_ranks; r++) part[r] = c->parts + n * r;
    return krn_sum_ranks(part, c->n_ranks, 0, n, out[0], s, e);
#else
    return err_set(e, ERR_COMM, "this build has no NCCL");
#endif
}

#ifdef HAVE_NCCL
/* More than two ranks add what they gathered with our own kernel, which must not run before the gathering was launched. */
static bool groups(const eng_device_comm *c) { return c->nccl && c->n_ranks == 2; }
#endif

err_code eng_device_comm_group_begin(eng_device_comm *c, err *e)
{
    (void)c, (void)e;
#ifdef HAVE_NCCL
    if (groups(c)) NCCL_TRY(ncclGroupStart());
#endif
    return ERR_OK;
}

err_code eng_device_comm_group_end(eng_device_comm *c, err *e)
{
    (void)c, (void)e;
#ifdef HAVE_NCCL
    if (groups(c)) NCCL_TRY(ncclGroupEnd());
#endif
    return ERR_OK;
}

err_code eng_device_comm_gather(eng_device_comm *c, void *all, uint64_t bytes, krn_stream s, err *e)
{
    if (c->kind == ENG_COMM_EMULATED) return ERR_OK; /* one buffer for all ranks: every part is there */
    if (c->kind == ENG_COMM_SOLO) {
        for (int32_t r = 1; r < c->n_ranks; r++) { /* a launch, as the exchange is one: a copy is another kind of node */
            const int64_t n = (int64_t)(bytes / sizeof(float));
            TRY(krn_sum_ranks((const float *const[]){ all }, 1, 0, n, (float *)all + r * n, s, e));
        }
        return ERR_OK;
    }
#ifdef HAVE_NCCL
    if (!c->nccl) return err_set(e, ERR_COMM, "rank %d: the communicator was given up earlier", c->rank);
    NCCL_TRY(ncclAllGather((const uint8_t *)all + (uint64_t)c->rank * bytes, all, bytes, ncclInt8, c->nccl, s));
    return ERR_OK;
#else
    return err_set(e, ERR_COMM, "this build has no NCCL");
#endif
}

const char *eng_device_comm_version(void)
{
#ifdef HAVE_NCCL
    static char text[24];
    int v = 0;
    if (ncclGetVersion(&v) != ncclSuccess) return "unknown";
    snprintf(text, sizeof text, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    return text;
#else
    return "none";
#endif
}
