// pymtp: the C interface of the samplers. A sampler is what one sequence needs to get from logits to tokens: the chain
// of llama.cpp's samplers, the history that some of them look at, and the random generators.
//
// For failures, handles and threads see pymtp.h.

#ifndef PYMTP_SAMPLER_H
#define PYMTP_SAMPLER_H

#include "pymtp-distribution.h"
#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// cffi reads what is between the two markers
// [cffi begin]

struct llama_vocab;

struct pymtp_breakers;
struct pymtp_sampler;

enum pymtp_sampler_stage {
    PYMTP_STAGE_PENALTIES   = 0,
    PYMTP_STAGE_DRY         = 1,
    PYMTP_STAGE_TOP_N_SIGMA = 2,
    PYMTP_STAGE_TOP_K       = 3,
    PYMTP_STAGE_TYP_P       = 4,
    PYMTP_STAGE_TOP_P       = 5,
    PYMTP_STAGE_MIN_P       = 6,
    PYMTP_STAGE_XTC         = 7,
    PYMTP_STAGE_TEMPERATURE = 8,
    PYMTP_STAGE_INFILL      = 9,
    PYMTP_STAGE_ADAPTIVE_P  = 10,
};

// Values as llama.cpp's common_params_sampling has them; the caller has checked their ranges.
struct pymtp_sampler_params {
    uint32_t seed;

    int32_t         n_stages; // in their order; the distribution is sampled after the last
    const int32_t * stages;   // [n_stages] of pymtp_sampler_stage

    int32_t min_keep;
    int32_t top_k;
    float   top_p;
    float   min_p;
    float   typ_p;
    float   top_n_sigma;
    float   xtc_probability;
    float   xtc_threshold;
    float   temp;
    float   dynatemp_range;
    float   dynatemp_exponent;
    int32_t penalty_last_n; // -1: the whole history, here and below
    float   penalty_repeat;
    float   penalty_freq;
    float   penalty_present;
    float   dry_multiplier;
    float   dry_base;
    int32_t dry_allowed_length;
    int32_t dry_penalty_last_n;
    int32_t mirostat; // 1, 2: temperature and this only, whatever the stages are
    float   mirostat_tau;
    float   mirostat_eta;
    float   adaptive_target;
    float   adaptive_decay;

    int32_t         n_bias;
    const int32_t * bias_token; // [n_bias] different ids
    const float *   bias;       // [n_bias] added to their logits before all stages

    int32_t is_full;            // look at the whole vocabulary always (for tests and measurements)
};

// Where DRY's repetitions end: texts, and the tokens of a vocabulary that contain or begin them.
int32_t pymtp_breakers_init(const struct llama_vocab * vocab, int32_t n, const char * const * text,
                            struct pymtp_breakers ** breakers);
void    pymtp_breakers_free(struct pymtp_breakers * breakers);

// For a vocabulary of n_vocab tokens. vocab: NULL if there is no infill stage and no grammar; it must outlive the
// sampler. breakers: NULL for none.
int32_t pymtp_sampler_init(int32_t n_vocab, const struct llama_vocab * vocab,
                           const struct pymtp_sampler_params * params, const struct pymtp_breakers * breakers,
                           struct pymtp_sampler ** sampler);
void    pymtp_sampler_free(struct pymtp_sampler * sampler);

// From here on only texts of this GBNF grammar can follow; its rules begin at "root". PYMTP_INVALID if it cannot be used.
int32_t pymtp_sampler_constrain(struct pymtp_sampler * sampler, const char * grammar);

// What an answer has to be. Texts become tokens of the vocabulary, special ones among them.
struct pymtp_answer_rules {
    const char *         grammar;         // GBNF, its rules begin at "root"; NULL: none
    int32_t              n_words;         // triggers: with any, the grammar applies from the first that comes on, and
    const char * const * words;           // not inside the thinking
    int32_t              n_patterns;      // regular expressions (ECMAScript)
    const char * const * patterns;
    const char *         prefill;         // what the prompt has of the answer
    const char *         thinking_begin;  // NULL: the model does not think
    int32_t              n_thinking_ends;
    const char * const * thinking_ends;   // the first closes the thinking where its budget is used up
    int32_t              thinking_budget; // tokens; -1: as many as the model likes
};

// From here on the text is such an answer. Replaces what was before.
int32_t pymtp_sampler_follow(struct pymtp_sampler * sampler, const struct pymtp_answer_rules * rules);

// Whether it is a grammar, but for tokens that it names (<think>): whether there are such depends on the vocabulary.
int32_t pymtp_grammar_check(const char * grammar);

// Tokens that the text now has. Tentative tokens are dropped first.
int32_t pymtp_sampler_accept(struct pymtp_sampler * sampler, int32_t n_tokens, const int32_t * token);

// A token that the text may get: what is applied from now on has it in its history.
int32_t pymtp_sampler_assume(struct pymtp_sampler * sampler, int32_t token);

// Drops the tokens that were assumed.
int32_t pymtp_sampler_forget(struct pymtp_sampler * sampler);

// A row of logits: of the last decode (of_draft = 0) or draft step (1) of a session; or, with session = NULL, on the
// host, [n_logits].
struct pymtp_logits {
    struct pymtp_session * session;
    int32_t                of_draft;
    int32_t                row;
    int32_t                n_logits;
    const float *          logits;
};

// Applies the chain. What is left of the vocabulary can then be asked for. For drafts (of_draft = 1) no generator
// moves, and nothing is left if none of the row's tokens can follow. PYMTP_INVALID for chains that have no distribution (mirostat, adaptive-p).
int32_t pymtp_sampler_apply(struct pymtp_sampler * sampler, const struct pymtp_logits * logits);

// Applies the chain and draws a token from what it leaves, as llama.cpp does with the same seed.
int32_t pymtp_sampler_sample(struct pymtp_sampler * sampler, const struct pymtp_logits * logits, int32_t * token);

// What the chain has left, in its order; the caller's to free.
int32_t pymtp_sampler_result(const struct pymtp_sampler * sampler, struct pymtp_distribution ** distribution);

// Candidates of a row that do for the chain, also for some time to come; 0: it looks at the whole row, or there is none.
int32_t pymtp_sampler_n_candidates(const struct pymtp_sampler * sampler);

// How often the chain was applied to candidates, and how often to the whole vocabulary.
int32_t pymtp_sampler_counts(const struct pymtp_sampler * sampler, int64_t * n_pruned, int64_t * n_full);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
