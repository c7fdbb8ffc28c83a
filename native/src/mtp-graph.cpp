#include "mtp-graph.h"

#include "llama-model.h"
#include "mtp-engine.h"
#include "mtp-single-rows.h"

#include <cstring>
#include <vector>

// token ids of a head's pass and the rows of the hidden buffer that it reads
class mtp_graph_input_rows : public llm_graph_input_i {
  public:
    mtp_graph_input_rows(const mtp_engine & mtp, llm_graph_input_ptr host, ggml_tensor * tokens, ggml_tensor * rows) :
        mtp(mtp), host(std::move(host)), tokens(tokens), rows(rows) {}

    void set_input(const llama_ubatch * ubatch) override {
        GGML_ASSERT(mtp.rows_read.size() == ubatch->n_tokens);

        ggml_backend_tensor_set(tokens, ubatch->token, 0, ggml_nbytes(tokens));
        ggml_backend_tensor_set(rows, mtp.rows_read.data(), 0, ggml_nbytes(rows));
    }

    bool can_reuse(const llm_graph_params & params) override { return rows->ne[0] == params.ubatch.n_tokens; }

  private:
    const mtp_engine &  mtp;
    llm_graph_input_ptr host;   // the input that this one stands for: not set any more
    ggml_tensor *       tokens; // I32 [n_tokens]
    ggml_tensor *       rows;   // I32 [n_tokens]
};

// an input of one step of a fused draft: sees the rows and the cache of its step
class mtp_graph_input_step : public llm_graph_input_i {
  public:
    mtp_graph_input_step(mtp_engine & mtp, size_t step, llm_graph_input_ptr inner) :
        mtp(mtp), step(step), inner(std::move(inner)) {}

    void set_input(const llama_ubatch *) override { inner->set_input(&mtp.steps[step].ubatch); }

    bool can_reuse(const llm_graph_params & params) override { return inner->can_reuse(mtp.step_params(step, params)); }

  private:
    mtp_engine &        mtp;
    size_t              step;
    llm_graph_input_ptr inner;
};

// stands in for an input that has nothing to set: its tensors are views of the step before, or not in the graph
class mtp_graph_input_none : public llm_graph_input_i {
  public:
    explicit mtp_graph_input_none(llm_graph_input_ptr host) : host(std::move(host)) {}

    void set_input(const llama_ubatch *) override {}

    bool can_reuse(const llm_graph_params &) override { return true; }

  private:
    llm_graph_input_ptr host;
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

// The architecture's graph goes on to use the leaf, and nothing has been expanded yet: make the leaf itself the
// operation. So no architecture has to know that its inputs come from the device.
static void mtp_graph_leaf_to_gather(ggml_tensor * leaf, ggml_tensor * src, ggml_tensor * rows) {
    GGML_ASSERT(leaf->op == GGML_OP_NONE && leaf->type == GGML_TYPE_F32 && leaf->ne[0] == src->ne[0]);
    leaf->flags &= ~GGML_TENSOR_FLAG_INPUT;
    leaf->op     = GGML_OP_GET_ROWS;
    leaf->src[0] = src;
    leaf->src[1] = rows;
}

static void mtp_graph_leaf_to_view(ggml_tensor * leaf, ggml_tensor * src) {
    GGML_ASSERT(leaf->op == GGML_OP_NONE && leaf->type == src->type && ggml_nelements(leaf) == ggml_nelements(src));
    GGML_ASSERT(ggml_is_contiguous(src));
    leaf->flags &= ~GGML_TENSOR_FLAG_INPUT;
    leaf->op        = GGML_OP_VIEW;
    leaf->src[0]    = src;
    leaf->view_src  = src->view_src ? src->view_src : src;
    leaf->view_offs = src->view_offs;
}

static llm_graph_input_ptr mtp_graph_tie_to_step(llm_graph_result & res, llm_graph_input_ptr input) {
    auto & mtp = *res.mtp;
    if (mtp.steps.empty()) {
        return input;
    }
    return std::make_unique<mtp_graph_input_step>(mtp, mtp.step_built, std::move(input));
}

llm_graph_input_ptr mtp_graph_wrap_input(llm_graph_result & res, llm_graph_input_ptr input) {
    if (!res.mtp) {
        return input;
    }
    auto & mtp = *res.mtp;

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
        return mtp_graph_tie_to_step(res, std::move(input));
    }

    if (mtp.step_built > 0) {
        mtp_graph_leaf_to_view(tokens, mtp.step_token);
        mtp_graph_leaf_to_view(h, mtp.step_hidden);
        return std::make_unique<mtp_graph_input_none>(std::move(input));
    }

    ggml_tensor * rows = ggml_new_tensor_1d(res.get_ctx(), GGML_TYPE_I32, h->ne[1]);
    ggml_set_input(rows);
    ggml_set_name(rows, "mtp_rows_read");

    mtp_graph_leaf_to_gather(h, mtp.hidden, rows);

    return mtp_graph_tie_to_step(res, std::make_unique<mtp_graph_input_rows>(mtp, std::move(input), tokens, rows));
}

// Only the nodes that store K/V, and what they need. Inputs of the rest are left without a buffer: the attention mask
// is not set then, and the output rows, of which there are none, are tied to nothing.
static void mtp_graph_keep_stores(llm_graph_result & res) {
    ggml_cgraph * gf = res.get_gf();

    std::vector<ggml_tensor *> stores;
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_SET_ROWS) {
            stores.push_back(node);
        }
    }

    ggml_graph_clear(gf);
    for (auto * store : stores) {
        ggml_build_forward_expand(gf, store);
    }

    for (auto & input : res.inputs) {
        if (dynamic_cast<llm_graph_input_out_ids *>(input.get())) {
            input = std::make_unique<mtp_graph_input_none>(std::move(input));
        }
    }
}

void mtp_graph_finish(llm_graph_context & llm, const llm_graph_params & params) {
    mtp_engine * mtp = params.res->mtp;
    if (!mtp) {
        return;
    }

    const bool is_head = params.gtype == LLM_GRAPH_TYPE_DECODER_MTP;

    mtp->count_build(is_head);

    if (params.ubatch.n_tokens <= MTP_SINGLE_ROWS_MAX) {
        mtp_graph_mark_single_rows(llm.gf);
    }

    auto * res = params.res;

    if (is_head && params.n_outputs == 0) {
        mtp_graph_keep_stores(*res);
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

bool mtp_graph_build_steps(const llama_model & model, const llm_graph_params & params) {
    mtp_engine * mtp = params.res->mtp;
    if (!mtp || mtp->steps.empty() || params.gtype != LLM_GRAPH_TYPE_DECODER_MTP) {
        return false;
    }

    auto * res  = params.res;
    auto * ctx0 = res->get_ctx();
    auto * gf   = res->get_gf();

    mtp->count_build(true);

    for (size_t i = 0; i < mtp->steps.size(); ++i) {
        mtp->step_built = i;
        const auto llm  = model.build_arch_graph(mtp->step_params(i, params));

        ggml_tensor * scores = res->t_logits;
        if (mtp->bias) {
            scores = ggml_add(ctx0, scores, mtp->bias);
        }
        ggml_tensor * token = ggml_argmax(ctx0, scores);
        ggml_set_output(token);
        ggml_build_forward_expand(gf, token);
        res->t_sampled.push_back(token);

        // of the last row: some architectures keep the hidden states of all rows, some of the output row only
        ggml_tensor * h  = res->t_h_nextn;
        mtp->step_token  = token;
        mtp->step_hidden = ggml_view_2d(ctx0, h, h->ne[0], 1, h->nb[1], (h->ne[1] - 1) * h->nb[1]);
    }
    mtp->step_built = 0;

    if (params.ubatch.n_tokens <= MTP_SINGLE_ROWS_MAX) {
        mtp_graph_mark_single_rows(gf);
    }

    // the tokens are the only output
    res->t_logits  = nullptr;
    res->t_h_nextn = nullptr;
    res->set_params(params);

    return true;
}
