// pymtp: devices of other machines, and lending one's own. The protocol is llama.cpp's RPC with additions; it has no
// authentication and no encryption. Both ends must be of the same build.
//
// A connection that breaks makes every later pass of a session that computes there PYMTP_LOST, with a message that names the
// server. Free the session and the model then; loading the model again connects again.

#ifndef PYMTP_RPC_H
#define PYMTP_RPC_H

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// [cffi begin]

struct pymtp_rpc;

// since the process began, of all connections to a server
struct pymtp_rpc_counters {
    int64_t n_messages; // sent
    int64_t n_answers;  // of these, those that were waited for
    int64_t n_bytes_sent;
    int64_t n_bytes_received;
    int64_t n_graphs_sent; // a server keeps the graphs that it was sent
    int64_t n_graphs_run;
};

// Connects to an RPC server, "host:port". PYMTP_LOST if none answers there in a few seconds, or one of another build. The
// server belongs to this process until the connection, and all that was loaded there, are freed.
int32_t pymtp_rpc_connect(const char * endpoint, struct pymtp_rpc ** rpc);
void    pymtp_rpc_free(struct pymtp_rpc * rpc);

// The server's i-th device, for llama_model_params; NULL after the last. It stays valid; using it connects again.
struct ggml_backend_device * pymtp_rpc_device(const struct pymtp_rpc * rpc, int32_t i);

int32_t pymtp_rpc_count(const char * endpoint, struct pymtp_rpc_counters * counters);

// Lends devices to one client at a time, until the process ends. Returns if it cannot listen at "address:port".
// cache_dir: a folder that keeps large weights, so that they need not be sent again; or NULL.
int32_t pymtp_rpc_serve(const char * endpoint, const char * cache_dir, int32_t n_threads, int32_t n_devices,
                        struct ggml_backend_device * const * device);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
