#include "mtp-inputs.h"

#include "mtp-refuse.h"

#include <algorithm>
#include <iterator>
#include <set>

// the inputs that nodes read, but for those that one of them reads together with weights in host memory
static std::vector<ggml_tensor *> mtp_inputs_of(ggml_cgraph * gf) {
    std::vector<ggml_tensor *> res;
    std::set<ggml_tensor *>    known;

    for (const bool beside_host : { true, false }) {
        for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
            const auto & srcs = ggml_graph_node(gf, i)->src;
            if (beside_host != std::any_of(std::begin(srcs), std::end(srcs), [](const ggml_tensor * src) {
                    return src && src->buffer && ggml_backend_buffer_is_host(src->buffer);
                })) {
                continue;
            }
            for (auto * src : srcs) {
                auto * tensor = src && src->view_src ? src->view_src : src;
                if (tensor && (tensor->flags & GGML_TENSOR_FLAG_INPUT) && !tensor->data &&
                    known.insert(tensor).second && !beside_host) {
                    res.push_back(tensor);
                }
            }
        }
    }
    return res;
}

mtp_input_memory::mtp_input_memory(size_t size, ggml_backend_dev_t dev) :
    ctx(ggml_init({ ggml_tensor_overhead(), nullptr, true })),
    buf(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(dev), size)),
    device(ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I8, size)) {
    mtp_refuse_if(!buf, "failed to allocate the inputs of a graph");
    ggml_backend_tensor_alloc(buf.get(), device, ggml_backend_buffer_get_base(buf.get()));
    host.get(size, dev);
}

void mtp_inputs::place(ggml_cgraph * gf, ggml_backend_t backend, std::shared_ptr<mtp_input_memory> & memory) {
    auto * const dev   = ggml_backend_get_device(backend);
    auto * const buft  = ggml_backend_dev_buffer_type(dev);
    const size_t align = ggml_backend_buft_get_alignment(buft);

    size_t size = 0;

    this->backend = backend;
    inputs.clear();
    for (auto * tensor : mtp_inputs_of(gf)) {
        inputs.push_back({ tensor, size });
        size += GGML_PAD(ggml_backend_buft_get_alloc_size(buft, tensor), align);
    }
    if (inputs.empty()) {
        return;
    }
    if (!memory || ggml_nbytes(memory->device) < size) {
        memory = std::make_shared<mtp_input_memory>(2 * size, dev); // masks grow with the cache
    }
    this->memory = memory;
    for (const auto & input : inputs) {
        ggml_backend_tensor_alloc(memory->buf.get(), input.tensor, (char *) memory->device->data + input.offset);
    }
}

void mtp_inputs::move_to(ggml_backend_buffer_t buffer, void * base) {
    for (const auto & input : inputs) {
        input.tensor->buffer = buffer;
        input.tensor->data   = (char *) base + input.offset;
    }
}

void mtp_inputs::open() {
    if (!inputs.empty()) {
        // what was sent last may still be on its way
        ggml_backend_synchronize(backend);
        move_to(memory->host.buffer(), memory->host.data());
    }
}

void mtp_inputs::send(bool is_alone) {
    if (!inputs.empty()) {
        move_to(memory->buf.get(), memory->device->data);
        const auto & last = inputs.back();
        const size_t size = last.offset + ggml_nbytes(last.tensor);
        if (is_alone) {
            ggml_backend_tensor_set_async(backend, memory->device, memory->host.data(), 0, size);
        } else {
            ggml_backend_tensor_set(memory->device, memory->host.data(), 0, size);
        }
    }
}
