#pragma once

// Which steps of a product of many rows a thread block has, and where each of them is. A step is 256 values of a tile:
// a thread block's matrix rows and columns; with experts, a tile's columns are those that have the same one.

#include "cuda-few-rows-kernel.cuh"
#include "cuda-many-rows-memory.cuh"

// The steps of all tiles, shared out to thread blocks: each has as many, the first ones one more. With experts there
// may be fewer steps than the grid was made for: then some blocks have none.
struct many_rows_shares {
    int n_blocks; // that have steps
    int n_each;
    int n_more;   // blocks with one more

    FEW_ROWS_FUNCTION explicit many_rows_shares(int total) :
        n_blocks(total > 0 ? min((int) gridDim.x, total) : 1), n_each(total / n_blocks),
        n_more(total - n_each * n_blocks) {}

    FEW_ROWS_FUNCTION int begin(int block) const { return min(block, n_blocks) * n_each + min(block, n_more); }

    FEW_ROWS_FUNCTION int block_of(int step) const {
        const int first = n_more * (n_each + 1); // of those with n_each
        return step < first ? step / (n_each + 1) : n_more + (step - first) / n_each;
    }
};

// A place in the order of all steps: those of a tile, one after the other, then those of the next tile. Tiles of the same
// matrix rows (with experts: of the same rows of each) follow each other.
template <bool EXPERTS> struct many_rows_position {
    int          step;
    int          x; // matrix rows
    int          y; // columns; with experts, those of a group
    int          matrix;
    int          row_0;
    int          n_rows;
    const char * rows;

    FEW_ROWS_FUNCTION void find(const few_rows_product & p) {
        matrix = few_rows_matrix_at(p, x);
        row_0  = (x - p.matrices[matrix].first_block) * p.n_block_rows;
        n_rows = min(p.n_block_rows, p.matrices[matrix].n_rows - row_0);
        rows   = p.matrices[matrix].data + (EXPERTS ? p.groups[y].expert * p.expert_stride : 0);
    }

    FEW_ROWS_FUNCTION many_rows_position(const few_rows_product & p, int at, int n_steps, int n_y) {
        const int tile = at / n_steps;
        step           = at - tile * n_steps;
        x              = tile / n_y;
        y              = tile - x * n_y;
        find(p);
    }

    FEW_ROWS_FUNCTION void advance(const few_rows_product & p, int n_steps, int n_y) {
        if (++step == n_steps) {
            step               = 0;
            const bool is_last = ++y == n_y;
            y                  = is_last ? 0 : y;
            x += is_last;
            if (EXPERTS || is_last) {
                find(p);
            }
        }
    }

    // the warp's i-th row; with a gate the last 8 are the gate's
    template <bool GATE> FEW_ROWS_FUNCTION const char * row(const few_rows_product & p, int warp, int i) const {
        const int    row  = GATE ? warp * 8 + i % 8 : warp * MANY_ROWS_ROWS + i;
        const char * gate = EXPERTS ? p.gate + (rows - p.matrices[0].data) : p.gate;
        return (GATE && i >= 8 ? gate : rows) + (row_0 + min(row, n_rows - 1)) * p.row_stride;
    }
};
