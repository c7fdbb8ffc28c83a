#pragma once

// How activations are laid out for products of many rows, how such a product is divided among thread blocks, and what a
// thread block has in shared memory. Knows sizes, and of weights their factor alone. For what computes it see
// cuda-many-rows-kernel.cuh.

#include "cuda-few-rows-product.cuh"

static constexpr int MANY_ROWS_WARPS       = 16;   // of a thread block at most
static constexpr int MANY_ROWS_ROWS        = 16;   // matrix rows of a warp; with a gate half of them are the gate's
static constexpr int MANY_ROWS_STEPS_MIN   = 2;    // of a thread block: with fewer, sums that are left take longer
static constexpr int MANY_ROWS_SLOTS_MAX   = 4;    // steps in shared memory
static constexpr int MANY_ROWS_COUNTERS    = 8192; // as many as thread blocks of a device have warps
static constexpr int MANY_ROWS_COLUMNS_MAX = 2048; // of a prompt's pass, too
static constexpr int MANY_ROWS_INVARIANT   = 512;  // columns at most with GGML_TENSOR_FLAG_INVARIANT

// what scales are multiplied with, so that small ones are no small numbers of half precision
static constexpr float MANY_ROWS_FACTOR = 64.0f;

// Tiles of columns that a thread block takes at a time: at most 8, or 16 on Hopper for more than 64 columns. Weights are
// then unpacked half as often, but there are fewer steps to share among the blocks: with fewer than 5 for each, 128 columns
// took longer (H200, Q4_K, bench/cuda_many_rows.cu).
static constexpr int MANY_ROWS_TILES         = 8;
static constexpr int MANY_ROWS_HOPPER_TILES  = 16;
static constexpr int MANY_ROWS_HOPPER_STEPS  = 5;                           // of each thread block, at least
static constexpr int MANY_ROWS_HOPPER_SHARED = (227 << 10) - FEW_ROWS_COPY; // bytes that a thread block has there
static_assert(MANY_ROWS_COLUMNS_MAX % (8 * MANY_ROWS_HOPPER_TILES) == 0);   // the header has room for all tiles

// Activations: a factor of each column, then steps of 256 values as tensor cores take them: 16 times 16 values, in two
// halves; of each half tiles of 8 columns, with 8 values of a column after the other: of each quarter of the 256 two.
static constexpr int MANY_ROWS_HEADER    = MANY_ROWS_COLUMNS_MAX * 4;
static constexpr int MANY_ROWS_TILE_SIZE = 8 * 16;
static constexpr int MANY_ROWS_HALVES    = 32; // of a step

// bytes of a step: NT tiles of columns, and matrix rows of all warps
template <int NT> static constexpr FEW_ROWS_HOST_FUNCTION int many_rows_columns_size() {
    return NT * MANY_ROWS_HALVES * MANY_ROWS_TILE_SIZE;
}

template <class T, int NT> static constexpr FEW_ROWS_HOST_FUNCTION int many_rows_slot_size(int n_warps) {
    return many_rows_columns_size<NT>() + n_warps * MANY_ROWS_ROWS * few_rows_place_size<T>();
}

// The most warps of a thread block. With 16 tiles a lane holds twice as many sums; where shared memory cannot hold two
// steps of 16 warps, there are 8, whose lanes may use twice as many registers.
template <class T, int NT> static constexpr FEW_ROWS_HOST_FUNCTION int many_rows_most_warps() {
    return NT < MANY_ROWS_HOPPER_TILES || 2 * many_rows_slot_size<T, NT>(MANY_ROWS_WARPS) <= MANY_ROWS_HOPPER_SHARED ?
               MANY_ROWS_WARPS :
               MANY_ROWS_WARPS / 2;
}

// bytes of the sums that a warp leaves
template <int NT> static constexpr FEW_ROWS_HOST_FUNCTION int many_rows_sums_size() {
    return MANY_ROWS_ROWS * 8 * NT * 4;
}

// tiles that activations are padded to (the last ones may be empty), so that every thread block has as many as it takes
static inline int many_rows_all_tiles(int n_columns) {
    const int n_tiles = (n_columns + 7) / 8;
    return n_tiles <= 2 ? 2 :
           n_tiles <= 4 ? 4 :
           n_tiles <= MANY_ROWS_TILES ?
                          MANY_ROWS_TILES :
                          (n_tiles + MANY_ROWS_HOPPER_TILES - 1) / MANY_ROWS_HOPPER_TILES * MANY_ROWS_HOPPER_TILES;
}

static inline size_t many_rows_size(int64_t n_values, int64_t n_columns) {
    return MANY_ROWS_HEADER + GGML_PAD(n_values, 256) / 8 * many_rows_all_tiles((int) n_columns) * MANY_ROWS_TILE_SIZE;
}

struct many_rows_division {
    int    n_tiles;  // of columns that a thread block takes at a time; 0: there is too little shared memory
    int    n_steps;  // of all tiles
    int    n_blocks; // thread blocks, which share the steps evenly
    size_t shared_size;
};

// what each of the thread blocks that are there at a time has for its steps
static inline size_t many_rows_shared_size(const few_rows_device & device, int n_resident) {
    return (device.shared_size + FEW_ROWS_RESERVED) / n_resident - FEW_ROWS_RESERVED - FEW_ROWS_COPY;
}

// tiles of the same matrix rows, without experts
template <int NT> static FEW_ROWS_HOST_FUNCTION int many_rows_n_y(const few_rows_product & p) {
    return (p.n_tokens + 8 * NT - 1) / (8 * NT);
}

// Gives the matrices their thread blocks, of p.n_warps; returns the steps of all tiles.
template <int NT> static int many_rows_place(few_rows_product & p) {
    p.n_block_rows = p.n_warps * (p.gate ? MANY_ROWS_ROWS / 2 : MANY_ROWS_ROWS);
    const int n_y  = p.n_groups > 0 ? p.n_groups : many_rows_n_y<NT>(p);
    return few_rows_place_blocks(p) * n_y * few_rows_steps(p);
}

// Thread blocks of 8 warps, two of which a multiprocessor has at a time, if shared memory does for that, for as many
// columns as there may be; else one of 16, or of fewer. Small matrices have smaller blocks, down to 4 warps, as long as
// there are not enough for all multiprocessors.
template <class T, int NT>
static bool many_rows_fit(few_rows_product & p, const few_rows_device & device, int & n_resident) {
    static constexpr int CHOICES[][2] = { { 8, 2 }, { 16, 1 }, { 8, 1 }, { 4, 1 } };
    for (const auto & choice : CHOICES) {
        p.n_warps  = choice[0];
        n_resident = choice[1];
        if (many_rows_shared_size(device, n_resident) / many_rows_slot_size<T, NT>(p.n_warps) >= 2) {
            while (p.n_warps > 4 && many_rows_place<NT>(p) / MANY_ROWS_STEPS_MIN < device.n_multiprocessors) {
                p.n_warps /= 2;
            }
            return true;
        }
    }
    return false;
}

template <class T, int NT>
static many_rows_division many_rows_divide(few_rows_product & p, const few_rows_device & device, int n_resident) {
    const int slot_size = many_rows_slot_size<T, NT>(p.n_warps);
    p.n_slots           = std::min((int) (many_rows_shared_size(device, n_resident) / slot_size), MANY_ROWS_SLOTS_MAX);
    many_rows_division res;
    res.n_tiles     = NT;
    res.n_steps     = many_rows_place<NT>(p);
    res.n_blocks    = std::max(1, std::min(res.n_steps / MANY_ROWS_STEPS_MIN, n_resident * device.n_multiprocessors));
    res.shared_size = p.n_slots * slot_size + FEW_ROWS_COPY; // types that begin anywhere are read in whole words
    return res;
}

template <class T> static many_rows_division many_rows_divide(few_rows_product & p, const few_rows_device & device) {
    const int n_columns = p.n_groups > 0 ? p.n_columns : p.n_tokens;
    p.n_warps           = many_rows_most_warps<T, MANY_ROWS_HOPPER_TILES>();
    const int slot_size = many_rows_slot_size<T, MANY_ROWS_HOPPER_TILES>(p.n_warps);
    if (device.is_hopper && n_columns > 8 * MANY_ROWS_TILES && many_rows_shared_size(device, 1) / slot_size >= 2) {
        const auto res = many_rows_divide<T, MANY_ROWS_HOPPER_TILES>(p, device, 1);
        if (res.n_steps >= MANY_ROWS_HOPPER_STEPS * device.n_multiprocessors) {
            return res;
        }
    }
    int       n_resident;
    // the most columns decide, so that results do not depend on how many there are
    const int n_most  = many_rows_fit<T, MANY_ROWS_TILES>(p, device, n_resident) ? MANY_ROWS_TILES :
                        many_rows_fit<T, 4>(p, device, n_resident)               ? 4 :
                        many_rows_fit<T, 2>(p, device, n_resident)               ? 2 :
                                                                                   0;
    const int n_tiles = std::min(n_most, many_rows_all_tiles(n_columns));
    return n_tiles == 0 ? many_rows_division{} :
           n_tiles == 2 ? many_rows_divide<T, 2>(p, device, n_resident) :
           n_tiles == 4 ? many_rows_divide<T, 4>(p, device, n_resident) :
                          many_rows_divide<T, MANY_ROWS_TILES>(p, device, n_resident);
}
