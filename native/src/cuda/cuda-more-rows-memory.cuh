#pragma once

// How a product with more rows of activations is divided among thread blocks, what a thread block has in shared memory,
// and how activations are laid out for it. Knows sizes; no weights. For what computes it see cuda-more-rows-kernel.cuh.

#include "cuda-few-rows-product.cuh"

static constexpr int MORE_ROWS_TEAM        = FEW_ROWS_QUARTERS; // warps, each with a quarter of 256 values
static constexpr int MORE_ROWS_TILES       = 2;                 // of 16 matrix rows
static constexpr int MORE_ROWS_ROWS        = 16 * MORE_ROWS_TILES;
static constexpr int MORE_ROWS_CHUNK       = 8;                 // times 256 values
static constexpr int MORE_ROWS_TEAMS_MAX   = 4;
static constexpr int MORE_ROWS_RESIDENT    = 4;                 // teams that a multiprocessor has registers for
static constexpr int MORE_ROWS_COLUMNS_MIN = 5;                 // below, the kernel for few rows takes less time
static constexpr int MORE_ROWS_COLUMNS_MAX = 16;                // of a group; of more rows see many_rows_takes

// Activations: 32 values of a row after the other; of these, tiles of 8 columns: of each column its bytes as tensor cores
// take them (words 0 4 1 5 2 6 3 7), then of each its scale and the sum of its values.
static constexpr int MORE_ROWS_Y_SCALES = 256;
static constexpr int MORE_ROWS_Y_SIZE   = MORE_ROWS_Y_SCALES + 8 * 8;

// What a warp has read: of each matrix row 4 scales, and a factor.
static constexpr int MORE_ROWS_FACTORS = MORE_ROWS_ROWS * 16;
static constexpr int MORE_ROWS_SCALES  = MORE_ROWS_FACTORS + MORE_ROWS_ROWS * 4;

struct alignas(16) more_rows_4_floats {
    float of[4];
};

static constexpr int MORE_ROWS_EXPERTS_MAX = 1024;
static constexpr int MORE_ROWS_SHARED_MAX  = 64 << 10; // bytes that a team may take: all GPUs from Turing on have them

// of 8 columns
static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_all_tiles(int n_rows) {
    return (n_rows + 7) / 8;
}

// bytes of 256 values of a team's matrix rows and of its tiles of columns
template <class T, int NT> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_step_size() {
    return MORE_ROWS_ROWS * few_rows_place_size<T>() + 8 * NT * MORE_ROWS_Y_SIZE;
}

// Times 256 values that are in shared memory, the ones in use and those before them among them: as many as 48 KiB do for,
// or 64 where these are fewer than four. All GPUs have that from Turing on.
template <class T, int NT> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_in_flight() {
    constexpr int step   = more_rows_step_size<T, NT>();
    constexpr int scales = MORE_ROWS_TEAM * 2 * MORE_ROWS_SCALES;
    constexpr int n      = ((48 << 10) - scales) / step;
    constexpr int n_64   = (MORE_ROWS_SHARED_MAX - scales) / step;
    static_assert(n_64 >= 4 && MORE_ROWS_TEAM * MORE_ROWS_TILES * NT * FEW_ROWS_LANES * 16 <= step);
    return n < 4 ? n_64 : n;
}

template <class T, int NT> static constexpr FEW_ROWS_HOST_FUNCTION int more_rows_team_size() {
    return more_rows_in_flight<T, NT>() * more_rows_step_size<T, NT>() + MORE_ROWS_TEAM * 2 * MORE_ROWS_SCALES;
}

// of rows whose values are padded to whole steps
static FEW_ROWS_HOST_FUNCTION size_t more_rows_size(int64_t n_values, int n_rows) {
    return GGML_PAD(n_values, 256) / 32 * more_rows_all_tiles(n_rows) * MORE_ROWS_Y_SIZE;
}

// the columns of a group, whole tiles: few of the many experts have more than one tile
static inline int more_rows_group_width(int n_columns, int n_experts) {
    return n_columns > 6 * n_experts ? MORE_ROWS_COLUMNS_MAX : 8;
}

// groups of `width` columns, at most
static inline int more_rows_groups_max(int n_columns, int n_experts, int width) {
    const int n_used = std::min(n_columns, n_experts);
    return n_used + (n_columns - n_used) / width;
}

// Divides a product among thread blocks; returns the bytes of shared memory that one asks for. These are enough to keep a
// multiprocessor from holding more blocks than its share: a kernel that starts while the one before it ends would crowd
// on some.
template <class T, int NT>
static size_t more_rows_divide(few_rows_product & p, bool has_gate, const few_rows_device & device) {
    p.n_block_rows = has_gate ? MORE_ROWS_ROWS / 2 : MORE_ROWS_ROWS;

    const int n_chunks = (few_rows_steps(p) + MORE_ROWS_CHUNK - 1) / MORE_ROWS_CHUNK;
    const int n_blocks = few_rows_place_blocks(p) * p.n_groups;
    const int n_shares = (n_blocks + device.n_multiprocessors - 1) / device.n_multiprocessors;

    const size_t team     = more_rows_team_size<T, NT>();
    const size_t n_fit    = (device.shared_size + FEW_ROWS_RESERVED) / (team + FEW_ROWS_RESERVED);
    const int    n_places = std::min((int) n_fit, MORE_ROWS_RESIDENT) / n_shares; // for teams of a block
    p.n_warps             = MORE_ROWS_TEAM * std::max(1, std::min({ n_places, MORE_ROWS_TEAMS_MAX, n_chunks }));

    const size_t alone = (device.shared_size + FEW_ROWS_RESERVED) / (n_shares + 1) - FEW_ROWS_RESERVED + FEW_ROWS_COPY;
    return std::max(p.n_warps / MORE_ROWS_TEAM * team, n_shares > 3 ? 0 : alone / FEW_ROWS_COPY * FEW_ROWS_COPY);
}
