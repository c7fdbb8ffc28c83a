#include "check.h"
#include "mtp-padding.h"

#include <algorithm>
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

static void totals_are_few_and_less_than_twice_as_large() {
    std::set<uint32_t> totals;
    for (uint32_t n = 1; n <= 256; ++n) {
        const uint32_t padded = mtp_padded_total(n);
        CHECK(padded >= n && padded < 2 * n);
        CHECK(n > 8 || padded == n);
        CHECK((n <= MTP_SINGLE_ROWS_MAX) == (padded <= MTP_SINGLE_ROWS_MAX));
        CHECK_EQUAL(mtp_padded_total(padded), padded);
        totals.insert(padded);
    }
    CHECK(totals.size() <= 14);
}

// rows after those of rows_of({ ... }), by sequence
static std::vector<size_t> lengths_of(std::vector<mtp_row> rows, const std::vector<mtp_row> & added) {
    rows.insert(rows.end(), added.begin(), added.end());

    std::map<llama_seq_id, std::vector<llama_pos>> pos;
    for (const auto & row : rows) {
        pos[row.seq].push_back(row.pos);
    }
    std::vector<size_t> res;
    for (const auto & [seq, of_seq] : pos) {
        for (size_t k = 0; k < of_seq.size(); ++k) {
            CHECK_EQUAL(of_seq[k], (llama_pos) (100 * seq + k));
        }
        res.push_back(of_seq.size());
    }
    return res;
}

static std::vector<size_t> equal(const std::vector<int32_t> & lengths, const mtp_padding_limits & limits) {
    const auto rows = rows_of(lengths);
    return lengths_of(rows, mtp_padding_rows(MTP_PADDING_EQUAL, rows, limits));
}

using lengths_t = std::vector<size_t>;

static void rows_are_added_to_the_last_sequence() {
    const auto rows  = rows_of({ 4, 5, 1 });
    const auto added = mtp_padding_rows(MTP_PADDING_TOTAL, rows, { 5, 64, 64, 100 });
    CHECK_EQUAL(added.size(), 6u);
    for (size_t i = 0; i < added.size(); ++i) {
        CHECK_EQUAL(added[i].seq, 2);
        CHECK_EQUAL(added[i].pos, (llama_pos) (201 + i));
        CHECK_EQUAL(added[i].token, 20);
        CHECK(added[i].output);
    }
    CHECK(mtp_padding_rows(MTP_PADDING_TOTAL, rows_of({ 2, 3 }), { 5, 64, 64, 100 }).empty());
}

static void sequences_get_as_many_rows_as_the_longest() {
    std::mt19937 rng(1);
    for (int32_t i = 0; i < 200; ++i) {
        std::vector<int32_t> lengths(1 + rng() % 6);
        for (auto & n : lengths) {
            n = 1 + rng() % 5;
        }
        const size_t longest = *std::max_element(lengths.begin(), lengths.end());
        CHECK(equal(lengths, { 5, 64, 64, 100 }) == lengths_t(lengths.size(), longest));
    }
}

static void prompts_and_passes_that_get_too_large_stay_as_they_are() {
    CHECK(equal({ 6, 1 }, { 5, 64, 64, 100 }) == lengths_t({ 6, 1 }));
    CHECK(equal({ 5, 1 }, { 5, 9, 9, 100 }) == lengths_t({ 5, 1 }));
    CHECK(mtp_padding_rows(MTP_PADDING_TOTAL, rows_of({ 5, 4 }), { 5, 8, 8, 100 }).empty());
    CHECK_EQUAL(mtp_padding_rows(MTP_PADDING_TOTAL, rows_of({ 5, 4 }), { 5, 64, 11, 100 }).size(), 2u);
    CHECK(mtp_padding_rows(MTP_PADDING_NONE, rows_of({ 5, 1 }), { 5, 64, 64, 100 }).empty());
    CHECK(equal({ 5, 1 }, { 5, 64, 10, 100 }) == lengths_t({ 5, 5 }));
}

static void sequences_beside_a_prompt_get_equally_many_rows() {
    auto rows = rows_of({ 1, 3, 9, 2, 1 });
    for (auto & row : rows) {
        row.output = row.seq != 2;
    }
    const auto added = mtp_padding_rows(MTP_PADDING_EQUAL, rows, { 5, 64, 64, 100 });
    CHECK(lengths_of(rows, added) == lengths_t({ 3, 3, 9, 2, 2 }));
    CHECK(std::all_of(added.begin(), added.end(), [](const mtp_row & row) { return row.output; }));
}

static size_t rows_with_prompt(size_t n_rows, size_t n_outputs, const mtp_padding_limits & limits) {
    auto rows = rows_of({ 1, (int32_t) n_rows - 1 });
    for (size_t i = n_outputs; i < n_rows; ++i) {
        rows[i].output = false;
    }
    const auto added = mtp_padding_rows(MTP_PADDING_TOTAL, rows, limits);
    lengths_of(rows, added); // their positions follow on each other
    CHECK(std::none_of(added.begin(), added.end(), [](const mtp_row & row) { return row.output; }));
    return rows.size() + added.size();
}

static void prompts_have_few_numbers_of_rows() {
    CHECK_EQUAL(rows_with_prompt(85, 12, { 5, 512, 64, 100 }), 96u);
    CHECK_EQUAL(rows_with_prompt(9, 1, { 5, 512, 64, 100 }), 16u);
    CHECK_EQUAL(rows_with_prompt(129, 0, { 5, 512, 64, 100 }), 160u);
    CHECK_EQUAL(rows_with_prompt(257, 1, { 5, 512, 64, 100 }), 320u);
    CHECK_EQUAL(rows_with_prompt(7, 1, { 5, 512, 64, 100 }), 7u);
    CHECK_EQUAL(rows_with_prompt(511, 5, { 5, 512, 64, 100 }), 512u);
    CHECK_EQUAL(rows_with_prompt(97, 12, { 5, 100, 14, 100 }), 100u);
    CHECK_EQUAL(rows_with_prompt(600, 3, { 5, 512, 64, 100 }), 600u); // several passes
}

static void a_pass_that_costs_fewer_rows_than_it_saves_is_made() {
    // a pass of 4 rows and one of 4, or one of 20
    CHECK(equal({ 4, 1, 1, 1, 1 }, { 5, 64, 64, 11 }) == lengths_t({ 4, 1, 1, 1, 1 }));
    CHECK(equal({ 4, 1, 1, 1, 1 }, { 5, 64, 64, 13 }) == lengths_t(5, 4));
    CHECK(equal({ 5, 4, 1, 1, 2, 1, 5 }, { 5, 64, 64, 4 }) == lengths_t({ 5, 5, 2, 2, 2, 2, 5 }));
    CHECK(equal({ 1, 1, 5 }, { 5, 64, 64, 0 }) == lengths_t({ 1, 1, 5 }));
}

static void sequences_whose_numbers_do_not_follow_on_each_other_share_no_pass() {
    auto rows = rows_of({ 1, 3, 2 });
    for (auto & row : rows) {
        row.seq += row.seq == 2;
        row.pos += row.seq == 3 ? 100 : 0;
    }
    const auto added = mtp_padding_rows(MTP_PADDING_EQUAL, rows, { 5, 64, 64, 100 });
    CHECK(lengths_of(rows, added) == lengths_t({ 3, 3, 2 }));
}

int main() {
    RUN(totals_are_few_and_less_than_twice_as_large);
    RUN(rows_are_added_to_the_last_sequence);
    RUN(sequences_get_as_many_rows_as_the_longest);
    RUN(prompts_and_passes_that_get_too_large_stay_as_they_are);
    RUN(sequences_beside_a_prompt_get_equally_many_rows);
    RUN(prompts_have_few_numbers_of_rows);
    RUN(a_pass_that_costs_fewer_rows_than_it_saves_is_made);
    RUN(sequences_whose_numbers_do_not_follow_on_each_other_share_no_pass);
    return g_n_failed > 0;
}
