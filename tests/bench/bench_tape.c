/* bench_tape: how fast a tape is written, beside LZ4's own speed on the same bytes after the transforms; how fast it is
 * read back; how long opening and listing take.
 *
 * usage: bench_tape [FOLDER [GIGABYTES]]
 *   FOLDER (default .) gets bench.tape and the payload files for `lz4 -b`; with GIGABYTES also large.tape of that size.
 *   They stay there.
 *
 * Written: from the first value until the kernel has every byte; the disk's sync is shown apart. Rates are per second of
 * the wall clock; in brackets, per second of half the processor time spent, which is what two idle cores show, since the
 * writer's two threads share the work evenly. LZ4 and reading: per second of one core's time. LZ4's source is larger than
 * the caches, in blocks of the tape's own sizes, as the writer's is. */
#include "bandwidth.h"

#include <lz4.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "formats/commands.h"
#include "formats/number.h"
#include "formats/tape_reader.h"

enum { ROUNDS = 24, PASSES = 3, ROWS = 20 };

/* Values of one official-size step, cut down: name, dtype, columns, act_qdq'd. */
typedef struct value { const char *name; fmt_dtype dtype; int32_t columns; bool qdq; } value;
static const value VALUES[] = {
    { "x0", FMT_DTYPE_BF16, 4 * 7168, false },        { "s0.attn.q", FMT_DTYPE_BF16, 16384, false },
    { "s0.attn.kv", FMT_DTYPE_BF16, 512, true },      { "s0.attn.o_qdq", FMT_DTYPE_BF16, 16384, true },
    { "s0.attn_out", FMT_DTYPE_BF16, 7168, false },   { "s0.ffn.scores", FMT_DTYPE_F32, 256, false },
    { "s0.ffn.slot", FMT_DTYPE_F32, 3 * 7168, false }, { "head.logits", FMT_DTYPE_F32, 32768, false },
    { "drafts", FMT_DTYPE_I32, 1, false },
};

static uint64_t cpu_ns(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static float normal(uint64_t i)
{
    uint64_t w = (i + 1) * 0x9e3779b97f4a7c15u;
    w = (w ^ w >> 29) * 0xbf58476d1ce4e5b9u;
    w ^= w >> 32;
    float sum = 0;
    for (int k = 0; k < 4; k++) sum += (float)(w >> 16 * k & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7f;
}

static uint8_t *make(const value *v, uint64_t seed)
{
    uint64_t n = (uint64_t)v->columns * ROWS;
    uint8_t *p = mem_alloc(n, fmt_dtype_bytes(v->dtype));
    CHECK(p);
    for (uint64_t i = 0; i < n; i++) {
        float f = normal(seed * 1000003 + i);
        if (v->dtype == FMT_DTYPE_BF16) put_u16(p + 2 * i, bf16_from_f32(f));
        else if (v->dtype == FMT_DTYPE_F32) put_u32(p + 4 * i, f32_bits(f));
        else put_u32(p + 4 * i, (uint32_t)(i * 7919 % 129280));
    }
    for (uint64_t g = 0; v->qdq && g < n / FMT_QDQ_GROUP; g++) {
        bf16 x[FMT_QDQ_GROUP];
        uint8_t codes[FMT_QDQ_GROUP], scale;
        for (int i = 0; i < FMT_QDQ_GROUP; i++) x[i] = get_u16(p + 64 * g + 2 * i);
        fmt_qdq_encode(x, codes, &scale);
        for (int i = 0; i < FMT_QDQ_GROUP; i++) put_u16(p + 64 * g + 2 * i, fmt_qdq_decode(codes[i], scale));
    }
    return p;
}

typedef struct spent { uint64_t wall, cpu, sync; } spent;

/* Writes rounds of all values whose bit is in which until raw_bytes are in. */
static spent write_tape(const char *path, uint8_t *const *data, uint32_t which, uint64_t raw_bytes)
{
    spent s = { clock_ns(), cpu_ns(CLOCK_PROCESS_CPUTIME_ID), 0 };
    fmt_tape_writer *w;
    err e;
    json_t *head = json_pack("{s:s}", "format", "sparktape");
    CHECK(fmt_tape_create(path, head, &w, &e) == ERR_OK);
    json_decref(head);
    uint64_t done = 0;
    for (int32_t r = 0; done < raw_bytes; r++)
        for (size_t v = 0; v < COUNT_OF(VALUES); v++) {
            if (!(which >> v & 1)) continue;
            fmt_tensor t = fmt_tensor_make(VALUES[v].dtype, data[v], 2, (int64_t[]){ ROWS, VALUES[v].columns });
            data[v][0]++; /* or the second round would be stored by reference */
            CHECK(fmt_tape_put(w, &(fmt_tape_key){ r, -1, 0, VALUES[v].name }, &t, FMT_PLACE_REPLICATED, 0, 1,
                               FMT_TIER_TENSOR,
                               &e) == ERR_OK);
            done += fmt_tensor_bytes(&t);
        }
    CHECK(fmt_tape_flush(w, &e) == ERR_OK);
    s.wall = clock_ns() - s.wall;
    s.cpu = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - s.cpu;
    s.sync = clock_ns();
    CHECK(fmt_tape_finish(w, NULL, &e) == ERR_OK);
    s.sync = clock_ns() - s.sync;
    return s;
}

/* The tape's payloads, one after another: what LZ4 was given. */
static uint8_t *payloads(const char *path, uint64_t *bytes, uint64_t **cuts, size_t *n_cuts)
{
    fmt_tape *t;
    err e;
    CHECK(fmt_tape_open(path, &t, &e) == ERR_OK);
    const uint8_t *map = fmt_tape_map(t);
    uint8_t *all = NULL, *one = NULL;
    size_t cap = 0, one_cap = 0, cut_cap = 0;
    fmt_chunk c;
    *bytes = 0;
    *cuts = NULL;
    *n_cuts = 0;
    for (uint64_t at = FMT_PRELUDE_BYTES; fmt_chunk_get(map, fmt_tape_file_bytes(t), at, &c,
                                                        NULL) == ERR_OK; at = fmt_chunk_end(&c)) {
        fmt_parts parts;
        if (c.kind != FMT_CHUNK_DATA) continue;
        CHECK(fmt_parts_get(&c, &parts, &e) == ERR_OK && fmt_payload_get(&c, &parts, &one, &one_cap, &e) == ERR_OK);
        size_t n = 0;
        for (size_t i = 0; i < parts.n; i++)
            if (parts.part[i].offset + parts.part[i].bytes > n) n = parts.part[i].offset + parts.part[i].bytes;
        fmt_parts_fini(&parts);
        CHECK(mem_grow((void **)&all, &cap, *bytes + n, 1) && mem_grow((void **)cuts, &cut_cap, *n_cuts + 2,
                                                                       sizeof **cuts));
        memcpy(all + *bytes, one, n);
        (*cuts)[(*n_cuts)++] = *bytes;
        *bytes += n;
        (*cuts)[*n_cuts] = *bytes;
    }
    free(one);
    fmt_tape_close(t);
    return all;
}

static double rate(uint64_t bytes, uint64_t ns) { return (double)bytes / (double)(ns ? ns : 1); }

static void bench(const char *folder, const char *what, uint8_t *const *data, uint32_t which)
{
    char path[512];
    snprintf(path, sizeof path, "%s/bench.tape", folder);
    uint64_t raw = 0, best_wall = UINT64_MAX, best_half = UINT64_MAX, best_sync = UINT64_MAX;
    for (size_t v = 0; v < COUNT_OF(VALUES); v++)
        if (which >> v & 1) raw += ROUNDS * (uint64_t)ROWS * (uint64_t)VALUES[v].columns * fmt_dtype_bytes(VALUES[v].dtype);
    for (int pass = 0; pass < PASSES; pass++) {
        spent s = write_tape(path, data, which, raw);
        if (s.wall < best_wall) best_wall = s.wall;
        if (s.cpu / 2 < best_half) best_half = s.cpu / 2;
        if (s.sync < best_sync) best_sync = s.sync;
    }
    uint64_t bytes, *cuts, best_lz4 = UINT64_MAX;
    size_t n_cuts;
    uint8_t *payload = payloads(path, &bytes, &cuts, &n_cuts);
    char *out = malloc((size_t)LZ4_compressBound(FMT_TAPE_CHUNK_BYTES));
    CHECK(payload && out);
    uint64_t compressed = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        uint64_t t0 = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
        compressed = 0;
        for (size_t i = 0; i < n_cuts; i++)
            compressed += (uint64_t)LZ4_compress_default((const char *)payload + cuts[i], out, (int)(cuts[i + 1] - cuts[i]),
                                                         LZ4_compressBound(FMT_TAPE_CHUNK_BYTES));
        uint64_t dt = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - t0;
        if (dt < best_lz4) best_lz4 = dt;
    }
    fmt_tape *t;
    err e;
    uint64_t best_read = UINT64_MAX, read_bytes = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        CHECK(fmt_tape_open(path, &t, &e) == ERR_OK);
        uint64_t t0 = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
        read_bytes = 0;
        for (size_t i = 0; i < fmt_tape_count(t); i++) {
            static uint8_t value_buf[ROWS * 32768 * 4];
            fmt_tape_record r;
            fmt_tape_at(t, i, &r);
            CHECK(r.raw_bytes <= sizeof value_buf && fmt_tape_get(t, i, value_buf, sizeof value_buf, &e) == ERR_OK);
            read_bytes += r.raw_bytes;
        }
        uint64_t dt = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - t0;
        if (dt < best_read) best_read = dt;
        fmt_tape_close(t);
    }
    double ours = rate(bytes, best_wall), ours_idle = rate(bytes, best_half), lz4 = rate(bytes, best_lz4);
    printf("%-12s %6.0f %6.0f %6.0f  %5.2f (%5.2f) %5.2f  %3.0f%% (%3.0f%%)  %5.2f %5.2f %5.0f ms\n", what,
           (double)read_bytes / 1e6, (double)bytes / 1e6,
           (double)compressed / 1e6, ours, ours_idle, lz4, 100 * ours / lz4, 100 * ours_idle / lz4, rate(read_bytes,
                                                                                                         best_half),
           rate(read_bytes, best_read), (double)best_sync / 1e6);
    snprintf(path, sizeof path, "%s/bench-%s.payload", folder, what);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(payload, 1, bytes, f) == bytes && fclose(f) == 0);
    free(payload);
    free(cuts);
    free(out);
}

/* Opens and lists, as `sparktape ls` does, with the output thrown away. */
static void bench_ls(const char *path)
{
    char name[512];
    int status;
    err e;
    snprintf(name, sizeof name, "%s", path);
    uint64_t best = UINT64_MAX, bytes, rows;
    for (int pass = 0; pass < 5; pass++) {
        fflush(stdout);
        int keep = dup(STDOUT_FILENO);
        CHECK(keep >= 0 && freopen("/dev/null", "w", stdout));
        uint64_t t0 = clock_ns();
        CHECK(CMD_LS.run(&CMD_LS, 1, (char *[]){ name }, &status, &e) == ERR_OK);
        uint64_t dt = clock_ns() - t0;
        fflush(stdout);
        CHECK(dup2(keep, STDOUT_FILENO) >= 0);
        close(keep);
        if (dt < best) best = dt;
    }
    fmt_tape *t;
    CHECK(fmt_tape_open(path, &t, &e) == ERR_OK);
    bytes = fmt_tape_file_bytes(t);
    rows = fmt_tape_count(t);
    fmt_tape_close(t);
    printf("ls of %.2f GB, %llu records: %.1f ms\n", (double)bytes / 1e9, (unsigned long long)rows, (double)best / 1e6);
}

/* A tape of small values, as a deep recording of many rounds makes. */
static void make_large(const char *path, double gigabytes)
{
    enum { NAMES = 90, COLUMNS = 700, SHIFTS = 4001 };
    fmt_tape_writer *w;
    err e;
    json_t *head = json_pack("{s:s}", "format", "sparktape");
    uint8_t *p = make(&(value){ "x", FMT_DTYPE_BF16, 2 * COLUMNS, false }, 9);
    CHECK(fmt_tape_create(path, head, &w, &e) == ERR_OK);
    json_decref(head);
    for (int32_t r = 0; (double)fmt_tape_written_bytes(w) < gigabytes * 1e9; r++)
        for (int v = 0; v < NAMES; v++) {
            char name[32];
            snprintf(name, sizeof name, "s%d.value%d", v % 3, v / 3);
            /* Another stretch of the noise each time: nothing for LZ4 to find from record to record. */
            const uint8_t *at = p + 2 * ((size_t)(r * NAMES + v) * 1237 % SHIFTS);
            fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, at, 2, (int64_t[]){ ROWS, COLUMNS });
            CHECK(fmt_tape_put(w, &(fmt_tape_key){ r, -1, 0, name }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR,
                               &e) == ERR_OK);
        }
    CHECK(fmt_tape_finish(w, NULL, &e) == ERR_OK);
    free(p);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : ".";
    uint8_t *data[COUNT_OF(VALUES)];
    char path[512];
    for (size_t v = 0; v < COUNT_OF(VALUES); v++) data[v] = make(&VALUES[v], v);
    printf("one core reads memory at %.1f GB/s\n\n", bench_read_bandwidth(1) / 1e9);
    printf("%-12s %6s %6s %6s  %-13s %-5s  %-12s  %5s %5s %8s\n", "values", "raw MB", "transf", "LZ4'd", "written GB/s",
           "LZ4", "of LZ4's", "raw in", "read", "sync");
    bench(folder, "bf16", data, 1u << 0 | 1u << 1 | 1u << 4);
    bench(folder, "f32", data, 1u << 6 | 1u << 7);
    bench(folder, "qdq", data, 1u << 2 | 1u << 3);
    bench(folder, "step", data, (1u << COUNT_OF(VALUES)) - 1);
    printf("\nwritten, LZ4: transformed bytes; raw in, read: raw bytes. To check LZ4's figure:\n"
           "lz4 -b1 -i3 -B6 %s/bench-*.payload\n", folder);
    snprintf(path, sizeof path, "%s/bench.tape", folder);
    bench_ls(path);
    if (argc > 2) {
        snprintf(path, sizeof path, "%s/large.tape", folder);
        make_large(path, strtod(argv[2], NULL));
        bench_ls(path);
    }
    for (size_t v = 0; v < COUNT_OF(VALUES); v++) free(data[v]);
    return 0;
}
