#pragma once

// How llama.cpp's graphs read and write hidden rows on the device. Two hooks call in here: one when an input is
// added to a graph, one when a graph has been built. Both do nothing unless the graph belongs to an engine.

#include "llama-graph.h"

// Takes the input that feeds an MTP graph its hidden states from the host, and gathers them from the engine's
// hidden buffer instead. Returns other inputs as they are.
llm_graph_input_ptr mtp_graph_wrap_input(llm_graph_result & res, llm_graph_input_ptr input);

// Stores the hidden states of the graph's rows in the hidden buffer. An MTP graph without outputs is cut down to
// what fills the cache.
void mtp_graph_finish(llm_graph_context & llm, const llm_graph_params & params);
