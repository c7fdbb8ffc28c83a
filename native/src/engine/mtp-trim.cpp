// Which tokens drafts may be: a part of the vocabulary, whose rows of the output matrix are all that a head multiplies,
// and tokens that are barred. Verification knows nothing of it: what is drafted stays lossless.

#include "llama-model.h"
#include "mtp-engine.h"

#include <cmath>

ggml_tensor * mtp_engine::output_matrix(int32_t head) const {
    const auto & model = head_model();
    const auto & layer = model.layers[model.hparams.n_layer() + head];
    return layer.nextn.shared_head_head ? layer.nextn.shared_head_head : model.output;
}

void mtp_engine::trim(int32_t n) {
    drop_slots();
    n_trimmed = n;
    trimmed.clear();
    trim_tokens.clear();
    fill_bias();
}

// Where a matrix like `of` can lie, with n_rows rows: beside it, unless the kind of memory only takes matrices of other
// sizes (memory in which the CPU repacks weights does).
static ggml_backend_buffer_type_t mtp_matrix_buft(const ggml_tensor * of, int64_t n_rows) {
    auto * const buft = ggml_backend_buffer_get_type(of->buffer);
    auto * const dev  = ggml_backend_buft_get_device(buft);
    if (!dev || ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU) {
        return buft;
    }

    const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(buft, 0));
    const ggml_init_params        params = { 4 * ggml_tensor_overhead(), nullptr, true };
    const ggml_context_ptr        ctx0(ggml_init(params));

    ggml_tensor * matrix = ggml_new_tensor_2d(ctx0.get(), of->type, of->ne[0], n_rows);
    ggml_tensor * input  = ggml_new_tensor_2d(ctx0.get(), GGML_TYPE_F32, of->ne[0], 1);
    matrix->buffer       = empty.get();
    const bool can       = ggml_backend_dev_supports_op(dev, ggml_mul_mat(ctx0.get(), matrix, input));
    return can ? buft : ggml_backend_cpu_buffer_type();
}

void mtp_engine::trim(const std::vector<llama_token> & tokens, const std::vector<const void *> & rows) {
    // all memory first: if it runs out, nothing has changed
    device_tensor               ids_mem;
    std::vector<trimmed_matrix> matrices(n_heads);

    auto * ids = ids_mem.alloc("mtp_draft_vocab", GGML_TYPE_I32, 1, tokens.size(),
                               ggml_backend_dev_buffer_type(ctx.model.dev_output()));
    ggml_backend_tensor_set(ids, tokens.data(), 0, ggml_nbytes(ids));

    for (int32_t head = 0; head < n_heads; ++head) {
        const ggml_tensor * of = output_matrix(head);

        auto & cur = matrices[head];

        cur.of = of;
        cur.matrix =
            cur.mem.alloc("mtp_output", of->type, of->ne[0], tokens.size(), mtp_matrix_buft(of, tokens.size()));
        ggml_backend_tensor_set(cur.matrix, rows[head], 0, ggml_nbytes(cur.matrix));
    }

    trim((int32_t) tokens.size());
    trim_tokens     = tokens;
    trim_tokens_mem = std::move(ids_mem);
    trimmed         = std::move(matrices);
    fill_bias();
}

ggml_tensor * mtp_engine::trimmed_weight(ggml_context * ctx0, ggml_tensor * weight) const {
    if (n_trimmed == (int32_t) ctx.model.vocab.n_tokens()) {
        return weight;
    }
    for (int32_t head = 0; head < n_heads; ++head) {
        // by identity: other matrices may have as many rows
        if (weight == output_matrix(head)) {
            return trimmed.empty() ? ggml_view_2d(ctx0, weight, weight->ne[0], n_trimmed, weight->nb[1], 0) :
                                     trimmed[head].matrix;
        }
    }
    return weight;
}

ggml_tensor * mtp_engine::trimmed_bias(ggml_context * ctx0) const {
    return bias ? ggml_view_1d(ctx0, bias, n_trimmed, 0) : nullptr;
}

ggml_tensor * mtp_engine::trimmed_tokens(ggml_context * ctx0, ggml_tensor * rows) const {
    if (trim_tokens.empty()) {
        return rows;
    }
    ggml_tensor * ids = ggml_get_first_tensor(trim_tokens_mem.ctx.get());
    return ggml_reshape_1d(ctx0, ggml_get_rows(ctx0, ids, rows), rows->ne[0]);
}

void mtp_engine::bar(const std::vector<llama_token> & tokens) {
    barred = tokens;
    fill_bias();
}

// by row of the output matrix
void mtp_engine::fill_bias() {
    const auto &  model   = ctx.model;
    const int32_t n_vocab = model.vocab.n_tokens();
    if (barred.empty() && n_usable == n_vocab) {
        bias = nullptr;
        return;
    }

    if (!bias_mem.buf) {
        bias_mem.alloc("mtp_bias", GGML_TYPE_F32, n_vocab, 1, ggml_backend_dev_buffer_type(model.dev_output()));
    }
    bias = ggml_get_first_tensor(bias_mem.ctx.get());

    std::vector<float> by_token(n_vocab, 0.0f);
    std::fill(by_token.begin() + n_usable, by_token.end(), -INFINITY);
    for (const llama_token token : barred) {
        by_token[token] = -INFINITY;
    }
    auto by_row = by_token;
    for (size_t i = 0; i < trim_tokens.size(); ++i) {
        by_row[i] = by_token[trim_tokens[i]];
    }
    ggml_backend_tensor_set(bias, by_row.data(), 0, ggml_nbytes(bias));
}
