// pymtp: the C interface of texts: tokens, samplers and the distributions that they leave, lookup, chats. For failures,
// handles and threads see pymtp.h. Functions that return something else than a status return what is said with them for
// an invalid handle, else 0.

#ifndef PYMTP_TEXT_H
#define PYMTP_TEXT_H

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// cffi reads what is between the two markers
// [cffi begin]

struct llama_vocab;
struct pymtp_chat_parser;
struct pymtp_chat_template;
struct pymtp_distribution;
struct pymtp_lookup;
struct pymtp_sampler;

//
// from texts to tokens and back: llama.cpp's own functions throw where a vocabulary lacks what it should have, or for a
// token that it has not; these do not
//

// The tokens of a text of n_bytes bytes, UTF-8. token: [n_max]. *n_tokens: how many there are; if they are more than
// n_max, none is written. is_start: the text begins a sequence. parse_special: special tokens in it are recognised.
// PYMTP_FAILED if the vocabulary has no tokens for it.
int32_t pymtp_tokenize(const struct llama_vocab * vocab, const char * text, int32_t n_bytes, int32_t is_start,
                       int32_t parse_special, int32_t n_max, int32_t * token, int32_t * n_tokens);

// The bytes that a token adds to a text. bytes: [n_max]. *n_bytes: as above. special: also those of special tokens.
// PYMTP_INVALID for a token that the vocabulary has not.
int32_t pymtp_token_bytes(const struct llama_vocab * vocab, int32_t token, int32_t special, int32_t n_max, char * bytes,
                          int32_t * n_bytes);

//
// the lookup index finds where the latest tokens of a text were seen before, and returns what followed them there. It
// holds one history that grows (a sequence's own), or many, one after another (a store of those that have ended)
//

enum pymtp_lookup_limit {
    PYMTP_LOOKUP_MATCH_MAX   = 64,      // tokens that are compared, the longest match
    PYMTP_LOOKUP_OCCURRENCES = 64,      // that are looked at, from the latest on
    PYMTP_LOOKUP_MIN_MAX     = 16,      // the shortest match can be set to this at most
    PYMTP_LOOKUP_TOKENS_MAX  = 1 << 28, // tokens of an index
};

// Keeps the latest n_max tokens (rounded up to a power of two, 64 or more), and finds matches of n_min tokens and more.
int32_t pymtp_lookup_init(int32_t n_max, int32_t n_min, struct pymtp_lookup ** lookup);

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

// --- distributions, which is what a chain of samplers leaves of a vocabulary: arithmetic on tokens and their probabilities

// A distribution of n different tokens below PYMTP_VOCAB_MAX: token and prob are [n].
int32_t pymtp_distribution_init(int32_t n, const int32_t * token, const double * prob,
                                struct pymtp_distribution ** distribution);

// Its tokens and their probabilities, [return value] each, as long as it lives. 0 for an invalid handle.
int32_t pymtp_distribution_read(const struct pymtp_distribution * distribution, const int32_t ** token,
                                const double ** prob);

// The probability of a token; 0 if it is not there. NAN, here and below, for an invalid handle, or if the memory has
// run out.
double pymtp_distribution_prob(const struct pymtp_distribution * distribution, int32_t token);

// The most likely token, the first of equals, and its probability; -1 if there is none.
int32_t pymtp_distribution_best(const struct pymtp_distribution * distribution, double * prob);

// The residual is max(weight * target - source, 0), token by token: its sum.
double pymtp_distribution_residual_mass(const struct pymtp_distribution * target,
                                        const struct pymtp_distribution * source, double weight);

// The token at 0 <= uniform < 1 of the residual's cumulated probabilities; of the target's own if that is 0, or source
// NULL. -1 if the target has no tokens, or the memory has run out.
int32_t pymtp_distribution_draw(const struct pymtp_distribution * target, const struct pymtp_distribution * source,
                                double weight, double uniform);

//
// a sampler is what one sequence needs to get from logits to tokens: the chain of llama.cpp's samplers, the history that
// some of them look at, and the random generators
//

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
    uint32_t xtc_seed;        // llama.cpp's is the same, if one is given: then XTC follows what is drawn

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
    int32_t penalty_last_n; // 131,072 at most, -1: as many, here and below
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

    int32_t              n_breakers;
    const char * const * breakers; // [n_breakers] texts at which DRY's repetitions end
};

// For a vocabulary of n_vocab tokens. vocab: NULL if there is no infill stage, no breaker and no grammar; it must outlive
// the sampler. dry: NULL, or a sampler of DRY alone with the same parameters of it, which has accepted nothing: what that
// has found of its breakers in the vocabulary is copied, where to look for them takes long.
int32_t pymtp_sampler_init(int32_t n_vocab, const struct llama_vocab * vocab,
                           const struct pymtp_sampler_params * params, const struct pymtp_sampler * dry,
                           struct pymtp_sampler ** sampler);

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

// Tokens that the text now has, if any. Tokens that were assumed are dropped first.
int32_t pymtp_sampler_accept(struct pymtp_sampler * sampler, int32_t n_tokens, const int32_t * token);

// A token that the text may get: what is applied from now on has it in its history, until some are accepted.
int32_t pymtp_sampler_assume(struct pymtp_sampler * sampler, int32_t token);

// A row of logits: of the last decode (of_draft = 0) or draft step (1) of a session; or, with session = NULL, on the
// host, [n_logits]. Rows that follow it are those of the same pass, or lie after it.
struct pymtp_logits {
    struct pymtp_session * session;
    int32_t                of_draft;
    int32_t                row;
    int32_t                n_logits;
    const float *          logits;
};

// Applies the chain. What is left of the vocabulary can then be asked for. For drafts (of_draft = 1) no generator
// moves, and nothing is left if none of the row's tokens can follow. PYMTP_INVALID for chains that have no distribution
// (mirostat, adaptive-p).
int32_t pymtp_sampler_apply(struct pymtp_sampler * sampler, const struct pymtp_logits * logits);

// Applies the chain, draws a token from what it leaves, as llama.cpp does with the same seed, and accepts it: for
// n_rows rows, of which `logits` is the first, up to one whose token is not its draft. draft: [n_rows], -1 for none.
// token: [n_rows], of which *n_tokens are accepted, also if the row after them fails. Drops tokens that were assumed.
int32_t pymtp_sampler_sample(struct pymtp_sampler * sampler, const struct pymtp_logits * logits, int32_t n_rows,
                             const int32_t * draft, int32_t * n_tokens, int32_t * token);

// What the chain has left, in its order; the caller's to free.
int32_t pymtp_sampler_result(const struct pymtp_sampler * sampler, struct pymtp_distribution ** distribution);

// Candidates of a row that do for the chain, also for some time to come; 0: it looks at the whole row. -1 for an invalid
// handle.
int32_t pymtp_sampler_n_candidates(const struct pymtp_sampler * sampler);

//
// chats: llama.cpp's own code renders the messages of a chat with a model's template, says what the answer may look
// like, and takes the answer apart again: reasoning, content, tool calls. Texts in JSON go in and come out, in UTF-8;
// what comes out is the caller's to free, with pymtp_json_free
//

void pymtp_json_free(char * json);

// A template, as Jinja; source = NULL: the model's own, and "chatml" stands for that one. model gives the tokens that
// begin and end a text; NULL: there are none. PYMTP_INVALID if there is no template; PYMTP_FAILED if it is not Jinja. What
// comes out is what the template can do: an object of booleans, such as supports_thinking and supports_tools.
int32_t pymtp_chat_template_init(const struct llama_model * model, const char * source,
                                 struct pymtp_chat_template ** chat_template, char ** json);

// Renders a chat. The request is an object with
//   messages, tools                  as in OpenAI's chat completions; at least one message
//   tool_choice                      "auto" (default), "required", "none"
//   parallel_tool_calls              default: if the template can
//   json_schema                      of the answer, one that pymtp_schema_to_grammar takes
//   reasoning_format                 "none", "auto", "deepseek" (default), "deepseek-legacy"
//   enable_thinking                  default: true
//   chat_template_kwargs             further variables of the template
//   add_generation_prompt            default: true
//   continue_final_message           true, "content", "reasoning_content"; default: false
// What comes out is an object with
//   text                             the prompt, without a BOS that the vocabulary adds
//   grammar                          of the answer, in GBNF; "": none
//   triggers                         [{"text", "is_pattern"}]: if there are any, it applies from one of them on
//   preserved_tokens                 texts of special tokens that the parser has to see
//   stop                             texts at which the answer ends
//   generation_prompt                the end of the prompt: what it has of the answer already
//   thinking_begin, thinking_ends
// and a parser of one answer to it. PYMTP_INVALID if the request is malformed; PYMTP_FAILED if the template fails.
int32_t pymtp_chat_template_render(const struct pymtp_chat_template * chat_template, const char * request,
                                   struct pymtp_chat_parser ** parser, char ** json);

// A parser of another answer to the prompt of `parser`, which stays as it is.
int32_t pymtp_chat_parser_init(const struct pymtp_chat_parser * parser, struct pymtp_chat_parser ** chat_parser);

// The next piece of the answer; of whole characters, special tokens that are preserved among them. is_partial: more may
// come. What comes out is what the message got by it: [{"reasoning"}, {"content"},
// {"tool_call": {"index", "id", "name", "arguments"}}], of a tool call only what is new. PYMTP_FAILED if the answer is
// none that the template's model could give; the message is as it was before then.
int32_t pymtp_chat_parser_push(struct pymtp_chat_parser * chat_parser, const char * text, int64_t n_bytes,
                               int32_t is_partial, char ** json);

// The message so far: {"content", "reasoning", "tool_calls"}.
int32_t pymtp_chat_parser_message(const struct pymtp_chat_parser * chat_parser, char ** json);

// The GBNF of a JSON schema, as a string. PYMTP_INVALID if the schema cannot be converted.
int32_t pymtp_schema_to_grammar(const char * schema, char ** json);

// How many steps the last template or schema of this thread took, of those that native/src/chat/chat-limits.h allows.
int64_t pymtp_chat_steps(void);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
