#pragma once

// What a product of many rows gives: the sums of several thread blocks added up, then stored, with biases or a gate.
//
// Several values are read before any result of theirs is stored. A read waits for a store that might change what it
// reads: one by one, 32 of them took longer than the product itself (H200, 64 rows, the attention's output).
// Nothing is left to contract: how results are rounded does not depend on how many tiles there are.
//
// Whoever includes it has cuda-many-rows-products.cuh, or the same names.

#include "cuda-many-rows-steps.cuh"

// Adds the sums that blocks left for a warp, in the order of the blocks: those of several are on their way at a time.
// place_of: where a block left them
template <int NT, class F>
static FEW_ROWS_FUNCTION void many_rows_add_left(F place_of, int first_block, int last_block, float (&sums)[NT][4]) {
    constexpr int n_together = 2 * MANY_ROWS_TILES / NT;
    for (int block = first_block; block <= last_block; block += n_together) {
        float4 add[n_together][NT];
        FEW_ROWS_UNROLL
        for (int b = 0; b < n_together; ++b) {
            const char * from = place_of(min(block + b, last_block));
            FEW_ROWS_UNROLL
            for (int i = 0; i < NT; ++i) {
                add[b][i] = __ldcg((const float4 *) (from + i * 16 * FEW_ROWS_LANES));
            }
        }
        FEW_ROWS_UNROLL
        for (int b = 0; b < n_together; ++b) {
            FEW_ROWS_UNROLL
            for (int i = 0; block + b <= last_block && i < NT; ++i) {
                sums[i][0] += add[b][i].x;
                sums[i][1] += add[b][i].y;
                sums[i][2] += add[b][i].z;
                sums[i][3] += add[b][i].w;
            }
        }
    }
}

// Leaves a warp's sums for others. Returns whether the others' are all there: then sums are those of all.
template <int NT>
static FEW_ROWS_FUNCTION bool many_rows_add_blocks(const few_rows_product & p, const many_rows_shares & shares,
                                                   int tile, int n_steps, int warp, int lane, float (&sums)[NT][4]) {
    constexpr int size  = many_rows_sums_size<NT>();
    const int     first = tile * n_steps;

    const int  first_block   = shares.block_of(first);
    const int  last_block    = shares.block_of(first + n_steps - 1);
    // a block may leave sums twice, of the tile that it begins with and of the one that it ends with: the first of a
    // tile's blocks has it at its end, unless it begins with it
    const int  slot_of_first = shares.begin(first_block) == first ? 0 : 1;
    const auto place_of      = [&](int block) {
        const int slot = 2 * block + (block == first_block ? slot_of_first : 0);
        return p.sums + (int64_t) (slot * p.n_warps + warp) * size + lane * 16;
    };
    unsigned * counter = p.counters + first_block * p.n_warps + warp;
    int        n       = 0;

    if ((int) blockIdx.x == first_block) { // the others have begun with their parts: mostly it need not leave its own
        if (lane == 0) {
            n = many_rows_counted(counter, last_block - first_block);
        }
        n = __shfl_sync(0xffffffff, n, 0);
        __syncwarp(); // all see what the first lane has
        if (n == last_block - first_block) {
            many_rows_add_left<NT>(place_of, first_block + 1, last_block, sums);
            return true;
        }
    }
    char * mine = place_of(blockIdx.x);
    FEW_ROWS_UNROLL
    for (int i = 0; i < NT; ++i) {
        *(float4 *) (mine + i * 16 * FEW_ROWS_LANES) = { sums[i][0], sums[i][1], sums[i][2], sums[i][3] };
    }
    __syncwarp();
    if (lane == 0) {
        n = many_rows_count(counter, last_block - first_block);
    }
    n = __shfl_sync(0xffffffff, n, 0);
    __syncwarp();
    if (n != last_block - first_block) {
        return false;
    }
    FEW_ROWS_UNROLL
    for (int i = 0; i < NT; ++i) {
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
    }
    many_rows_add_left<NT>(place_of, first_block, last_block, sums);
    return true;
}

static constexpr int MANY_ROWS_TOGETHER = 4; // tiles whose values are read at a time

// Adds a bias to the sums of N tiles: of each to those from BEGIN on, below END. Two are of one row, two of another.
template <int BEGIN, int END, int N, class F>
static FEW_ROWS_FUNCTION void many_rows_add_bias(const float * bias, int64_t stride, F column_of, const int (&rows)[2],
                                                 float (*sums)[4]) {
    constexpr int n_each = END - BEGIN;
    float         add[N * n_each];
    FEW_ROWS_UNROLL
    for (int i = 0; i < N * n_each; ++i) {
        add[i] = bias[column_of(i / n_each, i % 2) * stride + rows[i % n_each / 2]];
    }
    FEW_ROWS_UNROLL
    for (int i = 0; i < N * n_each; ++i) {
        sums[i / n_each][BEGIN + i % n_each] = __fadd_rn(sums[i / n_each][BEGIN + i % n_each], add[i]);
    }
}

// Stores what the product gives, of a warp.
template <int NT, bool GATE, bool EXPERTS>
static FEW_ROWS_FUNCTION void many_rows_store(const few_rows_product & p, const many_rows_position<EXPERTS> & at,
                                              int warp, int lane, float (&sums)[NT][4]) {
    constexpr int           n_together = NT < MANY_ROWS_TOGETHER ? NT : MANY_ROWS_TOGETHER;
    constexpr int           n_results  = GATE ? 2 : 4; // of a tile: two columns, one or two rows
    const few_rows_matrix & matrix     = p.matrices[at.matrix];
    const int               n_columns  = EXPERTS ? p.groups[at.y].n_columns : p.n_tokens;
    const float *           factors    = (const float *) (EXPERTS ? p.columns + at.y * p.group_stride : p.columns);
    const int               row        = warp * (GATE ? 8 : MANY_ROWS_ROWS) + lane / 4;
    const int               rows[2]    = { at.row_0 + min(row, at.n_rows - 1), at.row_0 + min(row + 8, at.n_rows - 1) };
    FEW_ROWS_UNROLL
    for (int tile = 0; tile < NT; tile += n_together) {
        const int  first = ((EXPERTS ? 0 : at.y * NT) + tile) * 8 + lane % 4 * 2;
        const auto n_of  = [&](int at_tile, int j) {
            return min(first + at_tile * 8 + j, n_columns - 1);
        };
        const auto column_of = [&](int at_tile, int j) {
            return EXPERTS ? p.group_columns[at.y * NT * 8 + n_of(at_tile, j)] : n_of(at_tile, j);
        };
        float by[2 * n_together];
        FEW_ROWS_UNROLL
        for (int i = 0; i < 2 * n_together; ++i) {
            by[i] = factors[n_of(i / 2, i % 2)] / MANY_ROWS_FACTOR;
        }
        FEW_ROWS_UNROLL
        for (int i = 0; i < 4 * n_together; ++i) {
            sums[tile + i / 4][i % 4] = __fmul_rn(sums[tile + i / 4][i % 4], by[i / 4 * 2 + i % 2]);
        }
        if (matrix.bias) {
            many_rows_add_bias<0, n_results, n_together>(matrix.bias, matrix.bias_stride, column_of, rows, sums + tile);
        }
        if (GATE && p.gate_bias) {
            many_rows_add_bias<2, 4, n_together>(p.gate_bias, p.gate_bias_stride, column_of, rows, sums + tile);
        }
        FEW_ROWS_UNROLL
        for (int i = 0; i < n_together * n_results; ++i) {
            const int at_tile    = i / n_results;
            const int j          = i % 2;
            const int half       = i % n_results / 2;
            const float (&of)[4] = sums[tile + at_tile];
            if (first + at_tile * 8 + j < n_columns && row + half * 8 < at.n_rows) {
                const int     column    = column_of(at_tile, j);
                const int64_t result_at = EXPERTS ? few_rows_result_at(p, matrix, column) : column * matrix.dst_stride;
                matrix.dst[result_at + rows[half]] =
                    GATE ? few_rows_glu(of[j], of[2 + j], p.glu_op, p.glu_limit) : of[half * 2 + j];
            }
        }
    }
}
