// Where the rows of an MTP pass live in the trunk's KV cache. Members of llama_kv_cache that a patch declares.
// Knows cells; knows neither graphs nor hidden states.

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache.h"
#include "mtp-ubatch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

// the cell of a position; -1: the sequence has none there
static int64_t mtp_find_cell(const llama_kv_cells & cells, llama_seq_id seq, llama_pos pos) {
    const auto & sp = cells.seq_pos_get(seq);
    const auto   it = sp.lower_bound({ pos, 0 });
    return it != sp.end() && it->first == pos ? (int64_t) it->second : -1;
}

// Room for the cells of a ubatch's rows, by the streams that they are in, of n_stream.
static llama_kv_cache::slot_info mtp_slots(const llama_ubatch & ubatch, uint32_t n_stream,
                                           const std::vector<uint32_t> & seq_to_stream) {
    const uint32_t            n_parts = n_stream > 1 ? ubatch.n_seqs_unq : 1;
    llama_kv_cache::slot_info res     = { LLAMA_MAX_SEQ, 0, {}, {} };
    res.resize(n_parts);
    for (uint32_t s = 0; s < n_parts; ++s) {
        const uint32_t strm = seq_to_stream[ubatch.seq_id[s * (ubatch.n_tokens / n_parts)][0]];

        res.s0      = std::min(res.s0, strm);
        res.s1      = std::max(res.s1, strm);
        res.strm[s] = strm;
    }
    return res;
}

// Finds the rows that have a cell already: in a head's pass every row whose position is in the cache, in the
// trunk's only those that a head has reserved. The other rows go through the ordinary search.
// Returns false if no row has one (sinfo is untouched). sinfo is empty if there is no room for the others.
bool llama_kv_cache::mtp_find_held(const llama_ubatch & ubatch, slot_info & sinfo) const {
    if (mtp.empty() && !mtp.placed) {
        return false;
    }

    std::vector<int64_t> held(ubatch.n_tokens, -1);
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_seq_id seq = ubatch.seq_id[i][0];
        const llama_pos    pos = ubatch.pos[i];

        held[i] = mtp.find(seq, pos);
        if (held[i] < 0 && mtp.placed) {
            held[i] = mtp_find_cell(v_cells[seq_to_stream[seq]], seq, pos);
            if (held[i] < 0 && mtp.reserves && pos <= seq_pos_max(seq)) {
                LLAMA_LOG_ERROR("%s: sequence %d has no cell at position %d any more\n", __func__, seq, pos);
                sinfo = {};
                return true;
            }
        }
    }
    if (std::all_of(held.begin(), held.end(), [](int64_t cell) { return cell < 0; })) {
        return false;
    }

    slot_info      res    = mtp_slots(ubatch, n_stream, seq_to_stream);
    const uint32_t n_rows = ubatch.n_tokens / res.n_stream();
    for (uint32_t s = 0; s < res.n_stream(); ++s) {
        std::vector<uint32_t> fresh;
        slot_info::idx_vec_t  idxs_fresh;
        for (uint32_t i = s * n_rows; i < (s + 1) * n_rows; ++i) {
            if (held[i] < 0) {
                fresh.push_back(i);
            }
        }
        if (!fresh.empty()) {
            const auto part = find_slot(mtp_ubatch_select(ubatch, fresh), false);
            if (part.empty()) {
                sinfo = {};
                return true;
            }
            idxs_fresh = part.idxs[0];
        }

        auto next = idxs_fresh.begin();
        for (uint32_t i = s * n_rows; i < (s + 1) * n_rows; ++i) {
            res.idxs[s].push_back(held[i] >= 0 ? (uint32_t) held[i] : *next++);
        }
    }

    sinfo = std::move(res);
    return true;
}

// Cells that attention on a device passes over together if a tile of rows sees none of them.
static constexpr uint32_t N_SPAN = 64;

// Finds cells so that sequences share no span: each row's is the one after the last of its sequence, or begins a span that
// is free. Returns false if too few are (sinfo is untouched), or where other cells are as good: in streams of their own,
// and for windows, which overwrite what has left them.
bool llama_kv_cache::mtp_find_spans(const llama_ubatch & ubatch, slot_info & sinfo) const {
    if (!mtp.has_spans || n_stream > 1 || n_swa > 0) {
        return false;
    }
    const auto & cells = v_cells[0];

    std::map<llama_seq_id, uint32_t> next;     // cell of a sequence
    std::map<uint32_t, llama_seq_id> owners;   // of the spans that these rows get cells of
    uint32_t                         span = 0; // all before it are taken

    const auto is_free = [&] {
        for (uint32_t cell = span * N_SPAN; cell < std::min((span + 1) * N_SPAN, cells.size()); ++cell) {
            if (!cells.is_empty(cell)) {
                return false;
            }
        }
        return owners.count(span) == 0;
    };
    slot_info res = mtp_slots(ubatch, n_stream, seq_to_stream);
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_seq_id seq = ubatch.seq_id[i][0];
        if (next.count(seq) == 0) {
            const auto & placed = cells.seq_pos_get(seq);
            next[seq]           = placed.empty() ? 0 : placed.rbegin()->second + 1;
        }
        uint32_t & cell    = next[seq];
        const bool goes_on = cell % N_SPAN != 0 && cell < cells.size() && cells.is_empty(cell) &&
                             owners.emplace(cell / N_SPAN, seq).first->second == seq;
        if (!goes_on) {
            while (span * N_SPAN < cells.size() && !is_free()) {
                ++span;
            }
            if (span * N_SPAN >= cells.size()) {
                return false;
            }
            owners[span] = seq;
            cell         = span * N_SPAN;
        }
        res.idxs[0].push_back(cell++);
    }
    sinfo = std::move(res);
    return true;
}

// Gives every row of a head's pass its cell: the trunk's where the position is in the cache, else a new one,
// which stays reserved until the trunk decodes that position. Empty if the cache is full; then nothing changed.
llama_kv_cache::slot_info llama_kv_cache::mtp_place(const llama_ubatch & ubatch) {
    if (other) {
        // rows that read another cache and store nothing need no cell: all that counts is their streams
        slot_info res = mtp_slots(ubatch, n_stream, seq_to_stream);
        res.idxs.assign(res.n_stream(), slot_info::idx_vec_t(ubatch.n_tokens / res.n_stream(), 0));
        return res;
    }

    mtp.placed       = true;
    const auto sinfo = find_slot(ubatch, false);
    mtp.placed       = false;

    if (!sinfo.empty()) {
        mtp_hold(sinfo, ubatch);
    }
    return sinfo;
}

// Takes these cells for rows that have none yet.
void llama_kv_cache::mtp_hold(const slot_info & sinfo, const llama_ubatch & ubatch) {
    const uint32_t n_rows = ubatch.n_tokens / sinfo.n_stream();

    for (uint32_t s = 0; s < sinfo.n_stream(); ++s) {
        const uint32_t        strm  = sinfo.strm[s];
        const auto &          cells = v_cells[strm];
        slot_info             part  = { strm, strm, { strm }, { {} } };
        std::vector<uint32_t> fresh;

        for (uint32_t i = s * n_rows; i < (s + 1) * n_rows; ++i) {
            const uint32_t     cell = sinfo.idxs[s][i % n_rows];
            const llama_seq_id seq  = ubatch.seq_id[i][0];
            const llama_pos    pos  = ubatch.pos[i];
            if (cells.is_empty(cell) || !cells.seq_has(cell, seq) || cells.pos_get(cell) != pos) {
                fresh.push_back(i);
                part.idxs[0].push_back(cell);
            }
        }
        if (fresh.empty()) {
            continue;
        }
        apply_ubatch(part, mtp_ubatch_select(ubatch, fresh));
        for (size_t i = 0; mtp.reserves && i < fresh.size(); ++i) {
            mtp.add(ubatch.seq_id[fresh[i]][0], ubatch.pos[fresh[i]], part.idxs[0][i]);
        }
    }
}

// Hides in a mask [n_kv, rows] the cells that the current head has not seen, but for those of the rows themselves.
void llama_kv_cache::mtp_hide(ggml_tensor * mask, const llama_ubatch & ubatch) const {
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_seq_id seq  = ubatch.seq_id[i][0];
        const auto &       seen = (*mtp.seen)[seq];
        const auto &       sp   = v_cells[seq_to_stream[seq]].seq_pos_get(seq);

        const auto hide = [&](llama_pos begin, llama_pos end) {
            for (auto it = sp.lower_bound({ begin, 0 }); it != sp.end() && it->first < end; ++it) {
                if (it->first == ubatch.pos[i] || it->second >= mask->ne[0]) {
                    continue;
                }
                const int64_t at = mask->ne[0] * i + it->second;
                if (mask->type == GGML_TYPE_F16) {
                    ((ggml_fp16_t *) mask->data)[at] = ggml_fp32_to_fp16(-INFINITY);
                } else {
                    ((float *) mask->data)[at] = -INFINITY;
                }
            }
        };
        hide(seen.gap_begin, seen.gap_end);
        hide(seen.end, seen.draft_begin);
    }
}

ggml_cgraph * llama_kv_cache::mtp_shift_graph(llama_context * lctx) const {
    if (other || !get_can_shift() || hparams.rope_type == LLAMA_ROPE_TYPE_NONE) {
        return nullptr;
    }
    auto * res = lctx->get_gf_res_reserve();
    res->reset();
    return build_graph_shift(res, lctx);
}

// Frees all reserved cells: before operations that look at cells without knowing of reservations.
void llama_kv_cache::mtp_release() {
    for (const auto & [at, cell] : mtp.all()) {
        v_cells[seq_to_stream[at.first]].rm(cell);
    }
    mtp.clear();
}

// Rows of one sequence for which a look at all cells is as good as a list of its own.
static constexpr uint32_t FEW_ROWS = 16;

const mtp_mask_lists * llama_kv_cache::mtp_list_cells(ggml_tensor * mask, const llama_ubatch & ubatch) const {
    const uint32_t n_parts = mask->ne[3];
    const uint32_t n_rows  = ubatch.n_tokens / n_parts;
    // devices have a copy of the mask, and kernels of their own
    const bool     is_host = !layers.empty() && ggml_backend_buffer_is_host(layers[0].k->buffer);
    const bool     is_many = n_parts == 1 && ubatch.seq_id[0][0] != ubatch.seq_id[n_rows - 1][0];
    if (!is_host && !is_many && n_rows <= FEW_ROWS) {
        return nullptr;
    }
    for (uint32_t begin = 0; begin < ubatch.n_tokens; begin += n_rows) {
        mtp_lists.make((other ? other : this)->mtp.n_changes, get_cells(ubatch.seq_id[begin][0]), ubatch.seq_id + begin,
                       n_rows);
    }
    if (is_host) {
        mtp_lists.set(mask, ubatch.seq_id, ubatch.n_tokens);
    }
    return &mtp_lists;
}

// Sets a mask [n_kv, rows] by the lists of its rows' sequences; false: there are none, or they do not tell what is seen.
// Of rows that follow on each other in a sequence each has what the one before it sees, with the cells since then and
// without those that have left the window.
bool llama_kv_cache::mtp_set_mask(ggml_tensor * mask, const llama_ubatch & ubatch, bool causal) const {
    const auto * lists = mtp_list_cells(mask, ubatch);
    if (!lists || !causal || hparams.use_alibi) {
        return false;
    }
    const bool is_2d = ubatch.is_pos_2d();

    const auto set_rows = [&](auto * data, auto keep, auto drop) {
        const int64_t n_kv  = mask->ne[0];
        size_t        begin = 0; // in the sequence's list, of the cells before the row that are seen
        size_t        end   = 0;
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            const llama_seq_id seq   = ubatch.seq_id[i][0];
            const llama_pos    pos   = ubatch.pos[i];
            const auto &       cells = get_cells(seq);
            const auto &       own   = lists->of(seq);
            auto * const       row   = data + n_kv * i;

            const auto put = [&](size_t at, bool is_seen) {
                if (own[at] < n_kv) { // others were placed after the number of cells was known
                    row[own[at]] = is_seen ? keep : drop;
                }
            };
            const auto is_left = [&](int32_t cell) {
                const llama_pos of_cell = cells.pos_get(cell);
                return of_cell < pos && llama_hparams::is_masked_swa(n_swa, swa_type, of_cell, pos);
            };
            if (i > 0 && ubatch.seq_id[i - 1][0] == seq && ubatch.pos[i - 1] <= pos) {
                std::copy_n(row - n_kv, n_kv, row);
                for (; begin < own.size() && is_left(own[begin]); ++begin) {
                    put(begin, false);
                }
            } else {
                std::fill_n(row, n_kv, drop);
                begin = end = std::partition_point(own.begin(), own.end(), is_left) - own.begin();
            }
            for (end = std::max(begin, end); end < own.size() && cells.pos_get(own[end]) < pos; ++end) {
                put(end, true);
            }
            // rows of an image share a position, and see what is before them in it
            for (size_t at = end; at < own.size() && cells.pos_get(own[at]) == pos; ++at) {
                put(at, !is_2d || !cells.ext_get(own[at]).is_2d_gt(ubatch.pos[i + ubatch.n_tokens * 2],
                                                                   ubatch.pos[i + ubatch.n_tokens]));
            }
        }
    };
    if (mask->type == GGML_TYPE_F16) {
        set_rows((ggml_fp16_t *) mask->data, ggml_fp32_to_fp16(0.0f), ggml_fp32_to_fp16(-INFINITY));
    } else {
        set_rows((float *) mask->data, 0.0f, -INFINITY);
    }
    return true;
}
