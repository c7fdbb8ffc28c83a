#include "sampler-chain.h"

#include <algorithm>
#include <cmath>

// --- arrays of candidates

static bool is_higher(const llama_token_data & a, const llama_token_data & b) {
    return a.logit > b.logit;
}

static float highest_logit(const llama_token_data_array & array) {
    return array.sorted ? array.data[0].logit : std::min_element(array.data, array.data + array.size, is_higher)->logit;
}

static void sort_by_id(llama_token_data_array & array) {
    std::sort(array.data, array.data + array.size,
              [](const llama_token_data & a, const llama_token_data & b) { return a.id < b.id; });
    array.sorted = false;
}

// without those that cannot be, but for one if all cannot
static void drop_impossible(llama_token_data_array & array) {
    auto * end = std::remove_if(array.data, array.data + array.size, sampler_cannot_be);
    array.size = std::max<size_t>(end - array.data, 1);
}

// Fills in the probabilities of an array of logits, in its order.
static void softmax(llama_token_data_array & array) {
    const float highest = highest_logit(array);

    double sum = 0.0;
    for (size_t i = 0; i < array.size; ++i) {
        // the highest may be infinite: low temperatures can do that
        array.data[i].p = array.data[i].logit == highest ? 1.0f : expf(array.data[i].logit - highest);
        sum += array.data[i].p;
    }
    for (size_t i = 0; i < array.size; ++i) {
        array.data[i].p /= sum;
    }
}

size_t sampler_draw(const llama_token_data_array & array, std::mt19937 & rng) {
    const double target = std::uniform_real_distribution<double>(0.0, 1.0)(rng);

    double sum = 0.0;
    for (size_t i = 0; i < array.size; ++i) {
        sum += array.data[i].p;
        if (sum >= target) {
            return i;
        }
    }
    return array.size - 1;
}

// --- building a chain

sampler_chain::sampler_chain(int32_t n_vocab, const llama_vocab * vocab, const pymtp_sampler_params & params) :
    n_vocab(n_vocab), vocab(vocab), params(params) {
    biases.resize(params.n_bias > 0 ? n_vocab : 0);
    for (int32_t i = 0; i < params.n_bias; ++i) {
        biases[params.bias_token[i]] = params.bias[i];
    }
    if (params.mirostat != 0) {
        stages.push_back({ PYMTP_STAGE_TEMPERATURE, llama_sampler_ptr(llama_sampler_init_temp(params.temp)) });
        picker.reset(
            params.mirostat == 1 ?
                llama_sampler_init_mirostat(n_vocab, params.seed, params.mirostat_tau, params.mirostat_eta, 100) :
                llama_sampler_init_mirostat_v2(params.seed, params.mirostat_tau, params.mirostat_eta));
    } else {
        for (int32_t i = 0; i < params.n_stages; ++i) {
            init_stage(i);
        }
    }
    find_cut();
}

// whether penalties, DRY, XTC or typical sampling do something
static bool stage_acts(const pymtp_sampler_params & params, int32_t kind) {
    switch (kind) {
        case PYMTP_STAGE_PENALTIES:
            return params.penalty_last_n != 0 &&
                   (params.penalty_repeat != 1.0f || params.penalty_freq != 0.0f || params.penalty_present != 0.0f);
        case PYMTP_STAGE_DRY:
            return params.dry_multiplier != 0.0f && params.dry_base >= 1.0f && params.dry_penalty_last_n != 0;
        case PYMTP_STAGE_XTC:
            return params.xtc_probability > 0.0f && params.xtc_threshold <= 0.5f;
        case PYMTP_STAGE_TYP_P:
            return params.typ_p < 1.0f;
        default:
            return true;
    }
}

// Whether after stage i the most likely token is taken in the end, and stays the most likely one until then.
static bool is_greedy_after(const pymtp_sampler_params & params, int32_t i) {
    const auto * const end     = params.stages + params.n_stages;
    const auto         follows = [&](int32_t other) {
        return stage_acts(params, other) && std::find(params.stages + i + 1, end, other) != end;
    };
    return params.temp <= 0.0f && params.dynatemp_range <= 0.0f && follows(PYMTP_STAGE_TEMPERATURE) &&
           !follows(PYMTP_STAGE_PENALTIES) && !follows(PYMTP_STAGE_DRY) && !follows(PYMTP_STAGE_XTC) &&
           !follows(PYMTP_STAGE_TYP_P) && !follows(PYMTP_STAGE_INFILL);
}

void sampler_chain::init_stage(int32_t i) {
    const int32_t kind      = params.stages[i];
    const size_t  min_keep  = params.min_keep;
    const bool    is_greedy = is_greedy_after(params, i);

    const auto add_if = [&](bool does_something, auto create) {
        if (does_something) {
            stages.push_back({ kind, llama_sampler_ptr(create()) });
        }
    };
    switch (kind) {
        case PYMTP_STAGE_PENALTIES:
        case PYMTP_STAGE_DRY:
        case PYMTP_STAGE_XTC:
            return add_if(stage_acts(params, kind), [] { return (llama_sampler *) nullptr; });
        case PYMTP_STAGE_TOP_N_SIGMA:
            return add_if(params.top_n_sigma > 0.0f && !is_greedy,
                          [&] { return llama_sampler_init_top_n_sigma(params.top_n_sigma); });
        case PYMTP_STAGE_TOP_K:
            return add_if(params.top_k > 0 && !is_greedy, [&] { return llama_sampler_init_top_k(params.top_k); });
        case PYMTP_STAGE_TYP_P:
            return add_if(stage_acts(params, kind), [&] { return llama_sampler_init_typical(params.typ_p, min_keep); });
        case PYMTP_STAGE_TOP_P:
            return add_if(params.top_p < 1.0f && !is_greedy,
                          [&] { return llama_sampler_init_top_p(params.top_p, min_keep); });
        case PYMTP_STAGE_MIN_P:
            return add_if(params.min_p > 0.0f && !is_greedy,
                          [&] { return llama_sampler_init_min_p(params.min_p, min_keep); });
        case PYMTP_STAGE_TEMPERATURE:
            return add_if(params.temp != 1.0f || params.dynatemp_range > 0.0f, [&] {
                return llama_sampler_init_temp_ext(params.temp, params.dynatemp_range, params.dynatemp_exponent);
            });
        case PYMTP_STAGE_INFILL:
            return add_if(true, [&] { return llama_sampler_init_infill(vocab); });
        case PYMTP_STAGE_ADAPTIVE_P:
            picker.reset(llama_sampler_init_adaptive_p(params.adaptive_target, params.adaptive_decay, params.seed));
            return;
        default:
            GGML_ABORT("unknown stage %d", kind);
    }
}

void sampler_chain::find_cut() {
    raises = std::any_of(biases.begin(), biases.end(), [](float bias) { return bias > 0.0f; });
    n_cut  = 0;

    const bool only_scales = params.mirostat == 0 && params.dynatemp_range <= 0.0f; // the temperature
    for (i_cut = 0; i_cut < stages.size(); ++i_cut) {
        const int32_t kind = stages[i_cut].kind;
        if (kind == PYMTP_STAGE_PENALTIES) {
            raises |= params.penalty_repeat < 1.0f || params.penalty_freq < 0.0f || params.penalty_present < 0.0f;
        } else if (kind == PYMTP_STAGE_DRY) {
            raises |= params.dry_multiplier < 0.0f;
        } else if (kind != PYMTP_STAGE_TEMPERATURE || !only_scales || !(params.temp > 0.0f)) {
            break;
        }
    }
    const int32_t kind = i_cut < stages.size() ? stages[i_cut].kind : -1;
    if (kind == PYMTP_STAGE_TEMPERATURE && only_scales) {
        n_cut = 1;
    } else if (kind == PYMTP_STAGE_TOP_K) {
        n_cut = params.top_k;
    } else if (kind != PYMTP_STAGE_MIN_P || params.min_keep > 1) {
        i_cut = stages.size();
    }
}

// --- applying it

// of a chain that keeps what is above a threshold: most texts have fewer
static constexpr int32_t N_ABOVE = 128;

// Tokens that penalties and DRY may lower. Penalties count the last 64 by default; repetitions are few.
static constexpr int32_t N_LOWERED = 64;

int32_t sampler_chain::n_lowered_max() const {
    const bool has_some = std::any_of(stages.begin(), stages.begin() + i_cut, [](const stage & one) {
        return one.kind == PYMTP_STAGE_PENALTIES || one.kind == PYMTP_STAGE_DRY;
    });
    return has_some ? N_LOWERED : 0;
}

int32_t sampler_chain::n_candidates() const {
    if (i_cut == stages.size() || raises) {
        return 0;
    }
    // a top_k can be as large as its type allows
    const int64_t n = (n_cut > 0 ? n_cut : N_ABOVE) + (int64_t) params.n_bias + n_lowered_max();
    return (int32_t) std::min<int64_t>(n, INT32_MAX);
}

// Returns whether the logits are finite: -inf is, unless all are. NaN has no place in an order.
bool sampler_chain::take(const llama_token * ids, const float * logits, int32_t n, bool sorted) {
    bool is_odd   = false; // without a branch: a row has many
    bool has_some = false;
    buffer.resize(n);
    for (int32_t i = 0; i < n; ++i) {
        buffer[i] = { ids ? ids[i] : i, logits[i], 0.0f };
        is_odd |= !(logits[i] < INFINITY);
        has_some |= logits[i] > -INFINITY;
    }
    cur = { buffer.data(), buffer.size(), -1, sorted };
    return has_some && !is_odd;
}

// Tokens of a text, of all at most: llama.cpp takes memory for as many at once.
static constexpr int32_t N_TOKENS_MAX = 1 << 17;

static int32_t window_of(int32_t last_n) {
    return last_n < 0 ? N_TOKENS_MAX : std::min(last_n, N_TOKENS_MAX);
}

llama_sampler_ptr sampler_chain::make_memory(llama_sampler_ptr dry) const {
    llama_sampler_ptr         res(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    std::vector<const char *> breakers(params.breakers, params.breakers + params.n_breakers);
    for (const auto & one : stages) {
        if (one.kind == PYMTP_STAGE_PENALTIES) {
            llama_sampler_chain_add(res.get(), llama_sampler_init_penalties(n_vocab, window_of(params.penalty_last_n),
                                                                            params.penalty_repeat, params.penalty_freq,
                                                                            params.penalty_present));
        } else if (one.kind == PYMTP_STAGE_DRY) {
            llama_sampler * found =
                dry ? dry.release() :
                      llama_sampler_init_dry(vocab, params.dry_multiplier, params.dry_base, params.dry_allowed_length,
                                             window_of(params.dry_penalty_last_n), breakers.data(), breakers.size());
            llama_sampler_chain_add(res.get(), found);
        }
    }
    return res;
}

bool sampler_chain::apply(const sampler_row & row, llama_sampler * memory, std::mt19937 & xtc_rng,
                          const sampler_filter & filter) {
    const int32_t n = n_candidates();

    // a selection that leaves little out is slower than none
    if (n > 0 && n < row.n_tokens / 4) {
        std::vector<int32_t> ids(n);
        std::vector<float>   values(n);
        row.highest(n, ids.data(), values.data());
        if (!take(ids.data(), values.data(), n, true)) {
            return false;
        }
        if (run(memory, xtc_rng, filter, true)) {
            return true;
        }
    }
    if (!take(row.tokens, row.logits(), row.n_tokens, false)) {
        return false;
    }
    return run(memory, xtc_rng, filter, false);
}

// Returns how many candidates it changes.
static int32_t apply_and_count(llama_sampler * sampler, llama_token_data_array & array) {
    const std::vector<llama_token_data> before(array.data, array.data + array.size);
    llama_sampler_apply(sampler, &array);
    int32_t n = 0;
    for (size_t i = 0; i < array.size; ++i) {
        n += array.data[i].logit != before[i].logit;
    }
    return n;
}

// false: the candidates were too few
bool sampler_chain::run(llama_sampler * memory, std::mt19937 & xtc_rng, const sampler_filter & filter, bool is_pruned) {
    int32_t n_lowered = 0;
    int32_t i_memory  = 0;

    float floor = is_pruned ? cur.data[cur.size - 1].logit : 0.0f; // none of the others is above it

    if (filter) {
        filter.apply(cur);
        if (is_pruned && std::any_of(cur.data, cur.data + cur.size, sampler_cannot_be)) {
            return false;
        }
    }
    add_bias();
    for (size_t i = 0; i < stages.size(); ++i) {
        if (is_pruned && i == i_cut &&
            (n_cut > 0 ? n_lowered > n_lowered_max() : !(floor < highest_logit(cur) + logf(params.min_p)))) {
            return false;
        }
        const int32_t kind = stages[i].kind;
        if (kind == PYMTP_STAGE_PENALTIES || kind == PYMTP_STAGE_DRY) {
            n_lowered += apply_and_count(llama_sampler_chain_get(memory, i_memory++), cur);
            continue;
        }
        if (kind == PYMTP_STAGE_XTC) {
            exclude_top(xtc_rng);
            continue;
        }
        if (kind == PYMTP_STAGE_TYP_P) {
            drop_impossible(cur); // they have no logarithm
        }
        floor /= kind == PYMTP_STAGE_TEMPERATURE ? params.temp : 1.0f;
        llama_sampler_apply(stages[i].sampler.get(), &cur);
        if (kind == PYMTP_STAGE_MIN_P && is_pruned && i == i_cut) {
            sort_by_id(cur); // as it leaves a whole row; the order decides what is drawn
        }
    }
    blocked = std::all_of(cur.data, cur.data + cur.size, sampler_cannot_be);
    if (picker && !blocked) {
        llama_sampler_apply(picker.get(), &cur);
    } else {
        drop_impossible(cur);
        softmax(cur);
    }
    return true;
}

void sampler_chain::accept(llama_token token) {
    if (picker) {
        llama_sampler_accept(picker.get(), token);
    }
}

// --- the stages that are our own

void sampler_chain::add_bias() {
    if (biases.empty()) {
        return;
    }
    for (size_t i = 0; i < cur.size; ++i) {
        cur.data[i].logit += biases[cur.data[i].id];
    }
    cur.sorted = false;
}

// XTC: now and then all tokens above a threshold but the least likely of them; never all that can be
void sampler_chain::exclude_top(std::mt19937 & rng) {
    if (cur.size < 2 || std::uniform_real_distribution<float>(0.0f, 1.0f)(rng) > params.xtc_probability) {
        return;
    }
    if (!cur.sorted) {
        std::sort(cur.data, cur.data + cur.size, is_higher);
        cur.sorted = true;
    }
    softmax(cur);

    size_t n = 0;
    while (n < cur.size && cur.data[n].p >= params.xtc_threshold && !sampler_cannot_be(cur.data[n])) {
        ++n;
    }
    if (n > 1 && cur.size - (n - 1) >= (size_t) params.min_keep) {
        cur.data += n - 1;
        cur.size -= n - 1;
    }
}
