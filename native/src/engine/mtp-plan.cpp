#include "mtp-plan.h"

#include "llama-model.h"
#include "mtp-memory.h"
#include "mtp-padding.h"
#include "mtp-refuse.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

// --- mtp_plan

size_t mtp_plan::first_step() const {
    const auto first = std::find_if(stages.begin(), stages.end(),
                                    [](const auto & stage) { return stage.runs[0].output == MTP_OUTPUT_LOGITS; });
    return first - stages.begin();
}

std::vector<int64_t> mtp_plan::key(bool has_streams) const {
    std::vector<int64_t> key = { picks, picks_probs };
    for (const auto & stage : stages) {
        const auto & rows = stage.ubatch;
        key.insert(key.end(), { rows.n_tokens, (int64_t) stage.sees_all.size(), stage.as_trunk });
        if (has_streams) {
            key.push_back(rows.n_seqs_unq);
            key.insert(key.end(), rows.seq_id_unq, rows.seq_id_unq + rows.n_seqs_unq);
        }
        for (const auto & run : stage.runs) {
            key.insert(key.end(), { run.head, run.plane_read, run.plane_write, run.output });
        }
    }
    return key;
}

size_t mtp_plan::n_runs() const {
    return std::accumulate(stages.begin(), stages.end(), size_t(0),
                           [](size_t n, const auto & stage) { return n + stage.runs.size(); });
}

// --- what runs

// After a trunk pass the first n heads store the K/V of the trunk's rows. Chained, a head reads what the head before
// it says of the row before, for all rows.
mtp_heads_stage & mtp_planner::add_stage(mtp_plan & plan, int32_t n) const {
    auto & stage = plan.stages.emplace_back();
    stage.keeps  = heads.chained && n > 1;
    for (int32_t head = 0; head < n; ++head) {
        const bool feeds_next = heads.chained && head + 1 < n;
        stage.runs.push_back(
            { head, heads.chained ? head : 0, head + 1, feeds_next ? MTP_OUTPUT_HIDDEN : MTP_OUTPUT_NONE });
    }
    return stage;
}

// Step s runs head s modulo n_heads; heads of later steps store the K/V of its row.
// Chained, head h of step s reads what head h - 1 said in the step before; a head that comes again reads the one that
// drafted last.
std::vector<mtp_run> mtp_planner::step_runs(int32_t step, int32_t n_steps) const {
    std::vector<mtp_run> runs;

    const int32_t n_heads = heads.n_heads;
    const int32_t last    = step > 0 ? (step - 1) % n_heads : 0;
    const int32_t n_run   = std::min(n_heads, n_steps - step); // no later step runs the other heads

    for (int32_t i = 0; i < n_run; ++i) {
        const int32_t head       = (step + i) % n_heads;
        const bool    is_again   = head < step;
        const bool    feeds_next = heads.chained && !is_again && head + 1 < std::min(n_heads, n_steps);
        const int32_t plane_read = is_again ? last + 1 : head;

        runs.push_back({ head, heads.chained ? plane_read : 0, heads.chained ? head + 1 : 0,
                         i == 0     ? MTP_OUTPUT_LOGITS :
                         feeds_next ? MTP_OUTPUT_HIDDEN :
                                      MTP_OUTPUT_NONE });
    }
    return runs;
}

// --- the trunk's passes

void mtp_planner::add_feed(mtp_plan & plan, const llama_ubatch & ubatch, const llama_memory_context_i * mctx, int32_t n,
                           std::vector<int32_t> rows_read) {
    auto & stage = add_stage(plan, n);

    stage.ubatch     = ubatch;
    stage.rows_read  = std::move(rows_read);
    stage.rows_write = plan.rows_trunk;

    auto * const own = heads.own_memory();
    if (!own) {
        stage.mctx = mtp_memory_of_heads(mctx);
        return;
    }
    stage.mctx_owned = mtp_memory_place(own, ubatch);
    stage.mctx       = stage.mctx_owned.get();
    mtp_refuse_if(llama_memory_status_is_fail(stage.mctx->get_status()), "the heads' own cache is full");
    const mtp_memory_scope placed(own, &mtp_reservation::placed, true);
    stage.mctx_owned->apply();
}

mtp_plan_ptr mtp_planner::trunk(const llama_ubatch & ubatch, const llama_memory_context_i * mctx,
                                const std::vector<int32_t> & n_fed) {
    auto plan = std::make_unique<mtp_plan>();
    if (heads.n_heads == 0) {
        return plan;
    }
    plan->rows_trunk = heads.place_trunk(ubatch, n_fed);

    std::vector<mtp_row> rows;
    int32_t              n_most = 0;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const int32_t n = std::min(n_fed[ubatch.data->batch_idxs[i]], heads.n_storing);

        rows.push_back({ ubatch.token[i], ubatch.pos[i], ubatch.seq_id[i][0], false });
        heads.take(rows.back(), n);
        n_most = std::max(n_most, n);
    }
    if (n_most > 0) {
        add_feed(*plan, ubatch, mctx, n_most, heads.find_read(rows));
        plan->stages[0].as_trunk = !heads.own_memory() && !heads.hide_any(rows, n_most);
    }
    return plan;
}

mtp_plan_ptr mtp_planner::image(const llama_ubatch & ubatch, const llama_memory_context_i * mctx,
                                mtp_image_rows & image) {
    auto plan = std::make_unique<mtp_plan>();
    if (heads.n_heads > 0) {
        std::vector<int32_t> rows_read;
        plan->rows_trunk = heads.place_image(image, ubatch.n_tokens, rows_read);
        if (image.n_heads > 0) {
            if (image.n_done == 0) {
                heads.take_image(image);
            }
            add_feed(*plan, ubatch, mctx, image.n_heads, std::move(rows_read));
        }
    }
    image.n_done += ubatch.n_tokens;
    return plan;
}

mtp_plan_ptr mtp_planner::largest(const llama_ubatch & ubatch, const llama_memory_context_i * mctx) {
    auto plan = std::make_unique<mtp_plan>();
    if (heads.n_storing > 0) {
        auto & stage = add_stage(*plan, heads.n_heads);

        stage.ubatch = ubatch;
        if (heads.own_memory()) {
            stage.mctx_owned = heads.own_memory()->init_full();
            stage.mctx       = stage.mctx_owned.get();
        } else {
            stage.mctx = mtp_memory_of_heads(mctx);
        }
    }
    return plan;
}

// --- drafts

std::vector<mtp_row> mtp_rows_with_output(const std::vector<mtp_row> & rows, bool output) {
    std::vector<mtp_row> res;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(res),
                 [output](const auto & row) { return row.output == output; });
    return res;
}

std::vector<std::vector<mtp_row>> mtp_planner::split(const std::vector<mtp_row> & rows) const {
    std::vector<std::vector<mtp_row>> parts;
    for (const auto & row : rows) {
        if (parts.empty() ||
            (heads.n_stream() > 1 && row.seq != parts.back().back().seq && row.seq != parts.back().back().seq + 1)) {
            parts.emplace_back();
        }
        parts.back().push_back(row);
    }
    return parts;
}

// Gives a stage's rows their cells. false: the cache is full
bool mtp_planner::place(mtp_heads_stage & stage, const std::vector<mtp_row> & rows) const {
    stage.ubatch     = mtp_ubatch_make(rows, ctx.get_model().hparams.n_pos_per_embd(), heads.n_stream());
    stage.mctx_owned = mtp_memory_place(heads.memory(), stage.ubatch);
    stage.mctx       = stage.mctx_owned.get();
    return !llama_memory_status_is_fail(stage.mctx->get_status());
}

bool mtp_planner::add_catch_up(mtp_plan & plan, const std::vector<mtp_row> & rows, int32_t n) {
    if (n == 0) {
        return true; // nobody has to
    }
    for (const auto & part : split(rows)) {
        const auto padded = mtp_rows_pad(part, heads.n_stream() > 1, ctx.get_cparams().n_ubatch);
        auto &     stage  = add_stage(plan, n);

        // in a cache of their own rows may be new: each takes its cell once, where the repeated ones then find it
        for (const auto & of_seq : mtp_rows_by_sequence(part)) {
            if (heads.own_memory() && !place(stage, of_seq)) {
                return false;
            }
        }
        if (!place(stage, padded)) {
            return false;
        }
        stage.rows_read = heads.find_read(padded);
        if (stage.keeps) {
            stage.rows_write = heads.find_kept(padded);
        }
    }
    return true;
}

std::vector<mtp_row> mtp_planner::begin(mtp_plan & plan, int32_t n_steps, const std::vector<mtp_row> & rows) {
    auto res        = mtp_rows_with_output(rows, true);
    plan.n_drafting = res.size();
    if (pads && heads.n_stream() == 1) {
        // the last row again: it computes and stores the same
        res.resize(mtp_padded_step(res.size()), res.back());
    }
    const bool has_room = add_catch_up(plan, mtp_rows_with_output(rows, false), std::min(n_steps, heads.n_storing));
    return has_room ? res : std::vector<mtp_row>();
}

bool mtp_planner::add_step(mtp_plan & plan, int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows) {
    auto standing = rows;
    for (auto & row : standing) {
        row.pos -= heads.has_assistant() ? step : 0;
    }
    mtp_heads_stage stage;
    // each row that counts takes its cell first, where its copies then find it
    if (plan.n_drafting < standing.size() && !place(stage, { standing.begin(), standing.begin() + plan.n_drafting })) {
        return false;
    }
    if (!place(stage, standing)) {
        return false;
    }
    stage.runs = step_runs(step, n_steps);
    for (size_t i = 0; heads.picked() && step > 0 && i < rows.size(); ++i) {
        const llama_pos first = rows[i].pos - step;
        stage.sees_all.push_back(first < heads.picked()->ne[0] ? 0.0f : -INFINITY);
    }
    plan.stages.push_back(std::move(stage));
    return true;
}

mtp_plan_ptr mtp_planner::step(int32_t step, int32_t n_steps, const std::vector<mtp_row> & rows) {
    auto       plan  = std::make_unique<mtp_plan>();
    const auto first = begin(*plan, n_steps, rows);
    if (first.empty() || !add_step(*plan, step, n_steps, first)) {
        return nullptr;
    }

    auto & stage = plan->stages.back();

    stage.rows_read = heads.find_read(first);
    stage.keeps     = true;
    for (const auto & row : first) {
        stage.rows_write.push_back(heads.place_draft(row.seq, row.pos));
    }
    return plan;
}

mtp_plan_ptr mtp_planner::greedy(int32_t n_steps, int32_t n_asked, const std::vector<mtp_row> & rows, bool with_probs) {
    auto plan         = std::make_unique<mtp_plan>();
    plan->picks       = true;
    plan->picks_probs = with_probs;

    // the cells of all steps before any graph input looks at the cache
    auto first = begin(*plan, n_asked, rows);
    if (first.empty()) {
        return nullptr;
    }
    const size_t i_first = plan->stages.size();
    const auto   read    = heads.find_read(first);

    for (int32_t step = 0; step < n_steps && add_step(*plan, step, n_asked, first); ++step) {
        plan->stages.back().follows = step > 0;
        for (auto & row : first) {
            row.token = 0; // comes from the step before
            row.pos++;
        }
    }
    if (plan->stages.size() == i_first) {
        return nullptr;
    }
    plan->stages[i_first].rows_read = read;
    return plan;
}
