// The passes of the heads: prompts that fill their cache, single draft steps, fused drafts.

#include "llama-model.h"
#include "mtp-engine.h"
#include "mtp-memory.h"

#include <cmath>

llm_graph_result * mtp_engine::run_head(int32_t head, const llama_ubatch & ubatch, llama_memory_context_i & mctx) {
    uint32_t n_outputs = 0;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        n_outputs += ubatch.output[i] != 0;
    }

    const uint32_t n_outputs_trunk = ctx.n_outputs;

    ctx.n_outputs                  = n_outputs;
    ctx.cparams.nextn_layer_offset = head;

    // also when the pass throws
    struct restore {
        llama_context & ctx;
        uint32_t        n_outputs;

        ~restore() {
            ctx.cparams.nextn_layer_offset = 0;
            ctx.n_outputs                  = n_outputs;
        }
    };

    const restore           restored = { ctx, n_outputs_trunk };
    const mtp_memory_placed placed(ctx.memory.get());

    ggml_status status;
    return ctx.process_ubatch(ubatch, LLM_GRAPH_TYPE_DECODER_MTP, &mctx, status);
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
        for (const auto & row : rows) {
            hidden_rows.truncate(row.seq, row.pos);
        }
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

    if (!bias_mem.buf) {
        bias_mem.alloc("mtp_bias", model.vocab.n_tokens(), 1, model.dev_output());
    }
    bias = ggml_get_first_tensor(bias_mem.ctx.get());

    std::vector<float> data(model.vocab.n_tokens(), 0.0f);
    for (const llama_token token : tokens) {
        data[token] = -INFINITY;
    }
    ggml_backend_tensor_set(bias, data.data(), 0, ggml_nbytes(bias));
}

pymtp_status mtp_engine::draft_greedy(int32_t head, const std::vector<mtp_row> & rows, int32_t * n_steps,
                                      int32_t * tokens) {
    const uint32_t n_pos = ctx.model.hparams.n_pos_per_embd();

    // whatever happens, the next pass is not one of these steps
    struct clear_steps {
        mtp_engine & mtp;

        ~clear_steps() {
            mtp.steps.clear();
            mtp.step_built = 0;
        }
    };

    const clear_steps cleared = { *this };

    // the cells of all steps before any graph input looks at the cache
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
    return res ? PYMTP_OK : PYMTP_FAILED;
}
