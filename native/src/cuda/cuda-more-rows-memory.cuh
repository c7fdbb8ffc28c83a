#pragma once

// How a product with more rows of activations is divided among thread blocks, what a thread block has in shared memory,
// and how activations are laid out for it. Knows sizes; no weights. For what computes it see cuda-more-rows-kernel.cuh.

#include "cuda-few-rows-product.cuh"

static constexpr int MORE_ROWS_TEAM        = FEW_ROWS_QUARTERS; // warps, each with a quarter of 256 values
static constexpr int MORE_ROWS_TILES       = 2;                 // of 16 matrix rows
static constexpr int MORE_ROWS_ROWS        = 16 * MORE_ROWS_TILES;
static constexpr int MORE_ROWS_CHUNK       = 8;                 // times 256 values
static constexpr int MORE_ROWS_TEAMS_MAX   = 2;
static constexpr int MORE_ROWS_COLUMNS_MAX = 128; // above, llama.cpp's kernels for many rows take less time

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

// bytes of 256 values of a matrix row, and of their place in shared memory: an odd multiple of 16, for the same reason
template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_row_size() {
    return 256 / T::N_VALUES * T::SIZE;
}

template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_slot_size() {
    constexpr int size    = more_rows_row_size<T>();
    constexpr int skipped = size % 16 == 0 ? 0 : size % 8 == 0 ? 8 : 14;
    return ((size + skipped + 15) / 16 | 1) * 16;
}

// bytes of 256 values of a team's matrix rows and of its tiles of columns
template <class T, int NT> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_step_size() {
    return MORE_ROWS_ROWS * more_rows_slot_size<T>() + 8 * NT * MORE_ROWS_Y_SIZE;
}

// times 256 values that are in shared memory, the ones in use among them. With few tiles the matrix is what takes time, and
// more of it is on the way; 64 KiB do for that, which GPUs have from Turing on.
template <class T, int NT> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_in_flight() {
    constexpr int n = ((64 << 10) - MORE_ROWS_TEAM * 2 * MORE_ROWS_UNPACKED) / more_rows_step_size<T, NT>();
    return NT > 2 || n < 2 ? 2 : n < 4 ? n : 4;
}

template <class T, int NT> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_team_size() {
    return more_rows_in_flight<T, NT>() * more_rows_step_size<T, NT>() + MORE_ROWS_TEAM * 2 * MORE_ROWS_UNPACKED;
}

// Where a warp leaves its sums for others: in the place of activations, if that has more room than that of weights; and
// how many tiles of them at a time.
static constexpr FEW_ROWS_HOST_FUNCTION bool more_rows_sums_in_columns(int nt) {
    return nt == 8;
}

static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_round_tiles(int nt) {
    return nt == 8 ? 8 : 4;
}

// tiles of 8 columns that a thread block takes at most, of those that it has shared memory for; 0: for none
template <class T> static int more_rows_tiles_of_block(int n_columns, const few_rows_device & device) {
    const int n_tiles = (n_columns + 7) / 8;
    if (n_tiles > 4 && (size_t) more_rows_team_size<T, 8>() <= device.shared_size) {
        return 8;
    }
    if (n_tiles > 2 && (size_t) more_rows_team_size<T, 4>() <= device.shared_size) {
        return 4;
    }
    return (size_t) more_rows_team_size<T, 2>() <= device.shared_size ? 2 : 0;
}

// tiles that activations come in, the last ones with nothing, so that each thread block has as many as it takes
static inline int more_rows_all_tiles(int n_columns) {
    const int n_tiles = (n_columns + 7) / 8;
    return n_tiles <= 2 ? 2 : n_tiles <= 4 ? 4 : (n_tiles + 7) / 8 * 8;
}

// Divides a product among thread blocks of NT tiles each.
template <class T, int NT>
static void more_rows_divide(few_rows_product & p, bool has_gate, const few_rows_device & device) {
    p.n_block_rows = has_gate ? MORE_ROWS_ROWS / 2 : MORE_ROWS_ROWS;

    const int n_chunks = (p.n_parts / FEW_ROWS_QUARTERS + MORE_ROWS_CHUNK - 1) / MORE_ROWS_CHUNK;
    const int n_blocks = few_rows_place_blocks(p) * ((p.n_tokens + 8 * NT - 1) / (8 * NT));
    const int n_teams  = n_chunks > 1 && 4 * n_blocks < 5 * device.n_multiprocessors ? MORE_ROWS_TEAMS_MAX : 1;
    p.n_warps          = MORE_ROWS_TEAM * std::min(n_teams, (int) (device.shared_size / more_rows_team_size<T, NT>()));
}

// threads of a multiprocessor that have registers enough
static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_threads(int nt) {
    return nt == 2 ? 512 : 384;
}
