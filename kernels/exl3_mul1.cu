/* The products with weights of codebook mul1, 1 to 8 bits. A file for each codebook: they are compiled side by side. */
#include "kernels/exl3_sums.cuh"

const exl3_kernels exl3_mul1 = { exl3_sums<FMT_EXL3_MUL1>, exl3_tiles<FMT_EXL3_MUL1> };
