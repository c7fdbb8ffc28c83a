// The reader of saved states: any bytes, as the state of a session or of a sequence. What it refuses has changed
// nothing; what it takes can be computed with, and the session computes the same as before once it is empty again.
//
// A case: its first byte says which of both; most cases are a saved state in which a few places are others, so that
// they get beyond the header.

#include "fuzz-session.h"

static std::vector<uint8_t> bytes_of(pymtp_state * state) {
    size_t          size = 0;
    const uint8_t * data = pymtp_state_data(state, &size);

    std::vector<uint8_t> bytes(data, data + size);
    pymtp_free(state);
    return bytes;
}

struct ready {
    pymtp_session *      session;
    std::vector<float>   answer;
    std::vector<uint8_t> saved[2]; // of the session, of a sequence

    ready() : session(fuzz_session()) {
        answer = fuzz_answer(session);
        FUZZ_CHECK(fuzz_decode(session, { 1, 2, 3, 4 }, 0, 0) == PYMTP_OK);
        FUZZ_CHECK(fuzz_decode(session, { 5, 6, 7 }, 4, 0) == PYMTP_OK);
        FUZZ_CHECK(fuzz_decode(session, { 8, 9 }, 0, 1) == PYMTP_OK);
        pymtp_state * state = nullptr;
        FUZZ_CHECK(pymtp_session_save(session, -1, &state) == PYMTP_OK);
        saved[0] = bytes_of(state);
        FUZZ_CHECK(pymtp_session_save(session, 0, &state) == PYMTP_OK);
        saved[1] = bytes_of(state);
    }
};

static ready & at_hand() {
    static ready one;
    return one;
}

// A case is a list of changes of a saved state: place (of 4 bytes) and byte.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    auto & [session, answer, saved] = at_hand();

    fuzz_numbers         numbers(data, size);
    const uint8_t        kind        = numbers.byte();
    const bool           is_sequence = kind & 1;
    std::vector<uint8_t> bytes;

    if (kind & 2) { // as it is
        bytes.assign(data + (size > 0), data + size);
    } else {
        bytes = saved[is_sequence];
        if (kind & 4) {
            bytes.resize(bytes.size() - numbers.number(200) % bytes.size());
        }
        while (!numbers.is_over()) {
            // both ends hold the numbers, between them lie K and V
            const size_t n     = bytes.size();
            const size_t place = numbers.byte() << 8 | numbers.byte();
            const size_t at    = place & 0x8000 ? n - 1 - (place & 0x7FFF) % n : place % n;
            bytes[at]          = numbers.byte();
        }
    }
    if (is_sequence) {
        pymtp_session_restore(session, (kind >> 3) % FUZZ_N_SEQ, bytes.data(), bytes.size());
    } else {
        pymtp_session_restore(session, -1, bytes.data(), bytes.size());
    }
    pymtp_session_info info = {};
    pymtp_session_describe(session, &info);
    for (int32_t seq = 0; seq < FUZZ_N_SEQ; ++seq) {
        int32_t end;
        if (pymtp_session_seen_end(session, info.n_heads, 1, &seq, &end) == PYMTP_OK) {
            fuzz_decode(session, { 3 }, end, seq);
        }
    }
    const auto again = fuzz_answer(session);
    FUZZ_CHECK(memcmp(again.data(), answer.data(), answer.size() * sizeof(float)) == 0);
    return 0;
}
