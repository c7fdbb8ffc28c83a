#include "head-graph.h"
#include "llama-model-loader.h"

#include <string>

// A head of pymtp's own form, which drafts for any trunk whose cache keeps K/V by position: the block of head-block.cpp,
// with the attention of the trunk's last layer that sees all positions. Where the cache has compressed keys (MLA), so has
// the head, for as many queries as its file has. Its file says what it is, since the architecture's own code knows nothing
// of it: while that runs, the layer is hidden.
static constexpr const char * KV_GENERIC = "pymtp.head.trunk";

void head_generic_find(const llama_model_loader & ml, llama_hparams & hparams) {
    if (gguf_find_key(ml.metadata, KV_GENERIC) >= 0 && hparams.n_layer_nextn == 1 && hparams.n_layer_all > 1) {
        hparams.mtp_generic   = true;
        hparams.n_layer_nextn = 0;
        hparams.n_layer_all -= 1;
    }
}

void head_generic_load_hparams(const llama_model_loader & ml, llama_hparams & hparams) {
    if (!hparams.mtp_generic) {
        return;
    }
    const uint32_t il   = hparams.n_layer_all;
    uint32_t       like = il - 1;
    while (like > 0 && (hparams.is_recr(like) || hparams.is_swa(like) || hparams.n_head_kv(like) == 0)) {
        --like; // down to the first if all have windows
    }
    hparams.n_layer_all   = il + 1;
    hparams.n_layer_nextn = 1;

    hparams.n_head_arr[il]    = hparams.n_head_arr[like];
    hparams.n_head_kv_arr[il] = hparams.n_head_kv_arr[like];
    hparams.is_swa_impl[il]   = false;
    hparams.is_recr_impl[il]  = false;

    const std::string name = "blk." + std::to_string(il) + ".attn_q.weight";
    const auto *      q    = ml.get_tensor_meta(name.c_str());
    if (q && hparams.is_mla() && hparams.n_embd_head_k(il) > 0) {
        hparams.n_head_arr[il] = uint32_t(q->ne[1] / hparams.n_embd_head_k(il)); // the trunk's have fewer numbers each
    }
    if (!(hparams.f_norm_rms_eps > 0.0f)) {
        hparams.f_norm_rms_eps = 1e-5f; // the trunk has norms of another kind
    }
}
