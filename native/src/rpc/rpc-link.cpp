#include "rpc-link.h"

#include "ggml.h"
#include "pymtp-abi.h"

const char * mtp_rpc_build_id() {
    return PYMTP_BUILT_FOR;
}

template <class T> static void append(std::string & key, const T & value) {
    key.append((const char *) &value, sizeof(value));
}

static void append_tensor(std::string & key, const ggml_tensor & tensor) {
    append(key, tensor.type);
    append(key, tensor.ne);
    append(key, tensor.nb);
}

std::string mtp_rpc_key(uint32_t device, const ggml_tensor * op) {
    std::string key;
    append(key, device);
    append(key, op->op);
    append(key, op->op_params);
    append(key, op->flags);
    append_tensor(key, *op);
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        append(key, i);
        if (op->src[i]) {
            append_tensor(key, *op->src[i]);
        }
    }
    return key;
}
