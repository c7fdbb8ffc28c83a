#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q5_K, QK_K)
