#include "kernels/markov.h"

krn_span krn_markov_bound(krn_span logit, krn_span term)
{
    krn_span s = { logit.lo + term.lo, logit.hi + term.hi };
    return krn_span_widen(s, KRN_U);                                                                 /* R2 */
}
