#pragma once

// A product of a quantized matrix with few rows of activations, for all types of weights (cuda-few-rows-types.cuh).
//
// A warp takes a chunk of a matrix row, 2048 values, 64 for a lane. It keeps the chunk of all rows of activations in
// registers and goes down the matrix, so that each weight is read and unpacked once. Weights arrive in shared memory as
// they lie, several chunks on the road at a time; the sums of a matrix row's chunks are added in the end.
//
// Knows device code alone, so that tests can run it on a CPU (native/tests/test-cuda-kernels.cpp): whoever includes it
// has CUDA's functions, or others of the same names.

#include "cuda-few-rows-types.cuh"
#include "ggml.h"

#include <algorithm>

static constexpr int FEW_ROWS_LANES      = 32;
static constexpr int FEW_ROWS_WARPS      = 8;   // at most
static constexpr int FEW_ROWS_ON_ROAD    = 3;   // chunks that a warp waits for at the same time
static constexpr int FEW_ROWS_ROWS_MAX   = 128; // matrix rows of a thread block
static constexpr int FEW_ROWS_Y_SIZE     = 36;  // a block of activations: scale, sum, 32 values
static constexpr int FEW_ROWS_CHUNK      = FEW_ROWS_LANES * FEW_ROWS_PART;
static constexpr int FEW_ROWS_STAGE_SIZE = FEW_ROWS_CHUNK / 32 * FEW_ROWS_Y_SIZE;
static constexpr int FEW_ROWS_COPY       = 16; // bytes that a lane copies at a time
static constexpr int FEW_ROWS_TOGETHER   = 4;  // matrices of a product

// bytes of a chunk, and of its place in shared memory: it is copied with what lies around it in aligned 16 bytes
template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_chunk_size() {
    return FEW_ROWS_CHUNK / T::N_VALUES * T::SIZE;
}

template <class T> static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_slot_size() {
    return few_rows_chunk_size<T>() + FEW_ROWS_COPY;
}

// thread blocks of a multiprocessor for which there are registers, if they have n columns
static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_resident(int n) {
    return n == 1 ? 4 : n == 2 ? 3 : n <= 4 ? 2 : 1;
}

// One of the matrices that the same rows of activations are multiplied with
struct few_rows_matrix {
    const char * data;
    float *      dst;
    int64_t      dst_stride;  // in elements
    int          n_rows;
    int          first_block; // of the thread blocks that take it
};

// columns: rows of activations. Sizes and strides in bytes unless named otherwise.
struct few_rows_product {
    few_rows_matrix matrices[FEW_ROWS_TOGETHER]; // of the same type; several only without experts, gate and biases
    int             n_matrices;
    int             n_blocks;                    // thread blocks of all of them

    const char *    gate;                        // nullptr: none
    const float *   bias;                        // nullptr: none
    const float *   gate_bias;                   // nullptr: none
    const char *    columns;
    const int32_t * ids;                         // nullptr: not a product with experts

    ggml_glu_op glu_op;
    float       glu_limit;

    int n_parts; // of a matrix row: 64 values each
    int n_block_rows;
    int n_warps;
    int column_size;
    int n_tokens;
    int n_places;   // experts of a token
    int n_column_places;
    int ids_stride; // in elements

    int64_t row_stride;
    int64_t expert_stride;
    int64_t column_stride;
    int64_t column_place_stride;
    int64_t dst_place_stride; // this and all below in elements
    int64_t bias_stride;
    int64_t gate_bias_stride;
};

// How a thread block divides its work: chunks side by side in a matrix row, and warps that take the same chunk of
// different rows.
struct few_rows_shape {
    int n_chunks;
    int n_teams;

    FEW_ROWS_HOST_FUNCTION few_rows_shape(const few_rows_product & p) :
        n_chunks((p.n_parts + FEW_ROWS_LANES - 1) / FEW_ROWS_LANES),
        n_teams(n_chunks < p.n_warps ? p.n_warps / n_chunks : 1) {}

    // whether warps load activations once only, before any of them has sums to leave: the same memory does for both
    FEW_ROWS_HOST_FUNCTION bool loads_once(const few_rows_product & p) const { return n_chunks <= p.n_warps; }
};

// What lies in shared memory: chunks of weights, and activations on their way to registers, later a block's sums
template <class T> struct few_rows_memory {
    size_t stages;
    size_t partials;
    size_t routed; // a column's (token, place)
    size_t size;

    FEW_ROWS_HOST_FUNCTION few_rows_memory(const few_rows_product & p, int n_columns, bool has_gate) {
        const few_rows_shape shape(p);
        const size_t         stages_size = (size_t) p.n_warps * FEW_ROWS_STAGE_SIZE;
        const size_t partials_size = sizeof(float) * (has_gate ? 2 : 1) * p.n_block_rows * n_columns * shape.n_chunks;

        stages             = (size_t) p.n_warps * FEW_ROWS_ON_ROAD * few_rows_slot_size<T>();
        partials           = stages + (shape.loads_once(p) ? 0 : stages_size);
        const size_t later = partials + partials_size;
        routed             = later > stages + stages_size ? later : stages + stages_size;
        size               = routed + sizeof(int) * n_columns;
    }
};

static FEW_ROWS_FUNCTION float few_rows_glu(float up, float gate, ggml_glu_op op, float limit) {
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
static constexpr FEW_ROWS_HOST_FUNCTION int few_rows_lanes(int n) {
    return n == 1 ? 32 : n == 2 ? 16 : n <= 4 ? 8 : 4;
}

template <int N> static FEW_ROWS_FUNCTION float few_rows_sum(const float (&values)[N], int lane) {
    constexpr int n_lanes = few_rows_lanes(N);

    float kept[FEW_ROWS_LANES / n_lanes];
    FEW_ROWS_UNROLL
    for (int i = 0; i < FEW_ROWS_LANES / n_lanes; ++i) {
        kept[i] = i < N ? values[i] : 0.0f;
    }
    FEW_ROWS_UNROLL
    for (int distance = FEW_ROWS_LANES / 2; distance >= n_lanes; distance /= 2) {
        const bool upper = lane & distance;
        const int  half  = distance / n_lanes;
        FEW_ROWS_UNROLL
        for (int i = 0; i < half; ++i) {
            const float passed = upper ? kept[i] : kept[i + half];
            kept[i]            = (upper ? kept[i + half] : kept[i]) + __shfl_xor_sync(0xffffffff, passed, distance);
        }
    }
    FEW_ROWS_UNROLL
    for (int distance = n_lanes / 2; distance > 0; distance /= 2) {
        kept[0] += __shfl_xor_sync(0xffffffff, kept[0], distance);
    }
    return kept[0];
}

// A lane's activations: two blocks of each column. Those after the end of a row are 0.
template <class T, int N> struct few_rows_activations {
    static constexpr int N_GROUPS = 32 / T::GROUP; // of a block

    int   values[N][2][FEW_ROWS_WORDS];
    float scales[N][2];
    int   begin[N][2][N_GROUPS]; // of the sums: what OFFSET makes too much
    float sums[N][2];            // for minima

    // columns: of this chunk, N of them; of each size bytes
    FEW_ROWS_FUNCTION void load(const char * const (&columns)[N], int size, char * stage, int lane) {
        constexpr int N_TURNS =
            (FEW_ROWS_STAGE_SIZE + FEW_ROWS_LANES * FEW_ROWS_COPY - 1) / (FEW_ROWS_LANES * FEW_ROWS_COPY);

        few_rows_4_words raw[N][N_TURNS]; // all are on the road before the first one is needed
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            FEW_ROWS_UNROLL
            for (int i = 0; i < N_TURNS; ++i) {
                const int at = (i * FEW_ROWS_LANES + lane) * FEW_ROWS_COPY;
                raw[n][i] =
                    columns[n] && at < size ? *(const few_rows_4_words *) (columns[n] + at) : few_rows_4_words{};
            }
        }
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            __syncwarp();
            FEW_ROWS_UNROLL
            for (int i = 0; i < N_TURNS; ++i) {
                const int at = (i * FEW_ROWS_LANES + lane) * FEW_ROWS_COPY;
                if (at < FEW_ROWS_STAGE_SIZE) {
                    *(few_rows_4_words *) (stage + at) = raw[n][i];
                }
            }
            __syncwarp();
            constexpr int n_lanes = T::N_VALUES / FEW_ROWS_PART; // that have a block of weights together
            FEW_ROWS_UNROLL
            for (int b = 0; b < 2; ++b) {
                const int   block = lane / n_lanes * (T::N_VALUES / 32) + T::activations(lane % n_lanes, b);
                const int * words = (const int *) (stage + block * FEW_ROWS_Y_SIZE);
                const float scale = few_rows_half(words[0]);
                int         sum   = 0;
                FEW_ROWS_UNROLL
                for (int g = 0; g < N_GROUPS; ++g) {
                    int group_sum = 0;
                    FEW_ROWS_UNROLL
                    for (int i = g * T::GROUP / 4; i < (g + 1) * T::GROUP / 4; ++i) {
                        values[n][b][i] = words[1 + i];
                        group_sum       = ggml_cuda_dp4a(0x01010101, words[1 + i], group_sum);
                    }
                    begin[n][b][g] = -T::OFFSET * group_sum;
                    sum += group_sum;
                }
                scales[n][b] = scale;
                sums[n][b]   = __fmul_rn(scale, (float) sum);
            }
        }
    }

    FEW_ROWS_FUNCTION void multiply(const char * block, int part, float (&results)[N]) const {
        const T weights(block, part);
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            int unpacked[FEW_ROWS_WORDS];
            weights.unpack(b, unpacked);

            int dots[N][N_GROUPS];
            FEW_ROWS_UNROLL
            for (int n = 0; n < N; ++n) {
                FEW_ROWS_UNROLL
                for (int g = 0; g < N_GROUPS; ++g) {
                    dots[n][g] = T::OFFSET ? begin[n][b][g] : 0;
                }
            }
            FEW_ROWS_UNROLL
            for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
                FEW_ROWS_UNROLL
                for (int n = 0; n < N; ++n) {
                    int & dot = dots[n][i * 4 / T::GROUP];
                    dot       = ggml_cuda_dp4a(unpacked[i], values[n][b][i], dot);
                }
            }
            if constexpr (T::GROUP == 32) {
                const float factor = weights.factor(b);
                FEW_ROWS_UNROLL
                for (int n = 0; n < N; ++n) {
                    results[n] = __fmaf_rn(__fmul_rn(factor, scales[n][b]), (float) dots[n][0], results[n]);
                }
            } else {
                const int first  = weights.scale(b, 0);
                const int second = weights.scale(b, 1);
                FEW_ROWS_UNROLL
                for (int n = 0; n < N; ++n) {
                    const int dot = first * dots[n][0] + second * dots[n][1];
                    results[n]    = __fmaf_rn(scales[n][b], (float) dot, results[n]);
                }
            }
            if constexpr (T::HAS_MIN) {
                const float min = -weights.min(b);
                FEW_ROWS_UNROLL
                for (int n = 0; n < N; ++n) {
                    results[n] = __fmaf_rn(min, sums[n][b], results[n]);
                }
            }
        }
        if constexpr (T::GROUP == 16) {
            const float factor = weights.factor();
            FEW_ROWS_UNROLL
            for (int n = 0; n < N; ++n) {
                results[n] = __fmul_rn(factor, results[n]);
            }
        }
    }
};

// The chunks that a warp takes, one below the other: of the matrix, or of matrix and gate in turn.
template <bool GATE> struct few_rows_place {
    int  row;
    int  slot    = 0; // in shared memory
    bool in_gate = false;

    FEW_ROWS_FUNCTION few_rows_place(int row) : row(row) {}

    FEW_ROWS_FUNCTION void advance(int n_teams) {
        slot    = slot + 1 < FEW_ROWS_ON_ROAD ? slot + 1 : 0;
        in_gate = GATE && !in_gate;
        row += in_gate ? 0 : n_teams;
    }
};

// n_block_rows of a matrix, one thread block after the other, with N columns. With experts blockIdx.y is one of all (token, place): the
// first, N-th, ... of those with the same expert takes N of them at once, the others have nothing to do.
template <class T, int N, bool GATE>
FEW_ROWS_LAUNCH_BOUNDS(FEW_ROWS_WARPS * FEW_ROWS_LANES, few_rows_resident(N))
static FEW_ROWS_KERNEL void few_rows_kernel(const few_rows_product p) {
    FEW_ROWS_SHARED(shared);

    constexpr int CHUNK_SIZE = few_rows_chunk_size<T>();
    constexpr int SLOT_SIZE  = few_rows_slot_size<T>();

    const few_rows_shape     shape(p);
    const few_rows_memory<T> memory(p, N, GATE);

    const int warp     = threadIdx.x / FEW_ROWS_LANES;
    const int lane     = threadIdx.x % FEW_ROWS_LANES;
    const int n_chunks = shape.n_chunks;
    const int n_teams  = shape.n_teams;
    const int n_units  = n_chunks * n_teams; // of work: a chunk of a team's rows
    int       m        = 0;
    while (m + 1 < p.n_matrices && (int) blockIdx.x >= p.matrices[m + 1].first_block) {
        ++m;
    }
    const few_rows_matrix & matrix  = p.matrices[m];
    const int               row_0   = (blockIdx.x - matrix.first_block) * p.n_block_rows;
    const int               n_rows  = min(p.n_block_rows, matrix.n_rows - row_0);
    const int               n_turns = (n_units + p.n_warps - 1) / p.n_warps;

    char *  road     = shared + warp * FEW_ROWS_ON_ROAD * SLOT_SIZE;
    char *  stage    = shared + memory.stages + warp * FEW_ROWS_STAGE_SIZE;
    float * partials = (float *) (shared + memory.partials);
    int *   routed   = (int *) (shared + memory.routed);

    ggml_cuda_pdl_lc();

    int64_t expert_offset = 0;

    few_rows_place<GATE> next(0);
    // where a chunk begins; it is copied from the 16 bytes on that hold its beginning
    const auto           address = [&](const few_rows_place<GATE> & place, int chunk) {
        return (place.in_gate ? p.gate : matrix.data) + expert_offset + (row_0 + place.row) * p.row_stride +
               chunk * CHUNK_SIZE;
    };
    const auto before = [](const char * from) {
        return (int) ((uintptr_t) from % FEW_ROWS_COPY);
    };

    const auto fetch_next = [&](int chunk) {
        if (next.row < n_rows) {
            const char * from = address(next, chunk);
            const int    n    = min(FEW_ROWS_LANES, p.n_parts - chunk * FEW_ROWS_LANES);
            const int    size = before(from) + n * FEW_ROWS_PART / T::N_VALUES * T::SIZE;
            char *       to   = road + next.slot * SLOT_SIZE;
            from -= before(from);
            FEW_ROWS_UNROLL
            for (int i = 0; i < SLOT_SIZE; i += FEW_ROWS_LANES * FEW_ROWS_COPY) {
                const int at = i + lane * FEW_ROWS_COPY;
                if (at < size) {
                    __pipeline_memcpy_async(to + at, from + at, FEW_ROWS_COPY);
                }
            }
            next.advance(n_teams);
        }
        __pipeline_commit();
    };
    const auto fetch_first = [&](int unit) {
        next = few_rows_place<GATE>(unit < n_units ? unit / n_chunks : n_rows);
        for (int i = 0; i < FEW_ROWS_ON_ROAD; ++i) {
            fetch_next(unit % n_chunks);
        }
    };

    int n_columns = N;
    if (!p.ids) {
        fetch_first(warp); // weights do not depend on what is still being computed
        n_columns = min(N, p.n_tokens);
        ggml_cuda_pdl_sync();
    } else {
        ggml_cuda_pdl_sync();
        const int expert = p.ids[blockIdx.y / p.n_places * p.ids_stride + blockIdx.y % p.n_places];

        int n_before = 0;
        n_columns    = 0;
        for (int first = 0; first < p.n_tokens * p.n_places; first += FEW_ROWS_LANES) {
            const int  i = first + lane;
            const bool same =
                i < p.n_tokens * p.n_places && p.ids[i / p.n_places * p.ids_stride + i % p.n_places] == expert;

            const unsigned earlier = __ballot_sync(0xffffffff, same && i < (int) blockIdx.y);
            const unsigned others  = __ballot_sync(0xffffffff, same && i >= (int) blockIdx.y);
            const int      column  = n_columns + __popc(others & ((1u << lane) - 1));
            if (warp == 0 && (others >> lane & 1) && column < N) {
                routed[column] = i;
            }
            n_before += __popc(earlier);
            n_columns += __popc(others);
        }
        if (n_before % N != 0) {
            return;
        }
        n_columns     = min(n_columns, N);
        expert_offset = expert * p.expert_stride;
        fetch_first(warp);
        __syncthreads();
    }

    for (int turn = 0; turn < n_turns; ++turn) {
        const int unit = turn * p.n_warps + warp;
        if (turn > 0) {
            fetch_first(unit);
        }
        const int chunk = unit % n_chunks;
        const int part  = chunk * FEW_ROWS_LANES + lane;

        few_rows_activations<T, N> activations;
        {
            const char * columns[N];
            FEW_ROWS_UNROLL
            for (int n = 0; n < N; ++n) {
                const int i = p.ids && n < n_columns ? routed[n] : 0;
                columns[n]  = n >= n_columns ? nullptr :
                              p.ids          ? p.columns + i / p.n_places * p.column_stride +
                                                   i % p.n_places % p.n_column_places * p.column_place_stride :
                                               p.columns + n * p.column_stride;
                columns[n] += columns[n] ? chunk * FEW_ROWS_STAGE_SIZE : 0;
            }
            activations.load(columns, p.column_size - chunk * FEW_ROWS_STAGE_SIZE, stage, lane);
        }
        if (turn == 0) {
            __syncthreads();                                 // sums may lie where activations did
        }
        constexpr int n_lanes = T::N_VALUES / FEW_ROWS_PART; // that have a block of weights together

        for (few_rows_place<GATE> place(unit < n_units ? unit / n_chunks : n_rows); place.row < n_rows;
             place.advance(n_teams)) {
            __pipeline_wait_prior(FEW_ROWS_ON_ROAD - 1);
            __syncwarp();
            float sums[N] = {};
            if (part < p.n_parts) {
                const char * weights = road + place.slot * SLOT_SIZE + before(address(place, chunk));
                activations.multiply(weights + lane / n_lanes * T::SIZE, lane % n_lanes, sums);
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

    for (int at = threadIdx.x; at < n_rows * n_columns; at += p.n_warps * FEW_ROWS_LANES) {
        const int row = at % n_rows;
        const int n   = at / n_rows;

        float results[GATE ? 2 : 1] = {};
        for (int k = 0; k < (GATE ? 2 : 1); ++k) {
            for (int chunk = 0; chunk < n_chunks; ++chunk) {
                results[k] += partials[((k * p.n_block_rows + row) * N + n) * n_chunks + chunk];
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
            p.ids ? i / p.n_places * matrix.dst_stride + i % p.n_places * p.dst_place_stride : n * matrix.dst_stride;
        matrix.dst[to + row_0 + row] = results[0];
    }
}

// --- on the host ---

// a device as products see it
struct few_rows_device {
    int    n_multiprocessors;
    size_t shared_size; // of a thread block
};

static constexpr int FEW_ROWS_COLUMNS_MAX = 8;
static constexpr int FEW_ROWS_ROWS_MIN    = 16; // matrix rows of a thread block, rather than which it has fewer warps

// Gives each matrix its thread blocks, of n_block_rows each; returns how many they are.
static inline int few_rows_place_blocks(few_rows_product & p) {
    p.n_blocks = 0;
    for (int m = 0; m < p.n_matrices; ++m) {
        p.matrices[m].first_block = p.n_blocks;
        p.n_blocks += (p.matrices[m].n_rows + p.n_block_rows - 1) / p.n_block_rows;
    }
    return p.n_blocks;
}

// Divides a product among thread blocks: as many as the device holds at a time, or a multiple of that. false: it has too
// little shared memory.
template <class T>
static bool few_rows_divide(few_rows_product & p, int n_columns, bool has_gate, const few_rows_device & device) {
    static constexpr size_t RESERVED = 1024; // shared memory that each block has beside its own

    const int  n_routed = p.ids ? p.n_tokens * p.n_places : 1;
    const auto fits     = [&](int n_blocks) {
        const size_t size = few_rows_memory<T>(p, n_columns, has_gate).size;
        few_rows_place_blocks(p);
        return n_blocks * (size + RESERVED) <= device.shared_size + RESERVED;
    };
    int n_rows = 0;
    for (int m = 0; m < p.n_matrices; ++m) {
        n_rows += p.matrices[m].n_rows;
    }
    for (p.n_warps = FEW_ROWS_WARPS; p.n_warps > 1; p.n_warps /= 2) {
        const int n_teams = few_rows_shape(p).n_teams;
        for (int n_resident = few_rows_resident(n_columns); n_resident > 0; --n_resident) {
            const int n_blocks = device.n_multiprocessors * n_resident;
            const int n_waves = (n_rows * n_routed + n_blocks * FEW_ROWS_ROWS_MAX - 1) / (n_blocks * FEW_ROWS_ROWS_MAX);
            const int n_shares = std::max(1, n_blocks * n_waves / n_routed);
            const int n        = (n_rows + n_shares - 1) / n_shares;

            p.n_block_rows = std::min(FEW_ROWS_ROWS_MAX, (n + n_teams - 1) / n_teams * n_teams);
            while (few_rows_place_blocks(p) > n_shares && p.n_block_rows + n_teams <= FEW_ROWS_ROWS_MAX) {
                p.n_block_rows += n_teams; // a block takes rows of one matrix
            }
            if (fits(n_resident)) {
                return true;
            }
        }
        for (p.n_block_rows /= 2; p.n_block_rows >= FEW_ROWS_ROWS_MIN; p.n_block_rows /= 2) {
            if (fits(1)) {
                return true;
            }
        }
    }
    return false;
}

// columns of the kernel that takes a product's rows of activations: with experts few tokens have the same one
static inline int few_rows_columns(int n_tokens, bool has_experts) {
    const int n = has_experts ? std::min(4, n_tokens) : n_tokens;
    return n <= 4 ? n : n <= 6 ? 6 : 8;
}
