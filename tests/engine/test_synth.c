/* Synthetic checkpoints and scripts: they open, they repeat, and their numbers reach the edges they are made for. */
#include "engine/manifest.h"
#include "engine/noise.h"
#include "engine/script.h"
#include "engine/synth.h"
#include "engine/traffic.h"

#include "scratch.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#ifdef _OPENMP
#include <omp.h>
#endif

static eng_config preset(const char *name)
{
    eng_config c;
    assert_true(eng_config_preset(name, &c));
    return c;
}

static eng_synth_report synth(const char *folder, const char *name, uint64_t seed)
{
    eng_config c = preset(name);
    eng_synth_report r;
    err e = { 0 };
    if (eng_synth_checkpoint(folder, &c, seed, true, &r, &e) != ERR_OK) fail_msg("%s", e.msg);
    return r;
}

static void normals_have_mean_0_and_deviation_1(void **state)
{
    (void)state;
    const float *n = eng_noise_normals();
    double sum = 0, squares = 0;
    for (int i = 0; i < ENG_NOISE_NORMALS; i++) {
        assert_true(i == 0 || n[i] > n[i - 1]);
        sum += n[i];
        squares += (double)n[i] * n[i];
    }
    assert_true(fabs(sum) <= 1e-6);
    assert_true(fabs(squares / ENG_NOISE_NORMALS - 1) <= 1e-3);
    assert_true(fabs(n[ENG_NOISE_NORMALS * 3 / 4] - 0.6745) <= 1e-3); /* the upper quartile */
}

static void a_checkpoint_opens_and_holds_its_config(void **state)
{
    (void)state;
    static const char *const PRESETS[] = { "tiny", "mid" };
    for (int i = 0; i < 2; i++) {
        eng_synth_report r = synth(PRESETS[i], PRESETS[i], 3);
        eng_config wanted = preset(PRESETS[i]);
        eng_weights *w;
        err e = { 0 };
        if (eng_weights_open(PRESETS[i], true, &w, &e) != ERR_OK) fail_msg("%s", e.msg);
        assert_true(eng_config_equal(eng_weights_config(w), &wanted));
        assert_int_equal(fmt_checkpoint_count(eng_weights_files(w)), r.tensors);
        assert_int_equal(r.shards, 2);
        eng_weights_close(w);
    }
}

static void numbers_are_exact_and_within_the_official_range(void **state)
{
    (void)state;
    synth("range", "tiny", 4);
    eng_weights *w;
    eng_scan s;
    err e = { 0 };
    assert_int_equal(eng_weights_open("range", true, &w, &e), ERR_OK);
    assert_int_equal(eng_scan_open(w, false, true, &s, &e), ERR_OK);
    for (size_t i = 0; i < s.n; i++) {
        const eng_tensor_record *r = &s.record[i];
        eng_wclass wclass = eng_wkind_of(r->spec.wid)->wclass;
        assert_int_equal(r->facts.nans + r->facts.infs, 0);
        if (wclass != ENG_WC_FP4 && wclass != ENG_WC_FP8) continue;
        assert_int_equal(r->facts.inexact_bf16 + r->facts.inexact_fp16, 0);
        if (r->spec.is_scale)
            assert_true(r->facts.max_abs >= 2 * r->facts.min_abs); /* equal scales hide every layout fault */
        else
            assert_true(r->facts.min_abs >= 0x1p-21 && r->facts.max_abs <= 6);
    }
    eng_scan_close(&s);
    eng_weights_close(w);
}

static void same_file(const char *a, const char *b, bool same)
{
    size_t n_a, n_b;
    uint8_t *in_a = scratch_read(a, &n_a), *in_b = scratch_read(b, &n_b);
    assert_int_equal(n_a, n_b);
    assert_int_equal(memcmp(in_a, in_b, n_a) == 0, same);
    free(in_a);
    free(in_b);
}

static void threads(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

static void a_seed_gives_the_same_bytes_on_any_number_of_threads(void **state)
{
    (void)state;
    threads(1);
    synth("one", "tiny", 7);
    threads(3);
    synth("three", "tiny", 7);
    synth("other", "tiny", 8);
    threads(2);
    same_file("one/model-00001-of-00002.safetensors", "three/model-00001-of-00002.safetensors", true);
    same_file("one/model-00002-of-00002.safetensors", "three/model-00002-of-00002.safetensors", true);
    same_file("one/model-00001-of-00002.safetensors", "other/model-00001-of-00002.safetensors", false);
}

static void a_folder_that_holds_anything_is_refused_and_kept(void **state)
{
    (void)state;
    static const char *const HELD[] = { "config.json", "x.safetensors", "notes.txt", ".hidden" };
    eng_config c = preset("tiny");
    assert_int_equal(mkdir("held", 0777), 0);
    for (size_t i = 0; i < sizeof HELD / sizeof HELD[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "held/%s", HELD[i]);
        scratch_write(path, "mine", 4);
        eng_synth_report r;
        err e = { 0 };
        assert_int_equal(eng_synth_checkpoint("held", &c, 1, true, &r, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, HELD[i]));
        size_t n;
        uint8_t *kept = scratch_read(path, &n);
        assert_memory_equal(kept, "mine", 4);
        free(kept);
        assert_int_equal(unlink(path), 0);
    }
    scratch_write("file", "", 0);
    eng_synth_report r;
    err e = { 0 };
    assert_int_equal(eng_synth_checkpoint("file", &c, 1, true, &r, &e), ERR_ARG);
    assert_int_equal(eng_synth_checkpoint("absent/below", &c, 1, true, &r, &e), ERR_IO);
}

static void a_full_disk_leaves_nothing_behind(void **state)
{
    (void)state;
    eng_config c = preset("tiny");
    eng_synth_report r;
    err e = { 0 };
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    /* Between the two shards' sizes: the first fails at once, or the second after the first is whole. */
    static const rlim_t LIMITS[] = { 100000, 2000000 };
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        small.rlim_cur = LIMITS[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        err_code rc = eng_synth_checkpoint("full", &c, 1, true, &r, &e);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(rc, ERR_IO);
        assert_int_equal(access("full", F_OK), -1);
    }
}

/* ---- scripts ---- */

static eng_script *script(const char *path, const eng_config *c, int64_t rounds, int64_t slots, uint64_t seed)
{
    eng_traffic_report r;
    eng_script *s;
    err e = { 0 };
    if (eng_traffic_write(path, c, rounds, slots, seed, true, &r, &e) != ERR_OK) fail_msg("%s", e.msg);
    if (eng_script_open(path, c, &s, &e) != ERR_OK) fail_msg("%s", e.msg);
    return s;
}

static void a_script_walks_the_edges_of_the_window(void **state)
{
    (void)state;
    eng_config c = preset("tiny");
    eng_script *s = script("walk.safetensors", &c, 6, 4, 1);
    bool at[512] = { false };
    for (int32_t i = 0; i < eng_script_rounds(s); i++)
        for (int32_t b = 0; b < eng_script_at(s, i)->batch; b++)
            if (eng_script_at(s, i)->pos[b] < 512) at[eng_script_at(s, i)->pos[b]] = true;
    static const int WANTED[] = { 1, 126, 127, 128, 129 };
    for (int i = 0; i < 5; i++)
        if (!at[WANTED[i]]) fail_msg("no draft at p = %d", WANTED[i]);
    eng_script_close(s);
}

static void any_number_of_rounds_and_slots_makes_a_valid_script(void **state)
{
    (void)state;
    eng_config c = preset("tiny");
    static const int64_t SHAPES[][2] = { { 1, 1 }, { 1, 9 }, { 2, 3 }, { 9, 1 }, { 12, 6 }, { 20, 11 } };
    for (int i = 0; i < 6; i++) {
        eng_script *s = script("shape.safetensors", &c, SHAPES[i][0], SHAPES[i][1], (uint64_t)i);
        assert_int_equal(eng_script_rounds(s), SHAPES[i][0]);
        assert_int_equal(eng_script_slots(s), SHAPES[i][1]);
        eng_script_close(s);
    }
    for (c.window = 1; c.window <= 64; c.window *= 4) eng_script_close(script("shape.safetensors", &c, 8, 5, 2));
}

static void slots_take_turns_when_there_are_more_than_four(void **state)
{
    (void)state;
    eng_config c = preset("tiny");
    eng_script *s = script("turns.safetensors", &c, 12, 7, 1);
    int drafts[7] = { 0 }, batches[5] = { 0 }, n_out[6] = { 0 };
    for (int32_t i = 0; i < eng_script_rounds(s); i++) {
        const eng_round *r = eng_script_at(s, i);
        batches[r->batch]++;
        n_out[r->n_out]++;
        for (int32_t b = 0; b < r->batch; b++) drafts[r->slots[b]]++;
    }
    for (int i = 0; i < 7; i++) assert_true(drafts[i] > 0);
    assert_true(batches[4] > 0 && batches[4] < 12);
    assert_true(n_out[4] > 0 && n_out[5] > 0);
    eng_script_close(s);
}

static void taps_reach_the_largest_value_ever_captured(void **state)
{
    (void)state;
    eng_config c = preset("tiny");
    eng_script *s = script("taps.safetensors", &c, 4, 4, 5);
    float largest = 0;
    int64_t wide = 0, n = 0;
    for (int32_t i = 0; i < eng_script_rounds(s); i++)
        for (int32_t j = 0; j < eng_script_at(s, i)->n_inserts; j++) {
            const eng_insert_event *v = &eng_script_at(s, i)->inserts[j];
            for (int64_t k = 0; k < (int64_t)v->rows * c.n_taps * c.dim; k++, n++) {
                float a = fabsf(f32_from_bf16(v->taps[k]));
                largest = fmaxf(largest, a);
                wide += a > 300;
            }
        }
    assert_true(largest == 280576.0f);
    assert_true(wide > 0 && wide < n / 50); /* outlier channels, not outliers everywhere */
    eng_script_close(s);
}

static void limits_of_a_script_are_told(void **state)
{
    (void)state;
    eng_config c = preset("tiny");
    eng_traffic_report r;
    err e = { 0 };
    assert_int_equal(eng_traffic_write("no", &c, 0, 1, 1, true, &r, &e), ERR_ARG);
    assert_int_equal(eng_traffic_write("no", &c, 1, ENG_TRAFFIC_SLOTS_MAX + 1, 1, true, &r, &e), ERR_ARG);
    assert_int_equal(eng_traffic_write("absent/no", &c, 1, 1, 1, true, &r, &e), ERR_IO);
    assert_int_equal(access("no", F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normals_have_mean_0_and_deviation_1),
        cmocka_unit_test(a_checkpoint_opens_and_holds_its_config),
        cmocka_unit_test(numbers_are_exact_and_within_the_official_range),
        cmocka_unit_test(a_seed_gives_the_same_bytes_on_any_number_of_threads),
        cmocka_unit_test(a_folder_that_holds_anything_is_refused_and_kept),
        cmocka_unit_test(a_full_disk_leaves_nothing_behind),
        cmocka_unit_test(a_script_walks_the_edges_of_the_window),
        cmocka_unit_test(any_number_of_rounds_and_slots_makes_a_valid_script),
        cmocka_unit_test(slots_take_turns_when_there_are_more_than_four),
        cmocka_unit_test(taps_reach_the_largest_value_ever_captured),
        cmocka_unit_test(limits_of_a_script_are_told),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
