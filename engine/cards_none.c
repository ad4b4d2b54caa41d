/* A build without CUDA sees no cards. */
#include "engine/cards.h"

err_code eng_cards_find(eng_cards *out, err *e)
{
    (void)e;
    *out = (eng_cards){ .nccl = "none" };
    return ERR_OK;
}
