/* Taps a CUDA program: what it makes on a device is copied on the stream that makes it, and put on a tape when the copy is
 * there.
 *
 *     nvcc examples/tap.cu $(pkg-config --cflags --libs sparktape) -o tap && ./tap mine.tape
 *
 * Without a card the same lines run over host memory, as a C program: cc -x c -DNO_CARD examples/tap.cu -x none ... */
#include <sparktape.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef NO_CARD
typedef int cudaStream_t;
enum { cudaMemcpyDeviceToHost };
static void cudaMalloc(void **p, size_t n) { *p = malloc(n); }
static void cudaMallocHost(void **p, size_t n) { *p = malloc(n); }
static void cudaStreamCreate(cudaStream_t *s) { *s = 0; }
#define cudaMemcpyAsync(to, from, n, kind, stream) memcpy(to, from, n)
static void cudaStreamSynchronize(cudaStream_t s) { (void)s; }
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
    char why[256];
    float *device, *host;
    const int64_t shape[2] = { ROWS, DIM };
    cudaStream_t stream;
    sparktape *tape = sparktape_create(argc > 1 ? argv[1] : "mine.tape", "examples/tap", why, sizeof why);
    if (!tape) return fprintf(stderr, "%s\n", why), 1;
    cudaMalloc((void **)&device, N * sizeof *device);
    cudaMallocHost((void **)&host, N * sizeof *host);
    cudaStreamCreate(&stream);
    for (int round = 0; round < ROUNDS; round++) {
        char name[64];
        LAUNCH(make_main_x, N, stream, device, round);
        cudaMemcpyAsync(host, device, N * sizeof *host, cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
        snprintf(name, sizeof name, "round.%d.insert.0.main_x", round);
        if (sparktape_put(tape, name, "F32", 2, shape, host) != 0) fprintf(stderr, "%s\n", sparktape_error(tape));
    }
    if (sparktape_finish(tape, why, sizeof why) != 0) return fprintf(stderr, "%s\n", why), 1;
    return 0;
}
