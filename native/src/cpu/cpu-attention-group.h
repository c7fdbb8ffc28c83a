#pragma once

// Attention of queries that share keys, values and a list of cells. Knows memory and types, never tensors of a graph or
// threads.
//
// A query's result does not depend on the queries next to it, nor on which cells are hidden from it: each of its sums
// runs through the cells that it sees in the order of the list, by the same instructions. Sums are floats, whatever the
// cache is made of.

#include "cpu-attention-matrix.h"

#if defined(MTP_VECTORS)

#    include "cpu-few-rows-task.h"

#    include <cmath>
#    include <type_traits>

namespace {

// queries whose sums fit into registers together
constexpr int N_TILE = 4;

// queries for which keys and values are unpacked once, and stay in the caches
constexpr int N_GROUP = 32;

// cells whose scores are known before their values are added
constexpr int64_t N_BLOCK = 64;

constexpr int64_t N_VALUES_MAX = 1024;

// How far above the one it is compared with a score gets before the sums are scaled: exp of it must not overflow.
constexpr float MARGIN = 8.0f;

// of a query that sees nothing yet: its scores are -INFINITY, and stay so
constexpr float LOWEST_BASE = -1e30f;

// one head of one row
struct attention_query {
    const float *       values;
    const ggml_fp16_t * mask; // nullptr: none
    float               slope;
    float               sink; // -INFINITY: none
    float *             out;

    bool sees(int64_t cell) const {
        constexpr ggml_fp16_t HIDDEN = 0xfc00; // -INFINITY
        return !mask || mask[cell] != HIDDEN;
    }

    float bias(int64_t cell) const {
        return !sees(cell) ? -INFINITY : mask ? slope * GGML_CPU_FP16_TO_FP32(mask[cell]) : 0.0f;
    }
};

// Up to N_TILE queries, in four lanes, with the sum of exp(score - base) of each.
struct attention_tile {
    int             n;
    attention_query queries[N_TILE];

    alignas(16) float base[N_TILE];
    alignas(16) float sum[N_TILE];
    float * sums;           // of the cache's values, each times exp(score - base): [n][n_padded]

    const char * quantized; // the queries as products with quantized keys take them, [n][quantized_size]
};

struct attention_group {
    attention_matrix keys;
    attention_matrix values;
    float            scale;
    float            soft_cap; // 0: none

    const int32_t * order;     // the cells; nullptr: in the order of the cache
    int64_t         n_order;
    int64_t         n_cache;   // those of the list from here on are not in the tensors

    int            n_tiles;
    attention_tile tiles[N_GROUP / N_TILE];

    // of the cells of a block, those that any query sees
    int64_t      cells[N_BLOCK];
    int64_t      n_cells;
    const char * key_rows[N_BLOCK];
    const char * value_rows[N_BLOCK];

    // of a tile in the block, by cell and query
    alignas(64) float bias[N_BLOCK * N_TILE];
    alignas(64) float weights[N_BLOCK * N_TILE]; // scores, then exp(score - base)
    alignas(64) float rescale[N_BLOCK * N_TILE]; // of the sums, before the cell is added
    bool any_hidden;
    bool any_rescaled;

    static bool can(const attention_matrix & keys, const attention_matrix & values) {
        const auto * traits = ggml_get_type_traits_cpu(keys.type);
        return std::max(keys.n, values.n) <= N_VALUES_MAX && values.can_unpack() &&
               (ggml_is_quantized(keys.type) ?
                    traits->vec_dot && ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float :
                    keys.can_unpack());
    }

    static size_t quantized_size(const attention_matrix & keys) {
        return ggml_row_size(ggml_get_type_traits_cpu(keys.type)->vec_dot_type, keys.n);
    }

    // unpacked: room for N_BLOCK keys and as many values
    void compute(float * unpacked) {
        for (int64_t at = 0; at < n_order;) {
            at = find_cells(at);
            unpack(keys, key_rows, unpacked);
            unpack(values, value_rows, unpacked + N_BLOCK * keys.n_padded());
            for (int i = 0; i < n_tiles; ++i) {
                compute(tiles[i]);
            }
        }
        for (int i = 0; i < n_tiles; ++i) {
            finish(tiles[i]);
        }
    }

  private:
    // from place `at` of the list on; returns the place after the last one
    int64_t find_cells(int64_t at) {
        for (n_cells = 0; at < n_order && n_cells < N_BLOCK; ++at) {
            const int64_t cell = order ? order[at] : at;
            if (cell < n_cache && any_sees(cell)) {
                cells[n_cells++] = cell;
            }
        }
        return at;
    }

    // late rows see most, and the heads of a row mostly the same
    bool any_sees(int64_t cell) const {
        const ggml_fp16_t * before = nullptr;
        for (int i = n_tiles - 1; i >= 0; --i) {
            for (int q = tiles[i].n - 1; q >= 0; --q) {
                const attention_query & query = tiles[i].queries[q];
                if (!query.mask || (query.mask != before && query.sees(cell))) {
                    return true;
                }
                before = query.mask;
            }
        }
        return false;
    }

    void unpack(const attention_matrix & matrix, const char ** rows, float * to) {
        const bool as_it_is = matrix.is_plain() || (&matrix == &keys && ggml_is_quantized(matrix.type));
        for (int64_t c = 0; c < n_cells; ++c) {
            rows[c] = matrix.row(cells[c]);
            if (!as_it_is) {
                matrix.unpack(cells[c], to);
                rows[c] = (const char *) to;
                to += matrix.n_padded();
            }
        }
    }

    void compute(attention_tile & tile) {
        if (!set_bias(tile)) {
            return;
        }
        set_scores(tile);
        set_weights(tile);
        add_values(tile);
    }

    // returns whether anything is seen
    bool set_bias(const attention_tile & tile) {
        bool any_seen = false;
        any_hidden    = false;
        for (int q = 0; q < N_TILE; ++q) {
            const attention_query & query = tile.queries[std::min(q, tile.n - 1)];
            const attention_query & first = tile.queries[0];
            if (q > 0 && query.mask == first.mask && query.slope == first.slope) {
                for (int64_t c = 0; c < n_cells; ++c) {
                    bias[c * N_TILE + q] = bias[c * N_TILE];
                }
                continue;
            }
            for (int64_t c = 0; c < n_cells; ++c) {
                const float of_cell  = query.bias(cells[c]);
                bias[c * N_TILE + q] = of_cell;
                any_hidden |= of_cell == -INFINITY;
                any_seen |= of_cell != -INFINITY;
            }
        }
        return any_seen;
    }

    void set_scores(const attention_tile & tile) {
        if (ggml_is_quantized(keys.type)) {
            set_quantized_scores(tile);
        } else {
            with_types(tile, keys, [&](auto n, auto value) { set_scores_of<decltype(value), n>(tile); });
        }
        if (soft_cap != 0.0f) {
            for (int64_t i = 0; i < n_cells * N_TILE; ++i) {
                weights[i] = soft_cap * tanhf(weights[i] * scale);
            }
        }
    }

    // Calls a function with a tile's number of queries, and a value as the rows of a matrix have them here.
    template <class F> static void with_types(const attention_tile & tile, const attention_matrix & matrix, F && f) {
        const auto with_number = [&](auto value) {
            switch (tile.n) {
                case 1:
                    return f(std::integral_constant<int, 1>(), value);
                case 2:
                    return f(std::integral_constant<int, 2>(), value);
                case 3:
                    return f(std::integral_constant<int, 3>(), value);
                default:
                    return f(std::integral_constant<int, 4>(), value);
            }
        };
        matrix.type == GGML_TYPE_F16 && matrix.is_plain() ? with_number(ggml_fp16_t()) : with_number(float());
    }

    // Of N queries. The values of a key go to 16 sums (on x86), so that all instruction sets give the same bits.
    template <class T, int N> void set_scores_of(const attention_tile & tile) {
        constexpr int N_SUMS   = lanes::N < 16 ? 2 : 1;
        const int64_t n_values = keys.n_padded();
        for (int64_t c = 0; c < n_cells; ++c) {
            const auto * key = (const T *) key_rows[c];

            lanes   sums[N_TILE][N_SUMS] = {};
            int64_t i                    = 0;
            for (; i + N_SUMS * lanes::N <= n_values; i += N_SUMS * lanes::N) {
                add_products<N, N_SUMS>(sums, tile, key, i);
            }
            if (i < n_values) {
                add_products<N, 1>(sums, tile, key, i);
            }
            lanes totals[N_TILE];
            for (int q = 0; q < N_TILE; ++q) {
                totals[q] = N_SUMS > 1 ? sums[q][0] + sums[q][N_SUMS - 1] : sums[q][0];
            }
            sums_of(totals).store(weights + c * N_TILE);
        }
    }

    template <int N, int N_VECTORS, int N_SUMS, class T>
    static void add_products(lanes (&sums)[N_TILE][N_SUMS], const attention_tile & tile, const T * key, int64_t i) {
        lanes xs[N_VECTORS];
        for (int k = 0; k < N_VECTORS; ++k) {
            xs[k] = lanes::load(key + i + k * lanes::N);
        }
        UNROLLED_FOR (int q = 0; q < N; ++q) {
            for (int k = 0; k < N_VECTORS; ++k) {
                sums[q][k] = sums[q][k].add_product(xs[k], lanes::load(tile.queries[q].values + i + k * lanes::N));
            }
        }
    }

    // Integers within a block, so what shares the unpacking of a key does not matter.
    void set_quantized_scores(const attention_tile & tile) {
        const size_t          size   = quantized_size(keys);
        const few_rows_kernel kernel = few_rows_find_kernel(keys.type, false);
        if (!kernel) {
            const ggml_vec_dot_t vec_dot = ggml_get_type_traits_cpu(keys.type)->vec_dot;
            for (int64_t c = 0; c < n_cells; ++c) {
                for (int q = 0; q < N_TILE; ++q) {
                    const char * query = tile.quantized + std::min(q, tile.n - 1) * size;
                    vec_dot(keys.n, &weights[c * N_TILE + q], 0, key_rows[c], 0, query, 0, 1);
                }
            }
            return;
        }
        float        products[N_TILE][N_BLOCK];
        const void * in[N_TILE];
        float *      out[N_TILE];
        for (int64_t begin = 0; begin < n_cells;) { // cells that follow one another are a matrix
            int64_t end = begin + 1;
            while (end < n_cells && cells[end] == cells[end - 1] + 1) {
                ++end;
            }
            for (int q = 0; q < tile.n; ++q) {
                in[q]  = tile.quantized + q * size;
                out[q] = products[q] + begin;
            }
            kernel({ key_rows[begin], keys.stride, 0, end - begin, keys.n, tile.n, in, out });
            begin = end;
        }
        for (int64_t c = 0; c < n_cells; ++c) {
            for (int q = 0; q < N_TILE; ++q) {
                weights[c * N_TILE + q] = products[std::min(q, tile.n - 1)][c];
            }
        }
    }

    void set_weights(attention_tile & tile) {
        const four factor = four::of(soft_cap == 0.0f ? scale : 1.0f);
        four       top    = four::of(-INFINITY);
        for (int64_t i = 0; i < n_cells * N_TILE; i += N_TILE) {
            const four score = four::load(bias + i).add_product(four::load(weights + i), factor);
            score.store(weights + i);
            top = top.max(score);
        }
        any_rescaled = false;
        if (top.any_above(four::load(tile.base) + four::of(MARGIN))) {
            find_bases(tile);
        } else {
            const four base = four::load(tile.base).max(four::of(LOWEST_BASE));
            for (int64_t i = 0; i < n_cells * N_TILE; i += N_TILE) {
                (four::load(weights + i) - base).store(weights + i);
            }
        }
        four sum = four::load(tile.sum);
        for (int64_t i = 0; i < n_cells * N_TILE; i += N_TILE) {
            const four weight = exp_of(four::load(weights + i));
            weight.store(weights + i);
            sum = any_rescaled ? weight.add_product(sum, four::load(rescale + i)) : sum + weight;
        }
        sum.store(tile.sum);
    }

    // Scores become what they are above the base, which a score becomes that is too far above the one before.
    void find_bases(attention_tile & tile) {
        for (int q = 0; q < N_TILE; ++q) {
            float base = tile.base[q];
            for (int64_t i = q; i < n_cells * N_TILE; i += N_TILE) {
                const float score = weights[i];
                rescale[i]        = 1.0f;
                if (score > base + MARGIN) {
                    if (base != -INFINITY) {
                        rescale[i]   = expf(base - score);
                        any_rescaled = true;
                    }
                    base = score;
                }
                weights[i] = score - std::max(base, LOWEST_BASE);
            }
            tile.base[q] = base;
        }
    }

    void add_values(attention_tile & tile) {
        with_types(tile, values, [&](auto n, auto value) {
            any_hidden || any_rescaled ? add_values_of<decltype(value), n, true>(tile) :
                                         add_values_of<decltype(value), n, false>(tile);
        });
    }

    // Of N queries. CHECKS: some do not see all cells, or are scaled on the way.
    template <class T, int N, bool CHECKS> void add_values_of(const attention_tile & tile) {
        const int64_t n_values = values.n_padded();
        int64_t       i        = 0;
        for (; i + 2 * lanes::N <= n_values; i += 2 * lanes::N) {
            add_vectors<T, N, CHECKS, 2>(tile, i);
        }
        if (i < n_values) {
            add_vectors<T, N, CHECKS, 1>(tile, i);
        }
    }

    template <class T, int N, bool CHECKS, int N_VECTORS> void add_vectors(const attention_tile & tile, int64_t i) {
        const int64_t n_values = values.n_padded();

        lanes sums[N][N_VECTORS];
        for (int q = 0; q < N; ++q) {
            for (int k = 0; k < N_VECTORS; ++k) {
                sums[q][k] = lanes::load(tile.sums + q * n_values + i + k * lanes::N);
            }
        }
        for (int64_t c = 0; c < n_cells; ++c) {
            const auto * value = (const T *) value_rows[c] + i;

            lanes xs[N_VECTORS];
            for (int k = 0; k < N_VECTORS; ++k) {
                xs[k] = lanes::load(value + k * lanes::N);
            }
            UNROLLED_FOR (int q = 0; q < N; ++q) {
                const int64_t at = c * N_TILE + q;
                if (CHECKS && bias[at] == -INFINITY) {
                    continue;
                }
                if (CHECKS && any_rescaled && rescale[at] != 1.0f) {
                    for (int k = 0; k < N_VECTORS; ++k) {
                        sums[q][k] = sums[q][k] * lanes::of(rescale[at]);
                    }
                }
                const lanes weight = lanes::of(weights[at]);
                for (int k = 0; k < N_VECTORS; ++k) {
                    sums[q][k] = sums[q][k].add_product(xs[k], weight);
                }
            }
        }
        for (int q = 0; q < N; ++q) {
            for (int k = 0; k < N_VECTORS; ++k) {
                sums[q][k].store(tile.sums + q * n_values + i + k * lanes::N);
            }
        }
    }

    // the sums become results; a sink is a score without a value
    void finish(attention_tile & tile) {
        for (int q = 0; q < tile.n; ++q) {
            const attention_query & query = tile.queries[q];

            float sum    = tile.sum[q];
            float factor = 1.0f;
            if (query.sink > tile.base[q]) {
                factor = expf(tile.base[q] - query.sink);
                sum    = std::fma(sum, factor, 1.0f);
            } else if (query.sink != -INFINITY) {
                sum += expf(query.sink - tile.base[q]);
            }
            factor = sum == 0.0f ? 0.0f : factor / sum;
            for (int64_t i = 0; i < values.n; ++i) {
                query.out[i] = tile.sums[q * values.n_padded() + i] * factor;
            }
        }
    }
};

} // namespace

#endif
