// Where the latest tokens of a text were seen before: a hash of n-grams whose occurrences are chained, from the latest
// on, over a ring of tokens. Knows token ids; no session.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

struct pymtp_lookup {
    static constexpr const char * what = "lookup index";

    pymtp_lookup(int32_t n_max, int32_t n_min);

    // all of them, or none if it throws
    void append(int32_t n, const int32_t * token);
    void end_history();
    void clear();

    int32_t find(int32_t n, const int32_t * token, int32_t n_draft, int32_t * draft, int32_t * n_match) const;

    int32_t size() const { return end - begin; }

    int64_t bytes() const;

  private:
    // A position is the number of a token since the index began, less a multiple of the capacity now and then. It lives
    // in a place of the ring, as long as begin <= position < end.
    int32_t begin = 0;
    int32_t end   = 0;

    const int32_t capacity_max; // powers of two, both
    int32_t       capacity = 0;
    const int32_t n_gram;

    std::vector<int32_t> tokens;   // [capacity]; END at the end of a history
    std::vector<int32_t> previous; // [capacity] by place: the position where the same n-gram ended before, or NONE

    // [2 * capacity] the last position of each n-gram's latest occurrence, or NONE; linear probing. Only n-grams that a
    // token follows are there. Those whose tokens were dropped stay until there are too many of them.
    std::vector<int32_t> latest;
    size_t               n_taken = 0; // of its places

    int32_t & token_at(int32_t pos) { return tokens[pos & (capacity - 1)]; }

    int32_t token_at(int32_t pos) const { return tokens[pos & (capacity - 1)]; }

    bool is_whole(int32_t pos) const { return pos - n_gram + 1 >= begin; }

    void   grow(int32_t n);
    void   push(int32_t token);
    void   move_back();
    void   index(int32_t pos);
    void   index_all();
    size_t place_of(const int32_t * gram) const;
};
