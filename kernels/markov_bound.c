#include "kernels/markov.h"

krn_span krn_markov_bound(krn_span logit, krn_span term, bool round_bf16)
{
    if (round_bf16) term = krn_span_bf16(term);                                                      /* R1 */
    krn_span s = { logit.lo + term.lo, logit.hi + term.hi };
    s = krn_span_widen(s, KRN_U);                                                                    /* R2 */
    return round_bf16 ? krn_span_bf16(s) : s;
}
