#include "engine/cards.h"

#include <stdio.h>

#include "engine/device_comm.h"
#include "kernels/device.h"

err_code eng_cards_find(eng_cards *out, err *e)
{
    *out = (eng_cards){ .built = true, .n = krn_device_count() };
    snprintf(out->nccl, sizeof out->nccl, "%s", eng_device_comm_version());
    for (int32_t i = 0; i < out->n && i < ENG_CARDS_MAX; i++) {
        eng_card *c = &out->card[i];
        krn_device_info info;
        TRY(krn_device_use(i, e)); /* free memory is the current device's */
        TRY(krn_device_info_get(i, &info, e));
        *c = (eng_card){ .sm_major = info.sm_major, .sm_minor = info.sm_minor, .n_sm = info.n_sm,
                         .memory_bytes = info.memory_bytes, .memory_free_bytes = info.memory_free_bytes };
        snprintf(c->name, sizeof c->name, "%s", info.name);
        out->driver = info.driver_version;
        out->runtime = info.runtime_version;
        for (int32_t k = 0; k < out->n && k < ENG_CARDS_MAX; k++) {
            bool direct = false;
            if (k != i) TRY(krn_device_reaches(i, k, &direct, e));
            c->reaches |= (uint32_t)direct << k;
        }
    }
    return ERR_OK;
}
