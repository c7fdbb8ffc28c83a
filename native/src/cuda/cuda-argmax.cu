#include "cuda-argmax.cuh"

static constexpr int N_THREADS = 256;
static constexpr int N_PART    = 4 * N_THREADS; // values of a thread block
static constexpr int N_MIN     = 16 * N_PART;

// what a thread block finds
struct argmax_part {
    unsigned long long key;
    float              logit;   // in the place of the highest value
    float              highest; // of the logits
    float              sum;     // of exp(logit - highest)
};

// ordered as the values are, the first of equal ones highest; NaN lowest
static __device__ __forceinline__ unsigned long long argmax_key(float value, unsigned place) {
    const unsigned bits    = __float_as_uint(value);
    const bool     is_nan  = (bits & 0x7fffffff) > 0x7f800000;
    const unsigned ordered = is_nan ? 0 : bits >> 31 ? ~bits : bits | 0x80000000;
    return (unsigned long long) ordered << 32 | ~place;
}

static __device__ __forceinline__ unsigned argmax_place(unsigned long long key) {
    return ~(unsigned) key;
}

// the highest key of all threads
static __device__ __forceinline__ unsigned long long argmax_highest(unsigned long long key) {
    __shared__ unsigned long long keys[N_THREADS / WARP_SIZE];

    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        key = max(key, __shfl_xor_sync(0xffffffff, key, distance));
    }
    if (threadIdx.x % WARP_SIZE == 0) {
        keys[threadIdx.x / WARP_SIZE] = key;
    }
    __syncthreads();
    for (int i = 0; i < N_THREADS / WARP_SIZE; ++i) {
        key = max(key, keys[i]);
    }
    return key;
}

// exp(value - highest), also where nothing is likely at all
static __device__ __forceinline__ float argmax_weight(float value, float highest) {
    return value == -INFINITY ? 0.0f : expf(value - highest);
}

// logits: nullptr if nobody wants probabilities
static __global__ void argmax_of_parts(const float * values, const float * logits, argmax_part * parts, int64_t n) {
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    values += blockIdx.y * n;
    const int64_t begin = (int64_t) blockIdx.x * N_PART;
    const int64_t end   = min(n, begin + N_PART);

    argmax_part part = { 0, 0.0f, -INFINITY, 0.0f };
    for (int64_t i = begin + threadIdx.x; i < end; i += N_THREADS) {
        part.key = max(part.key, argmax_key(values[i], i));
    }
    part.key = argmax_highest(part.key);

    if (logits) {
        __shared__ float highest[WARP_SIZE];
        __shared__ float sums[WARP_SIZE];

        logits += blockIdx.y * n;
        for (int64_t i = begin + threadIdx.x; i < end; i += N_THREADS) {
            part.highest = fmaxf(part.highest, logits[i]);
        }
        part.highest = block_reduce<block_reduce_method::MAX>(part.highest, highest);
        for (int64_t i = begin + threadIdx.x; i < end; i += N_THREADS) {
            part.sum += argmax_weight(logits[i], part.highest);
        }
        part.sum   = block_reduce<block_reduce_method::SUM>(part.sum, sums);
        part.logit = logits[argmax_place(part.key)];
    }
    if (threadIdx.x == 0) {
        parts[blockIdx.y * gridDim.x + blockIdx.x] = part;
    }
}

// probs: nullptr if nobody wants them
static __global__ void argmax_of_rows(const argmax_part * parts, int32_t * dst, float * probs, int n_parts) {
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    parts += blockIdx.x * n_parts;

    unsigned long long key = 0;
    for (int i = threadIdx.x; i < n_parts; i += N_THREADS) {
        key = max(key, parts[i].key);
    }
    key = argmax_highest(key);
    if (threadIdx.x == 0) {
        dst[blockIdx.x] = argmax_place(key);
    }
    if (probs) {
        __shared__ float shared[WARP_SIZE];
        __shared__ float sums[WARP_SIZE];

        float highest = -INFINITY;
        for (int i = threadIdx.x; i < n_parts; i += N_THREADS) {
            highest = fmaxf(highest, parts[i].highest);
        }
        highest = block_reduce<block_reduce_method::MAX>(highest, shared);

        float sum = 0.0f;
        for (int i = threadIdx.x; i < n_parts; i += N_THREADS) {
            sum += parts[i].sum * argmax_weight(parts[i].highest, highest);
        }
        sum = block_reduce<block_reduce_method::SUM>(sum, sums);
        if (threadIdx.x == 0) {
            probs[blockIdx.x] = argmax_weight(parts[argmax_place(key) / N_PART].logit, highest) / sum;
        }
    }
}

// logits and probs may share memory: all of the former are read before any of the latter is written
static void argmax(ggml_backend_cuda_context & ctx, const ggml_tensor * values, ggml_tensor * dst,
                   const ggml_tensor * logits, ggml_tensor * probs) {
    const int64_t n       = values->ne[0];
    const int     n_rows  = ggml_nrows(values);
    const int     n_parts = (n + N_PART - 1) / N_PART;

    ggml_cuda_pool_alloc<argmax_part> parts(ctx.pool(), n_parts * n_rows);
    ggml_cuda_kernel_launch(
        argmax_of_parts, ggml_cuda_kernel_launch_params(dim3(n_parts, n_rows), N_THREADS, (size_t) 0, ctx.stream()),
        (const float *) values->data, logits ? (const float *) logits->data : nullptr, parts.get(), n);
    ggml_cuda_kernel_launch(argmax_of_rows, ggml_cuda_kernel_launch_params(n_rows, N_THREADS, (size_t) 0, ctx.stream()),
                            (const argmax_part *) parts.get(), (int32_t *) dst->data,
                            probs ? (float *) probs->data : nullptr, n_parts);
}

bool mtp_cuda_argmax(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, ggml_tensor * dst) {
    if (src0->ne[0] < N_MIN || !(dst->flags & GGML_TENSOR_FLAG_SINGLE_ROWS)) {
        return false;
    }
    argmax(ctx, src0, dst, nullptr, nullptr);
    return true;
}

int mtp_cuda_argmax_probs(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i) {
    if (!ggml_can_fuse_subgraph(
            cgraph, i, { GGML_OP_ARGMAX, GGML_OP_SOFT_MAX, GGML_OP_RESHAPE, GGML_OP_RESHAPE, GGML_OP_GET_ROWS },
            { i, i + 4 })) {
        return 0;
    }
    ggml_tensor *       best   = cgraph->nodes[i];
    const ggml_tensor * ranked = best->src[0];
    const ggml_tensor * all    = cgraph->nodes[i + 1];
    ggml_tensor *       probs  = cgraph->nodes[i + 4];
    const ggml_tensor * logits = all->src[0];

    const auto is_plain = [](const ggml_tensor * tensor) {
        return tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor);
    };
    if (!(best->flags & GGML_TENSOR_FLAG_SINGLE_ROWS) || !is_plain(ranked) || !is_plain(logits) || !is_plain(probs) ||
        !ggml_are_same_shape(ranked, logits) || logits->ne[2] * logits->ne[3] != 1 || all->src[1] || all->src[2] ||
        ggml_get_op_params_f32(all, 0) != 1.0f || probs->src[0]->view_src != all || probs->src[1]->view_src != best ||
        probs->src[0]->ne[0] != 1 || probs->src[0]->ne[1] != logits->ne[0] || ggml_nelements(probs) != logits->ne[1]) {
        return 0;
    }
    argmax(ctx, ranked, best, logits, probs);
    return 4;
}
