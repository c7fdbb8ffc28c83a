// What is wrong in llama.cpp b11549, on a CPU: one case each. Prints "as expected", or what is wrong, and ends with 1 then.
//
//   c++ -std=c++17 -Iinclude -Iggml/include reproduce.cpp -Lbuild/bin -lllama -lggml -lggml-base -o reproduce
//   LD_LIBRARY_PATH=build/bin ./reproduce CASE MODEL.gguf
//
//   zeros        a model with recurrent states
//   moved-cells  one whose recurrent states can go back, such as qwen35
//   rollback     qwen3next, falcon-h1 or granitehybrid
//   passes       as moved-cells
//   saved-cells  any model with sliding windows or a plain KV cache
//   index        glm-dsa, with fewer positions picked than there are: indexer.top_k below 40
//   sums         glm4moe or qwen35, and a library with late devices: prints a number that must not depend on how late
//
// The devices of `sums` are those of native/tests/lagging-device.cpp, compiled with -shared -fPIC -Iggml/src as well:
//   LAGGING_DEVICES=2 LAGGING_DEVICE=at-once ./reproduce sums MODEL.gguf ./lagging-device.so      (or LAGGING_DEVICE=late)

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

using tokens = std::vector<llama_token>;

struct rows {
    llama_seq_id seq;
    llama_pos    pos;
    tokens       ids;
};

static int g_n_passes = 0;

static bool count_passes(ggml_tensor * tensor, bool ask, void *) {
    g_n_passes += ask && strcmp(tensor->name, "result_output") == 0;
    return false;
}

static llama_context * context(llama_model * model, uint32_t n_seq_max, uint32_t n_rs_seq, bool counts = false) {
    auto params            = llama_context_default_params();
    params.n_ctx           = 256;
    params.n_batch         = 128;
    params.n_seq_max       = n_seq_max;
    params.n_rs_seq        = n_rs_seq;
    params.kv_unified      = true;
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k          = GGML_TYPE_F32;
    params.type_v          = GGML_TYPE_F32;
    params.cb_eval         = counts ? count_passes : nullptr;
    return llama_init_from_model(model, params);
}

// the logits of the last row
static std::vector<float> decode(llama_context * ctx, const std::vector<rows> & parts) {
    llama_batch batch = llama_batch_init(128, 0, 1);
    for (const auto & part : parts) {
        for (size_t i = 0; i < part.ids.size(); ++i) {
            const int n        = batch.n_tokens++;
            batch.token[n]     = part.ids[i];
            batch.pos[n]       = part.pos + i;
            batch.n_seq_id[n]  = 1;
            batch.seq_id[n][0] = part.seq;
            batch.logits[n]    = i + 1 == part.ids.size();
        }
    }
    const bool ok = llama_decode(ctx, batch) == 0;
    llama_batch_free(batch);
    if (!ok) {
        return {};
    }
    const float * logits = llama_get_logits_ith(ctx, -1);
    return { logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))) };
}

static tokens text(int n, int seed) {
    tokens res;
    for (int i = 0; i < n; ++i) {
        res.push_back(5 + (seed * 37 + i * 11) % 90);
    }
    return res;
}

static bool differ(const std::vector<float> & a, const std::vector<float> & b) {
    for (size_t i = 0; i < a.size(); ++i) {
        if (b.empty() || !(std::fabs(a[i] - b[i]) < 1e-2f)) { // NaN as well
            return true;
        }
    }
    return a.empty();
}

// the logits after `ids` in a context of their own
static std::vector<float> alone(llama_model * model, const tokens & ids) {
    llama_context * ctx = context(model, 1, 0);
    const auto      res = decode(ctx, { { 0, 0, ids } });
    llama_free(ctx);
    return res;
}

static std::vector<uint8_t> save(llama_context * ctx) {
    std::vector<uint8_t> state(llama_state_seq_get_size(ctx, 0));
    llama_state_seq_get_data(ctx, state.data(), state.size(), 0);
    return state;
}

static const char * zeros(llama_model * model) {
    llama_context * ctx      = context(model, 1, 0);
    const auto      expected = decode(ctx, { { 0, 0, text(8, 1) } });
    auto            state    = save(ctx);
    std::fill(state.end() - 64, state.end(), 0xff); // the last numbers of the last recurrent state
    llama_state_seq_set_data(ctx, state.data(), state.size(), 0);
    llama_memory_seq_rm(llama_get_memory(ctx), 0, -1, -1);
    const bool is_wrong = differ(expected, decode(ctx, { { 0, 0, text(8, 1) } }));
    llama_free(ctx);
    return is_wrong ? "a sequence that begins again has the NaN of the one before it" : nullptr;
}

static const char * moved_cells(llama_model * model) {
    llama_context * ctx = context(model, 3, 4);
    for (int seq = 0; seq < 3; ++seq) {
        decode(ctx, { { seq, 0, text(10 + seq, seq) } });
    }
    // drafts of sequence 1, between the prompts of two others that are longer
    decode(ctx, { { 0, 10, text(12, 4) }, { 1, 11, { 20, 21, 22 } }, { 2, 12, text(12, 5) } });
    llama_memory_seq_rm(llama_get_memory(ctx), 1, 12, -1); // two of them are rejected
    tokens expected = text(11, 1);
    expected.insert(expected.end(), { 20, 23 });
    const bool is_wrong = differ(alone(model, expected), decode(ctx, { { 1, 12, { 23 } } }));
    llama_free(ctx);
    return is_wrong ? "a sequence goes back to the states of another" : nullptr;
}

static const char * rollback(llama_model * model) {
    llama_context * ctx = context(model, 1, 4);
    decode(ctx, { { 0, 0, text(10, 1) } });
    decode(ctx, { { 0, 10, { 20, 21, 22 } } });
    const bool is_back  = llama_memory_seq_rm(llama_get_memory(ctx), 0, 11, -1);
    tokens     expected = text(10, 1);
    expected.insert(expected.end(), { 20, 23 });
    const bool is_wrong = is_back && differ(alone(model, expected), decode(ctx, { { 0, 11, { 23 } } }));
    llama_free(ctx);
    return !is_back ? "the last two rows cannot be dropped" : is_wrong ? "the logits are wrong after that" : nullptr;
}

static const char * passes(llama_model * model) {
    llama_context * ctx = context(model, 5, 4, true);
    for (int seq = 0; seq < 5; ++seq) {
        decode(ctx, { { seq, 0, text(10, seq) } });
    }
    g_n_passes = 0;
    decode(ctx,
           { { 0, 10, text(5, 1) }, { 1, 10, text(5, 2) }, { 2, 10, text(5, 3) }, { 3, 10, { 9 } }, { 4, 10, { 9 } } });
    llama_free(ctx);
    return g_n_passes > 2 ? "three rounds of five rows and two of one take more than two passes" : nullptr;
}

static const char * saved_cells(llama_model * model) {
    llama_context * ctx      = context(model, 1, 0);
    const auto      expected = decode(ctx, { { 0, 0, text(8, 1) } });
    auto            state    = save(ctx);
    const int32_t   cell[] = { 5, 1 }, odd[] = { -5, 1 }; // a position, and the number of its sequences
    const auto      at = std::search(state.begin(), state.end(), (const uint8_t *) cell, (const uint8_t *) (cell + 2));
    std::copy_n((const uint8_t *) odd, sizeof(odd), at);
    const bool is_taken = llama_state_seq_set_data(ctx, state.data(), state.size(), 0) > 0;
    llama_memory_seq_rm(llama_get_memory(ctx), 0, -1, -1);
    const bool is_held = llama_memory_seq_pos_max(llama_get_memory(ctx), 0) != -1 ||
                         differ(expected, decode(ctx, { { 0, 0, text(8, 1) } }));
    llama_free(ctx);
    return is_taken && is_held ?
               "a state with a cell at position -5 is taken, and the cell stays when its sequence is removed" :
           is_taken ? "a state with a cell at position -5 is taken" :
                      nullptr;
}

static const char * index(llama_model * model) {
    llama_context * ctx      = context(model, 1, 0);
    const auto      expected = alone(model, text(41, 1));
    tokens          prompt   = text(41, 1);
    const tokens    last     = { prompt.back() };
    prompt.pop_back();
    decode(ctx, { { 0, 0, prompt } });
    llama_memory_seq_add(llama_get_memory(ctx), 0, 0, -1, 64); // distances stay the same, so do logits
    const bool is_wrong = differ(expected, decode(ctx, { { 0, 104, last } }));
    llama_free(ctx);
    return is_wrong ? "positions that move by the same distance change what is picked" : nullptr;
}

// split over the devices of this library
static int sums(const char * path, const char * library) {
    auto params       = llama_model_default_params();
    params.split_mode = LLAMA_SPLIT_MODE_TENSOR;

    llama_model * model = ggml_backend_load(library) ? llama_model_load_from_file(path, params) : nullptr;
    if (!model) {
        fprintf(stderr, "%s or %s cannot be loaded\n", library, path);
        return 2;
    }
    auto cparams            = llama_context_default_params();
    cparams.n_ctx           = 256;
    cparams.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;

    llama_context * ctx = llama_init_from_model(model, cparams);
    double          sum = 0;
    for (int i = 0; i < 8; ++i) {
        for (const float logit : decode(ctx, { { 0, i, { 10 + i } } })) {
            sum = sum * 0.999 + logit;
        }
    }
    printf("sums: %.9g\n", sum);
    return 0;
}

int main(int argc, char ** argv) {
    if (argc == 4 && strcmp(argv[1], "sums") == 0) {
        return sums(argv[2], argv[3]);
    }
    const std::pair<const char *, const char * (*)(llama_model *)> cases[] = {
        { "zeros", zeros },   { "moved-cells", moved_cells }, { "rollback", rollback },
        { "passes", passes }, { "saved-cells", saved_cells }, { "index", index },
    };
    for (const auto & [name, run] : cases) {
        if (argc == 3 && strcmp(argv[1], name) == 0) {
            llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
            llama_model * model = llama_model_load_from_file(argv[2], llama_model_default_params());
            if (!model) {
                fprintf(stderr, "%s cannot be loaded\n", argv[2]);
                return 2;
            }
            const char * wrong = run(model);
            llama_model_free(model);
            printf("%s: %s\n", name, wrong ? wrong : "as expected");
            return wrong != nullptr;
        }
    }
    fprintf(stderr, "usage: reproduce CASE MODEL.gguf\n");
    return 2;
}
