/* The products with weights of codebook mcg, 1 to 8 bits. A file for each codebook: they are compiled side by side. */
#include "kernels/exl3_sums.cuh"

const exl3_kernels exl3_mcg = { exl3_sums<FMT_EXL3_MCG>, exl3_tiles<FMT_EXL3_MCG> };
