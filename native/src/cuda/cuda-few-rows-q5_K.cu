#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q5_K, GGML_TYPE_Q5_K)
