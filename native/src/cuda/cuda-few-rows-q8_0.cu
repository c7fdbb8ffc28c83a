#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q8_0, QK8_0)
