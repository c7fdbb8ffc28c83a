#include "mtp-engine.h"

#include "llama-model.h"
#include "mtp-graph-check.h"
#include "mtp-memory.h"
#include "mtp-padding.h"

#include <algorithm>

// more than any architecture's head has
static constexpr size_t MTP_NODES_PER_RUN = 512;

mtp_engine & mtp_engine::attach(llama_context & ctx, const mtp_heads::params & heads, uint32_t n_rows_round) {
    ctx.mtp = std::make_shared<mtp_engine>(ctx, heads, n_rows_round);

    // the worst case now includes the heads
    ctx.sched_need_reserve = true;
    ctx.sched_reserve();
    return *ctx.mtp;
}

// The backend of the device that has all layers, if one does.
static ggml_backend_t mtp_only_backend(const llama_model & model, const std::vector<ggml_backend_t> & backends) {
    auto * const dev    = model.dev_output();
    bool         is_all = ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU;
    for (uint32_t il = 0; il < model.hparams.n_layer_all; ++il) {
        is_all &= model.dev_layer(il) == dev;
    }
    const auto it = std::find_if(backends.begin(), backends.end(),
                                 [&](ggml_backend_t backend) { return ggml_backend_get_device(backend) == dev; });
    return is_all && it != backends.end() ? *it : nullptr;
}

mtp_engine::mtp_engine(llama_context & ctx, const mtp_heads::params & params, uint32_t n_rows_round) :
    heads(ctx, params), vocab(ctx.model, heads.model(), heads.n_heads), adapters(ctx.model, *ctx.loras), ctx(ctx),
    n_rows_round(n_rows_round), device(mtp_only_backend(ctx.model, ctx.backend_ptrs)), batch(&ctx), planner(ctx, heads),
    graphs(ctx), trunk_outputs(ctx, counters.n_output_bytes, counters.t_trunk_us),
    draft_outputs(ctx, counters.n_output_bytes, counters.t_head_us) {
    images.resize(ctx.cparams.n_seq_max);

    // each graph has a scheduler: copies for pipelining would multiply its buffers, and only speed up long prompts
    ctx.cparams.pipeline_parallel = false;

    // heads need the hidden state of every row; else architectures spare the last layer the rows without output
    ctx.cparams.embeddings_nextn        = heads.n_heads > 0;
    ctx.cparams.embeddings_nextn_masked = heads.n_heads == 0;
}

// --- around a pass

void mtp_engine::select_home() {
    graphs.select(graphs.home());
    in_pass = false;
}

void mtp_engine::drop_graphs() {
    select_home();
    graphs.clear();
    forget_outputs();
}

mtp_kept_graph & mtp_engine::find_graph(const llama_ubatch & ubatch, llm_graph_type gtype,
                                        const llama_memory_context_i * mctx) {
    const bool is_draft = gtype == LLM_GRAPH_TYPE_DECODER_MTP;

    // Prompts share the context's own scheduler and its worst-case buffer, as their numbers of rows hardly ever come again:
    // but for those that are padded, where graphs share memory. Parts of prompts in a pass with rounds are prompts, too,
    // that is, where some rows have logits and some have none.
    const bool has_both = ctx.n_outputs > 0 && (uint32_t) ctx.n_outputs < ubatch.n_tokens;
    has_prompt          = !is_draft && (ubatch.n_tokens > n_rows_round || has_both);
    if (cur_image || (has_prompt && !(planner.is_padding() && graphs.share_memory()))) {
        return graphs.home();
    }

    // attention on a device passes over the cells of other sequences where rows of several are there
    const auto           n_kv        = mtp_memory_n_kv(mctx);
    const bool           sees_all    = is_async() && ubatch.n_seqs_unq == 1 && n_kv[0] > MTP_CELLS_STEP;
    const bool           has_streams = heads.n_stream() > 1;
    std::vector<int64_t> key         = { gtype, ubatch.n_tokens, ctx.n_outputs, n_reduced, sees_all };

    const auto append = [&](const std::vector<int64_t> & more) {
        key.insert(key.end(), more.begin(), more.end());
    };
    // sequences side by side: their streams, or their recurrent states
    if (ubatch.equal_seqs()) {
        append({ ubatch.seq_id_unq, ubatch.seq_id_unq + ubatch.n_seqs_unq });
    }
    if (is_draft) {
        append(vocab.key());
    }
    append(plan().key(has_streams));

    // a draft has no trunk, and some nodes that are no head's
    const size_t n_per_run = MTP_NODES_PER_RUN + adapters.n_nodes_of_head();
    const size_t max_nodes =
        (is_draft ? MTP_NODES_PER_RUN : ctx.gf_res_reserve->get_max_nodes()) + plan().n_runs() * n_per_run;

    return graphs.find(std::move(key), n_kv, max_nodes, ctx.n_outputs > 0, !is_draft);
}

// A GPU needs about as long for this many rows of logits as for one, beside what a longer prompt takes.
static constexpr uint32_t MTP_PROMPT_OUTPUTS = 64;
static constexpr uint32_t MTP_LONGER_PROMPT  = 128;

// What is added to the outputs of a pass with a prompt is the first row again (llm_graph_input_out_ids).
void mtp_engine::pad_outputs(const llama_ubatch & ubatch) {
    const uint32_t n_least  = ubatch.n_tokens > MTP_LONGER_PROMPT ? MTP_PROMPT_OUTPUTS : 1;
    const uint32_t n_padded = std::min(mtp_padded_step(std::max(ctx.n_outputs, n_least)), ctx.cparams.n_outputs_max);
    const bool     is_whole = ubatch.n_tokens == batch.tokens.size();
    if (planner.is_padding() && is_whole && ctx.n_outputs > 0 && ctx.n_outputs < n_padded &&
        n_padded < ubatch.n_tokens) {
        n_unread += n_padded - ctx.n_outputs;
        ctx.n_outputs = n_padded;
    }
}

void mtp_engine::begin(const llama_ubatch & ubatch, llm_graph_type gtype, const llama_memory_context_i * mctx) {
    forget_outputs();
    graphs.drop_moved();
    if (gtype != LLM_GRAPH_TYPE_DECODER_MTP) {
        ++counters.n_trunk_passes;
        cur_plan = cur_image ? planner.image(ubatch, mctx, *cur_image) : planner.trunk(ubatch, mctx, n_fed);
        // sequences side by side come in another order
        n_unread = ubatch.equal_seqs() ? 0 : n_added_outputs;
        pad_outputs(ubatch);
    }
    auto & graph = find_graph(ubatch, gtype, mctx);
    if (&graph != &graphs.current()) {
        ctx.synchronize(); // it computes where the other one did
    }
    graphs.select(graph);
    in_pass = true;
}

void mtp_engine::begin_build(const llm_graph_params & params) {
    graphs.current().reduced = {};
    if (in_pass) {
        ++(params.gtype == LLM_GRAPH_TYPE_DECODER_MTP ? counters.n_head_builds : counters.n_trunk_builds);
    } else {
        cur_plan = planner.largest(params.ubatch, params.mctx);
    }
}

void mtp_engine::end_build(ggml_cgraph * gf) {
    mtp_check_graph(gf);
    if (!in_pass) {
        adapters.observe(gf);
    }
    // prompts are large enough to hide their inputs' way; a cache of experts needs inputs where the scheduler splits
    if (in_pass && device && !graphs.is_home() && !has_prompt && !ctx.moe_cache) {
        graphs.current().inputs.place(gf, device, input_memory);
    }
}

const llm_graph_params & mtp_engine::stage_params(size_t stage, const llm_graph_params & pass) {
    // large, and most of it never changes
    if (!part_params) {
        part_params = std::make_unique<llm_graph_params>(pass);
    }
    part_params->gtype  = LLM_GRAPH_TYPE_DECODER_MTP;
    part_params->ubatch = plan().stages[stage].ubatch;
    part_params->mctx   = plan().stages[stage].mctx;
    return *part_params;
}

void mtp_engine::set_head_model(llm_graph_params & params) const {
    if (!heads.has_assistant()) {
        return;
    }
    static const llama_adapter_loras none; // the trunk's are for tensors of the same names

    params.arch              = heads.model().arch;
    params.hparams           = heads.model().hparams;
    params.loras             = &none;
    params.cparams.ctx_other = &ctx; // whose token embedding it reads

    // by the number of a layer the context would look for the device of its own model's
    params.cb = [cb = params.cb](const llama_ubatch & ubatch, ggml_tensor * cur, const char * name, int) {
        cb(ubatch, cur, name, -1);
    };
}

int32_t mtp_engine::decode(const std::vector<mtp_row> & rows, const uint8_t * flags,
                           const std::vector<mtp_row> & added) {
    batch.tokens.resize(rows.size() + added.size());
    n_fed.assign(batch.tokens.size(), -1);
    n_added_outputs = std::count_if(added.begin(), added.end(), [](const mtp_row & row) { return row.output; });
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
        const bool   is_added = i >= rows.size();
        const auto & row      = is_added ? added[i - rows.size()] : rows[i];
        auto &       token    = batch.tokens[i];
        token.id              = row.token;
        token.pos[0]          = row.pos;
        token.output          = row.output;
        if (token.seq_ids.count(row.seq) == 0) {
            token.seq_ids = { row.seq };
        }
        if (!is_added) {
            n_fed[i] = flags[i] >> PYMTP_ROW_FEED_SHIFT;
        }
    }
    return ctx.decode(batch);
}

int32_t mtp_engine::decode_image(const mtp_image_rows & rows, const float * embd, const std::vector<llama_pos> & pos) {
    mtp_image_rows image = rows;
    image.n_heads        = heads.own_memory() ? 0 : std::min(rows.n_heads, heads.n_storing);

    const mtp_restored decoded(cur_image, &image);
    const size_t       n_embd   = ctx.model.hparams.n_embd_inp();
    const int32_t      n_ubatch = ctx.cparams.n_ubatch;
    const int32_t      n_pos    = pos.size() / image.n_rows;

    for (int32_t begin = 0; begin < image.n_rows; begin += n_ubatch) {
        const int32_t n = std::min(n_ubatch, image.n_rows - begin);

        std::vector<llama_pos> part;
        for (int32_t section = 0; section < n_pos; ++section) {
            const auto first = pos.begin() + section * image.n_rows + begin;
            part.insert(part.end(), first, first + n);
        }
        std::vector<int32_t>        n_seq_id(n, 1);
        llama_seq_id                seq = image.seq;
        std::vector<llama_seq_id *> seq_id(n, &seq);
        std::vector<int8_t>         logits(n, 0);

        n_fed.assign(n, 0);
        const int32_t res = llama_decode(&ctx, { n, nullptr, const_cast<float *>(embd) + begin * n_embd, part.data(),
                                                 n_seq_id.data(), seq_id.data(), logits.data() });
        if (res != 0) {
            return res;
        }
    }
    heads.truncate(image.seq, image.begin + image.n_pos);
    images[image.seq].spans.push_back({ image.begin, image.n_pos });
    return 0;
}

// --- drafts

llm_graph_result * mtp_engine::run_draft(mtp_plan_ptr plan) {
    const auto & stages = plan->stages;
    const auto & first  = stages[plan->first_step()];

    const mtp_restored     outputs(ctx.n_outputs, first.ubatch.n_tokens);
    const mtp_memory_scope placed(heads.memory(), &mtp_reservation::placed, true);

    for (const auto & stage : stages) {
        if (&stage != &first) {
            stage.mctx_owned->apply();
        }
    }
    ++counters.n_head_passes;
    cur_plan = std::move(plan);

    ggml_status status;
    return ctx.process_ubatch(first.ubatch, LLM_GRAPH_TYPE_DECODER_MTP, first.mctx_owned.get(), status);
}

pymtp_status mtp_engine::draft(int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows) {
    n_drafted = 0;

    float * logits = draft_logits_data(mtp_rows_with_output(rows, true).size());

    if (step == 0) {
        heads.start_draft(rows, std::min(n_steps, heads.n_storing));
    }
    const auto parts = planner.split(rows);
    for (const auto & part : parts) {
        auto plan = planner.step(step, n_steps, part);
        if (!plan) {
            return PYMTP_FULL;
        }
        const size_t n_rows = plan->n_drafting;
        const auto * res    = run_draft(std::move(plan));
        if (!res) {
            return PYMTP_FAILED;
        }
        hold(draft_outputs, *res, n_rows);
        if (parts.size() > 1) {
            draft_outputs.fetch(logits + (size_t) n_drafted * vocab.size());
        }
        n_drafted += n_rows;
    }
    return PYMTP_OK;
}

pymtp_status mtp_engine::draft_greedy(const std::vector<mtp_row> & rows, int32_t * n_steps, int32_t * drafts,
                                      float * probs) {
    const int32_t n_asked = *n_steps;

    heads.start_draft(rows, std::min(n_asked, heads.n_storing));

    size_t i_seq = 0;
    for (const auto & part : planner.split(rows)) {
        auto plan = planner.greedy(*n_steps, n_asked, part, probs != nullptr);
        if (!plan) {
            return PYMTP_FULL;
        }
        *n_steps = plan->n_steps();

        const size_t n   = plan->n_drafting;
        const auto * res = run_draft(std::move(plan));
        if (!res) {
            return PYMTP_FAILED;
        }
        fetch_picked(*res, n, n_asked, drafts + i_seq * n_asked, probs ? probs + i_seq * n_asked : nullptr);
        i_seq += n;
    }
    return PYMTP_OK;
}

void mtp_engine::fetch_picked(const llm_graph_result & res, size_t n, int32_t n_asked, int32_t * drafts,
                              float * probs) {
    const size_t n_steps  = res.t_sampled.size();
    const size_t n_picked = n_steps * n;

    // [n_steps][n], to where a device copies them without waiting for each
    auto * const tokens = (int32_t *) picked_mem.get(2 * n_picked * sizeof(int32_t), ctx.model.dev_output());
    auto * const likely = (float *) (tokens + n_picked);

    const auto fetch = [&](ggml_tensor * tensor, void * data) {
        // of the rows that count; both have 4 bytes for each
        auto * backend = ggml_backend_sched_get_tensor_backend(ctx.sched.get(), tensor);
        ggml_backend_tensor_get_async(backend, tensor, data, 0, n * sizeof(int32_t));
        counters.n_output_bytes += n * sizeof(int32_t);
    };
    for (size_t step = 0; step < n_steps; ++step) {
        fetch(res.t_sampled[step], tokens + step * n);
        if (probs) {
            fetch(res.t_sampled_probs[step], likely + step * n);
        }
    }
    ctx.synchronize();

    for (size_t i = 0; i < n; ++i) {
        for (size_t step = 0; step < n_steps; ++step) {
            drafts[i * n_asked + step] = tokens[step * n + i];
            if (probs) {
                probs[i * n_asked + step] = likely[step * n + i];
            }
        }
    }
}

mtp_draft_vocab & mtp_engine::change_vocab() {
    forget_outputs();
    ctx.synchronize(); // a draft may still read what goes
    return vocab;
}

std::string mtp_engine::adapt(std::vector<llama_adapter_lora *> added, std::vector<float> scales) {
    const auto set = [&] {
        forget_outputs();
        ctx.set_adapters_lora(added.data(), added.size(), scales.data());
        adapters.set(*ctx.loras);
        // at once: a draft may come next, which does not look whether anything has changed
        ctx.sched_reserve();
    };
    set();

    const std::string passed_over = adapters.passed_over();
    if (passed_over.empty()) {
        return "";
    }
    added.clear();
    scales.clear();
    set();
    return "the adapter is for " + passed_over + ", to which llama.cpp's graph of " + llm_arch_name(ctx.model.arch) +
           " applies no adapter; merge it into the model";
}

// --- logits

bool mtp_engine::is_async() const {
    return ggml_backend_dev_type(ctx.model.dev_output()) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

void mtp_engine::build_reduced(ggml_context * ctx0, ggml_cgraph * gf, ggml_tensor * logits) {
    if (in_pass && logits && n_reduced > 0) {
        // a draft has no more logits than its vocabulary
        const bool of_draft      = logits->ne[0] != ctx.model.vocab.n_tokens() || vocab.is_listed();
        graphs.current().reduced = mtp_candidates::build(ctx0, gf, logits, n_logits(of_draft), n_reduced);
    }
}

void mtp_engine::forget_outputs() {
    trunk_outputs.forget();
    draft_outputs.forget();
}

void mtp_engine::hold(mtp_outputs & outputs, const llm_graph_result & res, size_t n_rows) {
    ggml_tensor * logits = res.get_logits();
    outputs.hold(logits, n_rows, graphs.current().reduced,
                 ggml_backend_sched_get_tensor_backend(ctx.sched.get(), logits));
}

bool mtp_engine::hold_logits(const llm_graph_result & res, bool is_whole_batch) {
    if (!is_whole_batch || ctx.n_outputs == 0) {
        return false;
    }
    hold(trunk_outputs, res, ctx.n_outputs - n_unread);
    return true;
}

const float * mtp_engine::logits(bool of_draft) {
    if (of_draft) {
        float * data = draft_logits_data(n_drafted);
        draft_outputs.fetch(data);
        return data;
    }
    trunk_outputs.fetch(ctx.logits.data);
    ctx.synchronize(); // those of several ubatches are on their way
    return ctx.get_logits();
}

float * mtp_engine::draft_logits_data(size_t n_rows) {
    return (float *) draft_logits_mem.get(n_rows * vocab.size() * sizeof(float), ctx.model.dev_output());
}

// llama.cpp puts rows into the batch's order when logits are asked for; until then it remembers what to swap
int32_t mtp_engine::trunk_row(int32_t row) const {
    for (auto it = ctx.output_swaps.rbegin(); it != ctx.output_swaps.rend(); ++it) {
        row = row == (int32_t) it->i0 ? it->i1 : row == (int32_t) it->i1 ? it->i0 : row;
    }
    return row;
}

void mtp_engine::candidates(bool of_draft, int32_t row, int32_t n, int32_t * ids, float * values) {
    auto & outputs = of_draft ? draft_outputs : trunk_outputs;
    if (!outputs.find_highest(of_draft ? row : trunk_row(row), n, ids, values)) {
        mtp_candidates_select(logits_row(of_draft, row), n_logits(of_draft), n, ids, values);
    }
    if (const llama_token * of_row = tokens(of_draft)) {
        std::transform(ids, ids + n, ids, [&](int32_t id) { return of_row[id]; });
    }
}
