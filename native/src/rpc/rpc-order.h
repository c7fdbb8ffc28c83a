#pragma once

#include "ggml.h"

// Orders a graph for a server's GPU, as the CUDA backend does where the GPU is this machine's: only who allocates a graph
// can move its nodes. Changes nothing of what is computed.
void mtp_rpc_order(ggml_cgraph * cgraph);
