#pragma once

// A product of a quantized matrix with few rows of activations, for all types of weights (cuda-few-rows-types.cuh).
//
// A warp takes a chunk of a matrix row, 2048 values, 64 for a lane. It keeps the chunk of all rows of activations in
// registers and goes down the matrix, so that each weight is read and unpacked once. Weights arrive in shared memory as
// they are in the matrix, several chunks in flight at a time; the sums of a matrix row's chunks are added in the end.
//
// Knows device code alone, so that tests can run it on a CPU (native/tests/test-cuda-kernels.cpp): whoever includes it
// has CUDA's functions, or others of the same names.

#include "cuda-few-rows-product.cuh"

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

// Finishes a sum of the n-th row of activations: adds biases and, with a gate, applies the GLU (else `gate` is ignored).
template <bool GATE>
static FEW_ROWS_FUNCTION float few_rows_finish(const few_rows_product & p, const few_rows_matrix & matrix, int n,
                                               int row, float result, float gate) {
    if (matrix.bias) {
        result += matrix.bias[n * matrix.bias_stride + row];
    }
    if constexpr (GATE) {
        if (p.gate_bias) {
            gate += p.gate_bias[n * p.gate_bias_stride + row];
        }
        result = few_rows_glu(result, gate, p.glu_op, p.glu_limit);
    }
    return result;
}

// The sums over all lanes of N values: value n ends in lanes from 4 * n on. Of the lanes that have the same quarter of 256
// values, one after the other is added, then the quarters: an order that does not depend on N, and in which the kernel
// for more rows (cuda-more-rows-kernel.cuh) can add as well. scratch: of FEW_ROWS_SUM_SIZE * N bytes.
template <int N> static FEW_ROWS_FUNCTION float few_rows_sum(const float (&values)[N], char * scratch, int lane) {
    constexpr int n_rounds = FEW_ROWS_LANES / FEW_ROWS_QUARTERS;
    const int     quarter  = lane % FEW_ROWS_QUARTERS;

    FEW_ROWS_UNROLL
    for (int n = 0; n < N; ++n) {
        *(float *) (scratch + n * FEW_ROWS_SUM_SIZE + 4 * (quarter * n_rounds + lane / FEW_ROWS_QUARTERS)) = values[n];
    }
    __syncwarp();
    int all[n_rounds] = {};
    if (lane < N * FEW_ROWS_QUARTERS) {
        few_rows_load<16>(all, scratch + lane / FEW_ROWS_QUARTERS * FEW_ROWS_SUM_SIZE + 4 * quarter * n_rounds);
    }
    float sum = 0.0f;
    FEW_ROWS_UNROLL
    for (int i = 0; i < n_rounds; ++i) {
        sum += __int_as_float(all[i]);
    }
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    return sum;
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

        few_rows_words<4> raw[N][N_TURNS]; // all are in flight before the first one is needed
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            FEW_ROWS_UNROLL
            for (int i = 0; i < N_TURNS; ++i) {
                const int at = (i * FEW_ROWS_LANES + lane) * FEW_ROWS_COPY;
                raw[n][i] =
                    columns[n] && at < size ? *(const few_rows_words<4> *) (columns[n] + at) : few_rows_words<4>{};
            }
        }
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            __syncwarp();
            FEW_ROWS_UNROLL
            for (int i = 0; i < N_TURNS; ++i) {
                const int at = (i * FEW_ROWS_LANES + lane) * FEW_ROWS_COPY;
                if (at < FEW_ROWS_STAGE_SIZE) {
                    *(few_rows_words<4> *) (stage + at) = raw[n][i];
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
                    results[n] = __fmaf_rn(factor, __fmul_rn(scales[n][b], (float) dots[n][0]), results[n]);
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
        slot    = slot + 1 < FEW_ROWS_IN_FLIGHT ? slot + 1 : 0;
        in_gate = GATE && !in_gate;
        row += in_gate ? 0 : n_teams;
    }
};

// A warp's way down the matrix: where its chunks are, and those that are in flight to shared memory.
template <class T, bool GATE> struct few_rows_stream {
    static constexpr int CHUNK_SIZE = few_rows_chunk_size<T>();
    static constexpr int SLOT_SIZE  = few_rows_slot_size<T>();

    const few_rows_product & p;
    const few_rows_matrix &  matrix;
    const few_rows_shape &   shape;
    const int                lane;
    const int                row_0; // of the thread block
    const int                n_rows;
    char * const             staging;
    int64_t                  expert_offset = 0;
    few_rows_place<GATE>     next{ 0 };

    FEW_ROWS_FUNCTION few_rows_stream(const few_rows_product & p, const few_rows_matrix & matrix,
                                      const few_rows_shape & shape, char * staging, int lane) :
        p(p), matrix(matrix), shape(shape), lane(lane), row_0((blockIdx.x - matrix.first_block) * p.n_block_rows),
        n_rows(min(p.n_block_rows, matrix.n_rows - row_0)), staging(staging) {}

    // where the rows of a unit of work begin
    FEW_ROWS_FUNCTION few_rows_place<GATE> first(int unit) const {
        return few_rows_place<GATE>(unit < shape.n_chunks * shape.n_teams ? unit / shape.n_chunks : n_rows);
    }

    // where a chunk begins; it is copied from the 16 bytes on that hold its beginning
    FEW_ROWS_FUNCTION const char * address(const few_rows_place<GATE> & place, int chunk) const {
        return (place.in_gate ? p.gate : matrix.data) + expert_offset + (row_0 + place.row) * p.row_stride +
               chunk * CHUNK_SIZE;
    }

    static FEW_ROWS_FUNCTION int before(const char * from) { return (int) ((uintptr_t) from % FEW_ROWS_COPY); }

    // a chunk that has arrived
    FEW_ROWS_FUNCTION const char * arrived(const few_rows_place<GATE> & place, int chunk) const {
        return staging + place.slot * SLOT_SIZE + before(address(place, chunk));
    }

    FEW_ROWS_FUNCTION void fetch_next(int chunk) {
        if (next.row < n_rows) {
            const char * from = address(next, chunk);
            const int    n    = min(FEW_ROWS_LANES, p.n_parts - chunk * FEW_ROWS_LANES);
            const int    size = before(from) + n * FEW_ROWS_PART / T::N_VALUES * T::SIZE;
            char *       to   = staging + next.slot * SLOT_SIZE;
            from -= before(from);
            FEW_ROWS_UNROLL
            for (int i = 0; i < SLOT_SIZE; i += FEW_ROWS_LANES * FEW_ROWS_COPY) {
                const int at = i + lane * FEW_ROWS_COPY;
                if (at < size) {
                    __pipeline_memcpy_async(to + at, from + at, FEW_ROWS_COPY);
                }
            }
            next.advance(shape.n_teams);
        }
        __pipeline_commit();
    }

    FEW_ROWS_FUNCTION void fetch_first(int unit) {
        next = first(unit);
        for (int i = 0; i < FEW_ROWS_IN_FLIGHT; ++i) {
            fetch_next(unit % shape.n_chunks);
        }
    }
};

// The (token, place)s from this thread block's on that have its expert: the first N go to `routed`, n_columns becomes
// how many they are. False: another thread block takes this one.
template <int N>
static FEW_ROWS_FUNCTION bool few_rows_route(const few_rows_product & p, int expert, int warp, int lane, int * routed,
                                             int & n_columns) {
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
    n_columns = min(n_columns, N);
    return n_before % N == 0;
}

// a chunk of each column; nullptr for those that there are not
template <int N>
static FEW_ROWS_FUNCTION void few_rows_find_columns(const few_rows_product & p, const int * routed, int n_columns,
                                                    int chunk, const char * (&columns)[N]) {
    FEW_ROWS_UNROLL
    for (int n = 0; n < N; ++n) {
        const int i = p.ids && n < n_columns ? routed[n] : 0;
        columns[n]  = n >= n_columns ? nullptr :
                      p.ids          ? p.columns + i / p.n_places * p.column_stride +
                                           i % p.n_places % p.n_column_places * p.column_place_stride :
                                       p.columns + n * p.column_stride;
        columns[n] += columns[n] ? chunk * FEW_ROWS_STAGE_SIZE : 0;
    }
}

// where the results of a column begin; with experts, one of all (token, place)
static FEW_ROWS_FUNCTION int64_t few_rows_result_at(const few_rows_product & p, const few_rows_matrix & matrix,
                                                    int column) {
    return p.ids ? column / p.n_places * matrix.dst_stride + column % p.n_places * p.dst_place_stride :
                   column * matrix.dst_stride;
}

// Adds up the chunks of a thread block's rows, and stores what the product gives.
template <int N, bool GATE>
static FEW_ROWS_FUNCTION void few_rows_store(const few_rows_product & p, const few_rows_matrix & matrix, int row_0,
                                             int n_rows, int n_columns, int n_chunks, const float * partials,
                                             const int * routed) {
    for (int at = threadIdx.x; at < n_rows * n_columns; at += p.n_warps * FEW_ROWS_LANES) {
        const int row = at % n_rows;
        const int n   = at / n_rows;

        float results[GATE ? 2 : 1] = {};
        for (int k = 0; k < (GATE ? 2 : 1); ++k) {
            for (int chunk = 0; chunk < n_chunks; ++chunk) {
                results[k] += partials[((k * p.n_block_rows + row) * N + n) * n_chunks + chunk];
            }
        }
        const float result = few_rows_finish<GATE>(p, matrix, n, row_0 + row, results[0], results[GATE]);
        matrix.dst[few_rows_result_at(p, matrix, p.ids ? routed[n] : n) + row_0 + row] = result;
    }
}

// the matrix whose rows a thread block takes
static FEW_ROWS_FUNCTION int few_rows_matrix_at(const few_rows_product & p, int block) {
    int m = 0;
    while (m + 1 < p.n_matrices && block >= p.matrices[m + 1].first_block) {
        ++m;
    }
    return m;
}

// A unit of work: a warp goes down its chunks, and leaves their sums.
template <class T, int N, bool GATE>
static FEW_ROWS_FUNCTION void few_rows_go_down(few_rows_stream<T, GATE> &         stream,
                                               const few_rows_activations<T, N> & activations, int unit, char * scratch,
                                               float * partials) {
    constexpr int n_lanes = T::N_VALUES / FEW_ROWS_PART; // that have a block of weights together

    const few_rows_product & p        = stream.p;
    const int                n_chunks = stream.shape.n_chunks;
    const int                lane     = stream.lane;
    const int                chunk    = unit % n_chunks;
    const int                part     = chunk * FEW_ROWS_LANES + lane;

    for (auto place = stream.first(unit); place.row < stream.n_rows; place.advance(stream.shape.n_teams)) {
        __pipeline_wait_prior(FEW_ROWS_IN_FLIGHT - 1);
        __syncwarp();
        float sums[N] = {};
        if (part < p.n_parts) {
            const char * weights = stream.arrived(place, chunk);
            activations.multiply(weights + lane / n_lanes * T::SIZE, lane % n_lanes, sums);
        }
        __syncwarp();
        stream.fetch_next(chunk);

        const float sum = few_rows_sum<N>(sums, scratch, lane);
        const int   n   = lane / FEW_ROWS_QUARTERS;
        if (lane % FEW_ROWS_QUARTERS == 0 && n < N) {
            partials[((place.in_gate * p.n_block_rows + place.row) * N + n) * n_chunks + chunk] = sum;
        }
    }
}

// n_block_rows of a matrix, one thread block after the other, with N columns. With experts blockIdx.y is one of all
// (token, place): the first, N-th, ... of those with the same expert takes N of them at once, the others have nothing to
// do.
template <class T, int N, bool GATE>
FEW_ROWS_LAUNCH_BOUNDS(FEW_ROWS_WARPS * FEW_ROWS_LANES, few_rows_resident(N))
static FEW_ROWS_KERNEL void few_rows_kernel(const few_rows_product p) {
    FEW_ROWS_SHARED(shared);

    const few_rows_shape     shape(p);
    const few_rows_memory<T> memory(p, N, GATE);

    const int warp    = threadIdx.x / FEW_ROWS_LANES;
    const int lane    = threadIdx.x % FEW_ROWS_LANES;
    const int n_turns = (shape.n_chunks * shape.n_teams + p.n_warps - 1) / p.n_warps;

    char *  stage    = shared + memory.stages + warp * FEW_ROWS_STAGE_SIZE;
    char *  scratch  = shared + memory.scratch + warp * N * FEW_ROWS_SUM_SIZE;
    float * partials = (float *) (shared + memory.partials);
    int *   routed   = (int *) (shared + memory.routed);

    few_rows_stream<T, GATE> stream(p, p.matrices[few_rows_matrix_at(p, blockIdx.x)], shape,
                                    shared + warp * FEW_ROWS_IN_FLIGHT * few_rows_slot_size<T>(), lane);
    ggml_cuda_pdl_lc();

    int n_columns = N;
    if (!p.ids) {
        stream.fetch_first(warp); // weights do not depend on what is still being computed
        n_columns = min(N, p.n_tokens);
        ggml_cuda_pdl_sync();
    } else {
        ggml_cuda_pdl_sync();
        const int expert = p.ids[blockIdx.y / p.n_places * p.ids_stride + blockIdx.y % p.n_places];

        if (!few_rows_route<N>(p, expert, warp, lane, routed, n_columns)) {
            return;
        }
        stream.expert_offset = expert * p.expert_stride;
        stream.fetch_first(warp);
        __syncthreads();
    }

    for (int turn = 0; turn < n_turns; ++turn) {
        const int unit = turn * p.n_warps + warp;
        if (turn > 0) {
            stream.fetch_first(unit);
        }
        const int chunk = unit % shape.n_chunks;

        const char *               columns[N];
        few_rows_activations<T, N> activations;
        few_rows_find_columns<N>(p, routed, n_columns, chunk, columns);
        activations.load(columns, p.column_size - chunk * FEW_ROWS_STAGE_SIZE, stage, lane);
        if (turn == 0) {
            __syncthreads(); // sums may be where activations were
        }
        few_rows_go_down(stream, activations, unit, scratch, partials);
    }
    __syncthreads();
    few_rows_store<N, GATE>(p, stream.matrix, stream.row_0, stream.n_rows, n_columns, shape.n_chunks, partials, routed);
}
