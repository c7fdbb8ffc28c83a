// pymtp: the C interface of the MTP engine. pymtp-text.h has what comes before and after its passes.
//
// A session is one llama_context whose KV cache also holds the model's MTP (NextN) layers. The caller drives
// it with two kinds of pass: pymtp_session_decode runs the trunk, pymtp_session_draft runs an MTP head. Both
// take rows of (token, position, sequence).
//
// The head's row at position j takes the token at j and the hidden state of position j - 1 (the trunk's, else the
// head's), and predicts the token at j + 1.
//
// Nothing throws across this interface. A function that can fail returns a pymtp_status;
// pymtp_error_message() then says why. Indexes, sizes and pointers are checked, but not how long the caller's arrays are.
//
// Handles know what they are: one that was freed, NULL, and one of another kind are PYMTP_INVALID, and freeing what is
// none does nothing. They may be used from any thread. Calls with the same handle are queued, and a free waits for the
// call that is under way; what a pass leaves belongs to whoever comes next. llama.cpp's models, which are not ours,
// must outlive the sessions that are made of them.

#ifndef PYMTP_H
#define PYMTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// cffi reads what is between the two markers
// [cffi begin]

struct llama_model;
struct ggml_backend_device;
struct ggml_backend_buffer_type;
struct llama_model_params;
struct llama_context;
struct llama_context_params;
struct ggml_threadpool_params;

struct llama_adapter_lora;
struct pymtp_image;
struct pymtp_media;
struct pymtp_projector;
struct pymtp_rpc;
struct pymtp_session;
struct pymtp_state;

enum pymtp_status {
    PYMTP_OK      = 0,
    PYMTP_FULL    = 1, // the cache has no cell left for these rows; the session is as it was before the call
    PYMTP_INVALID = 2, // the arguments do not fit the session; the session is as it was before the call
    PYMTP_FAILED  = 3, // the backend failed; the rows of the call are gone, what was decoded before stays (but not of
                       // recurrent models: the call's sequences are gone then)
    PYMTP_LOST = 4, // an RPC server cannot be used, or not any longer (pymtp_rpc_connect): free what was loaded there
    PYMTP_NOT_FINITE = 5, // the model's logits are not finite: no token can be drawn; all is as it was before the call,
                          // but for the sampler's random numbers
    PYMTP_BLOCKED    = 6, // a sampler's biases, grammar and rules leave no token that can follow; likewise
};

// what the engine is built for
enum pymtp_limit {
    PYMTP_VOCAB_MAX      = 1 << 22, // tokens of a vocabulary
    PYMTP_DRAFT_MAX      = 32,      // drafts that a round verifies, as in vLLM
    PYMTP_KEPT_POSITIONS = 64,      // of each sequence, whose hidden states are kept for its heads
};

// where the MTP layers keep their K/V
enum pymtp_memory {
    PYMTP_MEMORY_NONE   = 0, // the session does not draft
    PYMTP_MEMORY_SHARED = 1, // in the cells of the trunk's own cache; an assistant's are the trunk's
    PYMTP_MEMORY_OWN    = 2, // in a cache of their own: the kind of the trunk's cannot host them
};

// which hidden state the rows of a head read, where a model has several
enum pymtp_head_context {
    PYMTP_HEAD_CONTEXT_TARGET  = 0, // every head reads the trunk's
    PYMTP_HEAD_CONTEXT_CHAINED = 1, // the first head reads the trunk's, each other head that of the head before it
};

// Passes that verify drafts of many sequences can have more rows than asked for, so that they have few shapes, each of
// which is a graph. Nobody sees these rows: they come after the end of a sequence, as further drafts would. A hybrid
// model computes sequences together only if they have equally many rows: there each gets as many as the one with the
// most. Elsewhere the last one gets some until the number of all is one of few.
enum pymtp_padding {
    PYMTP_PADDING_AUTO   = 0, // where it pays
    PYMTP_PADDING_NEVER  = 1,
    PYMTP_PADDING_ALWAYS = 2, // wherever the memory allows it: for tests
};

// flags of a trunk row; n << PYMTP_ROW_FEED_SHIFT: the first n heads see it as well, in the same graph
enum pymtp_row_flag {
    PYMTP_ROW_LOGITS     = 1, // compute the row's logits
    PYMTP_ROW_FEED_SHIFT = 1,
};

// Since the session began. A pass is one graph run.
struct pymtp_counters {
    int64_t n_trunk_passes; // runs of the trunk's graph: prompt ubatches and verify rounds
    int64_t n_head_passes;  // runs of a graph that drafts
    int64_t n_trunk_builds; // trunk graphs built (not reused)
    int64_t n_head_builds;  // draft graphs built (not reused)
    int64_t n_output_bytes; // logits, candidates and drafts copied to the host
    int64_t t_trunk_us;     // time in pymtp_session_decode, and of waiting for what it computes
    int64_t t_head_us;      // the same of pymtp_session_draft and pymtp_session_draft_greedy
    int64_t t_sample_us;    // time that samplers have spent on rows of the session
};

// Names the source of this library: "llama.cpp b11549 + <hash of the patch series and the engine>".
const char * pymtp_abi_id(void);

// Why the last call on this thread failed: one line, valid until the next call that fails. It may end amid a character.
const char * pymtp_error_message(void);

// Frees what a handle of any kind stands for.
void pymtp_free(void * handle);

// Takes over llama.cpp's log and shows messages of this ggml_log_level and above on stderr (5: none).
int32_t pymtp_log_show(int32_t level);

// The warnings and errors since the last call; valid until the next call on this thread.
const char * pymtp_log_take(void);

// A failed assertion in llama.cpp, from which there is no way back, ends the process with one line on stderr and exit
// code 1, instead of a core dump.
int32_t pymtp_exit_on_abort(void);

// llama_model_load_from_file, or of several files llama_model_load_from_splits. An assertion of llama.cpp that a damaged
// file fails is an error here. PYMTP_INVALID if the file cannot be used; pymtp_log_take has more.
int32_t pymtp_model_load(int32_t n_files, const char * const * path, const struct llama_model_params * params,
                         struct llama_model ** model);

// Why llama.cpp cannot run the MTP heads of a model, or its assistant unless that is NULL; NULL if it can.
const char * pymtp_draft_obstacle(const struct llama_model * model, const struct llama_model * assistant);

// The same of heads in a file that is not loaded. has_lora_q, has_mla: whether Q, and K and V, are of low rank.
const char * pymtp_heads_obstacle(const char * architecture, int32_t n_heads, int32_t has_lora_q, int32_t has_mla);

// Whether rounds with drafts can go back over rejected ones: not in recurrent states that llama.cpp has no snapshots of.
bool pymtp_model_goes_back(const struct llama_model * model);

// Whether a device can look up rows of a matrix of this ggml_type, as a token embedding needs it.
bool pymtp_device_reads_rows(struct ggml_backend_device * device, int32_t type);

// A device's memory in bytes, and where it keeps tensors. A remote one is asked: PYMTP_LOST if it is not there any more.
int32_t pymtp_device_memory(struct ggml_backend_device * device, size_t * n_free, size_t * n_total);
int32_t pymtp_device_buffer_type(struct ggml_backend_device * device, struct ggml_backend_buffer_type ** buffer_type);

struct pymtp_session_params {
    // as for llama_init_from_model; ctx_type is set by pymtp
    const struct llama_context_params * context;

    int32_t n_draft_max;  // a round verifies up to this many drafts; 0: none
    int32_t uses_heads;   // the model's heads draft, which needs a model loaded with load_mtp; 0: the caller has drafts
    int32_t head_context; // a pymtp_head_context

    // A small model that drafts in the place of heads and reads the K/V of the trunk's last layers, as Gemma-4's does;
    // NULL: none. It outlives the session. It takes no cells, so that a draft never fails because the cache is full.
    const struct llama_model * assistant;

    // Positions that a sequence may hold, which can be fewer than the cache has room for. A saved state with more is
    // refused. 0: as many as there is room for.
    int32_t n_ctx_seq;

    int32_t padding; // a pymtp_padding

    // The threads of the CPU that compute drafts and rounds, and those for prompts. Each has as many
    // as the context's parameters say. NULL: as the system places them. Both or neither.
    const struct ggml_threadpool_params * threads;
    const struct ggml_threadpool_params * threads_batch;

    // GPUs, too, compute a row as they do in any other pass, whatever comes with it: CUDA alone, with flash attention and,
    // for each sequence, a part of the cache that holds all of its positions (kv_unified = false, swa_full = true).
    int32_t is_invariant;
};

int32_t pymtp_session_init(struct llama_model * model, const struct pymtp_session_params * params,
                           struct pymtp_session ** session);

struct pymtp_session_info {
    // For llama.cpp's own functions (samplers, performance). Do not free it, decode with it, or change its memory or
    // state.
    struct llama_context * context;

    int32_t memory;          // a pymtp_memory
    int32_t n_heads;         // that draft: at most one for each step
    int32_t n_draftable;     // tokens of the vocabulary before its padding, which is not drafted
    int32_t is_async;        // a device computes the logits on its own: a decode returns before they are there
    int64_t n_compute_bytes; // that the compute buffers of its graphs take at present, on all devices together
};

int32_t pymtp_session_describe(const struct pymtp_session * session, struct pymtp_session_info * info);

// How many rows of a round, or of a step of a draft, are computed for n_rows: devices keep graphs of few numbers of rows.
// Returns -1 for an error.
int32_t pymtp_session_n_computed(const struct pymtp_session * session, int32_t n_rows, int32_t of_step);

// The positions of sequences after the last that the first n_heads heads have seen, or can see no more: [n] each
int32_t pymtp_session_seen_end(const struct pymtp_session * session, int32_t n_heads, int32_t n, const int32_t * seq,
                               int32_t * end);

// Runs the trunk over n_rows rows, in ubatches of at most n_ubatch. token, pos, seq, flags: [n_rows].
// The positions of each sequence continue its decoded tail. At most n_batch rows, and at most n_outputs_max of
// them with logits (params; 0 stands for n_draft_max + 1 a sequence). What the heads are not fed they never see: where
// they are fed again later, they continue after a gap. A row whose hidden state before is not kept becomes part of it
// (a session keeps those of the last PYMTP_KEPT_POSITIONS).
int32_t pymtp_session_decode(struct pymtp_session * session, int32_t n_rows, const int32_t * token, const int32_t * pos,
                             const int32_t * seq, const uint8_t * flags);

// Rows of logits that the last decode (of_draft = 0) or draft step (1) has left: of a decode in the order of the rows
// that had PYMTP_ROW_LOGITS, of a draft step one for each sequence in the order of their last rows. *n_columns: logits
// of a row, one for each token of the vocabulary or of the draft vocabulary. -1 for an invalid handle.
int32_t pymtp_session_n_logits(const struct pymtp_session * session, int32_t of_draft, int32_t * n_columns);

// Copies n_rows of them from `row` on. logits: [n_rows, n_columns] float32, n_columns as above.
int32_t pymtp_session_logits(struct pymtp_session * session, int32_t of_draft, int32_t row, int32_t n_rows,
                             int32_t n_columns, float * logits);

// The trunk's hidden states that heads read: of positions of a sequence from pos on, which the last ubatch has computed,
// or the last PYMTP_KEPT_POSITIONS - 1 before it. hidden: [n_rows, n_embd_out] float32. PYMTP_INVALID for others.
int32_t pymtp_session_hidden(struct pymtp_session * session, int32_t seq, int32_t pos, int32_t n_rows, float * hidden);

// Rotates rows of a query or key as a head of pymtp's own form does at a position. rows: [n_rows, n_columns] float32, at
// most n_columns of them, which show all that a rotation does.
int32_t pymtp_session_rotate(struct pymtp_session * session, int32_t pos, int32_t n_rows, int32_t n_columns,
                             float * rows);

// Passes from now on leave what it takes to find the n_max highest logits of a row on the device that computes them, so
// that samplers which need no more do not fetch all of them. 0: they do not, which is how a session begins. Nothing is
// gained without a device.
int32_t pymtp_session_reduce(struct pymtp_session * session, int32_t n_max);

// One step of a draft. The rows of a sequence are consecutive: its last row is the one that predicts, at the newest
// token (step 0) or at the draft of the step before. Rows before it, in step 0, are positions that the trunk has
// decoded without feeding the heads: they catch up; positions before those stay a gap. n_steps: how many steps the
// whole draft is meant to have. Step s runs head s modulo the number of heads. Leaves one row of logits for each
// sequence. Fails with PYMTP_INVALID if the hidden state before a row that predicts is not kept.
int32_t pymtp_session_draft(struct pymtp_session * session, int32_t step, int32_t n_steps, int32_t n_rows,
                            const int32_t * token, const int32_t * pos, const int32_t * seq);

// All steps of a draft in one graph, each taking the most likely token of the step before. Rows as for step 0 of
// pymtp_session_draft. drafts: [n_sequences, *n_steps], the sequences in the order of their last rows.
// probs: the same shape, the probability of each draft (softmax of the head's logits); or NULL, which is cheaper.
// *n_steps shrinks if the context has room for fewer, and the end of each row is undefined. Leaves no logits.
int32_t pymtp_session_draft_greedy(struct pymtp_session * session, int32_t n_rows, const int32_t * token,
                                   const int32_t * pos, const int32_t * seq, int32_t * n_steps, int32_t * drafts,
                                   float * probs);

// Limits drafts to a part of the vocabulary, so that the heads multiply fewer rows of the output matrix; what is
// emitted is not limited. token = NULL: to the first n_tokens (rounded up to a multiple of 32), as a view of the matrix;
// n_tokens = n_vocab ends the limit. Else to the n_tokens ids in token. rows[h] are those of head h's matrix, one after
// another, [n_tokens, row_bytes[h]], of which a copy is kept in addition to the model's; PYMTP_INVALID where the matrix
// has rows of another length, and for an id that is listed twice. type: that of the rows; -1: that of the head's matrix.
// Draft logits then have n_tokens columns; ids (drafts, candidates) are always those of the whole vocabulary.
int32_t pymtp_session_limit_drafts(struct pymtp_session * session, int32_t n_tokens, const int32_t * token,
                                   int32_t type, const void * const * rows, const int64_t * row_bytes);

// Puts other tokens in the place of those at n rows of the list that drafts are limited to; the graphs stay. rows: as
// those of the limit, in the type of each head's matrix, of n tokens. PYMTP_INVALID where there is no list. A token must
// not be in the list twice then.
int32_t pymtp_session_replace_drafts(struct pymtp_session * session, int32_t n, const int32_t * row,
                                     const int32_t * token, const void * const * rows, const int64_t * row_bytes);

// pymtp_session_draft_greedy never proposes these tokens. Replaces those of the call before; none by default.
int32_t pymtp_session_ban_tokens(struct pymtp_session * session, int32_t n_tokens, const int32_t * token);

// llama_adapter_lora_init: a LoRA adapter from a file, which is freed with the model. PYMTP_INVALID if it does not fit
// the model; the message has the tensor.
int32_t pymtp_adapter_load(struct llama_model * model, const char * path, struct llama_adapter_lora ** adapter);

// Passes from now on apply these adapters of the session's model, each with its scale, to trunk and heads; in the place
// of those before. adapter, scale: [n]. What sequences hold stays as it was computed. PYMTP_INVALID for one that a graph
// of the trunk passes over; the session has none then.
int32_t pymtp_session_adapt(struct pymtp_session * session, int32_t n, struct llama_adapter_lora * const * adapter,
                            const float * scale);

// Drops the positions >= pos of sequences, from the trunk's and the heads' cache alike. pos = 0 frees a sequence.
// Recurrent states go back over rows of the last pass only, not its first one, and once. seq, pos: [n]. If one fails,
// those before it are truncated.
int32_t pymtp_session_truncate(struct pymtp_session * session, int32_t n, const int32_t * seq, const int32_t * pos);

// The sequence `to` becomes what `from` is; what it was before is gone. Both then continue, and draft, on their own.
int32_t pymtp_session_copy(struct pymtp_session * session, int32_t from, int32_t to);

// Drops n positions from pos on; those after them move up, as they were computed. PYMTP_INVALID if the model's
// memory cannot, or a device lacks what it takes. PYMTP_FAILED if memory runs out: positions have moved then, and keys
// have not.
int32_t pymtp_session_discard(struct pymtp_session * session, int32_t seq, int32_t pos, int32_t n);

// All that the session remembers of a sequence, or of all (-1), the heads' part included.
int32_t pymtp_session_save(struct pymtp_session * session, int32_t seq, struct pymtp_state ** state);

// Its bytes, [*size], as long as it lives; NULL for an invalid handle.
const uint8_t * pymtp_state_data(const struct pymtp_state * state, size_t * size);

// Goes back to a saved state of a session of the same model and shape; one of a single sequence can be restored as any,
// in sessions with any number of them. With PYMTP_INVALID the state did not fit, or the cache has no room for it: the
// session is as it was, or the one sequence is empty. The bytes are trusted: the caller checks that nobody has changed
// them.
int32_t pymtp_session_restore(struct pymtp_session * session, int32_t seq, const uint8_t * data, size_t size);

int32_t pymtp_session_counters(const struct pymtp_session * session, struct pymtp_counters * counters);

// Rows of weights in another type, by llama.cpp's quantisation without calibration data: rows is [n_rows] of n_per_row
// numbers as ggml_type `from`, converted the same as `to`. PYMTP_INVALID for types that cannot be read or written, whose
// blocks do not fit a row, and for numbers that are not finite; converted is undefined then.
int32_t pymtp_convert_rows(int32_t from, int32_t to, int64_t n_rows, int64_t n_per_row, const void * rows,
                           void * converted);

//
// devices of other machines, and lending one's own. The protocol is llama.cpp's RPC with additions; it has no
// authentication and no encryption. Both ends must be of the same build. A connection that breaks makes every later pass
// of a session that computes there PYMTP_LOST, with a message that names the server. Free the session and the model
// then; loading the model again connects again
//

// Connects to an RPC server, "host:port". PYMTP_LOST if none answers there in a few seconds, or one of another build. The
// server belongs to this process until the connection, and all that was loaded there, are freed.
int32_t pymtp_rpc_connect(const char * endpoint, struct pymtp_rpc ** rpc);

// The server's i-th device, for llama_model_params; NULL after the last. It stays valid; using it connects again.
struct ggml_backend_device * pymtp_rpc_device(const struct pymtp_rpc * rpc, int32_t i);

// Lends devices to one client at a time, until the process ends. Returns if it cannot listen at "address:port".
// cache_dir: a folder that keeps large weights, so that they need not be sent again; or NULL.
int32_t pymtp_rpc_serve(const char * endpoint, const char * cache_dir, int32_t n_threads, int32_t n_devices,
                        struct ggml_backend_device * const * device);

//
// images in prompts: a projector (llama.cpp's mmproj) turns an image into rows of embeddings, which the trunk and its
// heads take in the place of tokens
//

enum pymtp_image_limit {
    PYMTP_IMAGE_BYTES_MAX  = 1 << 26, // of a file
    PYMTP_IMAGE_PIXELS_MAX = 1 << 26,
};

struct pymtp_projector_params {
    int32_t use_gpu;
    int32_t n_threads;
    int32_t n_rows_min; // rows of an image, where the projector takes images of any size; -1: as the file says
    int32_t n_rows_max;
};

// Loads a projector for a model, which must outlive it. PYMTP_INVALID if it does not fit the model, or needs what is not
// supported: attention in both directions, sound alone.
int32_t pymtp_projector_load(const struct llama_model * model, const char * path,
                             const struct pymtp_projector_params * params, struct pymtp_projector ** projector);

// Reads an image file (JPEG, PNG, BMP, GIF), of *width times *height pixels. PYMTP_INVALID if it is not one, is damaged,
// or has too many pixels.
int32_t pymtp_image_load(const uint8_t * data, size_t size, struct pymtp_image ** image, int32_t * width,
                         int32_t * height);

// Takes a prompt apart: text[i] with length[i] bytes, or image[i] where text[i] is NULL. [n_parts]. Special tokens in
// text are recognised; those that the model wants around an image are added, with is_start a BOS too.
int32_t pymtp_media_init(struct pymtp_projector * projector, int32_t n_parts, const char * const * text,
                         const int32_t * length, struct pymtp_image * const * image, int32_t is_start,
                         struct pymtp_media ** media);

// One of the pieces that the prompt has become: tokens, or rows of an image.
struct pymtp_media_chunk {
    int32_t n_rows; // tokens, or rows of embeddings
    int32_t n_pos;  // positions that it takes: as many as rows, or fewer with M-RoPE
    int32_t part;   // the image's; -1: tokens
};

// The i-th of them. PYMTP_INVALID after the last.
int32_t pymtp_media_chunk(const struct pymtp_media * media, int32_t i, struct pymtp_media_chunk * chunk);

// The tokens of a chunk of text. token: [n_rows]
int32_t pymtp_media_tokens(const struct pymtp_media * media, int32_t i, int32_t n_rows, int32_t * token);

// Decodes a chunk of an image as the next positions of a sequence, from pos on. n_heads: as many of the heads see it,
// its rows' embeddings in the place of tokens. A sequence cannot go back into it, only to its begin or its end. Errors as
// of pymtp_session_decode.
int32_t pymtp_session_decode_image(struct pymtp_session * session, const struct pymtp_media * media, int32_t i,
                                   int32_t seq, int32_t pos, int32_t n_heads);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
