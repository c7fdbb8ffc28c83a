#include "mtp-padding.h"

#include "mtp-single-rows.h"

#include <algorithm>
#include <map>
#include <set>

uint32_t mtp_padded_total(uint32_t n) {
    if (n <= 8) {
        return n;
    }
    uint32_t step = 4;
    while (step * 4 < n) {
        step *= 2;
    }
    const uint32_t padded = (n + step - 1) / step * step;
    return n <= MTP_SINGLE_ROWS_MAX ? std::min(padded, MTP_SINGLE_ROWS_MAX) : padded;
}

std::vector<mtp_row> mtp_padding_rows(mtp_padding how, const std::vector<mtp_row> & rows, size_t n_seq_rows,
                                      size_t n_most, size_t n_worth) {
    std::map<llama_seq_id, std::vector<mtp_row>> added; // the last row of each sequence, then those to add
    std::map<llama_seq_id, size_t>               n_rows;
    for (const auto & row : rows) {
        added[row.seq] = { row };
        ++n_rows[row.seq];
    }
    size_t           n_longest = 0;
    std::set<size_t> lengths; // a pass each
    for (const auto & [seq, n] : n_rows) {
        n_longest = std::max(n_longest, n);
        lengths.insert(n);
    }
    if (how == MTP_PADDING_NONE || n_longest > n_seq_rows) {
        return {};
    }

    const auto add = [&](llama_seq_id seq, size_t n) {
        auto & of_seq = added[seq];
        for (size_t i = 0; i < n; ++i) {
            auto row = of_seq.back();
            ++row.pos;
            of_seq.push_back(row);
        }
    };
    size_t total = rows.size();
    if (how == MTP_PADDING_TOTAL) {
        total = std::max(total, std::min<size_t>(mtp_padded_total(rows.size()), n_most));
        add(rows.back().seq, total - rows.size());
    } else {
        for (const auto & [seq, n] : n_rows) {
            add(seq, n_longest - n);
        }
        total = n_longest * n_rows.size();
        if (total - rows.size() > n_worth * (lengths.size() - 1)) {
            return {};
        }
    }
    if (total > n_most) {
        return {};
    }

    std::vector<mtp_row> res;
    for (const auto & [seq, of_seq] : added) {
        res.insert(res.end(), of_seq.begin() + 1, of_seq.end());
    }
    return res;
}
