// The passes of the heads: which head runs on which rows, what it reads, and what is kept of it.

#include "llama-model.h"
#include "mtp-engine.h"
#include "mtp-memory.h"

#include <algorithm>
#include <stdexcept>

//
// what runs
//

// Behind a trunk pass the first n heads store the K/V of the trunk's rows. Chained, a head reads what the head before
// it says of the row before, for all rows.
std::vector<mtp_run> mtp_engine::feed_runs(int32_t n) const {
    std::vector<mtp_run> runs;
    for (int32_t head = 0; head < n; ++head) {
        const bool feeds_next = chained && head + 1 < n;
        runs.push_back({ head, chained ? head : 0, head + 1, feeds_next ? MTP_OUTPUT_HIDDEN : MTP_OUTPUT_NONE });
    }
    return runs;
}

// Step s runs head s modulo n_heads; heads of later steps store the K/V of its row.
// Chained, head h of step s reads what head h - 1 said in the step before; a head that comes again reads the one that
// drafted last.
std::vector<mtp_run> mtp_engine::step_runs(int32_t step, int32_t n_steps) const {
    std::vector<mtp_run> runs;

    const int32_t last = step > 0 ? (step - 1) % n_heads : 0;

    for (int32_t i = 0; i < n_heads; ++i) {
        const int32_t head = (step + i) % n_heads;
        if (step + i >= n_steps && i > 0) {
            continue; // no later step runs this head
        }
        if (!chained) {
            runs.push_back({ head, 0, 0, i == 0 ? MTP_OUTPUT_LOGITS : MTP_OUTPUT_NONE });
            continue;
        }
        const bool    is_again   = head < step;
        const bool    feeds_next = !is_again && head + 1 < std::min(n_heads, n_steps);
        const int32_t plane_read = step == 0 || !is_again ? head : last + 1;

        runs.push_back({ head, plane_read, head + 1,
                         i == 0     ? MTP_OUTPUT_LOGITS :
                         feeds_next ? MTP_OUTPUT_HIDDEN :
                                      MTP_OUTPUT_NONE });
    }
    return runs;
}

//
// stages
//

void mtp_engine::plan_feed(const llama_ubatch & ubatch, const llama_memory_context_i * mctx) {
    std::vector<mtp_row> rows;
    int32_t              n_fed = 0; // heads

    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const int32_t n = std::min(row_flags[ubatch.data->batch_idxs[i]] >> PYMTP_ROW_FEED_SHIFT, n_storing);

        rows.push_back({ ubatch.token[i], ubatch.pos[i], ubatch.seq_id[i][0], false });
        mark_seen(rows.back(), n);
        n_fed = std::max(n_fed, n);
    }
    if (n_fed == 0) {
        return;
    }

    auto & stage = stages.emplace_back();

    stage.ubatch     = ubatch;
    stage.runs       = feed_runs(n_fed);
    stage.rows_read  = find_rows(rows);
    stage.keeps      = chained && n_fed > 1;
    stage.rows_write = rows_trunk;

    if (!own_memory) {
        stage.mctx = mtp_memory_attention(mctx);
        return;
    }
    stage.mctx_owned = mtp_memory_place(own_memory.get(), ubatch);
    stage.mctx       = stage.mctx_owned.get();
    if (llama_memory_status_is_fail(stage.mctx->get_status())) {
        throw std::runtime_error("the heads' own cache is full");
    }
    const mtp_memory_placed placed(own_memory.get());
    stage.mctx_owned->apply();
}

bool mtp_engine::plan_catch_up(const std::vector<mtp_row> & rows, int32_t n) {
    if (n == 0) {
        return true; // nobody has to
    }
    const uint32_t n_pos = ctx.model.hparams.n_pos_per_embd();

    for (const auto & part : split(rows)) {
        const auto padded = mtp_rows_pad(part, n_stream() > 1, ctx.cparams.n_ubatch);
        if (own_memory && n_stream() > 1 && !mtp_memory_reserve(own_memory.get(), part, n_pos, n_stream())) {
            return false;
        }

        auto & stage = stages.emplace_back();

        stage.ubatch     = mtp_ubatch_make(padded, n_pos, n_stream());
        stage.mctx_owned = mtp_memory_place(head_memory(), stage.ubatch);
        stage.mctx       = stage.mctx_owned.get();
        stage.runs       = feed_runs(n);
        stage.rows_read  = find_rows(padded);
        stage.keeps      = chained && n > 1;
        if (stage.keeps) {
            for (const auto & row : padded) {
                stage.rows_write.push_back(std::max(mtp_rows::SPARE, hidden_rows.find(row.seq, row.pos)));
            }
        }
        if (llama_memory_status_is_fail(stage.mctx->get_status())) {
            return false;
        }
    }
    return true;
}

bool mtp_engine::plan_step(int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows) {
    auto standing = rows;
    for (auto & row : standing) {
        row.pos -= assistant ? step : 0;
    }
    mtp_stage stage;

    stage.ubatch     = mtp_ubatch_make(standing, ctx.model.hparams.n_pos_per_embd(), n_stream());
    stage.mctx_owned = mtp_memory_place(head_memory(), stage.ubatch);
    stage.mctx       = stage.mctx_owned.get();
    if (llama_memory_status_is_fail(stage.mctx->get_status())) {
        return false;
    }
    stage.runs = step_runs(step, n_steps);
    stages.push_back(std::move(stage));
    return true;
}

//
// passes
//

// Sequences that have streams of their own share a pass if their streams lie side by side.
std::vector<std::vector<mtp_row>> mtp_engine::split(const std::vector<mtp_row> & rows) const {
    std::vector<std::vector<mtp_row>> parts;
    for (const auto & row : rows) {
        if (parts.empty() ||
            (n_stream() > 1 && row.seq != parts.back().back().seq && row.seq != parts.back().back().seq + 1)) {
            parts.emplace_back();
        }
        parts.back().push_back(row);
    }
    return parts;
}

// What the heads of a draft may look at. rows: each sequence's rows that catch up, and the one that predicts.
void mtp_engine::start_draft(const std::vector<mtp_row> & rows, int32_t n) {
    llama_pos begin = -1;
    for (const auto & row : rows) {
        begin = begin < 0 ? row.pos : begin;
        if (!row.output) {
            continue;
        }
        for (int32_t head = 0; head < n; ++head) {
            // chained, a head has nothing to read for as many rows as there are heads before it
            seen[head][row.seq].start_draft(begin, row.pos, chained ? head : 0);
        }
        begin = -1;
    }
}

// the rows that predict (output), or those that catch up
static std::vector<mtp_row> mtp_rows_with_output(const std::vector<mtp_row> & rows, bool output) {
    std::vector<mtp_row> res;
    for (const auto & row : rows) {
        if (row.output == output) {
            res.push_back(row);
        }
    }
    return res;
}

llm_graph_result * mtp_engine::run_plan() {
    // the first step stands for the pass: rows that catch up come before it
    const size_t  i_first = std::find_if(stages.begin(), stages.end(),
                                         [](const auto & stage) { return stage.runs[0].output == MTP_OUTPUT_LOGITS; }) -
                            stages.begin();
    auto &        first   = stages[i_first];
    const int32_t n_outputs_trunk = ctx.n_outputs;

    // also when the pass throws
    struct restore {
        llama_context & ctx;
        int32_t         n_outputs;

        ~restore() { ctx.n_outputs = n_outputs; }
    };

    const restore           restored = { ctx, n_outputs_trunk };
    const mtp_memory_placed placed(head_memory());

    for (size_t i = 0; i < stages.size(); ++i) {
        if (i != i_first) {
            stages[i].mctx_owned->apply();
        }
        counters.n_head_runs += i >= i_first;
    }
    ctx.n_outputs = first.ubatch.n_tokens;
    ++counters.n_head_passes;

    ggml_status status;
    return ctx.process_ubatch(first.ubatch, LLM_GRAPH_TYPE_DECODER_MTP, first.mctx_owned.get(), status);
}

pymtp_status mtp_engine::draft(int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows) {
    picks        = false;
    picks_probs  = false;
    n_draft_rows = 0;

    float * logits = draft_logits_data(mtp_rows_with_output(rows, true).size());

    if (step == 0) {
        start_draft(rows, std::min(n_steps, n_storing));
    }
    const auto parts = split(rows);
    for (const auto & part : parts) {
        const auto first    = mtp_rows_with_output(part, true);
        const auto catch_up = mtp_rows_with_output(part, false);

        stages.clear();
        if (!plan_catch_up(catch_up, std::min(n_steps, n_storing)) || !plan_step(step, n_steps, first)) {
            return PYMTP_FULL;
        }

        auto & stage = stages.back();

        stage.rows_read = find_rows(first);
        stage.keeps     = true;
        for (const auto & row : first) {
            stage.rows_write.push_back(hidden_rows.put_head(row.seq, row.pos));
        }

        auto * res = run_plan();
        if (!res) {
            return PYMTP_FAILED;
        }
        held_draft = hold(res->get_logits());
        if (parts.size() > 1) {
            fetch(held_draft, logits + (size_t) n_draft_rows * n_trimmed);
        }
        n_draft_rows += first.size();
    }
    return PYMTP_OK;
}

pymtp_status mtp_engine::draft_greedy(const std::vector<mtp_row> & rows, int32_t * n_steps, int32_t * drafts,
                                      float * probs) {
    const int32_t n_asked = *n_steps;

    picks       = true;
    picks_probs = probs != nullptr;

    start_draft(rows, std::min(n_asked, n_storing));

    int32_t i_seq = 0;
    for (const auto & part : split(rows)) {
        auto       first    = mtp_rows_with_output(part, true);
        const auto catch_up = mtp_rows_with_output(part, false);

        // the cells of all steps before any graph input looks at the cache
        stages.clear();
        if (!plan_catch_up(catch_up, std::min(n_asked, n_storing))) {
            return PYMTP_FULL;
        }
        const size_t i_first = stages.size();
        const auto   read    = find_rows(first);

        for (int32_t step = 0; step < *n_steps && plan_step(step, n_asked, first); ++step) {
            stages.back().follows = step > 0;
            for (auto & row : first) {
                row.token = 0; // comes from the step before
                row.pos++;
            }
        }
        if (stages.size() == i_first) {
            return PYMTP_FULL;
        }
        stages[i_first].rows_read = read;
        *n_steps                  = stages.size() - i_first;

        const auto * res = run_plan();
        if (!res) {
            return PYMTP_FAILED;
        }
        // [n_steps][n_sequences of the part], to where a device copies them without waiting for each
        const size_t n_picked = *n_steps * first.size();
        auto * const tokens   = (int32_t *) picked_mem.get(2 * n_picked * sizeof(int32_t), ctx.model.dev_output());
        auto * const likely   = (float *) (tokens + n_picked);
        for (int32_t step = 0; step < *n_steps; ++step) {
            fetch(res->t_sampled[step], tokens + step * first.size());
            if (probs) {
                fetch(res->t_sampled_probs[step], likely + step * first.size());
            }
        }
        ctx.synchronize();

        for (size_t i = 0; i < first.size(); ++i, ++i_seq) {
            for (int32_t step = 0; step < *n_steps; ++step) {
                drafts[i_seq * n_asked + step] = tokens[step * first.size() + i];
                if (probs) {
                    probs[i_seq * n_asked + step] = likely[step * first.size() + i];
                }
            }
        }
    }

    // without the steps that did not fit
    for (int32_t i = 0; i < i_seq; ++i) {
        std::copy_n(drafts + i * n_asked, *n_steps, drafts + i * *n_steps);
        if (probs) {
            std::copy_n(probs + i * n_asked, *n_steps, probs + i * *n_steps);
        }
    }
    return PYMTP_OK;
}

void mtp_engine::forget_drafts(const std::vector<mtp_row> & rows) {
    auto * memory = mtp_memory_attention(head_memory());
    for (const auto & row : rows) {
        for (auto & of_head : seen) {
            of_head[row.seq].truncate(row.pos);
        }
        // what the trunk has decoded stays
        if (row.output && row.pos > ctx.memory->seq_pos_max(row.seq)) {
            hidden_rows.truncate(row.seq, row.pos);
            memory->seq_rm(row.seq, row.pos, -1);
        }
    }
}
