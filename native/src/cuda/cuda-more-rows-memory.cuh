#pragma once

// How a product with more rows of activations is divided among thread blocks, what a thread block has in shared memory,
// and how activations are laid out for it. Knows sizes; no weights. For what computes it see cuda-more-rows-kernel.cuh.

#include "cuda-few-rows-product.cuh"

static constexpr int MORE_ROWS_TEAM        = FEW_ROWS_QUARTERS; // warps, each with a quarter of 256 values
static constexpr int MORE_ROWS_TILES       = 2;                 // of 16 matrix rows
static constexpr int MORE_ROWS_ROWS        = 16 * MORE_ROWS_TILES;
static constexpr int MORE_ROWS_CHUNK       = 8;                 // times 256 values
static constexpr int MORE_ROWS_TEAMS_MAX   = 2;
static constexpr int MORE_ROWS_COLUMNS_MAX = 16; // above, those of cuda-many-rows-kernel.cuh take less time
static constexpr int MORE_ROWS_ALL_TILES   = 2;  // of 8 columns

// Activations: 32 values of a row after the other; of these, tiles of 8 columns: of each column its bytes as tensor cores
// take them (words 0 4 1 5 2 6 3 7), then of each its scale and the sum of its values.
static constexpr int MORE_ROWS_Y_SCALES = 256;
static constexpr int MORE_ROWS_Y_SIZE   = MORE_ROWS_Y_SCALES + 8 * 8;

// What a warp has unpacked: 64 bytes of each matrix row, 4 scales, a factor.
static constexpr int MORE_ROWS_SCALES   = MORE_ROWS_ROWS * FEW_ROWS_PART;
static constexpr int MORE_ROWS_FACTORS  = MORE_ROWS_SCALES + MORE_ROWS_ROWS * 16;
static constexpr int MORE_ROWS_UNPACKED = MORE_ROWS_FACTORS + MORE_ROWS_ROWS * 4;

struct alignas(16) more_rows_4_floats {
    float of[4];
};

// where the t-th 16 bytes of a matrix row are, so that neither writing nor reading them meets in a bank
static FEW_ROWS_FUNCTION int more_rows_place(int row, int t) {
    return row * FEW_ROWS_PART + (t ^ (row >> 1 & 3)) * 16;
}

// bytes of 256 values of a team's matrix rows and of its tiles of columns
template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_step_size() {
    return MORE_ROWS_ROWS * few_rows_place_size<T>() + 8 * MORE_ROWS_ALL_TILES * MORE_ROWS_Y_SIZE;
}

// times 256 values that are in shared memory, the ones in use among them: as many as 64 KiB do for, which GPUs have from
// Turing on
template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_in_flight() {
    constexpr int n = ((64 << 10) - MORE_ROWS_TEAM * 2 * MORE_ROWS_UNPACKED) / more_rows_step_size<T>();
    return n < 2 ? 2 : n < 4 ? n : 4;
}

template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_team_size() {
    return more_rows_in_flight<T>() * more_rows_step_size<T>() + MORE_ROWS_TEAM * 2 * MORE_ROWS_UNPACKED;
}

static inline size_t more_rows_size(int64_t n_values) {
    return n_values / 32 * MORE_ROWS_ALL_TILES * MORE_ROWS_Y_SIZE;
}

// Divides a product among thread blocks.
template <class T> static void more_rows_divide(few_rows_product & p, bool has_gate, const few_rows_device & device) {
    p.n_block_rows = has_gate ? MORE_ROWS_ROWS / 2 : MORE_ROWS_ROWS;

    const int n_chunks = (p.n_parts / FEW_ROWS_QUARTERS + MORE_ROWS_CHUNK - 1) / MORE_ROWS_CHUNK;
    const int n_blocks = few_rows_place_blocks(p);
    const int n_teams  = n_chunks > 1 && 4 * n_blocks < 5 * device.n_multiprocessors ? MORE_ROWS_TEAMS_MAX : 1;
    p.n_warps          = MORE_ROWS_TEAM * std::min(n_teams, (int) (device.shared_size / more_rows_team_size<T>()));
}
