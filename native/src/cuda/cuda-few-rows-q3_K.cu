#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q3_K, GGML_TYPE_Q3_K)
