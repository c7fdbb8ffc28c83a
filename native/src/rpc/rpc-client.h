// A part of ggml-rpc.cpp, which includes it after its functions that serialize: what the client asks and sends of
// operations and graphs.

#include "rpc-link.h"

static std::unordered_set<uint64_t> mtp_rpc_buffers_of(const rpc_tensor * tensors, uint32_t n) {
    std::unordered_set<uint64_t> buffers;
    for (uint32_t i = 0; i < n; i++) {
        buffers.insert(tensors[i].buffer);
    }
    return buffers;
}

// The tensors of a serialized graph, which are its end, after their number.
static std::unordered_set<uint64_t> mtp_rpc_buffers_of_graph(const uint8_t * graph, uint32_t n_nodes) {
    const uint8_t * end = graph + 2 * sizeof(uint32_t) + sizeof(uint64_t) + n_nodes * sizeof(uint64_t);
    uint32_t        n_tensors;
    memcpy(&n_tensors, end, sizeof(n_tensors));
    return mtp_rpc_buffers_of((const rpc_tensor *) (end + sizeof(n_tensors)), n_tensors);
}

void rpc_dispatcher::graph_compute(uint32_t device, const ggml_cgraph * cgraph) {
    GGML_ASSERT(cgraph->n_nodes > 0);
    std::lock_guard<std::mutex> lock(graphs_mutex);
    if (cgraph->uid != 0 && graphs[device].find(cgraph->uid)) {
        auto request    = std::make_shared<rpc_msg_graph_recompute_req>();
        request->device = device;
        request->uid    = cgraph->uid;
        send(RPC_CMD_GRAPH_RECOMPUTE, request, sizeof(*request));
        return;
    }
    size_t                   size = 0;
    std::shared_ptr<uint8_t> input(serialize_graph(device, cgraph, this, &size), std::default_delete<uint8_t[]>());
    if (cgraph->uid != 0) {
        graphs[device].add(cgraph->uid, mtp_rpc_buffers_of_graph(input.get(), cgraph->n_nodes));
    }
    send(RPC_CMD_GRAPH_COMPUTE, input, size);
}

bool rpc_dispatcher::supports_op(uint32_t device, const ggml_tensor * op) {
    const std::string           key = mtp_rpc_key(device, op);
    std::lock_guard<std::mutex> lock(ops_mutex);
    const auto                  it = ops.find(key);
    if (it != ops.end()) {
        return it->second;
    }
    auto request    = std::make_shared<rpc_msg_get_alloc_size_req>();
    request->device = device;
    request->tensor = serialize_tensor(op);
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        request->srcs[i] = serialize_tensor(op->src[i]);
    }
    uint8_t response = 0;
    send(RPC_CMD_MTP_SUPPORTS_OP, request, sizeof(*request), &response, sizeof(response));
    return ops[key] = response;
}

static mtp_rpc_device mtp_rpc_ask_device(const char * endpoint, uint32_t device) {
    mtp_rpc_device res;
    get_dispatcher(endpoint)->send(RPC_CMD_MTP_DEVICE, std::make_shared<uint32_t>(device), sizeof(device), &res,
                                   sizeof(res));
    return res;
}

// --- what libllama finds by ggml_backend_reg_get_proc_address

static std::shared_ptr<void> mtp_rpc_open(const char * endpoint) {
    return get_dispatcher(endpoint);
}

static bool mtp_rpc_is_cpu(ggml_backend_dev_t dev) {
    return ((ggml_backend_rpc_device_context *) dev->context)->remote_type == GGML_BACKEND_DEVICE_TYPE_CPU;
}

static void mtp_rpc_expect_get_tensor(ggml_backend_t backend, const ggml_tensor * tensor) {
    auto * ctx = (ggml_backend_rpc_context *) backend->context;
    ctx->dispatcher->expect({ serialize_tensor(tensor), 0, ggml_nbytes(tensor) });
}

static void * mtp_rpc_proc_address(const char * name) {
    const std::pair<const char *, void *> all[] = {
        { "mtp_rpc_open", (void *) mtp_rpc_open },
        { "mtp_rpc_is_cpu", (void *) mtp_rpc_is_cpu },
        { "mtp_rpc_expect_get_tensor", (void *) mtp_rpc_expect_get_tensor },
    };
    const auto found = std::find_if(std::begin(all), std::end(all),
                                    [&](const auto & each) { return std::strcmp(name, each.first) == 0; });
    return found == std::end(all) ? nullptr : found->second;
}
