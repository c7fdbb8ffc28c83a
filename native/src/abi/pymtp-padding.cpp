// Rows that passes of the trunk have more than they were asked for, see mtp-padding.h.
//
// A memory of K/V alone drops them at once. Recurrent states go back only once after a pass: there they stay until the
// sequence is changed in any way, which is when they are dropped together with what else goes.

#include "mtp-memory.h"
#include "pymtp-session.h"

#include <algorithm>

// A pass costs a CPU as much as some more rows in another one do: a random qwen35 of 0.6 billion parameters in Q4_K_M and
// Q8_0, 2 threads, 2 to 8 sequences with 1 to 5 rows each: 2 to 4 rows (bench/passes.py --sequences).
static constexpr int32_t PASS_ON_CPU = 3;

void pymtp_choose_padding(pymtp_session & session, int32_t mode) {
    auto * const memory     = llama_get_memory(session.ctx);
    const bool   is_unified = session.mtp->heads.n_stream() == 1;
    const bool   is_many    = llama_n_seq_max(session.ctx) > 1;

    // A CPU needs as long for an added row as for building a graph, or longer: nano-glm, 8 sequences with 0 to 4 drafts,
    // 1 thread: 36 ms a round with exact shapes and 39 with added rows (bench/graph_builds.py --padding never, always).
    const bool is_wanted = mode == PYMTP_PADDING_ALWAYS || session.mtp->is_async();

    session.n_pass = is_wanted ? INT32_MAX : PASS_ON_CPU;
    session.n_added.assign(llama_n_seq_max(session.ctx), 0);
    if (mode == PYMTP_PADDING_NEVER || session.n_draft_max == 0 || session.replay) {
        return;
    }
    if (mtp_memory_is_plain(memory) && is_unified) {
        if (is_wanted) {
            session.padding = MTP_PADDING_TOTAL;
            session.mtp->pad_drafts();
        }
    } else if (is_many && mtp_memory_is_plain(memory)) {
        // streams of their own: likewise
        session.padding = is_wanted ? MTP_PADDING_EQUAL : MTP_PADDING_NONE;
    } else if (is_many && mtp_memory_is_hybrid(memory)) {
        // one pass in the place of several, each of which reads all weights
        session.padding = MTP_PADDING_EQUAL;
    }
}

std::vector<mtp_row> pymtp_rows_to_add(const pymtp_session & session, int32_t n_rows, const int32_t * token,
                                       const int32_t * pos, const int32_t * seq, const uint8_t * flags) {
    if (session.padding == MTP_PADDING_NONE) {
        return {};
    }
    std::vector<mtp_row> rows;
    for (int32_t i = 0; i < n_rows; ++i) {
        rows.push_back({ token[i], pos[i], seq[i], (flags[i] & PYMTP_ROW_LOGITS) != 0 });
    }
    const size_t n_most =
        std::min({ llama_n_batch(session.ctx), llama_n_ubatch(session.ctx), (uint32_t) session.n_outputs_max });

    const auto added =
        mtp_padding_rows(session.padding, rows, { session.n_draft_max + 1u, n_most, (size_t) session.n_pass });
    return rows.size() + added.size() <= llama_n_batch(session.ctx) ? added : std::vector<mtp_row>();
}

void pymtp_note_added(pymtp_session & session, const std::vector<mtp_row> & added) {
    for (const auto & row : added) {
        ++session.n_added[row.seq];
    }
    if (session.last_pass.empty()) {
        pymtp_drop_added(session);
    }
}

int32_t pymtp_seq_end(const pymtp_session & session, int32_t seq) {
    const llama_pos last = llama_memory_seq_pos_max(llama_get_memory(session.ctx), seq);
    return session.mtp->images[seq].end_after(last) - session.n_added[seq];
}

void pymtp_drop_added(pymtp_session & session, int32_t seq) {
    if (session.n_added[seq] > 0) {
        const int32_t end = pymtp_seq_end(session, seq);
        llama_memory_seq_rm(llama_get_memory(session.ctx), seq, end, -1);
        session.mtp->heads.truncate(seq, end);
        session.n_added[seq] = 0;
    }
}

void pymtp_drop_added(pymtp_session & session) {
    for (size_t seq = 0; seq < session.n_added.size(); ++seq) {
        pymtp_drop_added(session, seq);
    }
}
