#pragma once

// Which positions of a sequence a head has K/V for. A head that was left behind for a while continues without what it
// has missed: that stays a gap, which it never looks at. Knows positions; knows no cells.

#include "llama.h"

#include <algorithm>

struct mtp_seen {
    llama_pos end = 0; // after the last one

    // the gap; there is none where both are equal
    llama_pos gap_begin = 0;
    llama_pos gap_end   = 0;

    // Rows that the current draft has caught up with, up to the one that it predicts from. They count once the trunk
    // continues there with the head in its pass; a draft that leads to nothing leaves no trace.
    llama_pos draft_begin = 0;
    llama_pos draft_end   = 0;

    bool has_gap() const { return gap_begin < gap_end; }

    bool hides_any() const { return has_gap() || end < draft_begin; }

    // whether rows after a position do not look at it
    bool hides(llama_pos pos) const { return (pos >= gap_begin && pos < gap_end) || (pos >= end && pos < draft_begin); }

    bool has(llama_pos pos) const { return pos < end && !(pos >= gap_begin && pos < gap_end); }

    // A draft predicts from pos, after rows from begin on, of which the first n_broken read what is not there.
    void start_draft(llama_pos begin, llama_pos pos, llama_pos n_broken) {
        draft_begin = begin > end ? begin + n_broken : begin;
        draft_end   = pos;
    }

    // The head runs on pos in the trunk's pass. is_whole: what it reads is what it should be; else nobody may look at
    // pos later.
    void take(llama_pos pos, bool is_whole) {
        if (pos < end) {
            return; // once more
        }
        skip(is_whole ? pos : pos + 1);
        end = pos + 1;
    }

    // the trunk continues at pos: the rows of a draft from there count
    void adopt_draft(llama_pos pos) {
        if (pos == draft_end && end < draft_end) {
            skip(std::min(draft_begin, draft_end));
            end = draft_end;
        }
    }

    void truncate(llama_pos pos) {
        end         = std::min(end, pos);
        gap_end     = std::min(gap_end, pos);
        draft_begin = draft_end = 0;
    }

    // n positions from pos on are gone; those after them move up
    void discard(llama_pos pos, llama_pos n) {
        for (auto * p : { &end, &gap_begin, &gap_end }) {
            *p = *p > pos ? std::max(pos, *p - n) : *p;
        }
        draft_begin = draft_end = 0;
    }

  private:
    void skip(llama_pos pos) {
        if (pos > end) {
            gap_begin = has_gap() ? gap_begin : end;
            gap_end   = pos;
        }
    }
};
