#pragma once

// What pymtp adds to llama.cpp's RPC client: who is at the other end, and what it can compute. ggml-rpc.cpp includes it;
// libllama finds the functions below by ggml_backend_reg_get_proc_address, as the backend may be a file of its own.

#include "ggml-backend.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

static constexpr size_t MTP_RPC_TEXT_MAX = 128;

// A server cannot be used, or not any longer. The message names it.
struct mtp_rpc_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

#pragma pack(push, 1)

struct mtp_rpc_build {
    char     id[MTP_RPC_TEXT_MAX]; // what the server was built from, as pymtp_abi_id
    uint32_t n_devices;            // nobody reads it: an answer of another size is none, for clients of other builds
};

struct mtp_rpc_device {
    char     name[MTP_RPC_TEXT_MAX];
    uint32_t type; // a ggml_backend_dev_type
};

#pragma pack(pop)

// What this library was built from.
const char * mtp_rpc_build_id();

// Everything of an operation and its sources that a backend can look at to decide whether it has it, but no addresses.
std::string mtp_rpc_key(uint32_t device, const ggml_tensor * op);

// Orders a graph for a server's GPU, as the CUDA backend does where the GPU is this machine's: only who allocates a graph
// can move its nodes. Changes nothing of what is computed.
void mtp_rpc_graph_optimize(ggml_backend_t, ggml_cgraph * cgraph, struct ggml_backend_graph_optimize_params *);

// Under these names: a connection that lasts as long as the result (throws mtp_rpc_error if there is
// none), and whether the device at the other end is a CPU.
using mtp_rpc_open_t   = std::shared_ptr<void> (*)(const char * endpoint);
using mtp_rpc_is_cpu_t = bool (*)(ggml_backend_dev_t device);
