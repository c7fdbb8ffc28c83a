#include "mtp-engine.h"

#include "llama-model.h"
#include "mtp-memory.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

static constexpr size_t MTP_SLOTS_MAX = 96;

// more than any architecture's head has
static constexpr size_t MTP_NODES_PER_RUN = 512;

mtp_engine & mtp_engine::attach(llama_context & ctx, const params & params) {
    ctx.mtp = std::make_shared<mtp_engine>(ctx, params);

    // the worst case now includes the heads
    ctx.sched_need_reserve = true;
    ctx.sched_reserve();
    return *ctx.mtp;
}

// Converters fill a vocabulary up with unused tokens where the matrices of the model have more rows.
static int32_t mtp_vocab_usable(const llama_vocab & vocab) {
    int32_t n = vocab.n_tokens();
    while (n > 1 && (vocab.token_get_attr(n - 1) & LLAMA_TOKEN_ATTR_UNUSED) &&
           strncmp(vocab.token_get_text(n - 1), "[PAD", 4) == 0) {
        --n;
    }
    return n;
}

// The device that has all layers, if one does.
static ggml_backend_dev_t mtp_only_device(const llama_model & model) {
    auto * const dev = model.dev_output();
    for (uint32_t il = 0; il < model.hparams.n_layer_all; ++il) {
        if (model.dev_layer(il) != dev) {
            return nullptr;
        }
    }
    return ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU ? nullptr : dev;
}

static ggml_backend_t mtp_backend_of(ggml_backend_dev_t dev, const std::vector<ggml_backend_t> & backends) {
    const auto it = std::find_if(backends.begin(), backends.end(),
                                 [&](ggml_backend_t backend) { return ggml_backend_get_device(backend) == dev; });
    return it == backends.end() ? nullptr : *it;
}

mtp_engine::mtp_engine(llama_context & ctx, const params & params) :
    ctx(ctx), n_heads(params.n_heads), chained(params.chained), n_usable(mtp_vocab_usable(ctx.model.vocab)),
    assistant(params.assistant), n_storing(assistant ? 0 : n_heads), n_rows_round(params.n_rows_round),
    device(mtp_backend_of(mtp_only_device(ctx.model), ctx.backend_ptrs)),
    hidden_rows(ctx.cparams.n_ubatch, ctx.cparams.n_seq_max),
    seen(n_storing, std::vector<mtp_seen>(ctx.cparams.n_seq_max)), n_trimmed(ctx.model.vocab.n_tokens()) {
    // each slot has a scheduler: copies for pipelining would multiply its buffers, and only speed up long prompts
    ctx.cparams.pipeline_parallel = false;

    if (n_heads == 0) {
        // nobody reads hidden states: architectures then spare the last layer the rows without output
        ctx.cparams.embeddings_nextn_masked = true;
        return;
    }

    // the heads need the hidden state of every row
    ctx.cparams.embeddings_nextn        = true;
    ctx.cparams.embeddings_nextn_masked = false;

    const auto & model = head_model();

    // the trunk's; where heads are chained one for each head as well
    planes_mem.resize(chained ? n_heads + 1 : 1);
    for (auto & plane : planes_mem) {
        planes.push_back(plane.alloc("mtp_hidden", GGML_TYPE_F32, ctx.model.hparams.n_embd_out(), hidden_rows.size(),
                                     ggml_backend_dev_buffer_type(model.dev_layer(model.hparams.n_layer()))));
    }
    fill_bias();

    if (assistant) {
        assistant_memory = mtp_memory_create_view(*assistant, params.memory, ctx);
    } else if (!mtp_memory_can_share(ctx.memory.get())) {
        own_memory = mtp_memory_create_own(model, params.memory, ctx.cparams);
    }
}

ggml_tensor * mtp_engine::device_tensor::alloc(const char * name, ggml_type type, int64_t ne0, int64_t ne1,
                                               ggml_backend_buffer_type_t buft) {
    ggml_init_params params = { ggml_tensor_overhead(), nullptr, true };
    ctx.reset(ggml_init(params));

    auto * tensor = ggml_new_tensor_2d(ctx.get(), type, ne0, ne1);
    ggml_set_name(tensor, name);

    buf.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft));
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
    held_trunk = {};
    held_draft = {};
}

size_t mtp_engine::compute_bytes() const {
    size_t res = 0;

    const auto add = [&](ggml_backend_sched_t sched) {
        for (auto * backend : ctx.backend_ptrs) {
            res += sched ? ggml_backend_sched_get_buffer_size(sched, backend) : 0;
        }
    };

    // the slot in use has lent its scheduler to the context
    add(ctx.sched.get());
    add(home.sched.get());
    for (const auto & slot : slots) {
        add(slot->sched.get());
    }
    return res;
}

mtp_engine::graph_slot * mtp_engine::find_slot(const llama_ubatch & ubatch, llm_graph_type gtype,
                                               const llama_memory_context_i * mctx) {
    // prompts share the context's own scheduler and its worst-case buffer
    if (gtype != LLM_GRAPH_TYPE_DECODER_MTP && ubatch.n_tokens > n_rows_round) {
        return &home;
    }

    std::vector<int64_t> key = { gtype,     ubatch.n_tokens, ctx.n_outputs,       picks, picks_probs, bias != nullptr,
                                 n_reduced, n_trimmed,       !trim_tokens.empty() };

    size_t n_runs = 0;

    const auto add_rows = [&](const llama_ubatch & rows) {
        key.push_back(rows.n_tokens);
        key.push_back(rows.n_seqs_unq);
        if (n_stream() > 1) {
            key.insert(key.end(), rows.seq_id_unq, rows.seq_id_unq + rows.n_seqs_unq);
        }
    };

    add_rows(ubatch);
    for (const auto & stage : stages) {
        add_rows(stage.ubatch);
        for (const auto & run : stage.runs) {
            key.insert(key.end(), { run.head, run.plane_read, run.plane_write, run.output });
        }
        n_runs += stage.runs.size();
    }

    // Of graphs that only differ in how many cells they look at, two are kept: texts that begin anew need the smaller
    // one again.
    const auto   n_kv    = mtp_memory_n_kv(mctx);
    graph_slot * outworn = nullptr;
    int          n_alike = 0;
    for (auto & slot : slots) {
        if (slot->key != key) {
            continue;
        }
        if (slot->n_kv == n_kv) {
            return slot.get();
        }
        if (n_alike++ == 0 || slot->t_used < outworn->t_used) {
            outworn = slot.get();
        }
    }
    if (n_alike > 1) {
        outworn->n_kv = n_kv;
        return outworn;
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

    // a draft has no trunk, and some nodes that are no head's
    const bool   is_draft = gtype == LLM_GRAPH_TYPE_DECODER_MTP;
    const size_t max_nodes =
        (is_draft ? MTP_NODES_PER_RUN : ctx.gf_res_reserve->get_max_nodes()) + n_runs * MTP_NODES_PER_RUN;

    slot->key  = std::move(key);
    slot->n_kv = n_kv;
    // llama.cpp takes one of two, and a slot's graphs all have outputs, or none
    slot->results[ctx.n_outputs > 0].reset(new llm_graph_result(max_nodes));
    slot->sched.reset(ggml_backend_sched_new(ctx.backend_ptrs.data(), ctx.backend_buft.data(), ctx.backend_ptrs.size(),
                                             max_nodes, false, ctx.cparams.op_offload));

    slots.push_back(std::move(slot));
    return slots.back().get();
}

//
// around a pass
//

void mtp_engine::begin(const llama_ubatch & ubatch, llm_graph_type gtype, const llama_memory_context_i * mctx) {
    held_trunk = {};
    held_draft = {};

    if (gtype != LLM_GRAPH_TYPE_DECODER_MTP) {
        ++counters.n_trunk_passes;
        stages.clear();
        picks       = false;
        picks_probs = false;
        if (!planes.empty()) {
            plan_trunk_rows(ubatch);
            plan_feed(ubatch, mctx);
        }
    }

    graph_slot * slot = find_slot(ubatch, gtype, mctx);

    slot->t_used = ++t;
    select(slot);
    in_pass = true;
}

void mtp_engine::begin_build(const llm_graph_params & params) {
    cur->reduced = {};
    if (in_pass) {
        ++(params.gtype == LLM_GRAPH_TYPE_DECODER_MTP ? counters.n_head_builds : counters.n_trunk_builds);
        return;
    }

    stages.clear();
    if (n_storing > 0) {
        stages.emplace_back();
        stages[0].ubatch = params.ubatch;
        stages[0].runs   = feed_runs(n_heads);
        stages[0].keeps  = chained && n_heads > 1;
        if (own_memory) {
            stages[0].mctx_owned = own_memory->init_full();
            stages[0].mctx       = stages[0].mctx_owned.get();
        } else {
            stages[0].mctx = mtp_memory_attention(params.mctx);
        }
    }
}

void mtp_engine::end_build(ggml_cgraph * gf) {
    // prompts are large enough to hide their inputs' way
    if (in_pass && device && cur != &home) {
        cur->inputs.place(gf, device);
    }
}

const llm_graph_params & mtp_engine::stage_params(size_t stage, const llm_graph_params & pass) {
    // large, and most of it never changes
    if (!part_params) {
        part_params = std::make_unique<llm_graph_params>(pass);
    }
    part_params->gtype  = LLM_GRAPH_TYPE_DECODER_MTP;
    part_params->ubatch = stages[stage].ubatch;
    part_params->mctx   = stages[stage].mctx;
    return *part_params;
}

void mtp_engine::set_head_model(llm_graph_params & params) const {
    if (!assistant) {
        return;
    }
    params.arch              = assistant->arch;
    params.hparams           = assistant->hparams;
    params.cparams.ctx_other = &ctx; // whose token embedding it reads

    // by the number of a layer the context would look for the device of its own model's
    params.cb = [cb = params.cb](const llama_ubatch & ubatch, ggml_tensor * cur, const char * name, int) {
        cb(ubatch, cur, name, -1);
    };
}

//
// logits
//

bool mtp_engine::computes_apart() const {
    return ggml_backend_dev_type(ctx.model.dev_output()) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

void mtp_engine::reduce_logits(int32_t n_max, bool also_on_host) {
    n_reduced = computes_apart() || also_on_host ? n_max : 0;
}

void mtp_engine::build_reduced(ggml_context * ctx0, ggml_cgraph * gf, ggml_tensor * logits) {
    if (in_pass && logits && n_reduced > 0) {
        // a draft has no more logits than its vocabulary
        const bool of_draft = logits->ne[0] != ctx.model.vocab.n_tokens() || !trim_tokens.empty();
        cur->reduced        = mtp_candidates::build(ctx0, gf, logits, n_logits(of_draft), n_reduced);
    }
}

mtp_engine::held_logits mtp_engine::hold(ggml_tensor * logits) const {
    return { logits, cur->reduced, ggml_backend_sched_get_tensor_backend(ctx.sched.get(), logits) };
}

void mtp_engine::wait(const held_logits & held) {
    const int64_t begin = ggml_time_us();
    ctx.synchronize();
    (&held == &held_draft ? counters.t_head_us : counters.t_trunk_us) += ggml_time_us() - begin;
}

void mtp_engine::fetch(held_logits & held, float * data) {
    if (held.logits) {
        wait(held);
        ggml_backend_tensor_get_async(held.backend, held.logits, data, 0, ggml_nbytes(held.logits));
        ggml_backend_synchronize(held.backend);
        counters.n_output_bytes += ggml_nbytes(held.logits);
        held = {};
    }
}

bool mtp_engine::hold_logits(const llm_graph_result & res, bool is_whole_batch) {
    if (!is_whole_batch || ctx.n_outputs == 0) {
        return false;
    }
    held_trunk = hold(res.get_logits());
    return true;
}

const float * mtp_engine::logits() {
    fetch(held_trunk, ctx.logits.data);
    return ctx.get_logits();
}

float * mtp_engine::draft_logits_data(size_t n_rows) {
    return (float *) draft_logits_mem.get(n_rows * n_trimmed * sizeof(float), ctx.model.dev_output());
}

const float * mtp_engine::draft_logits() {
    float * data = draft_logits_data(n_draft_rows);
    fetch(held_draft, data);
    return data;
}

// llama.cpp puts rows into the batch's order when logits are asked for; until then it remembers what to swap
int32_t mtp_engine::trunk_row(int32_t row) const {
    for (auto it = ctx.output_swaps.rbegin(); it != ctx.output_swaps.rend(); ++it) {
        row = row == (int32_t) it->i0 ? it->i1 : row == (int32_t) it->i1 ? it->i0 : row;
    }
    return row;
}

int32_t mtp_engine::n_logits(bool of_draft) const {
    return !of_draft ? n_usable : trim_tokens.empty() ? std::min(n_trimmed, n_usable) : n_trimmed;
}

const float * mtp_engine::logits_row(bool of_draft, int32_t row) {
    return of_draft ? draft_logits() + (int64_t) row * n_trimmed :
                      logits() + (int64_t) row * ctx.model.vocab.n_tokens();
}

void mtp_engine::candidates(bool of_draft, int32_t row, int32_t n, int32_t * ids, float * values) {
    auto & held = of_draft ? held_draft : held_trunk;

    if (held.logits && held.reduced.blocks && n <= held.reduced.blocks->ne[1]) {
        if (!held.reduced.is_fetched()) {
            wait(held);
            counters.n_output_bytes += held.reduced.fetch(held.backend, of_draft ? draft_candidates : trunk_candidates);
        }
        held.reduced.select(of_draft ? row : trunk_row(row), n, ids, values);
    } else {
        mtp_candidates_select(logits_row(of_draft, row), n_logits(of_draft), n, ids, values);
    }
    if (of_draft && !trim_tokens.empty()) {
        std::transform(ids, ids + n, ids, [&](int32_t id) { return trim_tokens[id]; });
    }
}

void mtp_engine::fetch(ggml_tensor * tensor, void * data) {
    auto * backend = ggml_backend_sched_get_tensor_backend(ctx.sched.get(), tensor);
    ggml_backend_tensor_get_async(backend, tensor, data, 0, ggml_nbytes(tensor));
    counters.n_output_bytes += ggml_nbytes(tensor);
}

//
// hidden states
//

void mtp_engine::plan_trunk_rows(const llama_ubatch & ubatch) {
    hidden_rows.drop_transient();

    rows_trunk.assign(ubatch.n_tokens, mtp_rows::SPARE);

    // from the back: how many rows of its sequence come after a row
    std::vector<uint32_t> n_after(ubatch.n_tokens, 0);
    std::vector<uint32_t> n_seen(ctx.cparams.n_seq_max, 0);
    for (uint32_t i = ubatch.n_tokens; i-- > 0;) {
        n_after[i] = n_seen[ubatch.seq_id[i][0]]++;
    }

    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_seq_id seq = ubatch.seq_id[i][0];
        const llama_pos    pos = ubatch.pos[i];

        // one kept row less: the last of the pass before is still to be read in this one
        rows_trunk[i] = n_after[i] < mtp_rows::N_KEPT - 1 ? hidden_rows.put_trunk(seq, pos) :
                                                            hidden_rows.put_transient(seq, pos, i);
    }
}

std::vector<int32_t> mtp_engine::find_rows(const std::vector<mtp_row> & rows) const {
    std::vector<int32_t> res;
    for (const auto & row : rows) {
        // what a row reads that nothing is known before does not matter, see mark_seen
        res.push_back(std::max(mtp_rows::ZERO, hidden_rows.find(row.seq, row.pos - 1)));
    }
    return res;
}

// The first n heads run on a row in the trunk's pass. Chained, a head needs what the head before says of the position
// before.
void mtp_engine::mark_seen(const mtp_row & row, int32_t n) {
    for (int32_t head = 0; head < n; ++head) {
        seen[head][row.seq].adopt_draft(row.pos);
    }
    bool is_whole = has_hidden(row.seq, row.pos - 1);
    for (int32_t head = 0; head < n; ++head) {
        auto & cur_seen = seen[head][row.seq];
        if (chained && head > 0 && row.pos > 0) {
            is_whole =
                has_hidden(row.seq, row.pos - 1) && cur_seen.end >= row.pos && seen[head - 1][row.seq].has(row.pos - 1);
        }
        cur_seen.take(row.pos, is_whole);
    }
}

llama_pos mtp_engine::seen_end(llama_seq_id seq, int32_t n) const {
    llama_pos res = ctx.memory->seq_pos_max(seq) + 1;
    for (int32_t head = 0; head < std::min(n, n_storing); ++head) {
        res = std::min(res, seen[head][seq].end);
    }
    return res;
}

void mtp_engine::set_head_input(int32_t head, llm_graph_input_i & input, const llama_ubatch & ubatch) {
    const auto hides = [](const auto & s) {
        return s.hides_any();
    };
    if (head >= n_storing || std::none_of(seen[head].begin(), seen[head].end(), hides)) {
        input.set_input(&ubatch);
        return;
    }
    const mtp_memory_gaps gaps(head_memory(), seen[head]);
    input.set_input(&ubatch);
}

void mtp_engine::truncate(llama_seq_id seq, llama_pos pos) {
    hidden_rows.truncate(seq, pos);
    for (auto & of_head : seen) {
        of_head[seq].truncate(pos);
    }
    if (own_memory) {
        own_memory->seq_rm(seq, pos, -1);
    }
}

uint32_t mtp_engine::n_stream() const {
    return ctx.cparams.kv_unified ? 1 : ctx.cparams.n_seq_max;
}
