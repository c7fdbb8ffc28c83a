// The C interface of devices on other machines.

#include "guard.h"
#include "rpc-link.h"

#include <cstring>
#include <vector>

static constexpr size_t  ENDPOINT_MAX  = 1024;
static constexpr int32_t N_DEVICES_MAX = 16;
static constexpr int32_t N_THREADS_MAX = 512;

// ggml-rpc may be a file of its own that is loaded when the program runs
template <class F> static F rpc_function(const char * name) {
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("RPC");
    pymtp_refuse_if(!reg, "the RPC backend is missing: install pymtp again");
    return (F) ggml_backend_reg_get_proc_address(reg, name);
}

static const char * need_endpoint(const char * endpoint) {
    pymtp_need(endpoint, "the server");
    pymtp_refuse_if(!strchr(endpoint, ':') || strnlen(endpoint, ENDPOINT_MAX) == ENDPOINT_MAX,
                    "a server is named host:port");
    return endpoint;
}

struct pymtp_rpc {
    static constexpr const char * what = "connection";

    explicit pymtp_rpc(const char * endpoint) :
        link(rpc_function<mtp_rpc_open_t>("mtp_rpc_open")(endpoint)),
        devices(rpc_function<ggml_backend_reg_t (*)(const char *)>("ggml_backend_rpc_add_server")(endpoint)) {}

    std::shared_ptr<void> link; // what is loaded there has it as well
    ggml_backend_reg_t    devices;
};

int32_t pymtp_rpc_connect(const char * endpoint, pymtp_rpc ** rpc) {
    return pymtp_guard([&] {
        pymtp_need(rpc, "the connection") = nullptr;
        pymtp_give(rpc, std::make_unique<pymtp_rpc>(need_endpoint(endpoint)));
    });
}

ggml_backend_device * pymtp_rpc_device(const pymtp_rpc * rpc, int32_t i) {
    return pymtp_guard_or<ggml_backend_device *>(nullptr, rpc, [&](pymtp_rpc & self) -> ggml_backend_device * {
        const bool is_there = self.devices && i >= 0 && i < (int32_t) ggml_backend_reg_dev_count(self.devices);
        return is_there ? ggml_backend_reg_dev_get(self.devices, i) : nullptr;
    });
}

int32_t pymtp_rpc_serve(const char * endpoint, const char * cache_dir, int32_t n_threads, int32_t n_devices,
                        ggml_backend_device * const * device) {
    return pymtp_guard([&] {
        need_endpoint(endpoint);
        pymtp_need_array(device, n_devices, N_DEVICES_MAX, "devices");
        pymtp_refuse_if(n_threads < 1 || n_threads > N_THREADS_MAX || n_devices == 0,
                        "1 to %d threads and at least one device are needed", N_THREADS_MAX);
        std::vector<ggml_backend_dev_t> devices(device, device + n_devices);
        rpc_function<void (*)(const char *, const char *, size_t, size_t, ggml_backend_dev_t *)>(
            "ggml_backend_rpc_start_server")(endpoint, cache_dir, n_threads, devices.size(), devices.data());
        pymtp_fail(PYMTP_FAILED, "cannot listen at %s: name a free port, and an IPv4 address of this host", endpoint);
    });
}
