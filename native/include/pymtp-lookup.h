// pymtp: the C interface of the lookup index. It finds where the latest tokens of a text were seen before, and returns
// what followed them there. An index holds one history that grows (a sequence's own), or many, one after another (a
// store of those that have ended).
//
// For failures, handles and threads see pymtp.h. Functions that return something else than a status return 0 if the
// handle is invalid, or if the arguments do not fit.

#ifndef PYMTP_LOOKUP_H
#define PYMTP_LOOKUP_H

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// cffi reads what is between the two markers
// [cffi begin]

struct pymtp_lookup;

enum pymtp_lookup_limit {
    PYMTP_LOOKUP_MATCH_MAX   = 64,      // tokens that are compared, the longest match
    PYMTP_LOOKUP_OCCURRENCES = 64,      // that are looked at, from the latest on
    PYMTP_LOOKUP_MIN_MAX     = 16,      // the shortest match can be set to this at most
    PYMTP_LOOKUP_TOKENS_MAX  = 1 << 28, // tokens of an index
};

// Keeps the latest n_max tokens (rounded up to a power of two, 64 or more), and finds matches of n_min tokens and more.
int32_t pymtp_lookup_init(int32_t n_max, int32_t n_min, struct pymtp_lookup ** lookup);
void    pymtp_lookup_free(struct pymtp_lookup * lookup);

// Tokens that the history now has, below PYMTP_VOCAB_MAX. Where there is no room, the oldest are dropped for them. All
// of them are appended, or, with PYMTP_INVALID and PYMTP_FAILED, none.
int32_t pymtp_lookup_append(struct pymtp_lookup * lookup, int32_t n, const int32_t * token);

// The history has ended: what is appended from now on belongs to another one, and no match or continuation crosses over.
int32_t pymtp_lookup_end(struct pymtp_lookup * lookup);

// Drops all tokens, and keeps the memory for others.
int32_t pymtp_lookup_clear(struct pymtp_lookup * lookup);

// Finds earlier occurrences of the last n_min tokens, compares the newest PYMTP_LOOKUP_OCCURRENCES of them, and uses the
// one with the longest match (the newest if tied). Writes up to n_draft tokens that followed it, and returns how many; 0
// if there is none. token: [n], of any text, of which the last PYMTP_LOOKUP_MATCH_MAX suffice; or NULL: the latest tokens
// of the index itself. If what followed reaches the end of the index, it is continued as a repetition.
// *n_match: tokens that are the same.
int32_t pymtp_lookup_find(const struct pymtp_lookup * lookup, int32_t n, const int32_t * token, int32_t n_draft,
                          int32_t * draft, int32_t * n_match);

// Tokens in the index, ends of histories included.
int32_t pymtp_lookup_n_tokens(const struct pymtp_lookup * lookup);

// What it takes of memory at present.
int64_t pymtp_lookup_bytes(const struct pymtp_lookup * lookup);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
