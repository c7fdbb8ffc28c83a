#pragma once

// The cells of a KV cache that an MTP head has written and the trunk has not decoded yet.
// Knows sequences, positions and cell indices; knows nothing of tensors.
//
// A reserved cell has its position and sequence set, so attention masks work, but it does not count as decoded:
// the trunk's batch for that position must still be accepted, and then takes the cell over. The reserved
// positions of a sequence are always its tail.

#include "llama-cparams.h"
#include "llama-kv-cells.h"
#include "mtp-seen.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

// Positions before the window of the trunk's layers that an assistant's layers see: with a window of n, the n + 1 before
// the one that it drafts at (as in transformers), where the trunk's see n - 1.
static constexpr uint32_t MTP_ASSISTANT_BEYOND = 2;

// Graphs see a multiple of this many cells, so that few graphs serve many texts: each number of cells needs its own. An
// H200, 10.7 billion parameters in Q4_K_M, K = 3: a new graph costs as much as two to four rounds; seeing 1024 cells in
// the place of 256 costs 1 % of a round (bench/sequences.py, bench/results/h200-more.md).
static constexpr uint32_t MTP_CELLS_STEP = 1024;

class mtp_reservation {
  public:
    // true while a head runs: its rows have their cells already, applying the ubatch must not place them again
    bool placed = false;

    // true while ubatches are placed on trial: what they purge of a window is there for those before them
    bool on_trial = false;

    // false: the cache is the heads' own, cells that they place are simply theirs
    bool reserves = true;

    // while the mask of a head is set: what it has seen of each sequence. nullptr: all there is
    const std::vector<mtp_seen> * seen = nullptr;

    // positions before its window that the cache keeps
    uint32_t n_beyond = 0;

    // whether graphs see more cells than are used, so that they last: another number is another graph
    bool pads_further = false;

    // whether sequences have spans of cells of their own, which attention on devices passes over (cuda-seen-spans.cuh)
    bool has_spans = false;

    // Changes of the cache's cells, reserved or not: lists of cells that were made at another number can be wrong.
    uint64_t n_changes = 1;

    // How many of the cells a graph sees: those up to the last one used, and as many more as give a multiple of pad, a
    // power of two.
    uint32_t padded(const llama_kv_cells & cells, uint32_t pad) const {
        const uint32_t n = cells.used_max_p1();
        pad              = pads_further ? std::max(pad, MTP_CELLS_STEP) : pad;
        while (pads_further && 8 * pad < n) {
            pad *= 2;
        }
        return (n + pad - 1) / pad * pad;
    }

    void clear() {
        ++n_changes;
        cells.clear();
    }

    bool empty() const { return cells.empty(); }

    void add(llama_seq_id seq, llama_pos pos, uint32_t cell) { cells[{ seq, pos }] = cell; }

    // the cell of (seq, pos), -1 if none is reserved
    int64_t find(llama_seq_id seq, llama_pos pos) const {
        const auto it = cells.find({ seq, pos });
        return it == cells.end() ? -1 : (int64_t) it->second;
    }

    // the trunk decodes (seq, pos): forget the reservation. true if there was one
    bool take(llama_seq_id seq, llama_pos pos) {
        ++n_changes;
        return cells.erase({ seq, pos }) > 0;
    }

    // forget the positions [p0, p1) of a sequence (-1: of all)
    void drop(llama_seq_id seq, llama_pos p0, llama_pos p1) {
        ++n_changes;
        for (auto it = cells.begin(); it != cells.end();) {
            const auto [of, pos] = it->first;
            it                   = (seq == -1 || of == seq) && pos >= p0 && pos < p1 ? cells.erase(it) : std::next(it);
        }
    }

    // the last decoded position of a sequence whose last cell is at pos_max
    llama_pos tail(llama_seq_id seq, llama_pos pos_max) const {
        const auto first = cells.lower_bound({ seq, 0 });
        return first != cells.end() && first->first.first == seq ? first->first.second - 1 : pos_max;
    }

    const std::map<std::pair<llama_seq_id, llama_pos>, uint32_t> & all() const { return cells; }

  private:
    std::map<std::pair<llama_seq_id, llama_pos>, uint32_t> cells;
};
