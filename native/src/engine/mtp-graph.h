#pragma once

// How llama.cpp's graphs read and write hidden states on the device, and how the heads come into them. The hooks call
// in here: when an input is added to a graph, when a graph is to be built, and when the trunk's has been built. All of
// them do nothing unless the graph belongs to an engine.

#include "llama-graph.h"

// A weight of a matrix product: the rows of the output matrix that drafts are limited to in a head's part, else as
// it is.
ggml_tensor * mtp_graph_weight(llm_graph_result & res, ggml_tensor * weight);

// Takes the input that feeds a head's graph its tokens and hidden states from the host, and ties it to the tensors
// that the part reads instead; other inputs of the part see the rows and the cache of their stage. Inputs of
// the trunk come back as they are. The given input stays alive inside what is returned.
llm_graph_input_ptr mtp_graph_wrap_input(llm_graph_result & res, llm_graph_input_ptr input);

// The trunk's input that a head's part takes in the place of this one, which would be set to the same; nullptr: there is
// none.
llm_graph_input_i * mtp_graph_trunk_input(const llm_graph_result & res, const llm_graph_input_i & input);

// After the trunk's graph: stores its hidden states in the buffer and, if the pass feeds them, runs the heads.
void mtp_graph_finish(const llm_graph_params & params);

// Builds the graph of a draft. Returns false, and does nothing, if the pass is not one.
bool mtp_graph_build_draft(const llm_graph_params & params);
