#pragma once

// The inputs of a graph, on the device that computes it. The scheduler would copy each of them there on its own and
// wait for each copy; here they are side by side and go in one.

#include "ggml-cpp.h"
#include "mtp-device-memory.h"

#include <memory>
#include <vector>

// Where the inputs of a graph are, on a device and on the host. Graphs share it, as one of them computes at a time. No
// mtp_device_tensor, which split devices would have a part of each.
struct mtp_input_memory {
    // Throws if memory runs out.
    mtp_input_memory(size_t size, ggml_backend_dev_t dev);

    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buf;
    ggml_tensor *           device; // I8 [size]
    mtp_host_memory         host;   // the same
};

class mtp_inputs {
  public:
    // Takes in the inputs of a graph that is built and not yet allocated, but for those that operations on weights in
    // host memory read. `backend` computes the graph. They go to `memory`, which is new if it is too small or not there.
    // Throws if memory runs out.
    void place(ggml_cgraph * gf, ggml_backend_t backend, std::shared_ptr<mtp_input_memory> & memory);

    // Between the two the inputs are in host memory, where they can be written. is_alone: no other device computes a part
    // of the graph. The scheduler copies what others read of the inputs without waiting for what is on its way.
    void open();
    void send(bool is_alone);

  private:
    struct input {
        ggml_tensor * tensor;
        size_t        offset;
    };

    ggml_backend_t                    backend = nullptr;
    std::vector<input>                inputs;
    std::shared_ptr<mtp_input_memory> memory;

    void move_to(ggml_backend_buffer_t buffer, void * base);
};
