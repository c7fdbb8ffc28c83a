#include "mtp-ubatch.h"

#include "mtp-padding.h"

#include <algorithm>

llama_ubatch mtp_ubatch_make(const std::vector<mtp_row> & rows, uint32_t n_pos, uint32_t n_stream) {
    const uint32_t n_tokens = rows.size();

    auto data = std::make_shared<llama_ubatch::data_t>();
    for (const auto & row : rows) {
        data->token.push_back(row.token);
        data->seq_id_data.push_back(row.seq);
        data->output.push_back(row.output);
    }
    // M-RoPE: the sections of a text row have one position, as in the batch allocator
    for (uint32_t i = 0; i < n_pos * n_tokens; ++i) {
        data->pos.push_back(rows[i % n_tokens].pos);
    }
    for (auto & seq : data->seq_id_data) {
        data->seq_id.push_back(&seq);
    }

    data->n_seq_id.assign(n_tokens, 1);
    data->seq_id_unq = data->seq_id_data;
    std::sort(data->seq_id_unq.begin(), data->seq_id_unq.end());
    data->seq_id_unq.erase(std::unique(data->seq_id_unq.begin(), data->seq_id_unq.end()), data->seq_id_unq.end());

    data->seq_idx.assign(LLAMA_MAX_SEQ, -1);
    for (uint32_t s = 0; s < data->seq_id_unq.size(); ++s) {
        data->seq_idx[data->seq_id_unq[s]] = s;
    }

    llama_ubatch res = {};

    res.b_equal_seqs = n_stream > 1;
    res.n_tokens     = n_tokens;
    res.n_seqs_unq   = data->seq_id_unq.size();
    res.n_seqs       = n_stream > 1 ? res.n_seqs_unq : n_tokens;
    res.n_seq_tokens = n_tokens / res.n_seqs;
    res.n_pos        = n_pos;
    res.token        = data->token.data();
    res.pos          = data->pos.data();
    res.n_seq_id     = data->n_seq_id.data();
    res.seq_id       = data->seq_id.data();
    res.seq_id_unq   = data->seq_id_unq.data();
    res.seq_idx      = data->seq_idx.data();
    res.output       = data->output.data();
    res.data         = std::move(data);

    return res;
}

llama_ubatch mtp_ubatch_select(const llama_ubatch & ubatch, const std::vector<uint32_t> & rows) {
    std::vector<mtp_row> selected;
    for (const uint32_t i : rows) {
        selected.push_back({ ubatch.token[i], ubatch.pos[i], ubatch.seq_id[i][0], ubatch.output[i] != 0 });
    }
    auto res = mtp_ubatch_make(selected, ubatch.n_pos, 1);
    for (uint32_t i = 0; i < ubatch.n_pos * res.n_tokens; ++i) {
        res.pos[i] = ubatch.pos[i / res.n_tokens * ubatch.n_tokens + rows[i % res.n_tokens]];
    }
    return res;
}

std::vector<std::vector<mtp_row>> mtp_rows_by_sequence(const std::vector<mtp_row> & rows) {
    std::vector<std::vector<mtp_row>> parts;
    for (const auto & row : rows) {
        if (parts.empty() || parts.back().back().seq != row.seq) {
            parts.emplace_back();
        }
        parts.back().push_back(row);
    }
    return parts;
}

std::vector<mtp_row> mtp_rows_pad(const std::vector<mtp_row> & rows, bool has_streams, size_t n_max) {
    const auto parts  = has_streams ? mtp_rows_by_sequence(rows) : std::vector<std::vector<mtp_row>>{ rows };
    size_t     n_most = 0;
    for (const auto & part : parts) {
        n_most = std::max(n_most, part.size());
    }
    const size_t n = std::max(n_most, std::min<size_t>(std::max(8u, mtp_padded_step(n_most)), n_max / parts.size()));

    std::vector<mtp_row> res;
    for (const auto & part : parts) {
        res.insert(res.end(), n - part.size(), part.front());
        res.insert(res.end(), part.begin(), part.end());
    }
    return res;
}
