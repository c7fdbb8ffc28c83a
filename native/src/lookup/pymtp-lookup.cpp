// Where the latest tokens of a text were seen before: a hash of n-grams whose occurrences are chained, from the latest
// on, over a ring of tokens; and the C interface to it. Knows token ids; no session.

#include "guard.h"
#include "pymtp-text.h"

#include <algorithm>
#include <utility>
#include <vector>

static constexpr int32_t NONE         = -1;
static constexpr int32_t END          = -1;
static constexpr int32_t CAPACITY_MIN = 64;

static int32_t power_of_two(int64_t n) {
    int32_t res = CAPACITY_MIN;
    while (res < n) {
        res *= 2;
    }
    return res;
}

static size_t hash(const int32_t * gram, int32_t n) {
    uint64_t h = 0;
    for (int32_t i = 0; i < n; ++i) {
        h = (h ^ (uint32_t) gram[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}

struct pymtp_lookup {
    static constexpr const char * what = "lookup index";

    pymtp_lookup(int32_t n_max, int32_t n_min) : capacity_max(power_of_two(n_max)), n_gram(n_min) {}

    // all of them, or none if it throws
    void append(int32_t n, const int32_t * token) {
        grow(n);
        for (int32_t i = 0; i < n; ++i) {
            push(token[i]);
        }
    }

    void end_history() {
        if (size() > 0 && token_at(end - 1) != END) {
            append(1, &END);
        }
    }

    void clear() {
        begin = end = 0;
        index_all();
    }

    int32_t find(int32_t n, const int32_t * token, int32_t n_draft, int32_t * draft, int32_t * n_match) const {
        // the tokens to find, as far as they are compared
        int32_t       own[PYMTP_LOOKUP_MATCH_MAX];
        const bool    is_own   = token == nullptr;
        const int32_t n_suffix = std::min<int32_t>(is_own ? size() : n, PYMTP_LOOKUP_MATCH_MAX);
        if (n_suffix < n_gram || size() <= n_gram) {
            return 0;
        }
        for (int32_t i = 0; is_own && i < n_suffix; ++i) {
            own[i] = token_at(end - n_suffix + i);
        }
        const int32_t best = find_best(n_suffix, is_own ? own : token + n - n_suffix, n_match);
        if (best == NONE) {
            return 0;
        }
        int32_t n_found = 0;
        for (int32_t from = best + 1; n_found < n_draft && (from < end || is_own); ++from) {
            const int32_t next = from < end ? token_at(from) : draft[from - end];
            if (next == END) {
                break;
            }
            draft[n_found++] = next;
        }
        return n_found;
    }

    int32_t size() const { return end - begin; }

    int64_t bytes() const {
        return sizeof(*this) + (tokens.capacity() + previous.capacity() + latest.capacity()) * sizeof(int32_t);
    }

  private:
    // A position is the number of a token since the index was empty. It lives in a place of the ring, as long as
    // begin <= position < end.
    int32_t begin = 0;
    int32_t end   = 0;

    const int32_t capacity_max; // powers of two, both
    int32_t       capacity = 0;
    const int32_t n_gram;

    std::vector<int32_t> tokens;   // [capacity]; END at the end of a history
    std::vector<int32_t> previous; // [capacity] by place: where an n-gram with the same hash ended before, or NONE

    // [2 * capacity] by hash: the last position of the latest n-gram with it, or NONE. Only n-grams that a token follows
    // are there.
    std::vector<int32_t> latest;

    int32_t token_at(int32_t pos) const { return tokens[pos & (capacity - 1)]; }

    bool is_whole(int32_t pos) const { return pos - n_gram + 1 >= begin; }

    // makes room for n more tokens, as far as it may
    void grow(int32_t n) {
        const int32_t wanted = std::min(power_of_two((int64_t) size() + n), capacity_max);
        if (wanted <= capacity) {
            return;
        }
        // nothing was dropped so far, so that positions begin at 0
        std::vector<int32_t> new_latest(2 * (size_t) wanted);
        tokens.reserve(wanted);
        previous.reserve(wanted);
        tokens.resize(wanted);
        previous.resize(wanted);
        latest.swap(new_latest);
        capacity = wanted;
        index_all();
    }

    void push(int32_t token) {
        if (end == INT32_MAX) {
            clear(); // there are no more numbers
        }
        if (token != END && size() > 0) {
            index(end - 1);
        }
        tokens[end++ & (capacity - 1)] = token;
        begin                          = std::max(begin, end - capacity);
    }

    size_t place_of(const int32_t * gram) const { return hash(gram, n_gram) & (latest.size() - 1); }

    // the n-gram that ends at a position
    void index(int32_t pos) {
        int32_t gram[PYMTP_LOOKUP_MIN_MAX];
        if (!is_whole(pos)) {
            return;
        }
        for (int32_t i = 0; i < n_gram; ++i) {
            gram[i] = token_at(pos - n_gram + 1 + i);
            if (gram[i] == END) {
                return;
            }
        }
        previous[pos & (capacity - 1)] = std::exchange(latest[place_of(gram)], pos);
    }

    void index_all() {
        std::fill(latest.begin(), latest.end(), NONE);
        for (int32_t pos = begin; pos + 1 < end; ++pos) {
            if (token_at(pos + 1) != END) {
                index(pos);
            }
        }
    }

    // The last position of the longest match with a suffix, the latest of equal ones, or NONE.
    int32_t find_best(int32_t n_suffix, const int32_t * suffix, int32_t * n_match) const {
        int32_t best   = NONE;
        int32_t n_seen = 0;
        int32_t pos    = latest[place_of(suffix + n_suffix - n_gram)];
        for (; n_seen < PYMTP_LOOKUP_OCCURRENCES && pos != NONE && is_whole(pos);
             pos = previous[pos & (capacity - 1)]) {
            int32_t n_same = 0;
            while (n_same < n_suffix && pos - n_same >= begin && token_at(pos - n_same) != END &&
                   token_at(pos - n_same) == suffix[n_suffix - 1 - n_same]) {
                ++n_same;
            }
            if (n_same < n_gram) {
                continue; // only the hash is the same
            }
            ++n_seen;
            if (n_same > *n_match) {
                *n_match = n_same;
                best     = pos;
            }
            if (n_same == n_suffix) {
                break;
            }
        }
        return best;
    }
};

// --- the C interface

int32_t pymtp_lookup_init(int32_t n_max, int32_t n_min, pymtp_lookup ** lookup) {
    return pymtp_guard([&] {
        pymtp_need(lookup, "the index") = nullptr;
        pymtp_refuse_if(n_max < 1 || n_max > PYMTP_LOOKUP_TOKENS_MAX,
                        "a lookup index of %d tokens: 1 to %d are possible", n_max, PYMTP_LOOKUP_TOKENS_MAX);
        pymtp_refuse_if(n_min < 1 || n_min > PYMTP_LOOKUP_MIN_MAX,
                        "matches of at least %d tokens: 1 to %d are possible", n_min, PYMTP_LOOKUP_MIN_MAX);
        pymtp_give(lookup, std::make_unique<pymtp_lookup>(n_max, n_min));
    });
}

int32_t pymtp_lookup_append(pymtp_lookup * lookup, int32_t n, const int32_t * token) {
    return pymtp_guard(lookup, [&](pymtp_lookup & self) {
        pymtp_need_array(token, n, PYMTP_LOOKUP_TOKENS_MAX, "tokens for a lookup index");
        pymtp_need_tokens(token, n, PYMTP_VOCAB_MAX);
        self.append(n, token);
    });
}

int32_t pymtp_lookup_end(pymtp_lookup * lookup) {
    return pymtp_guard(lookup, [&](pymtp_lookup & self) { self.end_history(); });
}

int32_t pymtp_lookup_clear(pymtp_lookup * lookup) {
    return pymtp_guard(lookup, [&](pymtp_lookup & self) { self.clear(); });
}

int32_t pymtp_lookup_find(const pymtp_lookup * lookup, int32_t n, const int32_t * token, int32_t n_draft,
                          int32_t * draft, int32_t * n_match) {
    return pymtp_guard_or(0, lookup, [&](pymtp_lookup & self) -> int32_t {
        pymtp_need(n_match, "the length of the match") = 0;
        pymtp_need_array(token, token ? n : 0, PYMTP_LOOKUP_TOKENS_MAX, "tokens to look up");
        pymtp_need_array(draft, n_draft, PYMTP_LOOKUP_TOKENS_MAX, "drafts");
        return self.find(n, token, n_draft, draft, n_match);
    });
}

int32_t pymtp_lookup_n_tokens(const pymtp_lookup * lookup) {
    return pymtp_guard_or(0, lookup, [](pymtp_lookup & self) { return self.size(); });
}

int64_t pymtp_lookup_bytes(const pymtp_lookup * lookup) {
    return pymtp_guard_or((int64_t) 0, lookup, [](pymtp_lookup & self) { return self.bytes(); });
}
