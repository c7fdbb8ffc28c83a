#pragma once

// A tensor that outlives the graphs that read it. Owns its memory on a device.

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>

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
