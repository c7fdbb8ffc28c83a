// The lookup index against a search through all tokens.

#include "check.h"
#include "pymtp-text.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

typedef std::vector<int32_t> tokens_t;

static constexpr int32_t END = -1;

struct index_t {
    pymtp_lookup * lookup = nullptr;

    index_t(int32_t n_max, int32_t n_min) { CHECK_EQUAL(pymtp_lookup_init(n_max, n_min, &lookup), PYMTP_OK); }

    index_t(const index_t &) = delete;

    ~index_t() { pymtp_free(lookup); }

    void append(const tokens_t & tokens) const {
        CHECK_EQUAL(pymtp_lookup_append(lookup, tokens.size(), tokens.data()), PYMTP_OK);
    }

    // what followed, and the length of the match before it
    tokens_t find(int32_t n_draft, const tokens_t * suffix = nullptr) const {
        tokens_t found(n_draft + 1);
        int32_t  n_match = -1;
        found.resize(pymtp_lookup_find(lookup, suffix ? suffix->size() : 0, suffix ? suffix->data() : nullptr, n_draft,
                                       found.data(), &n_match));
        found.push_back(n_match);
        return found;
    }
};

// What `find` promises, in what an index of n_max tokens has left of `history`.
static tokens_t expected(const tokens_t & history, size_t n_max, int32_t n_min, int32_t n_draft,
                         const tokens_t * suffix = nullptr) {
    const tokens_t   kept(history.end() - std::min(history.size(), n_max), history.end());
    const tokens_t & text       = suffix ? *suffix : kept;
    const int32_t    n          = kept.size();
    int32_t          best       = -1;
    int32_t          n_max_same = 0;
    int32_t          n_seen     = 0;
    for (int32_t pos = n - 2; pos >= 0 && n_seen < PYMTP_LOOKUP_OCCURRENCES; --pos) {
        int32_t n_same = 0;
        while (n_same < PYMTP_LOOKUP_MATCH_MAX && n_same <= pos && n_same < (int32_t) text.size() &&
               kept[pos - n_same] != END && kept[pos - n_same] == text[text.size() - 1 - n_same]) {
            ++n_same;
        }
        if (n_same < n_min || kept[pos + 1] == END) {
            continue;
        }
        ++n_seen;
        if (n_same > n_max_same) {
            n_max_same = n_same;
            best       = pos;
        }
    }
    tokens_t found;
    for (int32_t i = best + 1; best >= 0 && (int32_t) found.size() < n_draft; ++i) {
        if (i >= n && suffix) {
            break;
        }
        const int32_t next = i < n ? kept[i] : found[i - n];
        if (next == END) {
            break;
        }
        found.push_back(next);
    }
    found.push_back(n_max_same);
    return found;
}

static std::mt19937 rng(1);

static int32_t random_below(int32_t n) {
    return rng() % n;
}

// random tokens of an alphabet, and now and then some of what there was before
static tokens_t random_text(int32_t n, int32_t n_letters, bool repeats) {
    tokens_t text;
    while ((int32_t) text.size() < n) {
        if (repeats && !text.empty() && random_below(20) == 0) {
            const int32_t from = random_below(text.size());
            const int32_t len  = 1 + random_below(100);
            for (int32_t i = 0; i < len; ++i) {
                text.push_back(text[from + i]); // also what is just being written
            }
        } else {
            text.push_back(random_below(n_letters));
        }
    }
    text.resize(n);
    return text;
}

static void it_finds_what_a_search_through_the_history_finds() {
    for (const int32_t n_letters : { 1, 2, 5, 50, 5000 }) {
        for (const bool repeats : { false, true }) {
            for (const int32_t n_min : { 1, 2, 3, 6 }) {
                const tokens_t text = random_text(700, n_letters, repeats);
                const index_t  index(1 << 20, n_min);
                tokens_t       history;
                for (const int32_t token : text) {
                    index.append({ token });
                    history.push_back(token);
                    CHECK(index.find(9) == expected(history, 1 << 20, n_min, 9));
                }
            }
        }
    }
}

static void it_is_the_same_whether_tokens_come_one_by_one_or_together() {
    const tokens_t text = random_text(3000, 20, true);
    const index_t  one(1 << 20, 3);
    const index_t  other(1 << 20, 3);
    for (size_t i = 0; i < text.size();) {
        const size_t n = std::min<size_t>(1 + random_below(200), text.size() - i);
        other.append(tokens_t(text.begin() + i, text.begin() + i + n));
        for (; n > 0 && pymtp_lookup_n_tokens(one.lookup) < pymtp_lookup_n_tokens(other.lookup); ++i) {
            one.append({ text[i] });
        }
        CHECK(one.find(8) == other.find(8));
    }
    CHECK_EQUAL(pymtp_lookup_n_tokens(one.lookup), 3000);
}

static void the_oldest_tokens_are_dropped_and_the_memory_stays() {
    for (const int32_t n_letters : { 2, 30, 100000 }) {
        const index_t  index(128, 3);
        const tokens_t text = random_text(128 * 12, n_letters, true);
        tokens_t       history;
        int64_t        n_bytes = 0;
        for (const int32_t token : text) {
            index.append({ token });
            history.push_back(token);
            CHECK(index.find(9) == expected(history, 128, 3, 9));
            if (history.size() == 128) {
                n_bytes = pymtp_lookup_bytes(index.lookup);
            }
        }
        CHECK_EQUAL(pymtp_lookup_n_tokens(index.lookup), 128);
        CHECK_EQUAL(pymtp_lookup_bytes(index.lookup), n_bytes);
        CHECK(n_bytes < 128 * 16 + 1024);

        // more at a time than there is room for
        index.append(text);
        CHECK(index.find(9) == expected(text, 128, 3, 9));
    }
}

static void a_store_of_histories_is_searched_for_the_tokens_of_another() {
    for (const int32_t n_max : { 256, 1 << 16 }) {
        const index_t store(n_max, 3);
        tokens_t      all;
        for (int32_t i = 0; i < 60; ++i) {
            const tokens_t text = random_text(1 + random_below(80), 6, true);
            store.append(text);
            all.insert(all.end(), text.begin(), text.end());
            for (int32_t k = 0; k < 20; ++k) {
                const tokens_t suffix = random_text(1 + random_below(90), 6, true);
                CHECK(store.find(9, &suffix) == expected(all, n_max, 3, 9, &suffix));
            }
            const tokens_t suffix(all.begin() + random_below(all.size()), all.end());
            CHECK(store.find(9, &suffix) == expected(all, n_max, 3, 9, &suffix));
            CHECK(store.find(9) == expected(all, n_max, 3, 9));
            CHECK_EQUAL(pymtp_lookup_end(store.lookup), PYMTP_OK);
            CHECK_EQUAL(pymtp_lookup_end(store.lookup), PYMTP_OK); // once is enough
            all.push_back(END);
        }
        CHECK_EQUAL(pymtp_lookup_n_tokens(store.lookup), std::min<int32_t>(all.size(), n_max));
    }
}

static void no_match_crosses_the_end_of_a_history() {
    const index_t store(1000, 2);
    store.append({ 1, 2, 3 });
    CHECK_EQUAL(pymtp_lookup_end(store.lookup), PYMTP_OK);
    store.append({ 4, 5, 6 });
    const tokens_t across = { 3, 4 }, ended = { 2, 3 }, first = { 1, 2 }, other = { 4, 5 };
    CHECK(store.find(5, &across) == tokens_t{ 0 });
    CHECK(store.find(5, &ended) == tokens_t{ 0 });
    CHECK(store.find(5, &first) == (tokens_t{ 3, 2 }));
    CHECK(store.find(5, &other) == (tokens_t{ 6, 2 }));
}

static void what_repeats_is_continued_beyond_its_end() {
    const index_t index(1000, 2);
    index.append({ 1, 2, 3, 1, 2, 3, 1, 2 });
    CHECK(index.find(7) == (tokens_t{ 3, 1, 2, 3, 1, 2, 3, 5 }));
}

static void a_cleared_index_is_empty() {
    const index_t index(1000, 2);
    index.append({ 1, 2, 3, 1, 2 });
    pymtp_lookup_clear(index.lookup);
    CHECK(index.find(3) == tokens_t{ 0 });
    CHECK_EQUAL(pymtp_lookup_n_tokens(index.lookup), 0);
    index.append({ 1, 2 });
    CHECK(index.find(3) == tokens_t{ 0 });
    index.append({ 5, 1, 2 });
    CHECK(index.find(2) == (tokens_t{ 5, 1, 2 }));
}

static void what_is_not_possible_is_refused_and_changes_nothing() {
    pymtp_lookup * none = nullptr;
    CHECK_EQUAL(pymtp_lookup_init(0, 3, &none), PYMTP_INVALID);
    CHECK_EQUAL(pymtp_lookup_init(PYMTP_LOOKUP_TOKENS_MAX + 1, 3, &none), PYMTP_INVALID);
    CHECK_EQUAL(pymtp_lookup_init(10, 0, &none), PYMTP_INVALID);
    CHECK_EQUAL(pymtp_lookup_init(10, PYMTP_LOOKUP_MIN_MAX + 1, &none), PYMTP_INVALID);
    CHECK(none == nullptr);

    const index_t  index(1000, 2);
    const tokens_t wrong = { 1, 2, -1 }, large = { PYMTP_VOCAB_MAX };
    CHECK_EQUAL(pymtp_lookup_append(index.lookup, 3, wrong.data()), PYMTP_INVALID);
    CHECK_EQUAL(pymtp_lookup_append(index.lookup, 1, large.data()), PYMTP_INVALID);
    CHECK_EQUAL(pymtp_lookup_append(index.lookup, -1, wrong.data()), PYMTP_INVALID);
    CHECK_EQUAL(pymtp_lookup_n_tokens(index.lookup), 0);
    CHECK(index.find(3) == tokens_t{ 0 });
    CHECK(index.find(3, &wrong) == tokens_t{ 0 });
}

int main() {
    RUN(it_finds_what_a_search_through_the_history_finds);
    RUN(it_is_the_same_whether_tokens_come_one_by_one_or_together);
    RUN(the_oldest_tokens_are_dropped_and_the_memory_stays);
    RUN(a_store_of_histories_is_searched_for_the_tokens_of_another);
    RUN(no_match_crosses_the_end_of_a_history);
    RUN(what_repeats_is_continued_beyond_its_end);
    RUN(a_cleared_index_is_empty);
    RUN(what_is_not_possible_is_refused_and_changes_nothing);
    return g_n_failed > 0;
}
