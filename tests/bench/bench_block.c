/* One official-size block on the CPU: bench_block MODEL [THREADS]
 *
 * Best of 5 draft steps of one slot (T = 5) and one insert of 128 rows, for mirror and mirror64, page cache warm, with the
 * weight bytes a step reads over the machine's read bandwidth as the floor, then each op kind's time. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "tests/bench/bandwidth.h"

enum { ROWS = 128, STEPS = 5 };

/* Experts that a step really used, seen through the tap. */
typedef struct usage { bool expert[ENG_STAGES_MAX][1024]; } usage;

static void see_ids(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    usage *u = ctx;
    const eng_value *v = &site->program->value[site->value];
    size_t len = strlen(v->name);
    if (len < 8 || strcmp(v->name + len - 8, ".ffn.ids") != 0) return;
    const int32_t *ids = t->data;
    for (int64_t i = 0; i < fmt_tensor_elems(t); i++) u->expert[site->program->op[v->producer].stage][ids[i] % 1024] = true;
}

static uint64_t stored_bytes(const eng_weights *w, eng_wid id, int32_t stage, int32_t expert)
{
    krn_weight v = eng_weights_view(w, id, stage, expert);
    return (uint64_t)v.n * (uint64_t)v.row_bytes;
}

static uint64_t step_bytes(const eng_weights *w, const usage *u)
{
    static const eng_wid DENSE[] = { ENG_W_WQ_A, ENG_W_WQ_B, ENG_W_WKV, ENG_W_WO_A, ENG_W_WO_B, ENG_W_SHARED_W1,
                                     ENG_W_SHARED_W3, ENG_W_SHARED_W2, ENG_W_HC_ATTN_FN, ENG_W_HC_FFN_FN, ENG_W_GATE };
    const eng_config *c = eng_weights_config(w);
    uint64_t n = stored_bytes(w, ENG_W_HEAD, -1, -1) + (uint64_t)c->block * stored_bytes(w, ENG_W_MARKOV_HEAD, -1, -1);
    for (int32_t k = 0; k < c->n_stages; k++) {
        for (size_t i = 0; i < COUNT_OF(DENSE); i++) n += stored_bytes(w, DENSE[i], k, -1);
        for (int32_t x = 0; x < c->n_experts; x++)
            if (u->expert[k][x])
                n += stored_bytes(w, ENG_W_EXPERT_W1, k, x) + stored_bytes(w, ENG_W_EXPERT_W3, k, x) +
                     stored_bytes(w, ENG_W_EXPERT_W2, k, x);
    }
    return n;
}

/* Each op of the step alone, one after the other: where the time goes, by kind. */
static err_code print_shares(const eng_weights *w, const eng_options *o, err *e)
{
    const eng_config *c = eng_weights_config(w);
    eng_bench *b;
    uint64_t ns[ENG_KIND_COUNT] = { 0 }, total = 0;
    int32_t last = ROWS - 1, anchor = 7;
    TRY(eng_bench_open(w, o, ENG_STEP_DRAFT, c->block, 1, c->block, &b, e));
    const eng_program *p = eng_bench_program(b);
    eng_bench_positions(b, &last, &anchor);
    err_code rc = ERR_OK;
    for (int pass = 0; pass < 2; pass++) /* the first maps the pages of the experts that these rows choose */
        for (int32_t i = 0; i < p->n_ops && rc == ERR_OK; i++) {
            uint64_t t0 = clock_ns();
            rc = eng_bench_run(b, i, i, e);
            if (pass) ns[p->op[i].kind] += clock_ns() - t0;
        }
    for (int k = 0; k < ENG_KIND_COUNT; k++) total += ns[k];
    for (int k = 0; k < ENG_KIND_COUNT && rc == ERR_OK; k++)
        if (ns[k] * 100 > total)
            printf("          %-16s %6.1f ms %5.1f %%\n", eng_kind_name((eng_kind)k), (double)ns[k] * 1e-6,
                   100.0 * (double)ns[k] / (double)total);
    eng_bench_close(b);
    return rc;
}

static err_code time_steps(const eng_weights *w, eng_engine *g, const char *arm, double bandwidth, err *e)
{
    const eng_config *c = eng_weights_config(w);
    size_t n = (size_t)ROWS * (size_t)c->n_taps * (size_t)c->dim;
    bf16 *taps = mem_alloc(n, sizeof *taps);
    if (!taps) return err_set(e, ERR_NOMEM, "no memory for %d tap rows", ROWS);
    int32_t pos[ROWS], slot = 0, anchor = 7, last = ROWS - 1, drafts[ENG_BLOCK_MAX];
    float confidence[ENG_BLOCK_MAX];
    uint32_t seed = 1;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        taps[i] = bf16_from_f32(((float)(seed >> 8) / 8388608.0f - 1) * (i % 977 == 0 ? 250000.0f : 40.0f));
    }
    for (int32_t i = 0; i < ROWS; i++) pos[i] = i;
    uint64_t t0 = clock_ns();
    err_code rc = eng_insert(g, 0, taps, pos, ROWS, NULL, e);
    double insert_s = (double)(clock_ns() - t0) * 1e-9, best = 1e9;
    usage u = { 0 };
    for (int i = 0; i < STEPS + 1 && rc == ERR_OK; i++) { /* the first one warms the page cache and is not counted */
        t0 = clock_ns();
        rc = eng_draft(g, 1, &slot, &anchor, &last, c->block, drafts, confidence, &(eng_tap){ see_ids, &u }, e);
        double took = (double)(clock_ns() - t0) * 1e-9;
        if (i > 0 && took < best) best = took;
    }
    if (rc == ERR_OK) {
        double bytes = (double)step_bytes(w, &u);
        printf("%-9s draft T=%d  %.3f s   reads %.2f GB, floor %.3f s, ratio %.2f   insert of %d rows %.3f s\n", arm,
               c->block, best, bytes * 1e-9, bytes / bandwidth, best * bandwidth / bytes, ROWS, insert_s);
    }
    free(taps);
    return rc;
}

static err_code run(const eng_weights *w, const char *arm, int64_t threads, double bandwidth, err *e)
{
    eng_option_words words = { .arm = arm };
    eng_options o;
    eng_engine *g;
    TRY(eng_options_parse(&words, threads, &o, e));
    TRY(eng_open(w, &o, 1, ENG_LEVEL_IO, true, &g, e));
    err_code rc = time_steps(w, g, arm, bandwidth, e);
    if (rc == ERR_OK) rc = print_shares(w, &o, e);
    eng_close(g);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_block MODEL [THREADS]\n");
        return 2;
    }
    err e = { 0 };
    eng_weights *w = NULL;
    int64_t threads = argc > 2 ? atoi(argv[2]) : cpu_count();
    err_code rc = eng_weights_open(argv[1], false, &w, &e);
    if (rc == ERR_OK) {
        double bandwidth = bench_read_bandwidth((int)threads);
        printf("%s, %lld threads, %s; read bandwidth %.1f GB/s\n", cpu_name(), (long long)threads,
               krn_isa_name(krn_isa_get()), bandwidth * 1e-9);
        rc = run(w, "mirror", threads, bandwidth, &e);
        if (rc == ERR_OK) rc = run(w, "mirror64", threads, bandwidth, &e);
    }
    if (rc != ERR_OK) fprintf(stderr, "bench_block: %s\n", e.msg);
    eng_weights_close(w);
    return err_exit_status(rc);
}
