#pragma once

// Host memory that a device copies to and from directly, where it has such memory.

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <new>

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
