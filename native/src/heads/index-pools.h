#pragma once

// Pools of consecutive positions, which an index scores as one: those of the head of GLM-5.3-Flash, and the blocks of
// Qwen3.8-Flash-Next, of trunk and head. A row attends to the pools that it picks, and to its latest positions, which
// fill no pool yet. Each sequence has pools of its own, wherever its cells are and whoever shares them. Knows cells and
// positions; neither keys nor scores.

#include "llama-graph.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

class llama_kv_cache_context;
class llama_kv_cells;
struct mtp_seen;

class index_pools : public llm_graph_input_i {
  public:
    // Pools of positions in the cache that keeps the keys of the index.
    index_pools(const llm_graph_context & graph, const llama_kv_cache_context * mctx, int64_t n_stream);

    void set_input(const llama_ubatch * ubatch) override;
    bool can_reuse(const llm_graph_params & params) override;

    // The cells that rows attend to: the best pools by their scores, [n_pools, n_rows, 1, n_stream], and what fills no pool.
    // I32 [n_best * n_pooled + n_pooled - 1, n_rows, 1, n_stream]; some may come twice
    ggml_tensor * build_picked(ggml_context * ctx0, ggml_tensor * scores) const;

    ggml_tensor * cells; // I32 [n_pooled * n_pools, n_stream]
    ggml_tensor * pos;   // I32 [4 * n_stream * n_pools] for M-RoPE: of the first position of each

    // F16 if fused_lid, else F32, [n_pools, n_rows, 1, n_stream]: 0 for pools up to a row, else -inf, but for n_best empty
    // ones at the end, which come next: a row that sees fewer pools than it picks must not pick those of other sequences,
    // as it may share some of their cells.
    ggml_tensor * mask;

  private:
    struct sequence {
        const llama_kv_cells *                    in;             // of its stream
        std::vector<std::pair<int64_t, uint32_t>> cells;          // places and cells, in order
        std::vector<std::pair<int64_t, int32_t>>  pools;          // the place where each ends, and its number
        bool                                      has_2d = false; // an image shares positions: places are counted

        // from a place on
        auto from(int64_t place) const {
            return std::lower_bound(cells.begin(), cells.end(), std::make_pair(place, uint32_t(0)));
        }
    };

    const llama_kv_cache_context * mctx;

    const int64_t n_pooled;
    const int64_t n_stream;
    const int64_t n_best;  // pools that a row picks
    const int64_t n_rows;  // of a stream
    const int64_t n_pools; // of a stream, the empty ones as well

    ggml_tensor * tail;    // F32 [n_pooled - 1, n_rows * n_stream] cells of the latest positions; else 0
    ggml_tensor * no_tail; // F32 [n_pooled - 1, n_rows * n_stream] 1 where the tail has no position, else 0

    sequence find_cells(llama_seq_id seq) const;
    int64_t  find_place(const sequence & of, const llama_ubatch & ubatch, int64_t row) const;
    void     find_pools(sequence & of, const mtp_seen * seen, int64_t last, std::map<uint32_t, int32_t> & pool_of,
                        int32_t * into) const;
    std::map<llama_seq_id, sequence> find_sequences(const llama_ubatch & ubatch, int64_t stream,
                                                    std::vector<int64_t> & places, int32_t * into) const;
    void find_tail(const sequence & of, int64_t place, float * cells, float * has_none) const;
};
