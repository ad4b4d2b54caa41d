/* What a bench asks of a device, in a build without CUDA: there is none to ask. */
#include "engine/device_bench.h"

uint64_t eng_device_op_bytes(const eng_device *d, eng_step_kind step, int32_t i, int32_t n_out,
                             const int32_t *experts_used)
{
    (void)d, (void)step, (void)i, (void)n_out, (void)experts_used;
    return 0;
}

err_code eng_device_memory_used(const eng_device *d, uint64_t *bytes, err *e)
{
    (void)d;
    *bytes = 0;
    return err_set(e, ERR_DEVICE, "this build has no CUDA backend");
}
