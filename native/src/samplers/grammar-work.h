#pragma once

// How much llama.cpp's grammars may do for one token. Some follow a text in more ways than can be counted, and nobody
// else gets a turn meanwhile. The functions that follow them (a patch) say what they are about to look at; knows
// nothing of grammars.

#include <cstdint>
#include <stdexcept>

struct grammar_error : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

class grammar_work {
  public:
    // 0.4 s on a core of an AMD EPYC, for each token of each request
    static constexpr int64_t ELEMENTS_MAX = 1 << 28;

    // A token is accepted, or some are looked at.
    static void begin() { n_left = ELEMENTS_MAX; }

    // n elements are looked at. Throws grammar_error if they are too many.
    static void step(size_t n) {
        n_left -= (int64_t) n;
        if (n_left < 0) {
            throw grammar_error("the grammar can be followed in too many ways");
        }
    }

  private:
    inline static thread_local int64_t n_left = ELEMENTS_MAX;
};
