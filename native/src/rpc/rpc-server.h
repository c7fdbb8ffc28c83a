// A part of ggml-rpc.cpp, which includes it after llama.cpp's class rpc_server: what pymtp's servers say of themselves, and
// how they take small inputs.

// Answers a message of pymtp's. false: it is none, or the connection is lost.
bool rpc_server::mtp_serve(uint8_t cmd, const socket_ptr & sock) {
    if (cmd == RPC_CMD_MTP_BUILD) {
        mtp_rpc_build response = {};
        snprintf(response.id, sizeof(response.id), "%s", mtp_rpc_build_id());
        response.n_devices = backends.size();
        return recv_msg(sock, nullptr, 0) && send_msg(sock, &response, sizeof(response));
    }
    if (cmd == RPC_CMD_MTP_DEVICE) {
        uint32_t device;
        if (!recv_msg(sock, &device, sizeof(device)) || device >= backends.size()) {
            return false;
        }
        ggml_backend_dev_t dev      = ggml_backend_get_device(backends[device]);
        mtp_rpc_device     response = {};
        snprintf(response.name, sizeof(response.name), "%s", ggml_backend_dev_description(dev));
        response.type = ggml_backend_dev_type(dev);
        return send_msg(sock, &response, sizeof(response));
    }
    if (cmd == RPC_CMD_MTP_SUPPORTS_OP) {
        rpc_msg_get_alloc_size_req request;
        uint8_t                    response = 0;
        return recv_msg(sock, &request, sizeof(request)) && mtp_supports_op(request, response) &&
               send_msg(sock, &response, sizeof(response));
    }
    return false;
}

bool rpc_server::mtp_supports_op(const rpc_msg_get_alloc_size_req & request, uint8_t & response) {
    if (request.device >= backends.size()) {
        return false;
    }
    const ggml_context_ptr ctx(ggml_init({ ggml_tensor_overhead() * (1 + GGML_MAX_SRC), nullptr, true }));
    ggml_tensor *          op = deserialize_tensor(ctx.get(), &request.tensor);
    for (int i = 0; op && i < GGML_MAX_SRC; i++) {
        if (request.srcs[i].id != 0 && !(op->src[i] = deserialize_tensor(ctx.get(), &request.srcs[i]))) {
            return false;
        }
    }
    response = op && ggml_backend_dev_supports_op(ggml_backend_get_device(backends[request.device]), op);
    return op;
}

// Writes what set_tensor has checked. Small data need not wait for the device: graphs come after it by themselves, and
// whatever else looks at buffers waits (sync_all_backends). input: the message that the data is in.
void rpc_server::mtp_write(ggml_tensor * tensor, const void * data, size_t offset, size_t size,
                           std::vector<uint8_t> input) {
    constexpr size_t   n_writes_max = 64;
    ggml_backend_dev_t dev          = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
    const auto         of    = std::find_if(backends.begin(), backends.end(),
                                            [&](ggml_backend_t one) { return ggml_backend_get_device(one) == dev; });
    const bool         waits = of == backends.end() || size > MTP_RPC_OUTBOX;
    if (waits || writes.size() >= n_writes_max) {
        sync_all_backends();
    }
    if (waits) {
        ggml_backend_tensor_set(tensor, data, offset, size);
        return;
    }
    ggml_backend_tensor_set_async(*of, tensor, data, offset, size);
    writes.push_back(std::move(input));
}
