#pragma once

// What of a graph cannot be computed: operations that a damaged file leads to, and those that no backend has. Knows
// nodes; no models and no contexts.

#include "ggml-backend.h"
#include "ggml.h"

#include <vector>

// Whether there are products with a type: integers and doubles have no kernels for them, nor have the two types that only
// activations are quantized to.
bool mtp_is_factor(ggml_type type);

// What a damaged file can put into a graph, and ggml only finds out while it computes, where it ends the process. Throws
// std::runtime_error that names the operation. Costs little: a graph is checked once, when it was built.
void mtp_check_graph(ggml_cgraph * gf);

// The first operation of a graph that none of the backends computes, or not where its result is to be; nullptr: there is
// none.
ggml_tensor * mtp_graph_not_computed(ggml_cgraph * gf, const std::vector<ggml_backend_t> & backends);
