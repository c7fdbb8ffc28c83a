#include "distribution.h"

#include <algorithm>
#include <numeric>

double pymtp_distribution::prob(int32_t token) const {
    const auto found = std::find(tokens.begin(), tokens.end(), token);
    return found == tokens.end() ? 0.0 : probs[found - tokens.begin()];
}

int32_t pymtp_distribution::best() const {
    return probs.empty() ? -1 : std::max_element(probs.begin(), probs.end()) - probs.begin();
}

// the index at a place of the cumulated weights, of which there is at least one; one without weight is never meant
static size_t draw_index(const std::vector<double> & weights, double uniform) {
    const double place = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);

    double cumulated = 0.0;
    for (size_t i = 0; i < weights.size(); ++i) {
        cumulated += weights[i];
        if (place < cumulated) {
            return i;
        }
    }
    return weights.size() - 1;
}

int32_t pymtp_distribution::draw(double uniform) const {
    return probs.empty() ? -1 : tokens[draw_index(probs, uniform)];
}

// Calls a function with the probability of each of one's tokens and that of the same token in the other, in order.
template <typename F>
static void for_both(const pymtp_distribution & one, const pymtp_distribution & other, F && function) {
    // by token, and 0 between two calls: vocabularies are large and distributions mostly small
    thread_local std::vector<double> other_probs;

    const auto & tokens = other.tokens;
    if (!tokens.empty()) {
        const size_t n = *std::max_element(tokens.begin(), tokens.end()) + 1;
        other_probs.resize(std::max(other_probs.size(), n));
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
        other_probs[tokens[i]] = other.probs[i];
    }
    for (size_t i = 0; i < one.tokens.size(); ++i) {
        const size_t token = one.tokens[i];
        function(one.probs[i], token < other_probs.size() ? other_probs[token] : 0.0);
    }
    for (const int32_t token : tokens) {
        other_probs[token] = 0.0;
    }
}

double pymtp_distribution::overlap(const pymtp_distribution & other) const {
    double sum = 0.0;
    for_both(*this, other, [&](double a, double b) { sum += std::min(a, b); });
    return sum;
}

double pymtp_distribution::residual_mass(const pymtp_distribution & source, double weight) const {
    double sum = 0.0;
    for_both(*this, source, [&](double t, double s) { sum += std::max(weight * t - s, 0.0); });
    return sum;
}

int32_t pymtp_distribution::sample_residual(const pymtp_distribution & source, double weight, double uniform) const {
    thread_local std::vector<double> residual;

    residual.clear();
    for_both(*this, source, [&](double t, double s) { residual.push_back(std::max(weight * t - s, 0.0)); });
    // they are the same but for rounding
    const bool is_nothing = std::all_of(residual.begin(), residual.end(), [](double r) { return r == 0.0; });
    return is_nothing ? draw(uniform) : tokens[draw_index(residual, uniform)];
}
