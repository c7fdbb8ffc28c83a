#pragma once

// For the masks of a KV cache, the cells of each row's sequence in the order of their positions: what attention on the
// CPU goes through (cpu-attention.h). Knows cells and masks; knows neither graphs nor rows' contents.

#include "cpu-attention.h"
#include "llama-kv-cells.h"
#include "llama.h"

#include <cstdint>
#include <map>
#include <vector>

class mtp_mask_lists {
  public:
    // Lists that were made at another number of changes to the cache are made again.
    void begin(uint64_t n) {
        for (auto & [seq, of] : of_seq) {
            of.is_made &= n == n_changes;
        }
        n_changes = n;
    }

    // For rows of these sequences; cells_of: those of a sequence's stream. The mask points to them until it is set again.
    template <class F> void set(ggml_tensor * mask, const std::vector<llama_seq_id> & seqs, F && cells_of) {
        auto & rows = of_mask[mask];
        rows.cells.clear();
        rows.n_cells.clear();
        for (const llama_seq_id seq : seqs) {
            const auto & list = list_of(seq, cells_of(seq));
            rows.cells.push_back(list.data());
            rows.n_cells.push_back(list.size());
        }
        rows.lists  = { rows.cells.data(), rows.n_cells.data() };
        mask->extra = &rows.lists;
    }

  private:
    struct mask_rows {
        std::vector<const int32_t *> cells;
        std::vector<int64_t>         n_cells;
        mtp_mask_cells               lists;
    };

    struct sequence {
        bool                 is_made = false;
        std::vector<int32_t> cells;
    };

    uint64_t                                 n_changes = 0;
    std::map<llama_seq_id, sequence>         of_seq;
    std::map<const ggml_tensor *, mask_rows> of_mask; // graphs are built in memory that is used again: few stay

    const std::vector<int32_t> & list_of(llama_seq_id seq, const llama_kv_cells & cells) {
        auto & of = of_seq[seq];
        if (!of.is_made) {
            of.is_made = true;
            of.cells.clear();
            for (const auto & [pos, cell] : cells.seq_pos_get(seq)) {
                of.cells.push_back(cell);
            }
            if (of.cells.empty()) {
                of.cells.reserve(1); // rows of two such sequences have two lists
            }
        }
        return of.cells;
    }
};
