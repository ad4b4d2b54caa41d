#include "gpu.h"

#include "base/mem.h"

#include <math.h>

enum { SKIPPED = 77, GUARD_BYTES = 256, BLOCKS_MAX = 256, UNWRITTEN = 0xa5, GUARD = 0x5a };

typedef struct block { uint8_t *base; size_t bytes; } block;
static block blocks[BLOCKS_MAX];
static int n_blocks;
static krn_stream stream;

int gpu_skip(void)
{
    printf("no CUDA device\n");
    return SKIPPED;
}

void gpu_ok(err_code rc, const err *e)
{
    if (rc != ERR_OK) fail_msg("%s", e->msg);
}

krn_stream gpu_stream(void)
{
    err e = { 0 };
    if (!stream) gpu_ok(krn_stream_open(&stream, &e), &e);
    return stream;
}

void gpu_wait(void)
{
    err e = { 0 };
    bool done;
    gpu_ok(krn_stream_wait(gpu_stream(), 60000000000ull, &done, &e), &e);
    if (!done) fail_msg("the device did not finish within 60 s");
}

/* ---- memory ---- */

static void *take(const void *host, size_t bytes)
{
    err e = { 0 };
    void *base;
    if (n_blocks == BLOCKS_MAX) fail_msg("more than %d blocks", BLOCKS_MAX);
    gpu_ok(krn_device_alloc(bytes + 2 * GUARD_BYTES, &base, &e), &e);
    gpu_ok(krn_fill(base, GUARD, bytes + 2 * GUARD_BYTES, gpu_stream(), &e), &e);
    uint8_t *dev = (uint8_t *)base + GUARD_BYTES;
    if (host) gpu_ok(krn_copy(dev, host, bytes, gpu_stream(), &e), &e);
    else gpu_ok(krn_fill(dev, UNWRITTEN, bytes, gpu_stream(), &e), &e);
    gpu_wait();
    blocks[n_blocks++] = (block){ base, bytes };
    return dev;
}

void *gpu_put(const void *host, size_t bytes) { return take(host, bytes); }
void *gpu_out(size_t bytes) { return take(NULL, bytes); }

void gpu_get(const void *dev, void *host, size_t bytes)
{
    err e = { 0 };
    uint8_t guard[2 * GUARD_BYTES];
    const block *b = NULL;
    for (int i = 0; i < n_blocks; i++)
        if (blocks[i].base + GUARD_BYTES == dev) b = &blocks[i];
    if (!b || bytes > b->bytes) fail_msg("gpu_get of memory that gpu_put and gpu_out did not give");
    gpu_wait();
    gpu_ok(krn_copy(guard, b->base, GUARD_BYTES, gpu_stream(), &e), &e);
    gpu_ok(krn_copy(guard + GUARD_BYTES, b->base + GUARD_BYTES + b->bytes, GUARD_BYTES, gpu_stream(), &e), &e);
    gpu_ok(krn_copy(host, dev, bytes, gpu_stream(), &e), &e);
    gpu_wait();
    for (int i = 0; i < 2 * GUARD_BYTES; i++)
        if (guard[i] != GUARD) fail_msg("written outside the output: guard byte %d is %02x", i, guard[i]);
}

void gpu_free_all(void)
{
    gpu_wait();
    for (int i = 0; i < n_blocks; i++) krn_device_free(blocks[i].base);
    n_blocks = 0;
}

/* ---- benches ---- */

void *gpu_take(int64_t bytes)
{
    err e = { 0 };
    void *p;
    gpu_ok(krn_device_alloc((uint64_t)bytes, &p, &e), &e);
    return p;
}

void *gpu_filled(int64_t bytes, uint8_t byte)
{
    err e = { 0 };
    void *p = gpu_take(bytes);
    gpu_ok(krn_fill(p, byte, (uint64_t)bytes, gpu_stream(), &e), &e);
    return p;
}

double gpu_best_us(void (*launch)(const void *ctx, int32_t i), const void *ctx, int32_t launches, int32_t repeats)
{
    err e = { 0 };
    krn_graph *graph;
    krn_event from, to;
    double best = 1e30, us;
    launch(ctx, 0); /* loads the kernel, which a capture may not */
    gpu_wait();
    gpu_ok(krn_event_open(true, &from, &e), &e);
    gpu_ok(krn_event_open(true, &to, &e), &e);
    gpu_ok(krn_capture_begin(gpu_stream(), &e), &e);
    for (int32_t i = 0; i < launches; i++) launch(ctx, i);
    gpu_ok(krn_capture_end(gpu_stream(), &graph, &e), &e);
    for (int32_t i = 0; i < repeats; i++) {
        gpu_ok(krn_event_record(from, gpu_stream(), &e), &e);
        gpu_ok(krn_graph_launch(graph, gpu_stream(), &e), &e);
        gpu_ok(krn_event_record(to, gpu_stream(), &e), &e);
        gpu_wait();
        gpu_ok(krn_event_elapsed_us(from, to, &us, &e), &e);
        if (us < best) best = us;
    }
    krn_graph_close(graph);
    krn_event_close(from);
    krn_event_close(to);
    return best / launches;
}

double gpu_copy_speed(void)
{
    enum { COPY_BYTES = 1 << 30, REPEATS = 9 };
    err e = { 0 };
    krn_event from, to;
    void *a = gpu_filled(COPY_BYTES, 1), *b = gpu_take(COPY_BYTES);
    double best = 1e30, us;
    gpu_ok(krn_event_open(true, &from, &e), &e);
    gpu_ok(krn_event_open(true, &to, &e), &e);
    for (int i = 0; i < REPEATS; i++) {
        gpu_ok(krn_event_record(from, gpu_stream(), &e), &e);
        gpu_ok(krn_copy(b, a, COPY_BYTES, gpu_stream(), &e), &e);
        gpu_ok(krn_event_record(to, gpu_stream(), &e), &e);
        gpu_wait();
        gpu_ok(krn_event_elapsed_us(from, to, &us, &e), &e);
        if (us < best) best = us;
    }
    krn_event_close(from);
    krn_event_close(to);
    krn_device_free(a);
    krn_device_free(b);
    return 2.0 * COPY_BYTES / best * 1e6;
}

/* ---- inputs ---- */

uint32_t gpu_hash(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15ull + (i + 1) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

float gpu_unit(uint64_t seed, uint64_t i) { return (float)(int32_t)gpu_hash(seed, i) * 0x1p-31f; }

float gpu_normal(uint64_t seed, uint64_t i)
{
    float sum = 0; /* of four uniforms: variance 4/3 */
    for (uint64_t k = 0; k < 4; k++) sum += gpu_unit(seed, 4 * i + k);
    return sum * 0.8660254f;
}

void gpu_fill_bf16(bf16 *x, int64_t n, uint64_t seed, float scale)
{
    for (int64_t i = 0; i < n; i++) x[i] = bf16_from_f32(scale * gpu_normal(seed, (uint64_t)i));
}

void gpu_fill_f32(float *x, int64_t n, uint64_t seed, float scale)
{
    for (int64_t i = 0; i < n; i++) x[i] = scale * gpu_normal(seed, (uint64_t)i);
}

/* ---- verdicts ---- */

/* moved: how far the exact value would have to be elsewhere to round to got. */
static void judge(gpu_tally *t, int64_t index, double exact, double delta, float got, float own, float low, float high,
                  double moved)
{
    t->n++;
    if (memcmp(&got, &own, sizeof got) == 0 || (isnan(got) && isnan(own))) {
        t->equal++;
        return;
    }
    if (got >= low && got <= high) {
        t->flip++;
        if (delta > 0 && moved / delta > t->worst) t->worst = moved / delta;
        return;
    }
    if (t->illegal++ == 0)
        print_message("%s: first illegal element %lld: got %.9g (%a) wanted %.9g (%a), legal %.9g .. %.9g, exact %.17g "
                      "delta %.3g\n",
                      t->label, (long long)index, (double)got, (double)got, (double)own, (double)own, (double)low,
                      (double)high, exact, delta);
}

void gpu_judge_f32(gpu_tally *t, int64_t index, double exact, double delta, float got)
{
    /* one ulp on each side: the exact value itself is rounded once more */
    float low = nextafterf((float)(exact - delta), -INFINITY), high = nextafterf((float)(exact + delta), INFINITY);
    judge(t, index, exact, delta, got, (float)exact, low, high, fabs((double)got - exact));
}

void gpu_judge_bf16(gpu_tally *t, int64_t index, double exact, double delta, bf16 got)
{
    float value = f32_from_bf16(got), own = f32_from_bf16(bf16_from_f32((float)exact));
    /* the edge between got and its neighbour on the side of own */
    bf16 beside = (bf16)(fabsf(own) > fabsf(value) ? got + 1 : got - 1);
    double edge = ((double)value + (double)f32_from_bf16(beside)) / 2;
    judge(t, index, exact, delta, value, own, f32_from_bf16(bf16_from_f32((float)(exact - delta))),
          f32_from_bf16(bf16_from_f32((float)(exact + delta))), fabs(edge - exact));
}

void gpu_tally_end(const gpu_tally *t, double min_equal)
{
    print_message("%-40s n %lld equal %.4f%% flips %lld illegal %lld worst moved by %.3f of delta\n", t->label,
                  (long long)t->n, t->n ? 100.0 * (double)t->equal / (double)t->n : 0.0, (long long)t->flip,
                  (long long)t->illegal, t->worst);
    if (t->n == 0) fail_msg("%s: nothing was compared", t->label);
    if (t->illegal) fail_msg("%s: %lld of %lld elements are illegal", t->label, (long long)t->illegal, (long long)t->n);
    if (!((double)t->equal >= min_equal * (double)t->n))
        fail_msg("%s: %lld of %lld elements have the reference's bits, wanted %.4f of them", t->label, (long long)t->equal,
                 (long long)t->n, min_equal);
}

void gpu_same(const char *label, const void *got, const void *wanted, int64_t n, size_t elem_bytes)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t a = 0, b = 0;
        memcpy(&a, (const uint8_t *)got + (size_t)i * elem_bytes, elem_bytes);
        memcpy(&b, (const uint8_t *)wanted + (size_t)i * elem_bytes, elem_bytes);
        if (a != b) fail_msg("%s: element %lld of %lld: got %08x wanted %08x", label, (long long)i, (long long)n, a, b);
    }
}
