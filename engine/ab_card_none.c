/* The card of a build without CUDA. */
#include "engine/ab.h"

err_code ab_card_open(ab_device **out, err *e)
{
    *out = NULL;
    return err_set(e, ERR_DEVICE, "this build has no CUDA backend");
}

void ab_card_close(ab_device *d) { CHECK(!d); }
void ab_state_read(ab_state *out) { *out = (ab_state){ 0 }; }
