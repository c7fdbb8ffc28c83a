#pragma once

// Memory on a device that outlives graphs, and memory on the host that a device copies to and from directly.

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <new>

// A tensor that graphs read.
class mtp_device_tensor {
  public:
    // Zeros at first. Throws if memory runs out; the tensor is then as it was before.
    ggml_tensor * alloc(const char * name, ggml_type type, int64_t ne0, int64_t ne1, ggml_backend_buffer_type_t buft);

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
