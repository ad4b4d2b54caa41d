#include "kernels/device.h"

#include "kernels/launch.cuh"

#include <cuda_runtime.h>
#include <new>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CUDA_TRY(call)                                                                                   \
    do {                                                                                                 \
        cudaError_t rc_ = (call);                                                                        \
        if (rc_ != cudaSuccess) return err_set(e, ERR_DEVICE, "%s: %s", #call, cudaGetErrorString(rc_)); \
    } while (0)

static uint64_t n_allocs; /* by any thread: read by tests, exact only when nobody allocates */
static thread_local int64_t n_launches;

extern "C" err_code krn_launched(const char *op, err *e)
{
    cudaError_t rc = cudaGetLastError();
    n_launches++;
    if (rc == cudaSuccess) return ERR_OK;
    return err_set(e, ERR_DEVICE, "%s: launch refused: %s", op, cudaGetErrorString(rc));
}

extern "C" int64_t krn_launch_count(void) { return n_launches; }

/* ---- devices ---- */

extern "C" int32_t krn_device_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    cudaGetLastError(); /* having no driver is an answer, not a failure of what comes next */
    return 0;
}

extern "C" err_code krn_device_use(int32_t device, err *e)
{
    if (device >= 0 && cudaSetDevice(device) == cudaSuccess) return ERR_OK; /* steps pass here: no more is asked */
    cudaGetLastError();
    return err_set(e, ERR_DEVICE, "CUDA device %d: found %d devices", device, krn_device_count());
}

extern "C" err_code krn_device_info_get(int32_t device, krn_device_info *out, err *e)
{
    cudaDeviceProp p;
    size_t free_bytes, total_bytes;
    CUDA_TRY(cudaGetDeviceProperties(&p, device));
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
    krn_device_info info = {};
    snprintf(info.name, sizeof info.name, "%.63s", p.name);
    info.sm_major = p.major;
    info.sm_minor = p.minor;
    info.n_sm = p.multiProcessorCount;
    info.memory_bytes = total_bytes;
    info.memory_free_bytes = free_bytes;
    CUDA_TRY(cudaDriverGetVersion(&info.driver_version));
    CUDA_TRY(cudaRuntimeGetVersion(&info.runtime_version));
    CUDA_TRY(cudaDeviceGetPCIBusId(info.bus, (int)sizeof info.bus, device));
    *out = info;
    return ERR_OK;
}

extern "C" err_code krn_device_reaches(int32_t from, int32_t to, bool *out, err *e)
{
    int can = 0;
    CUDA_TRY(cudaDeviceCanAccessPeer(&can, from, to));
    *out = can != 0;
    return ERR_OK;
}

/* ---- memory ---- */

extern "C" err_code krn_device_alloc(uint64_t bytes, void **out, err *e)
{
    size_t free_bytes = 0, total_bytes = 0;
    *out = NULL;
    if (bytes == 0) bytes = 1;
    cudaError_t rc = cudaMalloc(out, bytes);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total_bytes);
        return err_set(e, ERR_NOMEM, "device memory: wanted %llu bytes, free are %llu", (unsigned long long)bytes,
                       (unsigned long long)free_bytes);
    }
    CUDA_TRY(rc);
    __atomic_fetch_add(&n_allocs, 1, __ATOMIC_RELAXED);
    CUDA_TRY(cudaMemset(*out, 0, bytes));
    /* The fill runs on the default stream, which streams made here do not wait for. */
    CUDA_TRY(cudaStreamSynchronize(NULL));
    return ERR_OK;
}

extern "C" void krn_device_free(void *dev) { cudaFree(dev); }

extern "C" err_code krn_pinned_alloc(uint64_t bytes, void **out, err *e)
{
    *out = NULL;
    CUDA_TRY(cudaMallocHost(out, bytes ? bytes : 1));
    __atomic_fetch_add(&n_allocs, 1, __ATOMIC_RELAXED);
    memset(*out, 0, bytes);
    return ERR_OK;
}

extern "C" void krn_pinned_free(void *host)
{
    if (host) cudaFreeHost(host);
}

extern "C" uint64_t krn_device_alloc_count(void) { return __atomic_load_n(&n_allocs, __ATOMIC_RELAXED); }

/* ---- streams, copies, events ---- */

extern "C" err_code krn_stream_open(krn_stream *out, err *e)
{
    *out = NULL;
    CUDA_TRY(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking));
    return ERR_OK;
}

extern "C" void krn_stream_close(krn_stream s)
{
    if (s) cudaStreamDestroy(s);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Asks until the answer is no longer "not ready". */
template <typename Query> static err_code poll(Query query, uint64_t deadline_ns, bool *done, err *e)
{
    enum { SPIN_NS = 2000000, PAUSE_NS = 50000 }; /* a step takes less than a millisecond: do not sleep through its end */
    uint64_t start = now_ns();
    *done = false;
    for (;;) {
        cudaError_t rc = query();
        if (rc == cudaSuccess) break;
        if (rc != cudaErrorNotReady)
            return err_set(e, ERR_DEVICE, "the device failed during a step: %s", cudaGetErrorString(rc));
        uint64_t waited = now_ns() - start;
        if (deadline_ns && waited > deadline_ns) return ERR_OK;
        if (waited < SPIN_NS) continue;
        struct timespec pause = { 0, PAUSE_NS };
        nanosleep(&pause, NULL);
    }
    *done = true;
    return ERR_OK;
}

extern "C" err_code krn_stream_wait(krn_stream s, uint64_t deadline_ns, bool *done, err *e)
{
    return poll([s] { return cudaStreamQuery(s); }, deadline_ns, done, e);
}

extern "C" err_code krn_event_wait(krn_event v, uint64_t deadline_ns, bool *done, err *e)
{
    return poll([v] { return cudaEventQuery(v); }, deadline_ns, done, e);
}

extern "C" err_code krn_copy(void *to, const void *from, uint64_t bytes, krn_stream s, err *e)
{
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s));
    return ERR_OK;
}

extern "C" err_code krn_fill(void *dev, uint8_t byte, uint64_t bytes, krn_stream s, err *e)
{
    CUDA_TRY(cudaMemsetAsync(dev, byte, bytes, s));
    return ERR_OK;
}

extern "C" err_code krn_event_open(bool timed, krn_event *out, err *e)
{
    *out = NULL;
    CUDA_TRY(cudaEventCreateWithFlags(out, timed ? cudaEventDefault : cudaEventDisableTiming));
    return ERR_OK;
}

extern "C" void krn_event_close(krn_event v)
{
    if (v) cudaEventDestroy(v);
}

extern "C" err_code krn_event_record(krn_event v, krn_stream s, err *e)
{
    CUDA_TRY(cudaEventRecord(v, s));
    return ERR_OK;
}

extern "C" err_code krn_event_follow(krn_event v, krn_stream s, err *e)
{
    CUDA_TRY(cudaStreamWaitEvent(s, v, 0));
    return ERR_OK;
}

extern "C" err_code krn_event_follow_outside(krn_event v, krn_stream s, err *e)
{
    CUDA_TRY(cudaStreamWaitEvent(s, v, cudaEventWaitExternal));
    return ERR_OK;
}

extern "C" err_code krn_event_elapsed_us(krn_event from, krn_event to, double *us, err *e)
{
    float ms = 0;
    CUDA_TRY(cudaEventElapsedTime(&ms, from, to));
    *us = (double)ms * 1e3;
    return ERR_OK;
}

__global__ static void mark_kernel(volatile int32_t *pinned, int32_t value)
{
    krn_begin();
    *pinned = value;
    __threadfence_system();
}

extern "C" err_code krn_mark(int32_t *pinned, int32_t value, krn_stream s, err *e)
{
    krn_launch(mark_kernel, 1, 1, 0, s, pinned, value);
    return krn_launched("mark", e);
}

__global__ static void delay_kernel(uint64_t ns)
{
    uint64_t start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < ns);
}

extern "C" err_code krn_delay(int32_t us, krn_stream s, err *e)
{
    delay_kernel<<<1, 1, 0, s>>>((uint64_t)us * 1000);
    return krn_launched("delay", e);
}

/* ---- graphs ---- */

struct krn_graph {
    cudaGraphExec_t exec;
    int64_t n_nodes, n_kernels;
};

extern "C" err_code krn_capture_begin(krn_stream s, err *e)
{
    /* Thread-local: other threads may allocate meanwhile, this one may not, and CUDA says so. */
    CUDA_TRY(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    return ERR_OK;
}

static err_code count_nodes(cudaGraph_t graph, krn_graph *g, err *e)
{
    size_t n = 0;
    CUDA_TRY(cudaGraphGetNodes(graph, NULL, &n));
    cudaGraphNode_t *node = new (std::nothrow) cudaGraphNode_t[n + 1];
    if (!node) return err_set(e, ERR_NOMEM, "graph: no memory for %zu nodes", n);
    cudaError_t rc = cudaGraphGetNodes(graph, node, &n);
    for (size_t i = 0; i < n && rc == cudaSuccess; i++) {
        cudaGraphNodeType type;
        rc = cudaGraphNodeGetType(node[i], &type);
        g->n_kernels += type == cudaGraphNodeTypeKernel;
    }
    delete[] node;
    g->n_nodes = (int64_t)n;
    CUDA_TRY(rc);
    return ERR_OK;
}

extern "C" err_code krn_capture_end(krn_stream s, krn_graph **out, err *e)
{
    cudaGraph_t graph = NULL;
    *out = NULL;
    CUDA_TRY(cudaStreamEndCapture(s, &graph));
    krn_graph *g = new (std::nothrow) krn_graph();
    err_code rc = g ? count_nodes(graph, g, e) : err_set(e, ERR_NOMEM, "graph: no memory");
    if (rc == ERR_OK) {
        cudaError_t cuda = cudaGraphInstantiate(&g->exec, graph, 0);
        if (cuda != cudaSuccess) rc = err_set(e, ERR_DEVICE, "graph: instantiate: %s", cudaGetErrorString(cuda));
    }
    cudaGraphDestroy(graph);
    if (rc != ERR_OK) {
        delete g;
        return rc;
    }
    *out = g;
    return ERR_OK;
}

extern "C" void krn_capture_abort(krn_stream s)
{
    cudaGraph_t graph = NULL;
    cudaStreamEndCapture(s, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
}

extern "C" int64_t krn_graph_kernels(const krn_graph *g) { return g->n_kernels; }
extern "C" int64_t krn_graph_nodes(const krn_graph *g) { return g->n_nodes; }

extern "C" err_code krn_graph_upload(krn_graph *g, krn_stream s, err *e)
{
    CUDA_TRY(cudaGraphUpload(g->exec, s));
    return ERR_OK;
}

extern "C" err_code krn_graph_launch(krn_graph *g, krn_stream s, err *e)
{
    CUDA_TRY(cudaGraphLaunch(g->exec, s));
    return ERR_OK;
}

extern "C" void krn_graph_close(krn_graph *g)
{
    if (!g) return;
    cudaGraphExecDestroy(g->exec);
    delete g;
}
