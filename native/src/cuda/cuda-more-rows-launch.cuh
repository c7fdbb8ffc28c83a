#pragma once

// How products of more rows are launched, for one type of weights.

#include "common.cuh"
#include "cuda-tensor-cores.cuh"
//
#include "cuda-more-rows-kernel.cuh"

template <class T, bool GATE>
static void more_rows_launch(few_rows_product p, const few_rows_device & device, cudaStream_t stream) {
    more_rows_divide<T>(p, GATE, device);
    CUDA_SET_SHARED_MEMORY_LIMIT((more_rows_kernel<T, GATE>), ggml_cuda_info().devices[ggml_cuda_get_device()].smpbo);
    const dim3   grid(p.n_blocks);
    const size_t size = p.n_warps / MORE_ROWS_TEAM * more_rows_team_size<T>();
    ggml_cuda_kernel_launch(more_rows_kernel<T, GATE>,
                            ggml_cuda_kernel_launch_params(grid, p.n_warps * FEW_ROWS_LANES, size, stream), p);
}

template <class T>
static void more_rows_launch(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream) {
    p.gate ? more_rows_launch<T, true>(p, device, stream) : more_rows_launch<T, false>(p, device, stream);
}
