#pragma once

// Rows, and what the engine makes of them for llama.cpp: ubatches in addition to those that the batch allocator splits
// off a batch.

#include "llama-batch.h"

#include <vector>

// one row of a pass
struct mtp_row {
    llama_token  token;
    llama_pos    pos;
    llama_seq_id seq;
    bool         output; // compute logits
};

// Rows of a pass that kernels for single rows take (mtp_graph_mark) where devices compute: larger passes keep
// llama.cpp's kernels for many rows.
static constexpr uint32_t MTP_SINGLE_ROWS_MAX = 2048;

// Those where weights are on the host, too: llama.cpp has a device compute large passes with copies of these.
static constexpr uint32_t MTP_SINGLE_ROWS_SPLIT = 512;

// Those that GPUs compute in one way for any number of rows, if that is asked for.
static constexpr uint32_t MTP_INVARIANT_ROWS_MAX = 512;

// n_stream: streams of the cache. With more than one, the rows are equally many of each sequence, whose streams are
// side by side in the order of the rows.
llama_ubatch mtp_ubatch_make(const std::vector<mtp_row> & rows, uint32_t n_pos, uint32_t n_stream);

// the given rows of another ubatch, as rows of one stream
llama_ubatch mtp_ubatch_select(const llama_ubatch & ubatch, const std::vector<uint32_t> & rows);

// those of a sequence follow one another
std::vector<std::vector<mtp_row>> mtp_rows_by_sequence(const std::vector<mtp_row> & rows);

// Rows that heads catch up with, at most n_max, as many as there is to be a graph for: 8, 16, 32, ... of each sequence if
// these have streams of their own, else in all. The first one is repeated where there are fewer: it stores the same.
std::vector<mtp_row> mtp_rows_pad(const std::vector<mtp_row> & rows, bool has_streams, size_t n_max);
