#include "mtp-draft-vocab.h"

#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

// Converters fill a vocabulary up with unused tokens where the matrices of the model have more rows.
static int32_t mtp_vocab_usable(const llama_vocab & vocab) {
    int32_t n = vocab.n_tokens();
    while (n > 1 && (vocab.token_get_attr(n - 1) & LLAMA_TOKEN_ATTR_UNUSED) &&
           strncmp(vocab.token_get_text(n - 1), "[PAD", 4) == 0) {
        --n;
    }
    return n;
}

mtp_draft_vocab::mtp_draft_vocab(const llama_model & trunk, const llama_model & head_model, int32_t n_heads) :
    trunk(trunk), head_model(head_model), n_tokens_usable(mtp_vocab_usable(trunk.vocab)), n(trunk.vocab.n_tokens()) {
    if (n_heads > 0) {
        fill_bias(); // what memory it takes is taken before drafts are limited
    }
}

ggml_tensor * mtp_draft_vocab::output_matrix(int32_t head) const {
    const auto & layer = head_model.layers[head_model.hparams.n_layer() + head];
    return layer.nextn.shared_head_head ? layer.nextn.shared_head_head : head_model.output;
}

// Where a matrix of some rows of `of` can be: next to it, but that memory in which the CPU repacks weights takes no
// single rows later.
static ggml_backend_buffer_type_t mtp_matrix_buft(const ggml_tensor * of) {
    auto * const buft   = ggml_backend_buffer_get_type(of->buffer);
    auto * const dev    = ggml_backend_buft_get_device(buft);
    const bool   is_cpu = dev && ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    return is_cpu ? ggml_backend_cpu_buffer_type() : buft;
}

void mtp_draft_vocab::limit(int32_t n_rows, const std::vector<llama_token> & tokens, int32_t type,
                            const std::vector<const void *> & rows) {
    // all memory first: if it runs out, nothing has changed
    mtp_device_tensor              new_mem;
    std::vector<mtp_device_tensor> new_matrices(rows.size());

    if (!tokens.empty()) {
        auto * ids = new_mem.alloc("mtp_draft_vocab", GGML_TYPE_I32, 1, n_rows,
                                   ggml_backend_dev_buffer_type(trunk.dev_output()));
        ggml_backend_tensor_set(ids, tokens.data(), 0, ggml_nbytes(ids));
    }
    for (size_t head = 0; head < rows.size(); ++head) {
        auto * const    of  = output_matrix(head);
        const ggml_type own = type < 0 ? of->type : (ggml_type) type;
        // heads may share one
        const bool is_first = of == output_matrix(0) &&
                              (type < 0 || memcmp(rows[head], rows[0], n_rows * ggml_row_size(own, of->ne[0])) == 0);
        if (head > 0 && is_first) {
            continue;
        }
        auto * const matrix = new_matrices[head].alloc("mtp_output", own, of->ne[0], n_rows, mtp_matrix_buft(of));
        ggml_backend_buffer_set_usage(matrix->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS); // kernels ask for that
        ggml_backend_tensor_set(matrix, rows[head], 0, ggml_nbytes(matrix));
    }

    n         = n_rows;
    listed    = tokens;
    own_types = type < 0;
    ++n_limits;
    listed_mem = std::move(new_mem);
    matrices   = std::move(new_matrices);
    fill_bias();
}

void mtp_draft_vocab::replace(const std::vector<int32_t> & at, const std::vector<llama_token> & tokens,
                              const std::vector<const void *> & rows) {
    const auto set = [&](ggml_tensor * tensor, const void * values) {
        for (size_t i = 0; i < at.size(); ++i) {
            ggml_backend_tensor_set(tensor, (const char *) values + i * tensor->nb[1], at[i] * tensor->nb[1],
                                    tensor->nb[1]);
        }
    };
    set(listed_mem.get(), tokens.data());
    for (size_t head = 0; head < rows.size(); ++head) {
        if (auto * matrix = matrices[head].get()) {
            set(matrix, rows[head]);
        }
    }
    for (size_t i = 0; i < at.size(); ++i) {
        listed[at[i]] = tokens[i];
    }
    fill_bias();
}

void mtp_draft_vocab::ban(const std::vector<llama_token> & tokens) {
    banned = tokens;
    fill_bias();
}

void mtp_draft_vocab::fill_bias() {
    const int32_t n_vocab = trunk.vocab.n_tokens();
    if (banned.empty() && n_tokens_usable == n_vocab) {
        bias = nullptr;
        return;
    }

    if (!bias_mem.get()) {
        bias_mem.alloc("mtp_bias", GGML_TYPE_F32, n_vocab, 1, ggml_backend_dev_buffer_type(trunk.dev_output()));
    }
    bias = bias_mem.get();

    std::vector<float> by_token(n_vocab, 0.0f);
    std::fill(by_token.begin() + n_tokens_usable, by_token.end(), -INFINITY);
    for (const llama_token token : banned) {
        by_token[token] = -INFINITY;
    }
    auto by_row = by_token;
    for (size_t i = 0; i < listed.size(); ++i) {
        by_row[i] = by_token[listed[i]];
    }
    ggml_backend_tensor_set(bias, by_row.data(), 0, ggml_nbytes(bias));
}

ggml_tensor * mtp_draft_vocab::weight(ggml_context * ctx0, int32_t head, ggml_tensor * weight) const {
    // by identity: other matrices may have as many rows
    if (weight != output_matrix(head)) {
        return weight;
    }
    if (!matrices.empty()) {
        return matrices[head].get() ? matrices[head].get() : matrices[0].get();
    }
    const bool is_whole = n == (int32_t) trunk.vocab.n_tokens();
    return is_whole ? weight : ggml_view_2d(ctx0, weight, weight->ne[0], n, weight->nb[1], 0);
}

ggml_tensor * mtp_draft_vocab::tokens(ggml_context * ctx0, ggml_tensor * rows) const {
    return is_listed() ? ggml_reshape_1d(ctx0, ggml_get_rows(ctx0, listed_mem.get(), rows), rows->ne[0]) : rows;
}

// --- rows of weights in another type

bool mtp_can_convert_to(ggml_type type) {
    static constexpr ggml_type TYPES[] = {
        GGML_TYPE_F32,  GGML_TYPE_F16,    GGML_TYPE_BF16,   GGML_TYPE_Q4_0,  GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
        GGML_TYPE_Q5_1, GGML_TYPE_Q8_0,   GGML_TYPE_Q2_K,   GGML_TYPE_Q3_K,  GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
        GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_MXFP4,
    };
    return std::find(std::begin(TYPES), std::end(TYPES), type) != std::end(TYPES);
}

int64_t mtp_convert_rows(ggml_type from, ggml_type to, int64_t n_rows, int64_t n_per_row, const void * rows,
                         void * converted) {
    std::vector<float> numbers(n_rows > 0 ? n_per_row : 0);
    for (int64_t i = 0; i < n_rows; ++i) {
        const char * row = (const char *) rows + i * ggml_row_size(from, n_per_row);
        if (from == GGML_TYPE_F32) {
            memcpy(numbers.data(), row, n_per_row * sizeof(float));
        } else {
            ggml_get_type_traits(from)->to_float(row, numbers.data(), n_per_row);
        }
        if (!std::all_of(numbers.begin(), numbers.end(), [](float number) { return std::isfinite(number); })) {
            return i;
        }
        ggml_quantize_chunk(to, numbers.data(), (char *) converted + i * ggml_row_size(to, n_per_row), 0, 1, n_per_row,
                            nullptr);
    }
    return n_rows;
}
