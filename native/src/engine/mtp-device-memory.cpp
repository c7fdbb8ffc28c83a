#include "mtp-device-memory.h"

#include <stdexcept>
#include <string>

ggml_tensor * mtp_device_tensor::alloc(const char * name, ggml_type type, int64_t ne0, int64_t ne1,
                                       ggml_backend_buffer_type_t buft) {
    ggml_context_ptr new_ctx(ggml_init({ ggml_tensor_overhead(), nullptr, true }));

    auto * new_tensor = ggml_new_tensor_2d(new_ctx.get(), type, ne0, ne1);
    ggml_set_name(new_tensor, name);

    ggml_backend_buffer_ptr new_buf(ggml_backend_alloc_ctx_tensors_from_buft(new_ctx.get(), buft));
    if (!new_buf) {
        throw std::runtime_error(std::string("failed to allocate ") + name);
    }
    ggml_backend_buffer_clear(new_buf.get(), 0);

    buf    = std::move(new_buf);
    ctx    = std::move(new_ctx);
    tensor = new_tensor;
    return tensor;
}
