#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q8_0, GGML_TYPE_Q8_0)
