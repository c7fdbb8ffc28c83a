#pragma once

// Attention of rows that see few of a cache's cells: where many sequences share it, or where it is not full. A tile is some
// rows by some heads of a group; it goes through the spans of cells that one of its rows sees, in parts that are as long
// as those of other tiles, one for each thread block. What the parts are is found once for all layers with a mask.

#include "attention-sequences.h"
#include "common.cuh"

// What a thread block does for a tile: spans from begin up to end. By their places in the tile's list, or, if that is
// nullptr, by themselves.
struct mtp_cuda_part {
    int         tile;     // of all heads, those of the same heads one after the other
    int         begin;
    int         end;      // begin: there is nothing more to do
    bool        is_first; // of the tile
    bool        is_last;  // what the parts before it find is added up later
    const int * list;
};

// of an entry of a schedule: whether it is the first and the last of its tile, and whether its spans are in a list, as they
// do not follow each other
static constexpr int MTP_CUDA_PART_FIRST  = 1;
static constexpr int MTP_CUDA_PART_LAST   = 2;
static constexpr int MTP_CUDA_PART_LISTED = 4;

// entries of a schedule: one for each thread block that there is for some heads, or whole tiles
static __host__ __device__ __forceinline__ int mtp_cuda_n_entries(int n_tiles, int n_heads, int n_blocks) {
    return n_tiles > n_blocks / n_heads ? n_tiles : n_blocks / n_heads;
}

// The parts of a thread block, one after the other. Without a schedule all spans are seen, and equal shares of all work
// begin and end anywhere, as llama.cpp has it.
class mtp_cuda_parts {
  public:
    // schedule: of mtp_cuda_schedule, or nullptr. n_heads: groups of heads that have tiles of their own
    __device__ __forceinline__ mtp_cuda_parts(const int * schedule, int n_tiles, int n_spans, int n_heads) :
        schedule(schedule), n_tiles(n_tiles), n_spans(n_spans), n_heads(n_heads) {
        n_entries           = mtp_cuda_n_entries(n_tiles, n_heads, gridDim.x);
        const int64_t n_all = schedule ? (int64_t) gridDim.x : (int64_t) n_tiles * n_spans * n_heads;
        at                  = (blockIdx.x + 0) * n_all / gridDim.x;
        end                 = schedule ? n_entries * n_heads : (int) ((blockIdx.x + 1) * n_all / gridDim.x);
    }

    __device__ __forceinline__ mtp_cuda_part next() {
        if (schedule) {
            while (at < end) {
                const int4 entry = ((const int4 *) schedule)[at / n_heads];
                const int  heads = at % n_heads;
                at += gridDim.x;
                if (entry.y < entry.z) {
                    const int * list = schedule + 4 * (n_entries + n_tiles) + entry.x * n_spans;
                    return { heads * n_tiles + entry.x,
                             entry.y,
                             entry.z,
                             (entry.w & MTP_CUDA_PART_FIRST) != 0,
                             (entry.w & MTP_CUDA_PART_LAST) != 0,
                             entry.w & MTP_CUDA_PART_LISTED ? list : nullptr };
                }
            }
            return {};
        }
        const int begin = at % n_spans;
        const int last  = min(n_spans, begin + end - at);
        const int tile  = at / n_spans;
        at += last - begin;
        return { tile, begin, last, begin == 0, last == n_spans && last > begin, nullptr };
    }

  private:
    const int * schedule;
    int         n_tiles;
    int         n_spans;
    int         n_heads;
    int         n_entries;
    int         at;
    int         end;
};

#ifdef MTP_CUDA

// What n_blocks thread blocks do for the rows of dst in tiles of n_tile_rows, for each of n_heads groups of heads; spans
// have n_cells cells, 32, 64 or 128. On the device: entries, each a tile, its begin and end, and flags; then of each tile
// its first entry and how many it has, also as four numbers; then the lists of tiles. nullptr: the mask is computed, there
// is not enough memory for as many spans, or nothing would be gained.
const int * mtp_cuda_schedule(ggml_backend_cuda_context & ctx, const ggml_tensor * dst, int n_tile_rows, int n_cells,
                              int n_heads, int n_blocks);

// Rows of dst that see the same cells, on average.
int64_t mtp_cuda_rows_of_sequence(const ggml_tensor * dst);

// Adds up what the parts of dst's tiles found. parts is as flash_attn_ext_f16 leaves it: for each of n_blocks thread blocks
// the highest score and the sum of weights of a tile's last part, and of one that is not, then the weighted values of that.
void mtp_cuda_add_parts(ggml_backend_cuda_context & ctx, ggml_tensor * dst, const float2 * parts, const int * schedule,
                        int n_tile_rows, int n_tile_heads, int n_blocks);

#endif // MTP_CUDA
