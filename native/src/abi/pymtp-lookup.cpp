// The C interface of the lookup index.

#include "pymtp-lookup.h"

#include "guard.h"
#include "lookup.h"

int32_t pymtp_lookup_init(int32_t n_max, int32_t n_min, pymtp_lookup ** lookup) {
    return pymtp_guard([&]() -> int32_t {
        if (n_max < 1 || n_max > PYMTP_LOOKUP_TOKENS_MAX) {
            return pymtp_fail(PYMTP_INVALID, "a lookup index of %d tokens: 1 to %d are possible", n_max,
                              PYMTP_LOOKUP_TOKENS_MAX);
        }
        if (n_min < 1 || n_min > PYMTP_LOOKUP_MIN_MAX) {
            return pymtp_fail(PYMTP_INVALID, "matches of at least %d tokens: 1 to %d are possible", n_min,
                              PYMTP_LOOKUP_MIN_MAX);
        }
        *lookup = new pymtp_lookup(n_max, n_min);
        return PYMTP_OK;
    });
}

void pymtp_lookup_free(pymtp_lookup * lookup) {
    delete lookup;
}

int32_t pymtp_lookup_append(pymtp_lookup * lookup, int32_t n, const int32_t * token) {
    return pymtp_guard([&]() -> int32_t {
        if (n < 0 || n > PYMTP_LOOKUP_TOKENS_MAX) {
            return pymtp_fail(PYMTP_INVALID, "%d tokens for a lookup index: 0 to %d are possible", n,
                              PYMTP_LOOKUP_TOKENS_MAX);
        }
        for (int32_t i = 0; i < n; ++i) {
            if (token[i] < 0 || token[i] >= PYMTP_VOCAB_MAX) {
                return pymtp_fail(PYMTP_INVALID, "token %d for a lookup index: 0 to %d are possible", token[i],
                                  PYMTP_VOCAB_MAX - 1);
            }
        }
        lookup->append(n, token);
        return PYMTP_OK;
    });
}

int32_t pymtp_lookup_end(pymtp_lookup * lookup) {
    return pymtp_guard([&]() -> int32_t {
        lookup->end_history();
        return PYMTP_OK;
    });
}

void pymtp_lookup_clear(pymtp_lookup * lookup) {
    lookup->clear();
}

int32_t pymtp_lookup_find(const pymtp_lookup * lookup, int32_t n, const int32_t * token, int32_t n_draft,
                          int32_t * draft, int32_t * n_match) {
    return lookup->find(n, token, n_draft, draft, n_match);
}

int32_t pymtp_lookup_n_tokens(const pymtp_lookup * lookup) {
    return lookup->size();
}

int64_t pymtp_lookup_bytes(const pymtp_lookup * lookup) {
    return lookup->bytes();
}
