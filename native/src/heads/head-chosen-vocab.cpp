#include "head-chosen-vocab.h"

#include "mtp-refuse.h"

#include <cmath>
#include <string>

void head_chosen_vocab_check(const head_chosen_vocab & chosen, int64_t n_vocab) {
    if (!chosen.centroids && !chosen.ordering) {
        return;
    }
    mtp_refuse_if(!chosen.centroids || !chosen.ordering,
                  "of masked_embd_centroids and masked_embd_ordering one is missing");
    const int64_t n_groups = chosen.centroids->ne[1];
    mtp_refuse_if(n_vocab % n_groups != 0 || chosen.n_chosen < 1 || chosen.n_chosen > n_groups,
                  "a vocabulary of " + std::to_string(n_vocab) + " tokens in " + std::to_string(n_groups) +
                      " groups, of which " + std::to_string(chosen.n_chosen) + " are chosen");
    mtp_refuse_if(chosen.ordering->type != GGML_TYPE_I32, "masked_embd_ordering is not I32");
}

ggml_tensor * head_chosen_vocab_build(ggml_context * ctx0, const head_chosen_vocab & chosen, ggml_tensor * hidden,
                                      ggml_tensor * logits) {
    const int64_t n_vocab  = logits->ne[0];
    const int64_t n_rows   = logits->ne[1];
    const int64_t n_groups = chosen.centroids->ne[1];
    const int64_t n_tokens = n_vocab / n_groups * chosen.n_chosen; // of each row

    // [n_chosen, n_rows]
    ggml_tensor * groups = ggml_top_k(ctx0, ggml_mul_mat(ctx0, chosen.centroids, hidden), chosen.n_chosen);

    ggml_tensor * tokens = ggml_reshape_2d(ctx0, chosen.ordering, n_vocab / n_groups, n_groups);
    tokens               = ggml_get_rows(ctx0, tokens, ggml_reshape_1d(ctx0, groups, chosen.n_chosen * n_rows));
    tokens               = ggml_reshape_2d(ctx0, tokens, n_tokens, n_rows);

    logits = ggml_reshape_3d(ctx0, logits, 1, n_vocab, n_rows);
    logits = ggml_set_rows(ctx0, ggml_fill(ctx0, logits, -INFINITY), ggml_get_rows(ctx0, logits, tokens), tokens);
    return ggml_reshape_2d(ctx0, logits, n_vocab, n_rows);
}
