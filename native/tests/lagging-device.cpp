// A device that is as late as a GPU may be: a backend for tests, which computes on the CPU what CUDA's would compute, in
// the order that CUDA promises and in no better one. What goes to a stream waits there until somebody waits for it;
// copies without a stream happen at once, whatever waits. So a missing wait, or an input that is overwritten too early,
// changes results, every time. See ggml/src/ggml-cuda/ggml-cuda.cu for what each function does there.
//
// Memory begins with what depends on when it was allocated, so that reading what nobody wrote changes results too.
//
//   LAGGING_DEVICE=at-once   streams do not wait, to compare with
//   LAGGING_DEVICE_FILL=nan  new memory holds NaN; a number: other numbers
//   LAGGING_DEVICES=2        there are two of them

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

static constexpr size_t  ALIGNMENT              = 128;
static constexpr size_t  MEMORY_SIZE            = (size_t) 8 << 30;
static constexpr int64_t OFFLOAD_BATCH_SIZE_MIN = 32;

// contexts of several threads may share the device
static std::recursive_mutex g_mutex;

using lock_guard = std::lock_guard<std::recursive_mutex>;

static bool is_at_once() {
    static const char * mode = getenv("LAGGING_DEVICE");
    return mode && strcmp(mode, "at-once") == 0;
}

//
// streams
//

class lagging_stream {
  public:
    lagging_stream() { all().insert(this); }

    ~lagging_stream() {
        run();
        all().erase(this);
    }

    void add(std::function<void()> work) {
        const lock_guard lock(g_mutex);
        waiting.push_back(std::move(work));
        if (is_at_once()) {
            run();
        }
    }

    // how much has been added so far
    uint64_t end() const { return n_done + waiting.size(); }

    // does what was added before `end`
    void run(uint64_t end) {
        const lock_guard lock(g_mutex);
        while (n_done < end) {
            const auto work = std::move(waiting.front());
            waiting.pop_front();
            ++n_done; // first: it may wait for another stream
            work();
        }
    }

    void run() { run(end()); }

    // as CUDA does when memory is freed
    static void run_all() {
        const lock_guard lock(g_mutex);
        for (auto * stream : all()) {
            stream->run();
        }
    }

    ggml_backend_ptr cpu{ ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) };

  private:
    std::deque<std::function<void()>> waiting;
    uint64_t                          n_done = 0;

    static std::set<lagging_stream *> & all() {
        static std::set<lagging_stream *> streams;
        return streams;
    }
};

// of another stream's work
struct lagging_event {
    lagging_stream * stream = nullptr;
    uint64_t         end    = 0;

    void record(lagging_stream & of) {
        stream = &of;
        end    = of.end();
    }

    void wait() const {
        if (stream) {
            stream->run(end);
        }
    }
};

static lagging_stream & stream_of(ggml_backend_t backend) {
    return *(lagging_stream *) backend->context;
}

//
// memory
//

static uint64_t next_random(uint64_t & state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

// Numbers of any sign between about 1e-9 and 1000 as F32, and 0.1 and 4 as F16; as integers, large ones. No two
// allocations get the same.
static void fill_with_garbage(void * memory, size_t size) {
    static const char * fill  = getenv("LAGGING_DEVICE_FILL");
    static uint64_t     state = fill ? strtoull(fill, nullptr, 10) + 1 : 1;
    if (fill && strcmp(fill, "nan") == 0) {
        memset(memory, 0xff, size);
        return;
    }
    const lock_guard lock(g_mutex);
    for (size_t i = 0; i + 2 <= size; i += 2) {
        const uint64_t bits  = next_random(state);
        const uint16_t value = (bits & 0x8000) | (0x3000 + bits % 0x1400);
        memcpy((char *) memory + i, &value, sizeof(value));
    }
}

// pinned memory, which copies of a stream read and write when it is their turn: where it begins, and its size
static std::map<const char *, size_t> g_pinned;

static bool is_pinned(const void * data) {
    const lock_guard lock(g_mutex);
    auto             it = g_pinned.upper_bound((const char *) data);
    return it != g_pinned.begin() && (--it, (const char *) data < it->first + it->second);
}

static void * allocate(size_t size) {
    void * memory = ::operator new(std::max<size_t>(size, 1), std::align_val_t(ALIGNMENT), std::nothrow);
    if (memory) {
        fill_with_garbage(memory, size);
    }
    return memory;
}

static void release(void * memory) {
    lagging_stream::run_all();
    ::operator delete(memory, std::align_val_t(ALIGNMENT));
}

static void buffer_free(ggml_backend_buffer_t buffer) {
    release(buffer->context);
}

static bool is_lagging(ggml_backend_buffer_t buffer) {
    return buffer->iface.free_buffer == buffer_free;
}

static void * buffer_get_base(ggml_backend_buffer_t buffer) {
    return buffer->context;
}

static void buffer_memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset,
                                 size_t size) {
    memset((char *) tensor->data + offset, value, size);
}

static void buffer_set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset,
                              size_t size) {
    memcpy((char *) tensor->data + offset, data, size);
}

static void buffer_get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset,
                              size_t size) {
    memcpy(data, (const char *) tensor->data + offset, size);
}

static bool buffer_cpy_tensor(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
    if (!is_lagging(src->buffer)) {
        return false;
    }
    memmove(dst->data, src->data, ggml_nbytes(src));
    return true;
}

static void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(buffer->context, value, buffer->size);
}

static const char * buffer_type_get_name(ggml_backend_buffer_type_t) {
    return "Lagging";
}

static ggml_backend_buffer_t buffer_type_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    static const ggml_backend_buffer_i iface = {
        /* .free_buffer   = */ buffer_free,
        /* .get_base      = */ buffer_get_base,
        /* .init_tensor   = */ nullptr,
        /* .memset_tensor = */ buffer_memset_tensor,
        /* .set_tensor    = */ buffer_set_tensor,
        /* .get_tensor    = */ buffer_get_tensor,
        /* .set_tensor_2d = */ nullptr,
        /* .get_tensor_2d = */ nullptr,
        /* .cpy_tensor    = */ buffer_cpy_tensor,
        /* .clear         = */ buffer_clear,
        /* .reset         = */ nullptr,
    };
    void * memory = allocate(size);
    return memory ? ggml_backend_buffer_init(buft, iface, memory, size) : nullptr;
}

static size_t buffer_type_get_alignment(ggml_backend_buffer_type_t) {
    return ALIGNMENT;
}

static const char * host_buffer_type_get_name(ggml_backend_buffer_type_t) {
    return "Lagging_Host";
}

static void host_buffer_free(ggml_backend_buffer_t buffer) {
    const lock_guard lock(g_mutex);
    lagging_stream::run_all();
    g_pinned.erase((const char *) buffer->context);
    release(buffer->context);
}

static ggml_backend_buffer_t host_buffer_type_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    const lock_guard lock(g_mutex);
    void *           memory = allocate(size);
    if (!memory) {
        return nullptr;
    }
    g_pinned[(const char *) memory] = size;
    ggml_backend_buffer_t buffer    = ggml_backend_cpu_buffer_from_ptr(memory, size);
    buffer->buft                    = buft;
    buffer->iface.free_buffer       = host_buffer_free;
    return buffer;
}

//
// a backend: one stream
//

static ggml_guid_t backend_guid() {
    static ggml_guid guid = { 0x6c, 0x61, 0x67, 0x67, 0x69, 0x6e, 0x67, 0x20,
                              0x64, 0x65, 0x76, 0x69, 0x63, 0x65, 0x00, 0x01 };
    return &guid;
}

static bool is_lagging(ggml_backend_t backend) {
    return backend && ggml_guid_matches(backend->guid, backend_guid());
}

static const char * backend_get_name(ggml_backend_t) {
    return "Lagging";
}

static void backend_free(ggml_backend_t backend) {
    delete &stream_of(backend);
    delete backend;
}

static void backend_set_tensor_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset,
                                     size_t size) {
    char * to = (char *) tensor->data + offset;
    if (is_pinned(data)) {
        stream_of(backend).add([=] { memcpy(to, data, size); });
        return;
    }
    const std::vector<char> read((const char *) data, (const char *) data + size);
    stream_of(backend).add([=] { memcpy(to, read.data(), size); });
}

static void backend_get_tensor_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset,
                                     size_t size) {
    const char * from = (const char *) tensor->data + offset;
    stream_of(backend).add([=] { memcpy(data, from, size); });
    if (!is_pinned(data)) { // only then does CUDA return before it is done
        stream_of(backend).run();
    }
}

static bool backend_cpy_tensor_async(ggml_backend_t backend_src, ggml_backend_t backend_dst, const ggml_tensor * src,
                                     ggml_tensor * dst) {
    const auto buffer_of = [](const ggml_tensor * tensor) {
        return tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
    };
    if (!is_lagging(backend_src) || !is_lagging(backend_dst) || !is_lagging(buffer_of(src)) ||
        !is_lagging(buffer_of(dst))) {
        return false;
    }
    const lock_guard   lock(g_mutex);
    const void * const from = src->data;
    void * const       to   = dst->data;
    const size_t       size = ggml_nbytes(dst);
    stream_of(backend_src).add([=] { memmove(to, from, size); });

    lagging_event copied;
    copied.record(stream_of(backend_src));
    if (backend_src != backend_dst) {
        stream_of(backend_dst).add([=] { copied.wait(); });
    }
    return true;
}

static void backend_synchronize(ggml_backend_t backend) {
    stream_of(backend).run();
}

// The nodes of a graph as they are when it is launched: what becomes of the tensors later does not matter to it.
class launched_graph {
  public:
    explicit launched_graph(ggml_cgraph * graph) {
        const int    n_nodes = ggml_graph_n_nodes(graph);
        const size_t size    = ggml_graph_overhead_custom(n_nodes, false);
        ctx.reset(ggml_init({ size, nullptr, true }));
        nodes = ggml_new_graph_custom(ctx.get(), n_nodes, false);
        for (int i = 0; i < n_nodes; ++i) {
            ggml_graph_add_node(nodes, copy_of(ggml_graph_node(graph, i)));
        }
    }

    void compute(ggml_backend_t cpu) const {
        const ggml_status status = ggml_backend_graph_compute(cpu, nodes);
        GGML_ASSERT(status == GGML_STATUS_SUCCESS);
    }

  private:
    ggml_context_ptr                                       ctx;
    ggml_cgraph *                                          nodes;
    std::deque<ggml_tensor>                                tensors;
    std::unordered_map<const ggml_tensor *, ggml_tensor *> copies;

    ggml_tensor * copy_of(const ggml_tensor * tensor) {
        if (!tensor) {
            return nullptr;
        }
        const auto found = copies.find(tensor);
        if (found != copies.end()) {
            return found->second;
        }
        tensors.push_back(*tensor);
        ggml_tensor * copy = &tensors.back();
        copies[tensor]     = copy;
        for (auto & src : copy->src) {
            src = copy_of(src);
        }
        copy->view_src = copy_of(copy->view_src);
        return copy;
    }
};

static ggml_status backend_graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    const auto launched = std::make_shared<launched_graph>(graph);
    auto &     stream   = stream_of(backend);
    stream.add([launched, &stream] { launched->compute(stream.cpu.get()); });
    return GGML_STATUS_SUCCESS;
}

static void backend_event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    const lock_guard lock(g_mutex);
    ((lagging_event *) event->context)->record(stream_of(backend));
}

static void backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    const lock_guard    lock(g_mutex);
    const lagging_event recorded = *(lagging_event *) event->context; // what is recorded later does not count
    stream_of(backend).add([=] { recorded.wait(); });
}

//
// the device
//

static const char * device_get_name(ggml_backend_dev_t dev) {
    return (const char *) dev->context;
}

static const char * device_get_description(ggml_backend_dev_t) {
    return "the CPU, as late as a GPU may be";
}

static void device_get_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = *total = MEMORY_SIZE;
}

static enum ggml_backend_dev_type device_get_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void device_get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props             = {};
    props->name        = device_get_name(dev);
    props->description = device_get_description(dev);
    props->type        = device_get_type(dev);
    device_get_memory(dev, &props->memory_free, &props->memory_total);
    props->caps.async       = true;
    props->caps.host_buffer = true;
    props->caps.events      = true;
}

static ggml_backend_t device_init_backend(ggml_backend_dev_t dev, const char *) {
    static const ggml_backend_i iface = [] {
        ggml_backend_i res   = {};
        res.get_name         = backend_get_name;
        res.free             = backend_free;
        res.set_tensor_async = backend_set_tensor_async;
        res.get_tensor_async = backend_get_tensor_async;
        res.cpy_tensor_async = backend_cpy_tensor_async;
        res.synchronize      = backend_synchronize;
        res.graph_compute    = backend_graph_compute;
        res.event_record     = backend_event_record;
        res.event_wait       = backend_event_wait;
        return res;
    }();
    const lock_guard lock(g_mutex);
    return new ggml_backend{ backend_guid(), iface, dev, new lagging_stream };
}

static ggml_backend_buffer_type_t device_get_buffer_type(ggml_backend_dev_t dev) {
    static std::map<ggml_backend_dev_t, ggml_backend_buffer_type> of_devices;

    const lock_guard lock(g_mutex);
    auto &           buft    = of_devices[dev];
    buft.iface.get_name      = buffer_type_get_name;
    buft.iface.alloc_buffer  = buffer_type_alloc;
    buft.iface.get_alignment = buffer_type_get_alignment;
    buft.device              = dev;
    return &buft;
}

static ggml_backend_buffer_type_t device_get_host_buffer_type(ggml_backend_dev_t dev) {
    static ggml_backend_buffer_type buft = [=] {
        ggml_backend_buffer_type res = {};
        res.iface                    = ggml_backend_cpu_buffer_type()->iface;
        res.iface.get_name           = host_buffer_type_get_name;
        res.iface.alloc_buffer       = host_buffer_type_alloc;
        res.device                   = dev;
        return res;
    }();
    return &buft;
}

// Not what CUDA's backend leaves to the CPU because of its shape: there graphs have splits, with copies between them.
static bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    static const ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);

    static const char * const lacking = getenv("LAGGING_DEVICE_LACKS"); // an operation that makes quantised values
    if (lacking && ggml_is_quantized(op->type) && strcmp(lacking, ggml_op_name(op->op)) == 0) {
        return false;
    }

    const int64_t n = op->src[0] ? op->src[0]->ne[0] : 0;
    switch (op->op) {
        case GGML_OP_FLASH_ATTN_EXT:
            if (n % 64 != 0 || n > 256 || op->src[2]->ne[0] != n) {
                return false;
            }
            break;
        case GGML_OP_LIGHTNING_INDEXER:
            if (n != 128) {
                return false;
            }
            break;
        case GGML_OP_SSM_CONV:
            if (op->src[0]->ne[1] % 128 != 0) {
                return false;
            }
            break;
        case GGML_OP_SSM_SCAN:
            if (n != 96 && n != 128 && n != 256) {
                return false;
            }
            break;
        default:
            break;
    }
    return ggml_backend_dev_supports_op(cpu, op);
}

static bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) {
    return buft == device_get_buffer_type(dev);
}

static bool device_offload_op(ggml_backend_dev_t, const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_GET_ROWS:
            return false;
        case GGML_OP_MUL_MAT:
            return op->ne[1] >= OFFLOAD_BATCH_SIZE_MIN;
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_ROPE:
            return op->ne[2] >= OFFLOAD_BATCH_SIZE_MIN;
        default:
            return ggml_nrows(op) >= OFFLOAD_BATCH_SIZE_MIN;
    }
}

static ggml_backend_event_t device_event_new(ggml_backend_dev_t dev) {
    return new ggml_backend_event{ dev, new lagging_event };
}

static void device_event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete (lagging_event *) event->context;
    delete event;
}

static void device_event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) {
    ((lagging_event *) event->context)->wait();
}

//
// the registry
//

static const char * reg_get_name(ggml_backend_reg_t) {
    return "Lagging";
}

static size_t reg_get_device_count(ggml_backend_reg_t) {
    static const char * count = getenv("LAGGING_DEVICES");
    return count && strcmp(count, "2") == 0 ? 2 : 1;
}

static ggml_backend_dev_t reg_get_device(ggml_backend_reg_t reg, size_t index) {
    static const ggml_backend_device_i iface = {
        /* .get_name             = */ device_get_name,
        /* .get_description      = */ device_get_description,
        /* .get_memory           = */ device_get_memory,
        /* .get_type             = */ device_get_type,
        /* .get_props            = */ device_get_props,
        /* .init_backend         = */ device_init_backend,
        /* .get_buffer_type      = */ device_get_buffer_type,
        /* .get_host_buffer_type = */ device_get_host_buffer_type,
        /* .buffer_from_host_ptr = */ nullptr,
        /* .supports_op          = */ device_supports_op,
        /* .supports_buft        = */ device_supports_buft,
        /* .offload_op           = */ device_offload_op,
        /* .event_new            = */ device_event_new,
        /* .event_free           = */ device_event_free,
        /* .event_synchronize    = */ device_event_synchronize,
    };
    static char                names[][16] = { "Lagging0", "Lagging1" };
    static ggml_backend_device devices[]   = { { iface, reg, names[0] }, { iface, reg, names[1] } };
    return &devices[index];
}

extern "C" ggml_backend_reg_t ggml_backend_init(void) {
    static ggml_backend_reg reg = {
        GGML_BACKEND_API_VERSION,
        { reg_get_name, reg_get_device_count, reg_get_device, nullptr },
        nullptr,
    };
    return &reg;
}
