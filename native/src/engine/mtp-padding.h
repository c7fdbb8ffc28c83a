#pragma once

// Rows that are added to a pass so that passes have few shapes (pymtp_padding): prompts, and rounds of many sequences. A
// memory of K/V alone drops them at once; recurrent states go back only once after a pass, so there they stay until their
// sequence is changed in any way. Knows rows and sequences; no graphs.

#include "mtp-ubatch.h"

#include <cstdint>
#include <vector>

struct llama_context;
struct mtp_engine;

enum mtp_padding {
    MTP_PADDING_NONE  = 0,
    MTP_PADDING_EQUAL = 1, // sequences that share a pass have as many rows as the one with the most
    MTP_PADDING_TOTAL = 2, // rows in all: one of few numbers
};

// The rows of a step of a draft that are computed for n: 1, 2, 4, 8, 16, ... What can be computed row by row
// (MTP_SINGLE_ROWS_MAX) stays so.
uint32_t mtp_padded_step(uint32_t n);

// Those of a round: up to 8 they stay as they are, then 16, 32, 64, 128, 192, ... A GPU needs about as long for 9 rows as
// for 16, and for 65 as for 128.
uint32_t mtp_padded_total(uint32_t n);

// Those of a pass with a prompt, which takes a small GPU as much longer as there are more of them: a multiple of 16, or of
// an eighth of the power of two that is enough.
uint32_t mtp_padded_prompt(uint32_t n);

struct mtp_padding_limits {
    size_t n_seq_rows; // rows of a sequence that verifies drafts; one that has more is in its prompt
    size_t n_rows;     // of a pass
    size_t n_outputs;  // rows with logits, in all passes
    size_t n_pass;     // rows that cost as much as another pass does
};

// The rows to add to a trunk pass, to come after its own. rows: those of a sequence in order of position. With
// MTP_PADDING_EQUAL they may stay several passes, where one would have too many added rows.
std::vector<mtp_row> mtp_padding_rows(mtp_padding how, const std::vector<mtp_row> & rows,
                                      const mtp_padding_limits & limits);

// The added rows of a context: how many passes get, and where they still are.
class mtp_padder {
  public:
    // mode: a pymtp_padding
    mtp_padder(llama_context & ctx, mtp_engine & mtp, int32_t mode, uint32_t n_draft_max, uint32_t n_outputs_max);

    // mtp_engine::decode, with added rows if there is room for them
    int32_t decode(const std::vector<mtp_row> & rows, const uint8_t * flags);

    // the position after the last of a sequence, without added rows
    llama_pos end(llama_seq_id seq) const;

    // the rows of a round, or of a step of a draft, that are computed for n
    uint32_t n_computed(uint32_t n, bool of_step) const;

    bool has(llama_seq_id seq) const { return n_added[seq] > 0; }

    // of one sequence or of all; forgets those of a sequence that somebody else has dropped
    void drop(llama_seq_id seq);
    void drop();

    void forget(llama_seq_id seq) { n_added[seq] = 0; }

  private:
    llama_context & ctx;
    mtp_engine &    mtp;
    const llama_pos n_pos; // that a model has which learns them: a table

    mtp_padding        how    = MTP_PADDING_NONE;
    mtp_padding_limits limits = {};

    std::vector<int32_t> n_added; // [n_seq_max] rows of the last pass after a sequence's end, if they are still there
};
