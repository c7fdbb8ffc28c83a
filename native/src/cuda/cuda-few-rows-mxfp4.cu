#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(mxfp4, GGML_TYPE_MXFP4)
