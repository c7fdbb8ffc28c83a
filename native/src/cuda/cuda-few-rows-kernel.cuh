#pragma once

// A product of a quantized matrix with few rows of activations, for all types of weights (cuda-few-rows-types.cuh).
//
// A warp takes a chunk of a matrix row, 2048 values, 64 for a lane. It keeps the chunk of all rows of activations in
// registers and goes down the matrix, so that each weight is read and unpacked once. Weights arrive in shared memory as
// they are in the matrix, several chunks in flight at a time; the sums of a matrix row's chunks are added in the end.
//
// Knows device code alone, so that tests can run it on a CPU (native/tests/test-cuda-kernels.cpp): whoever includes it
// has CUDA's functions, or others of the same names.

#include "cuda-few-rows-activations.cuh"

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

// Sums of a warp's lanes over matrix rows: those of several chunks are added at a time.
//
// Of the lanes that have the same quarter of 256 values, one after the other is added, then the quarters: an order that
// does not depend on N, and in which the kernel for more rows (cuda-more-rows-kernel.cuh) can add as well.
template <int N> struct few_rows_sums {
    static constexpr int N_TOGETHER = FEW_ROWS_LANES / FEW_ROWS_QUARTERS / N; // chunks
    static constexpr int N_ROUNDS   = FEW_ROWS_LANES / FEW_ROWS_QUARTERS;

    char * const values; // of each of the chunks, of each column, those of all lanes
    const int    lane;

    FEW_ROWS_FUNCTION few_rows_sums(char * values, int lane) : values(values), lane(lane) {}

    // of the i-th of the chunks
    FEW_ROWS_FUNCTION void leave(const float (&sums)[N], int i) const {
        const int place = lane % FEW_ROWS_QUARTERS * N_ROUNDS + lane / FEW_ROWS_QUARTERS;
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            *(float *) (values + (i * N + n) * FEW_ROWS_SUM_SIZE + 4 * place) = sums[n];
        }
    }

    // Column n of the i-th chunk ends in lanes from 4 * (i * N + n) on.
    FEW_ROWS_FUNCTION float add() const {
        __syncwarp();
        int all[N_ROUNDS] = {};
        if (lane < N_TOGETHER * N * FEW_ROWS_QUARTERS) {
            few_rows_load<16>(all, values + lane / FEW_ROWS_QUARTERS * FEW_ROWS_SUM_SIZE +
                                       4 * (lane % FEW_ROWS_QUARTERS * N_ROUNDS));
        }
        __syncwarp();
        float sum = 0.0f;
        FEW_ROWS_UNROLL
        for (int i = 0; i < N_ROUNDS; ++i) {
            sum += __int_as_float(all[i]);
        }
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        return sum;
    }
};

// From chunk to chunk, one below the other: of the matrix, or of matrix and gate in turn. A: an address, or its last bits.
template <class A, bool GATE> struct few_rows_walk {
    A at;
    A step;     // to the next chunk
    A row_step; // to the one in the next row

    FEW_ROWS_FUNCTION void advance() {
        at += step;
        step = GATE ? row_step - step : step;
    }
};

// A warp's way down the matrix: the chunks that it takes, some of which are in flight to shared memory.
template <class T, bool GATE> struct few_rows_stream {
    static constexpr int  SLOT_SIZE  = few_rows_slot_size<T>();
    static constexpr bool IS_ALIGNED = T::SIZE % FEW_ROWS_COPY == 0; // what a chunk begins with

    char * const                   slots;
    const int                      lane;
    few_rows_walk<uintptr_t, GATE> next;      // to fetch
    few_rows_walk<unsigned, GATE>  now;       // to multiply
    int                            n_chunks;
    int                            n_left;    // to fetch
    int                            lane_size; // of a chunk, from where this lane copies
    int                            slot;

    FEW_ROWS_FUNCTION few_rows_stream(char * slots, int lane) : slots(slots), lane(lane) {}

    // copies are of 16 bytes: what is before a chunk comes with it
    static FEW_ROWS_FUNCTION int before(unsigned address) { return IS_ALIGNED ? 0 : address % FEW_ROWS_COPY; }

    FEW_ROWS_FUNCTION void fetch_next() {
        if (n_left > 0) {
            const int    skipped = before((unsigned) next.at);
            const char * from    = (const char *) (next.at - skipped);
            char *       to      = slots + slot + lane * FEW_ROWS_COPY;
            FEW_ROWS_UNROLL
            for (int i = 0; i < SLOT_SIZE; i += FEW_ROWS_LANES * FEW_ROWS_COPY) {
                if (i < lane_size + skipped) {
                    __pipeline_memcpy_async(to + i, from + i, FEW_ROWS_COPY);
                }
            }
            next.advance();
            --n_left;
        }
        __pipeline_commit();
        slot = slot + SLOT_SIZE < FEW_ROWS_IN_FLIGHT * SLOT_SIZE ? slot + SLOT_SIZE : 0;
    }

    // matrix, gate: the chunk's places in the first row; size: bytes of it that there are
    FEW_ROWS_FUNCTION void begin(const char * matrix, const char * gate, int64_t row_step, int n, int size) {
        next      = { (uintptr_t) matrix + lane * FEW_ROWS_COPY,
                      GATE ? (uintptr_t) gate - (uintptr_t) matrix : (uintptr_t) row_step, (uintptr_t) row_step };
        now       = { (unsigned) next.at, (unsigned) next.step, (unsigned) next.row_step };
        n_chunks  = GATE ? 2 * n : n;
        n_left    = n_chunks;
        lane_size = size - lane * FEW_ROWS_COPY;
        slot      = 0;
        for (int i = 0; i < FEW_ROWS_IN_FLIGHT; ++i) {
            fetch_next();
        }
    }

    // the next chunk, once it has arrived
    FEW_ROWS_FUNCTION const char * arrived() {
        __pipeline_wait_prior(FEW_ROWS_IN_FLIGHT - 1);
        __syncwarp();
        const char * chunk = slots + slot + before(now.at);
        now.advance();
        return chunk;
    }

    // there is a place for another one
    FEW_ROWS_FUNCTION void release() {
        __syncwarp();
        fetch_next();
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

// where each column is; nullptr for those that there are not
template <int N>
static FEW_ROWS_FUNCTION void few_rows_find_columns(const few_rows_product & p, const int * routed, int n_columns,
                                                    const char * (&columns)[N]) {
    FEW_ROWS_UNROLL
    for (int n = 0; n < N; ++n) {
        const int i = p.ids && n < n_columns ? routed[n] : 0;
        columns[n]  = n >= n_columns ? nullptr :
                      p.ids          ? p.columns + i / p.n_places * p.column_stride +
                                           i % p.n_places % p.n_column_places * p.column_place_stride :
                                       p.columns + n * p.column_stride;
    }
}

// where the results of a column begin; with experts, one of all (token, place)
static FEW_ROWS_FUNCTION int64_t few_rows_result_at(const few_rows_product & p, const few_rows_matrix & matrix,
                                                    int column) {
    return p.ids ? column / p.n_places * matrix.dst_stride + column % p.n_places * p.dst_place_stride :
                   column * matrix.dst_stride;
}

// Where the sums of a thread block's chunks are, of columns of matrix rows: of the matrix (k = 0) and of the gate.
template <int N>
static FEW_ROWS_FUNCTION int few_rows_sum_at(const few_rows_product & p, int n_chunks, int k, int row) {
    return (k * p.n_block_rows + row) * N * n_chunks;
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
            const float * sums = partials + few_rows_sum_at<N>(p, n_chunks, k, row) + n * n_chunks;
            for (int chunk = 0; chunk < n_chunks; ++chunk) {
                results[k] += sums[chunk];
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

// Waits for activations. A product that is concurrent with the one before it does not: it was started after that one had
// waited for them, as kernels may be started from then on.
static FEW_ROWS_FUNCTION void few_rows_wait(const few_rows_product & p) {
    if (!p.is_concurrent) {
        ggml_cuda_pdl_sync();
    }
    ggml_cuda_pdl_lc();
}

// What follows two concurrent products waits for the second one: it ends after the first.
static FEW_ROWS_FUNCTION void few_rows_end(const few_rows_product & p) {
    if (p.is_concurrent) {
        ggml_cuda_pdl_sync();
    }
}

// A unit of work: a warp goes down its chunks, from the team's first row on, and leaves their sums.
template <class T, int N, bool GATE>
static FEW_ROWS_FUNCTION void
few_rows_go_down(few_rows_stream<T, GATE> & stream, const few_rows_product & p, const few_rows_shape & shape,
                 const few_rows_activations<T, N> & activations, int unit, char * scratch, float * partials) {
    constexpr int n_lanes = few_rows_activations<T, N>::N_LANES;

    const int              lane     = stream.lane;
    const int              chunk    = unit % shape.n_chunks;
    const int              team     = unit / shape.n_chunks;
    const bool             has_part = chunk * FEW_ROWS_LANES + lane < p.n_parts;
    const int              block    = lane / n_lanes * T::SIZE;
    const few_rows_sums<N> all(scratch, lane);

    // of the sum that this lane has in the end
    const int column = lane / FEW_ROWS_QUARTERS % N;
    const int place  = lane / FEW_ROWS_QUARTERS / N;

    for (int first = 0; first < stream.n_chunks; first += all.N_TOGETHER) {
        const int n = min(all.N_TOGETHER, stream.n_chunks - first);
        FEW_ROWS_ROLLED
        for (int i = 0; i < n; ++i) {
            const char * weights = stream.arrived();
            float        sums[N] = {};
            if (has_part) {
                activations.multiply(weights + block, lane % n_lanes, sums);
            }
            stream.release();
            all.leave(sums, i);
        }
        const float sum = all.add();
        const int   at  = first + place;
        if (lane % FEW_ROWS_QUARTERS == 0 && place < all.N_TOGETHER && at < stream.n_chunks) {
            const int row = team + (GATE ? at / 2 : at) * shape.n_teams;
            partials[few_rows_sum_at<N>(p, shape.n_chunks, GATE ? at % 2 : 0, row) + column * shape.n_chunks + chunk] =
                sum;
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
    const int n_units = shape.n_chunks * shape.n_teams;

    char *  stage    = shared + memory.stages + warp * FEW_ROWS_STAGE_SIZE;
    float * partials = (float *) (shared + memory.partials);
    int *   routed   = (int *) (shared + memory.routed);

    const few_rows_matrix & matrix        = p.matrices[few_rows_matrix_at(p, blockIdx.x)];
    const int               row_0         = (blockIdx.x - matrix.first_block) * p.n_block_rows;
    const int               n_rows        = min(p.n_block_rows, matrix.n_rows - row_0);
    int64_t                 expert_offset = 0;

    few_rows_stream<T, GATE> stream(shared + warp * FEW_ROWS_IN_FLIGHT * few_rows_slot_size<T>(), lane);

    const auto fetch_first = [&](int unit) {
        const int     chunk  = unit % shape.n_chunks;
        const int     row    = unit < n_units ? unit / shape.n_chunks : n_rows;
        const int64_t offset = expert_offset + (row_0 + row) * p.row_stride + chunk * few_rows_chunk_size<T>();
        const int     n      = (n_rows - row + shape.n_teams - 1) / shape.n_teams;
        const int     size =
            min(FEW_ROWS_LANES, p.n_parts - chunk * FEW_ROWS_LANES) * FEW_ROWS_PART / T::N_VALUES * T::SIZE;
        stream.begin(matrix.data + offset, p.gate + offset, shape.n_teams * p.row_stride, n, size);
    };
    int n_columns = N;
    if (!p.ids) {
        fetch_first(warp); // weights do not depend on what is still being computed
        n_columns = min(N, p.n_tokens);
        few_rows_wait(p);
    } else {
        few_rows_wait(p);
        const int expert = p.ids[blockIdx.y / p.n_places * p.ids_stride + blockIdx.y % p.n_places];

        if (!few_rows_route<N>(p, expert, warp, lane, routed, n_columns)) {
            return;
        }
        expert_offset = expert * p.expert_stride;
        fetch_first(warp);
        __syncthreads();
    }

    const char * columns[N];
    few_rows_find_columns<N>(p, routed, n_columns, columns);

    for (int first = 0; first < n_units; first += p.n_warps) {
        const int unit = first + warp;
        if (first > 0) {
            fetch_first(unit);
        }
        few_rows_activations<T, N> activations;
        few_rows_load_activations<T, N>(p, shape, columns, unit % shape.n_chunks, shared + memory.stages, warp, lane,
                                        activations);
        few_rows_go_down<T, N, GATE>(stream, p, shape, activations, unit, stage, partials);
    }
    __syncthreads();
    few_rows_store<N, GATE>(p, matrix, row_0, n_rows, n_columns, shape.n_chunks, partials, routed);
    few_rows_end(p);
}
