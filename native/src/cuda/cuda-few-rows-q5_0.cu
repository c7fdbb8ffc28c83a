#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q5_0, QK5_0)
