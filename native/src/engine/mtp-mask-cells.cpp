#include "mtp-mask-cells.h"

#include "llama-kv-cache.h"

void mtp_mask_lists::begin(uint64_t n) {
    if (n == n_changes) {
        return;
    }
    n_changes = n;
    for (auto & [seq, of] : of_seq) {
        of.is_made = false;
    }
}

const std::vector<int32_t> & mtp_mask_lists::list_of(llama_seq_id seq, const llama_kv_cells & cells) {
    auto & of = of_seq[seq];
    if (!of.is_made) {
        of.is_made = true;
        of.cells.clear();
        for (const auto & [pos, cell] : cells.seq_pos_get(seq)) {
            of.cells.push_back(cell);
        }
        if (of.cells.empty()) {
            of.cells.reserve(1); // rows of two such sequences have two lists
        }
    }
    return of.cells;
}

void llama_kv_cache::mtp_set_order(ggml_tensor * mask, const llama_ubatch & ubatch) const {
    // devices have a copy of the mask, and kernels of their own
    if (layers.empty() || !ggml_backend_buffer_is_host(layers[0].k->buffer)) {
        return;
    }
    std::vector<llama_seq_id> seqs;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        seqs.push_back(ubatch.seq_id[i][0]);
    }
    mtp_lists.begin((other ? other : this)->mtp.n_changes);
    mtp_lists.set(mask, seqs, [this](llama_seq_id seq) -> const llama_kv_cells & { return get_cells(seq); });
}
