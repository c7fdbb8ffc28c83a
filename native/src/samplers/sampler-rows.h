#pragma once

// Rows of logits as a chain reads them (sampler-chain.h): in the caller's memory, or where a pass of the engine has
// left them. Knows logits; no tokens' meaning.

#include "mtp-engine.h"
#include "sampler-chain.h"

#include <vector>

// in the caller's memory, [n]
struct host_row : sampler_row {
    const float * logits;
    int32_t       n;

    host_row(const float * logits, int32_t n) : logits(logits), n(n) {}

    int32_t n_tokens() const override { return n; }

    void highest(int32_t n_highest, llama_token_data * out) override {
        std::vector<int32_t> ids(n_highest);
        std::vector<float>   values(n_highest);
        mtp_candidates_select(logits, n, n_highest, ids.data(), values.data());
        for (int32_t i = 0; i < n_highest; ++i) {
            out[i] = { ids[i], values[i], 0.0f };
        }
    }

    bool all(llama_token_data * out) override {
        sampler_finite finite;
        for (int32_t i = 0; i < n; ++i) {
            out[i] = { i, logits[i], 0.0f };
            finite.add(logits[i]);
        }
        return finite.all();
    }
};

// a row of the last decode or draft step
struct engine_row : sampler_row {
    mtp_engine & engine;
    bool         of_draft;
    int32_t      row;

    engine_row(mtp_engine & engine, bool of_draft, int32_t row) : engine(engine), of_draft(of_draft), row(row) {}

    int32_t n_tokens() const override { return engine.n_logits(of_draft); }

    void highest(int32_t n, llama_token_data * out) override {
        std::vector<int32_t> ids(n);
        std::vector<float>   values(n);
        engine.candidates(of_draft, row, n, ids.data(), values.data());
        for (int32_t i = 0; i < n; ++i) {
            out[i] = { ids[i], values[i], 0.0f };
        }
    }

    bool all(llama_token_data * out) override {
        const float *  logits = engine.logits_row(of_draft, row);
        sampler_finite finite;
        for (int32_t i = 0; i < n_tokens(); ++i) {
            out[i] = { engine.token_of(of_draft, i), logits[i], 0.0f };
            finite.add(logits[i]);
        }
        return finite.all();
    }
};
