// A part of ggml-rpc.cpp, which includes it after the messages and before everything that sends them: the connection to a
// server, in the place of llama.cpp's. A failure is an exception that names the server, and ends no process; messages are
// sent by the thread that has them, those without an answer together with the next that has one. Knows messages; of
// tensors and graphs only which are known at the other end.

#include "rpc-link.h"
#include "rpc-socket.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <list>
#include <unordered_set>

// The graphs of a device: as many as a session keeps. A graph takes the server about 1 MB.
static constexpr size_t MTP_RPC_GRAPHS_MAX = 96;

// The graphs that an RPC server keeps, by their ids, so that each is sent once. Client and server have a list each, which
// are the same, as both see the same calls in the same order. Knows ids and buffers; no graphs.
// T: what an end keeps of a graph
template <class T> class mtp_rpc_graphs {
  public:
    // nullptr if it is not kept
    T * find(uint64_t id) {
        const auto it = std::find_if(entries.begin(), entries.end(), [&](const entry & e) { return e.id == id; });
        if (it == entries.end()) {
            return nullptr;
        }
        entries.splice(entries.begin(), entries, it);
        return &it->graph;
    }

    // A graph that is in these buffers. The one that was used least recently gives way.
    T & add(uint64_t id, std::unordered_set<uint64_t> buffers) {
        if (entries.size() >= MTP_RPC_GRAPHS_MAX) {
            entries.pop_back();
        }
        entries.push_front({ id, std::move(buffers), T() });
        return entries.front().graph;
    }

    void drop_users_of(uint64_t buffer) {
        entries.remove_if([&](const entry & e) { return e.buffers.count(buffer) > 0; });
    }

  private:
    struct entry {
        uint64_t                     id;
        std::unordered_set<uint64_t> buffers;
        T                            graph;
    };

    std::list<entry> entries; // the one that was used last comes first
};

class rpc_dispatcher {
  public:
    // the data may be freed as soon as these return; errors of what is only sent are those of a later message
    void send(rpc_cmd cmd, std::shared_ptr<const void> input, size_t input_size);
    void send(rpc_cmd cmd, std::shared_ptr<const void> input, size_t input_size, void * output, size_t output_size);

    // the same: what need not be waited for is expected
    template <typename... A> void send_async(A &&... arguments) { send(std::forward<A>(arguments)...); }

    // The tensor is read next, after those of earlier calls: they are asked for together.
    void expect(const rpc_msg_get_tensor_req & request);

    // What is sent is done in its order: there is nothing to wait for.
    void synchronize();

    void graph_compute(uint32_t device, const ggml_cgraph * cgraph);
    void start(const std::string & endpoint);
    bool supports_op(uint32_t device, const ggml_tensor * op);

    // the server frees it, and the graphs that are in it
    void free_buffer(uint64_t buffer);

    // nothing happens out of order
    ggml_backend_event_t event_new(ggml_backend_dev_t device) { return new ggml_backend_event{ device, nullptr }; }

    void event_record(ggml_backend_event_t) {}

    void event_synchronize(ggml_backend_event_t) { synchronize(); }

    // receive() spins by itself
    void busy_spin_acquire() {}

    void busy_spin_release() {}

    std::atomic_bool is_lost{ false };

  private:
    std::mutex     sock_mutex;
    socket_ptr     sock;
    mtp_rpc_outbox outbox;
    std::string    endpoint;

    std::deque<rpc_msg_get_tensor_req> expected; // and not read yet; they come in this order

    // of each device, by the numbers that the server gives them; locked until what changes them was sent
    std::mutex                                         graphs_mutex;
    std::unordered_map<uint32_t, mtp_rpc_graphs<char>> graphs;

    std::mutex                            ops_mutex;
    std::unordered_map<std::string, bool> ops;

    void check() const { refuse_if(is_lost, "is lost: it ended, or did not answer"); }

    // Calls the function with the connection to itself; it returns whether that went well. Throws if the connection is
    // lost, before or after that.
    template <typename F> void use(F && function) {
        std::lock_guard<std::mutex> lock(sock_mutex);
        check();
        is_lost = !function();
        check();
    }

    void refuse_if(bool is_wrong, const std::string & why) const {
        if (is_wrong) {
            throw mtp_rpc_error("RPC server " + endpoint + " " + why);
        }
    }

    // Whether these went through.
    bool add(rpc_cmd cmd, const void * input, size_t input_size) {
        return outbox.add(*sock, { (uint8_t) cmd }, input, input_size);
    }

    bool receive(void * output, size_t output_size) {
        return outbox.flush(*sock) && recv_msg(sock, output, output_size);
    }

    // What nobody has read.
    bool drop_expected() {
        for (; !expected.empty(); expected.pop_front()) {
            std::vector<uint8_t> unused(expected.front().size);
            if (!receive(unused.data(), unused.size())) {
                return false;
            }
        }
        return true;
    }

    // Whether this one is what is to come next, and was asked for.
    bool is_expected(rpc_cmd cmd, const void * input) const {
        return cmd == RPC_CMD_GET_TENSOR && !expected.empty() &&
               memcmp(&expected.front(), input, sizeof(rpc_msg_get_tensor_req)) == 0;
    }
};

void rpc_dispatcher::send(rpc_cmd cmd, std::shared_ptr<const void> input, size_t input_size) {
    const bool runs = cmd == RPC_CMD_GRAPH_COMPUTE || cmd == RPC_CMD_GRAPH_RECOMPUTE;
    use([&] { return drop_expected() && add(cmd, input.get(), input_size) && (!runs || outbox.flush(*sock)); });
}

void rpc_dispatcher::send(rpc_cmd cmd, std::shared_ptr<const void> input, size_t input_size, void * output,
                          size_t output_size) {
    use([&] {
        if (is_expected(cmd, input.get())) {
            expected.pop_front();
            return receive(output, output_size);
        }
        return drop_expected() && add(cmd, input.get(), input_size) && receive(output, output_size);
    });
}

void rpc_dispatcher::expect(const rpc_msg_get_tensor_req & request) {
    use([&] {
        expected.push_back(request);
        return add(RPC_CMD_GET_TENSOR, &request, sizeof(request));
    });
}

void rpc_dispatcher::synchronize() {
    use([&] { return outbox.flush(*sock); });
}

void rpc_dispatcher::start(const std::string & endpoint) {
    this->endpoint = endpoint;

    std::string host;
    int         port;
    refuse_if(!parse_endpoint(endpoint, host, port), "has no address of the form host:port");
    refuse_if(!rpc_transport_init(), "cannot be reached: this machine has no network");
    sock = socket_t::connect(host.c_str(), port);
    refuse_if(sock == nullptr, "cannot be reached: " + mtp_rpc_connect_error());
    refuse_if(!negotiate_hello(sock),
              "does not answer as one: it serves another client, is of another version, or is something else");
    mtp_rpc_build build;
    refuse_if(!send_rpc_cmd(sock, RPC_CMD_MTP_BUILD, nullptr, 0, &build, sizeof(build)),
              "is not pymtp's: start it with pymtp rpc-server");
    const std::string id(build.id, strnlen(build.id, sizeof(build.id)));
    refuse_if(id != mtp_rpc_build_id(),
              "is of another build (" + id + ") than this one (" + mtp_rpc_build_id() + "): install the same on both");
    sock->limit_wait(MTP_RPC_ANSWER_S);
}

void rpc_dispatcher::free_buffer(uint64_t buffer) {
    auto request        = std::make_shared<rpc_msg_free_buffer_req>();
    request->remote_ptr = buffer;
    try {
        std::lock_guard<std::mutex> lock(graphs_mutex);
        for (auto & [device, of_device] : graphs) {
            of_device.drop_users_of(buffer);
        }
        send(RPC_CMD_FREE_BUFFER, request, sizeof(*request));
        synchronize();
    } catch (const std::exception &) {
        // there is no server any more that has it
    }
}
