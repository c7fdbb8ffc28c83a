#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q4_0, QK4_0)
