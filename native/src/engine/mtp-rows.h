#pragma once

// Which row of the hidden buffer holds the hidden state of which (sequence, position).
// Pure bookkeeping: knows no tensor. The buffer's rows are
//
//   [ zero | spare | ubatch: n_ubatch | sequence 0: kept trunk rows, kept head rows | sequence 1: ... ]
//
// Row `zero` stays all zeros: the hidden state before position 0. Nobody reads `spare`: rows of a head's pass
// whose output is not wanted go there. Prompt rows only have to live until their own ubatch went through the
// heads, so they share the ubatch region; the last one of each sequence and verify rows are kept with their
// sequence, where other sequences' passes do not overwrite them.

#include "llama.h"
#include "pymtp.h"

#include <cstdint>
#include <utility>
#include <vector>

class mtp_rows {
  public:
    static constexpr int32_t ZERO  = 0;
    static constexpr int32_t SPARE = 1;

    // rows of a sequence that are kept after later passes
    static constexpr uint32_t N_KEPT = PYMTP_KEPT_POSITIONS;

    mtp_rows(uint32_t n_ubatch, uint32_t n_seq_max);

    uint32_t size() const; // rows of the buffer

    // the trunk's row i of the ubatch at (seq, pos); transient: only until the next ubatch
    int32_t put_transient(llama_seq_id seq, llama_pos pos, uint32_t i);

    // the same where nobody asks for it by its position
    static int32_t transient_row(uint32_t i) { return 2 + (int32_t) i; }

    int32_t put_trunk(llama_seq_id seq, llama_pos pos); // and forgets what a head has said of pos and beyond
    int32_t put_head(llama_seq_id seq, llama_pos pos);

    // the hidden state of (seq, pos): the trunk's if there, else the head's; -1 if neither is kept
    int32_t find(llama_seq_id seq, llama_pos pos) const;

    // the trunk's next ubatch overwrites the ubatch region
    void drop_transient();

    // forget positions >= pos
    void truncate(llama_seq_id seq, llama_pos pos);

    // forget what heads have written
    void drop_heads();

    // the trunk's rows of a sequence that outlive the next ubatch: (position, row), by position
    std::vector<std::pair<llama_pos, int32_t>> kept_rows(llama_seq_id seq) const;

    // the first of the N_KEPT rows of a sequence
    int32_t first_kept(llama_seq_id seq) const { return base(seq); }

    // `to` keeps what `from` keeps, in rows of its own
    void copy(llama_seq_id from, llama_seq_id to);

    // forget the positions [pos, pos + n); those after them move up
    void discard(llama_seq_id seq, llama_pos pos, int32_t n);

  private:
    // the newest positions of a sequence
    struct kept {
        std::vector<llama_pos> pos = std::vector<llama_pos>(N_KEPT, -1); // -1: free

        uint32_t put(llama_pos p);
        int32_t  find(llama_pos p) const;
        void     truncate(llama_pos p);
    };

    struct transient {
        llama_seq_id seq;
        llama_pos    pos;
        int32_t      row;
    };

    uint32_t               n_ubatch;
    std::vector<kept>      trunk; // [n_seq_max]
    std::vector<kept>      head;  // [n_seq_max]
    std::vector<transient> cur;

    int32_t base(llama_seq_id seq) const;
};
