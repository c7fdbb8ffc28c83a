#include "mtp-engine.h"

#include "llama-model.h"
#include "mtp-memory.h"

#include <algorithm>
#include <stdexcept>
#include <string>

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

    hidden = hidden_mem.alloc("mtp_hidden", model.hparams.n_embd_out(), hidden_rows.size(),
                              model.dev_layer(model.hparams.n_layer()));
}

ggml_tensor * mtp_engine::device_tensor::alloc(const char * name, int64_t ne0, int64_t ne1, ggml_backend_dev_t dev) {
    ggml_init_params params = { ggml_tensor_overhead(), nullptr, true };
    ctx.reset(ggml_init(params));

    auto * tensor = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, ne0, ne1);
    ggml_set_name(tensor, name);

    buf.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_dev_buffer_type(dev)));
    if (!buf) {
        throw std::runtime_error(std::string("failed to allocate ") + name);
    }
    ggml_backend_buffer_clear(buf.get(), 0);
    return tensor;
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
    in_pass = false;
}

void mtp_engine::drop_slots() {
    select_home();
    slots.clear();
    // each slot has a scheduler: copies for pipelining would multiply its buffers, and only speed up long prompts
    ctx.cparams.pipeline_parallel = false;
}

mtp_engine::graph_slot * mtp_engine::find_slot(const llama_ubatch & ubatch, llm_graph_type gtype) {
    if (ubatch.n_tokens > MTP_SLOT_TOKENS_MAX) {
        return &home;
    }

    const graph_slot::key_t key = {
        gtype, ubatch.n_tokens, ctx.n_outputs, ubatch.n_seqs_unq, ctx.cparams.nextn_layer_offset, steps.size(), bias,
    };

    for (auto & slot : slots) {
        if (slot->key == key) {
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

    slot->key = key;

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
    // not the graphs that llama.cpp builds to see how large its buffers must be
    if (!in_pass) {
        return;
    }
    ++(is_head ? counters.n_head_builds : counters.n_trunk_builds);
}

//
// hidden rows
//

void mtp_engine::begin(const llama_ubatch & ubatch, llm_graph_type gtype) {
    graph_slot * slot = find_slot(ubatch, gtype);

    slot->t_used = ++t;
    select(slot);
    in_pass = true;

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

uint32_t mtp_engine::n_stream() const {
    return ctx.cparams.kv_unified ? 1 : ctx.cparams.n_seq_max;
}
