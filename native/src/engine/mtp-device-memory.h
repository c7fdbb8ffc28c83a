#pragma once

// Memory on a device that outlives graphs, and memory on the host that a device copies to and from directly.

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

// A tensor that graphs read.
class mtp_device_tensor {
  public:
    // Zeros at first. Throws if memory runs out; the tensor is then as it was before.
    ggml_tensor * alloc(const char * name, ggml_type type, int64_t ne0, int64_t ne1, ggml_backend_buffer_type_t buft) {
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

    ggml_tensor * get() const { return tensor; } // nullptr before alloc

  private:
    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buf;
    ggml_tensor *           tensor = nullptr;
};

class mtp_host_memory {
  public:
    // At least size bytes. If there were fewer, what they held is lost.
    void * get(size_t size, ggml_backend_dev_t dev) {
        if (!buf || ggml_backend_buffer_get_size(buf.get()) < size) {
            auto * const buft = ggml_backend_dev_host_buffer_type(dev);
            buf.reset(ggml_backend_buft_alloc_buffer(buft ? buft : ggml_backend_cpu_buffer_type(), size));
            if (!buf) {
                throw std::bad_alloc();
            }
        }
        return data();
    }

    void * data() const { return ggml_backend_buffer_get_base(buf.get()); }

    ggml_backend_buffer_t buffer() const { return buf.get(); }

  private:
    ggml_backend_buffer_ptr buf;
};
