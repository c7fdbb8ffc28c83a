#pragma once

// For the masks of a KV cache, the cells of each row's sequence in the order of their positions: what is set in a mask,
// and what attention on the CPU goes through (cpu-attention.h). Knows cells and masks; knows neither graphs nor rows'
// contents.

#include "cpu-attention.h"
#include "llama-kv-cells.h"
#include "llama.h"

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

class mtp_mask_lists {
  public:
    // Lists the cells of the sequences of n rows, which are in one stream. Lists that were made at another number of
    // changes to the cache are made again.
    void make(uint64_t n_changes, const llama_kv_cells & cells, llama_seq_id * const * seq_id, uint32_t n) {
        if (this->n_changes != n_changes) {
            this->n_changes = n_changes;
            made.reset();
        }
        std::vector<llama_seq_id> seqs;
        for (uint32_t i = 0; i < n; ++i) {
            const llama_seq_id seq = seq_id[i][0];
            if (!made.test(seq)) {
                made.set(seq);
                of_seq[seq].clear();
                of_seq[seq].reserve(1); // lists without cells are two for two sequences, too
                seqs.push_back(seq);
            }
        }
        if (!seqs.empty()) {
            find(cells, seqs);
        }
    }

    const std::vector<int32_t> & of(llama_seq_id seq) const { return of_seq[seq]; }

    // for a mask of n rows, whose sequences have lists; the mask points to them until it is set again
    void set(ggml_tensor * mask, llama_seq_id * const * seq_id, uint32_t n) {
        auto & rows = of_mask[mask];
        rows.cells.clear();
        rows.n_cells.clear();
        for (uint32_t i = 0; i < n; ++i) {
            rows.cells.push_back(of(seq_id[i][0]).data());
            rows.n_cells.push_back(of(seq_id[i][0]).size());
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

    uint64_t                                 n_changes = 0;
    std::bitset<LLAMA_MAX_SEQ>               made;    // which lists are
    std::vector<std::vector<int32_t>>        of_seq = std::vector<std::vector<int32_t>>(LLAMA_MAX_SEQ);
    std::map<const ggml_tensor *, mask_rows> of_mask; // graphs are built in memory that is used again: few stay

    // all in one look at the cache: the cells of a sequence lie here and there
    void find(const llama_kv_cells & cells, const std::vector<llama_seq_id> & seqs) {
        std::vector<llama_kv_cells::seq_set_t> alone(seqs.size());
        for (size_t i = 0; i < seqs.size(); ++i) {
            alone[i].set(seqs[i]);
        }
        const uint32_t n_cells = cells.used_max_p1();
        size_t         at      = 0;
        for (uint32_t cell = 0; cell < n_cells; ++cell) {
            if (cells.is_empty(cell)) {
                continue;
            }
            // a cell is mostly of the sequence of the one before it, or of the next sequence
            const auto & of_cell = cells.seq_get_all(cell);
            const size_t next    = at + 1 < seqs.size() ? at + 1 : 0;
            at                   = of_cell == alone[next] ? next : at;
            if (of_cell == alone[at]) {
                of_seq[seqs[at]].push_back(cell);
                continue;
            }
            for (size_t i = 0; i < seqs.size(); ++i) {
                if (of_cell.test(seqs[i])) {
                    of_seq[seqs[i]].push_back(cell);
                    at = i;
                }
            }
        }
        const auto is_before = [&](uint32_t a, uint32_t b) {
            return std::make_pair(cells.pos_get(a), a) < std::make_pair(cells.pos_get(b), b);
        };
        for (const llama_seq_id seq : seqs) {
            if (!std::is_sorted(of_seq[seq].begin(), of_seq[seq].end(), is_before)) {
                std::sort(of_seq[seq].begin(), of_seq[seq].end(), is_before);
            }
        }
    }
};
