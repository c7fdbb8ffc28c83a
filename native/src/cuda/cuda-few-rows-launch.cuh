#pragma once

// How products of one type of weights are launched: for a type, a file of its own, as these take long to compile.

#include "common.cuh"
#include "unary.cuh"

#include <cuda_pipeline.h>

#include <algorithm>
#include <type_traits>

#define FEW_ROWS_KERNEL                             __global__
#define FEW_ROWS_LAUNCH_BOUNDS(n_threads, n_blocks) __launch_bounds__(n_threads, n_blocks)
#define FEW_ROWS_SHARED(name)                       extern __shared__ __align__(16) char name[]

#include "cuda-few-rows-kernel.cuh"
#include "cuda-many-rows-launch.cuh"
#include "cuda-more-rows-launch.cuh"

// A type has two: for matrix rows of whole 256 values, and for those that end with a part.
struct few_rows_type {
    ggml_type type;
    // whether shared memory does for a product of at most FEW_ROWS_COLUMNS_MAX columns
    bool (*can)(few_rows_product p, const few_rows_device & device);
    // tiles of columns that thread blocks take at a time of a product of more columns
    int (*many_tiles)(few_rows_product p, const few_rows_device & device);
    // of at most FEW_ROWS_COLUMNS_MAX columns, or with experts; of MORE_ROWS_COLUMNS_MIN to _MAX; of more
    void (*launch)(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream);
    void (*launch_more)(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream);
    void (*launch_many)(few_rows_product p, const few_rows_device & device, ggml_cuda_pool & pool, cudaStream_t stream);
};

template <class T> static bool few_rows_can(few_rows_product p, const few_rows_device & device) {
    return few_rows_divide<T>(p, FEW_ROWS_COLUMNS_MAX, true, device);
}

template <class T, int N, bool GATE>
static void few_rows_launch(few_rows_product p, const few_rows_device & device, cudaStream_t stream) {
    GGML_ASSERT(few_rows_divide<T>(p, N, GATE, device));
    CUDA_SET_SHARED_MEMORY_LIMIT((few_rows_kernel<T, N, GATE>), ggml_cuda_info().devices[ggml_cuda_get_device()].smpbo);
    const dim3 grid(p.n_blocks, p.ids ? p.n_tokens * p.n_places : 1);
    ggml_cuda_kernel_launch(
        few_rows_kernel<T, N, GATE>,
        ggml_cuda_kernel_launch_params(grid, p.n_warps * FEW_ROWS_LANES, few_rows_memory<T>(p, N, GATE).size, stream),
        p);
}

template <class T, int N>
static void few_rows_launch(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream) {
    p.gate ? few_rows_launch<T, N, true>(p, device, stream) : few_rows_launch<T, N, false>(p, device, stream);
}

template <class T>
static void few_rows_launch(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream) {
    switch (few_rows_columns(p.n_tokens, p.ids)) {
        case 1:
            return few_rows_launch<T, 1>(p, device, stream);
        case 2:
            return few_rows_launch<T, 2>(p, device, stream);
        case 3:
            return few_rows_launch<T, 3>(p, device, stream);
        case 4:
            return few_rows_launch<T, 4>(p, device, stream);
        default:
            return few_rows_launch<T, 8>(p, device, stream);
    }
}

// IS_CUT: of matrix rows that end with a part of 256 values
template <class T, bool IS_CUT> static constexpr few_rows_type few_rows_entry(ggml_type type) {
    using cut  = std::conditional_t<IS_CUT && (T::N_VALUES < 256), few_rows_parts<T>, T>;
    using many = typename many_rows_type<cut>::type;
    return {
        type, few_rows_can<T>, many_rows_tiles<many>, few_rows_launch<T>, more_rows_launch<cut>, many_rows_launch<many>
    };
}

#define FEW_ROWS_TYPE(name, type)                                                                                   \
    static_assert(few_rows_##name::SIZE == (few_rows_##name::N_VALUES < 256 ? 2 : 1) * (int) sizeof(block_##name)); \
    extern const few_rows_type FEW_ROWS_##name[2];                                                                  \
    const few_rows_type        FEW_ROWS_##name[2] = { few_rows_entry<few_rows_##name, false>(type),                 \
                                                      few_rows_entry<few_rows_##name, true>(type) };
