#pragma once

// Rows of activations on their way to a warp's registers, and what is multiplied with them there: a chunk of a matrix row,
// for all types of weights (cuda-few-rows-types.cuh). Knows device code alone, as cuda-few-rows-kernel.cuh, which goes down
// the matrix.

#include "cuda-few-rows-product.cuh"

// A lane's activations: two blocks of each column. Those after the end of a row are 0.
template <class T, int N> struct few_rows_activations {
    static constexpr int N_LANES  = T::N_VALUES / FEW_ROWS_PART; // that have a block of weights together
    static constexpr int N_GROUPS = 32 / T::GROUP;               // of a block

    int   values[N][2][FEW_ROWS_WORDS];
    float scales[N][2];
    float sums[N][2]; // for minima

    // the n-th column; chunk: in shared memory
    FEW_ROWS_FUNCTION void load(int n, const char * chunk, int lane) {
        constexpr int  n_words = FEW_ROWS_Y_SIZE / 4;
        constexpr bool is_pair = T::activations(0, 1) == 1 && (N_LANES == 1 || T::activations(1, 0) == 2);
        const char *   first   = chunk + lane / N_LANES * (T::N_VALUES / 32) * FEW_ROWS_Y_SIZE;
        const int      part    = lane % N_LANES;

        int words[2 * n_words];
        if constexpr (is_pair) {
            few_rows_load<8>(words, first + T::activations(part, 0) * FEW_ROWS_Y_SIZE);
        } else {
            FEW_ROWS_UNROLL
            for (int b = 0; b < 2; ++b) {
                few_rows_load<4>(*(int (*)[n_words])(words + b * n_words),
                                 first + T::activations(part, b) * FEW_ROWS_Y_SIZE);
            }
        }
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            int sum = FEW_ROWS_BEGIN;
            FEW_ROWS_UNROLL
            for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
                values[n][b][i] = words[b * n_words + 1 + i];
                sum             = few_rows_dp4a<false>(0x01010101, values[n][b][i], sum);
            }
            scales[n][b] = few_rows_half(words[b * n_words]);
            sums[n][b]   = __fmul_rn(scales[n][b], few_rows_sum_of(sum));
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
                    dots[n][g] = FEW_ROWS_BEGIN;
                }
            }
            FEW_ROWS_UNROLL
            for (int i = 0; i < FEW_ROWS_WORDS; ++i) {
                FEW_ROWS_UNROLL
                for (int n = 0; n < N; ++n) {
                    int & dot = dots[n][i * 4 / T::GROUP];
                    dot       = few_rows_dp4a<T::HAS_MIN>(unpacked[i], values[n][b][i], dot);
                }
            }
            if constexpr (T::GROUP == 32) {
                const float factor = weights.factor(b);
                FEW_ROWS_UNROLL
                for (int n = 0; n < N; ++n) {
                    results[n] = __fmaf_rn(factor, __fmul_rn(scales[n][b], few_rows_sum_of(dots[n][0])), results[n]);
                }
            } else {
                const float first  = weights.scale(b, 0);
                const float second = weights.scale(b, 1);
                FEW_ROWS_UNROLL
                for (int n = 0; n < N; ++n) { // whole numbers, which a float has room for
                    const float dot = __fmaf_rn(first, __int_as_float(dots[n][0]), -FEW_ROWS_BEGIN_FLOAT * first);
                    results[n] =
                        __fmaf_rn(scales[n][b], __fmaf_rn(second, few_rows_sum_of(dots[n][1]), dot), results[n]);
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

// A part of each column on its way to shared memory, 16 bytes of a thread at a time. What is not there is 0.
template <int N, int N_TURNS> struct few_rows_copy {
    few_rows_words<4> words[N][N_TURNS]; // all are in flight before the first one is needed
    const int         size;              // of the part
    const int         first;             // that this thread copies
    const int         step;

    // begin: of the part, in columns of column_size bytes; thread: of n_threads that copy it
    FEW_ROWS_FUNCTION few_rows_copy(const char * const (&columns)[N], int column_size, int begin, int size, int thread,
                                    int n_threads) :
        size(size), first(thread * FEW_ROWS_COPY), step(n_threads * FEW_ROWS_COPY) {
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            FEW_ROWS_UNROLL
            for (int i = 0; i < N_TURNS; ++i) {
                const int  at       = first + i * step;
                const bool is_there = columns[n] && at < size && begin + at < column_size;
                words[n][i] = is_there ? *(const few_rows_words<4> *) (columns[n] + begin + at) : few_rows_words<4>{};
            }
        }
    }

    FEW_ROWS_FUNCTION void store(int n, char * to) const {
        FEW_ROWS_UNROLL
        for (int i = 0; i < N_TURNS; ++i) {
            const int at = first + i * step;
            if (at < size) {
                *(few_rows_words<4> *) (to + at) = words[n][i];
            }
        }
    }
};

// A warp's activations of a chunk, by way of shared memory: for all warps at a time where they have room for all chunks,
// else for each of them.
template <class T, int N>
static FEW_ROWS_FUNCTION void few_rows_load_activations(const few_rows_product & p, const few_rows_shape & shape,
                                                        const char * const (&columns)[N], int chunk, char * stages,
                                                        int warp, int lane, few_rows_activations<T, N> & activations) {
    constexpr int per_turn = FEW_ROWS_LANES * FEW_ROWS_COPY;
    if (shape.n_chunks * N <= p.n_warps) {
        constexpr int n_turns = (FEW_ROWS_STAGE_SIZE + per_turn * N - 1) / (per_turn * N);
        const int     size    = shape.n_chunks * FEW_ROWS_STAGE_SIZE;

        const few_rows_copy<N, n_turns> copy(columns, p.column_size, 0, size, threadIdx.x, p.n_warps * FEW_ROWS_LANES);
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            copy.store(n, stages + n * size);
        }
        __syncthreads();
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            activations.load(n, stages + n * size + chunk * FEW_ROWS_STAGE_SIZE, lane);
        }
        __syncthreads(); // sums will be where activations are
    } else {
        constexpr int n_turns = (FEW_ROWS_STAGE_SIZE + per_turn - 1) / per_turn;
        char * const  stage   = stages + warp * FEW_ROWS_STAGE_SIZE;

        const few_rows_copy<N, n_turns> copy(columns, p.column_size, chunk * FEW_ROWS_STAGE_SIZE, FEW_ROWS_STAGE_SIZE,
                                             lane, FEW_ROWS_LANES);
        FEW_ROWS_UNROLL
        for (int n = 0; n < N; ++n) {
            __syncwarp();
            copy.store(n, stage);
            __syncwarp();
            activations.load(n, stage, lane);
        }
        __syncwarp();
    }
}
