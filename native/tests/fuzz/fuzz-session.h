#pragma once

// What the fuzzers share: a tiny model, named by PYMTP_FUZZ_MODEL, sessions of it, and random numbers out of bytes.

#include "llama.h"
#include "pymtp.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static constexpr int32_t FUZZ_N_SEQ   = 2;
static constexpr int32_t FUZZ_N_DRAFT = 2;

// A finding that no sanitizer sees.
#define FUZZ_CHECK(condition)                                                                          \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, pymtp_error_message()); \
            abort();                                                                                   \
        }                                                                                              \
    } while (0)

inline llama_model * fuzz_model() {
    static llama_model * model = [] {
        const char *  path   = getenv("PYMTP_FUZZ_MODEL");
        auto          params = llama_model_default_params();
        llama_model * made   = nullptr;

        params.load_mtp = true;
        pymtp_log_show(5);
        llama_backend_init();
        if (!path || pymtp_model_load(1, &path, &params, &made) != PYMTP_OK) {
            fprintf(stderr, "PYMTP_FUZZ_MODEL names no model: %s\n", pymtp_error_message());
            exit(1);
        }
        return made;
    }();
    return model;
}

inline pymtp_session * fuzz_session() {
    auto params            = llama_context_default_params();
    params.n_ctx           = 64 * FUZZ_N_SEQ;
    params.n_batch         = 32;
    params.n_ubatch        = 16;
    params.n_seq_max       = FUZZ_N_SEQ;
    params.n_threads       = 1;
    params.n_threads_batch = 1;

    const pymtp_session_params of_session = { &params, FUZZ_N_DRAFT,      true, PYMTP_HEAD_CONTEXT_TARGET, nullptr,
                                              64,      PYMTP_PADDING_AUTO };
    pymtp_session *            session    = nullptr;
    FUZZ_CHECK(pymtp_session_init(fuzz_model(), &of_session, &session) == PYMTP_OK);
    return session;
}

// tokens at positions from `begin` on, the heads see them
inline int32_t fuzz_decode(pymtp_session * session, const std::vector<int32_t> & token, int32_t begin, int32_t seq) {
    std::vector<int32_t> pos, seqs(token.size(), seq);
    std::vector<uint8_t> flags(token.size(), PYMTP_ROW_LOGITS | 1 << PYMTP_ROW_FEED_SHIFT);
    for (size_t i = 0; i < token.size(); ++i) {
        pos.push_back(begin + i);
    }
    return pymtp_session_decode(session, token.size(), token.data(), pos.data(), seqs.data(), flags.data());
}

// The logits of a text that is decoded from its beginning, after which the sequences are empty.
inline std::vector<float> fuzz_answer(pymtp_session * session) {
    std::vector<float> logits(3 * 512);
    int32_t            n_columns = 0;
    const int32_t      begin     = 0;

    for (int32_t seq = 0; seq < FUZZ_N_SEQ; ++seq) {
        FUZZ_CHECK(pymtp_session_truncate(session, 1, &seq, &begin) == PYMTP_OK);
    }
    FUZZ_CHECK(fuzz_decode(session, { 3, 4, 5 }, 0, 0) == PYMTP_OK);
    FUZZ_CHECK(pymtp_session_n_logits(session, 0, &n_columns) == 3 && n_columns == 512);
    FUZZ_CHECK(pymtp_session_logits(session, 0, 0, 3, n_columns, logits.data()) == PYMTP_OK);
    FUZZ_CHECK(pymtp_session_truncate(session, 1, &begin, &begin) == PYMTP_OK);
    return logits;
}

// Numbers out of the bytes of a case; zeros after its end.
class fuzz_numbers {
  public:
    fuzz_numbers(const uint8_t * data, size_t size) : at(data), left(size) {}

    bool is_over() const { return left == 0; }

    uint8_t byte() { return left > 0 ? (--left, *at++) : 0; }

    // mostly small, at times any
    int32_t number(int32_t n) {
        const uint8_t first = byte();
        if (first < 0xF0) {
            return first % n;
        }
        uint32_t any = 0;
        for (int i = 0; i < 4; ++i) {
            any = any << 8 | byte();
        }
        return (int32_t) any;
    }

  private:
    const uint8_t * at;
    size_t          left;
};
