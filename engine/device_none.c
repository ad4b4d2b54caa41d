/* The CUDA backend of a build without CUDA: it refuses, and nothing else is ever reached. */
#include "engine/device.h"

#include "engine/device_bench.h"
#include "engine/device_shots.h"

static err_code none(err *e) { return err_set(e, ERR_DEVICE, "--backend cuda: this build has no CUDA backend"); }

int32_t eng_device_groups(const eng_options *o) { (void)o; return 1; }
int32_t eng_device_index(const eng_options *o, int32_t group) { (void)o; return group; }
bool eng_device_present(void) { return false; }
err_code eng_device_check(const eng_options *o, err *e) { (void)o; return none(e); }
err_code eng_device_open_all(const eng_device_setup *setup, eng_device **out, err *e)
{
    (void)setup, (void)out;
    return none(e);
}
void eng_device_close(eng_device *d) { CHECK(!d); }
err_code eng_device_prewarm(eng_device *d, int32_t batch, int32_t rows, int32_t *n_new, err *e)
{
    (void)d, (void)batch, (void)rows, (void)n_new;
    return none(e);
}
err_code eng_device_run_insert(eng_device *d, const eng_device_insert *in, const eng_tap *tap, err *e)
{
    (void)d, (void)in, (void)tap;
    return none(e);
}
err_code eng_device_run_draft(eng_device *d, const eng_device_draft *in, const eng_tap *tap, err *e)
{
    (void)d, (void)in, (void)tap;
    return none(e);
}
void eng_device_drafts(const eng_device *d, int32_t n, int32_t *drafts, float *confidence)
{
    (void)d, (void)n, (void)drafts, (void)confidence;
}
err_code eng_device_release(eng_device *d, int32_t slot, err *e) { (void)d, (void)slot; return none(e); }
err_code eng_device_window(eng_device *d, int32_t slot, int32_t stage, bf16 *out, err *e)
{
    (void)d, (void)slot, (void)stage, (void)out;
    return none(e);
}
err_code eng_device_restore(eng_device *d, int32_t slot, int32_t stage, const bf16 *window, int32_t rows, err *e)
{
    (void)d, (void)slot, (void)stage, (void)window, (void)rows;
    return none(e);
}
void eng_device_set_deadline(eng_device *d, uint64_t deadline_ns) { (void)d, (void)deadline_ns; }
uint64_t eng_device_bytes(const eng_device *d) { (void)d; return 0; }
eng_device_counts eng_device_draft_counts(const eng_device *d, int32_t batch, int32_t n_out)
{
    (void)d, (void)batch, (void)n_out;
    return (eng_device_counts){ 0 };
}
double eng_device_step_us(eng_device *d) { (void)d; return 0; }
const char *eng_device_name(void) { return "none: built without CUDA"; }

uint64_t eng_device_draft_bytes(const eng_device *d, int32_t n_out, const int32_t *experts_used)
{
    (void)d, (void)n_out, (void)experts_used;
    return 0;
}
uint64_t eng_device_insert_bytes(const eng_device *d) { (void)d; return 0; }
uint64_t eng_device_part_bytes(const eng_device *d, eng_part part) { (void)d, (void)part; return 0; }
err_code eng_device_copy_speed(eng_device *d, double *bytes_per_s, err *e) { (void)d, (void)bytes_per_s; return none(e); }
err_code eng_device_profile(eng_device *d, const eng_device_draft *in, double *us, err *e)
{
    (void)d, (void)in, (void)us;
    return none(e);
}

err_code eng_device_profile_insert(eng_device *d, int32_t rows, double *us, err *e)
{
    (void)d, (void)rows, (void)us;
    return none(e);
}

err_code eng_device_shots_open(eng_device *d, const eng_device_shots_setup *setup, eng_device_shots **out, err *e)
{
    (void)d, (void)setup, (void)out;
    return none(e);
}
void eng_device_shots_close(eng_device_shots *s) { CHECK(!s); }
err_code eng_device_shots_pack(eng_device_shots *s, int32_t shot, int32_t part, int32_t table, const krn_snap_live *live,
                               err *e)
{
    (void)s, (void)shot, (void)part, (void)table, (void)live;
    return none(e);
}
err_code eng_device_shots_wait(eng_device_shots *s, int32_t shot, double *us, err *e)
{
    (void)s, (void)shot, (void)us;
    return none(e);
}
uint8_t *eng_device_shots_data(eng_device_shots *s, int32_t shot) { (void)s, (void)shot; return NULL; }
