#include "sampler-memory.h"

#include <algorithm>
#include <vector>

// Tokens of a text, of all at most: llama.cpp takes memory for as many at once.
static constexpr int32_t N_TOKENS_MAX = 1 << 17;

static int32_t window_of(int32_t last_n) {
    return last_n < 0 ? N_TOKENS_MAX : std::min(last_n, N_TOKENS_MAX);
}

llama_sampler_ptr sampler_make_penalties(int32_t n_vocab, const pymtp_sampler_params & params) {
    return llama_sampler_ptr(llama_sampler_init_penalties(
        n_vocab, window_of(params.penalty_last_n), params.penalty_repeat, params.penalty_freq, params.penalty_present));
}

llama_sampler_ptr sampler_make_dry(const llama_vocab * vocab, const pymtp_sampler_params & params) {
    std::vector<const char *> breakers(params.breakers, params.breakers + params.n_breakers);
    return llama_sampler_ptr(llama_sampler_init_dry(vocab, params.dry_multiplier, params.dry_base,
                                                    params.dry_allowed_length, window_of(params.dry_penalty_last_n),
                                                    breakers.data(), breakers.size()));
}

void sampler_memory::accept(llama_token token) {
    for (auto * one : { penalties.get(), dry.get() }) {
        if (one) {
            llama_sampler_accept(one, token);
        }
    }
}

sampler_memory sampler_memory::clone() const {
    sampler_memory copy;
    copy.penalties.reset(penalties ? llama_sampler_clone(penalties.get()) : nullptr);
    copy.dry.reset(dry ? llama_sampler_clone(dry.get()) : nullptr);
    return copy;
}
