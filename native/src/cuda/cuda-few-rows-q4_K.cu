#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q4_K, QK_K)
