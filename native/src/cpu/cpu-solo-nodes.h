#pragma once

// Small nodes of a graph, of which a pass with few rows has hundreds: one thread computes them sooner than all can agree
// that they are done. So they are left to the first thread, and the others wait after the last of several in a row.
//
// The results are bit for bit what the CPU backend computes with all threads.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;

// Whether one thread computes the node, if the engine has marked it.
bool mtp_is_solo(const struct ggml_tensor * node);

// Whether that holds for the next node after node_n that is computed at all.
bool mtp_next_is_solo(const struct ggml_cgraph * graph, int node_n);

// Whether that holds for the n nodes from first on. It must, where the first thread computes them together with a solo
// node before them: the others pass all of these one by one, without a barrier between them.
bool mtp_are_solo(const struct ggml_cgraph * graph, int first, int n);

#ifdef __cplusplus
}
#endif
