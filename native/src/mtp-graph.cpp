#include "mtp-graph.h"

#include "mtp-engine.h"

#include <cstring>
#include <vector>

// token ids of a head's pass and the rows of the hidden buffer that it reads
class mtp_graph_input_rows : public llm_graph_input_i {
  public:
    mtp_graph_input_rows(const mtp_engine & mtp, ggml_tensor * tokens, ggml_tensor * rows) :
        mtp(mtp), tokens(tokens), rows(rows) {}

    void set_input(const llama_ubatch * ubatch) override {
        GGML_ASSERT(mtp.rows_read.size() == ubatch->n_tokens);

        ggml_backend_tensor_set(tokens, ubatch->token, 0, ggml_nbytes(tokens));
        ggml_backend_tensor_set(rows, mtp.rows_read.data(), 0, ggml_nbytes(rows));
    }

    bool can_reuse(const llm_graph_params & params) override { return rows->ne[0] == params.ubatch.n_tokens; }

  private:
    const mtp_engine & mtp;
    ggml_tensor *      tokens; // I32 [n_tokens]
    ggml_tensor *      rows;   // I32 [n_tokens]
};

// the rows of the hidden buffer that a pass writes
class mtp_graph_input_write : public llm_graph_input_i {
  public:
    mtp_graph_input_write(const mtp_engine & mtp, ggml_tensor * rows) : mtp(mtp), rows(rows) {}

    void set_input(const llama_ubatch * ubatch) override {
        GGML_ASSERT(mtp.rows_write.size() == ubatch->n_tokens);

        // some architectures keep the hidden states of the output rows only
        const bool all = (size_t) rows->ne[0] == mtp.rows_write.size();

        std::vector<int64_t> data;
        for (uint32_t i = 0; i < ubatch->n_tokens; ++i) {
            if (all || ubatch->output[i]) {
                data.push_back(mtp.rows_write[i]);
            }
        }
        GGML_ASSERT((int64_t) data.size() == rows->ne[0]);

        ggml_backend_tensor_set(rows, data.data(), 0, ggml_nbytes(rows));
    }

    // the rest of the topology decides how many rows there are
    bool can_reuse(const llm_graph_params &) override { return true; }

  private:
    const mtp_engine & mtp;
    ggml_tensor *      rows; // I64 [n_tokens] or [n_outputs]
};

llm_graph_input_ptr mtp_graph_wrap_input(llm_graph_result & res, llm_graph_input_ptr input) {
    if (!res.mtp) {
        return input;
    }

    ggml_tensor * tokens = nullptr;
    ggml_tensor * h      = nullptr;

    if (const auto * in = dynamic_cast<llm_graph_input_embd_h *>(input.get())) {
        tokens = in->tokens;
        h      = in->h;
    } else if (const auto * in = dynamic_cast<llm_graph_input_embd *>(input.get())) {
        tokens = in->tokens;
        h      = in->embd;
    }

    if (!h || strcmp(h->name, "mtp_h_input") != 0) {
        return input;
    }

    ggml_tensor * rows = ggml_new_tensor_1d(res.get_ctx(), GGML_TYPE_I32, h->ne[1]);
    ggml_set_input(rows);
    ggml_set_name(rows, "mtp_rows_read");

    // The architecture's graph goes on to use `h`, and nothing has been expanded yet: make the leaf itself the
    // gather. So no architecture has to know that its hidden states come from the device.
    GGML_ASSERT(h->op == GGML_OP_NONE && h->type == GGML_TYPE_F32 && h->ne[0] == res.mtp->hidden->ne[0]);
    h->flags &= ~GGML_TENSOR_FLAG_INPUT;
    h->op     = GGML_OP_GET_ROWS;
    h->src[0] = res.mtp->hidden;
    h->src[1] = rows;

    return std::make_unique<mtp_graph_input_rows>(*res.mtp, tokens, rows);
}

// Only the nodes that store K/V, and what they need. The inputs of the rest must keep a buffer: they are set anyway.
static void mtp_graph_keep_stores(ggml_cgraph * gf) {
    std::vector<ggml_tensor *> keep;

    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        for (auto * src : node->src) {
            if (src && (src->flags & GGML_TENSOR_FLAG_INPUT)) {
                keep.push_back(src);
            }
        }
    }
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_SET_ROWS) {
            keep.push_back(node);
        }
    }

    ggml_graph_clear(gf);
    for (auto * tensor : keep) {
        ggml_build_forward_expand(gf, tensor);
    }
}

void mtp_graph_finish(llm_graph_context & llm, const llm_graph_params & params) {
    mtp_engine * mtp = params.res->mtp;
    if (!mtp) {
        return;
    }

    const bool is_head = params.gtype == LLM_GRAPH_TYPE_DECODER_MTP;

    mtp->count_build(is_head);

    auto * res = params.res;

    if (is_head && params.n_outputs == 0) {
        mtp_graph_keep_stores(llm.gf);
        res->t_logits  = nullptr;
        res->t_h_nextn = nullptr;
        return;
    }

    ggml_tensor * h = res->t_h_nextn;
    GGML_ASSERT(h && "the architecture's graph gives no hidden state for its MTP heads");

    ggml_tensor * rows = ggml_new_tensor_1d(llm.ctx0, GGML_TYPE_I64, h->ne[1]);
    ggml_set_input(rows);
    ggml_set_name(rows, "mtp_rows_write");

    ggml_build_forward_expand(llm.gf, ggml_set_rows(llm.ctx0, mtp->hidden, h, rows));
    res->add_input(std::make_unique<mtp_graph_input_write>(*mtp, rows));
}
