#pragma once

// Which positions of a sequence a head has K/V for. A head that was left behind for a while goes on without what it
// has missed: that stays a gap, which it never looks at. Knows positions; knows no cells.

#include "llama.h"

#include <algorithm>

struct mtp_seen {
    llama_pos end       = 0; // behind the last one
    llama_pos gap_begin = 0; // the gap; there is none where both are equal
    llama_pos gap_end   = 0;
    llama_pos draft     = 0; // where the draft at hand begins: perhaps behind `end`

    bool has_gap() const { return gap_begin < gap_end; }

    bool hides_any() const { return has_gap() || end < draft; }

    bool has(llama_pos pos) const { return pos < end && !(pos >= gap_begin && pos < gap_end); }

    // The head runs on pos. is_whole: all that it reads is what it should be; else nobody may look at pos later.
    void take(llama_pos pos, bool is_whole) {
        if (pos < end) {
            return; // once more
        }
        const llama_pos begin = is_whole ? pos : pos + 1;
        if (begin > end) {
            gap_begin = has_gap() ? gap_begin : end;
            gap_end   = begin;
        }
        end = pos + 1;
    }

    void truncate(llama_pos pos) {
        end     = std::min(end, pos);
        gap_end = std::min(gap_end, pos);
        draft   = 0;
    }

    // n positions from pos on are gone; those behind move up
    void discard(llama_pos pos, llama_pos n) {
        for (auto * p : { &end, &gap_begin, &gap_end }) {
            *p = *p > pos ? std::max(pos, *p - n) : *p;
        }
        draft = 0;
    }
};
