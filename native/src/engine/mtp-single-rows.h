#pragma once

// Graphs whose rows must come out as each does in a pass of its own: a verify pass stands for single steps.

#include "ggml.h"

#include <cstdint>

// Larger passes are prompts; they keep the kernels for many rows, and those of flash attention for tiles of 64.
static constexpr uint32_t MTP_SINGLE_ROWS_MAX = 63;

// Marks all operations of a graph: backends have other kernels for many rows than for one. The caller sees to it that
// the graph has at most MTP_SINGLE_ROWS_MAX rows, and marks graphs of one row too: both then take the same kernel where
// an operation has several rows for each row of the graph.
void mtp_graph_mark_single_rows(ggml_cgraph * gf);
