#include "lookup.h"

#include "pymtp-lookup.h"

#include <algorithm>

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

pymtp_lookup::pymtp_lookup(int32_t n_max, int32_t n_min) : capacity_max(power_of_two(n_max)), n_gram(n_min) {}

void pymtp_lookup::append(int32_t n, const int32_t * token) {
    grow(n);
    for (int32_t i = 0; i < n; ++i) {
        push(token[i]);
    }
}

void pymtp_lookup::end_history() {
    if (size() > 0 && token_at(end - 1) != END) {
        grow(1);
        push(END);
    }
}

void pymtp_lookup::clear() {
    begin = end = 0;
    n_taken     = 0;
    std::fill(latest.begin(), latest.end(), NONE);
}

int64_t pymtp_lookup::bytes() const {
    return sizeof(*this) + (tokens.capacity() + previous.capacity() + latest.capacity()) * sizeof(int32_t);
}

// makes room for n more tokens, as far as it may
void pymtp_lookup::grow(int32_t n) {
    const int32_t wanted = std::min(power_of_two((int64_t) size() + n), capacity_max);
    if (wanted <= capacity) {
        return;
    }
    std::vector<int32_t> new_tokens(wanted);
    std::vector<int32_t> new_previous(wanted);
    std::vector<int32_t> new_latest(2 * (size_t) wanted);

    // nothing was dropped so far, so that positions begin at 0
    std::copy(tokens.begin(), tokens.begin() + size(), new_tokens.begin());
    tokens.swap(new_tokens);
    previous.swap(new_previous);
    latest.swap(new_latest);
    capacity = wanted;
    index_all();
}

void pymtp_lookup::push(int32_t token) {
    if (end == 4 * capacity_max) {
        move_back();
    } else if (n_taken > latest.size() / 4 * 3) {
        // at most half of the places is taken by what is still there
        index_all();
    }
    if (token != END && size() > 0) {
        index(end - 1);
    }
    token_at(end++) = token;
    begin           = std::max(begin, end - capacity);
}

// numbers the positions from 0 on; their places stay
void pymtp_lookup::move_back() {
    const int32_t n = begin & ~(capacity - 1);
    begin -= n;
    end -= n;
    index_all();
}

// The place of an n-gram in `latest`, or the one that it would take.
size_t pymtp_lookup::place_of(const int32_t * gram) const {
    const size_t mask = latest.size() - 1;

    size_t place = hash(gram, n_gram) & mask;
    for (; latest[place] != NONE; place = (place + 1) & mask) {
        const int32_t pos = latest[place];
        if (!is_whole(pos)) {
            continue;
        }
        int32_t i = 0;
        while (i < n_gram && token_at(pos - n_gram + 1 + i) == gram[i]) {
            ++i;
        }
        if (i == n_gram) {
            break;
        }
    }
    return place;
}

// the n-gram that ends at a position
void pymtp_lookup::index(int32_t pos) {
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
    const size_t place             = place_of(gram);
    previous[pos & (capacity - 1)] = latest[place];
    if (latest[place] == NONE) {
        ++n_taken;
    }
    latest[place] = pos;
}

void pymtp_lookup::index_all() {
    std::fill(latest.begin(), latest.end(), NONE);
    n_taken = 0;
    for (int32_t pos = begin; pos + 1 < end; ++pos) {
        if (token_at(pos + 1) != END) {
            index(pos);
        }
    }
}

int32_t pymtp_lookup::find(int32_t n, const int32_t * token, int32_t n_draft, int32_t * draft,
                           int32_t * n_match) const {
    *n_match = 0;

    // the tokens to find, as far as they are compared
    int32_t       own[PYMTP_LOOKUP_MATCH_MAX];
    const bool    is_own   = token == nullptr;
    const int32_t n_suffix = std::min<int32_t>(is_own ? size() : n, PYMTP_LOOKUP_MATCH_MAX);
    if (n_suffix < n_gram || size() <= n_gram) {
        return 0;
    }
    if (is_own) {
        for (int32_t i = 0; i < n_suffix; ++i) {
            own[i] = token_at(end - n_suffix + i);
        }
    }
    const int32_t * suffix = is_own ? own : token + n - n_suffix;

    int32_t best = NONE;
    int32_t pos  = latest[place_of(suffix + n_suffix - n_gram)];
    for (int32_t i = 0; i < PYMTP_LOOKUP_OCCURRENCES && pos != NONE && is_whole(pos); ++i) {
        int32_t n_same = n_gram;
        while (n_same < n_suffix && pos - n_same >= begin && token_at(pos - n_same) != END &&
               token_at(pos - n_same) == suffix[n_suffix - 1 - n_same]) {
            ++n_same;
        }
        if (n_same > *n_match) {
            *n_match = n_same;
            best     = pos;
        }
        if (n_same == n_suffix) {
            break;
        }
        pos = previous[pos & (capacity - 1)];
    }
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
