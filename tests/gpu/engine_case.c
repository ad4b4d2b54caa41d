#include "engine_case.h"

#include "base/mem.h"
#include "engine/synth.h"

#include <unistd.h>

static eng_weights *weights;
static eng_config config;
static bf16 *taps; /* [CASE_ROWS_MAX, n_taps * dim] */
static int32_t positions[CASE_ROWS_MAX];

int case_open(void **state)
{
    (void)state;
    err e = { 0 };
    eng_synth_report report;
    char made[] = "model-XXXXXX";
    const char *folder = getenv("CASE_MODEL");
    if (!folder) {
        folder = mkdtemp(made);
        assert_non_null(folder);
        assert_true(eng_config_preset("tiny", &config));
        setenv("XDG_CACHE_HOME", folder, 1);
        gpu_ok(eng_synth_checkpoint(folder, &config, 7, true, &report, &e), &e);
    }
    gpu_ok(eng_weights_open(folder, true, &weights, &e), &e);
    config = *eng_weights_config(weights);
    size_t n = (size_t)CASE_ROWS_MAX * (size_t)config.n_taps * (size_t)config.dim;
    taps = mem_alloc(n, sizeof *taps);
    assert_non_null(taps);
    for (size_t i = 0; i < n; i++) taps[i] = bf16_from_f32(gpu_normal(3, i) * (i % 97 == 0 ? 150000.0f : 30.0f));
    for (int32_t i = 0; i < CASE_ROWS_MAX; i++) positions[i] = i;
    return 0;
}

int case_close(void **state)
{
    (void)state;
    eng_weights_close(weights);
    free(taps);
    return 0;
}

eng_config case_config(void) { return config; }

eng_engine *case_engine(case_run run)
{
    bool cuda = run.backend == ENG_BACKEND_CUDA;
    eng_option_words words = { .arm = run.arm, .backend = eng_backend_name(run.backend), .mode = eng_mode_name(run.mode),
                               .combine = eng_combine_name(run.combine), .tp = run.tp,
                               .comm = cuda ? eng_comm_name(run.comm) : NULL };
    eng_options o;
    eng_engine *g = NULL;
    err e = { 0 };
    gpu_ok(eng_options_parse(&words, 0, &o, &e), &e);
    o.lazy = run.lazy;
    o.dispatch = run.dispatch;
    eng_level retain = run.retain == ENG_LEVEL_OFF ? ENG_LEVEL_DEEP : run.retain;
    gpu_ok(eng_open(weights, &o, CASE_SLOTS, retain, true, &g, &e), &e);
    return g;
}

/* Ranks call from their own threads, each into its own row. */
static void keep_hash(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    case_shown *s = ctx;
    uint64_t h = 14695981039346656037u;
    const uint8_t *p = t->data;
    for (uint64_t i = 0; i < fmt_tensor_bytes(t); i++) h = (h ^ p[i]) * 1099511628211u;
    s->hash[site->rank][site->value] = h | 1;
    __atomic_fetch_add(&s->n, 1, __ATOMIC_RELAXED);
}

void case_insert_tapped(eng_engine *g, int32_t slot, int32_t first, int32_t rows, const eng_tap *tap)
{
    err e = { 0 };
    int64_t width = (int64_t)config.n_taps * config.dim;
    gpu_ok(eng_insert(g, slot, taps + first * width, positions + first, rows, tap, &e), &e);
}

case_outcome case_draft_tapped(eng_engine *g, int32_t batch, const int32_t *slots, int32_t n_out, const eng_tap *tap)
{
    case_outcome o = { 0 };
    err e = { 0 };
    int32_t anchors[CASE_SLOTS], pos[CASE_SLOTS];
    for (int32_t b = 0; b < batch; b++) {
        anchors[b] = 17 * (slots[b] + 1);
        pos[b] = eng_slot_last(g, slots[b]);
    }
    gpu_ok(eng_draft(g, batch, slots, anchors, pos, n_out, o.drafts, o.confidence, tap, &e), &e);
    return o;
}

void case_insert(eng_engine *g, int32_t slot, int32_t first, int32_t rows, case_shown *shown)
{
    eng_tap tap = { .tensor = keep_hash, .ctx = shown };
    if (shown) *shown = (case_shown){ 0 };
    case_insert_tapped(g, slot, first, rows, shown ? &tap : NULL);
}

case_outcome case_draft(eng_engine *g, int32_t batch, const int32_t *slots, int32_t n_out, case_shown *shown)
{
    eng_tap tap = { .tensor = keep_hash, .ctx = shown };
    if (shown) *shown = (case_shown){ 0 };
    return case_draft_tapped(g, batch, slots, n_out, shown ? &tap : NULL);
}

void case_fill(eng_engine *g)
{
    case_insert(g, 0, 0, 2, NULL);
    case_insert(g, 1, 0, config.window - 1, NULL);
    case_insert(g, 2, 0, config.window, NULL);
    case_insert(g, 3, 0, CASE_ROWS_MAX - 10, NULL);
    case_insert(g, 3, CASE_ROWS_MAX - 10, 10, NULL);
}

void case_same(const char *what, const eng_program *p, int32_t n_ranks, const case_shown *a, const case_shown *b)
{
    if (a->n == 0) fail_msg("%s: nothing was shown", what);
    for (int32_t v = 0; v < p->n_values; v++)
        for (int32_t r = 0; r < n_ranks; r++)
            if (a->hash[r][v] != b->hash[r][v])
                fail_msg("%s: %s of rank %d differs (%016llx, %016llx)", what, p->value[v].name, r,
                         (unsigned long long)a->hash[r][v], (unsigned long long)b->hash[r][v]);
}
