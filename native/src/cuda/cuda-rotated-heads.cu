#include "cuda-rotated-heads.cuh"
//
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>
#include <vector>

static constexpr int N_PARTS = 3; // queries, keys and values

// Heads of queries, keys or values. Strides in elements.
struct heads_part {
    const float *   x;
    int64_t         stride;  // between heads
    int64_t         token_stride;
    const float *   weights; // of an RMS norm; nullptr: none
    float           eps;
    bool            is_rotated;
    bool            is_half;
    void *          dst;    // a token's heads follow each other
    int64_t         dst_stride;
    const int64_t * places; // of tokens; nullptr: they follow each other
    int             n_heads;
};

struct heads_input {
    heads_part      parts[N_PARTS];
    int             n_parts;
    int             n_values;  // of a head
    int             n_rotated; // of these
    bool            is_neox;   // a pair's second value is half of them after the first
    const int32_t * positions;
    const float *   factors;   // that angles are divided by; nullptr: none
    float           theta_scale;
    float           freq_scale;
    float           ext_factor; // of YaRN, as the next
    float           corr_dims[2];
    float           magnitude;
};

// (cos, sin) of the angle of a token's i-th pair, each times the magnitude. power: what does not depend on tokens.
static __device__ float2 heads_angle(const heads_input & in, int i, float power, int token) {
    const float extrapolated = in.positions[token] * power / (in.factors ? in.factors[i] : 1.0f);
    float       theta        = in.freq_scale * extrapolated;
    if (in.ext_factor != 0.0f) {
        const float ramp  = (i - in.corr_dims[0]) / fmaxf(0.001f, in.corr_dims[1] - in.corr_dims[0]);
        const float share = (1.0f - fminf(1.0f, fmaxf(0.0f, ramp))) * in.ext_factor;
        theta             = theta * (1.0f - share) + extrapolated * share;
    }
    return { cosf(theta) * in.magnitude, sinf(theta) * in.magnitude };
}

// blockIdx.x: a head of all parts, blockIdx.y: a token; a thread for each two values
static __global__ void rotated_heads(const heads_input in) {
    __shared__ float shared[WARP_SIZE];

    int head = blockIdx.x;
    int n    = 0;
    while (head >= in.parts[n].n_heads) {
        head -= in.parts[n++].n_heads;
    }
    const heads_part & part    = in.parts[n];
    const int          i       = threadIdx.x;
    const int          token   = blockIdx.y;
    const bool         turns   = part.is_rotated && 2 * i < in.n_rotated;
    const int          at      = turns && in.is_neox ? i : 2 * i;
    const int          at_next = turns && in.is_neox ? i + in.n_rotated / 2 : 2 * i + 1;
    const float        power   = powf(in.theta_scale, i);
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    const float * x   = part.x + token * part.token_stride + head * part.stride;
    const int64_t row = part.places ? part.places[token] : token;
    const int64_t to  = row * part.dst_stride + head * in.n_values;
    float2        v   = { x[at], x[at_next] };
    if (part.weights) {
        const float sum   = block_reduce<block_reduce_method::SUM>(v.x * v.x + v.y * v.y, shared);
        const float scale = rsqrtf(sum / in.n_values + part.eps);
        v                 = { scale * v.x * part.weights[at], scale * v.y * part.weights[at_next] };
    }
    if (turns) {
        const float2 angle = heads_angle(in, i, power, token);
        v                  = { v.x * angle.x - v.y * angle.y, v.x * angle.y + v.y * angle.x };
    }
    if (part.is_half) {
        half * dst   = (half *) part.dst + to;
        dst[at]      = __float2half(v.x);
        dst[at_next] = __float2half(v.y);
    } else {
        float * dst  = (float *) part.dst + to;
        dst[at]      = v.x;
        dst[at_next] = v.y;
    }
}

// A part, and what it is found in: nodes that follow each other.
struct heads_found {
    heads_part          part    = {};
    const ggml_tensor * x       = nullptr; // values of (head, token)
    const ggml_tensor * rope    = nullptr; // nullptr: these are values
    const ggml_tensor * result  = nullptr;
    int                 n_nodes = 0;

    bool overwrites(const heads_found & other) const {
        const char * dst         = (const char *) result->data;
        const char * read        = (const char *) other.x->data;
        // a head's values are read before they are written
        const bool   is_in_place = this == &other && dst == read && !part.is_half && ggml_is_contiguous(x);
        return !is_in_place && dst < read + ggml_nbytes(other.x) && read < dst + ggml_nbytes(result);
    }
};

static bool heads_can_store(const ggml_tensor * store, int64_t n_tokens) {
    const ggml_tensor * rows   = store->src[0];
    const ggml_tensor * places = store->src[1];
    return store->op == GGML_OP_SET_ROWS && store->type == GGML_TYPE_F16 && ggml_nrows(rows) == n_tokens &&
           rows->ne[1] == n_tokens && places->type == GGML_TYPE_I64 && ggml_nelements(places) == n_tokens &&
           ggml_is_contiguous(places);
}

// before: what is rotated by the same angles, or nullptr
static bool heads_can_rotate(const ggml_tensor * rope, const ggml_tensor * before) {
    const int32_t * params    = rope->op_params;
    const int       n_rotated = params[1];
    const int       mode      = params[2];
    const int       offset    = params[15];
    return rope->op == GGML_OP_ROPE && ggml_is_contiguous(rope) && rope->ne[0] % (2 * WARP_SIZE) == 0 &&
           rope->ne[0] <= 1024 && rope->ne[2] <= UINT16_MAX && rope->ne[3] == 1 && n_rotated % 2 == 0 && offset == 0 &&
           (mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX) &&
           (!before ||
            (rope->src[1] == before->src[1] && rope->src[2] == before->src[2] && rope->ne[0] == before->ne[0] &&
             rope->ne[2] == before->ne[2] && std::memcmp(params, before->op_params, sizeof(rope->op_params)) == 0));
}

// Finds the part that begins with node i. before: a part's rotation, or nullptr
static bool heads_find(const ggml_cgraph * cgraph, int i, const ggml_tensor * before, heads_found & res) {
    const auto          nodes   = cgraph->nodes + i;
    const ggml_tensor * store   = nullptr;
    const ggml_tensor * weights = nullptr;
    if (before && heads_can_store(nodes[0], before->ne[2]) && nodes[0]->src[0]->ne[0] % before->ne[0] == 0) {
        store       = nodes[0];
        res.x       = store->src[0];
        res.n_nodes = 1;
    } else {
        const bool is_normalized = ggml_can_fuse(cgraph, i, { GGML_OP_RMS_NORM, GGML_OP_MUL, GGML_OP_ROPE });
        const int  at            = i + (is_normalized ? 2 : 0);
        res.rope                 = cgraph->nodes[at];
        res.x                    = is_normalized ? nodes[0]->src[0] : res.rope->src[0];
        res.n_nodes              = at + 1 - i;
        if (!heads_can_rotate(res.rope, before) || (is_normalized && res.rope->src[0] != nodes[1])) {
            return false;
        }
        if (is_normalized) {
            weights      = nodes[1]->src[nodes[1]->src[0] == nodes[0] ? 1 : 0];
            res.part.eps = ggml_get_op_params_f32(nodes[0], 0);
        }
        if (ggml_can_fuse_subgraph(cgraph, at, { GGML_OP_ROPE, GGML_OP_VIEW, GGML_OP_SET_ROWS }, { at + 2 }) &&
            ggml_check_edges(cgraph, at, { { 1, 0, 0 }, { 2, 0, 1 } }) &&
            cgraph->nodes[at + 1]->ne[0] == res.rope->ne[0] * res.rope->ne[1] &&
            ggml_is_contiguous(cgraph->nodes[at + 1]) && heads_can_store(cgraph->nodes[at + 2], res.rope->ne[2])) {
            store = cgraph->nodes[at + 2];
            res.n_nodes += 2;
        }
    }
    const int64_t n_values = (before ? before : res.rope)->ne[0];
    res.result             = store ? store : res.rope;
    res.part.x             = (const float *) res.x->data;
    res.part.stride        = res.rope ? res.x->nb[1] / sizeof(float) : n_values;
    res.part.token_stride  = res.x->nb[res.rope ? 2 : 1] / sizeof(float);
    res.part.n_heads       = (int) (res.rope ? res.x->ne[1] : res.x->ne[0] / n_values);
    res.part.weights       = weights ? (const float *) weights->data : nullptr;
    res.part.is_rotated    = res.rope;
    res.part.is_half       = store;
    res.part.dst           = res.result->data;
    res.part.dst_stride    = store ? store->nb[1] / sizeof(half) : res.rope->nb[2] / sizeof(float);
    res.part.places        = store ? (const int64_t *) store->src[1]->data : nullptr;
    const int32_t wanted   = GGML_TENSOR_FLAG_COMPUTE | GGML_TENSOR_FLAG_SINGLE_ROWS;
    return (res.result->flags & wanted) == wanted && res.x->type == GGML_TYPE_F32 && res.x->nb[0] == sizeof(float) &&
           (!weights ||
            (weights->type == GGML_TYPE_F32 && ggml_nelements(weights) == n_values && ggml_is_contiguous(weights)));
}

static void heads_set_rotation(heads_input & in, const ggml_tensor * rope) {
    const auto f = [&](int i) {
        return ggml_get_op_params_f32(rope, i);
    };
    const float base          = f(5);
    const int   n_ctx_trained = ggml_get_op_params_i32(rope, 4);
    in.n_values               = (int) rope->ne[0];
    in.n_rotated              = ggml_get_op_params_i32(rope, 1);
    in.is_neox                = ggml_get_op_params_i32(rope, 2) == GGML_ROPE_TYPE_NEOX;
    in.positions              = (const int32_t *) rope->src[1]->data;
    in.factors                = rope->src[2] ? (const float *) rope->src[2]->data : nullptr;
    in.theta_scale            = powf(base, -2.0f / in.n_rotated);
    in.freq_scale             = f(6);
    in.ext_factor             = f(7);
    in.magnitude              = f(8) * (in.ext_factor != 0.0f ? 1.0f + 0.1f * logf(1.0f / in.freq_scale) : 1.0f);
    ggml_rope_yarn_corr_dims(in.n_rotated, n_ctx_trained, base, f(9), f(10), in.corr_dims);
}

int mtp_cuda_rotated_heads(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i) {
    std::vector<heads_found> found;
    heads_input              in      = {};
    int                      end     = i;
    int                      n_heads = 0;
    for (int at = i; in.n_parts < N_PARTS && at < cgraph->n_nodes && ctx.curr_stream_no == 0; ++at) {
        const auto op = cgraph->nodes[at]->op;
        if (at > i && (op == GGML_OP_RESHAPE || op == GGML_OP_VIEW)) {
            continue;
        }
        heads_found part;
        if (!heads_find(cgraph, at, found.empty() ? nullptr : found[0].rope, part) || part.overwrites(part) ||
            std::any_of(found.begin(), found.end(),
                        [&](const heads_found & other) { return part.overwrites(other) || other.overwrites(part); })) {
            break;
        }
        found.push_back(part);
        in.parts[in.n_parts++] = part.part;
        n_heads += part.part.n_heads;
        at += part.n_nodes - 1;
        end = at + 1;
    }
    if (end - i < 2) { // as llama.cpp does it
        return 0;
    }
    const ggml_tensor * rope = found[0].rope;
    heads_set_rotation(in, rope);
    const dim3 grid(n_heads, rope->ne[2]);
    ggml_cuda_kernel_launch(rotated_heads,
                            ggml_cuda_kernel_launch_params(grid, in.n_values / 2, (size_t) 0, ctx.stream()), in);
    return end - i - 1;
}
