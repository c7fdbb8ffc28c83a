#include "check.h"
#include "mtp-ubatch.h"

static const std::vector<mtp_row> ROWS = {
    { 11, 5, 2, false },
    { 12, 6, 2, true },
    { 13, 9, 0, true },
};

static void a_unified_ubatch_has_a_row_for_each_row() {
    const auto u = mtp_ubatch_make(ROWS, 1, 1);
    CHECK_EQUAL(u.n_tokens, 3u);
    CHECK_EQUAL(u.n_seqs, 3u);
    CHECK_EQUAL(u.n_seq_tokens, 1u);
    CHECK_EQUAL(u.n_pos, 1u);
    CHECK(!u.equal_seqs());
    CHECK(u.embd == nullptr);
    for (uint32_t i = 0; i < u.n_tokens; ++i) {
        CHECK_EQUAL(u.token[i], ROWS[i].token);
        CHECK_EQUAL(u.pos[i], ROWS[i].pos);
        CHECK_EQUAL(u.n_seq_id[i], 1);
        CHECK_EQUAL(u.seq_id[i][0], ROWS[i].seq);
        CHECK_EQUAL((bool) u.output[i], ROWS[i].output);
    }
}

static void the_sequences_are_listed_once_and_in_order() {
    const auto u = mtp_ubatch_make(ROWS, 1, 1);
    CHECK_EQUAL(u.n_seqs_unq, 2u);
    CHECK_EQUAL(u.seq_id_unq[0], 0);
    CHECK_EQUAL(u.seq_id_unq[1], 2);
    CHECK_EQUAL(u.seq_idx[0], 0);
    CHECK_EQUAL(u.seq_idx[1], -1);
    CHECK_EQUAL(u.seq_idx[2], 1);
    CHECK_EQUAL(u.seq_idx[LLAMA_MAX_SEQ - 1], -1);
}

static void with_streams_the_rows_are_those_of_one_sequence() {
    const auto u = mtp_ubatch_make({ ROWS[0], ROWS[1] }, 1, 4);
    CHECK(u.equal_seqs());
    CHECK_EQUAL(u.n_seqs, 1u);
    CHECK_EQUAL(u.n_seq_tokens, 2u);
    CHECK_EQUAL(u.n_seqs_unq, 1u);
    CHECK_EQUAL(u.seq_id_unq[0], 2);
}

static void each_section_of_a_position_is_the_position() {
    const auto u = mtp_ubatch_make(ROWS, 4, 1);
    CHECK_EQUAL(u.n_pos, 4u);
    for (uint32_t j = 0; j < 4; ++j) {
        for (uint32_t i = 0; i < 3; ++i) {
            CHECK_EQUAL(u.pos[j * 3 + i], ROWS[i].pos);
        }
    }
}

static void selected_rows_are_those_of_the_ubatch() {
    for (const uint32_t n_pos : { 1, 4 }) {
        const auto u = mtp_ubatch_select(mtp_ubatch_make(ROWS, n_pos, 1), { 2, 0 });
        CHECK_EQUAL(u.n_tokens, 2u);
        CHECK_EQUAL(u.n_pos, n_pos);
        CHECK_EQUAL(u.n_seqs_unq, 2u);
        for (uint32_t i = 0; i < 2; ++i) {
            const auto & row = ROWS[i == 0 ? 2 : 0];
            CHECK_EQUAL(u.token[i], row.token);
            CHECK_EQUAL(u.seq_id[i][0], row.seq);
            CHECK_EQUAL((bool) u.output[i], row.output);
            for (uint32_t j = 0; j < n_pos; ++j) {
                CHECK_EQUAL(u.pos[j * 2 + i], row.pos);
            }
        }
    }
}

static void a_copy_outlives_the_ubatch_it_was_made_from() {
    llama_ubatch copy;
    {
        const auto u = mtp_ubatch_make(ROWS, 1, 1);
        copy         = u;
    }
    CHECK_EQUAL(copy.token[2], 13);
    CHECK_EQUAL(copy.seq_id[1][0], 2);
}

static void rows_to_catch_up_with_are_padded_by_the_first() {
    const auto check = [](const std::vector<mtp_row> & padded, size_t begin, size_t n, const mtp_row & first,
                          const mtp_row & last) {
        for (size_t i = begin; i + 1 < begin + n; ++i) {
            CHECK_EQUAL(padded[i].pos, first.pos);
            CHECK_EQUAL(padded[i].seq, first.seq);
        }
        CHECK_EQUAL(padded[begin + n - 1].pos, last.pos);
        CHECK_EQUAL(padded[begin + n - 1].seq, last.seq);
    };

    const auto together = mtp_rows_pad({ ROWS[0], ROWS[2] }, false, 512);
    CHECK_EQUAL(together.size(), 8u);
    check(together, 0, 8, ROWS[0], ROWS[2]);

    const auto streams = mtp_rows_pad(ROWS, true, 512);
    CHECK_EQUAL(streams.size(), 16u);
    check(streams, 0, 8, ROWS[0], ROWS[1]);
    check(streams, 8, 8, ROWS[2], ROWS[2]);

    CHECK_EQUAL(mtp_rows_pad(std::vector<mtp_row>(9, ROWS[0]), false, 512).size(), 16u);
    CHECK_EQUAL(mtp_rows_pad(std::vector<mtp_row>(9, ROWS[0]), false, 12).size(), 12u);
    CHECK_EQUAL(mtp_rows_pad(ROWS, true, 5).size(), 4u);
}

int main() {
    RUN(a_unified_ubatch_has_a_row_for_each_row);
    RUN(the_sequences_are_listed_once_and_in_order);
    RUN(with_streams_the_rows_are_those_of_one_sequence);
    RUN(each_section_of_a_position_is_the_position);
    RUN(selected_rows_are_those_of_the_ubatch);
    RUN(rows_to_catch_up_with_are_padded_by_the_first);
    RUN(a_copy_outlives_the_ubatch_it_was_made_from);
    return g_n_failed > 0;
}
