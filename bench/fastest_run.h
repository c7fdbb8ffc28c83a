// The time of a graph on a backend, for the programs that time kernels alone.

#pragma once

#include "ggml-backend.h"

#include <algorithm>
#include <chrono>

// Microseconds of the fastest of several runs: the first ones capture a CUDA graph.
inline double fastest_run(ggml_backend_t backend, ggml_cgraph * gf) {
    double fastest = 1e9;
    for (int i = 0; i < 8; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        ggml_backend_graph_compute(backend, gf);
        ggml_backend_synchronize(backend);
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
        fastest                                              = std::min(fastest, took.count());
    }
    return fastest;
}
