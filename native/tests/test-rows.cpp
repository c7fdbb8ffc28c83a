#include "check.h"
#include "mtp-rows.h"

#include <set>

static constexpr uint32_t N_UBATCH = 8;
static constexpr uint32_t N_SEQ    = 3;
static constexpr int32_t  N_KEPT   = mtp_rows::N_KEPT;

static void the_buffer_holds_the_ubatch_and_what_each_sequence_keeps() {
    CHECK_EQUAL(mtp_rows(N_UBATCH, N_SEQ).size(), 2 + N_UBATCH + N_SEQ * 2 * N_KEPT);
    CHECK_EQUAL(mtp_rows(1, 1).size(), 3u + 2 * N_KEPT);
}

static void no_two_hidden_states_share_a_row() {
    mtp_rows          rows(N_UBATCH, N_SEQ);
    std::set<int32_t> used = { mtp_rows::ZERO, mtp_rows::SPARE };

    for (uint32_t i = 0; i < N_UBATCH; ++i) {
        CHECK(used.insert(rows.put_transient(1, 1000 + i, i)).second);
    }
    for (uint32_t seq = 0; seq < N_SEQ; ++seq) {
        for (llama_pos pos = 0; pos < N_KEPT; ++pos) {
            CHECK(used.insert(rows.put_trunk(seq, pos)).second);
            CHECK(used.insert(rows.put_head(seq, pos)).second);
        }
    }
    CHECK_EQUAL(used.size(), rows.size());
    CHECK_EQUAL(*used.rbegin(), (int32_t) rows.size() - 1);
}

static void before_position_0_the_hidden_state_is_zero() {
    const mtp_rows rows(N_UBATCH, N_SEQ);
    CHECK_EQUAL(rows.find(2, -1), +mtp_rows::ZERO);
    CHECK_EQUAL(rows.find(2, 0), -1);
}

static void the_trunk_comes_before_a_transient_row_and_that_before_a_head() {
    mtp_rows      rows(N_UBATCH, N_SEQ);
    const int32_t head = rows.put_head(0, 5);
    CHECK_EQUAL(rows.find(0, 5), head);

    const int32_t transient = rows.put_transient(0, 5, 3);
    CHECK_EQUAL(transient, 2 + 3);
    CHECK_EQUAL(rows.find(0, 5), transient);

    const int32_t trunk = rows.put_trunk(0, 5);
    CHECK_EQUAL(rows.find(0, 5), trunk);

    rows.truncate(0, 5);
    CHECK_EQUAL(rows.find(0, 5), -1);
}

static void a_position_keeps_its_row() {
    mtp_rows      rows(N_UBATCH, N_SEQ);
    const int32_t trunk = rows.put_trunk(1, 7);
    const int32_t head  = rows.put_head(1, 7);
    rows.put_trunk(1, 8);
    CHECK_EQUAL(rows.put_trunk(1, 7), trunk);
    CHECK_EQUAL(rows.put_head(1, 7), head);
}

static void the_oldest_position_makes_room() {
    mtp_rows rows(N_UBATCH, N_SEQ);
    for (llama_pos pos = 0; pos < 3 * N_KEPT; ++pos) {
        const int32_t row = rows.put_trunk(1, pos);
        CHECK_EQUAL(rows.find(1, pos), row);
        // exactly the newest ones are at hand
        const llama_pos oldest = std::max(0, pos - N_KEPT + 1);
        CHECK(rows.find(1, oldest) >= 0);
        CHECK(oldest == 0 || rows.find(1, oldest - 1) < 0);
    }
    std::set<int32_t> used;
    for (llama_pos pos = 2 * N_KEPT; pos < 3 * N_KEPT; ++pos) {
        CHECK(used.insert(rows.find(1, pos)).second);
    }
    CHECK_EQUAL(rows.find(1, 2 * N_KEPT - 1), -1);
}

static void free_rows_are_used_before_the_oldest_is_given_up() {
    mtp_rows rows(N_UBATCH, N_SEQ);
    for (llama_pos pos = 0; pos < N_KEPT; ++pos) {
        rows.put_trunk(0, pos);
    }
    rows.truncate(0, N_KEPT - 4);
    for (llama_pos pos = N_KEPT - 4; pos < N_KEPT; ++pos) {
        rows.put_trunk(0, pos);
        CHECK(rows.find(0, 0) >= 0);
    }
    rows.put_trunk(0, N_KEPT);
    CHECK(rows.find(0, 0) < 0);
    CHECK(rows.find(0, 1) >= 0);
}

static void the_next_ubatch_drops_transient_rows_only() {
    mtp_rows rows(N_UBATCH, N_SEQ);
    rows.put_transient(0, 1, 0);
    rows.put_transient(2, 9, 1);
    const int32_t trunk = rows.put_trunk(0, 2);
    const int32_t head  = rows.put_head(0, 3);
    rows.drop_transient();
    CHECK_EQUAL(rows.find(0, 1), -1);
    CHECK_EQUAL(rows.find(2, 9), -1);
    CHECK_EQUAL(rows.find(0, 2), trunk);
    CHECK_EQUAL(rows.find(0, 3), head);
}

static void truncating_forgets_from_the_position_on() {
    mtp_rows rows(N_UBATCH, N_SEQ);
    for (llama_pos pos = 0; pos < 6; ++pos) {
        rows.put_trunk(0, pos);
    }
    for (llama_pos pos = 0; pos < 6; ++pos) {
        rows.put_head(0, pos + 6);
        rows.put_transient(0, pos + 12, pos);
    }
    rows.truncate(0, 14);
    CHECK(rows.find(0, 13) >= 0);
    CHECK_EQUAL(rows.find(0, 14), -1);
    rows.truncate(0, 8);
    CHECK(rows.find(0, 7) >= 0);
    CHECK_EQUAL(rows.find(0, 8), -1);
    CHECK_EQUAL(rows.find(0, 12), -1);
    rows.truncate(0, 3);
    CHECK(rows.find(0, 2) >= 0);
    CHECK_EQUAL(rows.find(0, 3), -1);
    rows.truncate(0, 0);
    CHECK_EQUAL(rows.find(0, 0), -1);
    CHECK_EQUAL(rows.find(0, -1), +mtp_rows::ZERO);
}

static void what_the_trunk_decodes_ends_what_heads_have_said_from_there_on() {
    mtp_rows rows(N_UBATCH, N_SEQ);
    for (llama_pos pos = 5; pos < 9; ++pos) {
        rows.put_head(0, pos);
        rows.put_head(1, pos);
    }
    rows.put_trunk(0, 6);
    CHECK(rows.find(0, 5) >= 0);
    CHECK_EQUAL(rows.find(0, 7), -1);
    rows.put_transient(1, 8, 0);
    CHECK(rows.find(1, 7) >= 0);
    rows.drop_heads();
    CHECK_EQUAL(rows.find(0, 5), -1);
    CHECK_EQUAL(rows.find(1, 7), -1);
    CHECK(rows.find(0, 6) >= 0);
}

static void sequences_do_not_see_each_other() {
    mtp_rows rows(N_UBATCH, N_SEQ);
    for (int32_t seq = 0; seq < (int32_t) N_SEQ; ++seq) {
        rows.put_transient(seq, 20, seq);
        for (llama_pos pos = 0; pos < 10; ++pos) {
            rows.put_trunk(seq, pos);
        }
        for (llama_pos pos = 0; pos < 10; ++pos) {
            rows.put_head(seq, pos + 10);
        }
    }
    std::set<int32_t> used;
    for (int32_t seq = 0; seq < (int32_t) N_SEQ; ++seq) {
        for (llama_pos pos = 0; pos <= 20; ++pos) {
            CHECK(used.insert(rows.find(seq, pos)).second);
        }
    }
    rows.truncate(1, 0);
    for (llama_pos pos = 0; pos <= 20; ++pos) {
        CHECK(rows.find(0, pos) >= 0);
        CHECK_EQUAL(rows.find(1, pos), -1);
        CHECK(rows.find(2, pos) >= 0);
    }
    for (llama_pos pos = 100; pos < 100 + 2 * N_KEPT; ++pos) {
        rows.put_trunk(1, pos);
    }
    CHECK(rows.find(0, 0) >= 0);
    CHECK(rows.find(2, 0) >= 0);
}

int main() {
    RUN(the_buffer_holds_the_ubatch_and_what_each_sequence_keeps);
    RUN(no_two_hidden_states_share_a_row);
    RUN(before_position_0_the_hidden_state_is_zero);
    RUN(the_trunk_comes_before_a_transient_row_and_that_before_a_head);
    RUN(a_position_keeps_its_row);
    RUN(the_oldest_position_makes_room);
    RUN(free_rows_are_used_before_the_oldest_is_given_up);
    RUN(the_next_ubatch_drops_transient_rows_only);
    RUN(truncating_forgets_from_the_position_on);
    RUN(what_the_trunk_decodes_ends_what_heads_have_said_from_there_on);
    RUN(sequences_do_not_see_each_other);
    return g_n_failed > 0;
}
