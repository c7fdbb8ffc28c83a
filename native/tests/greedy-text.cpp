// The most likely text after a prompt, in rounds with drafts: what a portable build writes on a processor that only an
// emulator has, where there is no Python (tests/test_wheel.py).
//
//   greedy-text BACKENDS MODEL PROMPT N_TOKENS      BACKENDS: the folder of the backends; prints the text

#include "ggml-backend.h"
#include "llama.h"
#include "pymtp.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static constexpr int32_t N_DRAFT = 3;

using tokens_t = std::vector<int32_t>;

static void need(bool is_so, const char * what) {
    if (!is_so) {
        fprintf(stderr, "greedy-text: %s: %s%s\n", what, pymtp_error_message(), pymtp_log_take());
        exit(1);
    }
}

// one session with one sequence
struct writer {
    pymtp_session * session = nullptr;

    // Decodes tokens at `begin` and feeds the heads; the most likely token after each.
    tokens_t decode(const tokens_t & tokens, int32_t begin) {
        const int32_t      n    = tokens.size();
        pymtp_session_info info = {};
        need(pymtp_session_describe(session, &info) == PYMTP_OK, "describe");
        const std::vector<uint8_t> flags(n, PYMTP_ROW_LOGITS | info.n_heads << PYMTP_ROW_FEED_SHIFT);
        need(pymtp_session_decode(session, n, tokens.data(), positions(begin, n).data(), tokens_t(n, 0).data(),
                                  flags.data()) == PYMTP_OK,
             "decode");
        int32_t n_vocab = 0;
        pymtp_session_n_logits(session, false, &n_vocab);
        std::vector<float> logits((size_t) n * n_vocab);
        need(pymtp_session_logits(session, false, 0, n, n_vocab, logits.data()) == PYMTP_OK, "logits");
        tokens_t best;
        for (auto row = logits.begin(); row != logits.end(); row += n_vocab) {
            best.push_back(std::max_element(row, row + n_vocab) - row);
        }
        return best;
    }

    tokens_t draft(int32_t newest, int32_t pos) {
        int32_t       n_steps = N_DRAFT;
        tokens_t      drafts(N_DRAFT);
        const int32_t seq = 0;
        need(pymtp_session_draft_greedy(session, 1, &newest, &pos, &seq, &n_steps, drafts.data(), nullptr) == PYMTP_OK,
             "draft");
        drafts.resize(n_steps);
        return drafts;
    }

    static tokens_t positions(int32_t begin, int32_t n) {
        tokens_t pos(n);
        for (int32_t i = 0; i < n; ++i) {
            pos[i] = begin + i;
        }
        return pos;
    }
};

static std::string text_of(const llama_vocab * vocab, int32_t token) {
    char          piece[256];
    const int32_t n = llama_token_to_piece(vocab, token, piece, sizeof(piece), 0, false);
    return { piece, piece + std::max(n, 0) };
}

int main(int argc, char ** argv) {
    need(argc == 5, "BACKENDS MODEL PROMPT N_TOKENS");
    const std::string prompt   = argv[3];
    const int32_t     n_tokens = atoi(argv[4]);

    pymtp_log_show(GGML_LOG_LEVEL_CONT);
    ggml_backend_load_all_from_path(argv[1]);
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    need(device, "no backend for this processor");

    auto of_model     = llama_model_default_params();
    of_model.load_mtp = true;
    llama_model * model;
    need(pymtp_model_load(1, argv + 2, &of_model, &model) == PYMTP_OK, "load");
    const llama_vocab * vocab = llama_model_get_vocab(model);

    tokens_t      tokens(prompt.size() + 8);
    const int32_t n_prompt =
        llama_tokenize(vocab, prompt.c_str(), prompt.size(), tokens.data(), tokens.size(), true, true);
    need(n_prompt > 0, "tokenize");
    tokens.resize(n_prompt);

    auto params            = llama_context_default_params();
    params.n_ctx           = 512;
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    params.n_outputs_max   = n_prompt;

    writer                     w;
    const pymtp_session_params of_session = { &params, N_DRAFT, true, PYMTP_HEAD_CONTEXT_CHAINED, nullptr, 0, 0 };
    need(pymtp_session_init(model, &of_session, &w.session) == PYMTP_OK, "session");

    int32_t n_drafted  = 0;
    int32_t n_accepted = 0;
    int32_t n_decoded  = n_prompt;

    const int32_t seq = 0;
    tokens.push_back(w.decode(tokens, 0).back());
    while (!llama_vocab_is_eog(vocab, tokens.back()) && (int32_t) tokens.size() < n_prompt + n_tokens) {
        const tokens_t drafts = w.draft(tokens.back(), n_decoded);
        tokens_t       rows   = { tokens.back() };
        rows.insert(rows.end(), drafts.begin(), drafts.end());
        const tokens_t best = w.decode(rows, n_decoded);

        size_t n_right = 0;
        while (n_right < drafts.size() && drafts[n_right] == best[n_right]) {
            ++n_right;
        }
        tokens.insert(tokens.end(), best.begin(), best.begin() + n_right + 1);
        n_decoded += n_right + 1;
        n_drafted += drafts.size();
        n_accepted += n_right;
        need(pymtp_session_truncate(w.session, 1, &seq, &n_decoded) == PYMTP_OK, "truncate");
        const auto end = std::find_if(tokens.begin() + n_prompt, tokens.end(),
                                      [&](int32_t token) { return llama_vocab_is_eog(vocab, token); });
        tokens.erase(end == tokens.end() ? end : end + 1, tokens.end());
    }
    tokens.resize(std::min<size_t>(tokens.size(), n_prompt + n_tokens));

    std::string text;
    for (auto token = tokens.begin() + n_prompt; token != tokens.end(); ++token) {
        text += llama_vocab_is_eog(vocab, *token) ? "" : text_of(vocab, *token);
    }
    printf("%s", text.c_str());
    fprintf(stderr, "%s: %d of %d drafts accepted\n", ggml_backend_dev_description(device), n_accepted, n_drafted);
    pymtp_free(w.session);
    llama_model_free(model);
    return 0;
}
