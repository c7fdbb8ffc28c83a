#include "mtp-rows.h"

#include <algorithm>

mtp_rows::mtp_rows(uint32_t n_ubatch, uint32_t n_seq_max) : n_ubatch(n_ubatch), trunk(n_seq_max), head(n_seq_max) {}

uint32_t mtp_rows::size() const {
    return base((llama_seq_id) trunk.size());
}

int32_t mtp_rows::base(llama_seq_id seq) const {
    return 2 + n_ubatch + 2 * N_KEPT * seq;
}

int32_t mtp_rows::put_transient(llama_seq_id seq, llama_pos pos, uint32_t i) {
    head[seq].truncate(pos);
    cur.push_back({ seq, pos, (int32_t) (2 + i) });
    return cur.back().row;
}

int32_t mtp_rows::put_trunk(llama_seq_id seq, llama_pos pos) {
    head[seq].truncate(pos);
    return base(seq) + trunk[seq].put(pos);
}

int32_t mtp_rows::put_head(llama_seq_id seq, llama_pos pos) {
    return base(seq) + N_KEPT + head[seq].put(pos);
}

int32_t mtp_rows::find(llama_seq_id seq, llama_pos pos) const {
    if (pos < 0) {
        return ZERO;
    }

    int32_t i = trunk[seq].find(pos);
    if (i >= 0) {
        return base(seq) + i;
    }

    // consecutive positions of a sequence have consecutive entries, the newest last
    for (auto it = cur.rbegin(); it != cur.rend(); ++it) {
        if (it->seq == seq && it->pos == pos) {
            return it->row;
        }
    }

    i = head[seq].find(pos);
    return i >= 0 ? base(seq) + (int32_t) N_KEPT + i : -1;
}

void mtp_rows::drop_transient() {
    cur.clear();
}

void mtp_rows::truncate(llama_seq_id seq, llama_pos pos) {
    trunk[seq].truncate(pos);
    head[seq].truncate(pos);

    const auto is_dropped = [&](const transient & row) {
        return row.seq == seq && row.pos >= pos;
    };
    cur.erase(std::remove_if(cur.begin(), cur.end(), is_dropped), cur.end());
}

uint32_t mtp_rows::kept::put(llama_pos p) {
    const int32_t same = find(p);
    if (same >= 0) {
        return same;
    }
    // a free entry (-1), else the oldest position
    const auto i = std::min_element(pos.begin(), pos.end());

    *i = p;
    return i - pos.begin();
}

int32_t mtp_rows::kept::find(llama_pos p) const {
    for (uint32_t i = 0; i < N_KEPT; ++i) {
        if (pos[i] == p) {
            return i;
        }
    }
    return -1;
}

void mtp_rows::kept::truncate(llama_pos p) {
    for (auto & q : pos) {
        if (q >= p) {
            q = -1;
        }
    }
}

std::vector<std::pair<llama_pos, int32_t>> mtp_rows::kept_rows(llama_seq_id seq) const {
    std::vector<std::pair<llama_pos, int32_t>> res;
    for (uint32_t i = 0; i < N_KEPT; ++i) {
        if (trunk[seq].pos[i] >= 0) {
            res.emplace_back(trunk[seq].pos[i], base(seq) + i);
        }
    }
    std::sort(res.begin(), res.end());
    return res;
}

void mtp_rows::copy(llama_seq_id from, llama_seq_id to) {
    truncate(to, 0);
    trunk[to] = trunk[from];
}

void mtp_rows::discard(llama_seq_id seq, llama_pos pos, int32_t n) {
    for (auto & p : trunk[seq].pos) {
        p = p < pos ? p : p < pos + n ? -1 : p - n;
    }
    head[seq].truncate(0);
    drop_transient();
}

void mtp_rows::drop_heads() {
    for (auto & rows : head) {
        rows.truncate(0);
    }
}
