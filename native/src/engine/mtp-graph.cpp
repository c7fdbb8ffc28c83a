#include "mtp-graph.h"

#include "head-graph.h"
#include "head-part.h"
#include "llama-model.h"
#include "mtp-engine.h"
#include "mtp-graph-edit.h"
#include "mtp-memory.h"
#include "mtp-refuse.h"

#include <cstring>
#include <string>
#include <typeinfo>
#include <vector>

// --- inputs

// What the plan of a pass has for its graph: rows of the hidden buffer that the trunk writes, tokens and hidden rows of
// the stages. What is not in the graph is nullptr, or has no buffer.
class mtp_graph_input_plan : public llm_graph_input_i {
  public:
    struct stage {
        ggml_tensor * tokens     = nullptr; // I32 [n_tokens]
        ggml_tensor * rows_read  = nullptr; // I32 [n_tokens]
        ggml_tensor * rows_write = nullptr; // I64 [n_tokens]
        ggml_tensor * sees_all   = nullptr; // F32 [1, n_tokens]; without a buffer where all see a small cache whole
    };

    explicit mtp_graph_input_plan(const mtp_engine & mtp) : mtp(mtp), key(mtp.plan().key(false)) {}

    void set_input(const llama_ubatch *) override {
        const auto & plan = mtp.plan();
        set(rows_trunk, plan.rows_trunk.data(), plan.rows_trunk.size());
        for (size_t i = 0; i < stages.size(); ++i) {
            const auto & cur = plan.stages[i];
            set(stages[i].tokens, cur.ubatch.token, cur.ubatch.n_tokens);
            set(stages[i].rows_read, cur.rows_read.data(), cur.rows_read.size());
            set(stages[i].rows_write, cur.rows_write.data(), cur.rows_write.size());
            set(stages[i].sees_all, cur.sees_all.data(), cur.sees_all.size());
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        return (!rows_trunk || rows_trunk->ne[0] == params.ubatch.n_tokens) && key == mtp.plan().key(false);
    }

    ggml_tensor *      rows_trunk = nullptr; // I64 [n_tokens]
    std::vector<stage> stages;

  private:
    const mtp_engine &         mtp;
    const std::vector<int64_t> key; // of the plan that the graph was built for

    template <typename T> static void set(ggml_tensor * tensor, const T * data, size_t n) {
        if (tensor && tensor->buffer) {
            GGML_ASSERT((size_t) ggml_nelements(tensor) == n);
            ggml_backend_tensor_set(tensor, data, 0, n * sizeof(T));
        }
    }
};

// An input of a head's part: sees the rows and the cache of its stage. One that is tied has nothing to set: its tensors
// are views of others.
class mtp_graph_input_part : public llm_graph_input_i {
  public:
    mtp_graph_input_part(mtp_engine & mtp, const head_part & part, llm_graph_input_ptr inner, bool is_tied) :
        mtp(mtp), stage(part.stage), head(part.head), inner(std::move(inner)), is_tied(is_tied) {
        if (const auto * in = dynamic_cast<llm_graph_input_out_ids *>(this->inner.get())) {
            out_ids = in->out_ids;
        }
    }

    void set_input(const llama_ubatch *) override {
        // a part that only stores K/V has no output rows: they are not in the graph
        if (!is_tied && (!out_ids || out_ids->buffer)) {
            mtp.heads.set_input(head, *inner, mtp.plan().stages[stage].ubatch);
        }
    }

    // all rows of a part have outputs, or none: mtp_graph_input_plan counts them
    bool can_reuse(const llm_graph_params & params) override {
        return is_tied || out_ids ||
               (stage < mtp.plan().stages.size() && inner->can_reuse(mtp.stage_params(stage, params)));
    }

  private:
    mtp_engine &        mtp;
    size_t              stage;
    int32_t             head;
    llm_graph_input_ptr inner;
    const bool          is_tied;
    ggml_tensor *       out_ids = nullptr;
};

llm_graph_input_ptr mtp_graph_wrap_input(llm_graph_result & res, llm_graph_input_ptr input) {
    if (!res.mtp || !res.part) {
        return input;
    }
    auto & part = *res.part;

    const auto *  both   = dynamic_cast<const llm_graph_input_embd_h *>(input.get());
    const auto *  either = dynamic_cast<const llm_graph_input_embd *>(input.get());
    ggml_tensor * tokens = both ? both->tokens : either ? either->tokens : nullptr;
    ggml_tensor * hidden = both ? both->h : either ? either->embd : nullptr;
    // an architecture's graph names its input of hidden states; "inp_h" is what an assistant calls it
    if (!hidden || (strcmp(hidden->name, "mtp_h_input") != 0 && strcmp(hidden->name, "inp_h") != 0)) {
        return std::make_unique<mtp_graph_input_part>(*res.mtp, part, std::move(input), false);
    }

    // rows of an image have embeddings instead of tokens, which the trunk takes too
    if (both && both->embd && !res.mtp->plan().stages[part.stage].ubatch.token) {
        mtp_graph_leaf_to_view(both->embd, res.t_inp_embd);
    }
    mtp_graph_leaf_to_view(tokens, part.tokens);
    mtp_graph_leaf_to_view(hidden, part.hidden);
    ++part.n_tied;
    return std::make_unique<mtp_graph_input_part>(*res.mtp, part, std::move(input), true);
}

ggml_tensor * mtp_graph_weight(llm_graph_result & res, ggml_tensor * weight) {
    return res.mtp && res.part ? res.mtp->vocab.weight(res.get_ctx(), res.part->head, weight) : weight;
}

llm_graph_input_i * mtp_graph_trunk_input(const llm_graph_result & res, const llm_graph_input_i & input) {
    const auto & type         = typeid(input);
    const bool   is_attention = type == typeid(llm_graph_input_attn_kv) || type == typeid(llm_graph_input_attn_k) ||
                                type == typeid(llm_graph_input_attn_kv_iswa);
    if (!res.mtp || !res.part || !is_attention || !res.mtp->plan().stages[res.part->stage].as_trunk) {
        return nullptr;
    }
    for (const auto & other : res.inputs) {
        // beside recurrent states attention's is a part of another input
        const auto *        hybrid = dynamic_cast<const llm_graph_input_mem_hybrid *>(other.get());
        llm_graph_input_i * one    = hybrid ? hybrid->get_attn() : other.get();
        if (typeid(*one) == type) {
            return one;
        }
    }
    return nullptr;
}

// --- the heads' part of a graph

class mtp_graph_builder {
  public:
    explicit mtp_graph_builder(const llm_graph_params & params) :
        params(params), mtp(*params.res->mtp), res(params.res), ctx0(res->get_ctx()), gf(res->get_gf()),
        planes(mtp.heads.planes()), outputs(mtp.heads.planes().size(), nullptr), picked_plane(mtp.heads.picked()),
        inputs(static_cast<mtp_graph_input_plan *>(res->add_input(std::make_unique<mtp_graph_input_plan>(mtp)))) {}

    // the hidden states of the trunk's rows go to the buffer
    void add_trunk(ggml_tensor * hidden) {
        inputs->rows_trunk = new_input(GGML_TYPE_I64, params.ubatch.n_tokens, "mtp_rows_trunk");
        store(0, hidden, inputs->rows_trunk);
    }

    // tokens: those of the stage if another part of the graph has them already, else nullptr
    // returns the logits, nullptr if no head of the stage gives any
    ggml_tensor * add_stage(size_t i, ggml_tensor * tokens) {
        const auto &   stage    = mtp.plan().stages[i];
        auto &         input    = inputs->stages.emplace_back();
        const uint32_t n_tokens = stage.ubatch.n_tokens;

        if (!tokens) {
            tokens = input.tokens = new_input(GGML_TYPE_I32, n_tokens, "mtp_tokens");
        }
        input.rows_read  = stage.follows ? nullptr : new_input(GGML_TYPE_I32, n_tokens, "mtp_rows_read");
        input.rows_write = stage.keeps ? new_input(GGML_TYPE_I64, n_tokens, "mtp_rows_write") : nullptr;

        if (!stage.sees_all.empty()) {
            input.sees_all = new_input(GGML_TYPE_F32, n_tokens, "mtp_sees_all");
            take_picked(stage, input.rows_read, input.sees_all);
        } else {
            picked = {};
        }

        std::vector<ggml_tensor *> next(outputs.size(), nullptr);
        ggml_tensor *              logits = nullptr;

        for (const auto & run : stage.runs) {
            ggml_tensor * hidden =
                stage.follows ? outputs[run.plane_read] : ggml_get_rows(ctx0, planes[run.plane_read], input.rows_read);
            GGML_ASSERT(hidden);

            add_run(i, run, tokens, hidden);
            if (run.output == MTP_OUTPUT_NONE) {
                continue;
            }
            next[run.plane_write] = res->t_h_nextn;
            if (input.rows_write) {
                store(run.plane_write, res->t_h_nextn, input.rows_write);
            }
            if (run.output == MTP_OUTPUT_LOGITS) {
                logits = res->t_logits;
            }
        }

        outputs = std::move(next);
        if (input.rows_write) {
            store_picked(input.rows_write);
        }
        return logits;
    }

  private:
    const llm_graph_params & params;
    mtp_engine &             mtp;
    llm_graph_result *       res;
    ggml_context *           ctx0;
    ggml_cgraph *            gf;

    std::vector<ggml_tensor *> planes;  // the hidden buffer, as far as this graph has written it
    std::vector<ggml_tensor *> outputs; // of the stage before, by plane
    head_picked                picked;  // of the stage
    ggml_tensor *              picked_plane;
    mtp_graph_input_plan *     inputs;

    ggml_tensor * new_input(ggml_type type, int64_t n, const char * name) {
        ggml_tensor * tensor = ggml_new_tensor_1d(ctx0, type, n);
        ggml_set_input(tensor);
        ggml_set_name(tensor, name);
        return tensor;
    }

    // after the rows of a plane have been written in this graph, later parts read what was written
    void store(int32_t plane, ggml_tensor * hidden, ggml_tensor * rows) {
        // hyper-connections: a token has several streams, [n_embd, n_streams, n_tokens]
        hidden        = ggml_reshape_2d(ctx0, hidden, planes[plane]->ne[0], rows->ne[0]);
        planes[plane] = ggml_set_rows(ctx0, planes[plane], hidden, rows);
        ggml_build_forward_expand(gf, planes[plane]);
    }

    // What the first draft's index has picked: handed on by the stage before, or kept by another graph. Rows that see
    // all may read what another round left there: cells beyond the cache of now, so they are clamped.
    void take_picked(const mtp_heads_stage & stage, ggml_tensor * rows_read, ggml_tensor * sees_all) {
        ggml_tensor * taken = picked.made;
        if (rows_read) {
            taken = ggml_get_rows(ctx0, picked_plane, rows_read);
            taken = ggml_clamp(ctx0, taken, 0.0f, mtp_memory_n_kv(stage.mctx)[0] - 1.0f);
            taken = ggml_cast(ctx0, taken, GGML_TYPE_I32);
        }
        picked = { taken, sees_all, nullptr };
    }

    void store_picked(ggml_tensor * rows_write) {
        if (picked.made) {
            ggml_tensor * made = ggml_cast(ctx0, picked.made, GGML_TYPE_F32);
            picked_plane       = ggml_set_rows(ctx0, picked_plane, made, rows_write);
            ggml_build_forward_expand(gf, picked_plane);
        }
    }

    // an architecture's graph of one head, on the tensors of the part
    void build_part(head_part part, const llm_graph_params & run_params) {
        const auto &       model = mtp.heads.model();
        const mtp_restored built(res->part, &part);
        head_graph_build(model, run_params);
        // one that is missed would be left to the host, which has no hidden states: drafts of it would be noise
        mtp_refuse_if(part.n_tied != 1,
                      std::string("llama.cpp's graph of the MTP head of ") + llm_arch_name(model.arch) + " has " +
                          std::to_string(part.n_tied) +
                          " inputs named mtp_h_input or inp_h: exactly one is expected, for hidden states");
    }

    void add_run(size_t i, const mtp_run & run, ggml_tensor * tokens, ggml_tensor * hidden) {
        const auto   nodes_before = mtp_graph_nodes(gf);
        const auto & stage        = mtp.plan().stages[i];

        llm_graph_params run_params = params;

        run_params.gtype                      = LLM_GRAPH_TYPE_DECODER_MTP;
        run_params.cparams.nextn_layer_offset = run.head;
        run_params.ubatch                     = stage.ubatch;
        run_params.mctx                       = stage.mctx;
        run_params.n_outputs                  = run.output == MTP_OUTPUT_NONE ? 0 : run_params.ubatch.n_tokens;
        if (params.gtype == LLM_GRAPH_TYPE_DECODER_MTP) {
            // a graph finds the places of a layer's experts once, and each step of a draft chooses others
            run_params.moe_cache = nullptr;
        }
        mtp.set_head_model(run_params);

        build_part({ i, run.head, tokens, hidden, mtp.heads.picked() ? &picked : nullptr }, run_params);

        if (run.output != MTP_OUTPUT_LOGITS) {
            mtp_graph_cut_down(gf, nodes_before, run.output == MTP_OUTPUT_HIDDEN ? res->t_h_nextn : nullptr);
            return;
        }

        // an architecture that multiplies with its output matrix past the hook: drop that product, and make it again
        ggml_tensor * logits = res->t_logits;
        ggml_tensor * weight =
            logits->op == GGML_OP_MUL_MAT ? mtp.vocab.weight(ctx0, run.head, logits->src[0]) : nullptr;
        if (weight && weight != logits->src[0]) {
            mtp_graph_cut_down(gf, nodes_before, res->t_h_nextn);
            res->t_logits = ggml_mul_mat(ctx0, weight, logits->src[1]);
            ggml_build_forward_expand(gf, res->t_logits);
        }
    }
};

// After the trunk: its hidden states go to the buffer and, if the pass feeds them, through the heads.
static void mtp_graph_add_heads(const llm_graph_params & params) {
    auto * mtp    = params.res->mtp;
    auto * res    = params.res;
    auto * logits = res->t_logits;
    auto * embd   = res->t_embd;
    auto * hidden = res->t_h_nextn;
    mtp_refuse_if(!hidden, "the architecture's graph gives no hidden states for MTP heads");

    mtp_graph_builder builder(params);
    builder.add_trunk(hidden);
    if (!mtp->plan().stages.empty()) {
        const size_t  n_before = ggml_graph_n_nodes(res->get_gf());
        ggml_tensor * image    = params.ubatch.token ? nullptr : res->t_inp_embd;
        builder.add_stage(0, res->t_inp_tokens);
        mtp_graph_share_embedding(res->get_gf(), n_before, mtp->heads.model(), res->t_inp_tokens, image);
    }

    // llama.cpp continues with the trunk's, and has no use for the hidden states
    res->t_logits  = logits;
    res->t_embd    = embd;
    res->t_h_nextn = nullptr;
    res->set_params(params);
}

void mtp_graph_finish(const llm_graph_params & params) {
    auto * mtp = params.res->mtp;
    if (!mtp) {
        return;
    }
    mtp->begin_build(params);

    auto * gf = params.res->get_gf();

    mtp->build_reduced(params.res->get_ctx(), gf, params.res->t_logits);
    if (!mtp->heads.planes().empty()) {
        mtp_graph_add_heads(params);
    }
    mtp_graph_mark(gf, params.ubatch, params.sched, mtp->is_invariant);
    mtp->end_build(gf);
}

// [1, n_rows] the probability of tokens [n_rows] by logits [n_vocab, n_rows]
static ggml_tensor * mtp_graph_probs(ggml_context * ctx0, ggml_tensor * logits, ggml_tensor * tokens) {
    ggml_tensor * probs = ggml_soft_max(ctx0, logits);

    probs = ggml_reshape_3d(ctx0, probs, 1, probs->ne[0], probs->ne[1]);
    return ggml_get_rows(ctx0, probs, ggml_reshape_2d(ctx0, tokens, 1, tokens->ne[0]));
}

bool mtp_graph_build_draft(const llm_graph_params & params) {
    mtp_engine * mtp = params.res->mtp;
    if (!mtp || params.gtype != LLM_GRAPH_TYPE_DECODER_MTP) {
        return false;
    }
    mtp->begin_build(params);

    auto * res  = params.res;
    auto * ctx0 = res->get_ctx();
    auto * gf   = res->get_gf();

    mtp_graph_builder builder(params);

    ggml_tensor * tokens = nullptr;
    ggml_tensor * logits = nullptr;

    for (size_t i = 0; i < mtp->plan().stages.size(); ++i) {
        logits = builder.add_stage(i, mtp->plan().stages[i].follows ? tokens : nullptr);
        GGML_ASSERT(!logits || logits->ne[0] == mtp->vocab.size());
        if (!logits || !mtp->plan().picks) {
            continue;
        }

        ggml_tensor * bias = mtp->vocab.logit_bias(ctx0);
        ggml_tensor * best = ggml_argmax(ctx0, bias ? ggml_add(ctx0, logits, bias) : logits);

        ggml_build_forward_expand(gf, best);
        if (mtp->plan().picks_probs) { // right after it, for CUDA to find both at once
            res->t_sampled_probs.push_back(mtp_graph_probs(ctx0, logits, best));
            ggml_build_forward_expand(gf, res->t_sampled_probs.back());
        }
        tokens = mtp->vocab.tokens(ctx0, best);
        res->t_sampled.push_back(tokens);
        ggml_build_forward_expand(gf, tokens);
    }

    res->t_logits = mtp->plan().picks ? nullptr : logits;
    mtp->build_reduced(ctx0, gf, res->t_logits);
    res->t_embd    = nullptr;
    res->t_h_nextn = nullptr;
    res->set_params(params);
    res->set_outputs(params);

    mtp_graph_mark(gf, params.ubatch, params.sched, false);
    mtp->end_build(gf);

    return true;
}
