// pymtp: the C interface of distributions, which is what a chain of samplers leaves of a vocabulary. All of it is
// arithmetic on tokens and their probabilities: what it is good for is decided in Python.
//
// For failures, handles and threads see pymtp.h. Functions that return something else than a status return what is said
// with them for an invalid handle.

#ifndef PYMTP_DISTRIBUTION_H
#define PYMTP_DISTRIBUTION_H

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// cffi reads what is between the two markers
// [cffi begin]

struct pymtp_distribution;

// A distribution of n different tokens below PYMTP_VOCAB_MAX: token and prob are [n].
int32_t pymtp_distribution_init(int32_t n, const int32_t * token, const double * prob,
                                struct pymtp_distribution ** distribution);
void    pymtp_distribution_free(struct pymtp_distribution * distribution);

// Its tokens and their probabilities, [return value] each, as long as it lives. 0 for an invalid handle.
int32_t pymtp_distribution_read(const struct pymtp_distribution * distribution, const int32_t ** token,
                                const double ** prob);

// The probability of a token; 0 if it is not there. NAN, here and below, for an invalid handle, or if the memory has
// run out.
double pymtp_distribution_prob(const struct pymtp_distribution * distribution, int32_t token);

// The most likely token, the first of equals, and its probability; -1 if there is none.
int32_t pymtp_distribution_best(const struct pymtp_distribution * distribution, double * prob);

// The token at 0 <= uniform < 1 of the cumulated probabilities; -1 if there is none.
int32_t pymtp_distribution_draw(const struct pymtp_distribution * distribution, double uniform);

// The sum of the smaller probability of each token.
double pymtp_distribution_overlap(const struct pymtp_distribution * one, const struct pymtp_distribution * other);

// The residual is max(weight * target - source, 0), token by token: its sum.
double pymtp_distribution_residual_mass(const struct pymtp_distribution * target,
                                        const struct pymtp_distribution * source, double weight);

// Draws from the residual; from the target itself if it is 0. -1 if the target has no tokens, or the memory has run
// out.
int32_t pymtp_distribution_sample_residual(const struct pymtp_distribution * target,
                                           const struct pymtp_distribution * source, double weight, double uniform);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
