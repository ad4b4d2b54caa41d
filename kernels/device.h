/* What the CUDA launchers share. Built only where CUDA is found (HAVE_CUDA); plain C, so that C callers need no CUDA header. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *krn_stream; /* cudaStream_t */

/* After a launch: ERR_DEVICE when it was refused (a bad configuration, no kernel for this card). A fault inside the kernel
 * shows at the next synchronisation. */
MUST_USE err_code krn_launched(const char *op, err *e);

#ifdef __cplusplus
}
#endif

#endif
