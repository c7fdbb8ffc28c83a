#pragma once

// Small nodes of a graph, of which a pass with few rows has hundreds: one thread computes them sooner than all can agree
// that they are done. So they are left to the first thread, and the others wait behind the last of several in a row.
//
// The results are bit for bit what the CPU backend computes with all threads.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;

// Whether one thread computes the node, if the engine has marked it.
bool mtp_is_solo(const struct ggml_tensor * node);

// Whether that holds for the next node behind node_n that is computed at all.
bool mtp_next_is_solo(const struct ggml_cgraph * graph, int node_n);

#ifdef __cplusplus
}
#endif
