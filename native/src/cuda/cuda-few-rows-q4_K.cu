#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q4_K, GGML_TYPE_Q4_K)
