#include "kernels/device.h"

#include <cuda_runtime.h>

extern "C" err_code krn_launched(const char *op, err *e)
{
    cudaError_t rc = cudaGetLastError();
    if (rc == cudaSuccess) return ERR_OK;
    return err_set(e, ERR_DEVICE, "%s: launch refused: %s", op, cudaGetErrorString(rc));
}
