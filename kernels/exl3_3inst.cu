/* The products with weights of codebook 3inst, 1 to 8 bits. A file for each codebook: they are compiled side by side. */
#include "kernels/exl3_sums.cuh"

const exl3_kernels exl3_3inst = { exl3_sums<FMT_EXL3_3INST>, exl3_tiles<FMT_EXL3_3INST> };
