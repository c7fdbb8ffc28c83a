#pragma once

// Graphs whose rows must come out as each does in a pass of its own: a verify pass stands for single steps.

#include "ggml-backend.h"

#include <cstdint>

// Larger passes are prompts; on devices they keep the kernels for many rows.
static constexpr uint32_t MTP_SINGLE_ROWS_MAX = 63;

// Marks all operations of a graph of n_rows rows: backends have other kernels for many rows than for one. Graphs of one
// row are marked too: both then take the same kernel where an operation has several rows for each row of the graph.
// Prompts are marked where nothing but CPUs computes, which has fast kernels for them (cpu-few-rows.h).
void mtp_graph_mark_single_rows(ggml_cgraph * gf, uint32_t n_rows, ggml_backend_sched_t sched);
