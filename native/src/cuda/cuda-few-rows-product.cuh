#pragma once

// A product of a quantized matrix with few rows of activations, as the host describes it and divides it among thread
// blocks, and what a thread block has in shared memory. Knows sizes; no weights. For what computes it see
// cuda-few-rows-kernel.cuh.

#include "cuda-few-rows-types.cuh"
#include "ggml.h"

#include <algorithm>

static constexpr int FEW_ROWS_LANES      = 32;
static constexpr int FEW_ROWS_WARPS      = 8;  // at most
static constexpr int FEW_ROWS_IN_FLIGHT  = 3;  // chunks that a warp waits for at the same time
static constexpr int FEW_ROWS_Y_SIZE     = 36; // a block of activations: scale, sum, 32 values
static constexpr int FEW_ROWS_CHUNK      = FEW_ROWS_LANES * FEW_ROWS_PART;
static constexpr int FEW_ROWS_STAGE_SIZE = FEW_ROWS_CHUNK / 32 * FEW_ROWS_Y_SIZE;
static constexpr int FEW_ROWS_COPY       = 16;                       // bytes that a lane copies at a time
static constexpr int FEW_ROWS_TOGETHER   = 4;                        // matrices of a product
static constexpr int FEW_ROWS_QUARTERS   = 4;                        // lanes that have 256 values together
static constexpr int FEW_ROWS_SUM_SIZE   = 4 * (FEW_ROWS_LANES + 4); // a value of each lane, spread over banks

// bytes of a chunk, and of its place in shared memory: it is copied with what is around it in aligned 16 bytes
template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_chunk_size() {
    return FEW_ROWS_CHUNK / T::N_VALUES * T::SIZE;
}

template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_slot_size() {
    return few_rows_chunk_size<T>() + FEW_ROWS_COPY;
}

// The same weights in matrix rows that end with a part of 256 values: none begins where one could count on it.
template <class T> struct few_rows_parts : T {
    using T::T;
};

template <class T> static constexpr bool few_rows_in_parts = false;

template <class T> static constexpr bool few_rows_in_parts<few_rows_parts<T>> = true;

// Bytes of 256 values of a matrix row, and of their place in shared memory, of which tensor cores take one after the other:
// an odd multiple of 16, so that rows are in different banks.
template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_step_size() {
    return 256 / T::N_VALUES * T::SIZE;
}

template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_place_size() {
    constexpr int size    = few_rows_step_size<T>();
    constexpr int skipped = few_rows_in_parts<T> || size % 8 != 0 ? 14 : size % 16;
    return ((size + skipped + 15) / 16 | 1) * 16;
}

// whether 256 values of a row always begin where FEW_ROWS_COPY bytes may be copied from
template <class T>
static constexpr bool few_rows_is_aligned = few_rows_step_size<T>() % FEW_ROWS_COPY == 0 && !few_rows_in_parts<T>;

// How threads fetch 256 values of N_ROWS matrix rows, in pieces of FEW_ROWS_COPY bytes: a thread's next one fetches the next
// piece, so that a copy of a warp reads few lines of memory. PER_ROW: how many threads fetch a row, where registers are
// scarce or rows begin anywhere; 0: as many as it has pieces.
template <class T, int N_THREADS, int N_ROWS, int PER_ROW = few_rows_is_aligned<T> ? 0 : 8> struct few_rows_pieces {
    static constexpr int N_OF_ROW = few_rows_place_size<T>() / FEW_ROWS_COPY;
    static constexpr int N_TURNS  = PER_ROW > 0 ? (N_OF_ROW + PER_ROW - 1) / PER_ROW : 1;          // that a row takes
    static constexpr int N_COPIES = PER_ROW > 0 ? N_ROWS * PER_ROW / N_THREADS * N_TURNS :
                                                  (N_ROWS * N_OF_ROW + N_THREADS - 1) / N_THREADS; // of a thread

    static FEW_ROWS_FUNCTION int row(int thread, int i) {
        if constexpr (PER_ROW > 0) {
            return thread / PER_ROW + i / N_TURNS * (N_THREADS / PER_ROW);
        }
        return (thread + i * N_THREADS) / N_OF_ROW;
    }

    // where a piece begins in its row
    static FEW_ROWS_FUNCTION int at(int thread, int i) {
        if constexpr (PER_ROW > 0) {
            return (thread % PER_ROW + i % N_TURNS * PER_ROW) * FEW_ROWS_COPY;
        }
        return (thread + i * N_THREADS) % N_OF_ROW * FEW_ROWS_COPY;
    }

    // skipped: bytes before the row, from an address on that may be copied from
    static FEW_ROWS_FUNCTION bool is_there(int thread, int i, int skipped) {
        if constexpr (PER_ROW > 0) {
            return (i % N_TURNS + 1) * PER_ROW * FEW_ROWS_COPY <= few_rows_step_size<T>() ||
                   at(thread, i) < skipped + few_rows_step_size<T>();
        }
        return (i + 1) * N_THREADS <= N_ROWS * N_OF_ROW || thread + i * N_THREADS < N_ROWS * N_OF_ROW;
    }

    static FEW_ROWS_FUNCTION int skipped(const char * row) {
        return few_rows_is_aligned<T> ? 0 : (int) ((uintptr_t) row % FEW_ROWS_COPY);
    }
};

// thread blocks of a multiprocessor for which there are registers, if they have n columns
static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_resident(int n) {
    return n == 1 ? 4 : n == 2 ? 3 : n <= 4 ? 2 : 1;
}

// One of the matrices that the same rows of activations are multiplied with
struct few_rows_matrix {
    const char *  data;
    float *       dst;
    int64_t       dst_stride;  // in elements
    int           n_rows;
    int           first_block; // of the thread blocks that take it
    const float * bias;        // nullptr: none
    int64_t       bias_stride; // between rows, in elements
};

// Of a product with experts: columns that have the same one.
struct few_rows_group {
    int expert;
    int n_columns; // 0: none, nor have the groups after it
};

// columns: rows of activations. Sizes and strides in bytes unless named otherwise.
struct few_rows_product {
    few_rows_matrix matrices[FEW_ROWS_TOGETHER]; // of the same type; several only without experts and gate
    int             n_matrices;
    int             n_blocks;                    // thread blocks of all of them

    const char *    gate;                        // nullptr: none
    const float *   gate_bias;                   // nullptr: none
    const char *    columns;
    const int32_t * ids;                         // nullptr: not a product with experts

    ggml_glu_op glu_op;
    float       glu_limit;

    bool is_concurrent; // with the product before it, which has the same activations: see few_rows_wait()

    int n_parts;        // of a matrix row: 64 values each
    int n_block_rows;
    int n_warps;
    int column_size;
    int n_tokens;
    int n_places;   // experts of a token
    int n_column_places;
    int ids_stride; // in elements

    // of many rows (cuda-many-rows-kernel.cuh)
    int        n_slots;  // steps that are in shared memory
    char *     sums;     // that thread blocks leave for each other
    unsigned * counters; // of those that did; 0 between products

    // of more and of many rows (cuda-more-rows-memory.cuh)
    const few_rows_group * groups;        // with experts; nullptr: columns follow each other
    const int *            group_columns; // of each group n_columns, of all (token, place)
    const int *            n_groups_used;
    int                    n_groups;      // that there may be; 0: none
    int                    n_columns;     // of a group at most
    int64_t                group_stride;  // between columns of groups

    int64_t row_stride;
    int64_t expert_stride;
    int64_t column_stride;
    int64_t column_place_stride;
    int64_t dst_place_stride; // this and all below in elements
    int64_t gate_bias_stride;
};

// times 256 values that a matrix row has; the last may be a part
static FEW_ROWS_HOST_FUNCTION int few_rows_steps(const few_rows_product & p) {
    return (p.n_parts + FEW_ROWS_QUARTERS - 1) / FEW_ROWS_QUARTERS;
}

// Rows of activations, and which of them belong together
struct few_rows_input {
    const float *          rows;
    const few_rows_group * groups;        // nullptr: no experts, rows follow each other
    const int *            group_columns; // of each group n_tiles * 8, of all (token, place)
    const int *            places;        // of each column, among group_columns
    int                    n_values;
    int                    n_rows;        // without experts
    int                    n_tiles;       // of a group, or of all rows
    int64_t                group_size;    // bytes
    int64_t                stride;        // between rows (tokens), in values
    int64_t                place_stride;
    int                    n_places;      // of a token
    int                    n_column_places;

    // how many rows a group has, from the first on
    FEW_ROWS_FUNCTION int n_rows_of(int group) const {
        return groups ? groups[group].n_columns : min(n_rows - group * n_tiles * 8, n_tiles * 8);
    }

    FEW_ROWS_FUNCTION const float * row_of(int group, int row) const {
        const int at = group * n_tiles * 8 + row;
        if (!groups) {
            return rows + at * stride;
        }
        return column_of(group_columns[at]);
    }

    // with experts
    FEW_ROWS_FUNCTION const float * column_of(int column) const {
        return rows + column / n_places * stride + column % n_places % n_column_places * place_stride;
    }
};

// How a thread block divides its work: chunks side by side in a matrix row, and warps that take the same chunk of
// different rows.
struct few_rows_shape {
    int n_chunks;
    int n_teams;

    FEW_ROWS_HOST_FUNCTION few_rows_shape(const few_rows_product & p) :
        n_chunks((p.n_parts + FEW_ROWS_LANES - 1) / FEW_ROWS_LANES),
        n_teams(n_chunks < p.n_warps ? p.n_warps / n_chunks : 1) {}
};

// What is in shared memory: chunks of weights; of each warp, activations on their way to registers, and later sums of
// lanes; and sums of chunks
template <class T> struct few_rows_memory {
    size_t stages;
    size_t partials;
    size_t routed; // a column's (token, place)
    size_t size;

    FEW_ROWS_HOST_FUNCTION few_rows_memory(const few_rows_product & p, int n_columns, bool has_gate) {
        const int n_sums = (has_gate ? 2 : 1) * p.n_block_rows * n_columns * few_rows_shape(p).n_chunks;

        stages   = (size_t) p.n_warps * FEW_ROWS_IN_FLIGHT * few_rows_slot_size<T>();
        partials = stages + (size_t) p.n_warps * FEW_ROWS_STAGE_SIZE;
        routed   = partials + sizeof(float) * n_sums;
        size     = routed + sizeof(int) * n_columns;
    }
};

// a device as products see it
struct few_rows_device {
    int    n_multiprocessors;
    size_t shared_size; // of a thread block
    bool   is_hopper;
};

static constexpr size_t FEW_ROWS_RESERVED = 1024; // shared memory that each block has in addition to its own

static constexpr int FEW_ROWS_COLUMNS_MAX = 8;
static constexpr int FEW_ROWS_ROWS_MIN    = 16; // matrix rows of a thread block: below this it has fewer warps instead

// Matrix rows of a thread block, at most. One column's take as long as memory does: with several thread blocks one after
// the other, multiprocessors that get less of it have fewer.
static constexpr int few_rows_rows_max(int n_columns) {
    return n_columns == 1 ? 128 : 1024;
}

// Gives each matrix its thread blocks, of n_block_rows each; returns how many they are.
static inline int few_rows_place_blocks(few_rows_product & p) {
    p.n_blocks = 0;
    for (int m = 0; m < p.n_matrices; ++m) {
        p.matrices[m].first_block = p.n_blocks;
        p.n_blocks += (p.matrices[m].n_rows + p.n_block_rows - 1) / p.n_block_rows;
    }
    return p.n_blocks;
}

// Divides a product among thread blocks: as many as the device holds at a time, or a multiple of that. false: it has
// too little shared memory.
template <class T>
static bool few_rows_divide(few_rows_product & p, int n_columns, bool has_gate, const few_rows_device & device) {
    const int  n_routed = p.ids ? p.n_tokens * p.n_places : 1;
    const int  n_most   = few_rows_rows_max(n_columns);
    const auto fits     = [&](int n_blocks) {
        const size_t size = few_rows_memory<T>(p, n_columns, has_gate).size;
        few_rows_place_blocks(p);
        return n_blocks * (size + FEW_ROWS_RESERVED) <= device.shared_size + FEW_ROWS_RESERVED;
    };
    int n_rows = 0;
    for (int m = 0; m < p.n_matrices; ++m) {
        n_rows += p.matrices[m].n_rows;
    }
    for (p.n_warps = FEW_ROWS_WARPS; p.n_warps > 1; p.n_warps /= 2) {
        const int n_teams = few_rows_shape(p).n_teams;
        for (int n_resident = few_rows_resident(n_columns); n_resident > 0; --n_resident) {
            const int n_blocks = device.n_multiprocessors * n_resident;
            const int n_waves  = (n_rows * n_routed + n_blocks * n_most - 1) / (n_blocks * n_most);
            const int n_shares = std::max(1, n_blocks * n_waves / n_routed);
            const int n        = (n_rows + n_shares - 1) / n_shares;

            p.n_block_rows = std::min(n_most, (n + n_teams - 1) / n_teams * n_teams);
            while (few_rows_place_blocks(p) > n_shares && p.n_block_rows + n_teams <= n_most) {
                p.n_block_rows += n_teams; // a block takes rows of one matrix
            }
            if (fits(n_resident)) {
                return true;
            }
        }
        for (p.n_block_rows /= 2; p.n_block_rows >= FEW_ROWS_ROWS_MIN; p.n_block_rows /= 2) {
            if (fits(1)) {
                return true;
            }
        }
    }
    return false;
}

// columns of the kernel that takes a product's rows of activations: with experts few tokens have the same one
static inline int few_rows_columns(int n_tokens, bool has_experts) {
    const int n = has_experts ? std::min(4, n_tokens) : n_tokens;
    return n <= 4 ? n : 8;
}
