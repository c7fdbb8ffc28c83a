#pragma once

// Which architectures of the pinned llama.cpp can draft, and on what conditions: the only list of them. Some
// architectures load the tensors of MTP heads and have no graph; graphs end the process over what they do not support,
// so that all which a file can bring about is found here. Knows models; no contexts.

#include "llama-arch.h"

#include <cstdint>
#include <vector>

struct llama_model;

struct mtp_architecture {
    llm_arch arch;
    int32_t  n_heads_max; // 0: any number
    int32_t  conditions;  // of pymtp_condition
};

const std::vector<mtp_architecture> & mtp_architectures();

// Why llama.cpp cannot run the MTP heads of a model, or its assistant if one is given; nullptr if it can.
const char * mtp_obstacle(const llama_model & model, const llama_model * assistant);
