/* Launches that overlap. Where the card can (sm_90), a launch begins as soon as every block of those that it follows has
 * begun: its blocks find out what they have to do, and fetch weights, while these still run. A step is a chain of some
 * sixty launches of a few microseconds each, whose beginnings so cost nothing.
 *
 * Every kernel that krn_launch launches calls krn_wait_for_previous once, in every thread that goes on, before it reads
 * what a launch before it may write, or writes at all. Before that it may read what was on the device before the step:
 * weights, tables. Values are read by plain loads: a load that is told its memory never changes (__ldg) might be moved
 * before the wait. Since every launch waits, what any earlier one wrote is there, not only what the last one did. */
#ifndef KERNELS_LAUNCH_CUH
#define KERNELS_LAUNCH_CUH

#include "kernels/device.h"

#include <stddef.h>

/* Lets the launches that follow begin. */
__device__ __forceinline__ void krn_let_next_begin()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Until the launches that this one follows are over, with all that they waited for. */
__device__ __forceinline__ void krn_wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* First in a kernel that has nothing to do before its operands are there. */
__device__ __forceinline__ void krn_begin()
{
    krn_let_next_begin();
    krn_wait_for_previous();
}

/* Asks for `bytes` from p on, to be in L2 when they are read. All threads of a block of n call. */
__device__ __forceinline__ void krn_fetch_ahead(const uint8_t *p, int64_t bytes, int32_t n)
{
    enum { LINE = 128 };
    for (int64_t i = (int64_t)LINE * threadIdx.x; i < bytes; i += (int64_t)LINE * n)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p + i));
}

static inline bool krn_overlaps()
{
    int device = 0, major = 0;
    cudaGetDevice(&device); /* what goes wrong here goes wrong again in the launch */
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9;
}

/* krn_launch with `cluster` blocks, neighbours in x, that share their memory. More than 1: only where krn_overlaps. */
template <typename... parameter, typename... argument>
static void krn_launch_clusters(unsigned cluster, void (*kernel)(parameter...), dim3 grid, unsigned threads,
                                size_t shared_bytes, krn_stream stream, argument... arguments)
{
    cudaLaunchAttribute with[2] = {};
    with[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    with[0].val.programmaticStreamSerializationAllowed = 1;
    with[1].id = cudaLaunchAttributeClusterDimension;
    with[1].val.clusterDim.x = cluster;
    with[1].val.clusterDim.y = with[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = with;
    config.numAttrs = !krn_overlaps() ? 0 : cluster > 1 ? 2 : 1;
    cudaLaunchKernelEx(&config, kernel, (parameter)arguments...);
}

/* kernel<<<grid, threads, shared_bytes, stream>>>(arguments...). A refusal is told by krn_launched. */
template <typename... parameter, typename... argument>
static void krn_launch(void (*kernel)(parameter...), dim3 grid, unsigned threads, size_t shared_bytes, krn_stream stream,
                       argument... arguments)
{
    krn_launch_clusters(1, kernel, grid, threads, shared_bytes, stream, arguments...);
}

#endif
