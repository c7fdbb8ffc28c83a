#pragma once

// How products of more rows are launched, for one type of weights.

#include "common.cuh"
#include "cuda-tensor-cores.cuh"
// the kernel after what it uses and does not include: tests have an emulation in its place
#include "cuda-more-rows-kernel.cuh"

template <class T, int NT, bool GATE>
static void more_rows_launch(few_rows_product p, const few_rows_device & device, cudaStream_t stream) {
    const size_t size = more_rows_divide<T, NT>(p, GATE, device);
    CUDA_SET_SHARED_MEMORY_LIMIT((more_rows_kernel<T, NT, GATE>),
                                 ggml_cuda_info().devices[ggml_cuda_get_device()].smpbo);
    const dim3 grid(p.n_blocks, p.n_groups);
    ggml_cuda_kernel_launch(more_rows_kernel<T, NT, GATE>,
                            ggml_cuda_kernel_launch_params(grid, p.n_warps * FEW_ROWS_LANES, size, stream), p);
}

template <class T, int NT>
static void more_rows_launch(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream) {
    p.gate ? more_rows_launch<T, NT, true>(p, device, stream) : more_rows_launch<T, NT, false>(p, device, stream);
}

template <class T>
static void more_rows_launch(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream) {
    more_rows_all_tiles(p.n_columns) == 1 ? more_rows_launch<T, 1>(p, device, stream) :
                                            more_rows_launch<T, 2>(p, device, stream);
}
