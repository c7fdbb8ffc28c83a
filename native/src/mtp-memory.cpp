#include "mtp-memory.h"

#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"

#include <vector>

// the KV caches that a memory consists of; empty if the heads cannot live there
static std::vector<llama_kv_cache *> mtp_memory_caches(llama_memory_i * memory) {
    if (auto * kv = dynamic_cast<llama_kv_cache *>(memory)) {
        return { kv };
    }
    if (auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return { iswa->get_base(), iswa->get_swa() };
    }
    return {};
}

bool mtp_memory_can_share(const llama_memory_i * memory) {
    return !mtp_memory_caches(const_cast<llama_memory_i *>(memory)).empty();
}

// Takes back the cells that mtp_place reserved since `before`.
static void mtp_memory_undo(llama_kv_cache & kv, const mtp_reservation & before, const llama_ubatch & ubatch) {
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_seq_id seq = ubatch.seq_id[i][0];
        const llama_pos    pos = ubatch.pos[i];
        if (kv.mtp.find(seq, pos) >= 0 && before.find(seq, pos) < 0) {
            kv.seq_rm(seq, pos, pos + 1);
        }
    }
}

llama_memory_context_ptr mtp_memory_place(llama_memory_i * memory, const llama_ubatch & ubatch) {
    const std::vector<llama_ubatch> ubatches = { ubatch };

    if (auto * kv = dynamic_cast<llama_kv_cache *>(memory)) {
        llama_kv_cache::slot_info_vec_t sinfos = { kv->mtp_place(ubatch) };
        if (sinfos[0].empty()) {
            return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE);
        }
        return std::make_unique<llama_kv_cache_context>(kv, std::move(sinfos), ubatches);
    }

    auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(memory);
    GGML_ASSERT(iswa);

    const mtp_reservation before = iswa->get_base()->mtp;

    llama_kv_cache::slot_info_vec_t base = { iswa->get_base()->mtp_place(ubatch) };
    if (base[0].empty()) {
        return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE);
    }
    llama_kv_cache::slot_info_vec_t swa = { iswa->get_swa()->mtp_place(ubatch) };
    if (swa[0].empty()) {
        mtp_memory_undo(*iswa->get_base(), before, ubatch);
        return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE);
    }
    return std::make_unique<llama_kv_cache_iswa_context>(iswa, std::move(base), std::move(swa), ubatches);
}

mtp_memory_placed::mtp_memory_placed(llama_memory_i * memory) : memory(memory) {
    for (auto * kv : mtp_memory_caches(memory)) {
        kv->mtp.placed = true;
    }
}

mtp_memory_placed::~mtp_memory_placed() {
    for (auto * kv : mtp_memory_caches(memory)) {
        kv->mtp.placed = false;
    }
}
