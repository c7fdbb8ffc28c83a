// pymtp: the C interface of distributions, which is what a chain of samplers leaves of a vocabulary. All of it is
// arithmetic on tokens and their probabilities: what it is good for is decided in Python.
//
// For failures, handles and threads see pymtp.h. Functions that return something else than a status return what is said
// with them if the distribution is none.

#ifndef PYMTP_DISTRIBUTION_H
#define PYMTP_DISTRIBUTION_H

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// cffi reads what lies between the two markers
// [cffi begin]

struct pymtp_distribution;

// Of n different tokens below PYMTP_VOCAB_MAX: token and prob are [n].
int32_t pymtp_distribution_init(int32_t n, const int32_t * token, const double * prob,
                                struct pymtp_distribution ** distribution);
void    pymtp_distribution_free(struct pymtp_distribution * distribution);

// Its tokens and their probabilities, [return value] each, as long as it lives. 0 if it is none.
int32_t pymtp_distribution_read(const struct pymtp_distribution * distribution, const int32_t ** token,
                                const double ** prob);

// The probability of a token; 0 if it is not there. NAN, here and below, if a distribution is none, or if the memory has
// run out.
double pymtp_distribution_prob(const struct pymtp_distribution * distribution, int32_t token);

// The most likely token, the first of equals, and its probability; -1 if there is none.
int32_t pymtp_distribution_best(const struct pymtp_distribution * distribution, double * prob);

// The token at 0 <= uniform < 1 of the cumulated probabilities; -1 if there is none.
int32_t pymtp_distribution_draw(const struct pymtp_distribution * distribution, double uniform);

// What two of them have in common: the sum of the smaller probability of each token.
double pymtp_distribution_shared(const struct pymtp_distribution * one, const struct pymtp_distribution * other);

// What a source has too little of: the sum of max(weight * target - source, 0).
double pymtp_distribution_missing(const struct pymtp_distribution * target, const struct pymtp_distribution * source,
                                  double weight);

// Draws from that; from the target itself if it is nothing. -1 if the target has no tokens, or the memory has run out.
int32_t pymtp_distribution_recover(const struct pymtp_distribution * target, const struct pymtp_distribution * source,
                                   double weight, double uniform);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
