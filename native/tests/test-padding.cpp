#include "check.h"
#include "mtp-padding.h"

#include <map>
#include <random>
#include <set>

static std::vector<mtp_row> rows_of(const std::vector<int32_t> & lengths) {
    std::vector<mtp_row> rows;
    for (size_t seq = 0; seq < lengths.size(); ++seq) {
        for (int32_t i = 0; i < lengths[seq]; ++i) {
            rows.push_back({ (llama_token) (10 * seq + i), (llama_pos) (100 * seq + i), (llama_seq_id) seq, true });
        }
    }
    return rows;
}

static void totals_are_few_and_not_much_larger() {
    std::set<uint32_t> totals;
    for (uint32_t n = 1; n <= 256; ++n) {
        const uint32_t padded = mtp_padded_total(n);
        CHECK(padded >= n && padded <= n + std::max(3u, n / 2));
        CHECK(n > 8 || padded == n);
        CHECK((n <= 63) == (padded <= 63));
        CHECK_EQUAL(mtp_padded_total(padded), padded);
        totals.insert(padded);
    }
    CHECK(totals.size() <= 20);
}

static void rows_are_added_to_the_last_sequence() {
    const auto rows  = rows_of({ 4, 5, 1 });
    const auto added = mtp_padding_rows(MTP_PADDING_TOTAL, rows, 5, 64, 100);
    CHECK_EQUAL(added.size(), 2u);
    for (size_t i = 0; i < added.size(); ++i) {
        CHECK_EQUAL(added[i].seq, 2);
        CHECK_EQUAL(added[i].pos, (llama_pos) (201 + i));
        CHECK_EQUAL(added[i].token, 20);
        CHECK(added[i].output);
    }
    CHECK(mtp_padding_rows(MTP_PADDING_TOTAL, rows_of({ 2, 3 }), 5, 64, 100).empty());
}

static void sequences_get_as_many_rows_as_the_longest() {
    std::mt19937 rng(1);
    for (int32_t i = 0; i < 200; ++i) {
        std::vector<int32_t> lengths(1 + rng() % 6);
        for (auto & n : lengths) {
            n = 1 + rng() % 5;
        }
        auto       rows  = rows_of(lengths);
        const auto added = mtp_padding_rows(MTP_PADDING_EQUAL, rows, 5, 64, 100);
        rows.insert(rows.end(), added.begin(), added.end());

        std::map<llama_seq_id, std::vector<llama_pos>> pos;
        for (const auto & row : rows) {
            pos[row.seq].push_back(row.pos);
        }
        for (const auto & [seq, of_seq] : pos) {
            CHECK_EQUAL(of_seq.size(), pos[0].size());
            for (size_t k = 0; k < of_seq.size(); ++k) {
                CHECK_EQUAL(of_seq[k], (llama_pos) (100 * seq + k));
            }
        }
    }
}

static void prompts_and_passes_that_get_too_large_stay_as_they_are() {
    CHECK(mtp_padding_rows(MTP_PADDING_EQUAL, rows_of({ 6, 1 }), 5, 64, 100).empty());
    CHECK(mtp_padding_rows(MTP_PADDING_TOTAL, rows_of({ 6, 3 }), 5, 64, 100).empty());
    CHECK(mtp_padding_rows(MTP_PADDING_EQUAL, rows_of({ 5, 1 }), 5, 9, 100).empty());
    CHECK(mtp_padding_rows(MTP_PADDING_TOTAL, rows_of({ 5, 4 }), 5, 8, 100).empty());
    CHECK_EQUAL(mtp_padding_rows(MTP_PADDING_TOTAL, rows_of({ 5, 4 }), 5, 11, 100).size(), 2u);
    CHECK(mtp_padding_rows(MTP_PADDING_NONE, rows_of({ 5, 1 }), 5, 64, 100).empty());
    CHECK_EQUAL(mtp_padding_rows(MTP_PADDING_EQUAL, rows_of({ 5, 1 }), 5, 10, 100).size(), 4u);
}

static void rows_are_not_added_for_more_than_a_pass_is_worth() {
    // a pass of 4 rows and one of 4, or one of 20
    const auto rows = rows_of({ 4, 1, 1, 1, 1 });
    CHECK(mtp_padding_rows(MTP_PADDING_EQUAL, rows, 5, 64, 11).empty());
    CHECK_EQUAL(mtp_padding_rows(MTP_PADDING_EQUAL, rows, 5, 64, 12).size(), 12u);
    CHECK_EQUAL(mtp_padding_rows(MTP_PADDING_EQUAL, rows_of({ 4, 1, 2, 1, 1 }), 5, 64, 6).size(), 11u);
}

int main() {
    RUN(totals_are_few_and_not_much_larger);
    RUN(rows_are_added_to_the_last_sequence);
    RUN(sequences_get_as_many_rows_as_the_longest);
    RUN(rows_are_not_added_for_more_than_a_pass_is_worth);
    RUN(prompts_and_passes_that_get_too_large_stay_as_they_are);
    return g_n_failed > 0;
}
