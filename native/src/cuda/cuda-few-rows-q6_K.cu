#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q6_K, QK_K)
