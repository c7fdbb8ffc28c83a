#pragma once

// The engine behind a llama_context, which owns it and calls it around each ubatch. Brings its parts together for a
// pass: the plan (mtp-plan.h), the graph that is kept for it (mtp-kept-graphs.h), what the pass leaves (mtp-outputs.h).
// Knows rows; knows no sampling.

#include "llama-context.h"
#include "mtp-adapters.h"
#include "mtp-draft-vocab.h"
#include "mtp-heads.h"
#include "mtp-kept-graphs.h"
#include "mtp-outputs.h"
#include "mtp-plan.h"
#include "pymtp.h"

#include <memory>
#include <utility>
#include <vector>

// Where a saved state comes from. What this context has just computed may hold NaN; what comes from elsewhere may not.
enum mtp_origin { MTP_ORIGIN_CONTEXT, MTP_ORIGIN_OUTSIDE };

// A variable has another value while this lives, also where something throws.
template <typename T> class mtp_restored {
  public:
    mtp_restored(T & variable, T value) : variable(variable), before(std::exchange(variable, value)) {}

    ~mtp_restored() { variable = before; }

  private:
    T &     variable;
    const T before;
};

struct mtp_engine {
    // Gives a context its engine. Throws if memory runs out.
    static mtp_engine & attach(llama_context & ctx, const mtp_heads::params & heads, uint32_t n_rows_round);

    mtp_engine(llama_context & ctx, const mtp_heads::params & params, uint32_t n_rows_round);

    mtp_heads       heads;
    mtp_draft_vocab vocab;
    mtp_adapters    adapters;
    pymtp_counters  counters = {};

    // --- called by llama_context

    // before the graph of a ubatch is built: picks the graph, and makes the plan of a trunk pass
    void begin(const llama_ubatch & ubatch, llm_graph_type gtype, const llama_memory_context_i * mctx);

    // whether threads for prompts compute the ubatch; drafts and rounds have the same ones, however many rows they are
    bool is_prompt(const llama_ubatch & ubatch) const { return ubatch.n_tokens > n_rows_round; }

    // around the setting of the graph's inputs
    void open_inputs() { graphs.current().inputs.open(); }

    void send_inputs() { graphs.current().inputs.send(ggml_backend_sched_get_n_splits(ctx.sched.get()) == 1); }

    // after a trunk ubatch: true if its logits stay on the device until the session asks for them
    bool hold_logits(const llm_graph_result & res, bool is_whole_batch);

    // the scheduler for work outside of ubatches (reservations, cache shifts) is the context's own
    void select_home();

    // the scheduler is about to be replaced
    void drop_graphs();

    // --- called by the graph hooks

    // counts the build, and makes the plan of a graph that llama.cpp builds to see how large its buffers must be
    void begin_build(const llm_graph_params & params);

    // a graph is built: its inputs get their places, if there is something to gain
    void end_build(ggml_cgraph * gf);

    // the current pass
    const mtp_plan & plan() const { return *cur_plan; }

    void build_reduced(ggml_context * ctx0, ggml_cgraph * gf, ggml_tensor * logits);

    // the parameters of the pass as a stage's inputs see them
    const llm_graph_params & stage_params(size_t stage, const llm_graph_params & pass);

    // the parameters of the pass as the graph of the heads' model needs them
    void set_head_model(llm_graph_params & params) const;

    // --- called by the session: pymtp.h says what these do

    // llama_decode. flags: of the rows; those after them, `added`, are there for the shape of the pass
    int32_t decode(const std::vector<mtp_row> & rows, const uint8_t * flags, const std::vector<mtp_row> & added);

    // embd: [n_rows, n_embd_inp]; pos: [n_pos_per_embd, n_rows], section by section. Heads with a cache of their own do
    // not see it.
    int32_t decode_image(const mtp_image_rows & image, const float * embd, const std::vector<llama_pos> & pos);

    // positions that images have taken, by sequence
    std::vector<mtp_image_spans> images;

    bool    is_invariant = false; // whether GPUs compute a row of the trunk as they do in any other pass
    int32_t n_reduced    = 0;     // highest logits of a row that passes find where they compute them; 0: none

    // passes from now on have few shapes
    void pad() { planner.pad(); }

    pymtp_status draft(int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows);

    pymtp_status draft_greedy(const std::vector<mtp_row> & rows, int32_t * n_steps, int32_t * drafts, float * probs);

    // the draft vocabulary, to be limited otherwise: what the last pass has left goes
    mtp_draft_vocab & change_vocab();

    // Throws if memory runs out. Returns why an adapter cannot be applied, and there are none then; "": all are.
    std::string adapt(std::vector<llama_adapter_lora *> adapters, std::vector<float> scales);

    // float32 [n_rows, n_columns] of the last decode, in the order of its rows, or of the last draft step
    const float * logits(bool of_draft);

    int32_t n_columns(bool of_draft) const { return of_draft ? vocab.size() : ctx.model.vocab.n_tokens(); }

    int32_t n_draft_rows() const { return n_drafted; }

    bool is_async() const;

    // tokens that a row of logits can stand for: without the padding of a vocabulary
    int32_t n_logits(bool of_draft) const { return of_draft ? vocab.n_draftable() : vocab.n_usable(); }

    // one row of them, and the tokens of its logits; nullptr: the first ones
    const float * logits_row(bool of_draft, int32_t row) {
        return logits(of_draft) + (int64_t) row * n_columns(of_draft);
    }

    const llama_token * tokens(bool of_draft) const { return of_draft ? vocab.listed_tokens() : nullptr; }

    void candidates(bool of_draft, int32_t row, int32_t n, int32_t * ids, float * values);

    // of a sequence, or of all (-1); drops what heads have written ahead of the trunk
    std::vector<uint8_t> save_state(llama_seq_id seq = -1);

    // Throws if the bytes do not fit; the sequence cannot continue then: it has to be dropped, or needs bytes
    // that fit.
    void restore_state(const uint8_t * data, size_t size, mtp_origin origin, llama_seq_id seq = -1);

    void copy(llama_seq_id from, llama_seq_id to); // to one that is empty
    void discard(llama_seq_id seq, llama_pos pos, int32_t n);

    // why the backends cannot do that; "": they can, if the memory can
    std::string shift_obstacle();

    size_t compute_bytes() const { return graphs.compute_bytes(); }

  private:
    llama_context &      ctx;
    const uint32_t       n_rows_round; // the most of a trunk pass that comes again and again; larger ones are prompts
    const ggml_backend_t device;       // the only one that computes graphs, if there is such a device; else nullptr

    llama_batch_ext batch;             // of the trunk's last pass: what it has allocated serves the next one
    mtp_planner     planner;
    mtp_kept_graphs graphs;

    std::shared_ptr<mtp_input_memory> input_memory; // of all graphs

    mtp_plan_ptr         cur_plan  = std::make_unique<mtp_plan>();
    int32_t              n_unread  = 0;           // rows of logits of the current pass that nobody reads, its last ones
    mtp_image_rows *     cur_image = nullptr;     // that is being decoded
    std::vector<int32_t> n_fed;                   // heads that see the rows of the batch that is being decoded
    int32_t              n_added_outputs = 0;     // rows of that batch that were added, and have logits
    bool                 in_pass         = false; // else llama.cpp reserves, or shifts the cache
    bool                 has_prompt      = false; // the current pass, more than a round

    mtp_outputs     trunk_outputs;
    mtp_outputs     draft_outputs;
    int32_t         n_drafted = 0;
    mtp_host_memory draft_logits_mem; // float32 [n_drafted, size of the draft vocabulary]
    mtp_host_memory picked_mem;       // drafts that the graph has picked, and their probabilities

    std::unique_ptr<llm_graph_params> part_params;

    void             forget_outputs();
    void             pad_outputs(const llama_ubatch & ubatch);
    mtp_kept_graph & find_graph(const llama_ubatch & ubatch, llm_graph_type gtype, const llama_memory_context_i * mctx);
    void             hold(mtp_outputs & outputs, const llm_graph_result & res, size_t n_rows);
    float *          draft_logits_data(size_t n_rows);
    int32_t          trunk_row(int32_t row) const;

    // runs the plan of a draft in one graph. nullptr if it failed
    llm_graph_result * run_draft(mtp_plan_ptr plan);

    void fetch_picked(const llm_graph_result & res, size_t n, int32_t n_asked, int32_t * drafts, float * probs);

    void update_own_memory();
};
