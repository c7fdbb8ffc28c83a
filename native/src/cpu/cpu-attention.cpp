#include "cpu-attention.h"

#include "ggml-cpu-impl.h"
#include "simd-mappings.h"
#include "vec.h"

#include <algorithm>
#include <cmath>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512FP16__)

// more are work for tiles
static constexpr int64_t N_ROWS_MAX = 16;

// queries that go through the cache together; their sums fit into the registers
static constexpr int N_QUERIES = 4;

// cells whose scores are known before their values are added
static constexpr int64_t N_BLOCK = 128;

static constexpr int64_t N_VALUES_MAX = 512;
static constexpr int     N_VECTORS    = GGML_F16_STEP / GGML_F16_EPR;

// sums are rounded to F16 after every cell, as the CPU backend keeps them
static inline GGML_F16_VEC round_to_f16(GGML_F16_VEC x) {
#    if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, 0));
#    else
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, 0));
#    endif
}

// one head of one row
struct attention_query {
    const ggml_fp16_t * mask; // nullptr: none
    float *             out;

    float max = -INFINITY; // of the scores so far
    float sum = 0.0f;      // of exp(score - max)

    float values[N_VALUES_MAX];
    float sums[N_VALUES_MAX] = {}; // of the cache's values, each times exp(score - max)

    // of the cells of a block
    float score[N_BLOCK];
    float weight[N_BLOCK];
    float rescale[N_BLOCK]; // of the sums, before the cell's values are added

    bool sees(int64_t cell) const { return !mask || GGML_CPU_FP16_TO_FP32(mask[cell]) != -INFINITY; }
};

// N queries, and the keys and values that they share
template <int N> struct attention_tile {
    attention_query queries[N];
    const char *    keys;
    const char *    values;
    int64_t         key_stride;
    int64_t         value_stride;
    int64_t         n_key_values;
    int64_t         n_values;
    float           scale;

    // of the cells of a block, those that any query sees
    int64_t cells[N_BLOCK];
    int64_t n_cells;

    void find_cells(int64_t begin, int64_t end) {
        n_cells = 0;
        for (int64_t cell = begin; cell < end; ++cell) {
            if (std::any_of(queries, queries + N, [&](const attention_query & query) { return query.sees(cell); })) {
                cells[n_cells++] = cell;
            }
        }
    }

    void set_scores() {
        for (int64_t c = 0; c < n_cells; ++c) {
            const auto * key = (const ggml_fp16_t *) (keys + cells[c] * key_stride);

            GGML_F16_DOT_VEC products[N][GGML_F16_DOT_ARR];
            for (int q = 0; q < N; ++q) {
                for (auto & vector : products[q]) {
                    vector = GGML_F16_DOT_VEC_ZERO;
                }
            }
            for (int64_t i = 0; i < n_key_values; i += GGML_F16_DOT_STEP) {
#    pragma GCC unroll 4
                for (int j = 0; j < GGML_F16_DOT_ARR; ++j) {
                    const int64_t          at = i + j * GGML_F16_DOT_EPR;
                    const GGML_F16_DOT_VEC x  = GGML_F16_DOT_VEC_LOAD(key + at, j);
#    pragma GCC unroll 4
                    for (int q = 0; q < N; ++q) {
                        const GGML_F16_DOT_VEC y = GGML_F32_VEC_LOAD(queries[q].values + at);
                        products[q][j]           = GGML_F16_DOT_VEC_FMA(products[q][j], x, y);
                    }
                }
            }
            for (int q = 0; q < N; ++q) {
                ggml_float product;
                GGML_F16_DOT_VEC_REDUCE(product, products[q]);
                queries[q].score[c] = product;
            }
        }
    }

    void set_weights(attention_query & query) {
        for (int64_t c = 0; c < n_cells; ++c) {
            query.weight[c] = query.rescale[c] = 1.0f;
            if (!query.sees(cells[c])) {
                query.weight[c] = -INFINITY;
                continue;
            }
            const float score =
                query.score[c] * scale + (query.mask ? GGML_CPU_FP16_TO_FP32(query.mask[cells[c]]) : 0.0f);
            if (score > query.max) {
                query.rescale[c] = expf(query.max - score);
                query.max        = score;
            } else {
                query.weight[c] = expf(score - query.max);
            }
            query.sum = query.sum * query.rescale[c] + query.weight[c];
        }
    }

    void add_values() {
        for (int64_t i = 0; i < n_values; i += GGML_F16_STEP) {
            GGML_F16_VEC sums[N][N_VECTORS];
            for (int q = 0; q < N; ++q) {
                for (int j = 0; j < N_VECTORS; ++j) {
                    sums[q][j] = GGML_F32_VEC_LOAD(queries[q].sums + i + j * GGML_F16_EPR);
                }
            }
            for (int64_t c = 0; c < n_cells; ++c) {
                const auto * value = (const ggml_fp16_t *) (values + cells[c] * value_stride) + i;

                GGML_F16_VEC xs[N_VECTORS];
#    pragma GCC unroll 4
                for (int j = 0; j < N_VECTORS; ++j) {
                    xs[j] = GGML_F16_VEC_LOAD(value + j * GGML_F16_EPR, j);
                }
#    pragma GCC unroll 4
                for (int q = 0; q < N; ++q) {
                    const float weight  = queries[q].weight[c];
                    const float rescale = queries[q].rescale[c];
                    if (weight == -INFINITY) {
                        continue;
                    }
                    if (rescale != 1.0f) {
                        const GGML_F16_VEC factor = GGML_F16_VEC_SET1(rescale);
#    pragma GCC unroll 4
                        for (int j = 0; j < N_VECTORS; ++j) {
                            sums[q][j] = round_to_f16(GGML_F16_VEC_MUL(sums[q][j], factor));
                        }
                    }
                    const GGML_F16_VEC factor = GGML_F16_VEC_SET1(weight);
#    pragma GCC unroll 4
                    for (int j = 0; j < N_VECTORS; ++j) {
                        sums[q][j] = round_to_f16(GGML_F16_VEC_FMA(sums[q][j], xs[j], factor));
                    }
                }
            }
            for (int q = 0; q < N; ++q) {
                for (int j = 0; j < N_VECTORS; ++j) {
                    GGML_F32_VEC_STORE(queries[q].sums + i + j * GGML_F16_EPR, sums[q][j]);
                }
            }
        }
    }

    void compute(int64_t n_cache) {
        for (int64_t begin = 0; begin < n_cache; begin += N_BLOCK) {
            find_cells(begin, std::min(begin + N_BLOCK, n_cache));
            set_scores();
            for (auto & query : queries) {
                set_weights(query);
            }
            add_values();
        }
        for (auto & query : queries) {
            const float factor = query.sum == 0.0f ? 0.0f : 1.0f / query.sum;
            for (int64_t i = 0; i < n_values; ++i) {
                query.out[i] = query.sums[i] * factor;
            }
        }
    }
};

// Query i of those that share a head of the keys goes through its heads first, row by row.
template <int N>
static void attention(ggml_tensor * dst, int64_t stream, int64_t key_head, int64_t first_query, float scale) {
    const ggml_tensor * q    = dst->src[0];
    const ggml_tensor * k    = dst->src[1];
    const ggml_tensor * v    = dst->src[2];
    const ggml_tensor * mask = dst->src[3];

    const int64_t n_heads = q->ne[2] / k->ne[2];

    attention_tile<N> tile;
    tile.keys   = (const char *) k->data + key_head * k->nb[2] + stream / (q->ne[3] / k->ne[3]) * k->nb[3];
    tile.values = (const char *) v->data + key_head * v->nb[2] + stream / (q->ne[3] / v->ne[3]) * v->nb[3];

    tile.key_stride   = k->nb[1];
    tile.value_stride = v->nb[1];
    tile.n_key_values = k->ne[0];
    tile.n_values     = v->ne[0];
    tile.scale        = scale;

    for (int i = 0; i < N; ++i) {
        const int64_t row  = (first_query + i) / n_heads;
        const int64_t head = key_head * n_heads + (first_query + i) % n_heads;

        attention_query & query = tile.queries[i];

        query.mask = mask ?
                         (const ggml_fp16_t *) ((const char *) mask->data + row * mask->nb[1] +
                                                head % mask->ne[2] * mask->nb[2] + stream % mask->ne[3] * mask->nb[3]) :
                         nullptr;
        query.out  = (float *) ((char *) dst->data + head * dst->nb[1] + row * dst->nb[2] + stream * dst->nb[3]);

        ggml_fp16_t rounded[N_VALUES_MAX];
        ggml_cpu_fp32_to_fp16(
            (const float *) ((const char *) q->data + row * q->nb[1] + head * q->nb[2] + stream * q->nb[3]), rounded,
            q->ne[0]);
        ggml_cpu_fp16_to_fp32(rounded, query.values, q->ne[0]);
    }
    tile.compute(k->ne[1]);
}

static bool can(const ggml_tensor * dst) {
    const ggml_tensor * q     = dst->src[0];
    const ggml_tensor * k     = dst->src[1];
    const ggml_tensor * v     = dst->src[2];
    const ggml_tensor * sinks = dst->src[4];

    const float * op_params = (const float *) dst->op_params; // scale, ALiBi, soft cap
    return q->type == GGML_TYPE_F32 && k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 && !sinks &&
           op_params[1] == 0.0f && op_params[2] == 0.0f && q->ne[1] <= N_ROWS_MAX && k->ne[2] == v->ne[2] &&
           k->ne[0] % GGML_F16_DOT_STEP == 0 && v->ne[0] % GGML_F16_STEP == 0 &&
           std::max(k->ne[0], v->ne[0]) <= N_VALUES_MAX;
}

bool mtp_flash_attn_few_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    static constexpr decltype(&attention<1>) KERNELS[] = { attention<1>, attention<2>, attention<3>, attention<4> };
    if (!can(dst)) {
        return false;
    }
    const int64_t n_key_heads = dst->src[1]->ne[2];
    const int64_t n_queries   = dst->src[0]->ne[1] * dst->src[0]->ne[2] / n_key_heads; // that share a head of the keys
    const int64_t n_tiles     = (n_queries + N_QUERIES - 1) / N_QUERIES;
    const int64_t n           = dst->src[0]->ne[3] * n_key_heads * n_tiles;
    const float   scale       = ((const float *) dst->op_params)[0];

    for (int64_t i = n * params->ith / params->nth; i < n * (params->ith + 1) / params->nth; ++i) {
        const int64_t first = i % n_tiles * N_QUERIES;
        KERNELS[std::min<int64_t>(n_queries - first, N_QUERIES) - 1](dst, i / n_tiles / n_key_heads,
                                                                     i / n_tiles % n_key_heads, first, scale);
    }
    return true;
}

#else

bool mtp_flash_attn_few_rows(const ggml_compute_params *, ggml_tensor *) {
    return false;
}

#endif
