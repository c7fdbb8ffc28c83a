#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q6_K, GGML_TYPE_Q6_K)
