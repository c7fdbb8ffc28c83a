#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(iq4_xs, GGML_TYPE_IQ4_XS)
