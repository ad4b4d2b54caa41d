/* A quantizer whose n-th allocation, or n-th call for the disk, fails: once, and for good. Whatever fails, there is an
 * error in one line, every file that is there is whole, and the same command then goes on to the same folder as without. */
#include "engine/quantize.h"
#include "engine/synth.h"
#include "kernels/exl3_encode.h"
#include "tests/engine/fixture.h"
#include "tests/engine/scratch.h"
#include "tests/support/each_fault.h"
#include "tests/support/json_whole.h"
#include "tests/support/same_file.h"

static const char MODEL[] = "model", WANT[] = "want", OUT[] = "out";

err_code __wrap_krn_exl3_encode_tiles_ref(const float *w, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error,
                                          err *e);

/* The search takes seconds; which tiles come out is nothing to these tests. */
err_code __wrap_krn_exl3_encode_tiles_ref(const float *w, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error,
                                          err *e)
{
    (void)e;
    for (int64_t i = 0; i < n; i++) {
        memset((uint8_t *)tiles + i * fmt_exl3_tile_bytes(code.bits), w[i * FMT_EXL3_TILE_WEIGHTS] > 0, 32);
        error[i] = 1;
    }
    return ERR_OK;
}

static err_code quantize(const char *out, err *e)
{
    const eng_quantize_options o = { .experts = 1, .dense = 1, .head = 1, .codebook = FMT_EXL3_MUL1, .seed = 1,
                                     .quiet = true };
    eng_quantize_report r;
    return eng_quantize(MODEL, out, &o, &r, e);
}

static void before(const void *ctx)
{
    (void)ctx;
    if (access(OUT, F_OK) == 0) assert_int_equal(nftw(OUT, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static err_code run(const void *ctx, err *e)
{
    (void)ctx;
    return quantize(OUT, e);
}

/* Every tensor file of the folder is whole. */
static void check_files(void)
{
    char *names = names_in(OUT), *rest = names, path[256];
    for (const char *name; names && (name = strsep(&rest, "\n")) && *name;) {
        fmt_safetensors *f;
        snprintf(path, sizeof path, "%s/%s", OUT, name);
        const char *dot = strstr(name, ".safetensors");
        if (!dot || dot[sizeof ".safetensors" - 1]) continue; /* the index, or a .part */
        OK(fmt_safetensors_open(path, &f, e));
        fmt_safetensors_close(f);
    }
    free(names);
}

static void after(const void *ctx, err_code rc, const err *why, err_code wanted, long at)
{
    char index[64];
    (void)ctx;
    if (rc != ERR_OK) {
        if (rc != wanted || !why->msg[0] || strchr(why->msg, '\n'))
            fail_msg("fault %ld: %s: %s", at, err_name(rc), why->msg);
        check_files();
        snprintf(index, sizeof index, "%s/model.safetensors.index.json", OUT);
        if (access(index, F_OK) == 0 && !same_folder(WANT, OUT)) fail_msg("fault %ld: half of it looks whole", at);
        OK(quantize(OUT, e));
    }
    if (!same_folder(WANT, OUT)) fail_msg("fault %ld: %s: another folder", at, err_name(rc));
}

static void a_delivery_with_any_fault_is_gone_on_with(void **state)
{
    (void)state;
    OK(quantize(WANT, e));
    every_fault_of(&(fault_loop){ before, run, after, SLOW ? 1 : 4 }, NULL, 50, 15);
}

static int set_up(void **state)
{
    eng_config config = small_config();
    eng_synth_report report;
    config.n_stages = config.n_active = 1;
    config.n_experts = 2;
    config.vocab = 128;
    config.noise_id = 127;
    alloc_fail_init();
    if (scratch_make(state) != 0) return -1;
    OK(eng_synth_checkpoint(MODEL, &config, 1, true, &report, e));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_delivery_with_any_fault_is_gone_on_with) };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
