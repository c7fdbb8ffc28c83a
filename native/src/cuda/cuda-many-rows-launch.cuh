#pragma once

// How products of many rows are launched, for one type of weights.

#include "common.cuh"
#include "cuda-many-rows-products.cuh"
// the kernel after what it uses and does not include: tests have an emulation in its place
#include "cuda-many-rows-kernel.cuh"

template <class T, int NT, bool GATE, bool EXPERTS>
static void many_rows_launch(few_rows_product p, const many_rows_division & division, ggml_cuda_pool & pool,
                             cudaStream_t stream) {
    const size_t n_sums = (size_t) division.n_blocks * p.n_warps;
    GGML_ASSERT(n_sums <= MANY_ROWS_COUNTERS);
    ggml_cuda_pool_alloc<char> sums(pool, 2 * n_sums * many_rows_sums_size<NT>()); // a block may leave two
    p.sums = sums.get();
    CUDA_SET_SHARED_MEMORY_LIMIT((many_rows_kernel<T, NT, GATE, EXPERTS>),
                                 ggml_cuda_info().devices[ggml_cuda_get_device()].smpbo);
    const dim3 grid(division.n_blocks);
    ggml_cuda_kernel_launch(
        many_rows_kernel<T, NT, GATE, EXPERTS>,
        ggml_cuda_kernel_launch_params(grid, p.n_warps * FEW_ROWS_LANES, division.shared_size, stream), p);
}

template <class T, int NT, bool EXPERTS>
static void many_rows_launch(const few_rows_product & p, const many_rows_division & division, ggml_cuda_pool & pool,
                             cudaStream_t stream) {
    p.gate ? many_rows_launch<T, NT, true, EXPERTS>(p, division, pool, stream) :
             many_rows_launch<T, NT, false, EXPERTS>(p, division, pool, stream);
}

template <class T>
static void many_rows_launch(few_rows_product p, const few_rows_device & device, ggml_cuda_pool & pool,
                             cudaStream_t stream) {
    const auto division = many_rows_divide<T>(p, device);
    if (p.groups) {
        return division.n_tiles == 4 ? many_rows_launch<T, 4, true>(p, division, pool, stream) :
                                       many_rows_launch<T, MANY_ROWS_TILES, true>(p, division, pool, stream);
    }
    switch (division.n_tiles) {
        case 2:
            return many_rows_launch<T, 2, false>(p, division, pool, stream);
        case 4:
            return many_rows_launch<T, 4, false>(p, division, pool, stream);
        case MANY_ROWS_TILES:
            return many_rows_launch<T, MANY_ROWS_TILES, false>(p, division, pool, stream);
        default:
            return many_rows_launch<T, MANY_ROWS_HOPPER_TILES, false>(p, division, pool, stream);
    }
}

// tiles of columns that a thread block would take at a time; 0: there is too little shared memory
template <class T> static int many_rows_tiles(few_rows_product p, const few_rows_device & device) {
    return many_rows_divide<T>(p, device).n_tiles;
}
