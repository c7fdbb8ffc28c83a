// The C interface of the lookup index.

#include "pymtp-lookup.h"

#include "guard.h"
#include "lookup.h"

int32_t pymtp_lookup_init(int32_t n_max, int32_t n_min, pymtp_lookup ** lookup) {
    return pymtp_guard([&]() -> int32_t {
        pymtp_need(lookup, "the index") = nullptr;
        if (n_max < 1 || n_max > PYMTP_LOOKUP_TOKENS_MAX) {
            pymtp_refuse("a lookup index of %d tokens: 1 to %d are possible", n_max, PYMTP_LOOKUP_TOKENS_MAX);
        }
        if (n_min < 1 || n_min > PYMTP_LOOKUP_MIN_MAX) {
            pymtp_refuse("matches of at least %d tokens: 1 to %d are possible", n_min, PYMTP_LOOKUP_MIN_MAX);
        }
        return pymtp_give(lookup, std::make_unique<pymtp_lookup>(n_max, n_min));
    });
}

void pymtp_lookup_free(pymtp_lookup * lookup) {
    pymtp_handles<pymtp_lookup>::free(lookup);
}

int32_t pymtp_lookup_append(pymtp_lookup * lookup, int32_t n, const int32_t * token) {
    return pymtp_guard(lookup, [&](pymtp_lookup & self) -> int32_t {
        pymtp_need_array(token, n, PYMTP_LOOKUP_TOKENS_MAX, "tokens for a lookup index");
        for (int32_t i = 0; i < n; ++i) {
            if (token[i] < 0 || token[i] >= PYMTP_VOCAB_MAX) {
                pymtp_refuse("token %d for a lookup index: 0 to %d are possible", token[i], PYMTP_VOCAB_MAX - 1);
            }
        }
        self.append(n, token);
        return PYMTP_OK;
    });
}

int32_t pymtp_lookup_end(pymtp_lookup * lookup) {
    return pymtp_guard(lookup, [&](pymtp_lookup & self) -> int32_t {
        self.end_history();
        return PYMTP_OK;
    });
}

int32_t pymtp_lookup_clear(pymtp_lookup * lookup) {
    return pymtp_guard(lookup, [&](pymtp_lookup & self) -> int32_t {
        self.clear();
        return PYMTP_OK;
    });
}

int32_t pymtp_lookup_find(const pymtp_lookup * lookup, int32_t n, const int32_t * token, int32_t n_draft,
                          int32_t * draft, int32_t * n_match) {
    return pymtp_guard_or(0, lookup, [&](pymtp_lookup & self) -> int32_t {
        pymtp_need(n_match, "the length of the match") = 0;
        pymtp_need_array(token, token ? n : 0, PYMTP_LOOKUP_TOKENS_MAX, "tokens to look up");
        pymtp_need_array(draft, n_draft, PYMTP_LOOKUP_TOKENS_MAX, "drafts");
        return self.find(n, token, n_draft, draft, n_match);
    });
}

int32_t pymtp_lookup_n_tokens(const pymtp_lookup * lookup) {
    return pymtp_guard_or(0, lookup, [](pymtp_lookup & self) { return self.size(); });
}

int64_t pymtp_lookup_bytes(const pymtp_lookup * lookup) {
    return pymtp_guard_or((int64_t) 0, lookup, [](pymtp_lookup & self) { return self.bytes(); });
}
