#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(iq4_xs, QK_K)
