// Calls through the C interface with any numbers, in any order. Afterwards the session computes the same as before.

#include "fuzz-session.h"

static constexpr int32_t N_ROWS_MAX = 40;

struct rows {
    std::vector<int32_t> token, pos, seq;
    std::vector<uint8_t> flags;
};

static rows some_rows(fuzz_numbers & numbers) {
    rows made;
    for (int32_t n = numbers.byte() % 6; n > 0; --n) {
        const int32_t seq = numbers.number(FUZZ_N_SEQ), begin = numbers.number(64), n_rows = numbers.byte() % 8;
        for (int32_t i = 0; i < n_rows && made.token.size() < N_ROWS_MAX; ++i) {
            made.token.push_back(numbers.number(512));
            made.pos.push_back((int32_t) ((uint32_t) begin + i));
            made.seq.push_back(seq);
            made.flags.push_back(numbers.byte());
        }
    }
    return made;
}

static void call(pymtp_session * session, fuzz_numbers & numbers, std::vector<uint8_t> & saved) {
    const int32_t kind = numbers.byte() % 15;
    if (kind < 4) {
        const rows r = some_rows(numbers);
        pymtp_session_decode(session, r.token.size(), r.token.data(), r.pos.data(), r.seq.data(), r.flags.data());
    } else if (kind == 4) {
        const rows           r       = some_rows(numbers);
        int32_t              n_steps = numbers.number(4);
        std::vector<int32_t> drafts(N_ROWS_MAX * 32);
        std::vector<float>   probs(N_ROWS_MAX * 32);
        pymtp_session_draft_greedy(session, r.token.size(), r.token.data(), r.pos.data(), r.seq.data(), &n_steps,
                                   drafts.data(), numbers.byte() & 1 ? probs.data() : nullptr);
    } else if (kind == 5) {
        const rows    r    = some_rows(numbers);
        const int32_t step = numbers.number(4), n_steps = numbers.number(4);
        pymtp_session_draft(session, step, n_steps, r.token.size(), r.token.data(), r.pos.data(), r.seq.data());
    } else if (kind == 6) {
        const int32_t seq = numbers.number(FUZZ_N_SEQ), pos = numbers.number(64);
        pymtp_session_truncate(session, 1, &seq, &pos);
    } else if (kind == 7) {
        const int32_t from = numbers.number(FUZZ_N_SEQ);
        pymtp_session_copy(session, from, numbers.number(FUZZ_N_SEQ));
    } else if (kind == 8) {
        const int32_t seq = numbers.number(FUZZ_N_SEQ), pos = numbers.number(64);
        pymtp_session_discard(session, seq, pos, numbers.number(64));
    } else if (kind == 9) {
        const int32_t seq = numbers.number(FUZZ_N_SEQ);
        int32_t       end;
        pymtp_session_seen_end(session, numbers.number(3), 1, &seq, &end);
    } else if (kind == 10) {
        pymtp_state * state = nullptr;
        const int32_t seq   = numbers.number(FUZZ_N_SEQ);
        if ((numbers.byte() & 1 ? pymtp_session_save(session, -1, &state) : pymtp_session_save(session, seq, &state)) ==
            PYMTP_OK) {
            size_t          size = 0;
            const uint8_t * data = pymtp_state_data(state, &size);
            saved.assign(data, data + size);
            pymtp_free(state);
        }
    } else if (kind == 11) {
        const int32_t seq = numbers.number(FUZZ_N_SEQ);
        if (numbers.byte() & 1) {
            pymtp_session_restore(session, -1, saved.data(), saved.size());
        } else {
            pymtp_session_restore(session, seq, saved.data(), saved.size());
        }
    } else if (kind == 12) {
        pymtp_session_limit_drafts(session, numbers.number(600), nullptr, -1, nullptr, nullptr);
    } else if (kind == 13) {
        std::vector<int32_t> token(numbers.byte() % 8);
        for (auto & each : token) {
            each = numbers.number(512);
        }
        pymtp_session_ban_tokens(session, token.size(), token.data());
    } else {
        const int32_t      of_draft = numbers.byte() & 1, row = numbers.number(8), n_rows = numbers.number(8);
        std::vector<float> logits(8 * 512);
        if (n_rows <= 8) { // what is copied there has room
            pymtp_session_logits(session, of_draft, row, n_rows, 512, logits.data());
        }
    }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static pymtp_session * const    session = fuzz_session();
    static const std::vector<float> answer  = fuzz_answer(session);

    fuzz_numbers         numbers(data, size);
    std::vector<uint8_t> saved;
    while (!numbers.is_over()) {
        call(session, numbers, saved);
    }
    FUZZ_CHECK(pymtp_session_limit_drafts(session, 512, nullptr, -1, nullptr, nullptr) == PYMTP_OK);
    FUZZ_CHECK(pymtp_session_ban_tokens(session, 0, nullptr) == PYMTP_OK);
    const auto again = fuzz_answer(session);
    FUZZ_CHECK(memcmp(again.data(), answer.data(), answer.size() * sizeof(float)) == 0);
    return 0;
}
