#include "mtp-engine.h"

#include "llama-model.h"
#include "mtp-memory.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

// larger ubatches are prompts: they share the context's own scheduler and its worst-case buffer
static constexpr uint32_t MTP_SLOT_TOKENS_MAX = 64;
static constexpr size_t   MTP_SLOTS_MAX       = 24;

// more than any architecture's head has
static constexpr size_t MTP_NODES_PER_STEP = 512;

std::shared_ptr<mtp_engine> mtp_engine::create(llama_context & ctx) {
    if (ctx.cparams.ctx_type != LLAMA_CONTEXT_TYPE_MTP_SHARED ||
        !mtp_memory_can_share(ctx.memory.get(), ctx.cparams.n_rs_seq)) {
        return nullptr;
    }
    return std::make_shared<mtp_engine>(ctx);
}

mtp_engine::mtp_engine(llama_context & ctx) : ctx(ctx), hidden_rows(ctx.cparams.n_ubatch, ctx.cparams.n_seq_max) {
    // the heads need the hidden state of every row
    ctx.cparams.embeddings_nextn        = true;
    ctx.cparams.embeddings_nextn_masked = false;

    const auto & model = ctx.model;

    ggml_init_params params = { ggml_tensor_overhead(), nullptr, true };
    hidden_ctx.reset(ggml_init(params));
    hidden = ggml_new_tensor_2d(hidden_ctx.get(), GGML_TYPE_F32, model.hparams.n_embd_out(), hidden_rows.size());
    ggml_set_name(hidden, "mtp_hidden");

    auto * dev = model.dev_layer(model.hparams.n_layer());
    hidden_buf.reset(ggml_backend_alloc_ctx_tensors_from_buft(hidden_ctx.get(), ggml_backend_dev_buffer_type(dev)));
    if (!hidden_buf) {
        throw std::runtime_error("failed to allocate the buffer for hidden rows");
    }
    ggml_backend_buffer_clear(hidden_buf.get(), 0);
}

mtp_engine::~mtp_engine() = default;

//
// graph slots
//

void mtp_engine::swap_with(graph_slot & slot) {
    std::swap(ctx.sched, slot.sched);
    std::swap(ctx.gf_res_prev, slot.results);
    std::swap(ctx.gf_res_prev_active, slot.active);
}

void mtp_engine::select(graph_slot * slot) {
    if (slot == cur) {
        return;
    }
    swap_with(*cur);
    swap_with(*slot);
    cur = slot;
}

void mtp_engine::select_home() {
    select(&home);
}

void mtp_engine::drop_slots() {
    select_home();
    slots.clear();
}

mtp_engine::graph_slot * mtp_engine::find_slot(const llama_ubatch & ubatch, llm_graph_type gtype) {
    if (ctx.cparams.pipeline_parallel || ubatch.n_tokens > MTP_SLOT_TOKENS_MAX) {
        return &home;
    }

    const int32_t head = ctx.cparams.nextn_layer_offset;

    for (auto & slot : slots) {
        if (slot->gtype == gtype && slot->n_tokens == ubatch.n_tokens && slot->n_outputs == ctx.n_outputs &&
            slot->n_seqs_unq == ubatch.n_seqs_unq && slot->head == head && slot->n_steps == steps.size() &&
            slot->bias == bias) {
            return slot.get();
        }
    }

    if (slots.size() == MTP_SLOTS_MAX) {
        const auto oldest = std::min_element(slots.begin(), slots.end(),
                                             [](const auto & a, const auto & b) { return a->t_used < b->t_used; });
        ctx.synchronize();
        if (cur == oldest->get()) {
            select_home();
        }
        slots.erase(oldest);
    }

    auto slot = std::make_unique<graph_slot>();

    slot->gtype      = gtype;
    slot->n_tokens   = ubatch.n_tokens;
    slot->n_outputs  = ctx.n_outputs;
    slot->n_seqs_unq = ubatch.n_seqs_unq;
    slot->head       = head;
    slot->n_steps    = steps.size();
    slot->bias       = bias;

    size_t max_nodes = ctx.gf_res_reserve->get_max_nodes();
    if (!steps.empty()) {
        max_nodes += steps.size() * MTP_NODES_PER_STEP;
        slot->results[1].reset(new llm_graph_result(max_nodes));
    }
    slot->sched.reset(ggml_backend_sched_new(ctx.backend_ptrs.data(), ctx.backend_buft.data(), ctx.backend_ptrs.size(),
                                             max_nodes, false, ctx.cparams.op_offload));

    slots.push_back(std::move(slot));
    return slots.back().get();
}

void mtp_engine::count_build(bool is_head) {
    ++(is_head ? counters.n_head_builds : counters.n_trunk_builds);
}

//
// hidden rows
//

void mtp_engine::begin(const llama_ubatch & ubatch, llm_graph_type gtype) {
    graph_slot * slot = find_slot(ubatch, gtype);

    slot->t_used = ++t;
    select(slot);

    if (gtype != LLM_GRAPH_TYPE_DECODER_MTP) {
        ++counters.n_trunk_passes;
        write_trunk_rows(ubatch);
    }
}

void mtp_engine::write_trunk_rows(const llama_ubatch & ubatch) {
    hidden_rows.drop_transient();

    rows_write.assign(ubatch.n_tokens, mtp_rows::SPARE);

    // from the back: how many rows of its sequence come after a row
    std::vector<uint32_t> n_after(ubatch.n_tokens, 0);
    std::vector<uint32_t> n_seen(ctx.cparams.n_seq_max, 0);
    for (uint32_t i = ubatch.n_tokens; i-- > 0;) {
        n_after[i] = n_seen[ubatch.seq_id[i][0]]++;
    }

    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_seq_id seq    = ubatch.seq_id[i][0];
        const llama_pos    pos    = ubatch.pos[i];
        const bool         prompt = row_flags[ubatch.data->batch_idxs[i]] & PYMTP_ROW_PROMPT;
        const bool         keep   = n_after[i] < (prompt ? 1 : mtp_rows::N_KEPT);

        rows_write[i] = keep ? hidden_rows.put_trunk(seq, pos) : hidden_rows.put_transient(seq, pos, i);
    }
}

void mtp_engine::read_rows(const std::vector<mtp_row> & rows) {
    rows_read.clear();
    for (const auto & row : rows) {
        const int32_t i = hidden_rows.find(row.seq, row.pos - 1);
        GGML_ASSERT(i >= 0 && "the session checks that hidden states are at hand");
        rows_read.push_back(i);
    }
}

void mtp_engine::truncate(llama_seq_id seq, llama_pos pos) {
    hidden_rows.truncate(seq, pos);
}

//
// passes of the heads
//

uint32_t mtp_engine::n_stream() const {
    return ctx.cparams.kv_unified ? 1 : ctx.cparams.n_seq_max;
}

llm_graph_result * mtp_engine::run_head(int32_t head, const llama_ubatch & ubatch, llama_memory_context_i & mctx) {
    uint32_t n_outputs = 0;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        n_outputs += ubatch.output[i] != 0;
    }

    const uint32_t n_outputs_trunk = ctx.n_outputs;

    ctx.n_outputs                  = n_outputs;
    ctx.cparams.nextn_layer_offset = head;

    ggml_status status;

    const mtp_memory_placed placed(ctx.memory.get());
    auto *                  res = ctx.process_ubatch(ubatch, LLM_GRAPH_TYPE_DECODER_MTP, &mctx, status);

    ctx.cparams.nextn_layer_offset = 0;
    ctx.n_outputs                  = n_outputs_trunk;

    return res;
}

bool mtp_engine::catch_up(const llama_ubatch & ubatch) {
    // one pass for all rows, or one for each sequence where sequences have streams of their own
    std::vector<std::vector<mtp_row>> parts;

    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        if (!(row_flags[ubatch.data->batch_idxs[i]] & PYMTP_ROW_PROMPT)) {
            continue;
        }
        const mtp_row row = { ubatch.token[i], ubatch.pos[i], ubatch.seq_id[i][0], false };
        if (parts.empty() || (n_stream() > 1 && parts.back().back().seq != row.seq)) {
            parts.emplace_back();
        }
        parts.back().push_back(row);
    }

    for (const auto & part : parts) {
        const auto ubatch_head = mtp_ubatch_make(part, ubatch.n_pos, n_stream());

        for (int32_t head = 0; head < n_heads; ++head) {
            // all of them have the trunk's cells: there is always room
            const auto mctx = mtp_memory_place(ctx.memory.get(), ubatch_head);

            read_rows(part);
            if (llama_memory_status_is_fail(mctx->get_status()) || !run_head(head, ubatch_head, *mctx)) {
                return false;
            }
            ++counters.n_catch_up_passes;
        }
    }

    return true;
}

pymtp_status mtp_engine::draft(int32_t head, const std::vector<mtp_row> & rows) {
    const auto ubatch = mtp_ubatch_make(rows, ctx.model.hparams.n_pos_per_embd(), n_stream());

    const auto mctx = mtp_memory_place(ctx.memory.get(), ubatch);
    if (llama_memory_status_is_fail(mctx->get_status())) {
        return PYMTP_FULL;
    }

    read_rows(rows);

    rows_write.clear();
    n_draft_rows = 0;
    for (const auto & row : rows) {
        rows_write.push_back(row.output ? hidden_rows.put_head(row.seq, row.pos) : mtp_rows::SPARE);
        n_draft_rows += row.output;
    }

    const auto * res = run_head(head, ubatch, *mctx);
    if (!res) {
        n_draft_rows = 0;
        return PYMTP_FAILED;
    }
    ++counters.n_head_passes;

    ggml_tensor * t_logits = res->get_logits();

    logits.resize(ggml_nelements(t_logits));
    fetch(t_logits, logits.data());
    return PYMTP_OK;
}

void mtp_engine::fetch(ggml_tensor * tensor, void * data) {
    auto * backend = ggml_backend_sched_get_tensor_backend(ctx.sched.get(), tensor);
    ggml_backend_tensor_get_async(backend, tensor, data, 0, ggml_nbytes(tensor));
}

const std::vector<float> & mtp_engine::draft_logits() {
    ctx.synchronize();
    return logits;
}

//
// fused drafts
//

const llm_graph_params & mtp_engine::step_params(size_t step, const llm_graph_params & params) {
    auto & cur = steps[step];
    if (!cur.has_params) {
        cur.params           = params;
        cur.params.ubatch    = cur.ubatch;
        cur.params.mctx      = cur.mctx.get();
        cur.params.n_outputs = 1;
        cur.has_params       = true;
    }
    return cur.params;
}

void mtp_engine::bar(const std::vector<llama_token> & tokens) {
    if (tokens.empty()) {
        bias = nullptr;
        return;
    }

    const auto & model = ctx.model;

    if (!bias_ctx) {
        ggml_init_params params = { ggml_tensor_overhead(), nullptr, true };
        bias_ctx.reset(ggml_init(params));
        auto * tensor = ggml_new_tensor_1d(bias_ctx.get(), GGML_TYPE_F32, model.vocab.n_tokens());
        ggml_set_name(tensor, "mtp_bias");

        auto * dev = model.dev_output();
        bias_buf.reset(ggml_backend_alloc_ctx_tensors_from_buft(bias_ctx.get(), ggml_backend_dev_buffer_type(dev)));
        if (!bias_buf) {
            throw std::runtime_error("failed to allocate the bias of fused drafts");
        }
    }
    bias = ggml_get_first_tensor(bias_ctx.get());

    std::vector<float> data(model.vocab.n_tokens(), 0.0f);
    for (const llama_token token : tokens) {
        data[token] = -INFINITY;
    }
    ggml_backend_tensor_set(bias, data.data(), 0, ggml_nbytes(bias));
}

pymtp_status mtp_engine::draft_greedy(int32_t head, const std::vector<mtp_row> & rows, int32_t * n_steps,
                                      int32_t * tokens) {
    const uint32_t n_pos = ctx.model.hparams.n_pos_per_embd();

    // the cells of all steps before any graph input looks at the cache
    steps.clear();
    for (int32_t i = 0; i < *n_steps; ++i) {
        draft_step step;
        if (i == 0) {
            step.ubatch = mtp_ubatch_make(rows, n_pos, n_stream());
        } else {
            // the token comes from the step before
            step.ubatch = mtp_ubatch_make({ { 0, rows.back().pos + i, rows.back().seq, true } }, n_pos, n_stream());
        }
        step.mctx = mtp_memory_place(ctx.memory.get(), step.ubatch);
        if (llama_memory_status_is_fail(step.mctx->get_status())) {
            break;
        }
        steps.push_back(std::move(step));
    }

    if (steps.empty()) {
        return PYMTP_FULL;
    }
    *n_steps = steps.size();

    read_rows(rows);

    {
        const mtp_memory_placed placed(ctx.memory.get());
        for (size_t i = 1; i < steps.size(); ++i) {
            steps[i].mctx->apply();
        }
    }

    const auto * res = run_head(head, steps[0].ubatch, *steps[0].mctx);
    if (res) {
        ++counters.n_head_passes;
        for (size_t i = 0; i < steps.size(); ++i) {
            fetch(res->t_sampled[i], tokens + i);
        }
        ctx.synchronize();
    }
    steps.clear();
    return res ? PYMTP_OK : PYMTP_FAILED;
}
