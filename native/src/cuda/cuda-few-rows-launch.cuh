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

#include "cuda-many-rows-products.cuh"
// kernels after what they use and do not include: tests have an emulation in its place
#include "cuda-many-rows-kernel.cuh"
#include "cuda-more-rows-kernel.cuh"

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

// Calls a function with the one of the numbers that n is.
template <int... NUMBERS, class F> static void few_rows_with(int n, F && f) {
    const bool is_known = ((n == NUMBERS && (f(std::integral_constant<int, NUMBERS>()), true)) || ...);
    GGML_ASSERT(is_known);
}

// Launches a kernel, which may take all of the shared memory that there is for a thread block.
template <void (*KERNEL)(few_rows_product)>
static void few_rows_launch_kernel(const few_rows_product & p, dim3 grid, size_t shared_size, cudaStream_t stream) {
    CUDA_SET_SHARED_MEMORY_LIMIT(KERNEL, ggml_cuda_info().devices[ggml_cuda_get_device()].smpbo);
    const ggml_cuda_kernel_launch_params params(grid, p.n_warps * FEW_ROWS_LANES, shared_size, stream);
    ggml_cuda_kernel_launch(KERNEL, params, p);
}

// --- few rows

template <class T> static bool few_rows_can(few_rows_product p, const few_rows_device & device) {
    return few_rows_divide<T>(p, FEW_ROWS_COLUMNS_MAX, true, device);
}

template <class T, int N, bool GATE>
static void few_rows_launch(few_rows_product p, const few_rows_device & device, cudaStream_t stream) {
    GGML_ASSERT(few_rows_divide<T>(p, N, GATE, device));
    const dim3 grid(p.n_blocks, p.ids ? p.n_tokens * p.n_places : 1);
    few_rows_launch_kernel<few_rows_kernel<T, N, GATE>>(p, grid, few_rows_memory<T>(p, N, GATE).size, stream);
}

template <class T>
static void few_rows_launch(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream) {
    few_rows_with<1, 2, 3, 4, FEW_ROWS_COLUMNS_MAX>(few_rows_columns(p.n_tokens, p.ids), [&](auto n) {
        p.gate ? few_rows_launch<T, n, true>(p, device, stream) : few_rows_launch<T, n, false>(p, device, stream);
    });
}

// --- more rows

template <class T, int NT, bool GATE>
static void more_rows_launch(few_rows_product p, const few_rows_device & device, cudaStream_t stream) {
    const size_t size = more_rows_divide<T, NT>(p, GATE, device);
    few_rows_launch_kernel<more_rows_kernel<T, NT, GATE>>(p, dim3(p.n_blocks, p.n_groups), size, stream);
}

template <class T>
static void more_rows_launch(const few_rows_product & p, const few_rows_device & device, cudaStream_t stream) {
    few_rows_with<1, 2>(more_rows_all_tiles(p.n_columns), [&](auto n) {
        p.gate ? more_rows_launch<T, n, true>(p, device, stream) : more_rows_launch<T, n, false>(p, device, stream);
    });
}

// --- many rows

// tiles of columns that a thread block would take at a time; 0: there is too little shared memory
template <class T> static int many_rows_tiles(few_rows_product p, const few_rows_device & device) {
    return many_rows_divide<T>(p, device).n_tiles;
}

template <class T, int NT, bool GATE, bool EXPERTS>
static void many_rows_launch(few_rows_product p, const many_rows_division & division, ggml_cuda_pool & pool,
                             cudaStream_t stream) {
    const size_t n_sums = (size_t) division.n_blocks * p.n_warps;
    GGML_ASSERT(n_sums <= MANY_ROWS_COUNTERS);
    ggml_cuda_pool_alloc<char> sums(pool, 2 * n_sums * many_rows_sums_size<NT>()); // a block may leave two
    p.sums = sums.get();
    few_rows_launch_kernel<many_rows_kernel<T, NT, GATE, EXPERTS>>(p, dim3(division.n_blocks), division.shared_size,
                                                                   stream);
}

template <class T>
static void many_rows_launch(few_rows_product p, const few_rows_device & device, ggml_cuda_pool & pool,
                             cudaStream_t stream) {
    const auto division = many_rows_divide<T>(p, device);
    if (p.groups) {
        return few_rows_with<4, MANY_ROWS_TILES>(division.n_tiles, [&](auto n) {
            p.gate ? many_rows_launch<T, n, true, true>(p, division, pool, stream) :
                     many_rows_launch<T, n, false, true>(p, division, pool, stream);
        });
    }
    few_rows_with<2, 4, MANY_ROWS_TILES, MANY_ROWS_HOPPER_TILES>(division.n_tiles, [&](auto n) {
        p.gate ? many_rows_launch<T, n, true, false>(p, division, pool, stream) :
                 many_rows_launch<T, n, false, false>(p, division, pool, stream);
    });
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
