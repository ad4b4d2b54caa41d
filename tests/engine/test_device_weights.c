/* The loader of a device's weights, on a device that is host memory: no card is needed.
 *
 * The pretended copies run as late as they may, when their stream is waited for. A buffer that is filled again too early
 * therefore shows as wrong bytes. */
#include "tests/engine/fixture.h"

#include "engine/device_weights.h"
#include "engine/footprint.h"
#include "engine/synth.h"
#include "kernels/device.h"
#include "tests/support/exl3_delivery.h"

/* ---- the pretended device ---- */

enum { STREAMS_MAX = 8, PENDING_MAX = 32, HELD_MAX = 8 };

/* A copy, or where bytes is 0 the layout of bank. */
typedef struct copy { void *to; const void *from; uint64_t bytes; krn_expert_bank bank; } copy;
struct CUstream_st { copy pending[PENDING_MAX]; int n; };
typedef struct region { uint8_t *at; uint64_t bytes; } region;

static struct {
    struct CUstream_st stream[STREAMS_MAX];
    int streams_open, blocks;            /* what is held now */
    int n_pending, n_pending_max, n_copies;
    uint64_t free_bytes, dev_bytes;
    uint8_t *dev;                        /* of the device memory that is held what was taken last */
    region held[HELD_MAX];
    int n_held;
    int fail_at;                         /* the call that fails, counted from 1; 0: none */
} gpu;

static err_code call(err *e)
{
    if (gpu.fail_at > 0 && --gpu.fail_at == 0) return err_set(e, ERR_DEVICE, "planned failure");
    return ERR_OK;
}

static void *block(uint64_t bytes, int byte)
{
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(p);
    gpu.blocks++;
    return memset(p, byte, bytes);
}

static void unblock(void *p)
{
    gpu.blocks -= p != NULL;
    free(p);
}

err_code krn_device_alloc(uint64_t bytes, void **out, err *e)
{
    *out = NULL;
    TRY(call(e));
    if (bytes > gpu.free_bytes)
        return err_set(e, ERR_NOMEM, "device memory: wanted %llu bytes, free are %llu", (unsigned long long)bytes,
                       (unsigned long long)gpu.free_bytes);
    assert_true(gpu.n_held < HELD_MAX);
    *out = gpu.dev = block(bytes, 0xee);
    gpu.dev_bytes = bytes;
    gpu.held[gpu.n_held++] = (region){ *out, bytes };
    return ERR_OK;
}

static bool on_device(const void *p, uint64_t bytes)
{
    for (int i = 0; i < gpu.n_held; i++)
        if ((const uint8_t *)p >= gpu.held[i].at && (const uint8_t *)p + bytes <= gpu.held[i].at + gpu.held[i].bytes)
            return true;
    return false;
}

err_code krn_pinned_alloc(uint64_t bytes, void **out, err *e)
{
    *out = NULL;
    TRY(call(e));
    *out = block(bytes, 0xdd);
    return ERR_OK;
}

void krn_device_free(void *dev)
{
    for (int i = 0; dev && i < gpu.n_held; i++)
        if (gpu.held[i].at == dev) memmove(&gpu.held[i], &gpu.held[i + 1], (size_t)(--gpu.n_held - i) * sizeof *gpu.held);
    if (gpu.n_held > 0) gpu.dev = gpu.held[gpu.n_held - 1].at, gpu.dev_bytes = gpu.held[gpu.n_held - 1].bytes;
    unblock(dev);
}
void krn_pinned_free(void *host) { unblock(host); }

err_code krn_stream_open(krn_stream *out, err *e)
{
    *out = NULL;
    TRY(call(e));
    assert_true(gpu.streams_open < STREAMS_MAX);
    *out = &gpu.stream[gpu.streams_open++];
    (*out)->n = 0;
    return ERR_OK;
}

void krn_stream_close(krn_stream s) { gpu.streams_open -= s != NULL; }

err_code krn_copy(void *to, const void *from, uint64_t bytes, krn_stream s, err *e)
{
    TRY(call(e));
    assert_true(on_device(to, bytes) && s->n < PENDING_MAX);
    s->pending[s->n++] = (copy){ .to = to, .from = from, .bytes = bytes };
    gpu.n_copies++;
    if (++gpu.n_pending > gpu.n_pending_max) gpu.n_pending_max = gpu.n_pending;
    return ERR_OK;
}

err_code krn_kx_lay(const krn_expert_bank *from, uint8_t *blocks, krn_stream s, err *e)
{
    TRY(call(e));
    assert_true(on_device(blocks, (uint64_t)(from->n_experts * krn_kx_bytes(from->n, from->k))) && s->n < PENDING_MAX);
    assert_true(on_device(from->data, (uint64_t)from->n * (uint64_t)from->k / 2 * (uint64_t)from->n_experts));
    assert_true(((uintptr_t)from->data | (uintptr_t)blocks) % 16 == 0 && from->format == KRN_W_FP4);
    s->pending[s->n++] = (copy){ .to = blocks, .bank = *from };
    gpu.n_pending++;
    return ERR_OK;
}

static void run(const copy *c)
{
    memcpy(c->to, c->from ? c->from : c->to, c->bytes);
    for (int32_t x = 0; x < c->bank.n_experts; x++) {
        const krn_weight w = krn_expert_weight(&c->bank, x);
        krn_kx_pack(&w, NULL, (uint8_t *)c->to + x * krn_kx_bytes(w.n, w.k));
    }
}

err_code krn_stream_wait(krn_stream s, uint64_t deadline_ns, bool *done, err *e)
{
    (void)deadline_ns;
    for (int i = 0; i < s->n; i++) run(&s->pending[i]);
    gpu.n_pending -= s->n;
    s->n = 0;
    *done = true;
    return call(e);
}

/* ---- checkpoints ---- */

typedef struct world { fixture f; char cache[64]; } world;

static int setup(void **state)
{
    world *w = mem_alloc(1, sizeof *w);
    char full[PATH_MAX];
    memset(&gpu, 0, sizeof gpu);
    gpu.free_bytes = UINT64_MAX;
    fixture_init(&w->f);
    strcpy(w->cache, "cache-XXXXXX");
    assert_non_null(mkdtemp(w->cache));
    assert_non_null(realpath(w->cache, full));
    setenv("XDG_CACHE_HOME", full, 1);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    char inner[PATH_MAX];
    snprintf(inner, sizeof inner, "%s/sparktape", w->cache);
    remove_folder(inner);
    remove_folder(w->cache);
    fixture_fini(&w->f);
    free(w);
    assert_int_equal(gpu.blocks, 0); /* device and pinned memory, streams: all given back */
    assert_int_equal(gpu.streams_open, 0);
    return 0;
}

static eng_weights *opened(const fixture *f)
{
    eng_weights *w;
    err e = { 0 };
    fixture_write(f);
    if (eng_weights_open(f->dir, true, &w, &e) != ERR_OK) fail_msg("refused: %s", e.msg);
    return w;
}

static eng_reps reps_of(bool experts, bool dense)
{
    return (eng_reps){ experts ? ENG_REP_BF16 : ENG_REP_FP4, dense ? ENG_REP_BF16 : ENG_REP_FP8, ENG_REP_BF16 };
}

static eng_device_weights *loaded(const eng_weights *w, int32_t rank, int32_t ranks, bool experts, bool dense)
{
    eng_device_weights *d;
    err e = { 0 };
    const eng_reps reps = reps_of(experts, dense);
    if (eng_device_weights_open(w, rank, ranks, &reps, false, true, &d, &e) != ERR_OK) fail_msg("refused: %s", e.msg);
    return d;
}

/* ---- what is loaded ---- */

/* Whether both decode to the same values, bit for bit. */
static bool same_values(const krn_weight *a, const krn_weight *b)
{
    if (a->n != b->n || a->k != b->k || a->format != b->format) return false;
    size_t n = (size_t)a->n * (size_t)a->k;
    float *x = mem_alloc(n, sizeof *x), *y = mem_alloc(n, sizeof *y);
    krn_weight_decode_f32(a, 0, a->n, x);
    krn_weight_decode_f32(b, 0, b->n, y);
    bool same = memcmp(x, y, n * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}

static int64_t dense_row(krn_wformat format, int64_t k)
{
    return format == KRN_W_FP8 ? k : format == KRN_W_FP4 ? k / 2 : format == KRN_W_BF16 ? 2 * k : 4 * k;
}

static bool aligned(const void *p) { return ((const uint8_t *)p - gpu.dev) % 256 == 0; }

/* One matrix of a bank: rows [row, row + n) of an expert. */
static krn_weight matrix_of(const krn_expert_bank *b, int32_t expert, int32_t row, int32_t n)
{
    int64_t first = (int64_t)expert * b->n + row;
    krn_weight w = { .format = b->format, .n = n, .k = b->k, .row_bytes = dense_row(b->format, b->k) };
    w.data = (const uint8_t *)b->data + first * w.row_bytes;
    w.scale_row_bytes = b->k / 32;
    if (b->scale) w.scale = b->scale + first * w.scale_row_bytes;
    return w;
}

static bool same_experts(const eng_device_weights *d, const eng_rank_weights *r, const eng_config *c, int32_t stage)
{
    const krn_expert_bank *w13 = eng_device_experts(d, stage, false), *w2 = eng_device_experts(d, stage, true);
    int32_t inter = eng_rank_weight(r, ENG_W_EXPERT_W1, stage, 0)->n;
    bool same = w13->n == 2 * inter && w13->k == c->dim && w2->n == c->dim && w2->k == inter &&
                w13->n_experts == c->n_experts && w2->n_experts == c->n_experts && aligned(w13->data) &&
                aligned(w2->data) && (!w13->scale || (aligned(w13->scale) && aligned(w2->scale)));
    for (int32_t x = 0; x < c->n_experts && same; x++) {
        krn_weight gate = matrix_of(w13, x, 0, inter), up = matrix_of(w13, x, inter, inter),
                   down = matrix_of(w2, x, 0, c->dim);
        same = same_values(&gate, eng_rank_weight(r, ENG_W_EXPERT_W1, stage, x)) &&
               same_values(&up, eng_rank_weight(r, ENG_W_EXPERT_W3, stage, x)) &&
               same_values(&down, eng_rank_weight(r, ENG_W_EXPERT_W2, stage, x));
    }
    return same;
}

static bool same_dense(const eng_device_weights *d, const eng_rank_weights *r, int32_t stage)
{
    bool same = true;
    for (int id = 0; id < ENG_W_COUNT && same; id++) {
        if (eng_wkind_of(id)->part == ENG_PART_EXPERTS) continue;
        const krn_weight *v = eng_device_weight(d, id, stage);
        if (!eng_wkind_of(id)->loaded) same = v->data == NULL;
        else same = aligned(v->data) && (!v->scale || aligned(v->scale)) && v->row_bytes == dense_row(v->format, v->k) &&
                    same_values(v, eng_rank_weight(r, id, stage, 0));
    }
    return same;
}

/* Whether d holds what the CPU computes with. */
static bool same_rank(const eng_device_weights *d, const eng_rank_weights *r, const eng_config *c)
{
    bool same = true;
    for (int32_t stage = 0; stage < c->n_stages && same; stage++)
        same = same_dense(d, r, stage) && same_experts(d, r, c, stage);
    return same;
}

static void every_rank_of_every_representation_holds_what_the_cpu_computes_with(void **state)
{
    eng_weights *w = opened(&((world *)*state)->f);
    const eng_config *c = eng_weights_config(w);
    for (int32_t ranks = 1; ranks <= 2; ranks++)
        for (int32_t rank = 0; rank < ranks; rank++)
            for (int expand = 0; expand < 4; expand++) {
                eng_rank_weights *r;
                const eng_reps reps = reps_of(expand & 1, expand & 2);
                assert_int_equal(eng_rank_weights_open(w, rank, ranks, &reps, true, &r, NULL), ERR_OK);
                eng_device_weights *d = loaded(w, rank, ranks, expand & 1, expand & 2);
                assert_true(same_rank(d, r, c));
                eng_device_weights_close(d);
                eng_rank_weights_close(r);
            }
    eng_weights_close(w);
}

static void the_comparison_sees_one_changed_byte(void **state)
{
    eng_weights *w = opened(&((world *)*state)->f);
    const eng_config *c = eng_weights_config(w);
    eng_rank_weights *r;
    assert_int_equal(eng_rank_weights_open(w, 1, 2, &(eng_reps){ 0 }, true, &r, NULL), ERR_OK);
    eng_device_weights *d = loaded(w, 1, 2, false, false);
    const krn_expert_bank *w2 = eng_device_experts(d, 1, true);
    const void *places[] = { eng_device_weight(d, ENG_W_WO_B, 1)->data, eng_device_weight(d, ENG_W_MARKOV_HEAD, 0)->data,
                             eng_device_weight(d, ENG_W_WKV, 0)->scale, w2->data, w2->scale };
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        uint8_t *p = gpu.dev + ((const uint8_t *)places[i] - gpu.dev);
        *p ^= 2;
        assert_false(same_rank(d, r, c));
        *p ^= 2;
    }
    assert_true(same_rank(d, r, c));
    eng_device_weights_close(d);
    eng_rank_weights_close(r);
    eng_weights_close(w);
}

/* ---- the layout of a kx arm ---- */

static eng_device_weights *loaded_kx(const eng_weights *w, int32_t rank, int32_t ranks)
{
    eng_device_weights *d;
    const eng_reps reps = reps_of(false, true);
    OK(eng_device_weights_open(w, rank, ranks, &reps, true, true, &d, e));
    return d;
}

/* Whether every expert of both is the same matrices: plain's packed on the CPU are kx's. */
static bool same_layout(const eng_device_weights *kx, const eng_device_weights *plain, int32_t stages)
{
    bool same = true;
    for (int i = 0; i < 2 * stages && same; i++) {
        const krn_kx_bank *got = eng_device_experts_kx(kx, i / 2, i % 2);
        const krn_expert_bank *from = eng_device_experts(plain, i / 2, i % 2);
        const size_t bytes = (size_t)krn_kx_bytes(from->n, from->k);
        uint8_t *packed = mem_alloc(bytes, 1);
        bool large = false;
        same = got->n == from->n && got->k == from->k && got->n_experts == from->n_experts && aligned(got->blocks);
        for (int32_t x = 0; x < from->n_experts && same; x++) {
            const krn_weight w = krn_expert_weight(from, x);
            large |= krn_kx_pack(&w, NULL, packed);
            same = memcmp(got->blocks + (size_t)x * bytes, packed, bytes) == 0;
        }
        same = same && got->large == large;
        free(packed);
    }
    return same;
}

static void a_kx_arm_holds_the_same_experts_in_its_layout(void **state)
{
    fixture *f = &((world *)*state)->f;
    const eng_arm *arm = eng_arm_find("native-hybrid-kx");
    f->data[fixture_find(f, "mtp.1.ffn.experts.2.w3.scale")][0] = KRN_KX_SCALE_SMALL + 1; /* of one bank, rank 0's */
    eng_weights *w = opened(f);
    const eng_config *c = eng_weights_config(w);
    for (int32_t ranks = 1; ranks <= 2; ranks++)
        for (int32_t rank = 0; rank < ranks; rank++) {
            eng_footprint plan;
            eng_rank_weights *r;
            const eng_reps reps = eng_arm_reps(arm);
            const int pending_before = gpu.n_pending;
            eng_device_weights *plain = loaded(w, rank, ranks, false, true), *kx = loaded_kx(w, rank, ranks);
            assert_int_equal(gpu.n_pending, pending_before);
            assert_int_equal(gpu.blocks, 2); /* what they were re-laid from is given back */
            assert_true(same_layout(kx, plain, c->n_stages));
            for (int i = 0; i < 2 * c->n_stages; i++) {
                assert_int_equal(eng_device_experts_kx(kx, i / 2, i % 2)->large, i == 2 && rank == 0);
                assert_null(eng_device_experts_kx(plain, i / 2, i % 2));
            }
            OK(eng_rank_weights_open(w, rank, ranks, &reps, true, &r, e));
            assert_true(same_dense(kx, r, 0) && same_dense(kx, r, c->n_stages - 1));
            const eng_footprint_for as = { .n_ranks = ranks, .positions = 1, .slots = 1 };
            OK(eng_footprint_of(c, arm, &as, rank, &plan, e));
            assert_int_equal(eng_device_weights_bytes(kx, ENG_PART_EXPERTS), plan.bytes[ENG_FOOT_EXPERTS]);
            assert_true(eng_device_weights_bytes(kx, ENG_PART_EXPERTS) > eng_device_weights_bytes(plain, ENG_PART_EXPERTS));
            uint8_t *byte = gpu.dev + (eng_device_experts_kx(kx, 0, true)->blocks - gpu.dev) + 5;
            *byte ^= 4;
            assert_false(same_layout(kx, plain, c->n_stages));
            eng_rank_weights_close(r);
            eng_device_weights_close(kx);
            eng_device_weights_close(plain);
        }
    eng_weights_close(w);
}

/* ---- EXL3 ---- */

static eng_weights *with_exl3(const char *preset, char dir[64])
{
    eng_config c;
    eng_synth_report report;
    eng_weights *w;
    strcpy(dir, "exl3-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_true(eng_config_preset(preset, &c));
    OK(eng_synth_checkpoint(dir, &c, 3, true, &report, e));
    exl3_delivery_write(dir, &c, &(exl3_delivery){ 2, 5, 6, FMT_EXL3_MUL1, 4 });
    OK(eng_weights_open(dir, true, &w, e));
    return w;
}

/* Matrix `m` of an expert, m of 2 or of 1, as a weight in the bank's layout. */
static krn_weight exl3_matrix(const krn_exl3_bank *b, int32_t expert, int32_t m, int32_t of)
{
    const int64_t row_words = 8 * 16 * b->bits, matrix_words = row_words * (b->k / 16) * (b->n / of / 128);
    return (krn_weight){ .format = KRN_W_EXL3, .n = b->n / of, .k = b->k, .row_bytes = 2 * row_words,
                         .data = b->tiles + (expert * of + m) * matrix_words,
                         .exl3 = { b->bits, b->codebook, 0, 0, 2 * row_words * (b->k / 16),
                                   b->suh + ((int64_t)expert * of + m) * b->k,
                                   b->svh + (int64_t)expert * b->n + m * (b->n / of) } };
}

static bool same_exl3_experts(const eng_device_weights *d, const eng_rank_weights *r, int32_t stage, int32_t expert)
{
    const krn_exl3_bank *w13 = eng_device_experts_exl3(d, stage, false), *w2 = eng_device_experts_exl3(d, stage, true);
    const krn_weight gate = exl3_matrix(w13, expert, 0, 2), up = exl3_matrix(w13, expert, 1, 2);
    const krn_weight down = exl3_matrix(w2, expert, 0, 1);
    return aligned(w13->tiles) && aligned(w2->tiles) &&
           same_values(&gate, eng_rank_weight(r, ENG_W_EXPERT_W1, stage, expert)) &&
           same_values(&up, eng_rank_weight(r, ENG_W_EXPERT_W3, stage, expert)) &&
           same_values(&down, eng_rank_weight(r, ENG_W_EXPERT_W2, stage, expert));
}

static void exl3_lies_as_its_kernels_want_it_on_every_rank(void **state)
{
    (void)state;
    const eng_reps reps = { ENG_REP_EXL3, ENG_REP_EXL3, ENG_REP_EXL3 };
    char dir[64];
    eng_weights *w = with_exl3("mid", dir);
    const eng_config *c = eng_weights_config(w);
    for (int32_t ranks = 1; ranks <= 2; ranks++)
        for (int32_t rank = 0; rank < ranks; rank++) {
            eng_rank_weights *r;
            eng_device_weights *d;
            OK(eng_rank_weights_open(w, rank, ranks, &reps, true, &r, e));
            OK(eng_device_weights_open(w, rank, ranks, &reps, false, true, &d, e));
            for (int id = 0; id < ENG_W_COUNT; id++) {
                if (eng_wkind_of(id)->part == ENG_PART_EXPERTS || !eng_wkind_of(id)->loaded) continue;
                const krn_weight *v = eng_device_weight(d, id, 1);
                assert_true(aligned(v->data) && same_values(v, eng_rank_weight(r, id, 1, 0)));
                if (v->format == KRN_W_EXL3) assert_int_equal(v->row_bytes, 8 * 32 * v->exl3.bits);
            }
            for (int32_t x = 0; x < c->n_experts; x++) assert_true(same_exl3_experts(d, r, 2, x));
            const uint64_t inter = (uint64_t)(c->inter / ranks), dim = (uint64_t)c->dim;
            assert_int_equal(eng_device_weights_bytes(d, ENG_PART_EXPERTS),
                             (uint64_t)(c->n_stages * c->n_experts * 3) * (inter * dim / 4 + 2 * (inter + dim)));
            eng_device_weights_close(d);
            eng_rank_weights_close(r);
        }
    eng_weights_close(w);
    remove_folder(dir);
}

static void experts_cut_inside_a_block_do_not_go_to_a_device(void **state)
{
    (void)state;
    const eng_reps reps = { ENG_REP_EXL3, ENG_REP_EXL3, ENG_REP_EXL3 };
    const eng_reps packed = { ENG_REP_FP4, ENG_REP_EXL3, ENG_REP_EXL3 };
    char dir[64];
    eng_weights *w = with_exl3("tiny", dir);
    eng_device_weights *d;
    eng_rank_weights *r;
    REFUSED(eng_device_weights_open(w, 1, 2, &reps, false, true, &d, e), ERR_INPUT, "whole blocks of 128");
    OK(eng_device_weights_open(w, 1, 2, &packed, false, true, &d, e)); /* the dense ones may be */
    OK(eng_rank_weights_open(w, 1, 2, &packed, true, &r, e));
    assert_null(eng_device_experts_exl3(d, 0, false));
    assert_true(same_values(eng_device_weight(d, ENG_W_SHARED_W2, 0), eng_rank_weight(r, ENG_W_SHARED_W2, 0, 0)));
    assert_true(same_values(eng_device_weight(d, ENG_W_SHARED_W3, 0), eng_rank_weight(r, ENG_W_SHARED_W3, 0, 0)));
    eng_device_weights_close(d);
    eng_rank_weights_close(r);
    eng_weights_close(w);
    remove_folder(dir);
}

static void weights_outlive_the_checkpoint_they_came_from(void **state)
{
    eng_weights *w = opened(&((world *)*state)->f);
    eng_device_weights *d = loaded(w, 0, 1, false, true);
    uint16_t first = get_u16(((world *)*state)->f.data[fixture_find(&((world *)*state)->f, "embed.weight")]);
    eng_weights_close(w);
    assert_int_equal(*(const bf16 *)eng_device_weight(d, ENG_W_EMBED, 0)->data, first);
    eng_device_weights_close(d);
}

static void parts_add_up_to_the_shapes(void **state)
{
    eng_weights *w = opened(&((world *)*state)->f);
    eng_device_weights *packed = loaded(w, 0, 2, false, false), *expanded = loaded(w, 0, 2, true, true);
    const uint64_t vocab = 600, dim = 96, inter = 32, matrices = 2 * 4 * 3, rows = 512 /* 2 of 3 tiles */;
    assert_int_equal(eng_device_weights_bytes(packed, ENG_PART_EMBED), vocab * dim * 2);
    assert_int_equal(eng_device_weights_bytes(packed, ENG_PART_HEAD), rows * dim * 2);
    assert_int_equal(eng_device_weights_bytes(packed, ENG_PART_MARKOV), (vocab + rows) * 8 * 2);
    assert_int_equal(eng_device_weights_bytes(packed, ENG_PART_EXPERTS), matrices * inter * dim * 17 / 32);
    assert_int_equal(eng_device_weights_bytes(expanded, ENG_PART_EXPERTS), matrices * inter * dim * 2);
    uint64_t sum = 0;
    for (int part = 0; part <= ENG_PART_SMALL; part++) sum += eng_device_weights_bytes(expanded, part);
    assert_true(sum <= gpu.dev_bytes && gpu.dev_bytes < sum + 256 * 128); /* one allocation, little more than they need */
    eng_device_weights_close(packed);
    eng_device_weights_close(expanded);
    eng_weights_close(w);
}

static void a_copy_runs_while_the_next_buffer_is_filled(void **state)
{
    eng_weights *w = opened(&((world *)*state)->f);
    eng_device_weights *d = loaded(w, 0, 1, true, true);
    assert_true(gpu.n_copies >= 4);
    assert_int_equal(gpu.n_pending_max, 2);
    assert_int_equal(gpu.n_pending, 0); /* all of it is there when open returns */
    assert_int_equal(gpu.blocks, 1);    /* only the weights are kept */
    eng_device_weights_close(d);
    eng_weights_close(w);
}

/* ---- refusals ---- */

static void too_little_device_memory_is_refused_before_anything_is_read(void **state)
{
    eng_weights *w = opened(&((world *)*state)->f);
    eng_device_weights *d;
    err e = { 0 };
    gpu.free_bytes = 1000;
    assert_int_equal(eng_device_weights_open(w, 1, 2, &(eng_reps){ 0 }, false, true, &d, &e), ERR_NOMEM);
    assert_null(d);
    assert_non_null(strstr(e.msg, "rank 1"));
    assert_non_null(strstr(e.msg, "free are 1000"));
    assert_int_equal(gpu.n_copies, 0);
    eng_weights_close(w);
}

static int failing_calls(const eng_weights *w, bool kx)
{
    const eng_reps reps = reps_of(false, true);
    bool failed = true;
    int calls = 0;
    for (; failed; calls++) {
        eng_device_weights *d = (eng_device_weights *)1;
        err e = { 0 };
        gpu.fail_at = calls + 1;
        failed = eng_device_weights_open(w, 0, 2, &reps, kx, true, &d, &e) != ERR_OK;
        if (failed) {
            assert_int_equal(e.code, ERR_DEVICE);
            assert_non_null(strstr(e.msg, "planned failure"));
            assert_null(d);
            assert_int_equal(gpu.blocks + gpu.streams_open + gpu.n_pending, 0);
        }
        eng_device_weights_close(d);
    }
    return calls;
}

static void every_failing_call_is_reported_and_nothing_is_kept(void **state)
{
    eng_weights *w = opened(&((world *)*state)->f);
    const int calls = failing_calls(w, false);
    assert_true(calls > 10); /* memory, buffers, streams, and a wait and a copy for each of several buffers */
    assert_true(failing_calls(w, true) >= calls + 2 + 2 * 2 * 4); /* two more buffers; every stage's experts are re-laid */
    eng_weights_close(w);
}

static void a_rank_count_that_does_not_cut_is_refused(void **state)
{
    eng_weights *w = opened(&((world *)*state)->f);
    eng_device_weights *d;
    err e = { 0 };
    assert_int_equal(eng_device_weights_open(w, 0, 3, &(eng_reps){ 0 }, false, true, &d, &e), ERR_ARG);
    assert_null(d);
    eng_weights_close(w);
}

static bool bf16_holds(float v) { return isfinite(bf16_round(v)) && bf16_round(v) == v; }

/* Loads with one block of the tensor spoiled: its scale is s, its codes all that exist, or the harmless zero. */
static void scale_is_judged_rightly(fixture *f, const char *name, bool fp8, int s, bool all_codes)
{
    char weight[ENG_TENSOR_NAME], scale[ENG_TENSOR_NAME];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(scale, sizeof scale, "%s.scale", name);
    uint8_t *codes = f->data[fixture_find(f, weight)], *scales = f->data[fixture_find(f, scale)];
    int64_t row_bytes = f->decl[fixture_find(f, weight)].shape[1];
    bool wrong = false;
    scales[0] = (uint8_t)s;
    if (fp8) { /* the first block: 32 rows of 32 codes */
        for (int i = 0; i < 1024; i++) {
            uint8_t code = (uint8_t)(all_codes ? i % 256 : 0);
            if ((code & 0x7f) == FMT_E4M3_NAN) code = 0;
            codes[i / 32 * row_bytes + i % 32] = code;
            wrong |= !bf16_holds(FMT_E4M3_VALUE[code] * f32_from_e8m0((uint8_t)s));
        }
    } else { /* the first group: 16 bytes, so all 16 codes in the low nibbles */
        for (int i = 0; i < 16; i++) {
            codes[i] = (uint8_t)(all_codes ? i : 0);
            wrong |= !bf16_holds(FMT_E2M1_VALUE[codes[i]] * f32_from_e8m0((uint8_t)s));
        }
    }
    eng_weights *w = opened(f);
    for (int way = 0; way < 3; way++) { /* packed, expanded, packed in a kx arm's layout */
        const eng_reps reps = reps_of(way == 1, way == 1);
        eng_device_weights *d;
        err e = { 0 };
        err_code rc = eng_device_weights_open(w, 0, 2, &reps, way == 2, true, &d, &e);
        if (rc != (wrong ? ERR_INPUT : ERR_OK))
            fail_msg("%s, scale %d, way %d: %s '%s'", name, s, way, err_name(rc), e.msg);
        assert_true(!wrong || (strstr(e.msg, weight) && strstr(e.msg, "bf16 cannot hold")));
        eng_device_weights_close(d);
    }
    eng_weights_close(w);
}

static void what_bf16_cannot_hold_is_refused_packed_or_expanded(void **state)
{
    fixture *f = &((world *)*state)->f;
    static const int SCALES[] = { 0, 1, 2, 3, 4, 127, 245, 246, 247, 248, 251, 252, 253, 254 };
    for (size_t i = 0; i < COUNT_OF(SCALES); i++)
        for (int all_codes = 0; all_codes < 2; all_codes++) {
            scale_is_judged_rightly(f, "mtp.1.attn.wo_b", true, SCALES[i], all_codes);
            f->data[fixture_find(f, "mtp.1.attn.wo_b.scale")][0] = 127;
            scale_is_judged_rightly(f, "mtp.0.ffn.experts.3.w2", false, SCALES[i], all_codes);
            f->data[fixture_find(f, "mtp.0.ffn.experts.3.w2.scale")][0] = 127;
        }
    scale_is_judged_rightly(f, "mtp.1.ffn.experts.2.w3", false, 254, true);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_rank_of_every_representation_holds_what_the_cpu_computes_with),
        TEST(the_comparison_sees_one_changed_byte),
        TEST(a_kx_arm_holds_the_same_experts_in_its_layout),
        TEST(exl3_lies_as_its_kernels_want_it_on_every_rank),
        TEST(experts_cut_inside_a_block_do_not_go_to_a_device),
        TEST(weights_outlive_the_checkpoint_they_came_from),
        TEST(parts_add_up_to_the_shapes),
        TEST(a_copy_runs_while_the_next_buffer_is_filled),
        TEST(too_little_device_memory_is_refused_before_anything_is_read),
        TEST(every_failing_call_is_reported_and_nothing_is_kept),
        TEST(a_rank_count_that_does_not_cut_is_refused),
        TEST(what_bf16_cannot_hold_is_refused_packed_or_expanded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
