#pragma once

// An image that is decoded: rows of embeddings which share a few positions of a sequence. Plain data, and which positions
// of a sequence images have taken: there a cache's last position does not say where the sequence ends.

#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <vector>

struct mtp_image_rows {
    llama_seq_id seq;
    llama_pos    begin;
    int32_t      n_pos;         // positions that it takes
    int32_t      n_rows;
    int32_t      n_heads;       // that see it
    int32_t      n_done    = 0; // rows of ubatches before
    int32_t      last_row  = 0; // of the hidden buffer, of the ubatch before
    bool         is_second = false;
};

// positions that images have taken, of one sequence
class mtp_image_spans {
  public:
    struct span {
        llama_pos begin;
        int32_t   n_pos;
    };

    // the position after an image that the position is of; else after the position
    llama_pos end_after(llama_pos pos) const {
        const span * found = find(pos);
        return found ? found->begin + found->n_pos : pos + 1;
    }

    // whether a sequence can end before this position
    bool can_cut(llama_pos pos) const {
        const span * found = find(pos);
        return !found || found->begin == pos;
    }

    void truncate(llama_pos pos) {
        while (!spans.empty() && spans.back().begin >= pos) {
            spans.pop_back();
        }
    }

    std::vector<span> spans; // by position

  private:
    const span * find(llama_pos pos) const {
        const auto found = std::find_if(spans.begin(), spans.end(), [pos](const span & each) {
            return pos >= each.begin && pos < each.begin + each.n_pos;
        });
        return found == spans.end() ? nullptr : &*found;
    }
};
