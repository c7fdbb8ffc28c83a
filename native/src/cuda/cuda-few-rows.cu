#include "cuda-few-rows.cuh"
#include "mmvq.cuh"
#include "unary.cuh"

#include <cuda_pipeline.h>

#include <algorithm>

// A lane takes two blocks of weights at a time. They are an odd number of words, so that lanes that read the same word
// of theirs find them in 32 different banks of shared memory.
static constexpr int N_PAIR       = 2 * QK8_0; // values
static constexpr int PAIR_SIZE    = 2 * sizeof(block_q8_0);
static constexpr int N_PAIR_WORDS = PAIR_SIZE / sizeof(int);
static constexpr int N_BLOCK_INTS = QK8_0 / sizeof(int);
static_assert(PAIR_SIZE % sizeof(int) == 0 && N_PAIR_WORDS % 2 == 1);

// a warp's part of a matrix row
static constexpr int N_CHUNK_PAIRS = WARP_SIZE;
static constexpr int CHUNK_SIZE    = N_CHUNK_PAIRS * PAIR_SIZE;

static constexpr int N_WARPS    = 8;
static constexpr int N_ON_ROAD  = 3;   // chunks that a warp waits for at the same time
static constexpr int N_ROWS_MAX = 128; // matrix rows of a thread block

// Devices with less shared memory have slower memory too, which llama.cpp's kernel keeps up with.
static constexpr size_t SHARED_SIZE_MIN = 160 * 1024;

// the most columns that fit into shared memory; beyond that there is no kernel
static constexpr int N_COLUMNS_FIT = 4;

// thread blocks of a multiprocessor for which there are registers, if they have n columns
static constexpr __host__ __device__ int few_rows_resident(int n) {
    return n == 1 ? 4 : n == 2 ? 3 : n <= 4 ? 2 : 1;
}

// columns: rows of activations. Sizes and strides in bytes unless named otherwise.
struct few_rows_product {
    const char *    matrix;
    const char *    gate;      // nullptr: none
    const float *   bias;      // nullptr: none
    const float *   gate_bias; // nullptr: none
    const char *    columns;
    float *         dst;
    const int32_t * ids; // nullptr: not a product with experts

    ggml_glu_op glu_op;
    float       glu_limit;

    int n_pairs; // of a matrix row
    int n_rows;  // of the matrix
    int n_block_rows;
    int copy_size;
    int column_size;
    int n_tokens;
    int n_places;   // experts of a token
    int n_column_places;
    int ids_stride; // in elements

    int64_t row_stride;
    int64_t expert_stride;
    int64_t column_stride;
    int64_t column_place_stride;
    int64_t dst_stride; // this and all below in elements
    int64_t dst_place_stride;
    int64_t bias_stride;
    int64_t gate_bias_stride;

    // chunks side by side in a matrix row
    __host__ __device__ int n_chunks() const { return (n_pairs + N_CHUNK_PAIRS - 1) / N_CHUNK_PAIRS; }

    // warps that take the same chunk, of different rows
    __host__ __device__ int n_teams() const { return n_chunks() < N_WARPS ? N_WARPS / n_chunks() : 1; }
};

static __device__ __forceinline__ float few_rows_glu(float up, float gate, ggml_glu_op op, float limit) {
    switch (op) {
        case GGML_GLU_OP_SWIGLU:
            return up * ggml_cuda_op_silu_single(gate);
        case GGML_GLU_OP_GEGLU:
            return up * ggml_cuda_op_gelu_single(gate);
        case GGML_GLU_OP_SWIGLU_OAI:
            return ggml_cuda_op_swiglu_oai_single(gate, up);
        case GGML_GLU_OP_SWIGLU_CLAMP:
            return ggml_cuda_op_swiglu_clamp_single(gate, up, limit);
        default:
            return up * gate;
    }
}

// The sums over all lanes of N values. Lanes pass on what they do not keep: value i ends in the lanes from
// i * few_rows_lanes(N) on. The order of the additions is the same for all N.
static constexpr __host__ __device__ int few_rows_lanes(int n) {
    return n == 1 ? 32 : n == 2 ? 16 : n <= 4 ? 8 : 4;
}

template <int N> static __device__ __forceinline__ float few_rows_sum(const float (&values)[N], int lane) {
    constexpr int n_lanes = few_rows_lanes(N);

    float kept[WARP_SIZE / n_lanes];
#pragma unroll
    for (int i = 0; i < WARP_SIZE / n_lanes; ++i) {
        kept[i] = i < N ? values[i] : 0.0f;
    }
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance >= n_lanes; distance /= 2) {
        const bool upper = lane & distance;
        const int  half  = distance / n_lanes;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float passed = upper ? kept[i] : kept[i + half];
            kept[i]            = (upper ? kept[i + half] : kept[i]) + __shfl_xor_sync(0xffffffff, passed, distance);
        }
    }
#pragma unroll
    for (int distance = n_lanes / 2; distance > 0; distance /= 2) {
        kept[0] += __shfl_xor_sync(0xffffffff, kept[0], distance);
    }
    return kept[0];
}

// A lane's activations: two blocks of each column. Those after the end of a row are 0.
template <int N> struct few_rows_activations {
    int   values[N][2 * N_BLOCK_INTS];
    float scales[N][2];

    __device__ __forceinline__ void load(const char * columns, int column_size, int pair, int n_pairs) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            int2 words[N_BLOCK_INTS + 1] = {};
            if (pair < n_pairs) {
                const int2 * from = (const int2 *) (columns + n * column_size + pair * 2 * sizeof(block_q8_1));
#pragma unroll
                for (int i = 0; i <= N_BLOCK_INTS; ++i) {
                    words[i] = from[i];
                }
            }
            const int * all = (const int *) words;
#pragma unroll
            for (int b = 0; b < 2; ++b) {
                const int * block = all + b * (N_BLOCK_INTS + 1);

                scales[n][b] = __low2float(*(const half2 *) block);
#pragma unroll
                for (int i = 0; i < N_BLOCK_INTS; ++i) {
                    values[n][b * N_BLOCK_INTS + i] = block[1 + i];
                }
            }
        }
    }

    // with a lane's weights: scale, 32 values, scale, 32 values, of which only the second ones are aligned
    __device__ __forceinline__ void multiply(const int * weights, float (&sums)[N]) const {
        int dots[N][2] = {};

        int word = weights[0];

        const float first_scale = __half2float(__ushort_as_half((unsigned short) word));
#pragma unroll
        for (int i = 0; i < N_BLOCK_INTS; ++i) {
            const int next = weights[1 + i];
            const int w    = __byte_perm(word, next, 0x5432);
#pragma unroll
            for (int n = 0; n < N; ++n) {
                dots[n][0] = ggml_cuda_dp4a(w, values[n][i], dots[n][0]);
            }
            word = next;
        }
        const float second_scale = __half2float(__ushort_as_half((unsigned short) (word >> 16)));
#pragma unroll
        for (int i = 0; i < N_BLOCK_INTS; ++i) {
            const int w = weights[1 + N_BLOCK_INTS + i];
#pragma unroll
            for (int n = 0; n < N; ++n) {
                dots[n][1] = ggml_cuda_dp4a(w, values[n][N_BLOCK_INTS + i], dots[n][1]);
            }
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
            sums[n] = __fmul_rn(__fmul_rn(first_scale, scales[n][0]), (float) dots[n][0]);
            sums[n] = __fmaf_rn(__fmul_rn(second_scale, scales[n][1]), (float) dots[n][1], sums[n]);
        }
    }
};

static __device__ __forceinline__ void few_rows_copy(char * to, const char * from, int size, int copy_size, int lane) {
    if (copy_size == 16) {
#pragma unroll
        for (int i = 0; i < CHUNK_SIZE; i += WARP_SIZE * 16) {
            if (i + lane * 16 < size) {
                __pipeline_memcpy_async(to + i + lane * 16, from + i + lane * 16, 16);
            }
        }
    } else if (copy_size == 8) {
#pragma unroll 1
        for (int i = lane * 8; i < size; i += WARP_SIZE * 8) {
            __pipeline_memcpy_async(to + i, from + i, 8);
        }
    } else {
#pragma unroll 1
        for (int i = lane * 4; i < size; i += WARP_SIZE * 4) {
            __pipeline_memcpy_async(to + i, from + i, 4);
        }
    }
}

// The chunks that a warp takes, one below the other: of the matrix, or of matrix and gate in turn.
template <bool GATE> struct few_rows_place {
    int  row;
    int  slot    = 0; // in shared memory
    bool in_gate = false;

    __device__ __forceinline__ void advance(int n_teams) {
        slot    = slot + 1 < N_ON_ROAD ? slot + 1 : 0;
        in_gate = GATE && !in_gate;
        row += in_gate ? 0 : n_teams;
    }
};

// Matrix rows [blockIdx.x * n_block_rows, ...) with N columns. With experts blockIdx.y is one of all (token, place): the
// first, N-th, ... of those with the same expert takes N of them at once, the others have nothing to do.
template <int N, bool GATE>
__launch_bounds__(N_WARPS * WARP_SIZE, few_rows_resident(N)) static __global__
    void few_rows_kernel(const few_rows_product p) {
    extern __shared__ __align__(16) char shared[];

    const int warp     = threadIdx.x / WARP_SIZE;
    const int lane     = threadIdx.x % WARP_SIZE;
    const int n_chunks = p.n_chunks();
    const int n_teams  = p.n_teams();
    const int n_units  = n_chunks * n_teams; // of work: a chunk of a team's rows
    const int row_0    = blockIdx.x * p.n_block_rows;
    const int n_rows   = min(p.n_block_rows, p.n_rows - row_0);

    char * columns = shared;
    char * road    = columns + N * p.column_size + warp * N_ON_ROAD * CHUNK_SIZE;
    int *  routed =
        (int *) (columns + N * p.column_size + N_WARPS * N_ON_ROAD * CHUNK_SIZE); // a column's (token, place)
    float * partials = (float *) (routed + N);

    ggml_cuda_pdl_lc();

    int64_t expert_offset = 0;

    few_rows_place<GATE> next;
    const auto           fetch_next = [&](int chunk) {
        if (next.row < n_rows) {
            const int64_t offset = expert_offset + (row_0 + next.row) * p.row_stride + chunk * CHUNK_SIZE;
            const int     size   = min(CHUNK_SIZE, p.n_pairs * PAIR_SIZE - chunk * CHUNK_SIZE);
            few_rows_copy(road + next.slot * CHUNK_SIZE, (next.in_gate ? p.gate : p.matrix) + offset, size, p.copy_size,
                          lane);
            next.advance(n_teams);
        }
        __pipeline_commit();
    };
    const auto fetch_first = [&](int unit) {
        next = { unit < n_units ? unit / n_chunks : n_rows };
        for (int i = 0; i < N_ON_ROAD; ++i) {
            fetch_next(unit % n_chunks);
        }
    };

    int n_columns = N;
    if (!p.ids) {
        fetch_first(warp); // weights do not depend on what is still being computed
        ggml_cuda_pdl_sync();
    } else {
        ggml_cuda_pdl_sync();
        const int expert = p.ids[blockIdx.y / p.n_places * p.ids_stride + blockIdx.y % p.n_places];

        int n_before = 0;
        n_columns    = 0;
        for (int first = 0; first < p.n_tokens * p.n_places; first += WARP_SIZE) {
            const int  i = first + lane;
            const bool same =
                i < p.n_tokens * p.n_places && p.ids[i / p.n_places * p.ids_stride + i % p.n_places] == expert;

            const unsigned before = __ballot_sync(0xffffffff, same && i < blockIdx.y);
            const unsigned from   = __ballot_sync(0xffffffff, same && i >= blockIdx.y);
            const int      column = n_columns + __popc(from & ((1u << lane) - 1));
            if (warp == 0 && (from >> lane & 1) && column < N) {
                routed[column] = i;
            }
            n_before += __popc(before);
            n_columns += __popc(from);
        }
        if (n_before % N != 0) {
            return;
        }
        n_columns     = min(n_columns, N);
        expert_offset = expert * p.expert_stride;
        fetch_first(warp);
        __syncthreads();
    }

    // whole rows of activations, for all warps
    for (int k = threadIdx.x * 16; k < n_columns * p.column_size; k += N_WARPS * WARP_SIZE * 16) {
        const int n    = k / p.column_size;
        const int i    = p.ids ? routed[n] : 0;
        const int from = k - n * p.column_size;

        const char * column     = p.ids ? p.columns + i / p.n_places * p.column_stride +
                                              i % p.n_places % p.n_column_places * p.column_place_stride :
                                          p.columns + n * p.column_stride;
        *(int4 *) (columns + k) = *(const int4 *) (column + from);
    }
    __syncthreads();

    for (int unit = warp; unit < n_units; unit += N_WARPS) {
        if (unit != warp) {
            fetch_first(unit);
        }
        const int chunk = unit % n_chunks;
        const int pair  = chunk * N_CHUNK_PAIRS + lane;

        few_rows_activations<N> activations;
        activations.load(columns, p.column_size, pair, p.n_pairs);

        for (few_rows_place<GATE> place{ unit / n_chunks }; place.row < n_rows; place.advance(n_teams)) {
            __pipeline_wait_prior(N_ON_ROAD - 1);
            __syncwarp();
            float sums[N] = {};
            if (pair < p.n_pairs) {
                activations.multiply((const int *) (road + place.slot * CHUNK_SIZE) + lane * N_PAIR_WORDS, sums);
            }
            __syncwarp();
            fetch_next(chunk);

            const float sum = few_rows_sum<N>(sums, lane);
            const int   n   = lane / few_rows_lanes(N);
            if (lane % few_rows_lanes(N) == 0 && n < N) {
                partials[((place.in_gate * p.n_block_rows + place.row) * N + n) * n_chunks + chunk] = sum;
            }
        }
    }
    __syncthreads();

    for (int k = threadIdx.x; k < n_rows * n_columns; k += N_WARPS * WARP_SIZE) {
        const int row = k % n_rows;
        const int n   = k / n_rows;

        float results[GATE ? 2 : 1] = {};
        for (int m = 0; m < (GATE ? 2 : 1); ++m) {
            for (int chunk = 0; chunk < n_chunks; ++chunk) {
                results[m] += partials[((m * p.n_block_rows + row) * N + n) * n_chunks + chunk];
            }
        }
        if (p.bias) {
            results[0] += p.bias[n * p.bias_stride + row_0 + row];
        }
        if constexpr (GATE) {
            if (p.gate_bias) {
                results[1] += p.gate_bias[n * p.gate_bias_stride + row_0 + row];
            }
            results[0] = few_rows_glu(results[0], results[1], p.glu_op, p.glu_limit);
        }
        const int     i = p.ids ? routed[n] : 0;
        const int64_t to =
            p.ids ? i / p.n_places * p.dst_stride + i % p.n_places * p.dst_place_stride : n * p.dst_stride;
        p.dst[to + row_0 + row] = results[0];
    }
}

static size_t few_rows_shared_size(const few_rows_product & p, int n_columns, int n_matrices) {
    return n_columns * (p.column_size + sizeof(int)) + N_WARPS * N_ON_ROAD * CHUNK_SIZE +
           n_matrices * p.n_block_rows * n_columns * p.n_chunks() * sizeof(float);
}

template <int N, bool GATE> static void few_rows_launch(few_rows_product & p, cudaStream_t stream) {
    const auto & device   = ggml_cuda_info().devices[ggml_cuda_get_device()];
    const int    n_teams  = p.n_teams();
    const int    n_routed = p.ids ? p.n_tokens * p.n_places : 1;

    // as many blocks as the device holds at a time, or a multiple of that
    static constexpr size_t RESERVED   = 1024; // shared memory that each block has beside its own
    int                     n_resident = few_rows_resident(N) + 1;
    size_t                  size;
    do {
        const int n_blocks = device.nsm * --n_resident;
        const int n_waves  = (p.n_rows * n_routed + n_blocks * N_ROWS_MAX - 1) / (n_blocks * N_ROWS_MAX);
        const int n_shares = std::max(1, n_blocks * n_waves / n_routed);
        const int n        = (p.n_rows + n_shares - 1) / n_shares;

        p.n_block_rows = std::min(N_ROWS_MAX, (n + n_teams - 1) / n_teams * n_teams);
        size           = few_rows_shared_size(p, N, GATE ? 2 : 1);
    } while (n_resident > 1 && n_resident * (size + RESERVED) > device.smpbo + RESERVED);

    CUDA_SET_SHARED_MEMORY_LIMIT((few_rows_kernel<N, GATE>), device.smpbo);
    const dim3 grid((p.n_rows + p.n_block_rows - 1) / p.n_block_rows, n_routed);
    ggml_cuda_kernel_launch(few_rows_kernel<N, GATE>,
                            ggml_cuda_kernel_launch_params(grid, N_WARPS * WARP_SIZE, size, stream), p);
}

template <int N> static void few_rows_launch(few_rows_product & p, cudaStream_t stream) {
    p.gate ? few_rows_launch<N, true>(p, stream) : few_rows_launch<N, false>(p, stream);
}

static constexpr decltype(&few_rows_launch<1>) FEW_ROWS_LAUNCH[MMVQ_MAX_BATCH_SIZE] = {
    few_rows_launch<1>, few_rows_launch<2>, few_rows_launch<3>, few_rows_launch<4>,
    few_rows_launch<5>, few_rows_launch<6>, few_rows_launch<7>, few_rows_launch<8>,
};

// of a tensor that has values for each row of activations, or the same ones for all
static int64_t few_rows_stride(const ggml_tensor * bias) {
    return bias->ne[1] == 1 ? 0 : bias->nb[1] / sizeof(float);
}

static few_rows_product few_rows_describe(const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                                          const ggml_cuda_mm_fusion_args_host * fusion, const ggml_tensor * dst) {
    few_rows_product p = {};
    p.matrix           = (const char *) src0->data;
    p.dst              = (float *) dst->data;
    p.ids              = ids ? (const int32_t *) ids->data : nullptr;
    if (fusion) {
        p.glu_op    = fusion->glu_op;
        p.glu_limit = fusion->glu_limit;
    }
    if (fusion && fusion->gate) {
        p.gate = (const char *) fusion->gate->data;
    }
    if (fusion && fusion->x_bias) {
        p.bias        = (const float *) fusion->x_bias->data;
        p.bias_stride = few_rows_stride(fusion->x_bias);
    }
    if (fusion && fusion->gate_bias) {
        p.gate_bias        = (const float *) fusion->gate_bias->data;
        p.gate_bias_stride = few_rows_stride(fusion->gate_bias);
    }

    const size_t together = (size_t) p.matrix | (size_t) p.gate | src0->nb[1] | (ids ? src0->nb[2] : 0);
    p.copy_size           = together % 16 == 0 ? 16 : together % 8 == 0 ? 8 : 4;

    p.n_pairs         = src0->ne[0] / N_PAIR;
    p.n_rows          = src0->ne[1];
    p.n_block_rows    = N_ROWS_MAX;
    p.column_size     = GGML_PAD(p.n_pairs * 2 * sizeof(block_q8_1), 16);
    p.n_tokens        = ids ? dst->ne[2] : dst->ne[1];
    p.n_places        = ids ? dst->ne[1] : 1;
    p.n_column_places = ids ? src1->ne[1] : 1;
    p.ids_stride      = ids ? ids->nb[1] / sizeof(int32_t) : 0;

    const int64_t column_size = GGML_PAD(src1->ne[0], MATRIX_ROW_PADDING) / QK8_1 * sizeof(block_q8_1);

    p.row_stride          = src0->nb[1];
    p.expert_stride       = src0->nb[2];
    p.column_stride       = ids ? src1->ne[1] * column_size : column_size;
    p.column_place_stride = column_size;
    p.dst_stride          = (ids ? dst->nb[2] : dst->nb[1]) / sizeof(float);
    p.dst_place_stride    = dst->nb[1] / sizeof(float);
    return p;
}

bool mtp_cuda_few_rows_can(const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                           const ggml_cuda_mm_fusion_args_host * fusion, const ggml_tensor * dst) {
    const auto & device = ggml_cuda_info().devices[ggml_cuda_get_device()];

    const bool is_marked = dst->flags & GGML_TENSOR_FLAG_SINGLE_ROWS;
    const bool is_plain  = src0->ne[2] == 1 && src1->ne[2] == 1 && src0->ne[3] == 1 && src1->ne[3] == 1;
    const bool has_bias  = fusion && (fusion->x_bias || fusion->gate_bias);
    return is_marked && src0->type == GGML_TYPE_Q8_0 && src0->ne[0] % N_PAIR == 0 && (ids ? !has_bias : is_plain) &&
           ggml_backend_buffer_get_usage(src0->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
           device.cc >= GGML_CUDA_CC_AMPERE && device.smpbo >= SHARED_SIZE_MIN &&
           few_rows_shared_size(few_rows_describe(src0, src1, ids, fusion, dst), N_COLUMNS_FIT, 2) <= device.smpbo;
}

void mtp_cuda_few_rows(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                       const void * quantized, const ggml_tensor * ids, const ggml_cuda_mm_fusion_args_host * fusion,
                       ggml_tensor * dst) {
    few_rows_product p = few_rows_describe(src0, src1, ids, fusion, dst);
    p.columns          = (const char *) quantized;

    if (ids) { // few tokens have the same expert
        FEW_ROWS_LAUNCH[std::min(N_COLUMNS_FIT, p.n_tokens) - 1](p, ctx.stream());
        return;
    }
    const bool fit   = few_rows_shared_size(p, p.n_tokens, 2) <= ggml_cuda_info().devices[ctx.device].smpbo;
    const int  n_max = fit ? p.n_tokens : N_COLUMNS_FIT;
    for (int first = 0; first < p.n_tokens; first += n_max) {
        few_rows_product part = p;
        part.columns += first * p.column_stride;
        part.dst += first * p.dst_stride;
        part.bias += p.bias ? first * p.bias_stride : 0;
        part.gate_bias += p.gate_bias ? first * p.gate_bias_stride : 0;
        FEW_ROWS_LAUNCH[std::min(n_max, p.n_tokens - first) - 1](part, ctx.stream());
    }
}
