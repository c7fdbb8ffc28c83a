#include "cpu-attention.h"

#include "cpu-attention-group.h"

#include <vector>

#if defined(MTP_VECTORS)

namespace {

// Rows that share a list of cells
struct attention_rows {
    int64_t         begin;
    int64_t         end;
    const int32_t * cells;
    int64_t         n_cells;
};

// The lists of a mask; of one with more hidden, which is the sum of what hides it and the mask, those of that mask. Either
// may have another shape than in the cache.
const mtp_mask_cells * lists_of(const ggml_tensor * mask) {
    while (mask && !mask->extra && (mask->op == GGML_OP_ADD || mask->op == GGML_OP_RESHAPE)) {
        mask = mask->src[mask->op == GGML_OP_ADD ? 1 : 0];
    }
    return mask ? (const mtp_mask_cells *) mask->extra : nullptr;
}

attention_rows rows_from(const ggml_tensor * dst, int64_t stream, int64_t begin) {
    const ggml_tensor * mask   = dst->src[3];
    const int64_t       n_rows = dst->src[0]->ne[1];
    const auto *        lists  = lists_of(mask);
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

// The slope of a head with ALiBi, as in llama.cpp
float slope_of(const ggml_tensor * q, float max_bias, int64_t head) {
    if (max_bias <= 0.0f) {
        return 1.0f;
    }
    const int64_t n_doubled = (int64_t) 1 << (int64_t) std::floor(std::log2((double) q->ne[2]));
    return head < n_doubled ? powf(powf(2.0f, -max_bias / n_doubled), head + 1) :
                              powf(powf(2.0f, -max_bias / 2.0f / n_doubled), 2 * (head - n_doubled) + 1);
}

attention_matrix head_of(const ggml_tensor * tensor, int64_t head, int64_t stream) {
    return { tensor->type, tensor->ne[0], (const char *) tensor->data + head * tensor->nb[2] + stream * tensor->nb[3],
             tensor->nb[1] };
}

// Memory of a thread. Graphs ask for less (GGML's work buffers know rows, not groups of them), and a stack may be short.
float * scratch(size_t n) {
    thread_local std::vector<float> memory;
    if (memory.size() < n) {
        memory.resize(n);
    }
    return memory.data();
}

// Queries first to first + n of those that share a head of the keys: through its heads first, row by row
void compute_group(ggml_tensor * dst, const attention_rows & rows, int64_t stream, int64_t key_head, int64_t first,
                   int n) {
    const ggml_tensor * q     = dst->src[0];
    const ggml_tensor * k     = dst->src[1];
    const ggml_tensor * v     = dst->src[2];
    const ggml_tensor * mask  = dst->src[3];
    const ggml_tensor * sinks = dst->src[4];

    const float * op_params = (const float *) dst->op_params; // scale, ALiBi, soft cap
    const int64_t n_heads   = q->ne[2] / k->ne[2];

    attention_group group;
    group.keys     = head_of(k, key_head, stream / (q->ne[3] / k->ne[3]));
    group.values   = head_of(v, key_head, stream / (q->ne[3] / v->ne[3]));
    group.soft_cap = op_params[2];
    group.scale    = op_params[2] == 0.0f ? op_params[0] : op_params[0] / op_params[2];
    group.order    = rows.cells;
    group.n_order  = rows.n_cells;
    group.n_cache  = k->ne[1];
    group.n_tiles  = (n + N_TILE - 1) / N_TILE;

    const int64_t n_key     = group.keys.n_padded();
    const int64_t n_value   = group.values.n_padded();
    const bool    quantizes = ggml_is_quantized(k->type);
    const size_t  size      = quantizes ? attention_group::quantized_size(group.keys) : 0;
    float *       unpacked  = scratch((N_BLOCK + n) * (n_key + n_value) + n * (size / sizeof(float) + 1));
    float *       queries   = unpacked + N_BLOCK * (n_key + n_value);
    float *       sums      = queries + n * n_key;
    char *        quantized = (char *) (sums + n * n_value);
    std::fill(queries, sums + n * n_value, 0.0f);

    for (int i = 0; i < n; ++i) {
        const int64_t row  = rows.begin + (first + i) / n_heads;
        const int64_t head = key_head * n_heads + (first + i) % n_heads;
        const auto *  from =
            (const float *) ((const char *) q->data + row * q->nb[1] + head * q->nb[2] + stream * q->nb[3]);
        if (quantizes) {
            ggml_get_type_traits_cpu(ggml_get_type_traits_cpu(k->type)->vec_dot_type)
                ->from_float(from, quantized + i * size, k->ne[0]);
        } else {
            std::copy_n(from, k->ne[0], queries + i * n_key);
        }
        attention_tile &  tile  = group.tiles[i / N_TILE];
        attention_query & query = tile.queries[i % N_TILE];
        if (i % N_TILE == 0) {
            tile.sums      = sums + i * n_value;
            tile.quantized = quantized + i * size;
            std::fill_n(tile.base, N_TILE, -INFINITY);
            std::fill_n(tile.sum, N_TILE, 0.0f);
        }
        tile.n       = i % N_TILE + 1;
        query.values = queries + i * n_key;
        query.mask = mask ?
                         (const ggml_fp16_t *) ((const char *) mask->data + row * mask->nb[1] +
                                                head % mask->ne[2] * mask->nb[2] + stream % mask->ne[3] * mask->nb[3]) :
                         nullptr;
        query.slope = slope_of(q, op_params[1], head);
        query.sink  = sinks ? ((const float *) sinks->data)[head] : -INFINITY;
        query.out   = (float *) ((char *) dst->data + head * dst->nb[1] + row * dst->nb[2] + stream * dst->nb[3]);
    }
    group.compute(unpacked);
}

} // namespace

bool mtp_flash_attn_few_rows(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];
    if (q->type != GGML_TYPE_F32 || k->ne[2] != v->ne[2] || !attention_group::can(head_of(k, 0, 0), head_of(v, 0, 0))) {
        return false;
    }
    const int64_t n_key_heads = k->ne[2];
    const int64_t n_heads     = q->ne[2] / n_key_heads; // that share one of the keys

    // every thread should have work
    int64_t n_group = std::min<int64_t>(q->ne[1] * q->ne[2] * q->ne[3] / params->nth, N_GROUP);
    n_group         = n_group >= N_TILE ? n_group / N_TILE * N_TILE : std::max<int64_t>(n_group, 1);

    // fn(rows, stream, head of the keys, first query, how many)
    const auto each_group = [&](auto && fn) {
        for (int64_t stream = 0; stream < q->ne[3]; ++stream) {
            for (int64_t begin = 0; begin < q->ne[1];) {
                const attention_rows rows      = rows_from(dst, stream, begin);
                const int64_t        n_queries = (rows.end - rows.begin) * n_heads;
                for (int64_t head = 0; head < n_key_heads; ++head) {
                    for (int64_t first = 0; first < n_queries; first += n_group) {
                        fn(rows, stream, head, first, (int) std::min(n_queries - first, n_group));
                    }
                }
                begin = rows.end;
            }
        }
    };
    // a thread's share is counted in cells: sequences are not equally long
    int64_t n_all = 0;
    each_group([&](const attention_rows & rows, int64_t, int64_t, int64_t, int n) { n_all += (rows.n_cells + 1) * n; });

    int64_t n_before = 0;
    each_group([&](const attention_rows & rows, int64_t stream, int64_t head, int64_t first, int n) {
        if (n_before * params->nth / n_all == params->ith) {
            compute_group(dst, rows, stream, head, first, n);
        }
        n_before += (rows.n_cells + 1) * n;
    });
    return true;
}

#else

bool mtp_flash_attn_few_rows(const ggml_compute_params *, ggml_tensor *) {
    return false;
}

#endif
