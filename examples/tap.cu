/* Taps a CUDA program: what it makes on a device is copied on the stream that makes it, and put on a tape when the copy is
 * there.
 *
 *     nvcc tap.cu $(pkg-config --cflags --libs sparktape) -o tap && ./tap tap.tape
 *
 * Without a card the same lines run over host memory: cc -x c -DNO_CARD tap.cu -x none $(pkg-config ...) -o tap */
#include <sparktape.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef NO_CARD
typedef int cudaStream_t;
enum { cudaSuccess = 0 };
#define cudaMalloc(p, bytes) (*(p) = (float *)malloc(bytes), *(p) == NULL)
#define cudaMallocHost cudaMalloc
#define cudaStreamCreate(s) (*(s) = 0)
#define cudaMemcpyAsync(to, from, bytes, kind, stream) (memcpy(to, from, bytes), (stream))
#define cudaStreamSynchronize(stream) (stream)
#define LAUNCH(kernel, n, stream, ...) for (int i = 0; i < (n); i++) kernel(__VA_ARGS__, i)
#define KERNEL static void
#define THREAD , int i
#else
#define LAUNCH(kernel, n, stream, ...) kernel<<<((n) + 255) / 256, 256, 0, stream>>>(__VA_ARGS__)
#define KERNEL __global__ void
#define THREAD
#endif

enum { ROUNDS = 3, ROWS = 2, DIM = 256, N = ROWS * DIM };

KERNEL make_main_x(float *x, int round THREAD) /* their kernel, of which nothing is known here */
{
#ifndef NO_CARD
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
#endif
    x[i] = (float)(i % 64 - 32) * 0.25f + (float)round;
}

int main(int argc, char **argv)
{
    char why[256] = "no device";
    float *device = NULL, *host = NULL;
    const int64_t shape[2] = { ROWS, DIM };
    cudaStream_t stream;
    if (cudaMalloc(&device, N * sizeof *device) != cudaSuccess || cudaMallocHost(&host, N * sizeof *host) != cudaSuccess ||
        cudaStreamCreate(&stream) != cudaSuccess)
        return fprintf(stderr, "%s\n", why), 1;
    sparktape *tape = sparktape_create(argc > 1 ? argv[1] : "tap.tape", "examples/tap", why, sizeof why);
    for (int round = 0; tape && round < ROUNDS; round++) {
        char name[64];
        LAUNCH(make_main_x, N, stream, device, round);
        snprintf(name, sizeof name, "round.%d.insert.0.main_x", round);
        if (cudaMemcpyAsync(host, device, N * sizeof *host, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
            cudaStreamSynchronize(stream) != cudaSuccess || sparktape_put(tape, name, "F32", 2, shape, host) != 0) {
            fprintf(stderr, "round %d: the copy failed, or: %s\n", round, sparktape_error(tape));
            return sparktape_discard(tape), 1;
        }
    }
    if (!tape || sparktape_finish(tape, why, sizeof why) != 0) return fprintf(stderr, "%s\n", why), 1;
    return 0;
}
