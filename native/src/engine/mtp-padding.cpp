#include "mtp-padding.h"

#include "llama-model.h"
#include "mtp-engine.h"
#include "mtp-memory.h"

#include <algorithm>
#include <limits>
#include <map>

uint32_t mtp_padded_step(uint32_t n) {
    uint32_t padded = 1;
    while (padded < n) {
        padded *= 2;
    }
    static_assert((MTP_SINGLE_ROWS_MAX & (MTP_SINGLE_ROWS_MAX - 1)) == 0, "what is computed row by row stays so");
    return padded;
}

uint32_t mtp_padded_total(uint32_t n) {
    return n <= 8 ? n : n <= 64 ? mtp_padded_step(n) : (n + 63) / 64 * 64;
}

uint32_t mtp_padded_prompt(uint32_t n) {
    const uint32_t step = std::max(16u, mtp_padded_step(n) / 8);
    return n <= 8 ? n : (n + step - 1) / step * step;
}

namespace {

// what a pass has of one sequence
struct part {
    size_t  n_rows = 0;
    mtp_row last   = {};
};

} // namespace

// by the number of the sequence
static std::vector<part> mtp_parts(const std::vector<mtp_row> & rows) {
    std::map<llama_seq_id, part> parts;
    for (const auto & row : rows) {
        ++parts[row.seq].n_rows;
        parts[row.seq].last = row;
    }
    std::vector<part> res;
    for (const auto & [_, one] : parts) {
        res.push_back(one);
    }
    return res;
}

// Has the parts of each pass get as many rows as the longest of them. Those of a pass follow on each other; which do, is
// what costs least. Prompts stay as they are.
static void mtp_make_equal(std::vector<part> & parts, const mtp_padding_limits & limits) {
    const size_t n = parts.size();

    // of the passes up to a part, in rows; where the last of these passes begins, and its longest part
    std::vector<size_t> cost(n + 1, std::numeric_limits<size_t>::max());
    std::vector<size_t> begins(n + 1, 0);
    std::vector<size_t> longest(n + 1, 0);
    cost[0] = 0;

    for (size_t end = 1; end <= n; ++end) {
        size_t n_longest = 0;
        for (size_t begin = end; begin-- > 0;) {
            n_longest = std::max(n_longest, parts[begin].n_rows);

            const size_t n_rows  = (end - begin) * n_longest;
            const bool   is_many = begin + 1 < end;
            if (is_many && (n_longest > limits.n_seq_rows || n_rows > std::min(limits.n_rows, limits.n_outputs) ||
                            parts[begin].last.seq + 1 != parts[begin + 1].last.seq)) {
                break;
            }
            if (cost[begin] + limits.n_pass + n_rows < cost[end]) {
                cost[end]    = cost[begin] + limits.n_pass + n_rows;
                begins[end]  = begin;
                longest[end] = n_longest;
            }
        }
    }

    for (size_t end = n; end > 0; end = begins[end]) {
        for (size_t i = begins[end]; i < end; ++i) {
            parts[i].n_rows = longest[end];
        }
    }
}

std::vector<mtp_row> mtp_padding_rows(mtp_padding how, const std::vector<mtp_row> & rows,
                                      const mtp_padding_limits & limits) {
    const size_t n_outputs = std::count_if(rows.begin(), rows.end(), [](const mtp_row & row) { return row.output; });
    const bool   is_round  = n_outputs == rows.size();
    const auto   before    = mtp_parts(rows);
    auto         parts     = before;

    if (how == MTP_PADDING_EQUAL) {
        mtp_make_equal(parts, limits);
    } else if (how == MTP_PADDING_TOTAL) {
        const size_t n_most = is_round ? std::min(limits.n_rows, limits.n_outputs) : limits.n_rows;
        const size_t padded = is_round ? mtp_padded_total(rows.size()) : mtp_padded_prompt(rows.size());
        const size_t total  = std::min(padded, n_most);
        parts.back().n_rows += std::max(total, rows.size()) - rows.size();
    }

    std::vector<mtp_row> res;
    for (size_t i = 0; i < parts.size(); ++i) {
        auto row = parts[i].last;
        for (size_t n = before[i].n_rows; n < parts[i].n_rows; ++n) {
            ++row.pos;
            row.output = is_round || how == MTP_PADDING_EQUAL;
            res.push_back(row);
        }
    }
    const bool has_room = how != MTP_PADDING_EQUAL || n_outputs + res.size() <= limits.n_outputs;
    return has_room ? res : std::vector<mtp_row>();
}

// --- the added rows of a context

// A pass costs a CPU as much as some more rows in another one do: a random qwen35 of 0.6 billion parameters in Q4_K_M
// and Q8_0, 2 threads, 2 to 8 sequences with 1 to 5 rows each: 2 to 4 rows (bench/passes.py --sequences).
static constexpr int32_t PASS_ON_CPU = 3;

mtp_padder::mtp_padder(llama_context & ctx, mtp_engine & mtp, int32_t mode, uint32_t n_draft_max,
                       uint32_t n_outputs_max) :
    ctx(ctx), mtp(mtp), n_pos(ctx.get_model().pos_embd ? ctx.get_model().pos_embd->ne[1] : INT32_MAX),
    n_added(llama_n_seq_max(&ctx), 0) {
    if (mode == PYMTP_PADDING_NEVER) {
        return;
    }
    auto * const memory     = llama_get_memory(&ctx);
    const bool   is_unified = mtp.heads.n_stream() == 1;
    const bool   is_many    = llama_n_seq_max(&ctx) > 1 && n_draft_max > 0;

    // A CPU needs as long for an added row as for building a graph, or longer: nano-glm, 8 sequences with 0 to 4
    // drafts, 1 thread: 36 ms a round with exact shapes and 39 with added rows (bench/graph_builds.py --padding never,
    // always).
    const bool is_wanted = mode == PYMTP_PADDING_ALWAYS || mtp.is_async();

    limits = { n_draft_max + 1u, std::min(llama_n_batch(&ctx), llama_n_ubatch(&ctx)), n_outputs_max,
               (size_t) (is_wanted ? INT32_MAX : PASS_ON_CPU) };

    if (is_wanted) {
        mtp_memory_set(memory, &mtp_reservation::has_spans, true);
        mtp_memory_set(mtp.heads.memory(), &mtp_reservation::has_spans, true);
    }
    if (mtp_memory_is_plain(memory) && is_unified) {
        if (is_wanted) {
            how = MTP_PADDING_TOTAL;
            mtp.pad();
        }
    } else if (is_many && mtp_memory_is_plain(memory)) {
        // streams of their own, on a device or where it is asked for
        how = is_wanted ? MTP_PADDING_EQUAL : MTP_PADDING_NONE;
    } else if (is_many && mtp_memory_is_hybrid(memory)) {
        // one pass in the place of several, each of which reads all weights
        how = MTP_PADDING_EQUAL;
    }
}

int32_t mtp_padder::decode(const std::vector<mtp_row> & rows, const uint8_t * flags) {
    for (const auto & row : rows) {
        drop(row.seq);
    }
    auto       added = how == MTP_PADDING_NONE ? std::vector<mtp_row>() : mtp_padding_rows(how, rows, limits);
    const bool is_beyond =
        std::any_of(added.begin(), added.end(), [&](const mtp_row & row) { return row.pos >= n_pos; });
    if (is_beyond || rows.size() + added.size() > llama_n_batch(&ctx)) {
        added.clear();
    }
    const int32_t res = mtp.decode(rows, flags, added);
    if (res == 1) {
        drop(); // other sequences may still have rows that were added
        return mtp.decode(rows, flags, {});
    }
    if (res == 0) {
        for (const auto & row : added) {
            ++n_added[row.seq];
        }
        if (!mtp_memory_has_snapshots(llama_get_memory(&ctx))) {
            drop();
        }
    }
    return res;
}

uint32_t mtp_padder::n_computed(uint32_t n, bool of_step) const {
    const uint32_t n_most = std::min(limits.n_rows, limits.n_outputs);
    if (how != MTP_PADDING_TOTAL || n > n_most) {
        return n;
    }
    return of_step ? mtp_padded_step(n) : std::min(mtp_padded_total(n), n_most);
}

llama_pos mtp_padder::end(llama_seq_id seq) const {
    const llama_pos last = llama_memory_seq_pos_max(llama_get_memory(&ctx), seq);
    return mtp.images[seq].end_after(last) - n_added[seq];
}

void mtp_padder::drop(llama_seq_id seq) {
    if (n_added[seq] > 0) {
        const llama_pos begin = end(seq);
        llama_memory_seq_rm(llama_get_memory(&ctx), seq, begin, -1);
        mtp.heads.truncate(seq, begin);
        n_added[seq] = 0;
    }
}

void mtp_padder::drop() {
    for (size_t seq = 0; seq < n_added.size(); ++seq) {
        drop(seq);
    }
}
