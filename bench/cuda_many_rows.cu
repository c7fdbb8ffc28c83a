// Products of more rows, of the kernels alone: how far they are from what the kernel for few rows gives (up to 16 rows
// they must not differ), for each type of weights, and milliseconds of the products of a model's layers by the number of
// rows. Needs no ggml:
//
//     nvcc -O3 -use_fast_math -std=c++17 -gencode arch=compute_90a,code=sm_90a -DALL_TYPES -I native/src/cuda \
//         -I GGML/include bench/cuda_many_rows.cu && ./a.out all

#include "ggml.h"

#include <cuda_fp16.h>
#include <cuda_pipeline.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FEW_ROWS_KERNEL                             __global__
#define FEW_ROWS_LAUNCH_BOUNDS(n_threads, n_blocks) __launch_bounds__(n_threads, n_blocks)
#define FEW_ROWS_SHARED(name)                       extern __shared__ __align__(16) char name[]

static __device__ __forceinline__ int ggml_cuda_dp4a(int a, int b, int c) {
    return __dp4a(a, b, c);
}

static __device__ __forceinline__ void ggml_cuda_pdl_lc() {
    asm volatile("griddepcontrol.launch_dependents;");
}

static __device__ __forceinline__ void ggml_cuda_pdl_sync() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

static __device__ __forceinline__ float ggml_cuda_op_silu_single(float x) {
    return x / (1.0f + expf(-x));
}

static __device__ __forceinline__ float ggml_cuda_op_gelu_single(float x) {
    return x; // others are no part of this
}

static __device__ __forceinline__ float ggml_cuda_op_swiglu_oai_single(float x, float) {
    return x;
}

static __device__ __forceinline__ float ggml_cuda_op_swiglu_clamp_single(float x, float, float) {
    return x;
}

#include "cuda-many-rows-products.cuh"
//
#include "cuda-many-rows-kernel.cuh"
#include "cuda-many-rows-pack.cuh"
#include "cuda-more-rows-kernel.cuh"
#include "cuda-more-rows-quantize.cuh"

#define CHECKED(call)                                                                   \
    do {                                                                                \
        const cudaError_t error_ = (call);                                              \
        if (error_ != cudaSuccess) {                                                    \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_)); \
            std::exit(1);                                                               \
        }                                                                               \
    } while (0)

static few_rows_device g_device;

static char *     g_sums;
static unsigned * g_counters;

template <class K, class... P>
static void launch(K kernel, int n_blocks, int n_threads, size_t shared_size, cudaStream_t stream, P... p) {
    cudaLaunchAttribute attribute = {}; // a kernel starts while the one before it ends, as in ggml
    attribute.id                  = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config                            = {};
    config.gridDim                                       = n_blocks;
    config.blockDim                                      = n_threads;
    config.dynamicSmemBytes                              = shared_size;
    config.stream                                        = stream;
    config.attrs                                         = &attribute;
    config.numAttrs                                      = 1;
    CHECKED(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) g_device.shared_size));
    CHECKED(cudaLaunchKernelEx(&config, kernel, p...));
}

template <class T, int NT>
static void launch_many(const few_rows_product & p, const many_rows_division & division, cudaStream_t stream) {
    p.gate ? launch(many_rows_kernel<T, NT, true, false>, division.n_blocks, 32 * p.n_warps, division.shared_size,
                    stream, p) :
             launch(many_rows_kernel<T, NT, false, false>, division.n_blocks, 32 * p.n_warps, division.shared_size,
                    stream, p);
}

template <class K> static void launch_many(few_rows_product p, cudaStream_t stream) {
    using T             = typename many_rows_type<K>::type;
    p.sums              = g_sums;
    p.counters          = g_counters;
    const auto division = many_rows_divide<T>(p, g_device);
    division.n_tiles == 2 ? launch_many<T, 2>(p, division, stream) :
    division.n_tiles == 4 ? launch_many<T, 4>(p, division, stream) :
    division.n_tiles == 8 ? launch_many<T, 8>(p, division, stream) :
                            launch_many<T, 16>(p, division, stream);
}

template <class T, int NT, bool GATE> static void launch_more(few_rows_product p, cudaStream_t stream) {
    const size_t size = more_rows_divide<T, NT>(p, GATE, g_device);
    launch(more_rows_kernel<T, NT, GATE>, p.n_blocks, p.n_warps * FEW_ROWS_LANES, size, stream, p);
}

template <class T> static void launch_more(const few_rows_product & p, cudaStream_t stream) {
    if (p.n_tokens > MORE_ROWS_COLUMNS_MAX) {
        launch_many<T>(p, stream);
    } else if (p.n_tokens > 8) {
        p.gate ? launch_more<T, 2, true>(p, stream) : launch_more<T, 2, false>(p, stream);
    } else {
        p.gate ? launch_more<T, 1, true>(p, stream) : launch_more<T, 1, false>(p, stream);
    }
}

template <class T, int N, bool GATE> static void launch_few(few_rows_product p, cudaStream_t stream) {
    if (!few_rows_divide<T>(p, N, GATE, g_device)) {
        std::exit(1);
    }
    launch(few_rows_kernel<T, N, GATE>, p.n_blocks, p.n_warps * FEW_ROWS_LANES, few_rows_memory<T>(p, N, GATE).size,
           stream, p);
}

// activations as the kernel for few rows has them
static __global__ void quantize_few(const float * rows, char * to, int n_values) {
    const int   i    = blockIdx.x * blockDim.x + threadIdx.x;
    const float v    = i < n_values ? rows[blockIdx.y * n_values + i] : 0.0f;
    float       high = fabsf(v);
    for (int distance = 16; distance > 0; distance /= 2) {
        high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, distance));
    }
    const float d = high / 127.0f;
    if (i < n_values) {
        char * block          = to + ((int64_t) blockIdx.y * (n_values / 32) + i / 32) * FEW_ROWS_Y_SIZE;
        block[4 + i % 32]     = (signed char) (high == 0.0f ? 0.0f : roundf(v / d));
        ((__half *) block)[0] = __float2half(d);
    }
}

// random bytes, with small scales at some places of a block
static __global__ void fill(unsigned char * to, int64_t n, int size, int scale_0, int scale_1, int seed) {
    for (int64_t i = blockIdx.x * (int64_t) blockDim.x + threadIdx.x; i < n; i += (int64_t) gridDim.x * blockDim.x) {
        unsigned h = (unsigned) (i * 2654435761u) ^ (unsigned) (i >> 20) ^ seed * 977;
        h ^= h >> 15;
        h *= 2246822519u;
        h ^= h >> 13;
        const int at = (int) (i % size);
        to[i]        = at == scale_0 || at == scale_1 || at == scale_0 + 1 || at == scale_1 + 1 ?
                           ((at - scale_0) % 2 == 0 || at == scale_1 ? (h & 0xff) : 0x14 | (h & 3)) :
                           h >> 8;
    }
}

static void fill_floats(std::vector<float> & values) {
    unsigned h = 12345;
    for (auto & value : values) {
        h     = h * 1664525u + 1013904223u;
        value = (float) (int) h / 2147483648.0f;
    }
}

struct activations {
    float * floats;
    char *  tiles;
    char *  few;
    int     n_values;
    int     n_rows;

    activations(int n_values, int n_rows) : n_values(n_values), n_rows(n_rows) {
        std::vector<float> values((size_t) n_values * n_rows);
        fill_floats(values);
        CHECKED(cudaMalloc(&floats, values.size() * 4));
        CHECKED(cudaMalloc(&tiles, std::max(many_rows_size(n_values, n_rows), more_rows_size(n_values, n_rows))));
        CHECKED(cudaMalloc(&few, (size_t) n_rows * n_values / 32 * FEW_ROWS_Y_SIZE + 4096));
        CHECKED(cudaMemcpy(floats, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
        quantize(0);
        quantize_few<<<dim3(n_values / 256, n_rows), 256>>>(floats, few, n_values);
        CHECKED(cudaDeviceSynchronize());
    }

    void quantize(cudaStream_t stream) const {
        few_rows_input in = {};
        in.rows           = floats;
        in.n_values       = n_values;
        in.n_rows         = n_rows;
        in.stride         = n_values;
        if (n_rows <= MORE_ROWS_COLUMNS_MAX) {
            in.n_tiles = more_rows_all_tiles(n_rows);
            more_rows_quantize<<<dim3((n_values + 127) / 128, in.n_tiles), MORE_ROWS_QUANTIZE_THREADS, 0, stream>>>(
                in, tiles);
            return;
        }
        in.n_tiles = many_rows_all_tiles(n_rows);
        many_rows_pack<<<in.n_tiles * 8, many_rows_pack_threads(n_values), 0, stream>>>(in, tiles);
    }
};

static few_rows_product describe(const activations & x, const char * matrix, const char * gate, float * dst, int n_out,
                                 int64_t row_size, int n_rows) {
    few_rows_product p = {};
    p.n_matrices       = 1;
    p.matrices[0]      = { matrix, dst, n_out, n_out, 0 };
    p.gate             = gate;
    p.glu_op           = GGML_GLU_OP_SWIGLU;
    p.n_parts          = x.n_values / FEW_ROWS_PART;
    p.column_size      = (p.n_parts * 2 * FEW_ROWS_Y_SIZE + 15) / 16 * 16;
    p.n_tokens         = n_rows;
    p.n_groups         = n_rows <= MORE_ROWS_COLUMNS_MAX ? 1 : 0;
    p.n_columns        = n_rows;
    p.n_places         = 1;
    p.n_column_places  = 1;
    p.row_stride       = row_size;
    p.columns          = x.tiles;
    p.column_stride    = many_rows_all_tiles(n_rows) * MANY_ROWS_TILE_SIZE;
    return p;
}

template <class T> static void compare(const char * name, int scale_0, int scale_1, int size) {
    for (const int n_values : { 4096, 12288, 2304, 18432 }) {
        const int     n_out    = 3333;
        const int64_t row_size = (int64_t) n_values / T::N_VALUES * T::SIZE;
        const int64_t n_bytes  = row_size * n_out;
        char *        matrix;
        float *       dst[2];
        CHECKED(cudaMalloc(&matrix, 2 * n_bytes + 4096));
        for (auto & it : dst) {
            CHECKED(cudaMalloc(&it, 128 * n_out * 4));
        }
        fill<<<512, 256>>>((unsigned char *) matrix, 2 * n_bytes, size, scale_0, scale_1, 7);
        char * gate = matrix + (n_bytes + 15) / 16 * 16;
        CHECKED(cudaMemcpy(gate, matrix, n_bytes, cudaMemcpyDeviceToDevice));
        for (const bool has_gate : { false, true }) {
            for (const int n_rows : { 5, 8, 9, 16, 31, 57, 128 }) {
                activations      x(n_values, n_rows);
                few_rows_product p = describe(x, matrix, has_gate ? gate : nullptr, dst[0], n_out, row_size, n_rows);
                CHECKED(cudaMemset(dst[0], 0x7f, 128 * n_out * 4));
                launch_more<T>(p, 0);
                for (int row = 0; row < n_rows; row += 8) {
                    few_rows_product few = p;
                    few.column_stride    = n_values / 32 * FEW_ROWS_Y_SIZE;
                    few.columns          = x.few + row * few.column_stride;
                    few.matrices[0].dst  = dst[1] + row * n_out;
                    few.n_tokens         = std::min(8, n_rows - row);
                    has_gate ? launch_few<T, 8, true>(few, 0) : launch_few<T, 8, false>(few, 0);
                }
                std::vector<float> res[2];
                for (int i = 0; i < 2; ++i) {
                    res[i].resize(n_rows * n_out);
                    CHECKED(cudaMemcpy(res[i].data(), dst[i], res[i].size() * 4, cudaMemcpyDeviceToHost));
                }
                double high = 0.0, error = 0.0, sum = 0.0;
                for (size_t i = 0; i < res[0].size(); ++i) {
                    const double d = std::fabs((double) res[0][i] - res[1][i]);
                    error          = std::max(error, d != d ? 1e30 : d);
                    sum += (double) res[1][i] * res[1][i];
                    high = std::max(high, std::fabs((double) res[1][i]));
                }
                const bool is_alike = n_rows > MORE_ROWS_COLUMNS_MAX || error == 0.0;
                if (!is_alike || error > 0.05 * std::sqrt(sum / res[0].size()) * (has_gate ? 4 : 1) || n_rows == 31) {
                    std::printf("%s: %d values, %d rows%s: error %g rms %g, highest %g, first %g %g\n", name, n_values,
                                n_rows, has_gate ? ", gate" : "", error, std::sqrt(sum / res[0].size()), high,
                                res[0][5], res[1][5]);
                }
            }
        }
        cudaFree(matrix);
        cudaFree(dst[0]);
        cudaFree(dst[1]);
    }
}

static constexpr int N_LAYERS = 36;

struct layer_matrix {
    const char * name;
    int          n_values;
    int          n_out;
    bool         has_gate;
    bool         adds; // what the layer has so far
};

// of the layers' products, in ms
template <class T> static float measure(const std::vector<char *> & weights, int n_rows, int which, float * dst) {
    static constexpr layer_matrix MATRICES[] = {
        { "queries, keys and values", 4096, 6144, false, false },
        { "out", 4096, 4096, false, true },
        { "gate and up", 4096, 12288, true, false },
        { "down", 12288, 4096, false, true },
    };
    activations  narrow(4096, n_rows);
    activations  wide(12288, n_rows);
    cudaStream_t stream;
    CHECKED(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    CHECKED(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int layer = 0; layer < N_LAYERS; ++layer) {
        char * at = weights[layer];
        for (int i = 0; i < 4; ++i) {
            const auto &  m        = MATRICES[i];
            const int64_t row_size = (int64_t) m.n_values / T::N_VALUES * T::SIZE;
            const int64_t size     = row_size * m.n_out;
            if (which < 0 || which == i) {
                const activations & x = m.n_values == 4096 ? narrow : wide;
                few_rows_product p = describe(x, at, m.has_gate ? at + size : nullptr, dst, m.n_out, row_size, n_rows);
                if (m.adds) {
                    p.matrices[0].bias        = wide.floats;
                    p.matrices[0].bias_stride = m.n_out;
                }
                if (n_rows > 4) {
                    launch_more<T>(p, stream);
                } else {
                    p.columns       = x.few;
                    p.column_stride = m.n_values / 32 * FEW_ROWS_Y_SIZE;
                    if (n_rows == 1) {
                        m.has_gate ? launch_few<T, 1, true>(p, stream) : launch_few<T, 1, false>(p, stream);
                    } else {
                        m.has_gate ? launch_few<T, 4, true>(p, stream) : launch_few<T, 4, false>(p, stream);
                    }
                }
            }
            at += size * (m.has_gate ? 2 : 1);
        }
    }
    CHECKED(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec;
    CHECKED(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin;
    cudaEvent_t end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    float best = 1e9f;
    for (int i = 0; i < 12; ++i) {
        cudaEventRecord(begin, stream);
        CHECKED(cudaGraphLaunch(exec, stream));
        cudaEventRecord(end, stream);
        CHECKED(cudaEventSynchronize(end));
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        best = std::min(best, ms);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    for (const auto * x : { &narrow, &wide }) {
        cudaFree(x->floats);
        cudaFree(x->tiles);
        cudaFree(x->few);
    }
    cudaStreamDestroy(stream);
    return best;
}

template <class T> static void measure_all(const char * name, int scale_0, int scale_1, int size) {
    const int64_t n_bytes = (int64_t) (6144 * 4096ll + 4096 * 4096ll + 3 * 12288 * 4096ll) / T::N_VALUES * T::SIZE;
    std::vector<char *> weights(N_LAYERS);
    for (auto & it : weights) {
        CHECKED(cudaMalloc(&it, n_bytes + 4096));
        fill<<<2048, 256>>>((unsigned char *) it, n_bytes, size, scale_0, scale_1, 3);
    }
    float * dst;
    CHECKED(cudaMalloc(&dst, 12288 * 512 * 4));
    std::printf("%s, ms: rows, all | queries, keys and values | out | gate and up | down\n", name);
    for (const int n_rows : { 1, 4, 8, 9, 16, 24, 32, 48, 64, 96, 128, 256, 512 }) {
        std::printf("%4d", n_rows);
        std::printf("  | %6.3f:", measure<T>(weights, n_rows, -1, dst));
        for (int which = 0; which < 4; ++which) {
            std::printf(" %6.3f", measure<T>(weights, n_rows, which, dst));
        }
        std::puts("");
        std::fflush(stdout);
    }
    for (auto * it : weights) {
        cudaFree(it);
    }
    cudaFree(dst);
}

int main(int argc, char ** argv) {
    cudaDeviceProp prop;
    CHECKED(cudaGetDeviceProperties(&prop, 0));
    g_device = { prop.multiProcessorCount, prop.sharedMemPerBlockOptin, prop.major == 9 };
    std::printf("%s, %d multiprocessors, %zu bytes of shared memory\n", prop.name, g_device.n_multiprocessors,
                g_device.shared_size);
    CHECKED(cudaMalloc(&g_sums, 128 << 20));
    CHECKED(cudaMalloc(&g_counters, 1 << 20));
    CHECKED(cudaMemset(g_counters, 0, 1 << 20));
    const bool all = argc > 1 && std::strcmp(argv[1], "all") == 0;
    if (argc > 1) {
        compare<few_rows_q4_K>("q4_K", 0, 2, 144);
    }
    if (all) {
#ifdef ALL_TYPES
        compare<few_rows_q8_0>("q8_0", 0, 34, 68);
        compare<few_rows_q4_0>("q4_0", 0, 18, 36);
        compare<few_rows_q5_0>("q5_0", 0, 22, 44);
        compare<few_rows_iq4_nl>("iq4_nl", 0, 18, 36);
        compare<few_rows_q3_K>("q3_K", 108, 108, 110);
        compare<few_rows_q5_K>("q5_K", 0, 2, 176);
        compare<few_rows_q6_K>("q6_K", 208, 208, 210);
        compare<few_rows_iq4_xs>("iq4_xs", 0, 0, 136);
#endif
    }
    measure_all<few_rows_q4_K>("q4_K", 0, 2, 144);
#ifdef ALL_TYPES
    if (all) {
        measure_all<few_rows_q6_K>("q6_K", 208, 208, 210);
        measure_all<few_rows_q8_0>("q8_0", 0, 34, 68);
    }
#endif
}
