#include "cpu-attention.h"

#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "simd-mappings.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

// queries that go through the cache together; with keys and values in F16 their sums fit into the registers
static constexpr int N_QUERIES = 4;

// cells whose scores are known before their values are added
static constexpr int64_t N_BLOCK = 128;

static constexpr int64_t N_VALUES_MAX = 1024;

// one head of one row
struct attention_query {
    const ggml_fp16_t * mask; // nullptr: none
    float *             out;
    int64_t             head;
    float               slope;              // of the mask

    float max = -INFINITY;                  // of the scores so far
    float sum = 0.0f;                       // of exp(score - max)

    alignas(64) float values[N_VALUES_MAX]; // as the product with a key takes them
    alignas(64) float sums[N_VALUES_MAX];   // of the cache's values, each times exp(score - max)

    // of the cells of a block
    float score[N_BLOCK];
    float weight[N_BLOCK];
    float rescale[N_BLOCK]; // of the sums, before the cell's values are added

    bool sees(int64_t cell) const {
        constexpr ggml_fp16_t HIDDEN = 0xfc00; // -INFINITY
        return !mask || mask[cell] != HIDDEN;
    }
};

// The queries of a tile share keys, values and the list of cells.
struct attention_tile {
    const ggml_tensor * k;
    const ggml_tensor * v;
    const char *        keys;
    const char *        values;
    float               scale;
    float               soft_cap; // 0: none
    const float *       sinks;    // nullptr: none

    const int32_t * order;        // nullptr: as they lie
    int64_t         n_order;

    int             n;
    attention_query queries[N_QUERIES];

    // of the cells of a block, those that any query sees
    int64_t cells[N_BLOCK];
    int64_t n_cells;

    const char * key(int64_t c) const { return keys + cells[c] * k->nb[1]; }

    const char * value(int64_t c) const { return values + cells[c] * v->nb[1]; }

    // from place `at` of the list on; returns the place after the last one
    int64_t find_cells(int64_t at) {
        for (n_cells = 0; at < n_order && n_cells < N_BLOCK; ++at) {
            const int64_t cell = order ? order[at] : at;
            if (cell < k->ne[1] &&
                std::any_of(queries, queries + n, [&](const attention_query & query) { return query.sees(cell); })) {
                cells[n_cells++] = cell;
            }
        }
        return at;
    }

    void set_weights(attention_query & query) const {
        for (int64_t c = 0; c < n_cells; ++c) {
            query.weight[c] = query.rescale[c] = 1.0f;
            if (!query.sees(cells[c])) {
                query.weight[c] = -INFINITY;
                continue;
            }
            float score = query.score[c] * scale;
            if (soft_cap != 0.0f) {
                score = soft_cap * tanhf(score);
            }
            score += query.mask ? query.slope * GGML_CPU_FP16_TO_FP32(query.mask[cells[c]]) : 0.0f;
            if (score > query.max) {
                query.rescale[c] = expf(query.max - score);
                query.max        = score;
            } else {
                query.weight[c] = expf(score - query.max);
            }
            query.sum = query.sum * query.rescale[c] + query.weight[c];
        }
    }

    // a score without a value
    void add_sink(attention_query & query, float sink) const {
        if (sink > query.max) {
            const float rescale = expf(query.max - sink);
            ggml_vec_scale_f32(v->ne[0], query.sums, rescale);
            query.sum = query.sum * rescale + 1.0f;
        } else {
            query.sum += expf(sink - query.max);
        }
    }

    template <class Kernel> void compute() {
        Kernel kernel{ *this };
        for (int q = 0; q < n; ++q) {
            memset(queries[q].sums, 0, v->ne[0] * sizeof(float));
        }
        for (int64_t at = 0; at < n_order;) {
            at = find_cells(at);
            kernel.set_scores();
            for (int q = 0; q < n; ++q) {
                set_weights(queries[q]);
            }
            kernel.add_values();
        }
        for (int q = 0; q < n; ++q) {
            attention_query & query = queries[q];
            if (v->type == GGML_TYPE_F16) {
                ggml_fp16_t sums[N_VALUES_MAX];
                memcpy(sums, query.sums, v->ne[0] * sizeof(ggml_fp16_t));
                ggml_cpu_fp16_to_fp32(sums, query.sums, v->ne[0]);
            }
            if (sinks) {
                add_sink(query, sinks[query.head]);
            }
            const float factor = query.sum == 0.0f ? 0.0f : 1.0f / query.sum;
            for (int64_t i = 0; i < v->ne[0]; ++i) {
                query.out[i] = query.sums[i] * factor;
            }
        }
    }
};

// Keys and values of any type: each value is unpacked once for all queries.
struct attention_any {
    attention_tile & tile;

    static bool can(const ggml_tensor * k, const ggml_tensor * v) {
        const auto * traits = ggml_get_type_traits_cpu(k->type);
        return traits->vec_dot && ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float &&
               (v->type == GGML_TYPE_F32 || ggml_get_type_traits(v->type)->to_float);
    }

    static void set_query(const ggml_tensor * k, attention_query & query, const float * values) {
        ggml_get_type_traits_cpu(ggml_get_type_traits_cpu(k->type)->vec_dot_type)
            ->from_float(values, query.values, k->ne[0]);
    }

    void set_scores() {
        const ggml_vec_dot_t vec_dot = ggml_get_type_traits_cpu(tile.k->type)->vec_dot;
        for (int64_t c = 0; c < tile.n_cells; ++c) {
            for (int q = 0; q < tile.n; ++q) {
                vec_dot(tile.k->ne[0], &tile.queries[q].score[c], 0, tile.key(c), 0, tile.queries[q].values, 0, 1);
            }
        }
    }

    void add_values() {
        const int64_t n = tile.v->ne[0];
        for (int64_t c = 0; c < tile.n_cells; ++c) {
            const char *      value = tile.value(c);
            alignas(64) float unpacked[N_VALUES_MAX];
            if (tile.v->type != GGML_TYPE_F16 && tile.v->type != GGML_TYPE_F32) {
                ggml_get_type_traits(tile.v->type)->to_float(value, unpacked, n);
            }
            for (int q = 0; q < tile.n; ++q) {
                attention_query & query   = tile.queries[q];
                const float       weight  = query.weight[c];
                const float       rescale = query.rescale[c];
                if (weight == -INFINITY) {
                    continue;
                }
                if (tile.v->type == GGML_TYPE_F16) { // sums are rounded to F16 after every cell
                    auto * sums = (ggml_fp16_t *) query.sums;
                    if (rescale != 1.0f) {
                        ggml_vec_scale_f16(n, sums, rescale);
                    }
                    ggml_vec_mad_f16(n, sums, (const ggml_fp16_t *) value, weight);
                    continue;
                }
                if (rescale != 1.0f) {
                    ggml_vec_scale_f32(n, query.sums, rescale);
                }
                ggml_vec_mad_f32(n, query.sums, tile.v->type == GGML_TYPE_F32 ? (const float *) value : unpacked,
                                 weight);
            }
        }
    }
};

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#    define MTP_ATTENTION_F16

// Values in F16. The CPU backend keeps sums in F16; in_f32: it adds in F32 and rounds after every cell.
struct attention_in_f32 {
#    if defined(__AVX512F__)
    using vector                       = __m512;
    static constexpr int64_t N_OF_EACH = 16;

    static vector load(const ggml_fp16_t * from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from)); }

    static void store(ggml_fp16_t * to, vector x) { _mm256_storeu_si256((__m256i *) to, _mm512_cvtps_ph(x, 0)); }

    static vector of(float x) { return _mm512_set1_ps(x); }

    static vector round(vector x) { return _mm512_cvtph_ps(_mm512_cvtps_ph(x, 0)); }

    static vector multiply(vector x, vector y) { return round(_mm512_mul_ps(x, y)); }

    static vector add_product(vector sum, vector x, vector y) { return round(_mm512_fmadd_ps(x, y, sum)); }
#    else
    using vector                       = __m256;
    static constexpr int64_t N_OF_EACH = 8;

    static vector load(const ggml_fp16_t * from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)); }

    static void store(ggml_fp16_t * to, vector x) { _mm_storeu_si128((__m128i *) to, _mm256_cvtps_ph(x, 0)); }

    static vector of(float x) { return _mm256_set1_ps(x); }

    static vector round(vector x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, 0)); }

    static vector multiply(vector x, vector y) { return round(_mm256_mul_ps(x, y)); }

    static vector add_product(vector sum, vector x, vector y) { return round(_mm256_fmadd_ps(x, y, sum)); }
#    endif
};

#    if defined(__AVX512FP16__)
// processors that add in F16
struct attention_in_f16 {
    using vector                       = __m512h;
    static constexpr int64_t N_OF_EACH = 32;

    static vector load(const ggml_fp16_t * from) { return _mm512_loadu_ph(from); }

    static void store(ggml_fp16_t * to, vector x) { _mm512_storeu_ph(to, x); }

    static vector of(float x) { return GGML_F16_VEC_SET1(x); }

    static vector multiply(vector x, vector y) { return _mm512_mul_ph(x, y); }

    static vector add_product(vector sum, vector x, vector y) { return _mm512_fmadd_ph(x, y, sum); }
};
#    endif

// Keys and values in F16, N queries
template <int N> struct attention_f16 {
    attention_tile & tile;

    static bool can(const ggml_tensor * k, const ggml_tensor * v) {
        return k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 && k->ne[0] % GGML_F16_DOT_STEP == 0 &&
               v->ne[0] % attention_in_f32::N_OF_EACH == 0;
    }

    static void set_query(const ggml_tensor * k, attention_query & query, const float * values) {
        ggml_fp16_t rounded[N_VALUES_MAX];
        ggml_cpu_fp32_to_fp16(values, rounded, k->ne[0]);
        ggml_cpu_fp16_to_fp32(rounded, query.values, k->ne[0]);
    }

    void set_scores() {
        for (int64_t c = 0; c < tile.n_cells; ++c) {
            const auto * key = (const ggml_fp16_t *) tile.key(c);

            GGML_F16_DOT_VEC products[N][GGML_F16_DOT_ARR];
            for (int q = 0; q < N; ++q) {
                for (auto & vector : products[q]) {
                    vector = GGML_F16_DOT_VEC_ZERO;
                }
            }
            for (int64_t i = 0; i < tile.k->ne[0]; i += GGML_F16_DOT_STEP) {
#    pragma GCC unroll 4
                for (int j = 0; j < GGML_F16_DOT_ARR; ++j) {
                    const int64_t          at = i + j * GGML_F16_DOT_EPR;
                    const GGML_F16_DOT_VEC x  = GGML_F16_DOT_VEC_LOAD(key + at, j);
#    pragma GCC unroll 4
                    for (int q = 0; q < N; ++q) {
                        const GGML_F16_DOT_VEC y = GGML_F32_VEC_LOAD(tile.queries[q].values + at);
                        products[q][j]           = GGML_F16_DOT_VEC_FMA(products[q][j], x, y);
                    }
                }
            }
            for (int q = 0; q < N; ++q) {
                ggml_float product;
                GGML_F16_DOT_VEC_REDUCE(product, products[q]);
                tile.queries[q].score[c] = product;
            }
        }
    }

    // values i to i + N_VECTORS vectors
    template <class In, int N_VECTORS> void add_some(int64_t i) {
        using vector = typename In::vector;

        vector sums[N][N_VECTORS];
        for (int q = 0; q < N; ++q) {
            for (int j = 0; j < N_VECTORS; ++j) {
                sums[q][j] = In::load((ggml_fp16_t *) tile.queries[q].sums + i + j * In::N_OF_EACH);
            }
        }
        for (int64_t c = 0; c < tile.n_cells; ++c) {
            const auto * value = (const ggml_fp16_t *) tile.value(c) + i;

            vector xs[N_VECTORS];
#    pragma GCC unroll 4
            for (int j = 0; j < N_VECTORS; ++j) {
                xs[j] = In::load(value + j * In::N_OF_EACH);
            }
#    pragma GCC unroll 4
            for (int q = 0; q < N; ++q) {
                const float weight  = tile.queries[q].weight[c];
                const float rescale = tile.queries[q].rescale[c];
                if (weight == -INFINITY) {
                    continue;
                }
                if (rescale != 1.0f) {
                    const vector factor = In::of(rescale);
#    pragma GCC unroll 4
                    for (int j = 0; j < N_VECTORS; ++j) {
                        sums[q][j] = In::multiply(sums[q][j], factor);
                    }
                }
                const vector factor = In::of(weight);
#    pragma GCC unroll 4
                for (int j = 0; j < N_VECTORS; ++j) {
                    sums[q][j] = In::add_product(sums[q][j], xs[j], factor);
                }
            }
        }
        for (int q = 0; q < N; ++q) {
            for (int j = 0; j < N_VECTORS; ++j) {
                In::store((ggml_fp16_t *) tile.queries[q].sums + i + j * In::N_OF_EACH, sums[q][j]);
            }
        }
    }

    // as ggml_vec_mad_f16 does: four vectors at a time, the rest in F32
    void add_values() {
        const int64_t n = tile.v->ne[0];
        int64_t       i = 0;
#    if defined(__AVX512FP16__)
        for (; i + GGML_F16_STEP <= n; i += GGML_F16_STEP) {
            add_some<attention_in_f16, 4>(i);
        }
#    endif
        for (; i + 4 * attention_in_f32::N_OF_EACH <= n; i += 4 * attention_in_f32::N_OF_EACH) {
            add_some<attention_in_f32, 4>(i);
        }
        for (; i < n; i += attention_in_f32::N_OF_EACH) {
            add_some<attention_in_f32, 1>(i);
        }
    }
};
#endif

// Rows that share a list of cells, and thus tiles
struct attention_rows {
    int64_t         begin;
    int64_t         end;
    const int32_t * cells;
    int64_t         n_cells;
};

static attention_rows rows_from(const ggml_tensor * dst, int64_t stream, int64_t begin) {
    const ggml_tensor * mask   = dst->src[3];
    const int64_t       n_rows = dst->src[0]->ne[1];
    const auto *        lists  = mask ? (const mtp_mask_cells *) mask->extra : nullptr;
    if (!lists) {
        return { begin, n_rows, nullptr, dst->src[1]->ne[1] };
    }
    const auto *   cells = lists->cells + stream % mask->ne[3] * mask->ne[1];
    attention_rows res = { begin, begin + 1, cells[begin], lists->n_cells[stream % mask->ne[3] * mask->ne[1] + begin] };
    while (res.end < n_rows && cells[res.end] == res.cells) {
        ++res.end;
    }
    return res;
}

// Of a head with ALiBi, as in llama.cpp
static float slope_of(const ggml_tensor * q, float max_bias, int64_t head) {
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    const int64_t n_doubled = (int64_t) 1 << (int64_t) std::floor(std::log2((double) q->ne[2]));
    return head < n_doubled ? powf(powf(2.0f, -max_bias / n_doubled), head + 1) :
                              powf(powf(2.0f, -max_bias / 2.0f / n_doubled), 2 * (head - n_doubled) + 1);
}

// Queries first to first + n of those that share a head of the keys: through its heads first, row by row
template <class Kernel>
static void attention(ggml_tensor * dst, const attention_rows & rows, int64_t stream, int64_t key_head, int64_t first,
                      int n) {
    const ggml_tensor * q     = dst->src[0];
    const ggml_tensor * k     = dst->src[1];
    const ggml_tensor * v     = dst->src[2];
    const ggml_tensor * mask  = dst->src[3];
    const ggml_tensor * sinks = dst->src[4];

    const float * op_params = (const float *) dst->op_params; // scale, ALiBi, soft cap
    const int64_t n_heads   = q->ne[2] / k->ne[2];

    attention_tile tile;
    tile.k        = k;
    tile.v        = v;
    tile.keys     = (const char *) k->data + key_head * k->nb[2] + stream / (q->ne[3] / k->ne[3]) * k->nb[3];
    tile.values   = (const char *) v->data + key_head * v->nb[2] + stream / (q->ne[3] / v->ne[3]) * v->nb[3];
    tile.soft_cap = op_params[2];
    tile.scale    = op_params[2] == 0.0f ? op_params[0] : op_params[0] / op_params[2];
    tile.sinks    = sinks ? (const float *) sinks->data : nullptr;
    tile.order    = rows.cells;
    tile.n_order  = rows.n_cells;
    tile.n        = n;

    for (int i = 0; i < n; ++i) {
        const int64_t row  = rows.begin + (first + i) / n_heads;
        const int64_t head = key_head * n_heads + (first + i) % n_heads;

        attention_query & query = tile.queries[i];

        query.mask = mask ?
                         (const ggml_fp16_t *) ((const char *) mask->data + row * mask->nb[1] +
                                                head % mask->ne[2] * mask->nb[2] + stream % mask->ne[3] * mask->nb[3]) :
                         nullptr;
        query.out  = (float *) ((char *) dst->data + head * dst->nb[1] + row * dst->nb[2] + stream * dst->nb[3]);
        query.head = head;
        query.slope = slope_of(q, op_params[1], head);
        Kernel::set_query(
            k, query, (const float *) ((const char *) q->data + row * q->nb[1] + head * q->nb[2] + stream * q->nb[3]));
    }
    tile.compute<Kernel>();
}

using attention_kernel = void (*)(ggml_tensor *, const attention_rows &, int64_t, int64_t, int64_t, int);

static attention_kernel kernel_for(const ggml_tensor * k, const ggml_tensor * v, int n) {
#if defined(MTP_ATTENTION_F16)
    static constexpr attention_kernel OF_F16[N_QUERIES] = {
        attention<attention_f16<1>>,
        attention<attention_f16<2>>,
        attention<attention_f16<3>>,
        attention<attention_f16<4>>,
    };
    if (attention_f16<1>::can(k, v)) {
        return OF_F16[n - 1];
    }
#endif
    GGML_UNUSED(n);
    return attention_any::can(k, v) ? attention<attention_any> : nullptr;
}

bool mtp_flash_attn_few_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];
    if (q->type != GGML_TYPE_F32 || k->ne[2] != v->ne[2] || std::max(k->ne[0], v->ne[0]) > N_VALUES_MAX ||
        !kernel_for(k, v, 1)) {
        return false;
    }
    const int64_t n_key_heads = k->ne[2];
    const int64_t n_heads     = q->ne[2] / n_key_heads; // that share one of the keys

    // fn(rows, stream, head of the keys, first query, how many, cells to go through)
    const auto each_tile = [&](auto && fn) {
        for (int64_t stream = 0; stream < q->ne[3]; ++stream) {
            for (int64_t begin = 0; begin < q->ne[1];) {
                const attention_rows rows      = rows_from(dst, stream, begin);
                const int64_t        n_queries = (rows.end - rows.begin) * n_heads;
                for (int64_t head = 0; head < n_key_heads; ++head) {
                    for (int64_t first = 0; first < n_queries; first += N_QUERIES) {
                        fn(rows, stream, head, first, (int) std::min<int64_t>(n_queries - first, N_QUERIES));
                    }
                }
                begin = rows.end;
            }
        }
    };
    // a thread's share is counted in cells: sequences are not equally long
    int64_t n_all = 0;
    each_tile([&](const attention_rows & rows, int64_t, int64_t, int64_t, int) { n_all += rows.n_cells + 1; });

    int64_t n_before = 0;
    each_tile([&](const attention_rows & rows, int64_t stream, int64_t head, int64_t first, int n) {
        if (n_before * params->nth / n_all == params->ith) {
            kernel_for(k, v, n)(dst, rows, stream, head, first, n);
        }
        n_before += rows.n_cells + 1;
    });
    return true;
}
