#pragma once

// Devices of other machines, which RPC servers lend, and where layers go: what is placed there, and what is computed
// there. Knows devices; no connections.

#include "ggml-backend.h"

#include <vector>

struct llama_model;

// Whether a CPU computes, here or elsewhere, with the kernels of this build.
bool mtp_is_cpu(ggml_backend_dev_t device);

// Layers that go to devices, from the first one that does. n: as many as llama.cpp would put there, which ends with the
// output. It stays here, and with it the MTP heads, where the last device is a remote one: a draft then needs no network,
// and hidden states are sent instead of logits.
int mtp_n_device_layers(const llama_model & model, int first, int n);

// Where a layer counts when layers are divided among devices: MTP heads are with the output, so that a draft stays on
// one.
int mtp_place_of_layer(const llama_model & model, int layer);

// Until nothing is under way any more. A device that is lost counts as done.
void mtp_wait_for_all(const std::vector<ggml_backend_t> & backends) noexcept;
