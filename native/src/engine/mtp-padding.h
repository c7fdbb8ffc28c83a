#pragma once

// Rows that are added to a pass so that passes of many sequences have few shapes: each shape is a graph of its own, and
// where a memory computes sequences together only if they have equally many rows, unequal ones are a pass each. An added
// row belongs to one of the sequences, after its end, as if it had one more draft; nobody reads it, and it is dropped
// after the pass. Knows rows; neither memories nor graphs.

#include "mtp-ubatch.h"

#include <cstdint>
#include <vector>

enum mtp_padding {
    MTP_PADDING_NONE  = 0,
    MTP_PADDING_EQUAL = 1, // each sequence has as many rows as the one with the most
    MTP_PADDING_TOTAL = 2, // rows in all: one of few numbers
};

// The next of few numbers: up to 8 all of them, then 12, 16, 24, 32, 48, 64, ... What can be computed row by row
// (MTP_SINGLE_ROWS_MAX) stays so.
uint32_t mtp_padded_total(uint32_t n);

// The rows to add to a trunk pass, to come after its own. rows: those of a sequence in order of position. Empty if
// nothing is to be added, or if a sequence has more than n_seq_rows (a prompt). The pass gets no more than n_most.
// n_worth: sequences get equally many rows only if that adds at most n_worth rows for each pass that it saves.
std::vector<mtp_row> mtp_padding_rows(mtp_padding how, const std::vector<mtp_row> & rows, size_t n_seq_rows,
                                      size_t n_most, size_t n_worth);
