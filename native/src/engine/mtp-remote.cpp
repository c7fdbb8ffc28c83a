#include "mtp-remote.h"

#include "llama-model.h"
#include "rpc-link.h"

#include <algorithm>
#include <cstring>
#include <exception>

// the one that all RPC devices have; nullptr for those of this machine
static ggml_backend_reg_t remote_registry_of(ggml_backend_dev_t device) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    return reg && strcmp(ggml_backend_reg_name(reg), "RPC") == 0 ? reg : nullptr;
}

bool mtp_is_cpu(ggml_backend_dev_t device) {
    ggml_backend_reg_t remote = remote_registry_of(device);
    if (!remote) {
        return ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    }
    return ((mtp_rpc_is_cpu_t) ggml_backend_reg_get_proc_address(remote, "mtp_rpc_is_cpu"))(device);
}

int mtp_n_device_layers(const llama_model & model, int first, int n) {
    const bool is_remote = remote_registry_of(model.devices.back().dev);
    return is_remote ? std::clamp((int) model.hparams.n_layer() - first, 0, n) : n;
}

int mtp_place_of_layer(const llama_model & model, int layer) {
    return layer < (int) model.hparams.n_layer() ? layer : (int) model.hparams.n_layer_all;
}

void mtp_wait_for_all(const std::vector<ggml_backend_t> & backends) noexcept {
    for (ggml_backend_t backend : backends) {
        try {
            ggml_backend_synchronize(backend);
        } catch (const std::exception &) {
            // it writes nothing any more
        }
    }
}
