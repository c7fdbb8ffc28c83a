#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q3_K, QK_K)
