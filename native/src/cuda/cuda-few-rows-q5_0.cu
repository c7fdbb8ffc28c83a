#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(q5_0, GGML_TYPE_Q5_0)
