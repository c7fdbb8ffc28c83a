#pragma once

// How llama.cpp's graphs read and write hidden rows on the device. Two hooks call in here: one when an input is
// added to a graph, one when a graph has been built. Both do nothing unless the graph belongs to an engine.

#include "llama-graph.h"

// Takes the input that feeds an MTP graph its hidden states from the host, and gathers them from the engine's
// hidden buffer instead; in a graph of several steps, ties every input to its step. Other inputs come back as they are.
// The given input stays alive inside what is returned.
llm_graph_input_ptr mtp_graph_wrap_input(llm_graph_result & res, llm_graph_input_ptr input);

// Stores the hidden states of the graph's rows in the hidden buffer. An MTP graph without outputs is cut down to
// what fills the cache.
void mtp_graph_finish(llm_graph_context & llm, const llm_graph_params & params);

// Builds the graph of a fused draft: the head's graph once for each step, each fed with the most likely token and
// the hidden state of the one before. Returns false, and does nothing, if the pass is not one.
bool mtp_graph_build_steps(const llama_model & model, const llm_graph_params & params);
