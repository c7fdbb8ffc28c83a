#pragma once

// How much llama.cpp's grammars may do at a time: while one is parsed, and for one token. Some have repetitions that make
// millions of rules, and some follow a text in more ways than can be counted, and nobody else gets a turn meanwhile. The
// functions that parse and follow them (a patch) say what they are about to make or look at, and what is wrong with one;
// knows nothing of grammars.

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

struct grammar_error : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

class grammar_work {
  public:
    // 0.4 s on a core of an AMD EPYC, for each token of each request
    static constexpr int64_t ELEMENTS_MAX = 1 << 28;

    // A grammar is parsed, a token is accepted, or some are looked at.
    static void begin() { n_left = ELEMENTS_MAX; }

    // n elements are looked at. Throws grammar_error if they are too many.
    static void step(size_t n) { spend(n, "the grammar can be followed in too many ways"); }

    // A rule of n_elements is repeated n_times, and as an option n_rules times more, which is below 0 for {5,2}. Each of
    // these is a rule of its own. Throws grammar_error if they are too many, or cannot be.
    static void repeat(uint64_t n_times, uint64_t n_rules, size_t n_elements) {
        if ((int64_t) n_rules < 0) {
            throw grammar_error("a repetition of at least " + std::to_string(n_times) + " and at most " +
                                std::to_string(n_times + n_rules));
        }
        spend(n_times * n_elements + n_rules * (n_elements + ELEMENTS_OF_A_RULE),
              "its repetitions make too many rules");
    }

    // What the parser throws, as a grammar_error. All after its first line belongs to the grammar.
    [[noreturn]] static void refuse(const std::exception & err) {
        if (dynamic_cast<const std::bad_alloc *>(&err)) {
            throw;
        }
        const std::string why = err.what();
        throw grammar_error(why.substr(0, why.find_first_of("\r\n")));
    }

    // While it lives, what is parsed is in a pair of parentheses more, for which the parser calls itself.
    class parentheses {
      public:
        parentheses() {
            if (n_open >= OPEN_MAX) {
                throw grammar_error("more than " + std::to_string(OPEN_MAX) + " parentheses in each other");
            }
            ++n_open;
        }

        ~parentheses() { --n_open; }
    };

    // While it lives, a rule of n_elements is searched for left recursion, from those on that begin with it: again and
    // again where it is reached in several ways. Throws grammar_error if that takes too long, or too much of the stack.
    class search {
      public:
        explicit search(size_t n_elements) {
            spend(SEARCH_OF_A_RULE + n_elements * SEARCH_OF_A_RULE / 8,
                  "its rules begin with each other in too many ways");
            if (n_chained >= CHAINED_MAX) {
                throw grammar_error("more than " + std::to_string(CHAINED_MAX) + " rules that begin with each other");
            }
            ++n_chained;
        }

        ~search() { --n_chained; }

        search(const search &)             = delete;
        search & operator=(const search &) = delete;
    };

  private:
    static void spend(uint64_t n, const char * why_not) {
        n_left -= (int64_t) n;
        if (n_left < 0) {
            throw grammar_error(why_not);
        }
    }

    static constexpr int32_t OPEN_MAX         = 200;
    static constexpr int32_t CHAINED_MAX      = 4000;
    static constexpr int64_t SEARCH_OF_A_RULE = 26; // ten million rules at most

    inline static thread_local int32_t n_open    = 0;
    inline static thread_local int32_t n_chained = 0;

    static constexpr uint64_t ELEMENTS_OF_A_RULE = 1024; // 0.4 us to make one

    inline static thread_local int64_t n_left = ELEMENTS_MAX;
};
