#include "cuda-few-rows-launch.cuh"

FEW_ROWS_TYPE(iq4_nl, GGML_TYPE_IQ4_NL)
