#pragma once

// Products of a quantized matrix with few rows, written once for all instruction sets and types. A vector's lanes are
// rows of the matrix: it is read tile by tile, of as many matrix rows as there are lanes, and each part of a tile is
// unpacked once for all rows of activations. Knows vectors (V, cpu-few-rows-<set>.h) and types (T, cpu-few-rows-types.h),
// never tensors or threads.
//
// Every result is a sum over blocks in order, in floats with fused multiply-add; what is summed within a block are
// integers, exactly. So it does not depend on the number of rows, the place in a tile, or the instruction set.

#include "cpu-few-rows-task.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

// All of it is compiled once for each instruction set: no function may be shared between these by the linker.
namespace {

template <class T> T few_rows_load(const void * from) {
    T value;
    __builtin_memcpy(&value, from, sizeof(T));
    return value;
}

// the same place in each of the matrix rows of a tile
template <class V> struct few_rows_tile {
    const char * at[V::N];

    void next(size_t n_bytes) {
        for (auto & row : at) {
            row += n_bytes;
        }
    }
};

// The tile after the next one, from front to back, while this one is computed: as many short streams as a tile has rows
// are more than the processor foresees. To the second cache, as the first one has no room for three tiles. Compared with
// other distances by bench/passes.py, 1 row, Q4_K_M, Q6_K and Q8_0.
static inline void few_rows_prefetch(const char * from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) {
        __builtin_prefetch(from + i, 0, 2);
    }
}

// Types whose blocks of 256 hold a scale for every 16 or 32 values, with rows in Q8_K.
template <class V, class T>
static void few_rows_blocks_256(const few_rows_task & task, few_rows_tile<V> x, const char * later,
                                typename V::floats * sums) {
    constexpr int64_t N_BYTES = sizeof(typename T::block);

    const block_q8_K * y[N_ROWS_TOGETHER];
    typename V::ints   totals[N_ROWS_TOGETHER];
    for (int64_t n = 0; n < task.n_rows; ++n) {
        y[n] = (const block_q8_K *) task.rows[n];
    }
    for (int64_t b = 0; b < task.n_values / QK_K; ++b, x.next(N_BYTES), later += V::N * N_BYTES) {
        few_rows_prefetch(later, V::N * N_BYTES);
        for (int64_t n = 0; n < task.n_rows; ++n) {
            totals[n] = V::zero();
        }
        T weights(x);
        weights.each_group(x, [&](int group, const typename V::ints * w) __attribute__((always_inline)) {
            const auto scale = weights.scale(group);
            for (int64_t n = 0; n < task.n_rows; ++n) {
                totals[n] =
                    V::template add_scaled<T::MAX, T::N_GROUP>(totals[n], w, y[n][b].qs + group * T::N_GROUP, scale);
            }
        });

        // what the values' offset, or the minima, are times: a factor for each pair of 16 values
        constexpr int    OFFSET = T::HAS_MINS ? 0 : V::template offset<T::MAX>(T::OFFSET);
        typename V::ints factors[QK_K / 32];
        if constexpr (T::HAS_MINS || OFFSET) {
            for (int i = 0; i < QK_K / 32; ++i) {
                factors[i] = weights.factors(i);
            }
        }
        for (int64_t n = 0; n < task.n_rows; ++n) {
            const block_q8_K & row     = y[n][b];
            const auto         d       = V::set_float(row.d);
            typename V::ints   offsets = V::zero();
            if constexpr (T::HAS_MINS || OFFSET) {
                for (int i = 0; i < QK_K / 32; ++i) {
                    offsets = V::add_pairs(offsets, factors[i], row.bsums + 2 * i);
                }
            }
            typename V::ints total = totals[n];
            if constexpr (OFFSET) {
                total = V::subtract_times(total, offsets, OFFSET);
            }
            sums[n] = V::add_product(sums[n], V::to_floats(total), V::times(weights.d, d));
            if constexpr (T::HAS_MINS) {
                sums[n] = V::subtract_product(sums[n], V::to_floats(offsets), V::times(weights.min_d, d));
            }
        }
    }
}

// Types whose blocks of 32 have one scale, with rows in Q8_0, prepared.
template <class V, class T>
static void few_rows_blocks_32(const few_rows_task & task, few_rows_tile<V> x, const char * later,
                               typename V::floats * sums) {
    constexpr int64_t N_BYTES = sizeof(typename T::block);

    const few_rows_block * y[N_ROWS_TOGETHER];
    for (int64_t n = 0; n < task.n_rows; ++n) {
        y[n] = (const few_rows_block *) task.rows[n];
    }
    for (int64_t b = 0; b < task.n_values / 32; ++b, x.next(N_BYTES), later += V::N * N_BYTES) {
        few_rows_prefetch(later, V::N * N_BYTES);

        typename V::ints w[8];
        T::unpack(x, w);
        const auto d = T::d(x);
        for (int64_t n = 0; n < task.n_rows; ++n) {
            const few_rows_block & row = y[n][b];

            constexpr int OFFSET = V::template offset<T::MAX>(T::OFFSET);
            const auto    dot    = V::template dot_32<T::MAX>(w, row.values, -OFFSET * row.sum);
            sums[n]              = V::add_product(sums[n], V::to_floats(dot), V::times(d, V::set_float(row.d)));
        }
    }
}

template <class V, class T> static void few_rows_product(const few_rows_task & task) {
    for (int64_t i = task.begin; i < task.end; i += V::N) {
        const int64_t n_out = task.end - i < V::N ? task.end - i : V::N;

        few_rows_tile<V> x;
        for (int64_t m = 0; m < V::N; ++m) {
            x.at[m] = task.matrix + (i + (m < n_out ? m : n_out - 1)) * task.stride;
        }
        typename V::floats sums[N_ROWS_TOGETHER];
        for (int64_t n = 0; n < task.n_rows; ++n) {
            sums[n] = V::zero_floats();
        }
        T::blocks(task, x, task.matrix + (i + 2 * V::N) * task.stride, sums);
        for (int64_t n = 0; n < task.n_rows; ++n) {
            V::store(task.out[n] + i, sums[n], n_out);
        }
    }
}

} // namespace
