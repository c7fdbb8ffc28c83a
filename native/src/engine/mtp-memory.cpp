#include "mtp-memory.h"

#include "ggml-cpp.h"
#include "llama-context.h"
#include "llama-kv-cache-dsa-iswa.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-dsv4.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache-msa.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-model.h"
#include "mtp-graph-check.h"
#include "mtp-refuse.h"

#include <algorithm>
#include <string>
#include <vector>

llama_memory_i * mtp_memory_attention(llama_memory_i * memory) {
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return hybrid->get_mem_attn();
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return hybrid->get_mem_attn();
    }
    return memory;
}

const llama_memory_context_i * mtp_memory_attention(const llama_memory_context_i * mctx) {
    if (auto * hybrid = dynamic_cast<const llama_memory_hybrid_context *>(mctx)) {
        return hybrid->get_attn();
    }
    if (auto * hybrid = dynamic_cast<const llama_memory_hybrid_iswa_context *>(mctx)) {
        return hybrid->get_attn();
    }
    return mctx;
}

const llama_memory_context_i * mtp_memory_of_heads(const llama_memory_context_i * mctx) {
    return dynamic_cast<const llama_memory_hybrid_idx_context *>(mctx) ? mctx : mtp_memory_attention(mctx);
}

std::array<uint32_t, 2> mtp_memory_n_kv(const llama_memory_context_i * mctx) {
    mctx = mtp_memory_attention(mctx);
    if (auto * iswa = dynamic_cast<const llama_kv_cache_iswa_context *>(mctx)) {
        return { iswa->get_base()->get_n_kv(), iswa->get_swa()->get_n_kv() };
    }
    if (auto * dsa = dynamic_cast<const llama_kv_cache_dsa_context *>(mctx)) {
        return { dsa->get_mla()->get_n_kv(), dsa->get_lid()->get_n_kv() };
    }
    if (auto * kv = dynamic_cast<const llama_kv_cache_context *>(mctx)) {
        return { kv->get_n_kv(), 0 };
    }
    return {};
}

// nullptr unless it keeps the keys of an index next to K/V
static llama_memory_hybrid_idx * mtp_memory_with_index(llama_memory_i * memory) {
    auto * idx = dynamic_cast<llama_memory_hybrid_idx *>(memory);
    return idx && idx->get_mem_idx() ? idx : nullptr;
}

std::vector<llama_kv_cache *> mtp_memory_caches(llama_memory_i * memory) {
    if (auto * idx = mtp_memory_with_index(memory)) {
        return { idx->get_mem_attn(), idx->get_mem_idx() };
    }
    memory = mtp_memory_attention(memory);
    if (auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return { iswa->get_base(), iswa->get_swa() };
    }
    if (auto * dsa = dynamic_cast<llama_kv_cache_dsa *>(memory)) {
        return { dsa->get_mla(), dsa->get_lid() };
    }
    if (auto * both = dynamic_cast<llama_kv_cache_dsa_iswa *>(memory)) {
        return { both->get_dsa()->get_mla(), both->get_dsa()->get_lid(), both->get_swa() };
    }
    if (auto * msa = dynamic_cast<llama_kv_cache_msa *>(memory)) {
        return { msa->get_base(), msa->get_idx() };
    }
    if (auto * kv = dynamic_cast<llama_kv_cache *>(memory)) {
        return { kv };
    }
    return {};
}

// whether it is made of K/V by position, and keeps recurrent states or an index at most besides
static bool mtp_memory_is_kv(llama_memory_i * memory) {
    memory = mtp_memory_attention(memory);
    return dynamic_cast<llama_kv_cache *>(memory) || dynamic_cast<llama_kv_cache_iswa *>(memory);
}

bool mtp_memory_has_snapshots(llama_memory_i * memory) {
    return mtp_memory_attention(memory) != memory || dynamic_cast<llama_kv_cache_dsv4 *>(memory);
}

bool mtp_memory_is_plain(llama_memory_i * memory) {
    return mtp_memory_attention(memory) == memory && mtp_memory_can_share(memory);
}

bool mtp_memory_is_hybrid(llama_memory_i * memory) {
    return dynamic_cast<llama_memory_hybrid *>(memory) != nullptr;
}

bool mtp_memory_goes_back(const llama_model & model) {
    return (!llama_model_is_recurrent(&model) && !llama_model_is_hybrid(&model)) ||
           llm_arch_supports_rs_rollback(model.arch);
}

uint32_t mtp_memory_n_free(llama_memory_i * memory, llama_seq_id seq) {
    const auto caches = mtp_memory_caches(memory);
    return caches.empty() ? UINT32_MAX : caches[0]->get_size() - caches[0]->get_cells(seq).get_used();
}

bool mtp_memory_is_alone(llama_memory_i * memory, llama_seq_id seq) {
    for (auto * kv : mtp_memory_caches(memory)) {
        const auto & cells = kv->get_cells(seq);
        for (uint32_t i = 0; i < cells.size(); ++i) {
            if (!cells.is_empty(i) && cells.seq_has(i, seq) && cells.seq_count(i) > 1) {
                return false;
            }
        }
    }
    return true;
}

std::string mtp_memory_shift_obstacle(llama_memory_i * memory, llama_context & ctx,
                                      const std::vector<ggml_backend_t> & backends) {
    for (auto * kv : mtp_memory_caches(memory)) {
        auto * const gf   = kv->mtp_shift_graph(&ctx);
        auto * const node = gf ? mtp_graph_not_computed(gf, backends) : nullptr;
        if (node) {
            return std::string("no backend has ") + ggml_op_desc(node) + " for keys of type " +
                   ggml_type_name(kv->type_k());
        }
    }
    return "";
}

bool mtp_memory_has_shift(llama_memory_i * memory) {
    const auto caches = mtp_memory_caches(memory);
    return std::any_of(caches.begin(), caches.end(), [](auto * kv) { return kv->get_has_shift(); });
}

bool mtp_memory_can_share(llama_memory_i * memory) {
    return mtp_memory_is_kv(memory) && !dynamic_cast<llama_memory_hybrid_idx *>(memory);
}

std::unique_ptr<llama_memory_i> mtp_memory_create_own(const llama_model & model, llama_memory_params params,
                                                      llama_cparams cparams) {
    params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;

    // drafts of every sequence beyond the positions that the trunk can hold
    const uint32_t n_more = 64 * (cparams.kv_unified ? cparams.n_seq_max : 1);
    cparams.n_ctx_seq     = GGML_PAD(cparams.n_ctx_seq + n_more, 256);

    std::unique_ptr<llama_memory_i> memory(model.create_memory(params, cparams));
    mtp_refuse_if(!mtp_memory_is_kv(memory.get()) && !dynamic_cast<llama_kv_cache_dsa *>(memory.get()),
                  "the MTP heads of this architecture keep more than K/V");
    mtp_memory_set(memory.get(), &mtp_reservation::reserves, false);
    return memory;
}

std::unique_ptr<llama_memory_i> mtp_memory_create_view(const llama_model & assistant, llama_memory_params params,
                                                       llama_context & ctx) {
    auto cparams      = ctx.get_cparams();
    cparams.ctx_other = &ctx;
    mtp_memory_set(llama_get_memory(&ctx), &mtp_reservation::n_beyond, MTP_ASSISTANT_BEYOND);
    return std::unique_ptr<llama_memory_i>(assistant.create_memory(params, cparams));
}

// The context of a memory with cells for the ubatch in each of its caches. If one of them is full, the others keep
// their cells for these positions.
template <class context, class memory, class... places>
static llama_memory_context_ptr mtp_memory_context(memory * of, const llama_ubatch & ubatch, const places &... cells) {
    if ((cells.empty() || ...)) {
        return std::make_unique<context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE);
    }
    return std::make_unique<context>(of, llama_kv_cache::slot_info_vec_t{ cells }...,
                                     std::vector<llama_ubatch>{ ubatch });
}

// The context of a hybrid with an index for rows of heads, which leave the recurrent states alone.
class mtp_memory_idx_context : public llama_memory_hybrid_idx_context {
  public:
    using llama_memory_hybrid_idx_context::llama_memory_hybrid_idx_context;

    bool apply() override {
        bool res = true;
        for (const auto * kv : { get_attn(), get_idx() }) {
            res &= const_cast<llama_kv_cache_context *>(kv)->apply(); // the base class hands out its own as const
        }
        return res;
    }
};

llama_memory_context_ptr mtp_memory_place(llama_memory_i * memory, const llama_ubatch & ubatch) {
    if (auto * idx = mtp_memory_with_index(memory)) {
        const auto cells = idx->get_mem_attn()->mtp_place(ubatch);
        if (!cells.empty()) {
            idx->get_mem_idx()->mtp_hold(cells, ubatch); // the keys of the index are in the same cells as K/V
        }
        return mtp_memory_context<mtp_memory_idx_context>(idx, ubatch, cells, cells);
    }
    memory = mtp_memory_attention(memory);

    if (auto * kv = dynamic_cast<llama_kv_cache *>(memory)) {
        return mtp_memory_context<llama_kv_cache_context>(kv, ubatch, kv->mtp_place(ubatch));
    }
    if (auto * dsa = dynamic_cast<llama_kv_cache_dsa *>(memory)) {
        return mtp_memory_context<llama_kv_cache_dsa_context>(dsa, ubatch, dsa->get_mla()->mtp_place(ubatch),
                                                              dsa->get_lid()->mtp_place(ubatch));
    }
    auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(memory);
    GGML_ASSERT(iswa);
    return mtp_memory_context<llama_kv_cache_iswa_context>(iswa, ubatch, iswa->get_base()->mtp_place(ubatch),
                                                           iswa->get_swa()->mtp_place(ubatch));
}

// Throws if a device cannot keep values of a type in heads of n. llama.cpp asks for whole blocks only where it uses flash
// attention, and aborts where a device cannot write them.
static void mtp_check_type(ggml_backend_dev_t device, const char * name, ggml_type type, int64_t n) {
    const auto refuse_if = [&](bool is_wrong, const std::string & why) {
        const std::string what = std::string(name) + " cannot be " + ggml_type_name(type) + ": " + why;
        mtp_refuse_if(is_wrong, what + "; use f16, f32 or bf16");
    };
    const int64_t n_block = ggml_blck_size(type);
    refuse_if(n % n_block != 0,
              "it keeps " + std::to_string(n_block) + " values together, and heads have " + std::to_string(n));
    const ggml_context_ptr ctx{ ggml_init({ 4 * ggml_tensor_overhead(), nullptr, true }) };

    ggml_tensor * cells = ggml_new_tensor_2d(ctx.get(), type, n, 1);
    ggml_tensor * row   = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n, 1);
    ggml_tensor * index = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I64, 1);
    refuse_if(!ggml_backend_dev_supports_op(device, ggml_set_rows(ctx.get(), cells, row, index)),
              std::string(ggml_backend_dev_name(device)) + " cannot write it");
}

void mtp_memory_check_types(const llama_model & model, const llama_context_params & params) {
    const auto &   hparams = model.hparams;
    auto * const   cpu     = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    const uint32_t n_layer = params.ctx_type == LLAMA_CONTEXT_TYPE_MTP_SHARED ? hparams.n_layer_all : hparams.n_layer();
    for (uint32_t il = 0; il < n_layer; ++il) {
        if (hparams.has_kv(il) && !hparams.is_recr(il)) {
            auto * const device = params.offload_kqv ? model.dev_layer(il) : cpu;
            mtp_check_type(device, "type_k (-ctk)", params.type_k, hparams.n_embd_head_k(il));
            mtp_check_type(device, "type_v (-ctv)", params.type_v, hparams.n_embd_head_v(il));
        }
    }
}
