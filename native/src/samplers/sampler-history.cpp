#include "sampler-history.h"

#include "llama-vocab.h"

#include <algorithm>

// --- sampler_breakers

// llama.cpp's limits
static constexpr size_t N_TEXT_MAX = 40; // bytes
static constexpr size_t N_TAIL_MAX = 20; // tokens

sampler_breakers::sampler_breakers(const llama_vocab * vocab, const std::vector<std::string> & texts) :
    kind(llama_vocab_n_tokens(vocab), NONE) {
    for (llama_token token = 0; token < (llama_token) kind.size(); ++token) {
        const std::string word = vocab->detokenize({ token }, true);
        for (const auto & text : texts) {
            add(vocab, token, word, text.substr(0, N_TEXT_MAX));
        }
    }
}

void sampler_breakers::add(const llama_vocab * vocab, llama_token token, const std::string & word,
                           const std::string & text) {
    if (word.find(text) != std::string::npos) {
        kind[token] = WHOLE;
        return;
    }
    // the text may begin with the last bytes of the word
    for (size_t n = std::min(word.size(), text.size() - 1); n > 0; --n) {
        if (word.compare(word.size() - n, n, text, 0, n) != 0) {
            continue;
        }
        auto tail = vocab->tokenize(text.substr(n), false);
        tail.resize(std::min(tail.size(), N_TAIL_MAX));

        kind[token] = std::max<uint8_t>(kind[token], tail.empty() ? WHOLE : HEAD);
        n_tail_max  = std::max<int32_t>(n_tail_max, tail.size());
        tails[token].push_back(std::move(tail));
    }
}

int32_t sampler_breakers::match(const std::vector<llama_token> & tokens, int32_t head) const {
    const uint8_t what   = kind[tokens[head]];
    const size_t  n_tail = tokens.size() - 1 - head;
    if (what == NONE) {
        return -1;
    }
    if (n_tail == 0 && what == WHOLE) {
        return 0;
    }
    const auto it = tails.find(tokens[head]);
    if (it != tails.end()) {
        for (const auto & tail : it->second) {
            if (tail.size() == n_tail && std::equal(tail.begin(), tail.end(), tokens.begin() + head + 1)) {
                return n_tail;
            }
        }
    }
    return -1;
}

// --- sampler_history

sampler_history::sampler_history(const params & params, const sampler_breakers * breakers) :
    p(params), breakers(breakers), counts(params.n_vocab, 0), found_at(params.n_repeated != 0 ? params.n_vocab : 0, 0) {
}

void sampler_history::add_count(llama_token token, int32_t n) {
    n_distinct -= counts[token] > 0;
    counts[token] += n;
    n_distinct += counts[token] > 0;
}

uint64_t sampler_history::key() const {
    const uint64_t last   = (uint32_t) tokens.back();
    const bool     is_one = p.allowed < 2 || tokens.size() < 2;
    return is_one ? last | (1ull << 63) : last | ((uint64_t) (uint32_t) tokens[tokens.size() - 2] << 32);
}

void sampler_history::push(llama_token token) {
    tokens.push_back(token);
    if (p.n_penalised != 0) {
        add_count(token, 1);
        if (p.n_penalised > 0 && size() > p.n_penalised) {
            add_count(tokens[size() - 1 - p.n_penalised], -1);
        }
    }
    if (p.n_repeated == 0) {
        return;
    }

    int32_t & last = last_same.try_emplace(key(), -1).first->second;
    same.push_back(last);
    last = size() - 1;

    breaker_end end = ends.empty() ? breaker_end{} : ends.back();
    if (breakers) {
        for (int32_t head = size() - 1; head >= std::max({ 0, end.head, size() - 1 - breakers->n_tail_max }); --head) {
            const int32_t n_tail = breakers->match(tokens, head);
            if (n_tail >= 0) {
                end = { head, n_tail };
                break;
            }
        }
    }
    ends.push_back(end);
}

void sampler_history::pop() {
    if (p.n_repeated != 0) {
        if (same.back() < 0) {
            last_same.erase(key());
        } else {
            last_same[key()] = same.back();
        }
        same.pop_back();
        ends.pop_back();
    }
    if (p.n_penalised != 0) {
        if (p.n_penalised > 0 && size() > p.n_penalised) {
            add_count(tokens[size() - 1 - p.n_penalised], 1);
        }
        add_count(tokens.back(), -1);
    }
    tokens.pop_back();
}

// Whether the token after pos continues what ends at pos, and for how long; as in the match finders of
// compressors, a match that cannot be longer than the best so far is not measured.
void sampler_history::consider(int32_t pos, int32_t first, int32_t cap) {
    const int32_t     last = size() - 1;
    const llama_token next = tokens[pos + 1];
    if (breakers && breakers->is_breaker(next)) {
        return;
    }

    const int32_t at   = found_at[next];
    const int32_t best = at > 0 ? found[at - 1].second : -1;
    if (best >= cap || pos - best < first || (best >= 0 && tokens[pos - best] != tokens[last - best])) {
        return;
    }

    int32_t n = 0;
    while (n < cap && pos - n >= first && tokens[pos - n] == tokens[last - n]) {
        ++n;
    }
    if (n < p.allowed || n <= best) {
        return;
    }
    if (at > 0) {
        found[at - 1].second = n;
    } else {
        found.emplace_back(next, n);
        found_at[next] = found.size();
    }
}

const std::vector<sampler_history::repetition> & sampler_history::repetitions() {
    for (const auto & one : found) {
        found_at[one.first] = 0;
    }
    found.clear();

    const int32_t n    = p.n_repeated < 0 ? size() : std::min(size(), p.n_repeated);
    const int32_t last = size() - 1;
    if (n <= p.allowed || p.n_repeated == 0) {
        return found;
    }

    // what is repeated does not reach over a breaker
    const auto &  end     = ends.back();
    const int32_t n_since = end.head < 0 || last - end.head >= n ? n : last - end.head - end.n_tail;
    if (n_since < p.allowed) {
        return found;
    }

    const int32_t first = size() - n;
    const int32_t cap   = std::min(n_since, p.longest);
    if (p.allowed == 0) {
        for (int32_t pos = last - 1; pos >= first; --pos) {
            consider(pos, first, cap);
        }
    } else {
        for (int32_t pos = same[last]; pos >= first; pos = same[pos]) {
            consider(pos, first, cap);
        }
    }
    return found;
}
