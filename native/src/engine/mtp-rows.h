#pragma once

// Which row of the hidden buffer holds the hidden state of which (sequence, position).
// Pure bookkeeping: knows no tensor. The buffer's rows are
// ---   [ zero | spare | ubatch: n_ubatch | sequence 0: kept trunk rows, kept head rows | sequence 1: ... ]
// Row `zero` stays all zeros: the hidden state before position 0. Nobody reads `spare`: rows of a head's pass
// whose output is not wanted go there. Prompt rows only have to live until their own ubatch went through the
// heads, so they share the ubatch region; the last one of each sequence and verify rows are kept with their
// sequence, where other sequences' passes do not overwrite them.

#include "llama.h"
#include "pymtp.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

class mtp_rows {
  public:
    static constexpr int32_t ZERO  = 0;
    static constexpr int32_t SPARE = 1;

    // rows of a sequence that are kept after later passes
    static constexpr uint32_t N_KEPT = PYMTP_KEPT_POSITIONS;

    mtp_rows(uint32_t n_ubatch, uint32_t n_seq_max) :
        n_ubatch(n_ubatch), trunk(n_seq_max), head(n_seq_max), passing(n_seq_max) {}

    uint32_t size() const { return first_kept(trunk.size()); } // rows of the buffer

    // the first of the N_KEPT rows of a sequence
    int32_t first_kept(llama_seq_id seq) const { return 2 + n_ubatch + 2 * N_KEPT * seq; }

    // row i of the ubatch where nobody asks for it by its position
    static int32_t transient_row(uint32_t i) { return 2 + (int32_t) i; }

    // the trunk's row i of the ubatch at (seq, pos), which follows on the one before; transient: only until the next ubatch
    int32_t put_transient(llama_seq_id seq, llama_pos pos, uint32_t i) {
        head[seq].truncate(pos);
        auto & of_seq = passing[seq];
        of_seq.begin  = of_seq.rows.empty() ? pos : of_seq.begin;
        of_seq.rows.push_back(transient_row(i));
        return of_seq.rows.back();
    }

    // forgets what a head has said of pos and beyond
    int32_t put_trunk(llama_seq_id seq, llama_pos pos) {
        head[seq].truncate(pos);
        return first_kept(seq) + trunk[seq].put(pos);
    }

    int32_t put_head(llama_seq_id seq, llama_pos pos) { return first_kept(seq) + N_KEPT + head[seq].put(pos); }

    // the hidden state of (seq, pos): the trunk's if there, else the head's; -1 if neither is kept
    int32_t find(llama_seq_id seq, llama_pos pos) const {
        if (pos < 0) {
            return ZERO;
        }
        int32_t i = trunk[seq].find(pos);
        if (i >= 0) {
            return first_kept(seq) + i;
        }
        const auto & of_seq = passing[seq];
        if (pos >= of_seq.begin && pos < of_seq.end()) {
            return of_seq.rows[pos - of_seq.begin];
        }
        i = head[seq].find(pos);
        return i >= 0 ? first_kept(seq) + (int32_t) N_KEPT + i : -1;
    }

    // the trunk's next ubatch overwrites the ubatch region
    void drop_transient() {
        for (auto & of_seq : passing) {
            of_seq.rows.clear();
        }
    }

    // forget positions >= pos
    void truncate(llama_seq_id seq, llama_pos pos) {
        trunk[seq].truncate(pos);
        head[seq].truncate(pos);
        auto & of_seq = passing[seq];
        of_seq.rows.resize(std::clamp(pos, of_seq.begin, of_seq.end()) - of_seq.begin);
    }

    // forget what heads have written
    void drop_heads() {
        for (auto & rows : head) {
            rows.truncate(0);
        }
    }

    // the trunk's rows of a sequence that outlive the next ubatch: (position, row), by position
    std::vector<std::pair<llama_pos, int32_t>> kept_rows(llama_seq_id seq) const {
        std::vector<std::pair<llama_pos, int32_t>> res;
        for (uint32_t i = 0; i < N_KEPT; ++i) {
            if (trunk[seq].pos[i] >= 0) {
                res.emplace_back(trunk[seq].pos[i], first_kept(seq) + i);
            }
        }
        std::sort(res.begin(), res.end());
        return res;
    }

    // `to` keeps what `from` keeps, in rows of its own
    void copy(llama_seq_id from, llama_seq_id to) {
        truncate(to, 0);
        trunk[to] = trunk[from];
    }

    // forget the positions [pos, pos + n); those after them move up
    void discard(llama_seq_id seq, llama_pos pos, int32_t n) {
        for (auto & p : trunk[seq].pos) {
            p = p < pos ? p : p < pos + n ? -1 : p - n;
        }
        head[seq].truncate(0);
        drop_transient();
    }

  private:
    // the newest positions of a sequence
    struct kept {
        std::vector<llama_pos> pos = std::vector<llama_pos>(N_KEPT, -1); // -1: free

        uint32_t put(llama_pos p) {
            // where it is, else a free entry (-1), else the oldest position
            const int32_t same = find(p);
            const auto    i    = same >= 0 ? pos.begin() + same : std::min_element(pos.begin(), pos.end());

            *i = p;
            return i - pos.begin();
        }

        int32_t find(llama_pos p) const {
            const auto i = std::find(pos.begin(), pos.end(), p);
            return i == pos.end() ? -1 : i - pos.begin();
        }

        void truncate(llama_pos p) {
            std::replace_if(pos.begin(), pos.end(), [p](llama_pos q) { return q >= p; }, -1);
        }
    };

    // the first positions of a prompt's part in the ubatch
    struct transient {
        llama_pos            begin = 0;
        std::vector<int32_t> rows;

        llama_pos end() const { return begin + (llama_pos) rows.size(); }
    };

    uint32_t               n_ubatch;
    std::vector<kept>      trunk;   // [n_seq_max]
    std::vector<kept>      head;    // [n_seq_max]
    std::vector<transient> passing; // [n_seq_max]
};
