#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q4_0, GGML_TYPE_Q4_0)
