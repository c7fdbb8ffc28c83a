#pragma once

// What a damaged file can put into a graph, and ggml only finds out while it computes, where it ends the process.

struct ggml_cgraph;

// Throws std::runtime_error that names the operation. Costs little: a graph is checked once, when it was built.
void mtp_check_graph(ggml_cgraph * gf);
