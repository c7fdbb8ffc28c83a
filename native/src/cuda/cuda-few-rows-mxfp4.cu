#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(mxfp4, QK_MXFP4)
