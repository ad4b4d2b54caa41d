#include "engine/inventory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static eng_config preset(const char *name)
{
    eng_config c;
    assert_true(eng_config_preset(name, &c));
    return c;
}

typedef struct list { eng_tensor_spec *spec; size_t n; } list;
static list inventory(const eng_config *c)
{
    list l;
    assert_int_equal(eng_inventory(c, &l.spec, &l.n, NULL), ERR_OK);
    return l;
}

static const eng_tensor_spec *find(const list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->spec[i].name, name) == 0) return &l->spec[i];
    fail_msg("%s is not in the list", name);
    return NULL;
}

static void the_official_config_has_2401_mtp_tensors_and_two_shared(void **state)
{
    (void)state;
    eng_config c = preset("official");
    list l = inventory(&c);
    size_t mtp = 0;
    for (size_t i = 0; i < l.n; i++) mtp += strncmp(l.spec[i].name, "mtp.", 4) == 0;
    assert_int_equal(mtp, 2401);
    assert_int_equal(l.n, 2403);
    free(l.spec);
}

static void the_list_is_sorted_and_has_no_name_twice(void **state)
{
    (void)state;
    eng_config c = preset("official");
    list l = inventory(&c);
    for (size_t i = 1; i < l.n; i++) assert_true(strcmp(l.spec[i - 1].name, l.spec[i].name) < 0);
    free(l.spec);
}

static void official_shapes_and_types_are_the_documented_ones(void **state)
{
    (void)state;
    static const struct { const char *name; fmt_dtype dtype; int ndim, n, k; } WANTED[] = {
        { "embed.weight",                           FMT_DTYPE_BF16, 2, 129280, 5120 },
        { "head.weight",                            FMT_DTYPE_BF16, 2, 129280, 5120 },
        { "mtp.0.main_proj.weight",                 FMT_DTYPE_F8,   2, 5120,   15360 },
        { "mtp.0.main_proj.scale",                  FMT_DTYPE_E8M0, 2, 160,    480 },
        { "mtp.0.main_norm.weight",                 FMT_DTYPE_BF16, 1, 5120,   1 },
        { "mtp.1.attn.wq_b.weight",                 FMT_DTYPE_F8,   2, 32768,  1280 },
        { "mtp.1.attn.wq_b.scale",                  FMT_DTYPE_E8M0, 2, 1024,   40 },
        { "mtp.2.attn.wo_a.weight",                 FMT_DTYPE_F8,   2, 8192,   4096 },
        { "mtp.2.attn.wo_a.scale",                  FMT_DTYPE_E8M0, 2, 256,    128 },
        { "mtp.2.attn.wo_b.scale",                  FMT_DTYPE_E8M0, 2, 160,    256 },
        { "mtp.2.attn.attn_sink",                   FMT_DTYPE_F32,  1, 64,     1 },
        { "mtp.0.hc_attn_fn",                       FMT_DTYPE_F32,  2, 24,     20480 },
        { "mtp.0.hc_ffn_base",                      FMT_DTYPE_F32,  1, 24,     1 },
        { "mtp.0.hc_ffn_scale",                     FMT_DTYPE_F32,  1, 3,      1 },
        { "mtp.0.ffn.gate.weight",                  FMT_DTYPE_BF16, 2, 128,    5120 },
        { "mtp.0.ffn.gate.bias_vl",                 FMT_DTYPE_F32,  1, 128,    1 },
        { "mtp.2.ffn.experts.127.w1.weight",        FMT_DTYPE_I8,   2, 2304,   2560 },
        { "mtp.2.ffn.experts.127.w1.scale",         FMT_DTYPE_E8M0, 2, 2304,   160 },
        { "mtp.2.ffn.experts.127.w2.weight",        FMT_DTYPE_I8,   2, 5120,   1152 },
        { "mtp.2.ffn.experts.127.w2.scale",         FMT_DTYPE_E8M0, 2, 5120,   72 },
        { "mtp.1.ffn.shared_experts.w2.scale",      FMT_DTYPE_E8M0, 2, 160,    72 },
        { "mtp.2.norm.weight",                      FMT_DTYPE_BF16, 1, 5120,   1 },
        { "mtp.2.markov_head.head.weight",          FMT_DTYPE_BF16, 2, 129280, 256 },
        { "mtp.2.confidence_head.proj.weight",      FMT_DTYPE_BF16, 2, 1,      5376 },
    };
    eng_config c = preset("official");
    list l = inventory(&c);
    for (size_t i = 0; i < sizeof WANTED / sizeof WANTED[0]; i++) {
        const eng_tensor_spec *s = find(&l, WANTED[i].name);
        assert_int_equal(s->dtype, WANTED[i].dtype);
        assert_int_equal(s->ndim, WANTED[i].ndim);
        assert_int_equal(s->shape[0], WANTED[i].n);
        assert_int_equal(s->shape[1], WANTED[i].k);
    }
    free(l.spec);
}

static void the_first_and_last_stage_follow_the_config(void **state)
{
    (void)state;
    eng_config c = preset("tiny");
    c.n_stages = 2;
    list l = inventory(&c);
    assert_int_equal(l.n, 2 * (8 * 6 + 30) + 3 + 4 + 2);
    find(&l, "mtp.0.main_proj.weight");
    find(&l, "mtp.1.norm.weight");
    find(&l, "mtp.1.markov_head.embed.weight");
    free(l.spec);
    c.n_stages = 1;
    l = inventory(&c);
    find(&l, "mtp.0.confidence_head.proj.weight");
    free(l.spec);
}

/* ---- cuts ---- */

static void the_official_halves_are_the_documented_ones(void **state)
{
    (void)state;
    static const struct { eng_wid id; int first, count; } SECOND[] = {
        { ENG_W_WQ_B, 16384, 16384 }, { ENG_W_SINK, 32, 32 }, { ENG_W_WO_A, 4096, 4096 }, { ENG_W_WO_B, 4096, 4096 },
        { ENG_W_EXPERT_W1, 1152, 1152 }, { ENG_W_EXPERT_W3, 1152, 1152 }, { ENG_W_EXPERT_W2, 1152, 1152 },
        { ENG_W_SHARED_W1, 1152, 1152 }, { ENG_W_SHARED_W2, 1152, 1152 }, { ENG_W_HEAD, 64768, 64512 },
        { ENG_W_MARKOV_HEAD, 64768, 64512 }, { ENG_W_MARKOV_EMBED, 0, 129280 }, { ENG_W_EMBED, 0, 129280 },
        { ENG_W_WQ_A, 0, 1280 }, { ENG_W_MAIN_PROJ, 0, 5120 },
    };
    eng_config c = preset("official");
    assert_int_equal(eng_cut_check(&c, 2, NULL), ERR_OK);
    for (size_t i = 0; i < sizeof SECOND / sizeof SECOND[0]; i++) {
        eng_range r = eng_cut_range(&c, SECOND[i].id, 1, 2);
        assert_int_equal(r.first, SECOND[i].first);
        assert_int_equal(r.count, SECOND[i].count);
    }
}

static void shares_cover_every_axis_in_rank_order(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "tiny", "mid", "official" };
    for (int p = 0; p < 3; p++) {
        eng_config c = preset(NAMES[p]);
        c.vocab -= 37; /* a ragged last tile */
        for (int32_t ranks = 1; ranks <= ENG_RANKS_MAX; ranks++) {
            if (eng_cut_check(&c, ranks, NULL) != ERR_OK) continue;
            for (int id = 0; id < ENG_W_COUNT; id++) {
                eng_cut cut = eng_wkind_of(id)->cut;
                int32_t n, k, next = 0;
                eng_wid_shape(&c, id, &n, &k);
                for (int32_t rank = 0; rank < ranks; rank++) {
                    eng_range r = eng_cut_range(&c, id, rank, ranks);
                    if (cut == ENG_CUT_NONE) {
                        assert_true(r.first == 0 && r.count == n);
                        continue;
                    }
                    assert_int_equal(r.first, next);
                    assert_true(r.count > 0);
                    if (cut == ENG_CUT_VOCAB) assert_int_equal(r.first % ENG_VOCAB_TILE, 0);
                    next += r.count;
                }
                if (cut != ENG_CUT_NONE) assert_int_equal(next, cut == ENG_CUT_COLS ? k : n);
            }
        }
    }
}

static void a_ragged_vocabulary_gives_its_last_tile_to_the_last_rank(void **state)
{
    (void)state;
    eng_config c = preset("tiny");
    c.vocab = 1000; /* tiles of 256, 256, 256, 232 */
    assert_int_equal(eng_cut_range(&c, ENG_W_HEAD, 1, 2).first, 512);
    assert_int_equal(eng_cut_range(&c, ENG_W_HEAD, 1, 2).count, 488);
    assert_int_equal(eng_cut_range(&c, ENG_W_HEAD, 0, 3).count, 512); /* the first ranks take the larger share */
    assert_int_equal(eng_cut_range(&c, ENG_W_HEAD, 2, 3).first, 768);
    assert_int_equal(eng_cut_range(&c, ENG_W_HEAD, 2, 3).count, 232);
}

static void cuts_are_refused(eng_config c, int32_t ranks, const char *tensor, const char *at)
{
    err e = { 0 };
    assert_int_equal(eng_cut_check(&c, ranks, &e), ERR_ARG);
    if (!strstr(e.msg, tensor) || !strstr(e.msg, at)) fail_msg("'%s' does not name %s and %s", e.msg, tensor, at);
}

static void cuts_inside_a_group_name_the_tensor_and_the_place(void **state)
{
    (void)state;
    eng_config tiny = preset("tiny"), c = tiny;
    cuts_are_refused(tiny, 3, "attn.wq_b", "row 85.33 of 256");
    cuts_are_refused(tiny, 8, "attn.wq_b", "row 32 of 256");   /* half a head, though a whole 32-group */
    c.inter = 96;
    cuts_are_refused(c, 2, "ffn.experts.0.w1", "row 48 of 96"); /* inside a scale group */
    c = tiny;
    c.o_groups = 2;
    c.o_lora = 48;
    cuts_are_refused(c, 2, "attn.wo_a", "row 48 of 96");       /* a whole output group, but not a whole scale block */
    c = tiny;
    c.o_groups = 1;
    cuts_are_refused(c, 2, "attn.wo_a", "row 16 of 32");
    c = tiny;
    c.vocab = 512;
    cuts_are_refused(c, 4, "head.weight", "512");
    cuts_are_refused(tiny, 0, "rank count", "0");
    cuts_are_refused(tiny, ENG_RANKS_MAX + 1, "rank count", "9");
    assert_int_equal(eng_cut_check(&tiny, 4, NULL), ERR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_official_config_has_2401_mtp_tensors_and_two_shared),
        cmocka_unit_test(the_list_is_sorted_and_has_no_name_twice),
        cmocka_unit_test(official_shapes_and_types_are_the_documented_ones),
        cmocka_unit_test(the_first_and_last_stage_follow_the_config),
        cmocka_unit_test(the_official_halves_are_the_documented_ones),
        cmocka_unit_test(shares_cover_every_axis_in_rank_order),
        cmocka_unit_test(a_ragged_vocabulary_gives_its_last_tile_to_the_last_rank),
        cmocka_unit_test(cuts_inside_a_group_name_the_tensor_and_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
